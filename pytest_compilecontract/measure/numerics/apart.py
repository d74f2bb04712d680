"""Copies of tensors that wait to be compared: large ones lie in a temporary file, and are mapped while they are read.

A run of a model is as large as the model, and several wait for one another. Memory would hold them all at once; a file
is written out by the system whenever something else needs the memory. It has no name, so a killed run leaves none.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import gc
import mmap
import os
import tempfile
from typing import IO

import torch

from .rule import same_memory

# Bytes from which a copy is kept in a file; and bytes after which another file is begun, so that the first can go.
LEAST = 1 << 20
FILE = 1 << 30
# Bytes that are left to others on a disk, or a tenth of a small one.
LEFT = 4 << 30


class Apart:
    """The values of a strided tensor on the CPU. Large ones are in a file, where the system allows it."""

    __slots__ = ("_dtype", "_file", "_offset", "_shape", "_tensor")

    def __init__(self, tensor: torch.Tensor) -> None:
        self._shape, self._dtype = tensor.shape, tensor.dtype
        self._tensor: torch.Tensor | None = tensor
        if (nbytes := tensor.numel() * tensor.element_size()) < LEAST or not hasattr(os, "posix_fallocate"):
            return
        try:
            self._file = _file()
            self._offset = self._file.write(tensor, nbytes)
        except (OSError, ValueError, RuntimeError):  # a full disk, a limit on files, a kind that has no plain bytes
            return
        self._tensor = None

    @property
    def elements(self) -> int:
        """How many values there are; a file is not read for it."""
        return self._shape.numel()

    def holds(self, tensor: torch.Tensor) -> bool:
        """Whether the values are in a file, and those of this tensor bit by bit, so that it needs no other copy."""
        if self._tensor is not None or (self._dtype, self._shape) != (tensor.dtype, tensor.shape):
            return False
        return same_memory(self.tensor(), tensor)

    def tensor(self) -> torch.Tensor:
        """The values. They are read from the file each time, and must not be written to."""
        if self._tensor is not None:
            return self._tensor
        return self._file.read(self._offset, self._dtype, self._shape)


def trim() -> None:
    """Free what only refers to itself, such as an optimizer, and give freed memory back to the system.

    The C library keeps what it may need again; glibc can be told not to.
    """
    gc.collect()
    with contextlib.suppress(AttributeError, OSError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)


class _File:
    """A temporary file without a name, to which copies are added; it is closed with the last of them."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._process = os.getpid()
        self.end = 0

    def __del__(self) -> None:
        # Or Python would warn of a file that nobody closed, which a session may have made an error.
        self._file.close()

    @property
    def is_open(self) -> bool:
        """Whether more can be added: a child process must not write where its parent does."""
        return self._process == os.getpid() and self.end < FILE

    def write(self, tensor: torch.Tensor, nbytes: int) -> int:
        """Add a tensor's values; where they are. OSError if there is no room."""
        at, disk = self.end, os.fstatvfs(self._file.fileno())
        if disk.f_bavail * disk.f_frsize - nbytes < min(LEFT, disk.f_blocks * disk.f_frsize // 10):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        # Reserved, because writing to a mapped page that finds no room would end the process.
        os.posix_fallocate(self._file.fileno(), at, nbytes)
        self.end = at + -(-nbytes // mmap.ALLOCATIONGRANULARITY) * mmap.ALLOCATIONGRANULARITY
        with torch.inference_mode(mode=False), torch.no_grad():
            mapped = mmap.mmap(self._file.fileno(), nbytes, offset=at)
            torch.frombuffer(mapped, dtype=torch.uint8).copy_(tensor.reshape(-1).view(torch.uint8))
        return at

    def read(self, at: int, dtype: torch.dtype, shape: torch.Size) -> torch.Tensor:
        nbytes = shape.numel() * dtype.itemsize
        mapped = mmap.mmap(self._file.fileno(), nbytes, offset=at, access=mmap.ACCESS_COPY)
        return torch.frombuffer(mapped, dtype=dtype).reshape(shape)


_last: list[_File] = []


def _file() -> _File:
    if not _last or not _last[0].is_open:
        _last[:] = [_File(tempfile.TemporaryFile(prefix="compilecontract-"))]  # noqa: SIM115 - closed with the last copy
    return _last[0]
