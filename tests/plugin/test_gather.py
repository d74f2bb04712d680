"""The receipt of all ranks of a launch that is not ours: one entry a lane, whoever ends first. No torch here."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from support.receipts import BREAK, HOLDING, an_entry, before

from pytest_compilecontract.facts.own_failure import OwnFailure
from pytest_compilecontract.facts.receipt import Entry, Receipt
from pytest_compilecontract.files.receipt import read_receipt
from pytest_compilecontract.plugin.gather import gathered, of_ranks
from pytest_compilecontract.plugin.settings import Options, settings_from

OTHER = an_entry(replace(HOLDING, graph_breaks=(BREAK,)))


def a_receipt(*entries: Entry, launch: str = "one") -> Receipt:
    return replace(before(*entries), launch=launch)


def failed(said: str) -> Entry:
    own = OwnFailure(phase="call", exception="RuntimeError", said=said)
    return an_entry(None, verdict="broken", reason=str(own), own_failure=own)


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_whoever_ends_last_writes_what_all_have_measured(tmp_path: Path, order: tuple[int, int]) -> None:
    for rank in order:
        gathered(tmp_path, rank, a_receipt(an_entry()))

    (entry,) = read_receipt(tmp_path / "receipt.json").entries
    assert entry.verdict == "held"
    assert [(each.rank, each.measurement) for each in entry.ranks] == [(0, HOLDING), (1, HOLDING)]
    assert (tmp_path / "rank0" / "receipt.json").is_file()
    assert (tmp_path / "rank1" / "receipt.json").is_file()


def test_what_another_launch_has_left_is_no_part_of_it(tmp_path: Path) -> None:
    gathered(tmp_path, 1, a_receipt(OTHER, launch="before"))
    gathered(tmp_path, 0, a_receipt(an_entry()))

    (entry,) = read_receipt(tmp_path / "receipt.json").entries
    assert [each.rank for each in entry.ranks] == [0]


def test_ranks_that_differ_violate_the_lane() -> None:
    (entry,) = of_ranks({0: a_receipt(an_entry()), 1: a_receipt(OTHER)}).entries

    assert entry.verdict == "violated"
    assert entry.reason == "ranks agree (default): graph breaks differ between ranks"


def test_the_rank_that_failed_by_itself_is_named() -> None:
    neighbour, cause = failed("Connection closed by peer [127.0.0.1]:1"), failed("only here")

    (entry,) = of_ranks({0: a_receipt(neighbour), 1: a_receipt(cause)}).entries

    assert entry.verdict == "broken"
    assert entry.reason == "rank 1: the test failed in call: RuntimeError: only here"


def test_a_rank_that_was_skipped_alone_leaves_the_lane_unmeasured() -> None:
    skipped = an_entry(None, verdict="unmeasured", reason="no GPU")

    (entry,) = of_ranks({0: a_receipt(an_entry()), 1: a_receipt(skipped)}).entries

    assert (entry.verdict, entry.reason) == ("unmeasured", "rank 1: no GPU")


@pytest.mark.parametrize(
    ("variables", "rank", "named"),
    [
        ({}, 0, ""),
        ({"RANK": "0", "WORLD_SIZE": "1"}, 0, ""),
        ({"RANK": "1", "WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": "job"}, 1, "job"),
    ],
)
def test_a_launch_has_a_name(tmp_path: Path, variables: dict[str, str], rank: int, named: str) -> None:
    found = settings_from(
        Options(root=tmp_path, asked=None, configured=[], report="report", invocation=tmp_path, variables=variables)
    )

    assert (found.rank, found.launch) == (rank, named)
    assert found.report == tmp_path / ("report/rank1" if rank else "report")


def test_a_launch_without_a_name_is_known_by_who_started_it(tmp_path: Path) -> None:
    found = [
        settings_from(
            Options(
                root=tmp_path,
                asked=None,
                configured=[],
                report=None,
                invocation=tmp_path,
                variables={"RANK": rank, "WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": "none"},
            )
        ).launch
        for rank in "01"
    ]

    assert found[0] == found[1] != ""
