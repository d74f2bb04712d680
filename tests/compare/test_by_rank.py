"""Drift of a lane with ranks: what only some of them show is named by rank, also where the lane's own shows nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.receipts import BREAK, HOLDING, OTHER_BREAK, after, an_entry, before

from pytest_compilecontract.compare.comparison import compare
from pytest_compilecontract.compare.drift import Drift
from pytest_compilecontract.facts.measurement import Measurement
from pytest_compilecontract.facts.ranks import RankMeasured
from pytest_compilecontract.facts.receipt import Entry

BROKEN = replace(HOLDING, graph_breaks=(BREAK,))


def of_ranks(*seen: Measurement, shown: int = 0) -> Entry:
    ranks = tuple(RankMeasured(rank=number, measurement=each) for number, each in enumerate(seen))
    return an_entry(seen[shown], ranks=ranks)


def drift(old: Entry, new: Entry) -> tuple[Drift, ...]:
    return compare(before(old), after(new)).drifts


def said(found: tuple[Drift, ...]) -> list[tuple[str, tuple[int, ...]]]:
    return [(fact.said, fact.ranks) for each in found for fact in each.came]


def test_a_fact_of_one_rank_names_it() -> None:
    found = drift(of_ranks(HOLDING, HOLDING), of_ranks(HOLDING, BROKEN, shown=1))

    ((text, ranks),) = said(found)
    assert ranks == (1,)
    assert text.startswith("on rank 1: ")


def test_a_fact_of_all_ranks_names_none() -> None:
    ((text, ranks),) = said(drift(of_ranks(HOLDING, HOLDING), of_ranks(BROKEN, BROKEN)))

    assert ranks == ()
    assert "rank" not in text


def test_a_rank_that_drifts_beside_one_that_holds_is_seen() -> None:
    """Stages that may differ: what is shown of the lane is the first rank, which is as it was."""
    (found,) = drift(of_ranks(HOLDING, HOLDING, HOLDING), of_ranks(HOLDING, BROKEN, BROKEN))

    assert (found.metric, found.direction, found.before, found.after) == ("graph_breaks", "worse", 0, 1)
    assert [fact.ranks for fact in found.came] == [(1, 2)]
    assert found.came[0].said.startswith("on ranks 1, 2: ")


def test_a_rank_that_had_it_before_has_not_drifted() -> None:
    assert drift(of_ranks(HOLDING, BROKEN), of_ranks(HOLDING, BROKEN)) == ()


def test_a_rank_that_lost_it_is_better() -> None:
    (found,) = drift(of_ranks(HOLDING, BROKEN), of_ranks(HOLDING, HOLDING))

    assert (found.direction, [fact.ranks for fact in found.went]) == ("better", [(1,)])


def test_against_a_baseline_the_lanes_own_measurement_counts_and_ranks_are_named() -> None:
    """It has one measurement for all ranks: those that always differed from it have not drifted."""
    assert drift(an_entry(HOLDING), of_ranks(HOLDING, BROKEN)) == ()
    ((_, ranks),) = said(drift(an_entry(HOLDING), of_ranks(HOLDING, BROKEN, shown=1)))
    assert ranks == (1,)


@pytest.mark.parametrize("both", [(BREAK, OTHER_BREAK), (OTHER_BREAK, BREAK)], ids=["in order", "reversed"])
def test_each_rank_may_have_a_fact_of_its_own(both: tuple[object, object]) -> None:
    one, two = (replace(HOLDING, graph_breaks=(each,)) for each in both)  # type: ignore[arg-type]

    found = next(
        each for each in drift(of_ranks(HOLDING, HOLDING), of_ranks(one, two)) if each.metric == "graph_breaks"
    )

    assert [fact.ranks for fact in found.came] == [(0,), (1,)]
