"""Copies of tensors that wait to be compared: large ones lie in a temporary file, and are mapped while they are read.

A run of a model is as large as the model, and several wait for one another. Memory would hold them all at once; a file
is written out by the system whenever something else needs the memory. It has no name, so a killed run leaves none.

Where large ones are compared is for `laid_on` to say: a GPU reads a file through the bus and compares its values some
fifty times as fast as a core of the CPU.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import gc
import mmap
import os
import tempfile
from collections import OrderedDict
from collections.abc import Iterator
from typing import IO

import torch

from .rule import same_memory

# Bytes from which a copy is kept in a file; and bytes after which another file is begun, so that the first can go.
LEAST = 1 << 20
FILE = 1 << 30
# Bytes that are left to others on a disk, or a tenth of a small one.
LEFT = 4 << 30
# Elements from which a tensor is laid on a device to be compared, and bytes of those that lie there at once.
LEAST_LAID = 1 << 20
LAID = 2 << 30
# Bytes that pass between a device and a file at a time, through memory that does not move: directly, the driver takes
# fifty times as long to a file, and seven times from one.
PASSED = 64 << 20


class Apart:
    """A copy of the values of a strided tensor, on the CPU. Large ones are in a file, where the system allows it."""

    __slots__ = ("_dtype", "_file", "_offset", "_shape", "_tensor")

    def __init__(self, tensor: torch.Tensor) -> None:
        self._shape, self._dtype = tensor.shape, tensor.dtype
        self._tensor: torch.Tensor | None = None
        nbytes = tensor.numel() * tensor.element_size()
        if nbytes >= LEAST:
            # A full disk, a limit on files, a kind that has no plain bytes, a system without pwrite.
            with contextlib.suppress(OSError, ValueError, RuntimeError, AttributeError):
                self._file = _file()
                self._offset = self._file.write(tensor, nbytes)
                return
            with contextlib.suppress(RuntimeError):
                self._tensor = _in_memory(tensor)
                return
        self._tensor = tensor.to("cpu", copy=True, memory_format=torch.contiguous_format)

    @property
    def elements(self) -> int:
        """How many values there are; a file is not read for it."""
        return self._shape.numel()

    def holds(self, tensor: torch.Tensor) -> bool:
        """Whether the values are in a file, and those of this tensor bit by bit, so that it needs no other copy."""
        if self._tensor is not None or (self._dtype, self._shape) != (tensor.dtype, tensor.shape):
            return False
        with torch.inference_mode(mode=False), torch.no_grad():
            ours, theirs = self.values().reshape(-1), tensor.reshape(-1)
            step = max(PASSED // self._dtype.itemsize, 1)
            return all(
                same_memory(ours[start : start + step].to(tensor.device), theirs[start : start + step])
                for start in range(0, self.elements, step)
            )

    def tensor(self) -> torch.Tensor:
        """The values, on the CPU or where `laid_on` says. A file is read each time; they must not be written to."""
        if _desk is not None and self.elements >= LEAST_LAID:
            return _desk.lay(self)
        return self.values()

    def values(self) -> torch.Tensor:
        """The values, on the CPU. They must not be written to."""
        if self._tensor is not None:
            return self._tensor
        return self._file.read(self._offset, self._dtype, self._shape)


class _Desk:
    """A device on which large tensors are compared, and those that were laid there last."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._laid: OrderedDict[int, tuple[Apart, torch.Tensor]] = OrderedDict()
        self._passing: torch.Tensor | None = None

    def lay(self, copy: Apart) -> torch.Tensor:
        if id(copy) in self._laid:
            self._laid.move_to_end(id(copy))
            return self._laid[id(copy)][1]
        values = self._brought(copy.values())
        self._laid[id(copy)] = (copy, values)
        while len(self._laid) > 1 and sum(each.nbytes for _, each in self._laid.values()) > LAID:
            self._laid.popitem(last=False)
        return values

    def _brought(self, values: torch.Tensor) -> torch.Tensor:
        """A copy on the device. While one part of it is on its way, the next is read."""
        if self._device.type != "cuda":
            return values.to(self._device)
        made = torch.empty(values.shape, dtype=values.dtype, device=self._device)
        there, here = (each.reshape(-1).view(torch.uint8) for each in (made, values))
        if self._passing is None:
            self._passing = torch.empty((2, PASSED), dtype=torch.uint8, device="cpu", pin_memory=True)
        sent: list[torch.cuda.Event] = []
        with torch.cuda.device(self._device):
            for index, start in enumerate(range(0, values.nbytes, PASSED)):
                if index > 1:
                    sent[index - 2].synchronize()
                part = self._passing[index % 2][: min(PASSED, values.nbytes - start)]
                part.copy_(here[start : start + PASSED])
                there[start : start + PASSED].copy_(part, non_blocking=True)
                sent.append(torch.cuda.Event())  # type: ignore[no-untyped-call]
                sent[-1].record()
            torch.cuda.synchronize()
        return made


_desk: _Desk | None = None


@contextlib.contextmanager
def laid_on(device: torch.device) -> Iterator[None]:
    """Inside, `Apart.tensor` gives large tensors on this device."""
    global _desk
    before, _desk = _desk, _Desk(device)
    try:
        yield
    finally:
        _desk = before


def trim() -> None:
    """Free what only refers to itself, such as an optimizer, and give freed memory back to the system.

    The C library keeps what it may need again; glibc can be told not to.
    """
    gc.collect()
    with contextlib.suppress(AttributeError, OSError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)


def _in_memory(tensor: torch.Tensor) -> torch.Tensor:
    """A contiguous copy in the CPU's memory."""
    made = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu")
    with torch.inference_mode(mode=False), torch.no_grad():
        there, start = made.reshape(-1).view(torch.uint8), 0
        for part in _parts(tensor):
            there[start : start + len(part)].copy_(part)
            start += len(part)
    return made


def _parts(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """The bytes of a tensor, in the CPU's memory. While one part is read, the next one of a GPU's is on its way."""
    plain = tensor.reshape(-1).view(torch.uint8)
    if plain.device.type != "cuda":
        yield plain
        return
    passing = torch.empty((2, min(PASSED, len(plain))), dtype=torch.uint8, device="cpu", pin_memory=True)
    sent: list[tuple[torch.Tensor, torch.cuda.Event]] = []
    for index, part in enumerate(torch.split(plain, PASSED)):
        sent.append((passing[index % 2][: len(part)], torch.cuda.Event()))  # type: ignore[no-untyped-call]
        sent[-1][0].copy_(part, non_blocking=True)
        sent[-1][1].record(torch.cuda.current_stream(plain.device))
        if index:
            yield _arrived(*sent[index - 1])
    yield _arrived(*sent[-1])


def _arrived(part: torch.Tensor, event: torch.cuda.Event) -> torch.Tensor:
    event.synchronize()
    return part


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
        start, disk = self.end, os.fstatvfs(self._file.fileno())
        if disk.f_bavail * disk.f_frsize - nbytes < min(LEFT, disk.f_blocks * disk.f_frsize // 10):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        at = start
        with torch.inference_mode(mode=False), torch.no_grad():
            for part in _parts(tensor):
                # Not copied to a mapped file: to be given page after page takes four times as long.
                left = memoryview((ctypes.c_char * len(part)).from_address(part.data_ptr())).cast("B")
                while left:
                    done = os.pwrite(self._file.fileno(), left, at)
                    at, left = at + done, left[done:]
        self.end = -(-at // mmap.ALLOCATIONGRANULARITY) * mmap.ALLOCATIONGRANULARITY
        return start

    def read(self, at: int, dtype: torch.dtype, shape: torch.Size) -> torch.Tensor:
        nbytes = shape.numel() * dtype.itemsize
        mapped = mmap.mmap(self._file.fileno(), nbytes, offset=at, access=mmap.ACCESS_COPY)
        return torch.frombuffer(mapped, dtype=dtype).reshape(shape)


_last: list[_File] = []


def _file() -> _File:
    if not _last or not _last[0].is_open:
        _last[:] = [_File(tempfile.TemporaryFile(prefix="compilecontract-"))]  # noqa: SIM115 - closed with the last copy
    return _last[0]
