"""Copies of the arguments of calls for each run, in their own dtype or in float64."""

from __future__ import annotations

import copy
import operator
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

import torch

from ..probes.tensors import base_of, negated, viewed_again, waited, without_torch_function
from .parts import (
    DEPTH,
    Bound,
    attributes_of,
    gives_out_more,
    is_followed,
    is_numpy,
    is_scalar,
    kind_of,
    own_dict,
    parts_of,
)
from .rule import is_number
from .subclasses import NotOpened, compared_parts, is_plain, is_wrapper, opened, rebuilt, with_parts

T = TypeVar("T")


def _as_it_is(dtype: torch.dtype) -> torch.dtype:
    return dtype


class Copies:
    """Deep copies for one run: they keep everything that a program can see of a tensor except its autograd graph.

    Strides, offsets, shared memory, views of one base, `requires_grad`, whether it is a leaf, and what torch or the
    test has noted on it (`mark_dynamic`). What cannot be copied is shared. Copies of objects that several calls share,
    such as a cache, are shared, too; and objects `owned` by the target are not copied. `to` gives the dtype of a
    tensor's copy, also in modules and objects. `shared` says which arguments with values were not copied: too many
    values, or a class that yields more than it contains.
    """

    def __init__(self, owned: Iterable[object] = (), *, to: Callable[[torch.dtype], torch.dtype] = _as_it_is) -> None:
        self._tensors = _Tensors(to=to)
        self._tensors.memo.update((id(each), each) for each in owned)
        self.shared = ""

    def of(self, value: T) -> T:
        walk = _Walk()
        tensors = [each for each in walk.over(value) if isinstance(each, torch.Tensor)]
        if walk.bound.met:
            self.shared = f"arguments of more than {walk.bound.values} values are shared by all runs, not copied"
            return value
        if walk.alone:
            names = ", ".join(sorted({type(each).__qualname__ for each in walk.alone}))
            self.shared = f"arguments that yield more than they contain are shared by all runs, not copied: {names}"
        return _deep(value, tensors, walk.alone, self._tensors)


def moved(value: T, *, device: torch.device | None, dtype: torch.dtype | None) -> T:
    """A copy with all tensors on `device` and floating-point ones in `dtype`; modules are moved in place."""
    tensors = _Tensors(to=lambda was: dtype if dtype and was.is_floating_point else was, device=device)
    walk = _Walk()
    found = [*walk.over(value)]
    for module in found:
        if isinstance(module, torch.nn.Module):
            module.to(device=device, dtype=dtype)
            tensors.memo[id(module)] = module
    return _deep(value, [each for each in found if isinstance(each, torch.Tensor)], walk.alone, tensors)


def gradients_in(value: object) -> dict[str, torch.Tensor]:
    """The gradients of the leaf tensors in a value, by the tensor's index."""
    leaves = [(index, each) for index, each in enumerate(tensors_in(value)) if each.is_leaf]
    return {f"tensor {index}": each.grad for index, each in leaves if each.grad is not None}


def leaves_of(tensor: torch.Tensor) -> list[torch.Tensor]:
    """The leaves that hold the gradient of a copied tensor: itself, its base, or the stand-in for its graph."""
    if tensor.grad_fn is None:
        return [tensor] if tensor.requires_grad else []
    leaves, pending, seen = [], [tensor.grad_fn], set()
    while pending:
        node = pending.pop()
        if node in seen:
            continue
        seen.add(node)
        if (leaf := getattr(node, "variable", None)) is not None:
            leaves.append(leaf)
        pending += [following for following, _ in node.next_functions if following is not None]
    return leaves


class _Middle(torch.autograd.Function):
    """Gives a copy an autograd graph, as the non-leaf original has; its gradient goes to `seed`."""

    @staticmethod
    def forward(ctx: object, seed: torch.Tensor, made: list[torch.Tensor]) -> torch.Tensor:
        return made[0]

    @staticmethod
    def backward(ctx: object, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        return grad, None


class _Tensors:
    """Copies of tensors that share storages and are views of one another as the originals do."""

    def __init__(
        self, *, to: Callable[[torch.dtype], torch.dtype] = _as_it_is, device: torch.device | None = None
    ) -> None:
        self.memo: dict[int, object] = {}
        self._dtype = to
        self._device = device
        self._storages: dict[tuple[int, torch.dtype | None], torch.UntypedStorage] = {}
        # Kept, for `memo` knows them by their ids: a wrapper may make them for who asks.
        self._parts: list[torch.Tensor] = []

    def copy(self, tensor: torch.Tensor) -> Any:
        """Copy a tensor, and add it to `memo`."""
        if id(tensor) in self.memo:
            return self.memo[id(tensor)]
        with torch.inference_mode(tensor.is_inference()), torch.no_grad(), without_torch_function():
            new = self._wrapper(tensor) if is_wrapper(tensor) else self._in_memory(tensor)
        self.memo[id(tensor)] = new
        made = {*vars(new)} if is_wrapper(tensor) else set[str]()
        for name, value in vars(tensor).items():
            # A wrapper that is made of its parts has its own.
            if name not in made or isinstance(value, (bool, int, float, str)):
                setattr(new, name, _deepcopy(value, self.memo))
        if tensor.is_leaf and tensor.grad is not None:
            new.grad = self.copy(tensor.grad)
        return new

    def _in_memory(self, tensor: torch.Tensor) -> torch.Tensor:
        base = base_of(tensor)
        new = self._view(tensor, self.copy(base)) if base is not None and is_plain(base) else None
        if new is None:
            new = self._whole(tensor)
        if type(new) is not type(tensor):
            # `as_subclass` would make one more view.
            new.__class__ = type(tensor)
        return new

    def _wrapper(self, tensor: torch.Tensor) -> torch.Tensor:
        """A wrapper of copies: what its parts share with others, they still share."""
        waited(tensor)
        new = rebuilt(tensor, lambda part: self._part(part, above=tensor.requires_grad))
        dtype, device = self._dtype(tensor.dtype), self._device or tensor.device
        if (new.dtype, new.device.type) != (dtype, device.type):
            # What it says of itself is not in the parts.
            new = tensor.detach().to(device=device, dtype=dtype, copy=True)
        if type(new) is not type(tensor) or new.dtype != dtype:
            raise TypeError(f"a {type(tensor).__qualname__} cannot be cast to {dtype}")
        new = new.detach() if new.requires_grad else new
        if not tensor.requires_grad:
            return new
        if tensor.is_leaf:
            return new.requires_grad_()
        seed = new.clone().requires_grad_()
        with torch.enable_grad():
            return _Middle.apply(seed, [new])  # type: ignore[no-any-return, no-untyped-call]

    def _part(self, part: torch.Tensor, *, above: bool) -> torch.Tensor:
        """The copy of a part; `above` is whether autograd sees the wrapper, and not what it is made of."""
        self._parts.append(part)
        new: torch.Tensor = self.copy(part)
        return new.detach() if above and new.requires_grad else new

    def _view(self, tensor: torch.Tensor, base: torch.Tensor) -> torch.Tensor | None:
        """The same view of another base; None if that cannot be, as with a base in another dtype."""
        if isinstance(tensor, torch.nn.Parameter):
            return None
        has_graph = tensor.requires_grad and not tensor.is_leaf
        for replayed in (_replayed, _strided):
            try:
                with torch.set_grad_enabled(has_graph or not base.requires_grad):
                    new = replayed(tensor, base)
            except (RuntimeError, NotImplementedError, TypeError, AttributeError):
                continue
            if tensor.requires_grad and not new.requires_grad:
                new.requires_grad_()
            if new.dtype == self._dtype(tensor.dtype) and _is_laid_out_as(new, tensor):
                return new
        return None

    def _whole(self, tensor: torch.Tensor) -> torch.Tensor:
        new = self._stored(tensor)
        if isinstance(tensor, torch.nn.Parameter):
            return torch.nn.Parameter(new, requires_grad=tensor.requires_grad)
        if not tensor.requires_grad:
            return new
        if tensor.is_leaf or tensor.layout != torch.strided:
            return new.requires_grad_()
        seed = new.new_zeros(()).expand(new.shape).requires_grad_()
        with torch.enable_grad():
            return _Middle.apply(seed, [new])  # type: ignore[no-any-return, no-untyped-call]

    def _stored(self, tensor: torch.Tensor) -> torch.Tensor:
        dtype, device = self._dtype(tensor.dtype), self._device or tensor.device
        if not has_storage(tensor):
            to = device if tensor.device.type != "meta" else tensor.device
            if (to, dtype) == (tensor.device, tensor.dtype):
                return tensor.detach().clone()
            return tensor.detach().to(device=to, dtype=dtype, copy=True)
        storage = tensor.untyped_storage()
        key = (storage.data_ptr(), None if dtype == tensor.dtype else tensor.dtype)
        new = self._storages.get(key) if key[0] else None
        if new is None:
            # As bytes where the dtype stays: the storage may be longer than a whole number of elements.
            element = torch.uint8 if key[1] is None else tensor.dtype
            whole = torch.empty(0, dtype=element, device=tensor.device)
            whole.set_(storage, 0, (storage.nbytes() // element.itemsize,), (1,))
            made = whole.to(device=device, dtype=element if key[1] is None else dtype, copy=True)
            new = self._storages[key] = made.untyped_storage()
        view = torch.empty(0, dtype=dtype, device=device)
        view.set_(new, tensor.storage_offset(), tensor.size(), tensor.stride())
        view = view.conj() if tensor.is_conj() else view
        return negated(view) if tensor.is_neg() else view


def has_storage(tensor: torch.Tensor) -> bool:
    """Whether a tensor has a storage, unlike a sparse, nested, quantized, uninitialized or functorch one."""
    if tensor.layout != torch.strided or tensor.is_nested or tensor.is_quantized or tensor.device.type == "meta":
        return False
    try:
        tensor.untyped_storage().data_ptr()
    except (RuntimeError, NotImplementedError, ValueError):
        return False
    return True


def _replayed(tensor: torch.Tensor, base: torch.Tensor) -> torch.Tensor:
    # How a tensor is a view decides what Dynamo makes of its sizes, so the same operations are done once more.
    return viewed_again(tensor, base)


def _strided(tensor: torch.Tensor, base: torch.Tensor) -> torch.Tensor:
    return base.as_strided(tensor.size(), tensor.stride(), tensor.storage_offset())


def _is_laid_out_as(new: torch.Tensor, tensor: torch.Tensor) -> bool:
    return all(
        read(new) == read(tensor)
        for read in (
            torch.Tensor.size,
            torch.Tensor.stride,
            torch.Tensor.storage_offset,
            torch.Tensor.is_conj,
            torch.Tensor.is_neg,
            operator.attrgetter("requires_grad", "is_leaf"),
        )
    )


def _deep(value: T, found: Iterable[torch.Tensor], alone: Iterable[object], tensors: _Tensors) -> T:
    """A deep copy of a value; `found` are the tensors in it, `alone` the objects that are shared."""
    for tensor in found:
        if not (is_plain(tensor) or is_wrapper(tensor)):
            continue
        try:
            tensors.copy(tensor)
        except (RuntimeError, NotImplementedError, TypeError, AttributeError, ValueError, AssertionError):
            # deepcopy below tries its own way, and what it cannot copy is shared.
            continue
    tensors.memo.update((id(each), each) for each in alone)
    whole: T = _deepcopy(value, tensors.memo)
    return whole


def _deepcopy(value: object, memo: dict[int, object]) -> Any:
    known = len(memo)
    try:
        return copy.deepcopy(value, memo)
    except Exception:  # noqa: BLE001 - a lock, a stream, a library's handle: each refuses in its own way
        # What was being copied is half done, and would be taken for the copy.
        for half_done in list(memo)[known:]:
            del memo[half_done]
        if type(value) is tuple:
            return tuple(_deepcopy(part, memo) for part in value)
        # Known before its parts are, which may lead back to it.
        if type(value) is list:
            parts: list[object] = []
            memo[id(value)] = parts
            parts.extend(_deepcopy(part, memo) for part in value)
            return parts
        if type(value) is dict:
            entries: dict[object, object] = {}
            memo[id(value)] = entries
            entries.update((key, _deepcopy(part, memo)) for key, part in value.items())
            return entries
        if isinstance(value, tuple) and hasattr(value, "_make"):
            return value._make(_deepcopy(part, memo) for part in value)
        return value


def wide(dtype: torch.dtype) -> torch.dtype:
    """The dtype that the float64 run uses instead: float64, complex128, or the same."""
    if not is_number(dtype):
        return dtype
    return torch.float64 if dtype.is_floating_point else torch.complex128 if dtype.is_complex else dtype


def single(dtype: torch.dtype) -> torch.dtype:
    """The dtype that the float32 run uses instead: float32 for a narrower one, or the same."""
    if not is_number(dtype) or not dtype.is_floating_point or dtype.itemsize >= torch.float32.itemsize:
        return dtype
    return torch.float32


def tensors_in(value: object) -> Iterator[torch.Tensor]:
    """The tensors in containers and objects, in order; after a wrapper subclass those that it consists of."""
    return (each for tensor in _tensors(value) for each in with_parts(tensor))


def roots_in(value: object) -> tuple[list[torch.Tensor], list[str]]:
    """Plain tensors with all floating-point elements of the tensors in a value, from which a backward can start.

    Also why there are none for others that require a gradient.
    """
    found, without = list[torch.Tensor](), list[str]()
    pending = [*_tensors(value)]
    while pending:
        tensor = pending.pop(0)
        if not tensor.requires_grad and any(each.requires_grad for each in with_parts(tensor)):
            # Made by the program: autograd goes to what it consists of.
            pending[:0] = compared_parts(tensor).values()
        elif tensor.is_floating_point():
            try:
                found += opened(tensor)
            except NotOpened as reason:
                without += [str(reason)] if tensor.requires_grad else []
    return found, without


def why_not_cast(value: object, to: Callable[[torch.dtype], torch.dtype]) -> str:
    """Why a subclass among the tensors in a value cannot be copied to another dtype; empty if all can."""
    for tensor in _tensors(value):
        kind, dtype = type(tensor), tensor.dtype
        if kind in (torch.Tensor, torch.nn.Parameter) or to(dtype) == dtype or torch.nn.parameter.is_lazy(tensor):
            continue
        try:
            fits = (is_plain(tensor) or is_wrapper(tensor)) and _Tensors(to=to).copy(tensor).dtype == to(dtype)
        except Exception:  # noqa: BLE001 - a subclass refuses in its own way
            fits = False
        if not fits:
            return f"a {kind.__qualname__} cannot be cast to {str(to(dtype)).removeprefix('torch.')}"
    return ""


def _tensors(value: object) -> Iterator[torch.Tensor]:
    return (each for each in _Walk().over(value) if isinstance(each, torch.Tensor))


class _Walk:
    """A walk over values, each once, up to a bound; it does not enter the objects in `alone`."""

    def __init__(self) -> None:
        self.bound = Bound()
        self.alone: list[object] = []
        self._seen: set[int] = set()

    def over(self, value: Any, depth: int = 0) -> Iterator[torch.Tensor | torch.nn.Module]:
        """The tensors, and the modules."""
        if isinstance(value, torch.Tensor):
            yield value
            return
        if id(value) in self._seen or depth > DEPTH:
            return
        try:
            if gives_out_more(value):
                self.alone.append(value)
                return
            if is_scalar(value) or is_numpy(value):
                return
            self._seen.add(id(value))
            module = isinstance(value, torch.nn.Module)
            parts = iter(self._parts(value))
        except Exception:  # noqa: BLE001 - as in a snapshot
            return
        if module:
            yield value
        while True:
            try:
                part = next(parts)
            except Exception:  # noqa: BLE001 - the end, or what is no part to be had
                return
            if not self.bound.take():
                return
            yield from self.over(part, depth + 1)

    def _parts(self, value: object) -> Iterable[object]:
        if isinstance(value, torch.nn.Module):
            return list((own_dict(value) or {}).values())
        parts, is_object = parts_of(value)
        if is_object and not is_followed(value) and attributes_of(value) and kind_of(value) in ("code", "large"):
            self.alone.append(value)
            return ()
        return (part for _, part in parts or ())
