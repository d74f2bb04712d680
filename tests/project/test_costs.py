"""The table of what contracts of ranks cost: what a row says of an entry, and that each contract has one."""

from __future__ import annotations

import re
from dataclasses import replace
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import pytest
from support.receipts import BREAK, HOLDING, an_entry

from pytest_compilecontract.facts.collectives import Collective, Collectives
from pytest_compilecontract.facts.receipt import Entry
from pytest_compilecontract.facts.structure import PLAIN, Placements

ROOT = Path(__file__).parents[2]
TABLED = ("mesh", "shards", "checkpoint", "recompute")


def costs() -> Any:
    spec = spec_from_file_location("costs", ROOT / "ci" / "costs.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def in_ranks(**facts: Any) -> Entry:
    entry = an_entry(replace(HOLDING, **facts), contract="contracts/test_distributed_x.py::test_a_thing[two]")
    return replace(entry, lane_settings={"ranks": 2, "process_group": "fake"})


def test_a_row_says_what_was_measured() -> None:
    made = (Collective(kind="all_reduce", times=2),)
    entry = in_ranks(
        graph_breaks=(BREAK,),
        recomputed_graphs=3,
        placements=Placements(compiled={"w": "Shard(0) on 2", "b": PLAIN}, eager={}),
        collectives=Collectives(compiled=made, eager=made),
    )

    assert costs().row(entry) == ("a thing", "2, fake", "1", "1", "0", "3", "1", "2 all_reduce", "yes")


def test_what_was_not_measured_is_a_question_mark() -> None:
    assert costs().row(in_ranks(graphs=None)) == ("a thing", "2, fake", "?", "0", "0", "?", "?", "?", "no")


def test_a_lane_that_did_not_run_says_so() -> None:
    assert costs().row(replace(in_ranks(), measurement=None, verdict="unmeasured"))[2] == "unmeasured"


def test_lanes_of_one_process_are_left_out() -> None:
    assert len(costs().table([an_entry(), in_ranks()])) == 3


@pytest.mark.parametrize("file", TABLED)
def test_each_contract_has_a_row_in_the_table(file: str) -> None:
    page = (ROOT / "docs" / "distributed.md").read_text(encoding="utf-8")
    text = (ROOT / "contracts" / f"test_distributed_{file}.py").read_text(encoding="utf-8")

    names = [each.replace("_", " ") for each in re.findall(r"^def test_(\w+)", text, flags=re.MULTILINE)]

    assert [name for name in names if f"\n| {name} |" not in page] == []
    assert names
