"""Runs that drew other random numbers, compared in what the numbers do not decide: everything but values. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

import torch

from pytest_compilecontract.facts.measurement import Difference
from pytest_compilecontract.wording import counted

from .judging import is_twin, judge_aliases, judge_facts, tensor_facts
from .snapshot import Node, Run, ScalarLeaf, TensorLeaf

# Of shapes and structure nothing is said: which tokens are sampled, or layers dropped, decides them too.
FACTS = ("dtype", "device", "layout", "requires_grad", "grad_fn", "stride")
LEFT = ("memory", "mode left on", "setting left")
DRAWN = "with random numbers of its own"

Place = tuple[str, str]


def beside_values(eager: Run, other: Run) -> dict[Place, Difference]:
    """What another run has otherwise than eager, by place and kind, where random numbers are no reason for it."""
    found = [*_of_tensors(eager, other), *_of_aliases(eager, other), *_of_what_is_left(eager, other)]
    return {(each.at, each.kind): each for each in found}


def _of_tensors(eager: Run, other: Run) -> Iterator[Difference]:
    before = eager.before.nodes if eager.before is not None else {}
    for group, ours in eager.groups.items():
        theirs = other.groups[group].nodes if group in other.groups else {}
        for at, node in ours.nodes.items():
            there = theirs.get(at)
            if there is None:
                continue
            if (count := nans_in(there)) and not nans_in(node):
                yield _difference(at, "nan", f"{counted(count, 'NaN')} in compiled, none in eager")
            if not isinstance(node, TensorLeaf) or not isinstance(there, TensorLeaf) or node.shape != there.shape:
                continue
            for kind, detail in tensor_facts(node, there):
                if kind in FACTS:
                    yield _difference(at, kind, detail)
            if group == "input" and is_twin(node, before.get(at)) and not is_twin(there, before.get(at)):
                yield _difference(at, "input changed", "compiled writes to it, eager does not")


def _of_aliases(eager: Run, other: Run) -> Iterator[Difference]:
    places = _outputs(eager).keys() & _outputs(other).keys()
    for found in judge_aliases(eager, other, eager):
        if found.at in places:
            yield from map(_drawn, found.differences)


def _of_what_is_left(eager: Run, other: Run) -> Iterator[Difference]:
    for found in judge_facts(eager, other, eager):
        yield from (_drawn(each) for each in found.differences if each.kind in LEFT)


def _outputs(run: Run) -> Mapping[str, Node]:
    return run.groups["output"].nodes if "output" in run.groups else {}


def _difference(at: str, kind: str, detail: str) -> Difference:
    return _drawn(Difference(at=at, kind=kind, detail=detail))


def _drawn(found: Difference) -> Difference:
    return replace(found, detail=f"{found.detail}, {DRAWN}")


def nans_in(node: Node) -> int:
    """How many elements of a tensor are NaN; of a number, whether it is."""
    if isinstance(node, ScalarLeaf):
        return int(isinstance(node.value, (float, complex)) and node.value != node.value)
    if not isinstance(node, TensorLeaf) or (data := node.data) is None:
        return 0
    if not data.is_floating_point() and not data.is_complex():
        return 0
    return int((data.to(torch.float32) if data.itemsize == 1 else data).isnan().sum())
