"""Numerics: values of a compiled run held against an eager one and a float64 one. Runs nothing, knows no lane.

A run is kept as snapshots, taken while its tensors are alive; `judge` compares them and is pure.

The rule "fp64" is that of PyTorch's own benchmarks (`same` in torch/_dynamo/utils.py): compiled may be no further from
a float64 reference than a multiple of eager's own distance, plus a floor. Theirs is a mean over each tensor, with an
absolute floor. Here it holds for every element as well, and the floor follows the size of the values, so that one
wrong element in a million and a doubled gradient of any size are found.
"""

from __future__ import annotations

import copy
import dataclasses
import enum
import math
import types
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeVar

import torch

from pytest_compilecontract.measurement import Difference, Numerics

Method = Literal["fp64", "allclose", "bitwise"]
T = TypeVar("T")

# Times eager's own error. `same` in torch/_dynamo/utils.py takes 2, and 3 for half precision and for small tensors:
# there eager's error is one draw of a noise of which compiled's is another.
MULTIPLE = 3.0

# The floor, as a share of the larger of the element and the tensor's RMS: the rounding of a few dozen dependent steps
# in that precision. It carries where eager's own error is a lottery (a loss has one element) or is 0 by luck.
FLOOR: dict[torch.dtype, float] = {
    torch.float64: 1e-12,
    torch.float32: 1e-5,
    torch.float16: 2e-3,
    torch.bfloat16: 2e-2,
}

# The floor of the RMS over a tensor, as a share of FLOOR. Rounding averages out over a tensor; a factor does not.
RMS_SHARE = 0.25

# A tensor whose reference is smaller than eager's error by this share is rounding noise of larger numbers that cancel
# (the gradient of a key's bias, of a convolution's bias before BatchNorm). Its floor is NOISE steps of the precision
# at the size of the largest tensor in its group.
CANCELLED = 0.1
NOISE = 16.0

# The largest error, as a share of the element or the RMS, that rounding explains. Where eager is further than that from
# float64 it went another way: a discrete choice flipped, or, in more than FLIPPED of the elements, the float64 run
# computed something else (other random numbers) and is no reference.
PLAUSIBLE: dict[torch.dtype, float] = {
    torch.float64: 1e-6,
    torch.float32: 1e-2,
    torch.float16: 0.25,
    torch.bfloat16: 0.5,
}
FLIPPED = 0.05

# An element this many times larger than the tenth percentile, and larger than MASK_LEAST, is a mask (-1e9 beside
# logits), not a value to scale the others by.
MASK = 1e4
MASK_LEAST = 5e3
SAMPLE = 100_000  # elements that the percentile is taken from

# torch.testing's relative tolerances (_DTYPE_PRECISIONS in torch/testing/_comparison.py). Its absolute ones are for
# numbers of size one; FLOOR times the RMS stands for them.
RTOL: dict[torch.dtype, float] = {
    torch.float64: 1e-7,
    torch.float32: 1.3e-6,
    torch.float16: 1e-3,
    torch.bfloat16: 1.6e-2,
}

CHUNK = 1 << 20  # elements compared at a time: 8 MiB in float64, about ten times in one comparison
DENSE = 1 << 26  # elements up to which a sparse tensor is compared as a dense one
EXACT_OVERLAP = 1 << 20  # elements up to which two views of one storage are compared byte by byte
DEPTH = 32
NODES = 200_000

# ---------------------------------------------------------------------------------------------------------------------
# Snapshots


@dataclass(frozen=True, kw_only=True, slots=True)
class Memory:
    """The bytes that a tensor's elements lie in. Only tensors alive at the same time can be compared by it."""

    storage: tuple[str, int]
    offset: int
    shape: tuple[int, ...]
    steps: tuple[int, ...]
    itemsize: int


@dataclass(frozen=True, kw_only=True, slots=True)
class TensorLeaf:
    """A tensor as it was. `data` is a dense copy on the CPU, 1 long where the tensor was expanded."""

    type: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    stride: tuple[int, ...] | None
    device: str
    layout: str
    requires_grad: bool
    data: torch.Tensor | None
    unread: str = ""
    memory: Memory | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class ScalarLeaf:
    """A value without parts, compared by type and `==`; floats by the rule."""

    type: str
    value: Any


@dataclass(frozen=True, kw_only=True, slots=True)
class Branch:
    """A container or an object: its type, and the places under which its parts are."""

    type: str
    parts: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Opaque:
    """An object that nothing is known of but its type; `unread` says why, where it should have been read."""

    type: str
    unread: str = ""


Node = TensorLeaf | ScalarLeaf | Branch | Opaque


@dataclass(frozen=True, kw_only=True, slots=True)
class Snapshot:
    """Values at one moment, by their place: `call 0 output[0]['logits']`."""

    nodes: Mapping[str, Node] = field(default_factory=dict)

    def tensors(self) -> Iterator[tuple[str, TensorLeaf]]:
        return ((at, node) for at, node in self.nodes.items() if isinstance(node, TensorLeaf))


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """One run of the target, as it is compared.

    `groups` has a snapshot for each of "output", "input" (the arguments after the call), "grad", "parameter", "buffer"
    and "loss", as far as the run has them; `before` are the arguments before the call, under the places they have in
    "input"; `aliases` are the pairs that `aliases()` found while the run's tensors were alive.
    """

    groups: Mapping[str, Snapshot]
    before: Snapshot | None = None
    aliases: frozenset[tuple[str, str]] = frozenset()


def snapshot(value: object, *, at: str) -> Snapshot:
    """Copy what there is to compare in a value: tensors, scalars, and how they are put together.

    Walks tuples, lists, mappings, dataclasses; of other objects only the tensors within count. Keeps no autograd graph
    alive, and does not raise: what cannot be read is in the snapshot as such.
    """
    walk = _Walk()
    with torch.no_grad(), torch._C.DisableTorchFunctionSubclass():
        walk.visit(value, at, within_object=False, depth=0)
    return Snapshot(nodes=walk.nodes)


def joined(snapshots: Iterable[Snapshot]) -> Snapshot:
    """One snapshot of several, as of all calls. Their places must differ."""
    return Snapshot(nodes={at: node for each in snapshots for at, node in each.nodes.items()})


class _Walk:
    def __init__(self) -> None:
        self.nodes: dict[str, Node] = {}
        self._path: set[int] = set()
        self._copies: dict[int, tuple[torch.Tensor, TensorLeaf | Branch]] = {}

    def visit(self, value: Any, at: str, *, within_object: bool, depth: int) -> bool:
        """Add nodes for a value; False where nothing in it counts."""
        try:
            return self._visit(value, at, within_object=within_object, depth=depth)
        # Objects of any kind come here, and reading one (a property, a lazy field, a subclass) may raise anything.
        except Exception as error:
            self.nodes[at] = Opaque(type=_type_name(value), unread=f"{type(error).__name__}: {_first_line(error)}")
            return True

    def _visit(self, value: Any, at: str, *, within_object: bool, depth: int) -> bool:
        if isinstance(value, torch.Tensor):
            return self._tensor(value, at, depth)
        if _is_numpy(value):
            return self._numpy(value, at)
        if _is_scalar(value):
            if within_object:
                return False
            self.nodes[at] = ScalarLeaf(type=_type_name(value), value=value)
            return True
        if id(value) in self._path or depth > DEPTH or len(self.nodes) > NODES:
            return self._opaque(value, at, within_object)
        parts, is_object = _parts(value)
        if parts is None:
            return self._opaque(value, at, within_object)
        self._path.add(id(value))
        self.nodes[at] = Branch(type=_type_name(value), parts=())
        kept = tuple(
            label
            for label, part in parts
            if self.visit(part, at + label, within_object=within_object or is_object, depth=depth + 1)
        )
        self._path.discard(id(value))
        if (within_object or is_object) and not kept:
            del self.nodes[at]
            return self._opaque(value, at, within_object)
        self.nodes[at] = Branch(type=_type_name(value), parts=kept)
        return True

    def _opaque(self, value: Any, at: str, within_object: bool) -> bool:
        if within_object:
            return False
        self.nodes[at] = Opaque(type=_type_name(value))
        return True

    def _tensor(self, tensor: torch.Tensor, at: str, depth: int) -> bool:
        known = self._copies.get(id(tensor))
        if known is not None and isinstance(known[1], TensorLeaf):
            self.nodes[at] = known[1]
            return True
        inner = _inner_tensors(tensor)
        if inner is None or depth > DEPTH:
            leaf = _tensor_leaf(tensor)
            self._copies[id(tensor)] = (tensor, leaf)
            self.nodes[at] = leaf
            return True
        self.nodes[at] = Branch(
            type=f"{_type_name(tensor)}[{_short(tensor.dtype)}, {list(tensor.shape)}, {tensor.device}]",
            parts=tuple(label for label, _ in inner),
        )
        for label, part in inner:
            self.visit(part, at + label, within_object=False, depth=depth + 1)
        return True

    def _numpy(self, value: Any, at: str) -> bool:
        tensor = torch.as_tensor(value.copy() if hasattr(value, "flags") else value)
        leaf = _tensor_leaf(tensor)
        self.nodes[at] = replace(leaf, type=f"numpy.{type(value).__name__}", stride=None, memory=None)
        return True


def _parts(value: Any) -> tuple[list[tuple[str, Any]] | None, bool]:
    """The parts of a container with the text that leads to each, and whether it is an object of unknown kind."""
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return [(f".{name}", part) for name, part in zip(value._fields, value, strict=True)], False
    if isinstance(value, (tuple, list)):
        return [(f"[{index}]", part) for index, part in enumerate(value)], False
    if isinstance(value, Mapping):
        return [(f"[{_key(key, index)}]", part) for index, (key, part) in enumerate(value.items())], False
    if isinstance(value, _NOT_WALKED):
        return None, False
    if dataclasses.is_dataclass(value):
        names = [each.name for each in dataclasses.fields(value)]
        return [(f".{name}", getattr(value, name)) for name in names if hasattr(value, name)], False
    attributes = _attributes(value)
    return ([(f".{name}", part) for name, part in attributes.items()] if attributes else None), True


def _attributes(value: Any) -> dict[str, Any]:
    found = dict(getattr(value, "__dict__", {}))
    for base in type(value).__mro__:
        slots = base.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if name not in ("__dict__", "__weakref__") and hasattr(value, name):
                found[name] = getattr(value, name)
    return found


# A module's state is compared as parameters and buffers; the others hold code, not results.
_NOT_WALKED = (
    type,
    torch.nn.Module,
    torch.Generator,
    torch.autograd.graph.Node,
    types.ModuleType,
    types.FunctionType,
    types.MethodType,
    types.BuiltinFunctionType,
    types.GeneratorType,
)

_SCALARS = (
    bool, int, float, complex, str, bytes, type(None), type(Ellipsis), range, slice, enum.Enum,
    torch.dtype, torch.device, torch.layout, torch.memory_format,
)  # fmt: skip


def _is_scalar(value: Any) -> bool:
    if isinstance(value, (set, frozenset)):
        return all(isinstance(each, _SCALARS) for each in value)
    return isinstance(value, _SCALARS)


def _is_numpy(value: Any) -> bool:
    kind = getattr(getattr(value, "dtype", None), "kind", "")
    return type(value).__module__ == "numpy" and isinstance(kind, str) and kind in tuple("biufc")


def _key(key: Any, index: int) -> str:
    plain = isinstance(key, _SCALARS) or (isinstance(key, tuple) and all(isinstance(each, _SCALARS) for each in key))
    return repr(key) if plain else f"<{type(key).__name__} {index}>"


def _type_name(value: Any) -> str:
    kind = type(value)
    if kind.__module__ in ("builtins", "torch", "torch.nn.parameter"):
        return kind.__name__
    return f"{kind.__module__}.{kind.__qualname__}"


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n")[0]


def _inner_tensors(tensor: torch.Tensor) -> list[tuple[str, torch.Tensor]] | None:
    """The tensors that a wrapper subclass or a nested tensor is made of; None for one that holds its own values."""
    if hasattr(type(tensor), "__tensor_flatten__"):
        names, _ = tensor.__tensor_flatten__()  # type: ignore[attr-defined]
        return [(f".{name}", getattr(tensor, name)) for name in names]
    if tensor.is_nested:
        return [(f"[{index}]", part) for index, part in enumerate(tensor.unbind())]
    return None


def _tensor_leaf(tensor: torch.Tensor) -> TensorLeaf:
    data, unread = _dense(tensor)
    strided = tensor.layout == torch.strided
    return TensorLeaf(
        type=_type_name(tensor),
        dtype=tensor.dtype,
        shape=tuple(int(size) for size in tensor.shape),
        stride=_stride(tensor) if strided else None,
        device=str(tensor.device),
        layout=_short(tensor.layout),
        requires_grad=tensor.requires_grad,
        data=data,
        unread=unread,
        memory=_memory(tensor) if strided else None,
    )


def _dense(tensor: torch.Tensor) -> tuple[torch.Tensor | None, str]:
    if tensor.device.type == "meta" or isinstance(tensor, torch._subclasses.FakeTensor):
        return None, "has no values"
    try:
        plain = tensor.detach()
        if type(plain) is not torch.Tensor:
            plain = plain.as_subclass(torch.Tensor)
        if plain.is_quantized:
            plain = plain.dequantize()
        if plain.layout != torch.strided:
            if plain.numel() > DENSE:
                return None, f"is {_short(plain.layout)} and too large to compare"
            plain = plain.to_dense()
        for dim in range(plain.dim()):
            # An expanded tensor has far more elements than memory.
            if plain.stride(dim) == 0 and plain.size(dim) > 1:
                plain = plain.narrow(dim, 0, 1)
        plain = plain.resolve_conj().resolve_neg()
        return plain.to("cpu", copy=True, memory_format=torch.contiguous_format), ""
    except (RuntimeError, NotImplementedError, TypeError, AttributeError) as error:
        return None, f"cannot be read ({_first_line(error)})"


def _stride(tensor: torch.Tensor) -> tuple[int, ...]:
    """The strides that place an element: none of an empty tensor, 0 for a dimension of size 1."""
    if tensor.numel() == 0:
        return ()
    return tuple(0 if size == 1 else int(step) for size, step in zip(tensor.shape, tensor.stride(), strict=True))


def _memory(tensor: torch.Tensor) -> Memory | None:
    try:
        pointer = tensor.untyped_storage().data_ptr()
    except (RuntimeError, NotImplementedError):
        return None
    if tensor.numel() == 0 or pointer == 0:
        return None
    item = tensor.element_size()
    dims = [
        (int(size), int(step)) for size, step in zip(tensor.shape, tensor.stride(), strict=True) if size > 1 and step
    ]
    return Memory(
        storage=(str(tensor.device), pointer),
        offset=int(tensor.storage_offset()) * item,
        shape=tuple(size for size, _ in dims),
        steps=tuple(step * item for _, step in dims),
        itemsize=item,
    )


# ---------------------------------------------------------------------------------------------------------------------
# Aliasing


def aliases(outputs: Snapshot, inputs: Snapshot) -> frozenset[tuple[str, str]]:
    """The pairs (output, input) and (output, output) that share memory, by their places.

    Both snapshots must have been taken while the tensors of both were alive. Views of one storage that have no byte in
    common (the halves of `chunk`) share nothing that a program could see.
    """
    by_storage: dict[tuple[str, int], list[tuple[str, Memory, bool]]] = {}
    for at, leaf in outputs.tensors():
        if leaf.memory is not None:
            by_storage.setdefault(leaf.memory.storage, []).append((at, leaf.memory, True))
    for at, leaf in inputs.tensors():
        if leaf.memory is not None and leaf.memory.storage in by_storage:
            by_storage[leaf.memory.storage].append((at, leaf.memory, False))
    pairs: set[tuple[str, str]] = set()
    for members in by_storage.values():
        for index, (at, memory, is_output) in enumerate(members):
            if is_output:
                pairs.update((at, other) for other, theirs, _ in members[index + 1 :] if _overlap(memory, theirs))
    return frozenset(pairs)


def _overlap(one: Memory, other: Memory) -> bool:
    if _end(one) <= other.offset or _end(other) <= one.offset:
        return False
    if max(math.prod(one.shape), math.prod(other.shape)) > EXACT_OVERLAP:
        return True
    mine, theirs = _starts(one), _starts(other).sort().values
    following = torch.searchsorted(theirs, mine - other.itemsize, right=True)
    found = following < len(theirs)
    return bool((theirs[following[found]] < mine[found] + one.itemsize).any())


def _end(memory: Memory) -> int:
    reach = sum((size - 1) * step for size, step in zip(memory.shape, memory.steps, strict=True))
    return memory.offset + reach + memory.itemsize


def _starts(memory: Memory) -> torch.Tensor:
    starts = torch.tensor([memory.offset], dtype=torch.int64, device="cpu")
    for size, step in zip(memory.shape, memory.steps, strict=True):
        starts = (starts[:, None] + torch.arange(size, dtype=torch.int64, device="cpu") * step).reshape(-1)
    return starts


# ---------------------------------------------------------------------------------------------------------------------
# Copies of the arguments


def copied(value: T) -> T:
    """A deep copy for one run: strides, offsets, `requires_grad` and shared memory stay; nothing has a graph.

    A tensor in the middle of a graph becomes a leaf. What cannot be copied is shared.
    """
    return _deep(value, _Tensors(double=False))


def to_float64(value: T) -> T:
    """`copied`, with floating tensors in float64 and complex ones in complex128, in modules and objects too."""
    return _deep(value, _Tensors(double=True))


class _Tensors:
    """Copies of tensors that share their storages as the tensors do."""

    def __init__(self, *, double: bool) -> None:
        self.double = double
        self.memo: dict[int, Any] = {}
        self._storages: dict[tuple[int, torch.dtype | None], torch.Tensor | torch.UntypedStorage] = {}

    def copy(self, tensor: torch.Tensor) -> None:
        with torch.no_grad(), torch._C.DisableTorchFunctionSubclass():
            new = self._copy(tensor)
        if isinstance(tensor, torch.nn.Parameter):
            new = torch.nn.Parameter(new, requires_grad=tensor.requires_grad)
        elif new.is_floating_point() or new.is_complex():
            new.requires_grad_(tensor.requires_grad)
        self.memo[id(tensor)] = new
        if tensor.is_leaf and tensor.grad is not None:
            self.copy(tensor.grad)
            new.grad = self.memo[id(tensor.grad)]

    def _copy(self, tensor: torch.Tensor) -> torch.Tensor:
        dtype = self._dtype(tensor.dtype)
        if tensor.layout != torch.strided or tensor.is_quantized or tensor.device.type == "meta":
            return tensor.detach().to(dtype, copy=True)
        storage = tensor.untyped_storage()
        if dtype == tensor.dtype:
            new = self._storages.get((storage.data_ptr(), None))
            if new is None:
                new = self._storages[storage.data_ptr(), None] = storage.clone()  # type: ignore[no-untyped-call]
        else:
            new = self._storages.get((storage.data_ptr(), tensor.dtype))
            if new is None:
                whole = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
                whole.set_(storage, 0, (storage.nbytes() // tensor.element_size(),), (1,))
                new = self._storages[storage.data_ptr(), tensor.dtype] = whole.to(dtype).untyped_storage()
        view = torch.empty(0, dtype=dtype, device=tensor.device)
        view.set_(new, tensor.storage_offset(), tensor.size(), tensor.stride())  # type: ignore[arg-type]
        view = view.conj() if tensor.is_conj() else view
        return torch._neg_view(view) if tensor.is_neg() else view

    def _dtype(self, dtype: torch.dtype) -> torch.dtype:
        if not self.double:
            return dtype
        return torch.float64 if dtype.is_floating_point else torch.complex128 if dtype.is_complex else dtype


def _deep(value: T, tensors: _Tensors) -> T:
    for tensor in _tensors_in(value, set(), 0):
        if id(tensor) in tensors.memo:
            continue
        try:
            tensors.copy(tensor)
        except (RuntimeError, NotImplementedError, TypeError):
            # deepcopy below tries its own way, and what it cannot copy is shared.
            continue
    whole: T = _deepcopy(value, tensors.memo)
    return whole


def _deepcopy(value: Any, memo: dict[int, Any]) -> Any:
    try:
        return copy.deepcopy(value, memo)
    # A lock, a stream, a handle of some library: any object may refuse in its own way.
    except Exception:
        if type(value) in (tuple, list):
            return type(value)(_deepcopy(part, memo) for part in value)
        if type(value) is dict:
            return {key: _deepcopy(part, memo) for key, part in value.items()}
        if isinstance(value, tuple) and hasattr(value, "_make"):
            return value._make(_deepcopy(part, memo) for part in value)
        return value


def _tensors_in(value: Any, seen: set[int], depth: int) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        # A wrapper subclass copies itself: only it knows what its parts mean.
        if type(value) in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer):
            yield value
        return
    if id(value) in seen or depth > DEPTH or _is_scalar(value) or _is_numpy(value):
        return
    seen.add(id(value))
    try:
        if isinstance(value, torch.nn.Module):
            parts: list[Any] = list(vars(value).values())
        else:
            parts = [part for _, part in _parts(value)[0] or []]
    # As in `snapshot`: reading an object of any kind may raise anything.
    except Exception:
        return
    for part in parts:
        yield from _tensors_in(part, seen, depth + 1)


# ---------------------------------------------------------------------------------------------------------------------
# Judging


def judge(
    *,
    eager: Run,
    compiled: Run,
    again: Run | None = None,
    gold: Run | None = None,
    gold_absent: str = "",
    method: Method = "fp64",
    rtol: float | None = None,
    atol: float | None = None,
    precision: torch.dtype | None = None,
) -> Numerics:
    """Hold a compiled run against an eager one.

    `again` is a second eager run from the same state: what differs between the two is not held against compiled.
    `gold` is the run in float64; without it (`gold_absent` says why) "fp64" becomes "allclose".
    `rtol` and `atol` replace the floor; one alone leaves the other 0. `precision` is the lowest that the run computes
    in (the lane's dtype, or autocast's), where that is below what its tensors show.

    The rules, with c, e and g an element of compiled, eager and float64:
        fp64      |c-g| <= 3 max|e-g| + floor x max(|g|, RMS of g), and the like for the RMS over the tensor
        allclose  |c-e| <= rtol |e| + floor x RMS of e
        bitwise   the same bits; NaN equals NaN, -0.0 is not 0.0
    NaN and inf must be where eager's are, whatever the rule.
    """
    notes = []
    if method == "fp64" and gold is None:
        method = "allclose"
        notes.append("no float64 reference" + (f": {gold_absent}" if gold_absent else ""))
    tolerance = _Tolerance(method=method, rtol=rtol, atol=atol, precision=precision)
    verdicts = [_judge_place(place, tolerance) for place in _places(eager, compiled, again, gold)]
    verdicts += _missing(eager, compiled)
    verdicts += _judge_aliases(eager, compiled, again or eager)
    return _numerics(method, notes, verdicts)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Tolerance:
    method: Method
    rtol: float | None
    atol: float | None
    precision: torch.dtype | None

    @property
    def given(self) -> bool:
        return self.rtol is not None or self.atol is not None


@dataclass(frozen=True, kw_only=True, slots=True)
class _Place:
    """One place in all runs. `size` is the RMS there, `group_size` the largest of its group."""

    at: str
    eager: Node
    compiled: Node
    again: Node | None
    gold: Node | None
    before: Node | None
    kind: str
    size: float
    group_size: float


@dataclass(frozen=True, kw_only=True, slots=True)
class _Verdict:
    """What is known of one place after comparing it."""

    at: str
    compared: bool = False
    differences: tuple[Difference, ...] = ()
    error: float | None = None
    eager_error: float | None = None
    unstable: str = ""
    without_gold: str = ""
    unread: str = ""


def _difference(at: str, kind: str, detail: str) -> _Verdict:
    return _Verdict(at=at, differences=(Difference(at=at, kind=kind, detail=detail),))


def _numerics(method: str, notes: list[str], verdicts: list[_Verdict]) -> Numerics:
    worst = max(verdicts, key=lambda each: -1.0 if each.error is None else each.error, default=_Verdict(at=""))
    own = [each.eager_error for each in verdicts if each.eager_error is not None]
    unstable = [f"{each.at} by {each.unstable}" for each in verdicts if each.unstable]
    notes += _listed("this model is not deterministic: eager differs from eager at", unstable)
    for reason in dict.fromkeys(each.without_gold for each in verdicts if each.without_gold):
        places = [each.at for each in verdicts if each.without_gold == reason]
        notes += _listed(f"judged by allclose, as {reason}:", places)
    notes += _listed("not compared:", [f"{each.at} {each.unread}" for each in verdicts if each.unread])
    return Numerics(
        method=method,
        note="; ".join(notes),
        compared=sum(each.compared for each in verdicts),
        worst_at=worst.at if worst.error is not None else "",
        worst_error=worst.error,
        eager_error=max(own, default=None),
        differences=tuple(each for verdict in verdicts for each in verdict.differences),
    )


def _listed(sentence: str, items: list[str]) -> list[str]:
    if not items:
        return []
    more = f" and {len(items) - 3} more" if len(items) > 3 else ""
    return [f"{sentence} {', '.join(items[:3])}{more}"]


def _places(eager: Run, compiled: Run, again: Run | None, gold: Run | None) -> Iterator[_Place]:
    """Every place that both runs have. Where one lacks a place, something above it differs, and that is reported."""
    for group, reference in eager.groups.items():
        found, repeated, exact = (_group(run, group) for run in (compiled, again or eager, gold))
        before = eager.before.nodes if group == "input" and eager.before else {}
        sizes = {at: _size_at(leaf, exact.get(at)) for at, leaf in reference.tensors()}
        group_size = max(sizes.values(), default=0.0) or _largest_input(eager)
        for at, node in reference.nodes.items():
            if at in found:
                yield _Place(
                    at=at,
                    eager=node,
                    compiled=found[at],
                    again=repeated.get(at),
                    gold=exact.get(at),
                    before=before.get(at),
                    kind="input changed" if group == "input" else "value",
                    size=sizes.get(at, 0.0),
                    group_size=group_size,
                )


def _group(run: Run | None, group: str) -> Mapping[str, Node]:
    return run.groups[group].nodes if run and group in run.groups else {}


def _missing(eager: Run, compiled: Run) -> Iterator[_Verdict]:
    """The tops of groups that only one of the runs has: as the gradient of one step, or all of them."""
    for group in dict.fromkeys((*eager.groups, *compiled.groups)):
        ours, theirs = _group(eager, group), _group(compiled, group)
        for at in _tops(ours):
            if at not in theirs:
                yield _difference(at, "structure", "eager has it, compiled has not")
        for at in _tops(theirs):
            if at not in ours:
                yield _difference(at, "structure", "compiled has it, eager has not")


def _tops(nodes: Mapping[str, Node]) -> list[str]:
    inner = {at + part for at, node in nodes.items() if isinstance(node, Branch) for part in node.parts}
    return [at for at in nodes if at not in inner]


def _size_at(eager: TensorLeaf, gold: Node | None) -> float:
    if isinstance(gold, TensorLeaf) and gold.shape == eager.shape and gold.data is not None:
        return _size(gold.data)
    return 0.0 if eager.data is None else _size(eager.data)


def _largest_input(run: Run) -> float:
    leaves = (run.before or Snapshot(nodes=_group(run, "input"))).tensors()
    return max((_size(leaf.data) for _, leaf in leaves if leaf.data is not None), default=0.0)


def _judge_aliases(eager: Run, compiled: Run, again: Run) -> list[_Verdict]:
    unstable = eager.aliases ^ again.aliases
    found: dict[str, list[str]] = {}
    for output, other in sorted(eager.aliases - compiled.aliases - unstable):
        found.setdefault(output, []).append(f"shares memory with {other} in eager, not in compiled")
    for output, other in sorted(compiled.aliases - eager.aliases - unstable):
        found.setdefault(output, []).append(f"shares memory with {other} in compiled, not in eager")
    return [_difference(output, "alias", "; ".join(details)) for output, details in found.items()]


def _judge_place(place: _Place, tolerance: _Tolerance) -> _Verdict:
    built = _built_otherwise(place.eager, place.compiled)
    if built is not None:
        if place.again is None or _built_otherwise(place.eager, place.again) is not None:
            return _Verdict(at=place.at, unstable="its structure")
        return _difference(place.at, *built)
    if isinstance(place.eager, TensorLeaf) and isinstance(place.compiled, TensorLeaf):
        return _judge_tensor(place, place.eager, place.compiled, tolerance)
    if isinstance(place.eager, ScalarLeaf) and isinstance(place.compiled, ScalarLeaf):
        return _judge_scalar(place, place.eager, place.compiled, tolerance)
    reasons = [each.unread for each in (place.eager, place.compiled) if isinstance(each, Opaque) and each.unread]
    return _Verdict(at=place.at, unread=f"cannot be read ({reasons[0]})" if reasons else "")


def _built_otherwise(eager: Node, compiled: Node) -> tuple[str, str] | None:
    """The kind and detail of a difference in type or parts."""
    if eager.type != compiled.type or type(eager) is not type(compiled):
        return "type", f"compiled {compiled.type}, eager {eager.type}"
    if not isinstance(eager, Branch) or not isinstance(compiled, Branch) or eager.parts == compiled.parts:
        return None
    missing = [part for part in eager.parts if part not in compiled.parts]
    added = [part for part in compiled.parts if part not in eager.parts]
    if not missing and not added:
        return "structure", "compiled has the same parts in another order"
    lists = [f"{word} {', '.join(parts[:5])}" for word, parts in (("without", missing), ("with", added)) if parts]
    return "structure", f"compiled is {' and '.join(lists)} ({len(compiled.parts)} parts, eager {len(eager.parts)})"


def _judge_scalar(place: _Place, eager: ScalarLeaf, compiled: ScalarLeaf, tolerance: _Tolerance) -> _Verdict:
    if isinstance(eager.value, (float, complex)):
        return _judge_float(place, tolerance)
    if not isinstance(place.again, ScalarLeaf) or place.again.value != eager.value:
        return _Verdict(at=place.at, compared=True, unstable="its value")
    if compiled.value == eager.value:
        return _Verdict(at=place.at, compared=True)
    detail = f"compiled {compiled.value!r}, eager {eager.value!r}"
    if isinstance(place.gold, ScalarLeaf) and place.gold.value != eager.value:
        detail += f", float64 {place.gold.value!r}: a discrete choice may have flipped"
    return replace(_difference(place.at, "value", detail), compared=True)


def _judge_float(place: _Place, tolerance: _Tolerance) -> _Verdict:
    eager, compiled, again, gold = (
        _float_leaf(node) for node in (place.eager, place.compiled, place.again, place.gold)
    )
    assert eager is not None
    assert compiled is not None
    assert eager.data is not None
    # As far as can be known, `.item()` took it out of a float32 tensor.
    precision = _lowest(torch.float32, tolerance.precision or torch.float32)
    as_tensors = replace(place, eager=eager, compiled=compiled, again=again, gold=gold, size=_size(eager.data))
    return _judge_tensor(as_tensors, eager, compiled, replace(tolerance, precision=precision))


def _float_leaf(node: Node | None) -> TensorLeaf | None:
    if not isinstance(node, ScalarLeaf) or not isinstance(node.value, (float, complex)):
        return None
    dtype = torch.float64 if isinstance(node.value, float) else torch.complex128
    return _tensor_leaf(torch.tensor(node.value, dtype=dtype, device="cpu"))


def _judge_tensor(place: _Place, eager: TensorLeaf, compiled: TensorLeaf, tolerance: _Tolerance) -> _Verdict:
    again = place.again
    if not isinstance(again, TensorLeaf) or again.shape != eager.shape or again.dtype != eager.dtype:
        return _Verdict(at=place.at, unstable="its shape or dtype")
    unstable = {fact for fact, _ in _facts(eager, again)}
    differences = tuple(
        Difference(at=place.at, kind=fact, detail=detail)
        for fact, detail in _facts(eager, compiled)
        if fact not in unstable
    )
    if compiled.shape != eager.shape or _is_complex(compiled) != _is_complex(eager):
        return _Verdict(at=place.at, compared=True, differences=differences)
    unread = [each.unread for each in (eager, compiled, again) if each.data is None]
    if eager.data is None or compiled.data is None or again.data is None:
        return _Verdict(at=place.at, differences=differences, unread=unread[0])
    gold = place.gold
    has_gold = isinstance(gold, TensorLeaf) and gold.shape == eager.shape and _is_complex(gold) == _is_complex(eager)
    values = _Values(
        at=place.at,
        kind=_kind(place, eager, compiled),
        compiled=compiled.data,
        eager=eager.data,
        again=again.data,
        gold=gold.data if has_gold and isinstance(gold, TensorLeaf) else None,
        size=place.size,
        group_size=place.group_size,
        lowest=_lowest(eager.dtype, compiled.dtype, tolerance.precision or eager.dtype),
    )
    verdict = _judge_values(values, tolerance)
    return replace(verdict, differences=differences + verdict.differences)


def _kind(place: _Place, eager: TensorLeaf, compiled: TensorLeaf) -> str:
    """What a difference in value is called: of an input, that only one of the runs wrote to it, if that is known."""
    before = place.before
    if place.kind == "value" or not isinstance(before, TensorLeaf) or before.data is None:
        return place.kind
    unchanged = [each.data is not None and _same_bits(before.data, each.data) for each in (eager, compiled)]
    return place.kind if any(unchanged) else "value"


def _facts(eager: TensorLeaf, compiled: TensorLeaf) -> Iterator[tuple[str, str]]:
    pairs: list[tuple[str, object, object]] = [
        ("dtype", _short(compiled.dtype), _short(eager.dtype)),
        ("shape", list(compiled.shape), list(eager.shape)),
        ("device", compiled.device, eager.device),
        ("layout", compiled.layout, eager.layout),
        ("requires_grad", compiled.requires_grad, eager.requires_grad),
    ]
    if compiled.shape == eager.shape and compiled.stride is not None and eager.stride is not None:
        pairs.append(("stride", list(compiled.stride), list(eager.stride)))
    return ((fact, f"compiled {theirs}, eager {ours}") for fact, theirs, ours in pairs if theirs != ours)


# ---------------------------------------------------------------------------------------------------------------------
# Values of one tensor


@dataclass(frozen=True, kw_only=True, slots=True)
class _Values:
    """One tensor's values in each run. `lowest` is the coarsest dtype on the way to it."""

    at: str
    kind: str
    compiled: torch.Tensor
    eager: torch.Tensor
    again: torch.Tensor
    gold: torch.Tensor | None
    size: float
    group_size: float
    lowest: torch.dtype

    @property
    def reference(self) -> torch.Tensor:
        return self.eager if self.gold is None else self.gold

    @property
    def grain(self) -> float:
        """What rounding leaves of numbers as large as the group's largest tensor, where they cancel."""
        return NOISE * torch.finfo(self.lowest).eps * self.group_size


@dataclass(frozen=True, kw_only=True, slots=True)
class _Allowed:
    """What the elements of one tensor may be off by: `multiple` times eager's error, plus the floor.

    `own` is eager's largest error among the ordinary elements, `own_rms` its RMS there. An element is not ordinary
    where it is a mask, or where eager went another way than float64; then eager's error at that element counts.
    """

    multiple: float
    own: float
    own_rms: float
    relative: float
    size: float
    absolute: float
    rms_floor: float
    mask_above: float
    far: float
    far_least: float

    def floor(self, reference: torch.Tensor) -> torch.Tensor:
        return self.relative * reference.abs().clamp(min=self.size) + self.absolute

    def ordinary(self, own: torch.Tensor, reference: torch.Tensor) -> torch.Tensor:
        return (reference.abs() <= self.mask_above) & (own <= self.far * reference.abs() + self.far_least)

    @property
    def rms(self) -> float:
        return self.multiple * self.own_rms + self.rms_floor


@dataclass(kw_only=True, slots=True)
class _Errors:
    """Errors of one tensor against the reference, gathered chunk by chunk; the RMS is of ordinary elements alone."""

    largest: float = 0.0
    squares: float = 0.0
    count: int = 0
    beyond: int = 0
    excess: float = -math.inf
    worst: int = 0
    allowed: float = 0.0
    values: tuple[float, float, float] = (0.0, 0.0, 0.0)

    @property
    def rms(self) -> float:
        return math.sqrt(self.squares / self.count) if self.count else 0.0

    def exceed(self, allowed: _Allowed) -> bool:
        return self.beyond > 0 or self.rms > allowed.rms


def _judge_values(values: _Values, tolerance: _Tolerance) -> _Verdict:
    if not _is_float(values.eager) and not _is_float(values.compiled):
        return _judge_exactly(values)
    if _not_finite_elsewhere(values.eager, values.again) is not None:
        return _Verdict(at=values.at, compared=True, unstable="NaN or inf")
    moved = _not_finite_elsewhere(values.eager, values.compiled)
    if moved is not None:
        differs = _difference(values.at, "nan", _moved(values, *moved)).differences
        if tolerance.method == "bitwise":
            return _Verdict(at=values.at, compared=True, differences=differs)
    else:
        differs = ()
        if tolerance.method == "bitwise":
            return _judge_exactly(values)
    without_gold = ""
    if tolerance.method == "fp64" and values.gold is None:
        without_gold = "float64 has nothing comparable there"
    elif values.gold is not None and tolerance.method == "allclose":
        values = replace(values, gold=None, size=_size(values.eager))
    elif values.gold is not None and _went_another_way(values):
        without_gold = "float64 went another way than eager"
        values = replace(values, gold=None, size=_size(values.eager))
    verdict = _judge_floats(values, _allowed(values, tolerance))
    return replace(verdict, differences=differs + verdict.differences, without_gold=without_gold)


def _judge_floats(values: _Values, allowed: _Allowed) -> _Verdict:
    own = allowed.own if values.gold is not None else None
    base = _Verdict(at=values.at, compared=True, eager_error=own)
    if not _same_bits(values.eager, values.again):
        largest, rms = _noise(values.eager, values.again)
        if _errors(replace(values, compiled=values.again), allowed).exceed(allowed):
            return replace(base, unstable=f"{largest:.1e}")
        allowed = replace(
            allowed,
            absolute=allowed.absolute + MULTIPLE * largest,
            rms_floor=allowed.rms_floor + MULTIPLE * rms,
        )
    errors = _errors(values, allowed)
    base = replace(base, error=errors.largest)
    if not errors.exceed(allowed):
        return base
    return replace(base, differences=_difference(values.at, values.kind, _worst(values, errors, allowed)).differences)


def _allowed(values: _Values, tolerance: _Tolerance) -> _Allowed:
    has_gold, floor = values.gold is not None, _floor(values.lowest)
    far = PLAUSIBLE.get(values.lowest, 0.5)
    bounds = _Allowed(
        multiple=MULTIPLE if has_gold else 0.0,
        own=0.0,
        own_rms=0.0,
        relative=floor if has_gold else RTOL.get(values.lowest, floor),
        size=values.size if has_gold else 0.0,
        absolute=0.0 if has_gold else floor * values.size,
        rms_floor=RMS_SHARE * floor * values.size if has_gold else math.inf,
        mask_above=_mask_above(values.reference),
        far=far,
        far_least=far * values.size + values.grain,
    )
    own = _errors(replace(values, compiled=values.eager), bounds, ordinary_only=True)
    bounds = replace(bounds, own=own.largest, own_rms=own.rms)
    if tolerance.given:
        relative, absolute = tolerance.rtol or 0.0, tolerance.atol or 0.0
        rms_floor = relative * values.size + absolute if has_gold else math.inf
        return replace(bounds, relative=relative, size=0.0, absolute=absolute, rms_floor=rms_floor)
    if values.size == 0.0 or own.rms > CANCELLED * values.size:
        return replace(bounds, absolute=bounds.absolute + values.grain, rms_floor=bounds.rms_floor + values.grain)
    return bounds


def _errors(values: _Values, allowed: _Allowed, *, ordinary_only: bool = False) -> _Errors:
    found = _Errors()
    start = 0
    for c, e, g in _chunks(values.compiled, values.eager, values.reference):
        comparable = torch.isfinite(c) & torch.isfinite(e)
        # Where float64 overflows or is undefined, eager's own value stands in.
        g = torch.where(comparable, torch.where(torch.isfinite(g), g, e), 0.0)
        off = torch.where(comparable, (c - g).abs(), 0.0)
        own = torch.where(comparable, (e - g).abs(), 0.0)
        ordinary = allowed.ordinary(own, g)
        limit = allowed.multiple * torch.where(ordinary, allowed.own, own) + allowed.floor(g)
        found.largest = max(found.largest, _largest(off[ordinary] if ordinary_only else off))
        found.squares += float(off[ordinary].square().sum())
        found.count += int((ordinary & comparable).sum())
        excess = torch.where(comparable, off - limit, -math.inf)
        found.beyond += int((excess > 0).sum())
        worst = int(excess.argmax())
        if float(excess[worst]) > found.excess:
            found.excess, found.worst, found.allowed = float(excess[worst]), start + worst, float(limit[worst])
            found.values = float(c[worst]), float(e[worst]), float(g[worst])
        start += c.numel()
    return found


def _went_another_way(values: _Values) -> bool:
    """Whether too many elements of eager are further from float64 than rounding explains."""
    far = PLAUSIBLE.get(values.lowest, 0.5)
    count = implausible = 0
    for e, g in _chunks(values.eager, values.reference):
        off = torch.where(torch.isfinite(e) & torch.isfinite(g), (e - g).abs(), 0.0)
        implausible += int((off > far * torch.nan_to_num(g).abs().clamp(min=values.size) + values.grain).sum())
        count += e.numel()
    return implausible > FLIPPED * count


def _worst(values: _Values, errors: _Errors, allowed: _Allowed) -> str:
    compiled, eager, reference = errors.values
    error, own, numel = abs(compiled - reference), abs(eager - reference), _numel(values)
    text = f"worst at {_index(errors.worst, values)}: compiled {compiled:.6g}, eager {eager:.6g}"
    if values.gold is not None:
        text += f", float64 {reference:.6g}"
    text += f"; error {error:.1e}"
    if not errors.beyond:
        text += f" is allowed, but the RMS error {errors.rms:.1e} > allowed {allowed.rms:.1e}"
        return f"{text} (eager's own {allowed.own_rms:.1e}) over {numel} elements"
    text += f" > allowed {errors.allowed:.1e}"
    if values.gold is not None:
        text += f" (eager's own {max(own, allowed.own):.1e})"
    text += f"; {errors.beyond} of {numel} elements beyond"
    if (
        numel > 1
        and errors.beyond <= max(1.0, FLIPPED * numel)
        and error > allowed.far * max(abs(reference), values.size)
    ):
        text += "; few but far off: a discrete choice may have flipped"
    elif own > allowed.far * abs(reference) + allowed.far_least:
        text += "; eager itself is far from float64 there: a discrete choice may have flipped"
    return text


def _judge_exactly(values: _Values) -> _Verdict:
    base = _Verdict(at=values.at, compared=True)
    if not _same_bits(values.eager, values.again):
        largest, _ = _noise(values.eager, values.again)
        return replace(base, unstable=f"{largest:.1e}" if largest else "its bits")
    largest, _ = _noise(values.eager, values.compiled)
    base = replace(base, error=largest)
    different = _differing(values.eager, values.compiled)
    count = int(different.sum())
    if not count:
        return base
    first = int(different.reshape(-1).to(torch.uint8).argmax())
    compiled, eager = (_element(data, different, first) for data in (values.compiled, values.eager))
    detail = f"{count} of {different.numel()} elements differ, first at {_index(first, values)}: "
    detail += f"compiled {compiled!r}, eager {eager!r}"
    if values.gold is not None and not _is_float(values.eager):
        detail += f", float64 {_element(values.gold, different, first)!r}"
    return replace(base, differences=_difference(values.at, values.kind, detail).differences)


def _moved(values: _Values, first: int, count: int) -> str:
    tensors = _real(values.compiled, values.eager)
    compiled, eager = (_element(data, tensors[0], first) for data in tensors)
    text = f"compiled {compiled!r}, eager {eager!r} at {_index(first, values)}; {count} of {_numel(values)} elements"
    if values.gold is None:
        return text
    gold = _element(_real(values.gold, values.eager)[0], tensors[0], first)
    return f"{text}; float64 has {gold!r} there"


def _not_finite_elsewhere(eager: torch.Tensor, other: torch.Tensor) -> tuple[int, int] | None:
    """The first element where only one is NaN or inf, or they differ in sign, and how many there are."""
    first, count, start = 0, 0, 0
    for e, c in _chunks(eager, other):
        differs = (e.isnan() != c.isnan()) | (e.isposinf() != c.isposinf()) | (e.isneginf() != c.isneginf())
        if differs.any():
            first = first if count else start + int(differs.to(torch.uint8).argmax())
            count += int(differs.sum())
        start += e.numel()
    return (first, count) if count else None


def _noise(one: torch.Tensor, other: torch.Tensor) -> tuple[float, float]:
    """The largest difference and its RMS, over finite elements."""
    largest, squares, count = 0.0, 0.0, 0
    for a, b in _chunks(one, other):
        off = torch.nan_to_num((a - b).abs(), nan=0.0, posinf=0.0)
        largest, squares, count = max(largest, _largest(off)), squares + float(off.square().sum()), count + off.numel()
    return largest, math.sqrt(squares / count) if count else 0.0


def _size(data: torch.Tensor) -> float:
    """The RMS of the finite elements, masks left out."""
    above = _mask_above(data)
    squares, count = 0.0, 0
    for (values,) in _chunks(data):
        values = values[torch.isfinite(values) & (values.abs() <= above)]
        squares, count = squares + float(values.square().sum()), count + values.numel()
    return math.sqrt(squares / count) if count else 0.0


def _mask_above(data: torch.Tensor) -> float:
    (flat,) = _real(data)
    flat = flat.reshape(-1)
    sample = flat[:: max(1, flat.numel() // SAMPLE)].to(torch.float64).abs()
    sample = sample[torch.isfinite(sample) & (sample > 0)]
    if not sample.numel():
        return math.inf
    return max(MASK * float(sample.kthvalue(1 + sample.numel() // 10).values), MASK_LEAST)


def _chunks(*tensors: torch.Tensor) -> Iterator[tuple[torch.Tensor, ...]]:
    """The tensors side by side, flat, in float64, a part at a time. None where they are empty."""
    flat = [each.reshape(-1) for each in _real(*tensors)]
    for start in range(0, flat[0].numel(), CHUNK):
        yield tuple(each[start : start + CHUNK].to(torch.float64) for each in flat)


def _real(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Tensors of one shape; a complex one has its two parts as a last dimension."""
    parts = [torch.view_as_real(each.to(torch.complex128)) if each.is_complex() else each for each in tensors]
    return _broadcast(*parts)


def _broadcast(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return tuple(torch.broadcast_tensors(*tensors))  # type: ignore[no-untyped-call]


def _bits(data: torch.Tensor) -> torch.Tensor:
    if data.is_complex():
        data = torch.view_as_real(data)
    if not data.is_floating_point() or data.dtype not in _INTEGERS:
        return data.view(_INTEGERS.get(data.dtype, data.dtype))
    return torch.where(data.isnan(), math.nan, data).view(_INTEGERS[data.dtype])


# Integers of the same width: PyTorch compares floats by value, and has few operations for unsigned integers.
_INTEGERS = {
    torch.float64: torch.int64,
    torch.float32: torch.int32,
    torch.float16: torch.int16,
    torch.bfloat16: torch.int16,
    torch.uint16: torch.int16,
    torch.uint32: torch.int32,
    torch.uint64: torch.int64,
}


def _differing(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    if one.dtype != other.dtype:
        ours, theirs = _broadcast(one.to(torch.float64), other.to(torch.float64))
        return ours != theirs
    ours, theirs = _broadcast(_bits(one), _bits(other))
    differs = ours != theirs
    return differs.any(-1) if one.is_complex() else differs


def _same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.dtype == other.dtype and not bool(_differing(one, other).any())


def _element(data: torch.Tensor, like: torch.Tensor, index: int) -> Any:
    return data.broadcast_to(like.shape).reshape(-1)[index].item()


def _numel(values: _Values) -> int:
    return _broadcast(values.compiled, values.eager, values.reference)[0].numel()


def _index(flat: int, values: _Values) -> str:
    shape = _broadcast(values.compiled, values.eager, values.reference)[0].shape
    index = []
    for size in reversed(shape):
        index.append(flat % size)
        flat //= size
    return str(index[::-1])


def _largest(values: torch.Tensor) -> float:
    return float(values.max()) if values.numel() else 0.0


def _floor(dtype: torch.dtype) -> float:
    """FLOOR, and for the narrow formats three steps."""
    return FLOOR[dtype] if dtype in FLOOR else 3 * torch.finfo(dtype).eps


def _lowest(*dtypes: torch.dtype) -> torch.dtype:
    floating = [each.to_real() if each.is_complex else each for each in dtypes]
    return max((each for each in floating if each.is_floating_point), key=_floor, default=torch.float64)


def _is_float(data: torch.Tensor) -> bool:
    return data.is_floating_point() or data.is_complex()


def _is_complex(leaf: TensorLeaf) -> bool:
    return leaf.dtype.is_complex


def _short(name: object) -> str:
    return str(name).removeprefix("torch.")
