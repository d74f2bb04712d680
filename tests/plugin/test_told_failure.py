"""A failure tells the command that reruns its lane, with the lane only where an option has chosen lanes."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.receipts import an_entry

from pytest_compilecontract.facts.lanes import BUILT_IN
from pytest_compilecontract.plugin.results import failure_of
from pytest_compilecontract.plugin.started import START


def told(lane: str, asked: str | None, **contract: Any) -> str:
    """The last line of the failure of a lane, in a session with this `--contract-lanes`, typed or from addopts."""
    options = {"--contract-lanes": asked, "--contract-set": None}
    config = SimpleNamespace(
        workerinput={"mainargv": ["/env/bin/pytest"], START: ["pytest"]},
        rootpath=Path("/project"),
        invocation_params=SimpleNamespace(dir=Path("/project"), args=()),
        getoption=options.__getitem__,
    )
    state: Any = SimpleNamespace(
        judged=SimpleNamespace(entry=an_entry(test=f"test_a.py::test_it[{lane}]"), doubts=("something",), unsteady=()),
        contract=SimpleNamespace(**{"item": SimpleNamespace(config=config), "bare": False, "ladder": (), **contract}),
        lane=BUILT_IN[lane],
        number=1,
    )
    return failure_of(state).splitlines()[-1]


@pytest.mark.parametrize(
    ("lane", "asked", "option"),
    [
        pytest.param("aot", None, "", id="a lane by default"),
        pytest.param("cudagraphs", None, "", id="a lane of the settings"),
        # Without it, the lanes of addopts would be run, and not this one.
        pytest.param("aot", "aot", "--contract-lanes=aot ", id="chosen"),
        pytest.param("aot", "capture,aot", "--contract-lanes=aot ", id="one of several"),
    ],
)
def test_the_command_names_the_lane_where_an_option_chose_it(lane: str, asked: str | None, option: str) -> None:
    assert told(lane, asked) == f"pytest --compile-contracts {option}-- 'test_a.py::test_it[{lane}]'"


@pytest.mark.parametrize("own", [{"bare": True}, {"ladder": (BUILT_IN["aot"],)}], ids=["a bare marker", "a ladder"])
def test_no_option_chooses_the_lane_of(own: dict[str, Any]) -> None:
    assert "--contract-lanes" not in told("aot", "aot", **own)
