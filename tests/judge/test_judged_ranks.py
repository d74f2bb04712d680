"""Ranks of a lane: which of them is to blame, in what they differ, where a stack says that one is."""

from __future__ import annotations

import pytest

from pytest_compilecontract.facts.measurement import GraphBreak, Location, Measurement
from pytest_compilecontract.facts.ranks import RankEnd
from pytest_compilecontract.judge.ranks import disagreement, is_of_a_neighbour, to_blame
from pytest_compilecontract.plugin.launch import Where, where

PASSED = RankEnd(rank=0, kind="passed", seconds=1.0)
RAISED = RankEnd(rank=1, kind="failed", seconds=3.0, exception="ValueError", said="only here")
LOST = RankEnd(rank=2, kind="lost", seconds=4.0, said="died (SIGSEGV) without a report")
HUNG = RankEnd(rank=3, kind="hung", seconds=9.0)
NEIGHBOUR = RankEnd(rank=4, kind="failed", seconds=2.0, said="Connection closed by peer", connection=True)
WAITED = RankEnd(rank=5, kind="waited", seconds=9.0)
STOPPED = RankEnd(rank=6, kind="stopped", seconds=1.0)
SKIPPED = RankEnd(rank=7, kind="skipped", seconds=0.5, said="not here")


@pytest.mark.parametrize(
    ("ends", "blamed"),
    [
        pytest.param([PASSED], None, id="all passed"),
        pytest.param([SKIPPED, SKIPPED], None, id="all skipped"),
        pytest.param([PASSED, SKIPPED], SKIPPED, id="one is skipped"),
        pytest.param([NEIGHBOUR, RAISED], RAISED, id="an exception before a neighbour's, though later"),
        pytest.param([NEIGHBOUR, LOST], LOST, id="a death before a neighbour's exception"),
        pytest.param([LOST, RAISED], RAISED, id="the earlier of two causes"),
        pytest.param([NEIGHBOUR, HUNG], HUNG, id="who hangs before who lost patience"),
        pytest.param([WAITED, HUNG], HUNG, id="who hangs before who waits for it"),
        pytest.param([STOPPED, WAITED, NEIGHBOUR], NEIGHBOUR, id="a broken connection before who waits"),
        pytest.param([STOPPED, PASSED, RAISED], RAISED, id="who was ended is the last to blame"),
    ],
)
def test_the_first_cause_is_to_blame(ends: list[RankEnd], blamed: RankEnd | None) -> None:
    assert to_blame(ends) == blamed


@pytest.mark.parametrize(
    ("exception", "said", "expected"),
    [
        ("RuntimeError", "[gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:1", True),
        ("torch.distributed.DistNetworkError", "x", True),
        ("ValueError", "the connection of two layers", False),
        ("RuntimeError", "mat1 and mat2 shapes cannot be multiplied", False),
    ],
)
def test_a_neighbours_end_is_told_from_an_own_failure(exception: str, said: str, expected: bool) -> None:
    assert is_of_a_neighbour(exception, said) is expected


def test_ranks_that_measured_alike_agree() -> None:
    seen = Measurement(graphs=1, graph_breaks=(), recompiles=(), eager_frames=())

    assert disagreement({0: seen, 1: seen}) is None


def test_a_break_on_one_rank_is_a_disagreement_with_its_line() -> None:
    place = Location(file="m.py", line=3, function="f", source="x.item()")
    broken = GraphBreak(location=place, kind="Tensor.item", reason="")
    alone = Measurement(graphs=1, graph_breaks=(), recompiles=(), eager_frames=())

    found = disagreement({0: alone, 1: Measurement(graphs=1, graph_breaks=(broken,), recompiles=(), eager_frames=())})

    assert found is not None
    assert (found.limit, found.measured) == ("ranks agree (default)", "graph breaks differ between ranks")
    assert found.facts == (("graph breaks differ", "rank 0: none", "rank 1: m.py:3 in f: Tensor.item"),)


def test_a_stack_says_who_waits_in_torch_and_who_is_in_code_of_the_test() -> None:
    waiting = '  File "/v/site-packages/torch/distributed/c10d.py", line 9 in recv\n'
    own = '  File "/p/test_x.py", line 32 in test_x\n'

    assert where(waiting + own) == Where(line="/p/test_x.py:32 in test_x", in_torch=True)
    assert where(own) == Where(line="/p/test_x.py:32 in test_x")
    assert where("") == Where()
