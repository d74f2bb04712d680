"""How the catch rate is counted: the same for every tool, and nothing counted as seen that was not. No torch here."""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from corpus import Case
from support.receipts import HOLDING, RECOMPILE, after, an_entry, before

from pytest_compilecontract.compare.comparison import compare

FILE = Path(__file__).parents[2] / "benchmarks" / "catch_rate.py"
SPEC = importlib.util.spec_from_file_location("catch_rate", FILE)
assert SPEC is not None
assert SPEC.loader is not None
catch_rate = importlib.util.module_from_spec(SPEC)
sys.modules["catch_rate"] = catch_rate
SPEC.loader.exec_module(catch_rate)


@pytest.mark.parametrize(
    ("is_right", "shown", "caught", "missed", "alarms"),
    [
        pytest.param(False, "red", 1, [], [], id="wrong-and-red"),
        pytest.param(False, "green", 0, ["here"], [], id="wrong-and-green"),
        pytest.param(False, "not used", 0, ["here"], [], id="wrong-and-not-used"),
        pytest.param(True, "red", 0, [], ["here"], id="right-and-red"),
        pytest.param(True, "green", 0, [], [], id="right-and-green"),
        pytest.param(True, "not used", 0, [], [], id="right-and-not-used"),
    ],
)
def test_a_release_is_counted_once(is_right: bool, shown: str, caught: int, missed: list[str], alarms: Any) -> None:
    tally = catch_rate.Tally()

    catch_rate.count(tally, "here", is_right, shown)

    assert (tally.caught, tally.missed, tally.alarms) == (caught, missed, alarms)
    assert (tally.wrong, tally.right) == (int(not is_right), int(is_right))


@pytest.mark.parametrize(
    ("verdict", "colour"),
    [
        ("held", "green"),
        ("violated", "red"),
        ("broken", "red"),
        ("unverified", "red"),
        ("unmeasured", "not used"),
    ],
)
def test_a_verdict_is_red_unless_it_is_held_or_open(verdict: str, colour: str) -> None:
    assert catch_rate.colour(verdict) == colour


def test_what_compare_says_is_one_word() -> None:
    held, worse = an_entry(), an_entry(replace(HOLDING, recompiles=(RECOMPILE,)))

    said = {
        name: catch_rate.said_by(compare(before(old), after(new)).lanes[0], old.verdict, new.verdict)
        for name, old, new in (("same", held, held), ("worse", held, worse), ("better", worse, held))
    }

    assert said == {"same": "same", "worse": "worse", "better": "better"}


def test_a_case_that_left_no_receipt_is_told_by_its_verdicts() -> None:
    assert catch_rate.said_by(None, "held", "broken") == "worse"
    assert catch_rate.said_by(None, "broken", "held") == "better"
    assert catch_rate.said_by(None, "broken", "broken") == "same"


@pytest.mark.parametrize(
    ("effect", "said", "right"),
    [
        ("harm", "worse", True),
        ("harm", "changed", False),
        ("harm", "open", False),
        ("help", "better", True),
        ("help", "same", False),
        ("neither", "changed", True),
        ("neither", "worse", False),
        ("", "same", True),
        ("", "changed", False),
        ("", "worse", False),
    ],
)
def test_what_is_said_is_right_or_not(effect: str, said: str, right: bool) -> None:
    step = a_step(effect=effect, said=said)

    assert step.right is right


def test_a_reason_is_named_only_by_its_text() -> None:
    step = a_step(because=("x.item()", "guard"), reasons=("model.py:3 in f y = x.item()",))

    assert step.missing_reasons == ("guard",)


def test_an_interpreter_that_is_none_is_refused() -> None:
    said: list[str] = []

    catch_rate.interpreters([f"2.13.0={sys.executable}", "2.13=python"], said.append)

    known = "2.11.0, 2.12.1, 2.13.0, 2.14.1, 2.15.0"
    assert said == [f"--python: expected RELEASE=PATH with a release of {known}, got '2.13=python'"]


def test_a_result_is_kept_while_nothing_that_made_it_changes(tmp_path: Path) -> None:
    path = tmp_path / "a_case.py"
    path.write_text("def build(): ...\n", encoding="utf-8")
    case = Case(name="a_case", path=path, limits={"max_graphs": 1})
    marked = tmp_path / "pytest.done"

    catch_rate.mark(marked, catch_rate.key(case, "pytest"), 0)

    assert catch_rate.done(marked) == catch_rate.key(case, "pytest")
    path.write_text("def build(): return 1\n", encoding="utf-8")
    assert catch_rate.done(marked) != catch_rate.key(case, "pytest")
    assert catch_rate.done(tmp_path / "another.done") == ""


def a_step(**changes: Any) -> Any:
    usual = {"case": "a", "lane": "aot", "before": "2.11.0", "after": "2.12.1", "effect": "", "said": "same"}
    return catch_rate.Step(**{**usual, "because": (), "reasons": (), "metrics": (), **changes})
