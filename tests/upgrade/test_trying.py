"""Trying settings: the one that explains a drift is named, no other is, and what nobody knows is said to be unknown."""

from __future__ import annotations

import stat
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from support.receipts import BREAK, CONTRACT, HOLDING, NEW, OLD, RAISED, RECOMPILE, WORSENED, an_entry, repeated

from pytest_compilecontract.cli.main import main
from pytest_compilecontract.compare.policy import DEFAULT_POLICY
from pytest_compilecontract.errors import UsageError
from pytest_compilecontract.facts.measurement import Measurement
from pytest_compilecontract.facts.receipt import Entry, Receipt, defaults_key
from pytest_compilecontract.files.receipt import write_receipt
from pytest_compilecontract.upgrade.changed_defaults import (
    Measured,
    Settings,
    command_of,
    explained,
    explained_line,
    refuse_other_torch,
)

DYNAMO = "torch._dynamo.config"
NAMES = [f"{DYNAMO}.{name}" for name in ("a", "b", "c", "d", "e", "f", "g")]
WAS = {**dict.fromkeys(NAMES, "True"), f"{DYNAMO}.same": "8", f"{DYNAMO}.gone": "1"}
NOW = {**dict.fromkeys(NAMES, "False"), f"{DYNAMO}.same": "8", f"{DYNAMO}.new": "1"}


def a_side(*entries: Entry, torch: str, defaults: dict[str, str]) -> Receipt:
    key = defaults_key(defaults) if defaults else None
    base = OLD if torch == OLD.torch else NEW
    return Receipt(
        plugin="0.1.0",
        created="2026-01-31T12:00:00Z",
        environments={"here": replace(base, defaults=key)},
        defaults={key: defaults} if key else {},
        entries=tuple(entries),
    )


def old(*entries: Entry, defaults: dict[str, str] = WAS) -> Receipt:
    return a_side(*entries, torch="2.11.0", defaults=defaults)


def new(*entries: Entry, defaults: dict[str, str] = NOW) -> Receipt:
    return a_side(*entries, torch="2.15.0", defaults=defaults)


@dataclass(kw_only=True, slots=True)
class Torch:
    """A torch whose lanes measure what `behaves` says of the settings that are given their old defaults."""

    behaves: Callable[[frozenset[str]], Measurement | None]
    trials: list[list[str]] = field(default_factory=list)

    def run(self, entry: Entry, settings: Settings) -> Measured:
        self.trials.append([name.removeprefix(f"{DYNAMO}.") for name in settings])
        assert set(settings.values()) <= {"True"}
        measurement = self.behaves(frozenset(name.removeprefix(f"{DYNAMO}.") for name in settings))
        if measurement is None:
            return Measured(problem="the trial left no receipt (crashed): pytest x")
        broken = measurement.raised is not None
        return Measured(
            entry=replace(entry, measurement=measurement, verdict="broken" if broken else "held"),
            environment=replace(NEW, overrides=dict(settings)),
        )


def lines(torch: Torch, before: Receipt, after: Receipt) -> list[str]:
    return [explained_line(each) for each in explained(before, after, DEFAULT_POLICY, torch.run)]


@pytest.mark.parametrize("guilty", ["a", "d", "g"])
def test_the_one_setting_that_explains_a_drift_is_named(guilty: str) -> None:
    torch = Torch(behaves=lambda given: HOLDING if guilty in given else WORSENED["recompiles"])

    said = lines(torch, old(an_entry()), new(an_entry(WORSENED["recompiles"])))

    assert said == [f"  recompiles: explained by {DYNAMO}.{guilty}: True -> False"]
    assert torch.trials[:2] == [[], ["a", "b", "c", "d", "e", "f", "g"]]
    assert len(torch.trials) <= 10


def test_two_settings_that_only_explain_it_together_are_named() -> None:
    torch = Torch(behaves=lambda given: HOLDING if {"b", "f"} <= given else WORSENED["recompiles"])

    said = lines(torch, old(an_entry()), new(an_entry(WORSENED["recompiles"])))

    assert said == [
        f"  recompiles: explained by {DYNAMO}.b: True -> False together with {DYNAMO}.f: True -> False",
    ]


def test_each_drift_of_a_lane_has_its_own_explanation() -> None:
    def behaves(given: frozenset[str]) -> Measurement:
        return replace(
            HOLDING,
            recompiles=() if "a" in given else (RECOMPILE,),
            graph_breaks=() if "c" in given else (BREAK,),
            ops_captured=80,
        )

    torch = Torch(behaves=behaves)

    said = lines(torch, old(an_entry()), new(an_entry(behaves(frozenset()))))

    assert said == [
        f"  fullgraph: explained by {DYNAMO}.c: True -> False",
        f"  graph breaks: explained by {DYNAMO}.c: True -> False",
        f"  recompiles: explained by {DYNAMO}.a: True -> False",
        "  ops captured: none of the 7 changed defaults explains it",
    ]


def test_what_explained_one_lane_is_tried_first_in_the_next() -> None:
    torch = Torch(behaves=lambda given: HOLDING if "e" in given else WORSENED["recompiles"])
    lanes = ("aot", "capture", "inductor")

    said = lines(
        torch,
        old(*(an_entry(lane=lane) for lane in lanes)),
        new(*(an_entry(WORSENED["recompiles"], lane=lane) for lane in lanes)),
    )

    assert said == [f"  recompiles: explained by {DYNAMO}.e: True -> False"] * 3
    assert torch.trials[-4:] == [[], ["e"], [], ["e"]]


def test_where_none_explains_it_that_is_said() -> None:
    torch = Torch(behaves=lambda given: WORSENED["recompiles"])

    said = lines(torch, old(an_entry()), new(an_entry(WORSENED["recompiles"])))

    assert said == ["  recompiles: none of the 7 changed defaults explains it"]


@pytest.mark.parametrize("spoilt", [None, Measurement(raised=RAISED)], ids=["crashes", "raises"])
def test_settings_that_do_not_go_together_are_tried_alone(spoilt: Measurement | None) -> None:
    def behaves(given: frozenset[str]) -> Measurement | None:
        if len(given) > 1:
            return spoilt
        return HOLDING if "c" in given else WORSENED["recompiles"]

    said = lines(Torch(behaves=behaves), old(an_entry()), new(an_entry(WORSENED["recompiles"])))

    assert said == [f"  recompiles: explained by {DYNAMO}.c: True -> False"]


@pytest.mark.parametrize("other", [Measurement(), Measurement(raised=RAISED)], ids=["measures-nothing", "raises"])
def test_a_trial_that_does_not_hold_explains_nothing(other: Measurement) -> None:
    torch = Torch(behaves=lambda given: other if given else WORSENED["recompiles"])

    said = lines(torch, old(an_entry()), new(an_entry(WORSENED["recompiles"])))

    assert said == ["  recompiles: none of the 7 changed defaults explains it"]


def test_a_lane_that_broke_is_explained_by_what_makes_it_run_again() -> None:
    broke = an_entry(None, verdict="broken", reason="the test failed in call: ValueError: no")

    def run(entry: Entry, settings: Settings) -> Measured:
        held = f"{DYNAMO}.b" in settings
        return Measured(entry=an_entry() if held else broke, environment=NEW)

    said = [explained_line(each) for each in explained(old(an_entry()), new(broke), DEFAULT_POLICY, run)]

    assert said == [f"  errors: explained by {DYNAMO}.b: True -> False"]


# What nobody knows


def test_a_drift_that_does_not_come_again_is_not_explained() -> None:
    torch = Torch(behaves=lambda given: HOLDING)

    said = lines(torch, old(an_entry()), new(an_entry(WORSENED["recompiles"])))

    assert said == ["  recompiles: not known: rerun without changing a setting, it does not drift (recompiles)"]
    assert torch.trials == [[]]


def test_a_lane_that_cannot_be_run_again_is_not_explained() -> None:
    torch = Torch(behaves=lambda given: None)

    said = lines(torch, old(an_entry()), new(an_entry(WORSENED["recompiles"])))

    assert said == ["  recompiles: not known: the trial left no receipt (crashed): pytest x"]


@pytest.mark.parametrize(
    ("was", "now", "line"),
    [
        pytest.param({}, NOW, "not known: torch's defaults were not recorded on both sides", id="not-before"),
        pytest.param(WAS, {}, "not known: torch's defaults were not recorded on both sides", id="not-now"),
        pytest.param(WAS, WAS, "no default changed, so none explains it", id="none-differ"),
    ],
)
def test_without_a_difference_nothing_is_tried(was: dict[str, str], now: dict[str, str], line: str) -> None:
    torch = Torch(behaves=lambda given: HOLDING)

    said = lines(torch, old(an_entry(), defaults=was), new(an_entry(WORSENED["recompiles"]), defaults=now))

    assert (said, torch.trials) == ([f"  recompiles: {line}"], [])


# The command


def test_a_trial_runs_the_one_lane_with_the_settings() -> None:
    entry = repeated(cold_seconds=(1.0, 2.0))

    command = command_of("python3.11", entry, {f"{DYNAMO}.a": "[1, 'x']"})

    assert [*command.start, *command.arguments("-q")] == [
        "python3.11",
        "-m",
        "pytest",
        "--compile-contracts",
        "--contract-lanes=aot",
        "--contract-repeat=3",
        f"--contract-set={DYNAMO}.a=[1, 'x']",
        "-q",
        "--",
        f"{CONTRACT}[aot]",
    ]


def test_a_trial_of_a_test_that_compiles_by_itself_names_no_lane() -> None:
    entry = an_entry(lane="body", lane_settings={"backend": ""}, test="t.py::t")

    assert str(command_of("python", entry, {})) == "python -m pytest --compile-contracts -- t.py::t"


def an_interpreter(folder: Path, prints: str, code: int = 0) -> str:
    file = folder / "python"
    file.write_text(f"#!/bin/sh\necho '{prints}'\nexit {code}\n")
    file.chmod(file.stat().st_mode | stat.S_IXUSR)
    return str(file)


@pytest.mark.parametrize(
    ("prints", "code", "has"), [("2.14.1", 0, "torch 2.14.1"), ("", 1, "no torch")], ids=["another", "none"]
)
def test_another_torch_is_refused(tmp_path: Path, prints: str, code: int, has: str) -> None:
    python = an_interpreter(tmp_path, prints, code)

    with pytest.raises(UsageError) as caught:
        refuse_other_torch(python, new(an_entry()))

    assert str(caught.value) == (f"--try-settings: {python} has {has}, NEW has torch 2.15.0 (--python chooses another)")


def test_the_same_torch_is_taken(tmp_path: Path) -> None:
    refuse_other_torch(an_interpreter(tmp_path, "2.15.0"), new(an_entry()))


def test_an_interpreter_that_is_none_is_one_line_and_exit_code_2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    write_receipt(Path("old.json"), old(an_entry()))
    write_receipt(Path("new.json"), new(an_entry(WORSENED["recompiles"])))

    code = main(["compare", "old.json", "new.json", "--try-settings", "--python=nowhere"])

    message = "compilecontract: --try-settings: nowhere does not run (No such file or directory)\n"
    assert (code, capsys.readouterr()) == (2, ("", message))


def test_an_interpreter_without_anything_to_try_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)

    code = main(["compare", "old.json", "new.json", "--python=python"])

    assert (code, capsys.readouterr().err) == (2, "compilecontract: --python does nothing without --try-settings\n")


def test_where_nothing_drifted_nothing_is_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    write_receipt(Path("old.json"), old(an_entry()))
    write_receipt(Path("new.json"), new(an_entry()))

    python = an_interpreter(tmp_path, "2.15.0")
    code = main(["compare", "old.json", "new.json", "--try-settings", f"--python={python}"])

    out, err = capsys.readouterr()
    assert (code, out.splitlines()[-1], err) == (0, "nothing drifted, so no setting was tried", "")
