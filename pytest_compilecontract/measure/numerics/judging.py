"""Judging: a compiled run compared with eager, place by place. Pure; `snapshot` defines the places."""

from __future__ import annotations

import contextlib
import functools
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal

import torch

from pytest_compilecontract.facts.measurement import Difference, Numerics
from pytest_compilecontract.wording import counted

from .apart import laid_on
from .bias import Looked, find_bias, least_of, may_be_biased, slices_of, step_of
from .explained import judge_with_noise
from .noise import FURTHER
from .rule import (
    DOUBT,
    FLIPPED,
    MASK_LEAST,
    NOTHING,
    RMS_SHARE,
    Finding,
    Method,
    Tolerance,
    Values,
    allowed_by,
    chunks,
    difference,
    floor_of,
    is_float,
    lowest_of,
    noise,
    same_bits,
    size_of,
    turned_zeros,
    went_another_way,
)
from .snapshot import (
    MADE,
    NO_VALUES,
    Branch,
    Node,
    Opaque,
    Run,
    ScalarLeaf,
    Snapshot,
    TensorLeaf,
    is_complex,
    short,
    tensor_leaf,
)
from .together import broadcast, level

_MADE_IN_ORDER = ("output", "loss", "grad")
# The kinds of difference that another rounding may make.
VALUES = ("value", "nan", "input changed")


@dataclass(frozen=True, kw_only=True, slots=True)
class Runs:
    """The runs of one lane. `again` is a second eager run from the same state; `gold` is one in a wider precision.

    `moved` are eager runs that were rounded differently: what they explain is not a difference. If none can be made,
    `bias` is not searched for. `desk` is a device on which large tensors are judged, or else the CPU does it.
    `all_alike`: whether `all_alike` was asked, and said so.
    """

    eager: Run
    compiled: Run
    again: Run | None = None
    gold: Run | None = None
    gold_absent: str = ""
    moved: Sequence[Run] = ()
    bias: bool = True
    desk: torch.device | None = None
    all_alike: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Judged:
    """The result. `explained` are the places at which eager's noise is the reason.

    `open` are those at which more runs may change the result, `values` all at which numbers differ. `hopeless`: at one
    of these they differ by so much that more runs would not explain it.
    """

    numerics: Numerics
    open: frozenset[str]
    values: frozenset[str]
    explained: tuple[str, ...]
    hopeless: bool = False


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
    tf32: bool = False,
) -> Numerics:
    """Compare a compiled run with an eager one.

    `again` is a second eager run from the same state: what differs between the two is not held against compiled.
    `gold` is the run in float64; without it (`gold_absent` says why) "fp64" becomes "allclose".
    `rtol` and `atol` replace the floor; one alone leaves the other 0. `precision` is the lowest that the run computes
    in (the lane's dtype, or autocast's), where that is below what its tensors show; `tf32` says that products are, in
    TF32, which has the digits of float16 and the range of float32.

    The rules, with c, e and g an element of compiled, eager and float64:
        fp64      |c-g| <= 3 max|e-g| + floor x max(|g|, RMS of g), and the like for the RMS over the tensor
        allclose  |c-e| <= 2 x floor x max(|e|, RMS of e) + grain x RMS of the largest tensor in the group
        bitwise   the same bits; NaN equals NaN, -0.0 is not 0.0
    NaN and inf must be where eager's are, whatever the rule. A parameter's floor has a part for gradients that may be
    noise (DOUBT), where `eager.before` has the parameter; the gradient is found by the step and the name that the two
    have in common (`Snapshot.within`). torch.testing's tolerances are for one operation: of the 12 models that the
    constants above are from, 3 alarm by them in float32 and 9 in bfloat16. So they are not used.
    """
    tolerance = Tolerance(
        method=method, rtol=rtol, atol=atol, precision=torch.float16 if tf32 else precision, tf32=tf32
    )
    runs = Runs(eager=eager, compiled=compiled, again=again, gold=gold, gold_absent=gold_absent)
    return judged(runs, tolerance).numerics


def judged(runs: Runs, tolerance: Tolerance) -> Judged:
    """Compare a compiled run with an eager one, as `judge` does; what eager's noise explains is not a difference."""
    return Judging(replace(runs, moved=()), tolerance).judged(runs.moved, bias=runs.bias)


def all_alike(runs: Runs) -> bool:
    """Whether compiled has the places, facts and bits of both eager runs everywhere: then no rule has to be asked."""
    if runs.desk is not None:
        with contextlib.suppress(RuntimeError), laid_on(runs.desk):
            return _all_alike(runs)
    return _all_alike(runs)


def _all_alike(runs: Runs) -> bool:
    found = (runs.compiled, runs.again or runs.eager)
    return not [*_missing(runs.eager, runs.compiled)] and all(
        _is_alike(node, _group(found[0], group).get(at), _group(found[1], group).get(at))
        for group, reference in runs.eager.groups.items()
        for at, node in reference.nodes.items()
    )


class Judging:
    """The judging of one compiled run: at first without noise runs, and then with ever more of them.

    Noise runs have to do with the places at which numbers differ alone, which are judged anew each time. What was
    found at all others stays.
    """

    def __init__(self, runs: Runs, tolerance: Tolerance) -> None:
        self._runs = runs
        self._notes: list[str] = []
        self._gold = runs.gold if tolerance.method == "fp64" else None
        if tolerance.method == "fp64" and runs.gold is None:
            tolerance = replace(tolerance, method="allclose")
            self._notes.append("no float64 reference" + (f": {runs.gold_absent}" if runs.gold_absent else ""))
        self._tolerance = tolerance
        self._steps = _Steps([], tolerance)
        self._places: dict[str, _Place] = {}
        self._found: list[Finding] | None = None

    def judged(self, moved: Sequence[Run], bias: bool) -> Judged:
        """Judge with the noise runs that were made until now, and look for a bias or not."""
        if self._runs.desk is not None:
            # What the device has no memory for, or refuses (where all algorithms are to be deterministic), the CPU
            # judges.
            with contextlib.suppress(RuntimeError), laid_on(self._runs.desk):
                return self._judged(moved, replace(self._tolerance, bias=bias))
        return self._judged(moved, replace(self._tolerance, bias=bias))

    def _judged(self, moved: Sequence[Run], tolerance: Tolerance) -> Judged:
        eager, compiled, again = self._runs.eager, self._runs.compiled, self._runs.again or self._runs.eager
        found = self._found = self._first(moved, tolerance) if self._found is None else self._anew(moved, tolerance)
        verdicts = [*found, *_missing(eager, compiled)]
        uncompared = tuple(_uncompared(eager, verdicts))
        notes = [*self._notes, *_listed("compared by type alone:", [*_by_type_alone(eager)])]
        verdicts += judge_aliases(eager, compiled, again)
        verdicts += judge_facts(eager, compiled, again)
        return Judged(
            numerics=replace(_numerics(tolerance.method, notes, verdicts), uncompared=uncompared),
            open=frozenset(each.at for each in verdicts if each.hopeful and _has_other_values(each)),
            values=frozenset(each.at for each in verdicts if _has_other_values(each)),
            explained=tuple(f"{each.at} {each.noise}" for each in verdicts if each.noise),
            hopeless=any(each.hopeless and _has_other_values(each) for each in verdicts),
        )

    def _first(self, moved: Sequence[Run], tolerance: Tolerance) -> list[Finding]:
        """What is found at each place."""
        eager, again = self._runs.eager, self._runs.again or self._runs.eager
        if self._runs.all_alike:
            return [*_known_alike(eager)]
        alike, found = _alike(eager, self._runs.compiled, again, self._gold, tolerance)
        if len(alike) < sum(len(each.nodes) for each in eager.groups.values()):
            places = sorted(_places(self._runs), key=_rank)
            self._steps = _Steps(places, tolerance)
            self._places = {each.at: each for each in places if each.at not in alike}
            tolerance = self._tolerance = replace(tolerance, among=_slices(self._places.values()))
            found += [_judge_place(_moved(each, moved), self._steps, tolerance) for each in self._places.values()]
        return found

    def _anew(self, moved: Sequence[Run], tolerance: Tolerance) -> list[Finding]:
        """The same with other noise runs."""
        assert self._found is not None
        return [
            _judge_place(_moved(self._places[each.at], moved), self._steps, tolerance)
            if each.at in self._places and _has_other_values(each)
            else each
            for each in self._found
        ]


def _rank(place: _Place) -> int:
    """The order of findings: what a step computes first comes first (outputs, loss, gradients)."""
    return _MADE_IN_ORDER.index(place.group) if place.group in _MADE_IN_ORDER else len(_MADE_IN_ORDER)


def _has_other_values(found: Finding) -> bool:
    return found.compared and any(each.kind in VALUES for each in found.differences)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Place:
    """One place in all runs. `size` is the RMS there, `group_size` the largest of its group.

    `step` and `name` are what it has in common with the places of other groups of one step, empty where it has none.
    """

    at: str
    group: str
    step: str
    name: str
    eager: Node
    compiled: Node
    again: Node | None
    gold: Node | None
    before: Node | None
    size: float
    group_size: float
    moved: tuple[tuple[Node, int], ...] = ()


def _numerics(method: str, notes: list[str], verdicts: list[Finding]) -> Numerics:
    worst = max(verdicts, key=lambda each: -1.0 if each.error is None else each.error, default=Finding(at=""))
    own = [each.eager_error for each in verdicts if each.eager_error is not None]
    unstable = [f"{each.at} by {each.unstable}" for each in verdicts if each.unstable]
    notes += _listed("this model is not deterministic: eager differs from eager at", unstable)
    for reason in dict.fromkeys(each.without_gold for each in verdicts if each.without_gold):
        places = [each.at for each in verdicts if each.without_gold == reason]
        notes += _listed(f"judged by allclose, because {reason}:", places)
    # Told and not judged: relu6, a maximum or a sum on Inductor may give either.
    zeros = [f"{each.at} ({each.zeros})" for each in verdicts if each.zeros]
    notes += _listed("zeros of the opposite sign, which only numerics='bitwise' judges, at", zeros)
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


def _places(runs: Runs) -> Iterator[_Place]:
    """Every place that both runs have. If one run lacks a place, its container differs and is reported."""
    eager, largest_input = runs.eager, _largest_input(runs.eager)
    for group, reference in eager.groups.items():
        found, repeated, exact = (_group(run, group) for run in (runs.compiled, runs.again or eager, runs.gold))
        before = eager.before.nodes if group in ("input", "parameter") and eager.before else {}
        sizes = {at: _size_at(leaf, exact.get(at)) for at, leaf in reference.tensors()}
        group_size = max(sizes.values(), default=0.0)
        if group_size <= NOTHING * largest_input:
            group_size = largest_input
        for at, node in reference.nodes.items():
            if at in found:
                step, name = reference.within.get(at, ("", ""))
                yield _Place(
                    at=at,
                    group=group,
                    step=step,
                    name=name,
                    eager=node,
                    compiled=found[at],
                    again=repeated.get(at),
                    gold=exact.get(at),
                    before=before.get(at),
                    size=sizes.get(at, 0.0),
                    group_size=group_size,
                )


def _slices(places: Iterable[_Place]) -> int:
    """How many means may be off by chance: those of tensors that are the same are not, however many there are."""
    return sum(slices_of(each.eager.shape) for each in places if isinstance(each.eager, TensorLeaf))


def _moved(place: _Place, runs: Sequence[Run]) -> _Place:
    """The place with what noise runs have there."""
    groups = [(_group(run, place.group), run.steps) for run in runs]
    return replace(place, moved=tuple((each[place.at], steps) for each, steps in groups if place.at in each))


def _alike(
    eager: Run, compiled: Run, again: Run, gold: Run | None, tolerance: Tolerance
) -> tuple[set[str], list[Finding]]:
    """The places at which no rule can find a difference, so that only the errors are computed.

    All runs have the same facts there, and the same bits, which is most places where nothing is fused; or eager and
    compiled are both nearer to float64 than the floor.
    """
    alike: set[str] = set()
    verdicts: list[Finding] = []
    for group, reference in eager.groups.items():
        found, repeated, exact = (_group(run, group) for run in (compiled, again, gold))
        for at, node in reference.nodes.items():
            others = (found.get(at), repeated.get(at))
            if _is_alike(node, *others):
                alike.add(at)
                verdicts += _known(at, node, exact.get(at))
            elif (finding := _near(at, node, *others, exact.get(at), tolerance)) is not None:
                alike.add(at)
                verdicts.append(finding)
    return alike, verdicts


def _is_alike(node: Node, *others: Node | None) -> bool:
    """Whether the others have the same kind, facts and bits. A float is for the rule, and so is what is not read."""
    if isinstance(node, TensorLeaf):
        return all(is_twin(node, each) for each in others)
    if isinstance(node, ScalarLeaf):
        return _is_discrete(node) and all(is_same(each, node) for each in others)
    return isinstance(node, Branch) and all(node == each for each in others)


def _near(
    at: str, eager: Node, compiled: Node | None, again: Node | None, gold: Node | None, tolerance: Tolerance
) -> Finding | None:
    """A finding without a difference, if both errors are below the smaller part of the floor everywhere."""
    if tolerance.given or tolerance.method != "fp64" or not isinstance(gold, TensorLeaf) or gold.data is None:
        return None
    if not isinstance(eager, TensorLeaf) or not isinstance(compiled, TensorLeaf) or not is_twin(eager, again):
        return None
    if eager.data is None or compiled.data is None or gold.shape != eager.shape:
        return None
    if eager.type != compiled.type or list(tensor_facts(eager, compiled)):
        return None
    values = (gold.data, eager.data, compiled.data)
    if not all(each.is_floating_point() and each.numel() for each in values):
        return None
    g, e, c = (each.to(torch.float64) for each in level(*values))
    size = float(g.square().mean().sqrt())
    own, error = float((e - g).abs().max()), float((c - g).abs().max())
    lowest = lowest_of(eager.dtype, compiled.dtype, tolerance.precision or eager.dtype)
    # A hair less than the rule has, which adds up the RMS in another order.
    limit = 0.999 * RMS_SHARE * floor_of(lowest) * size
    # Below MASK_LEAST nothing is a mask, and `size` is what the rule takes. Each comparison is false for NaN, which
    # `max` of the two errors would pass over.
    if not (float(g.abs().max()) < MASK_LEAST and own <= limit and error <= limit):
        return None
    if not (tolerance.bias and _is_biased(g, e, c, lowest, eager)):
        zeros = turned_zeros(*level(compiled.data, eager.data))
        return Finding(at=at, compared=True, error=error, eager_error=own, zeros=zeros)
    return None


def _is_biased(g: torch.Tensor, e: torch.Tensor, c: torch.Tensor, lowest: torch.dtype, eager: TensorLeaf) -> bool:
    """Whether numbers that are all near the reference, and ordinary, may still be biased."""
    size = size_of(g)
    if not may_be_biased(float((c - g).abs().max()), size, lowest):
        return False
    counts = torch.ones_like(g, dtype=torch.bool)
    least, step = least_of(lowest), step_of(eager.dtype, lowest)
    looked = Looked(compiled=c, eager=e, reference=g, counts=counts, size=size, least=least, step=step)
    return find_bias(looked) is not None


def _is_discrete(node: ScalarLeaf) -> bool:
    return not isinstance(node.value, (float, complex))


def is_twin(leaf: TensorLeaf, other: Node | None) -> bool:
    """Whether another node is a tensor with the same facts and bits."""
    if not isinstance(other, TensorLeaf) or leaf.data is None or other.data is None or leaf.type != other.type:
        return False
    return (
        not list(tensor_facts(leaf, other)) and leaf.data.shape == other.data.shape and same_bits(leaf.data, other.data)
    )


def _known_alike(eager: Run) -> Iterator[Finding]:
    """The findings where all places are the same, and no wider run was made."""
    for each in eager.groups.values():
        for at, node in each.nodes.items():
            yield from _known(at, node, None)


def _known(at: str, eager: Node, gold: Node | None) -> Iterator[Finding]:
    """The finding for what is bitwise equal in eager and compiled: its error is eager's own."""
    if isinstance(eager, ScalarLeaf):
        yield Finding(at=at, compared=True)
    if not isinstance(eager, TensorLeaf):
        return
    if not eager.dtype.is_floating_point and not eager.dtype.is_complex:
        yield Finding(at=at, compared=True)
    elif not isinstance(gold, TensorLeaf) or gold.data is None or gold.shape != eager.shape:
        # No need to read what was written to a file.
        yield Finding(at=at, compared=True, error=0.0)
    else:
        assert eager.data is not None
        error, _ = noise(eager.data, gold.data)
        yield Finding(at=at, compared=True, error=error, eager_error=error)


def _group(run: Run | None, group: str) -> Mapping[str, Node]:
    return run.groups[group].nodes if run and group in run.groups else {}


def _missing(eager: Run, compiled: Run) -> Iterator[Finding]:
    """The top places that only one of the runs has, such as the gradients of a step."""
    for group in dict.fromkeys((*eager.groups, *compiled.groups)):
        if group == MADE:
            # What one of them keeps for later is its own affair.
            continue
        ours, theirs = _group(eager, group), _group(compiled, group)
        for at in _tops(ours):
            if at not in theirs:
                yield difference(at, "structure", "present in eager, missing in compiled")
        for at in _tops(theirs):
            if at not in ours:
                yield difference(at, "structure", "present in compiled, missing in eager")


def _uncompared(eager: Run, findings: list[Finding]) -> Iterator[str]:
    """The outputs of which nothing was compared, and other places that may hide a change, each with the reason."""
    known = {each.at: each for each in findings}
    if _shows_nothing(eager):
        yield "nothing is returned, and nothing changes"
    yield from _hidden(eager, known)
    nodes = _group(eager, "output")
    for top in _tops(nodes):
        leaves = [at for at, node in nodes.items() if at.startswith(top) and not isinstance(node, Branch)]
        # A number beside a tensor that cannot be read does not stand for it.
        below = [at for at in leaves if not _is_incidental(nodes[at])] or leaves
        found = [known[at] for at in below if at in known]
        if unstable := [each.at for each in found if each.unstable]:
            yield f"{unstable[0]}: eager differs from itself there"
        elif below and not any(each.differences or each.compared or NO_VALUES in each.unread for each in found):
            yield f"{top}: a {nodes[top].type} cannot be compared"


def _shows_nothing(run: Run) -> bool:
    """Whether a run returns only None and changes nothing: whatever another computes, it would agree."""
    outputs = _group(run, "output").values()
    left = (node for group in run.groups if group != "input" for node in _group(run, group).values())
    if not outputs or any(not isinstance(node, Branch) and not _is_none(node) for node in left):
        return False
    before = run.before.nodes if run.before is not None else {}
    return all(_is_unchanged(node, before.get(at)) for at, node in _group(run, "input").items())


def _is_none(node: Node) -> bool:
    return isinstance(node, ScalarLeaf) and node.value is None


def _is_unchanged(node: Node, before: Node | None) -> bool:
    if isinstance(node, TensorLeaf):
        return is_twin(node, before)
    return is_same(before, node) if isinstance(node, ScalarLeaf) else node == before


def _by_type_alone(eager: Run) -> Iterator[str]:
    """What is in an output beside what is compared, of which nothing but the type is known."""
    nodes = _group(eager, "output")
    tops = set(_tops(nodes))
    for at, node in nodes.items():
        if isinstance(node, Opaque) and not node.unread and at not in tops:
            yield f"{at} (a {node.type})"


def _hidden(eager: Run, known: Mapping[str, Finding]) -> Iterator[str]:
    """Changed state and gradients of the run that could not be read."""
    for group in eager.groups:
        if group in ("input", MADE):
            continue
        for at, node in _group(eager, group).items():
            unread = known[at].unread if at in known and not known[at].differences else ""
            if unread and NO_VALUES not in unread and not (isinstance(node, Opaque) and node.incidental):
                yield f"{at} {unread}"


def _is_incidental(node: Node | None) -> bool:
    return isinstance(node, ScalarLeaf) and node.incidental


def _tops(nodes: Mapping[str, Node]) -> list[str]:
    inner = {at + part for at, node in nodes.items() if isinstance(node, Branch) for part in node.parts}
    return [at for at in nodes if at not in inner]


def _size_at(eager: TensorLeaf, gold: Node | None) -> float:
    if isinstance(gold, TensorLeaf) and gold.shape == eager.shape and gold.data is not None:
        return size_of(gold.data)
    return 0.0 if eager.data is None else size_of(eager.data)


def _largest_input(run: Run) -> float:
    leaves = (run.before or Snapshot(nodes=_group(run, "input"))).tensors()
    return max((size_of(leaf.data) for _, leaf in leaves if leaf.data is not None), default=0.0)


def judge_aliases(eager: Run, compiled: Run, again: Run) -> list[Finding]:
    """Compare what outputs share memory with, except where two eager runs differ."""
    unstable = eager.aliases ^ again.aliases
    found: dict[str, list[str]] = {}
    for output, other in sorted(eager.aliases - compiled.aliases - unstable):
        found.setdefault(output, []).append(f"shares memory with {other} in eager, not in compiled")
    for output, other in sorted(compiled.aliases - eager.aliases - unstable):
        found.setdefault(output, []).append(f"shares memory with {other} in compiled, not in eager")
    return [difference(output, "alias", "; ".join(details)) for output, details in found.items()]


def judge_facts(eager: Run, compiled: Run, again: Run) -> Iterator[Finding]:
    """Compare what a run left besides values, except where two eager runs differ."""
    for kind, at in sorted({*eager.facts, *compiled.facts}):
        ours, theirs = eager.facts.get((kind, at), ""), compiled.facts.get((kind, at), "")
        if again.facts.get((kind, at), "") == ours and theirs != ours:
            yield difference(at, kind, f"compiled {theirs or 'not'}, eager {ours or 'not'}")


def _judge_place(place: _Place, steps: _Steps, tolerance: Tolerance) -> Finding:
    built = _built_otherwise(place.eager, place.compiled)
    if built is not None:
        if place.again is None or _built_otherwise(place.eager, place.again) is not None:
            incidental = _is_incidental(place.eager) or _differ_by_the_way(place.eager, place.again)
            return Finding(at=place.at, unstable="" if incidental else "its structure")
        return difference(place.at, *built)
    if isinstance(place.eager, Branch) and place.eager.itself is not None:
        return _judge_wrapper(place)
    if isinstance(place.eager, TensorLeaf) and isinstance(place.compiled, TensorLeaf):
        slack = steps.slack(place)
        return _judge_tensor(place, place.eager, place.compiled, slack, tolerance)
    if isinstance(place.eager, ScalarLeaf) and isinstance(place.compiled, ScalarLeaf):
        return _judge_scalar(place, place.eager, place.compiled, tolerance)
    reasons = [each.unread for each in (place.eager, place.compiled) if isinstance(each, Opaque) and each.unread]
    return Finding(at=place.at, unread=f"cannot be read ({reasons[0]})" if reasons else "")


def _judge_wrapper(place: _Place) -> Finding:
    """A tensor that consists of others, which are judged at their places: what it is itself."""
    eager, compiled, again = (
        each.itself if isinstance(each, Branch) else None for each in (place.eager, place.compiled, place.again)
    )
    if eager is None or compiled is None or again is None:
        return Finding(at=place.at, unstable="its structure")
    return Finding(at=place.at, differences=_other_facts(place.at, eager, compiled, again))


def _other_facts(at: str, eager: TensorLeaf, compiled: TensorLeaf, again: TensorLeaf) -> tuple[Difference, ...]:
    """The facts in which compiled differs from eager, and eager not from itself."""
    unstable = {fact for fact, _ in tensor_facts(eager, again)}
    return tuple(
        Difference(at=at, kind=fact, detail=detail)
        for fact, detail in tensor_facts(eager, compiled)
        if fact not in unstable
    )


def _differ_by_the_way(one: Node, other: Node | None) -> bool:
    """Whether two objects differ only in their incidental attributes."""
    if not isinstance(one, Branch) or not isinstance(other, Branch) or one.type != other.type:
        return False
    mine, theirs = ([part for part in each.parts if part not in each.incidental] for each in (one, other))
    return mine == theirs


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
    sides = (("compiled", added), ("eager", missing))
    lists = [f"only {side} has {', '.join(parts[:5])}" for side, parts in sides if parts]
    return "structure", f"{' and '.join(lists)} ({counted(len(compiled.parts), 'part')}, eager {len(eager.parts)})"


def _judge_scalar(place: _Place, eager: ScalarLeaf, compiled: ScalarLeaf, tolerance: Tolerance) -> Finding:
    if isinstance(eager.value, (float, complex)):
        return _judge_float(place, tolerance)
    if not isinstance(place.again, ScalarLeaf) or not is_same(place.again, eager):
        return Finding(at=place.at, compared=True, unstable="" if eager.incidental else "its value")
    if is_same(compiled, eager):
        return Finding(at=place.at, compared=True)
    as_it_is = tolerance.given or tolerance.method == "bitwise"
    if not as_it_is and is_same(place.gold, compiled):
        return Finding(at=place.at, compared=True)
    if not as_it_is and any(is_same(each, compiled) for each, steps in place.moved if steps <= FURTHER):
        return Finding(at=place.at, compared=True, noise="chooses differently")
    detail = f"compiled {compiled.value!r}, eager {eager.value!r}"
    if isinstance(place.gold, ScalarLeaf) and not is_same(place.gold, eager):
        detail += f", {tolerance.reference} {place.gold.value!r}: a discrete choice may have flipped"
    return replace(difference(place.at, "value", detail), compared=True, hopeful=not as_it_is)


def is_same(one: Node | None, other: ScalarLeaf) -> bool:
    """Whether two discrete values are the same; NaN equals NaN, also in a Decimal or a set."""
    if not isinstance(one, ScalarLeaf) or one.type != other.type or one.incidental != other.incidental:
        return False
    if isinstance(other.value, (set, frozenset)):
        return bool(one.value == other.value) or Counter(map(repr, one.value)) == Counter(map(repr, other.value))
    if isinstance(other.value, Decimal) and (one.value.is_nan() or other.value.is_nan()):
        return str(one.value) == str(other.value)  # a signalling NaN refuses to be compared
    return bool(one.value == other.value)


def _judge_float(place: _Place, tolerance: Tolerance) -> Finding:
    eager, compiled, again, gold = (
        _float_leaf(node) for node in (place.eager, place.compiled, place.again, place.gold)
    )
    assert eager is not None
    assert compiled is not None
    assert eager.data is not None
    if _is_incidental(place.eager) and (again is None or again.data is None or not same_bits(eager.data, again.data)):
        return Finding(at=place.at, compared=True)
    # As far as can be known, `.item()` took it out of a float32 tensor.
    precision = lowest_of(torch.float32, tolerance.precision or torch.float32)
    moved = tuple((leaf, steps) for node, steps in place.moved if (leaf := _float_leaf(node)) is not None)
    as_tensors = replace(
        place, eager=eager, compiled=compiled, again=again, gold=gold, size=size_of(eager.data), moved=moved
    )
    return _judge_tensor(as_tensors, eager, compiled, None, replace(tolerance, precision=precision))


def _float_leaf(node: Node | None) -> TensorLeaf | None:
    if not isinstance(node, ScalarLeaf) or not isinstance(node.value, (float, complex)):
        return None
    dtype = torch.float64 if isinstance(node.value, float) else torch.complex128
    return tensor_leaf(torch.tensor(node.value, dtype=dtype, device="cpu"))


def _judge_tensor(
    place: _Place, eager: TensorLeaf, compiled: TensorLeaf, slack: torch.Tensor | None, tolerance: Tolerance
) -> Finding:
    again = place.again
    if not isinstance(again, TensorLeaf) or again.shape != eager.shape or again.dtype != eager.dtype:
        return Finding(at=place.at, unstable="its shape or dtype")
    differences = _other_facts(place.at, eager, compiled, again)
    if compiled.shape != eager.shape or is_complex(compiled) != is_complex(eager):
        return Finding(at=place.at, compared=True, differences=differences)
    values = _values(place, eager, compiled, again, slack, tolerance)
    if values is None:
        unread = [each.unread for each in (eager, compiled, again) if each.data is None]
        return Finding(at=place.at, differences=differences, unread=unread[0])
    verdict = judge_with_noise(values, tolerance)
    zeros = turned_zeros(values.compiled, values.eager) if tolerance.method != "bitwise" else 0
    if verdict.unstable:
        # Where eager has other values the second time, nothing is held against compiled.
        return replace(verdict, zeros=zeros)
    return replace(verdict, differences=differences + verdict.differences, zeros=zeros)


def _values(
    place: _Place,
    eager: TensorLeaf,
    compiled: TensorLeaf,
    again: TensorLeaf,
    slack: torch.Tensor | None,
    tolerance: Tolerance,
) -> Values | None:
    if eager.data is None or compiled.data is None or again.data is None:
        return None
    gold = place.gold if isinstance(place.gold, TensorLeaf) and tolerance.method == "fp64" else None
    if gold is not None and (gold.shape != eager.shape or is_complex(gold) != is_complex(eager)):
        gold = None
    # A run may have expanded a tensor that another wrote out: an element has one place in all of them.
    sides = [compiled.data, eager.data, again.data]
    if gold is not None and gold.data is not None:
        sides.append(gold.data)
    runs = [(node, steps) for node, steps in place.moved if isinstance(node, TensorLeaf) and node.shape == eager.shape]
    of_moved = [
        (each.data, steps) for each, steps in runs if each.data is not None and is_complex(each) == is_complex(eager)
    ]
    together = broadcast(*sides, *(data for data, _ in of_moved))
    (compiled_data, eager_data, again_data, *of_gold), moved = together[: len(sides)], together[len(sides) :]
    return Values(
        at=place.at,
        kind=_kind(place, eager, compiled),
        compiled=compiled_data,
        eager=eager_data,
        again=again_data,
        gold=of_gold[0] if of_gold else None,
        slack=torch.zeros(1, device="cpu") if slack is None else slack,
        size=place.size if gold or tolerance.method == "fp64" else size_of(eager.data),
        group_size=place.group_size,
        lowest=lowest_of(eager.dtype, compiled.dtype, tolerance.precision or eager.dtype),
        moved=moved,
        steps=tuple(steps for _, steps in of_moved),
        named=tolerance.reference,
    )


class _Steps:
    """How noise in gradients reaches parameters, and from them buffers, in training."""

    def __init__(self, places: list[_Place], tolerance: Tolerance) -> None:
        self._tolerance = tolerance
        self._gradients = [each for each in places if each.group == "grad"]
        self._travel: dict[str, float] = {}
        self._some_gradient_is_noise: bool | None = None
        if tolerance.method == "bitwise":
            return
        for each in places:
            if each.group == "parameter" and each.name:
                self._travel[each.step] = max(self._travel.get(each.step, 0.0), _moved_by(each))

    def slack(self, place: _Place) -> torch.Tensor | None:
        """How much further each element may be off because of it."""
        if (
            not isinstance(place.eager, TensorLeaf)
            or not self._travel.get(place.step)
            or not place.eager.dtype.is_floating_point
        ):
            return None
        if place.group == "parameter":
            return 2 * self._travel[place.step] * self._doubt(place.name, place.eager.shape)
        earlier = list(self._travel)[: list(self._travel).index(place.step)]
        # A running mean follows the bias of the convolution before it.
        if place.group != "buffer" or not earlier or not self._noisy():
            return None
        return torch.tensor([2 * self._travel[earlier[-1]]], device="cpu")

    def _doubt(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        doubts = [_doubt(each, shape, self._tolerance) for each in self._gradients if each.name == name]
        return functools.reduce(torch.maximum, level(*doubts)) if doubts else torch.ones((), device="cpu")

    def _noisy(self) -> bool:
        if self._some_gradient_is_noise is None:
            self._some_gradient_is_noise = any(
                isinstance(each.eager, TensorLeaf)
                and bool(_doubt(each, each.eager.shape, self._tolerance).mean() > 1 - FLIPPED)
                for each in self._gradients
            )
        return self._some_gradient_is_noise


def _moved_by(place: _Place) -> float:
    before, eager = place.before, place.eager
    if not isinstance(before, TensorLeaf) or not isinstance(eager, TensorLeaf) or before.shape != eager.shape:
        return 0.0
    if before.data is None or eager.data is None or not is_float(eager.data):
        return 0.0
    return noise(before.data, eager.data)[0]


def _doubt(gradient: _Place, shape: tuple[int, ...], tolerance: Tolerance) -> torch.Tensor:
    """The share of each element of a gradient that may be noise; 1 where the gradient cannot be judged."""
    eager = gradient.eager
    values = _values(gradient, eager, eager, eager, None, tolerance) if isinstance(eager, TensorLeaf) else None
    if values is None or values.eager.shape != shape or not is_float(values.eager):
        return torch.ones((), device="cpu")
    if values.gold is not None and went_another_way(values):
        values = replace(values, gold=None)
    allowed = allowed_by(values, tolerance)
    doubt = torch.ones(shape, device=values.eager.device)
    start = 0
    for e, g in chunks(values.eager, values.reference):
        g = torch.where(g.isfinite(), g, e)
        limit = allowed.multiple * torch.clamp((e - g).abs(), min=allowed.own) + allowed.floor(g)
        share = torch.nan_to_num(DOUBT * limit / g.abs(), nan=1.0, posinf=1.0).clamp(max=1.0)
        doubt.reshape(-1)[start : start + e.numel()] = share.to(torch.float32)
        start += e.numel()
    return doubt


def _kind(place: _Place, eager: TensorLeaf, compiled: TensorLeaf) -> str:
    """The kind of a difference in value; for an input, whether only one of the runs wrote to it, if that is known."""
    before = place.before
    if place.group != "input":
        return "value"
    if not isinstance(before, TensorLeaf) or before.data is None or before.shape != eager.shape:
        return "input changed"
    unchanged = [each.data is not None and same_bits(before.data, each.data) for each in (eager, compiled)]
    return "input changed" if any(unchanged) else "value"


def tensor_facts(eager: TensorLeaf, compiled: TensorLeaf) -> Iterator[tuple[str, str]]:
    """The facts in which two tensors differ, and a sentence on each."""
    pairs: list[tuple[str, object, object]] = [
        ("dtype", short(compiled.dtype), short(eager.dtype)),
        ("shape", list(compiled.shape), list(eager.shape)),
        ("device", compiled.device, eager.device),
        ("layout", compiled.layout, eager.layout),
        ("requires_grad", compiled.requires_grad, eager.requires_grad),
    ]
    if compiled.requires_grad == eager.requires_grad:
        pairs.append(("grad_fn", _graph(compiled), _graph(eager)))
    if compiled.shape == eager.shape and compiled.stride is not None and eager.stride is not None:
        pairs.append(("stride", list(compiled.stride), list(eager.stride)))
    return ((fact, f"compiled {theirs}, eager {ours}") for fact, theirs, ours in pairs if theirs != ours)


def _graph(leaf: TensorLeaf) -> str:
    return "in a graph" if leaf.has_graph else "not in a graph"
