"""The proof, by the command line: what is benign is never drift, and each harm has its verdict and its exit code.

Metric by metric: one that is new in the policy's list has its cases here, or the first test fails.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from support.receipts import (
    BENIGN,
    BREAK,
    EAGER,
    FORWARD,
    HOLDING,
    ITEM,
    LIMIT_HIT,
    OTHER_BREAK,
    RAISED,
    RECOMPILE,
    VIOLATION,
    WORSE,
    WORSENED,
    after,
    an_entry,
    before,
    repeated,
)

from pytest_compilecontract.cli.main import main
from pytest_compilecontract.facts.measurement import Measurement
from pytest_compilecontract.facts.metrics import BANDED, GATEABLE, METRICS
from pytest_compilecontract.facts.receipt import Entry
from pytest_compilecontract.files.receipt import write_receipt

YES, NO, NOT_KNOWN = 0, 1, 3
SKIPPED = an_entry(None, verdict="unmeasured", reason="needs CUDA")
NOTHING = replace(HOLDING, graphs=0, ops_captured=0, graphs_executed=0, backward_graphs=0)


# Those that a measurement has as a field of its own, and not as a figure of another.
SECONDS = [name for name in BANDED if name in Measurement.__dataclass_fields__]


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def asked(
    old: tuple[Entry, ...], new: tuple[Entry, ...], capsys: pytest.CaptureFixture[str], policy: str = ""
) -> tuple[str, int]:
    """What `compare` says of the lanes, and the exit code that `gate`, `compare` and `matrix` give."""
    Path("policy.toml").write_text(policy)
    write_receipt(Path("old.json"), before(*old))
    write_receipt(Path("new.json"), after(*new))
    codes = {main([command, "old.json", "new.json", "--policy=policy.toml"]) for command in ("gate", "matrix")}
    capsys.readouterr()
    codes.add(main(["compare", "old.json", "new.json", "--policy=policy.toml"]))
    (code,) = codes
    (totals,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("lanes: ")]
    return totals.removeprefix("lanes: "), code


def test_every_metric_that_can_gate_has_a_case() -> None:
    assert sorted(WORSE) == sorted(GATEABLE)


# What is benign

NO_DRIFT: dict[str, tuple[Entry, Entry]] = {
    **{
        f"a-break-{name}": tuple(an_entry(replace(HOLDING, graph_breaks=(found,))) for found in (BREAK, changed))
        for name, changed in BENIGN.items()
    },
    "a-recompile-renamed": tuple(
        an_entry(replace(HOLDING, recompiles=(found,)))
        for found in (
            RECOMPILE,
            replace(
                RECOMPILE,
                frame=replace(FORWARD, function="torch_dynamo_resume_in_forward_at_40", line=99),
                guard="0/0: tensor 'L['x']' size mismatch at index 0. expected 7, actual 9",
            ),
        )
    ),
    "an-eager-frame-reworded": tuple(
        an_entry(replace(HOLDING, eager_frames=(found,)))
        for found in (EAGER, replace(EAGER, frame=replace(FORWARD, line=50), reason="other words"))
    ),
    "a-limit-hit-reworded": tuple(
        an_entry(replace(HOLDING, limit_hits=(found,)))
        for found in (LIMIT_HIT, replace(LIMIT_HIT, reason="other words"))
    ),
    "other-times-and-caches": (
        an_entry(),
        an_entry(replace(HOLDING, cold_seconds=90.0, steady_seconds=9.0, caches={"hits": 3})),
    ),
    "one-more-graph": (an_entry(), an_entry(replace(HOLDING, graphs=2, graphs_executed=6, backward_graphs=2))),
    "a-few-ops-less": (an_entry(), an_entry(replace(HOLDING, ops_captured=95))),
}


@pytest.mark.parametrize(("old", "new"), NO_DRIFT.values(), ids=NO_DRIFT)
def test_what_is_benign_is_held(old: Entry, new: Entry, capsys: pytest.CaptureFixture[str]) -> None:
    assert asked((old,), (new,), capsys) == ("1 held", YES)


@pytest.mark.parametrize("metric", BANDED)
def test_what_lies_within_its_band_is_held(metric: str, capsys: pytest.CaptureFixture[str]) -> None:
    old, new = repeated(**{metric: (1.0, 2.0)}), repeated(**{metric: (1.5, 3.0)})

    assert asked((old,), (new,), capsys, f"gate = [{metric!r}]") == ("1 held", YES)


def test_all_that_is_benign_at_once_is_held(capsys: pytest.CaptureFixture[str]) -> None:
    pairs = [
        tuple(replace(entry, contract=f"tests/test_a.py::test_{name}") for entry in pair)
        for name, pair in NO_DRIFT.items()
    ]

    found = asked(tuple(old for old, _ in pairs), tuple(new for _, new in pairs), capsys)

    assert found == (f"{len(NO_DRIFT)} held", YES)


@pytest.mark.parametrize("metric", GATEABLE)
def test_an_improvement_of_each_metric_never_blocks(metric: str, capsys: pytest.CaptureFixture[str]) -> None:
    worse, better = WORSE[metric][::-1]

    assert asked((worse,), (better,), capsys, f"gate = [{metric!r}]") == ("1 improved", YES)


# What harms


@pytest.mark.parametrize("metric", GATEABLE)
def test_each_metric_that_worsens_is_drift_where_the_policy_says_so(
    metric: str, capsys: pytest.CaptureFixture[str]
) -> None:
    old, new = WORSE[metric]

    assert asked((old,), (new,), capsys, f"gate = [{metric!r}]") == ("1 drifted", NO)


@pytest.mark.parametrize("metric", GATEABLE)
def test_by_default_what_worsens_is_drift_if_it_is_no_time(metric: str, capsys: pytest.CaptureFixture[str]) -> None:
    old, new = WORSE[metric]

    assert asked((old,), (new,), capsys) == (("1 drifted", NO) if METRICS[metric].gates else ("1 held", YES))


@pytest.mark.parametrize("metric", [name for name in SECONDS if METRICS[name].band is None])
def test_a_number_of_single_runs_is_never_judged(metric: str, capsys: pytest.CaptureFixture[str]) -> None:
    old, new = (an_entry(replace(HOLDING, **{metric: value})) for value in (1.0, 9.0))

    assert asked((old,), (new,), capsys, f"gate = [{metric!r}]\nband.{metric} = 0.1") == ("1 unverified", NOT_KNOWN)
    assert asked((old,), (new,), capsys) == ("1 held", YES)


UNSTABLE = an_entry(verdict="unstable", reason="graph breaks: 0 in repeat 1, 1 in repeat 2")
HARM: dict[str, tuple[tuple[Entry, ...], tuple[Entry, ...], str, int]] = {
    "one-break-for-another-of-the-same-kind": (
        (an_entry(replace(HOLDING, graph_breaks=(BREAK,))),),
        (an_entry(replace(HOLDING, graph_breaks=(OTHER_BREAK,))),),
        "1 drifted",
        NO,
    ),
    "one-recompile-for-another": (
        (an_entry(replace(HOLDING, recompiles=(RECOMPILE,))),),
        (an_entry(replace(HOLDING, recompiles=(replace(RECOMPILE, guard="self.training == True"),))),),
        "1 drifted",
        NO,
    ),
    "one-eager-frame-for-another": (
        (an_entry(replace(HOLDING, eager_frames=(EAGER,))),),
        (an_entry(replace(HOLDING, eager_frames=(replace(EAGER, frame=replace(ITEM, function="other")),))),),
        "1 drifted",
        NO,
    ),
    "capture-lost": ((an_entry(),), (an_entry(NOTHING),), "1 drifted", NO),
    "it-raises": (
        (an_entry(),),
        (an_entry(Measurement(raised=RAISED), verdict="broken", reason="raised"),),
        "1 broken",
        NO,
    ),
    "better-and-worse": (
        (an_entry(replace(HOLDING, graph_breaks=(BREAK,))),),
        (an_entry(WORSENED["numerics"]),),
        "1 drifted",
        NO,
    ),
    "a-lane-missing": ((an_entry(), an_entry(lane="other")), (an_entry(),), "1 held, 1 missing", NOT_KNOWN),
    "a-lane-new": ((an_entry(),), (an_entry(), an_entry(lane="other")), "1 held, 1 new", NOT_KNOWN),
    "a-lane-skipped": (
        (an_entry(), an_entry(lane="other")),
        (an_entry(), replace(SKIPPED, lane="other")),
        "1 held, 1 unmeasured",
        NOT_KNOWN,
    ),
    "an-empty-receipt-after": ((an_entry(),), (), "1 missing", NOT_KNOWN),
    "an-empty-receipt-before": ((), (an_entry(),), "1 new", NOT_KNOWN),
    "two-empty-receipts": ((), (), "none", NOT_KNOWN),
    "all-lanes-skipped": (
        (an_entry(), an_entry(lane="other")),
        (SKIPPED, replace(SKIPPED, lane="other")),
        "2 unmeasured",
        NOT_KNOWN,
    ),
    "all-lanes-skipped-before": ((SKIPPED,), (an_entry(),), "1 new", NOT_KNOWN),
    "counts-that-disagree": ((an_entry(),), (an_entry(verdict="unverified"),), "1 unverified", NOT_KNOWN),
    "repeats-that-disagree": ((an_entry(),), (UNSTABLE,), "1 unstable", NOT_KNOWN),
    "repeats-that-disagreed-before": ((UNSTABLE,), (an_entry(),), "1 unstable", NOT_KNOWN),
    "repeats-that-disagree-on-both": ((UNSTABLE,), (UNSTABLE,), "1 unstable", NOT_KNOWN),
    "drift-beside-repeats-that-disagree": (
        (an_entry(), an_entry(lane="other")),
        (UNSTABLE, an_entry(WORSENED["recompiles"], lane="other")),
        "1 unstable, 1 drifted",
        NO,
    ),
    "over-its-limits-as-before": (
        (an_entry(verdict="violated", violations=(VIOLATION,)),),
        (an_entry(verdict="violated", violations=(VIOLATION,)),),
        "1 held (1 of them over the contract's limits, as before)",
        NOT_KNOWN,
    ),
}


@pytest.mark.parametrize(("old", "new", "lanes", "code"), HARM.values(), ids=HARM)
def test_each_harm_has_its_verdict_and_exit_code(
    old: tuple[Entry, ...], new: tuple[Entry, ...], lanes: str, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert asked(old, new, capsys) == (lanes, code)


def test_no_policy_lets_repeats_that_disagree_be(capsys: pytest.CaptureFixture[str]) -> None:
    old, new = (an_entry(), an_entry(lane="other")), (UNSTABLE, an_entry(lane="other"))

    assert asked(old, new, capsys, 'allow = ["new", "missing", "unmeasured"]') == ("1 held, 1 unstable", NOT_KNOWN)
