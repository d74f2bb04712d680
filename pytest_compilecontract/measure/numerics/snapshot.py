"""Snapshots: the values of one run, copied while its tensors are alive, and which of them share memory."""

from __future__ import annotations

import itertools
import math
import sys
import types
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from pytest_compilecontract.errors import message_of

from ..probes.tensors import is_fake, waited, without_torch_function
from .apart import Apart
from .contents import contents_of, referred_by
from .parts import (
    DEPTH,
    HOLDERS,
    VALUES_INSTALLED,
    VALUES_NEAR,
    Bound,
    attributes_beside,
    exact,
    is_followed,
    is_numpy,
    is_scalar,
    kind_of,
    parts_of,
)
from .rule import is_number, same_bits
from .subclasses import compared_parts, is_wrapper, metadata_of, with_parts

DENSE = 1 << 26  # elements up to which a sparse tensor is compared as a dense one
EXACT_OVERLAP = 1 << 20  # elements up to which two views of one storage are compared byte by byte
# The part of a value that stands for all that is beyond the bound of the walk.
REST = "[...]"
# Why there is nothing to compare in a tensor of shapes alone.
NO_VALUES = "has no values"
# The same of one at a place that is not in question.
NOT_WANTED = "is not in question"
# What of a reference is kept in float32.
HALF = (torch.float16, torch.bfloat16)
# A size that is another for each part of a nested tensor.
RAGGED = -1
# The part that stands for what a wrapper is besides the tensors that it consists of.
METADATA = ".__tensor_flatten__()[1]"
# What the name of a tensor of the state follows, where an output shares its memory.
OF_TARGET = "the target's "
# The group of what a run made beside all that was there before.
MADE = "made"


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
    """A tensor as it was. `kept` is a dense copy on the CPU, 1 long where the tensor was expanded."""

    type: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    stride: tuple[int, ...] | None
    device: str
    layout: str
    requires_grad: bool
    has_graph: bool
    kept: Apart | None
    unread: str = ""
    memory: Memory | None = None

    @property
    def data(self) -> torch.Tensor | None:
        """The copy, which may be read from a file each time; not to be written to."""
        return self.kept.tensor() if self.kept is not None else None


@dataclass(frozen=True, kw_only=True, slots=True)
class ScalarLeaf:
    """A value without parts: compared by type and `==`, floats by the rule.

    An `incidental` one is an attribute of an object, which may be a time, an id or a count of all such objects: it is
    ignored if two eager runs differ in it.
    """

    type: str
    value: Any
    incidental: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Branch:
    """A container or object: its type, and the places of its parts; `incidental` are those that may be ignored.

    `identity` tells mutable containers apart, as long as they are alive at the same time. `itself` has the facts of a
    tensor that consists of others, as a wrapper subclass does: its values are theirs.
    """

    type: str
    parts: tuple[str, ...]
    incidental: tuple[str, ...] = ()
    itself: TensorLeaf | None = None
    identity: int = field(default=0, compare=False)


@dataclass(frozen=True, kw_only=True, slots=True)
class Opaque:
    """An object of which only the type is known; `unread` says why, if it should have been read.

    What an `incidental` one may hide is not a result.
    """

    type: str
    unread: str = ""
    incidental: bool = False


Node = TensorLeaf | ScalarLeaf | Branch | Opaque


@dataclass(frozen=True, kw_only=True, slots=True)
class Snapshot:
    """Values at one moment, by their place: `call 0 output[0]['logits']`.

    `within` has the step of a place and its name there, which the gradient, the parameter and the buffer of one step
    have in common; it is empty where places are not compared across groups.
    """

    nodes: Mapping[str, Node] = field(default_factory=dict)
    within: Mapping[str, tuple[str, str]] = field(default_factory=dict)

    def tensors(self) -> Iterator[tuple[str, TensorLeaf]]:
        return ((at, node) for at, node in self.nodes.items() if isinstance(node, TensorLeaf))


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """One run of the target, as it is compared.

    `groups` has a snapshot for each of "output", "input" (the arguments after the call), "grad", "parameter", "buffer",
    "loss", "raised" (what the exception that ended it holds), "state" and MADE, the attributes that it made, as far as
    the run has them. `before` has the arguments before
    the call and the parameters before the first step, under the places that they have in "input" and "parameter" (see
    `renamed`). `aliases` are the pairs that `aliases()` found while the run's tensors were alive. `facts` are what else
    a run left, by its kind and where: they must be the same. `steps` is how far the results of a run that is rounded
    otherwise were moved.
    """

    groups: Mapping[str, Snapshot]
    before: Snapshot | None = None
    aliases: frozenset[tuple[str, str]] = frozenset()
    facts: Mapping[tuple[str, str], str] = field(default_factory=dict)
    steps: int = 1


def snapshot(
    value: object,
    *,
    at: str,
    step: str = "",
    like: Mapping[str, Node] | None = None,
    reference: bool = False,
    wanted: frozenset[str] | None = None,
) -> Snapshot:
    """Copy what is compared of a value: tensors, scalars, and their structure.

    `at` is the value's place, `step` the training step that it belongs to, where its parts are found by name in other
    groups of that step. A large tensor with the bits of the one at its place in `like` shares that one's copy. The
    values of a `reference` are kept in float32 where those in `like` are in half precision. Of tensors at other places
    than those `wanted`, if such are named, no values are kept.
    Walks tuples, lists, mappings, dataclasses and objects; of an object of Python's own only the
    tensors within count, and one of an installed package is walked where it holds results or plain values
    (`parts.kind_of`). Keeps no autograd graph alive, and does not raise: what cannot be read, or is beyond the bound of
    the walk, is marked as such in the snapshot.
    """
    walk = _Walk(like or {}, reference=reference, wanted=wanted)
    with torch.no_grad(), without_torch_function():
        walk.visit(value, at, within_object=False, depth=0)
    within = {each: (step, each[len(at) :]) for each in walk.nodes} if step else {}
    return Snapshot(nodes=walk.nodes, within=within)


def joined(snapshots: Iterable[Snapshot]) -> Snapshot:
    """One snapshot of several, as of all calls. Their places must differ."""
    every = list(snapshots)
    return Snapshot(
        nodes={at: node for each in every for at, node in each.nodes.items()},
        within={at: found for each in every for at, found in each.within.items()},
    )


def renamed(values: Snapshot, was: str, now: str) -> Snapshot:
    """The same values at other places: the prefix `was` replaced by `now`. Nothing is copied."""
    return Snapshot(nodes={now + at[len(was) :]: node for at, node in values.nodes.items() if at.startswith(was)})


def only(run: Run, places: frozenset[str], *, steps: int) -> Run:
    """The values of a noise run at these places."""
    groups = {
        name: Snapshot(nodes={at: node for at, node in each.nodes.items() if at in places})
        for name, each in run.groups.items()
    }
    return Run(groups=groups, steps=steps)


def elements_of(run: Run) -> int:
    """How many elements the tensors of a run have, and what it was given."""
    found = [*run.groups.values(), *((run.before,) if run.before is not None else ())]
    return sum(leaf.kept.elements for each in found for _, leaf in each.tensors() if leaf.kept is not None)


def same_run(one: Run, other: Run) -> bool:
    """Whether two runs are the same to the bit, with what they were given; NaN equals NaN.

    The memory that tensors lie in is another each time, and what it says is in `aliases`.
    """
    if (one.aliases, one.facts, [*one.groups]) != (other.aliases, other.facts, [*other.groups]):
        return False
    pairs = [(each, other.groups[name]) for name, each in one.groups.items()]
    return all(_same_snapshot(*each) for each in (*pairs, (one.before or Snapshot(), other.before or Snapshot())))


def _same_snapshot(one: Snapshot, other: Snapshot) -> bool:
    if [*one.nodes] != [*other.nodes]:
        return False
    return all(_same_node(node, other.nodes[at]) for at, node in one.nodes.items())


def _same_node(one: Node, other: Node) -> bool:
    if isinstance(one, TensorLeaf) and isinstance(other, TensorLeaf):
        if replace(one, kept=None, memory=None) != replace(other, kept=None, memory=None):
            return False
        if one.data is None or other.data is None:
            return one.data is other.data
        return one.data.shape == other.data.shape and same_bits(one.data, other.data)
    if isinstance(one, ScalarLeaf) and isinstance(other, ScalarLeaf):
        # A float that is written out has all its bits, and -0.0 its sign.
        return one.type == other.type and repr(one.value) == repr(other.value)
    return one == other


class _Walk:
    def __init__(self, like: Mapping[str, Node], *, reference: bool, wanted: frozenset[str] | None) -> None:
        self._like = like
        self._reference = reference
        self._wanted = wanted
        self.nodes: dict[str, Node] = {}
        self._path: set[int] = set()
        self._counts = True  # the plain values of the object that is walked
        self._copies: dict[int, tuple[torch.Tensor, TensorLeaf | Branch]] = {}
        self._bounds = [Bound()]

    def visit(self, value: object, at: str, *, within_object: bool, depth: int) -> bool:
        """Add nodes for a value; False if nothing in it counts."""
        try:
            return self._visit(value, at, within_object=within_object, depth=depth)
        except Exception as error:  # noqa: BLE001 - reading an object of any kind (a property, a subclass) may raise it
            reason = f"{type(error).__name__}: {_first_line(error)}"
            self.nodes[at] = Opaque(type=_type_name(value), unread=reason, incidental=within_object)
            return True

    def _visit(self, value: object, at: str, *, within_object: bool, depth: int) -> bool:
        if isinstance(value, torch.Tensor):
            return self._tensor(value, at, depth)
        if is_numpy(value):
            return self._numpy(value, at)
        if is_scalar(value):
            if within_object and not self._counts:
                return False
            self.nodes[at] = ScalarLeaf(type=_type_name(value), value=exact(value), incidental=within_object)
            return True
        if (named := _named(value)) and not within_object:
            self.nodes[at] = ScalarLeaf(type=_type_name(value), value=named)
            return True
        if id(value) in self._path or depth > DEPTH:
            return self._opaque(value, at, within_object)
        parts, is_object = _all_parts(value, within_object=within_object)
        if parts is None:
            return self._opaque(value, at, within_object)
        installed = is_object and not is_followed(value)
        if installed and (kind := kind_of(value)) in ("code", "large"):
            return self._not_followed(value, at, within_object, large=kind == "large")
        self._path.add(id(value))
        self.nodes[at] = Branch(type=_type_name(value), parts=())
        counted, self._counts = self._counts, _says_what_it_holds(value) if is_object else self._counts
        if installed:
            self._bounds.append(Bound(VALUES_INSTALLED))
        kept = self._kept_of(parts, at, within_object=within_object or is_object, depth=depth + 1)
        if installed:
            self._bounds.pop()
        self._counts = counted
        kept += self._kept_of(attributes_beside(value), at, within_object=True, depth=depth + 1)
        self._path.discard(id(value))
        if (within_object or is_object) and not kept:
            del self.nodes[at]
            return self._opaque(value, at, within_object)
        incidental = tuple(label for label in kept if self._is_incidental(at + label))
        # What an object gives out may be made for who asks, and be gone again.
        identity = id(value) if isinstance(value, _WRITABLE) and not within_object else 0
        self.nodes[at] = Branch(type=_type_name(value), parts=kept, incidental=incidental, identity=identity)
        return True

    def _kept_of(
        self, parts: Iterable[tuple[str, object]], at: str, *, within_object: bool, depth: int
    ) -> tuple[str, ...]:
        """The parts that count, up to the bound of the walk."""
        kept: list[str] = []
        for label, part in parts:
            if full := [each for each in self._bounds if not each.take()]:
                self.nodes[at + REST] = Opaque(type="...", unread=f"more than {full[0].values} values")
                return (*kept, REST)
            if self.visit(part, at + label, within_object=within_object, depth=depth):
                kept.append(label)
        return tuple(kept)

    def _is_incidental(self, at: str) -> bool:
        node = self.nodes[at]
        if isinstance(node, Branch):
            return bool(node.parts) and node.parts == node.incidental
        return isinstance(node, ScalarLeaf) and node.incidental

    def _opaque(self, value: object, at: str, within_object: bool) -> bool:
        if within_object:
            return False
        # Whether compiling changed the type of a module is for `check_state_dict` to say.
        inner = getattr(value, "_orig_mod", value) if isinstance(value, torch.nn.Module) else value
        self.nodes[at] = Opaque(type=_type_name(inner))
        return True

    def _not_followed(self, value: object, at: str, within_object: bool, *, large: bool) -> bool:
        """Skip an object of an installed package, and say so if it may matter."""
        if within_object and not large:
            return False
        reason = f"more than {VALUES_NEAR} values, no tensor among them" if large else "of an installed package"
        self.nodes[at] = Opaque(type=_type_name(value), unread=reason, incidental=within_object or not large)
        return True

    def _tensor(self, tensor: torch.Tensor, at: str, depth: int) -> bool:
        tensor = waited(tensor)
        known, is_wanted = self._copies.get(id(tensor)), self._wanted is None or at in self._wanted
        if known is not None and isinstance(known[1], TensorLeaf) and (known[1].unread != NOT_WANTED or not is_wanted):
            self.nodes[at] = known[1]
            return True
        inner = _inner_tensors(tensor) if depth <= DEPTH else None
        if inner is None:
            leaf = _facts(tensor, NOT_WANTED)
            if is_wanted:
                leaf = tensor_leaf(tensor, self._like.get(at), reference=self._reference)
            self._copies[id(tensor)] = (tensor, leaf)
            self.nodes[at] = leaf
            for name, part in vars(tensor).items():
                if not name.startswith("_") and leaf.unread != NO_VALUES:
                    self.visit(part, f"{at}.{name}", within_object=True, depth=depth + 1)
            return True
        metadata = metadata_of(tensor) if is_wrapper(tensor) else None
        labels = (*(label for label, _ in inner), *(() if metadata is None else (METADATA,)))
        self.nodes[at] = Branch(type=_type_name(tensor), parts=labels, itself=_facts(tensor, NO_VALUES))
        for label, part in inner:
            self.visit(part, at + label, within_object=False, depth=depth + 1)
        if metadata is not None:
            self._metadata(metadata, at + METADATA, depth + 1)
        return True

    def _metadata(self, value: object, at: str, depth: int) -> None:
        """What a wrapper says of itself is compared by `==`, as Dynamo does, where its class defines that."""
        if type(value) in (tuple, list, dict) and depth <= DEPTH:
            parts = [*(parts_of(value)[0] or ())]
            self.nodes[at] = Branch(type=_type_name(value), parts=tuple(label for label, _ in parts))
            for label, part in parts:
                self._metadata(part, at + label, depth + 1)
        elif is_scalar(value) or type(value).__eq__ is object.__eq__:
            self.visit(value, at, within_object=False, depth=depth)
        else:
            self.nodes[at] = ScalarLeaf(type=_type_name(value), value=value)

    def _numpy(self, value: Any, at: str) -> bool:
        tensor = torch.as_tensor(value.copy() if hasattr(value, "flags") else value)
        leaf = tensor_leaf(tensor)
        self.nodes[at] = replace(leaf, type=f"numpy.{type(value).__name__}", stride=None, memory=None)
        return True


def _says_what_it_holds(value: object) -> bool:
    """Whether an object's plain attributes are its content. Python's own objects have notes and caches in theirs."""
    module = type(value).__module__
    return module in HOLDERS or module.partition(".")[0] not in sys.stdlib_module_names


def _all_parts(value: object, *, within_object: bool) -> tuple[Iterable[tuple[str, object]] | None, bool]:
    """The parts of a value, with what is in no attribute."""
    parts, is_object = parts_of(value)
    held = contents_of(value)
    if held is None and not within_object:
        held = referred_by(value)
    return (parts, is_object) if held is None else (itertools.chain(parts or (), held), False)


_WRITABLE = (list, dict, deque)


def _named(value: object) -> str:
    """The qualified name of a module-level function or class; empty for anything else."""
    if not isinstance(value, (type, types.FunctionType, types.BuiltinFunctionType)):
        return ""
    name = getattr(value, "__qualname__", "<")
    return "" if "<" in name else f"{value.__module__}.{name}"


def _type_name(value: object) -> str:
    kind = type(value)
    if kind.__module__ in ("builtins", "torch", "torch.nn.parameter"):
        return kind.__name__
    return f"{kind.__module__}.{kind.__qualname__}"


def _first_line(error: Exception) -> str:
    return message_of(error).strip().split("\n")[0]


def _inner_tensors(tensor: torch.Tensor) -> list[tuple[str, torch.Tensor]] | None:
    """The tensors that a wrapper subclass or a nested tensor consists of; None for a plain tensor."""
    if is_wrapper(tensor):
        return [(f".{name}", part) for name, part in compared_parts(tensor).items()]
    if tensor.is_nested:
        return [(f"[{index}]", part) for index, part in enumerate(tensor.unbind())]
    return None


def _sizes(sizes: Iterable[object]) -> tuple[int, ...]:
    """Sizes or strides, with RAGGED in place of a symbol, which differs each time."""
    return tuple(each if isinstance(each, int) else RAGGED for each in sizes)


def tensor_leaf(tensor: torch.Tensor, like: Node | None = None, *, reference: bool = False) -> TensorLeaf:
    other = like if isinstance(like, TensorLeaf) else None
    try:
        kept, unread = _kept(tensor, other, reference=reference)
    except (RuntimeError, NotImplementedError, TypeError, AttributeError) as error:
        kept, unread = None, f"cannot be read ({_first_line(error)})"
    memory = _memory(tensor) if tensor.layout == torch.strided else None
    return replace(_facts(tensor, unread), kept=kept, memory=memory)


def _kept(tensor: torch.Tensor, like: TensorLeaf | None, *, reference: bool) -> tuple[Apart | None, str]:
    """A copy of the values, or why there is none."""
    if is_fake(tensor):
        return None, NO_VALUES
    if tensor.layout != torch.strided and tensor.numel() > DENSE:
        return None, f"is {short(tensor.layout)} and too large to compare"
    dense = _dense(tensor)
    if reference and like is not None and dense.dtype == torch.float64 and like.dtype in HALF:
        # Half of the memory, and some ten thousand times as precise as what is held against it.
        dense = dense.to(torch.float32)
    if like is not None and like.kept is not None and like.kept.holds(dense):
        return like.kept, ""
    return Apart(dense), ""


def _facts(tensor: torch.Tensor, unread: str) -> TensorLeaf:
    """A tensor without its values."""
    nested = tensor.is_nested and tensor.layout == torch.strided
    return TensorLeaf(
        type=_type_name(tensor),
        dtype=tensor.dtype,
        shape=(tensor.size(0), RAGGED) if nested else _sizes(tensor.shape),
        stride=_stride(tensor) if tensor.layout in (torch.strided, torch.jagged) and not nested else None,
        device=str(tensor.device),
        layout=short(tensor.layout),
        requires_grad=tensor.requires_grad,
        has_graph=tensor.grad_fn is not None,
        kept=None,
        unread=unread,
    )


def _dense(tensor: torch.Tensor) -> torch.Tensor:
    """The values of a tensor as a plain one, on its device; 1 long where it was expanded. May share its memory."""
    plain = tensor.detach()
    if not is_number(plain.dtype):
        plain = plain.view(torch.uint8)
    if type(plain) is not torch.Tensor:
        plain = plain.as_subclass(torch.Tensor)
    if plain.is_quantized:
        plain = plain.dequantize()
    if plain.layout != torch.strided:
        plain = plain.to_dense()
    for dim in range(plain.dim()):
        # An expanded tensor has far more elements than memory.
        if plain.stride(dim) == 0 and plain.size(dim) > 1:
            plain = plain.narrow(dim, 0, 1)
    return plain.resolve_conj().resolve_neg()


def _stride(tensor: torch.Tensor) -> tuple[int, ...]:
    """The strides that matter: none for an empty tensor, 0 for a dimension of size 1."""
    sizes, strides = _sizes(tensor.shape), _sizes(tensor.stride())
    if 0 in sizes:
        return ()
    return tuple(0 if size == 1 else step for size, step in zip(sizes, strides, strict=True))


def _memory(tensor: torch.Tensor) -> Memory | None:
    if tensor.layout != torch.strided or tensor.is_nested:
        return None
    try:
        pointer = tensor.untyped_storage().data_ptr()
    except (RuntimeError, NotImplementedError, ValueError):
        # A tensor of functorch, of shapes alone, or one that is not initialized.
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


def aliases(
    outputs: Snapshot, inputs: Snapshot, state: Mapping[str, torch.Tensor] | None = None
) -> frozenset[tuple[str, str]]:
    """The pairs of an output with an input, another output, or a tensor of the state that share memory.

    Each by their places, and how far apart they begin.

    Lists and dicts too, if they are the same object.
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
    for name, tensor in (state or {}).items() if by_storage else ():
        for part in with_parts(tensor):
            if (memory := _memory(part)) is not None and memory.storage in by_storage:
                by_storage[memory.storage].append((f"{OF_TARGET}{name}", memory, False))
    pairs = set(_same_containers(outputs, inputs))
    for members in by_storage.values():
        for index, (at, memory, is_output) in enumerate(members):
            if is_output:
                pairs.update(
                    (at, f"{other}{_distance(memory, theirs)}")
                    for other, theirs, _ in members[index + 1 :]
                    if _overlap(memory, theirs)
                )
    return frozenset(pairs)


def _same_containers(outputs: Snapshot, inputs: Snapshot) -> Iterator[tuple[str, str]]:
    known: dict[int, list[str]] = {}
    for snapshot_of, are_outputs in ((inputs, False), (outputs, True)):
        for at, node in snapshot_of.nodes.items():
            if isinstance(node, Branch) and node.identity:
                if are_outputs:
                    yield from ((at, other) for other in known.get(node.identity, ()))
                known.setdefault(node.identity, []).append(at)


def _distance(one: Memory, other: Memory) -> str:
    return f" from byte {one.offset - other.offset}" if one.offset != other.offset else ""


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


def short(name: object) -> str:
    return str(name).removeprefix("torch.")


def is_complex(leaf: TensorLeaf) -> bool:
    return leaf.dtype.is_complex
