"""Tensors of any kind: saved, compared, and restored in place. The objects that hold them are in `state`."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch

from . import numerics
from .probes.tensors import coo_parts, is_fake, version

Same = Callable[[torch.Tensor, torch.Tensor], bool]
_COMPRESSED = (torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc)


def is_tensor(value: object) -> bool:
    """Whether a value is a tensor, for modules that do not import torch."""
    return isinstance(value, torch.Tensor)


class Saved:
    """The values of a tensor. They are restored in place, since others may hold the same tensor or memory.

    Raises:
        Exception: a subclass refuses to be copied, each in its own way.
    """

    def __init__(self, tensor: torch.Tensor) -> None:
        with torch.inference_mode(tensor.is_inference()), torch.no_grad():
            plain = tensor.detach()
            self._overlaps = _overlaps(plain)
            # Of elements that share memory, the memory: it may be far smaller, and cannot be written to by elements.
            data = _memory(plain) if self._overlaps else plain
            self._kept = numerics.Apart(data) if _is_plain(data) else data.clone()
        self._shape, self._stride = tensor.size() if not _is_nested(tensor) else None, _stride(plain)
        self._version = _version(tensor)

    @property
    def _data(self) -> torch.Tensor:
        """The values; those of a large tensor on the CPU are read from a file each time."""
        return self._kept.tensor() if isinstance(self._kept, numerics.Apart) else self._kept

    def is_in(self, tensor: torch.Tensor) -> bool:
        """Whether the tensor has these values, bit by bit."""
        return self._is(tensor, numerics.same_memory)

    def has_values_of(self, tensor: torch.Tensor) -> bool:
        """Whether the tensor has these values by `==`, except that NaN equals NaN."""
        return self._is(tensor, numerics.same_values)

    def put_in(self, tensor: torch.Tensor) -> None:
        """Write the values to the tensor if they differ."""
        # Memory that nobody wrote to may be such as nobody can.
        if self.is_in(tensor):
            return
        with torch.inference_mode(tensor.is_inference()), torch.no_grad():
            if not self._overlaps:
                _write(tensor, self._data)
            elif self._is_laid_out_as(tensor):
                _memory(tensor.detach()).copy_(self._data)
            else:
                assert self._shape is not None
                assert self._stride is not None
                tensor.data = self._data.clone().as_strided(self._shape, self._stride)

    def _is(self, tensor: torch.Tensor, same: Same) -> bool:
        try:
            with torch.inference_mode(tensor.is_inference()), torch.no_grad():
                plain = tensor.detach()
                if not self._overlaps:
                    return _are(plain, self._data, same)
                return self._is_laid_out_as(tensor) and _are(_memory(plain), self._data, same)
        except Exception:  # noqa: BLE001 - what cannot be compared tells at least whether it was written to
            return _version(tensor) == self._version

    def _is_laid_out_as(self, tensor: torch.Tensor) -> bool:
        return tensor.shape == self._shape and tensor.stride() == self._stride


def _is_plain(tensor: torch.Tensor) -> bool:
    """Whether a tensor is nothing but numbers in memory of the CPU, in the order of its shape."""
    return (
        type(tensor) is torch.Tensor
        and tensor.device.type == "cpu"
        and tensor.layout == torch.strided
        and (
            numerics.has_storage(tensor)
            and tensor.is_contiguous()
            and not tensor.is_quantized
            and not tensor.is_conj()
            and not tensor.is_neg()
            and not tensor.is_nested
            and not is_fake(tensor)
        )
    )


def why_not_wide(tensor: torch.Tensor) -> str:
    """Why a tensor cannot be given data of another dtype; empty if it can, or if that has to be tried."""
    if tensor.layout in _COMPRESSED:
        # `tensor.data = ...` would change what it says, and not its values.
        return f"is {numerics.short(tensor.layout)}"
    if tensor.layout != torch.strided or tensor.is_nested or tensor.is_quantized or tensor.device.type == "meta":
        return ""
    if type(tensor) in (torch.Tensor, torch.nn.Parameter) and not numerics.has_storage(tensor):
        # To try it would cut the tensor off from its graph, for good.
        return "is inside a transform of torch.func"
    return ""


def wide(data: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The values in a wider dtype with the same layout: elements that share memory still do."""
    if not _overlaps(data):
        found = data.to(dtype)
        if type(found) is not type(data):
            raise TypeError(f"a {type(data).__qualname__} becomes a {type(found).__name__}")
        return found
    return _memory(data).to(dtype).as_strided(data.shape, data.stride())


class Data:
    """The data of a tensor, which it has again after it was given other data.

    Of a wrapper subclass they are in its attributes: `tensor.data = ...` changes only what it says of itself.
    """

    def __init__(self, tensor: torch.Tensor) -> None:
        self._tensor, self.own = tensor, tensor.data
        self._attributes = numerics.attributes_of(tensor) if numerics.is_wrapper(tensor) else {}

    def give(self, data: torch.Tensor) -> None:
        self._give(data, numerics.attributes_of(data) if numerics.is_wrapper(self._tensor) else {})

    def give_back(self) -> None:
        self._give(self.own, self._attributes)

    def _give(self, data: torch.Tensor, attributes: dict[str, object]) -> None:
        self._tensor.data = data
        for name, value in attributes.items():
            setattr(self._tensor, name, value)


def same(tensor: torch.Tensor, saved: torch.Tensor) -> bool:
    """Whether two tensors have the same values; NaN equals NaN. False if they cannot be compared."""
    try:
        return _are(tensor.detach(), saved.detach(), numerics.same_values)
    except Exception:  # noqa: BLE001 - as above
        return False


def _are(tensor: torch.Tensor, saved: torch.Tensor, same: Same) -> bool:
    if tensor.dtype != saved.dtype:
        if tensor.dtype not in (numerics.wide(saved.dtype), numerics.single(saved.dtype)):
            return False
        saved = wide(saved, tensor.dtype)  # the run in float64, or in float32
    if tensor.layout != saved.layout or _is_nested(tensor) != _is_nested(saved):
        return False
    if not _is_nested(tensor) and tensor.shape != saved.shape:
        return False
    if is_fake(tensor):
        return True
    ours, theirs = [*_pieces(tensor)], [*_pieces(saved)]
    return len(ours) == len(theirs) and all(
        one.shape == other.shape and one.dtype == other.dtype and same(one, other)
        for one, other in zip(ours, theirs, strict=True)
    )


def _pieces(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """The plain tensors that a tensor of any kind consists of."""
    if numerics.is_wrapper(tensor):
        for inner in numerics.parts_of_wrapper(tensor).values():
            yield from _pieces(inner)
    elif tensor.is_nested:
        yield from tensor.unbind()
    elif tensor.layout == torch.sparse_coo:
        yield from coo_parts(tensor)
    elif tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        yield from (tensor.crow_indices(), tensor.col_indices(), tensor.values())
    elif tensor.layout in (torch.sparse_csc, torch.sparse_bsc):
        yield from (tensor.ccol_indices(), tensor.row_indices(), tensor.values())
    elif tensor.layout != torch.strided:
        yield tensor.to_dense()
    elif tensor.is_quantized:
        yield tensor.int_repr()
        if tensor.qscheme() in (torch.per_tensor_affine, torch.per_tensor_symmetric):
            yield torch.tensor([tensor.q_scale(), tensor.q_zero_point()], dtype=torch.float64, device="cpu")
        else:
            yield from (tensor.q_per_channel_scales(), tensor.q_per_channel_zero_points())
    else:
        yield tensor.resolve_conj().resolve_neg()


def _write(tensor: torch.Tensor, data: torch.Tensor) -> None:
    if numerics.is_wrapper(tensor):
        saved = numerics.parts_of_wrapper(data)
        for name, inner in numerics.parts_of_wrapper(tensor).items():
            if name in saved:
                _write(inner, saved[name])
    elif tensor.layout in _COMPRESSED:
        if tensor.values().shape != data.values().shape:
            tensor.resize_as_sparse_(data)
        tensor.copy_(data)
    elif _is_nested(tensor):
        tensor.copy_(data)
    elif tensor.layout != torch.strided or tensor.shape != data.shape or tensor.dtype != data.dtype:
        tensor.data = data.clone()
    else:
        tensor.detach().copy_(data)


def _is_nested(tensor: torch.Tensor) -> bool:
    """Whether a tensor has parts of several sizes, and so no shape."""
    return tensor.is_nested and tensor.layout == torch.strided


def _stride(tensor: torch.Tensor) -> tuple[int, ...] | None:
    if tensor.layout != torch.strided or tensor.is_nested:
        return None
    return tuple(tensor.stride())


def _version(tensor: torch.Tensor) -> int:
    # One made in inference mode counts nothing.
    return version(tensor)


def _overlaps(tensor: torch.Tensor) -> bool:
    """Whether elements of a tensor share memory, as in an expanded one."""
    if tensor.layout != torch.strided or tensor.is_nested or tensor.is_quantized or type(tensor) is not torch.Tensor:
        return False
    reach = 0
    for step, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size == 0:
            return False
        if size > 1 and step <= reach:
            return True
        reach += (size - 1) * step
    return False


def _memory(tensor: torch.Tensor) -> torch.Tensor:
    """The memory from a tensor's first element to its last, each part once."""
    reach = sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.as_strided((reach + 1,), (1,))
