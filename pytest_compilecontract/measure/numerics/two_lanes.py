"""Two lanes of a contract: what compiled left in one, judged by what it left in the other. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch

from pytest_compilecontract.facts.measurement import Numerics

from .drawn import nans_in
from .judging import Judged, Runs, is_same, is_twin, judged
from .rule import Tolerance, is_float, lowest_of, same_bits
from .snapshot import MADE, Branch, Node, Run, ScalarLeaf, TensorLeaf, short
from .together import broadcast

# What each lane has as eager has it there: strides, devices and aliases are no affair between lanes.
KINDS = frozenset(("value", "nan", "input changed", "dtype", "shape", "type", "structure"))


@dataclass(frozen=True, kw_only=True, slots=True)
class Kept:
    """What a lane compared with eager: its compiled run, by which tolerance, and where eager differs from itself.

    `random`: eager draws random numbers, which another type of device draws otherwise.
    """

    compiled: Run
    tolerance: Tolerance
    unsteady: frozenset[str]
    random: bool
    device: str


def kept(runs: Runs, tolerance: Tolerance, *, random: bool, device: str) -> Kept:
    """What is kept of a lane for another one."""
    return Kept(
        compiled=runs.compiled,
        tolerance=tolerance,
        unsteady=frozenset(_unsteady(runs)),
        random=random,
        device=device,
    )


def why_apart(mine: Kept, other: Kept) -> str:
    """Why the results of two lanes cannot be compared; empty if they can."""
    if mine.random and mine.device != other.device:
        return f"random numbers are drawn differently on {mine.device} and {other.device}"
    ours, theirs = (each.compiled.before.nodes if each.compiled.before is not None else {} for each in (mine, other))
    for at, node in ours.items():
        if not _is_same_input(node, theirs.get(at)):
            return f"the two lanes were not given the same {at}"
    return ""


def agreed(runs: Runs, mine: Kept, other: Kept, names: tuple[str, str]) -> Judged:
    """Judge two compiled runs, each by the other one in the place of eager's; `names` are the lanes, in this order.

    Neither may be much further from the reference, this lane's, than the other: a reference far from both says nothing
    of the two. The tolerance is that of the less precise lane. No bias is looked for: each lane was, with its eager.
    """
    tolerance = replace(mine.tolerance, tf32=mine.tolerance.tf32 or other.tolerance.tf32)
    if given := [each for each in (mine.tolerance.precision, other.tolerance.precision) if each is not None]:
        tolerance = replace(tolerance, precision=lowest_of(*given))
    ours, theirs = _results(mine), _results(other)
    ways = [
        judged(replace(runs, eager=one, compiled=two, again=one, bias=False), tolerance)
        for one, two in ((theirs, ours), (ours, theirs))
    ]
    unsteady = mine.unsteady | other.unsteady
    kinds = KINDS if mine.tolerance.precision == other.tolerance.precision else KINDS - {"dtype"}
    differ = {each.at: each for way in ways[::-1] for each in way.numerics.differences if each.kind in kinds}
    apart = [replace(each, detail=told(at, ours, theirs, names)) for at, each in differ.items() if at not in unsteady]
    at = {each.at for each in apart}
    numerics = replace(
        ways[0].numerics,
        note="",
        differences=tuple(apart),
        uncompared=tuple(f"{each}: eager differs from itself there" for each in differ if each in unsteady),
    )
    is_open = (ways[0].open | ways[1].open) & at
    values = (ways[0].values | ways[1].values) & at
    return replace(ways[0], numerics=numerics, open=is_open, values=values, hopeless=False)


def not_compared(reason: str, method: str) -> Numerics:
    """The comparison of two lanes that cannot be made."""
    return Numerics(method=method, uncompared=(reason,))


def _results(lane: Kept) -> Run:
    """What a lane's compiled run gives to its user. What it keeps for later, and what it leaves, is its own affair."""
    groups = {name: each for name, each in lane.compiled.groups.items() if name != MADE}
    return replace(lane.compiled, groups=groups, aliases=frozenset(), facts={})


def _unsteady(runs: Runs) -> Iterator[str]:
    """The places at which two eager runs differ."""
    if runs.again is None:
        return
    for group, reference in runs.eager.groups.items():
        again = runs.again.groups[group].nodes if group in runs.again.groups else {}
        yield from (at for at, node in reference.nodes.items() if not _is_same(node, again.get(at)))


def _is_same(node: Node, other: Node | None) -> bool:
    if isinstance(node, TensorLeaf) and isinstance(other, TensorLeaf):
        return is_twin(replace(node, device=other.device), other)
    if isinstance(node, ScalarLeaf):
        return is_same(other, node) or bool(nans_in(node) and other is not None and nans_in(other))
    return node == other or (isinstance(node, Branch) and isinstance(other, Branch) and node.parts == other.parts)


def _is_same_input(node: Node, other: Node | None) -> bool:
    """Whether two lanes were given the same, which each has in its own dtype."""
    if not isinstance(node, TensorLeaf) or not isinstance(other, TensorLeaf) or node.dtype == other.dtype:
        return _is_same(node, other)
    if node.data is None or other.data is None or node.data.shape != other.data.shape:
        return False
    if not node.dtype.is_floating_point or not other.dtype.is_floating_point:
        return False
    narrow = lowest_of(node.dtype, other.dtype)
    return same_bits(node.data.to(narrow), other.data.to(narrow))


def told(at: str, ours: Run, theirs: Run, names: tuple[str, str]) -> str:
    """How two runs differ at a place, each by its name."""
    mine, other = (_node(run, at) for run in (ours, theirs))
    if mine is None or other is None:
        here, missing = names if other is None else names[::-1]
        return f"present in {here}, missing in {missing}"
    if isinstance(mine, ScalarLeaf) and isinstance(other, ScalarLeaf):
        return _sides(mine.value, other.value, names)
    if isinstance(mine, Branch) and isinstance(other, Branch) and mine.type == other.type:
        return _parts(mine, other, names)
    if not isinstance(mine, TensorLeaf) or not isinstance(other, TensorLeaf) or mine.type != other.type:
        return f"{names[0]} a {mine.type}, {names[1]} a {other.type}"
    for one, two in ((short(mine.dtype), short(other.dtype)), (list(mine.shape), list(other.shape))):
        if one != two:
            return f"{names[0]} {one}, {names[1]} {two}"
    return _worst(mine, other, names)


def _parts(mine: Branch, other: Branch, names: tuple[str, str]) -> str:
    """How two containers of one type differ."""
    alone = ([part for part in one.parts if part not in two.parts] for one, two in ((mine, other), (other, mine)))
    lists = [f"only {name} has {', '.join(parts[:5])}" for name, parts in zip(names, alone, strict=True) if parts]
    return " and ".join(lists) or "the same parts in another order"


def _sides(mine: object, other: object, names: tuple[str, str]) -> str:
    return f"{names[0]} {mine!r}, {names[1]} {other!r}"


def _worst(mine: TensorLeaf, other: TensorLeaf, names: tuple[str, str]) -> str:
    """How many elements differ, and the two that are furthest apart."""
    if mine.data is None or other.data is None:
        return "the values differ"
    a, b = broadcast(mine.data, other.data)
    if not is_float(a) or not is_float(b):
        away = (a != b).to(torch.float64)
    else:
        wide = torch.complex128 if a.is_complex() or b.is_complex() else torch.float64
        away = (a.to(wide) - b.to(wide)).abs()
        away = torch.where(a.isnan() & b.isnan(), 0.0, away.nan_to_num(nan=float("inf"), posinf=float("inf")))
        away = torch.where(a == b, 0.0, away)
    flat = int(away.reshape(-1).argmax())
    place = [int(each) for each in torch.unravel_index(torch.tensor(flat), away.shape)]
    count = int((away != 0).sum())
    where = f" at {place}" if place else ""
    one, two = (each.reshape(-1)[flat].item() for each in (a, b))
    return f"{count} of {away.numel()} elements differ, most{where}: {_number(one, two, names)}"


def _number(one: object, two: object, names: tuple[str, str]) -> str:
    if isinstance(one, float) and isinstance(two, float):
        return f"{names[0]} {one:.9g}, {names[1]} {two:.9g}"
    return _sides(one, two, names)


def _node(run: Run, at: str) -> Node | None:
    return next((each.nodes[at] for each in run.groups.values() if at in each.nodes), None)
