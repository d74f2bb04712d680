"""Observing: tests that know nothing of contracts give what marked ones would, and are otherwise as they were."""

from __future__ import annotations

import json
import os
import re
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from support.sessions import FRESH, run_session

from pytest_compilecontract.facts.measurement import Measurement
from pytest_compilecontract.measure.compile_lane import observing
from pytest_compilecontract.measure.observed import Watch, _WhenImported
from pytest_compilecontract.measure.probes.source import Paths

pytestmark = pytest.mark.torch

ROOT = Path(__file__).parent


# a body


@pytest.fixture
def watch() -> Iterator[Watch]:
    with Watch(ROOT, lambda: None, lambda: None) as made:
        yield made


def seen_in(watch: Watch, body: Callable[[], object]) -> Measurement:
    with watch.body() as seen:
        body()
    assert seen.measurement is not None
    return seen.measurement


def compiled(function: Callable[..., Any], *calls: torch.Tensor, **options: Any) -> None:
    run = torch.compile(function, backend="eager", **options)
    for each in calls:
        run(each)


def scaled(x: torch.Tensor) -> torch.Tensor:
    return x.sin() * 2


def breaks(x: torch.Tensor) -> torch.Tensor:
    x = x.sin()
    torch._dynamo.graph_break()
    return x.cos()


def sizes() -> None:
    compiled(scaled, *(torch.ones(size) for size in (3, 4, 5)))


def a_break() -> None:
    compiled(breaks, torch.ones(3), torch.ones(4))


def a_limit() -> None:
    with torch._dynamo.config.patch(recompile_limit=2):
        compiled(scaled, *(torch.ones(size) for size in (2, 3, 4, 5)), dynamic=False)


def fullgraph_fails() -> None:
    with pytest.raises(Exception, match="graph_break"):
        compiled(breaks, torch.ones(3), fullgraph=True)


def in_a_thread() -> None:
    thread = threading.Thread(target=sizes)
    thread.start()
    thread.join()


def counters_cleared() -> None:
    sizes()
    torch._dynamo.utils.counters.clear()
    a_break()


def reset_on_the_way() -> None:
    sizes()
    torch.compiler.reset()
    sizes()


def exported() -> None:
    torch.export.export(torch.nn.Linear(2, 2), (torch.ones(3, 2),))
    sizes()


# What no two runs have in common.
APART: dict[str, Any] = {"compiles": (), "stage_seconds": None}
BODIES = [sizes, a_break, a_limit, fullgraph_fails, in_a_thread, counters_cleared, reset_on_the_way, exported]


@pytest.mark.parametrize("body", BODIES, ids=lambda body: body.__name__.replace("_", "-"))
def test_a_body_that_is_watched_shows_what_a_marked_one_shows(watch: Watch, body: Callable[[], None]) -> None:
    a_break()  # what was compiled before is not to count
    with observing(Paths(ROOT)) as marked:
        body()

    found = seen_in(watch, body)

    # Each has compiled by a call of its own, at a line of its own, and taken its time.
    assert replace(found, **APART) == replace(marked.measurement, **APART)
    assert [each.graphs for each in found.compiles or ()] == [each.graphs for each in marked.measurement.compiles or ()]
    assert found.disagreements == ()


def test_a_body_that_compiles_nothing_has_no_measurement(watch: Watch) -> None:
    sizes()

    with watch.body() as seen:
        scaled(torch.ones(3))

    assert seen.measurement is None


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(lambda: torch.compile(scaled, backend="eager"), id="never-called"),
        pytest.param(lambda: torch.compile(scaled, disable=True)(torch.ones(3)), id="disabled"),
    ],
)
def test_a_body_in_which_torch_compile_has_no_effect_shows_that(watch: Watch, body: Callable[[], None]) -> None:
    found = seen_in(watch, body)

    assert (found.graphs, found.ops_captured, found.graph_breaks, found.disagreements) == (0, 0, (), ())


def test_the_measurement_of_a_body_that_compiled_nothing_is_of_zeros(watch: Watch) -> None:
    found = watch.nothing()

    assert (found.graphs, found.ops_captured, found.graph_breaks, found.disagreements) == (0, 0, (), ())


def test_bodies_that_share_code_each_compile_it(watch: Watch) -> None:
    shared = torch.compile(scaled, backend="eager")

    first = seen_in(watch, lambda: shared(torch.ones(3)))
    shared(torch.ones(4))  # between the two, as a fixture does
    second = seen_in(watch, lambda: shared(torch.ones(5)))

    assert first.graphs == second.graphs == 1
    assert second.recompiles == ()


def test_bodies_that_compile_later_each_start_anew(watch: Watch) -> None:
    def later() -> None:
        with torch.compiler.set_stance("eager_then_compile"):
            compiled(scaled, torch.ones(3), torch.ones(3), torch.ones(4))

    first, second = seen_in(watch, later), seen_in(watch, later)

    assert replace(first, stage_seconds=None) == replace(second, stage_seconds=None)


def test_what_no_body_compiled_is_dropped_only_before_a_body(watch: Watch) -> None:
    with watch.body():
        pass
    shared = torch.compile(scaled, backend="eager")
    shared(torch.ones(3))
    frames = torch._dynamo.convert_frame

    assert len(frames.output_codes.seen) == 1

    with watch.body():
        assert len(frames.output_codes.seen) == 0


def test_a_setting_that_a_body_leaves_changed_is_put_back(watch: Watch) -> None:
    before = torch._dynamo.config.recompile_limit

    with watch.body():
        torch._dynamo.config.recompile_limit = 1
        torch._dynamo.config.cache_size_limit = 2

    assert torch._dynamo.config.recompile_limit == before


def test_a_setting_of_a_fixture_stays(watch: Watch) -> None:
    with watch.body():
        pass

    with torch._dynamo.config.patch(recompile_limit=3):
        with watch.body():
            torch._dynamo.config.suppress_errors = True
        assert torch._dynamo.config.recompile_limit == 3
        assert torch._dynamo.config.suppress_errors is False


def test_counters_are_left_to_the_test(watch: Watch) -> None:
    counters = torch._dynamo.utils.counters
    counters.clear()
    counters["mine"]["kept"] = 3

    with watch.body():
        sizes()
        inside = {group: dict(values) for group, values in counters.items()}

    assert inside["mine"] == {"kept": 3}
    assert inside["stats"]["unique_graphs"] == 2
    assert {group: dict(values) for group, values in counters.items()} == inside


def test_warnings_that_are_errors_are_not_met_by_what_we_do(watch: Watch) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = seen_in(watch, sizes)

    assert found.disagreements == ()


def test_closing_leaves_torch_as_it_was() -> None:
    from torch._dynamo import convert_frame

    before = [vars(convert_frame.ConvertFrameAssert)["__call__"], torch._dynamo.config.automatic_dynamic_local_pgo]

    with Watch(ROOT, lambda: None, lambda: None) as watch:
        seen_in(watch, sizes)
        assert vars(convert_frame.ConvertFrameAssert)["__call__"] is not before[0]

    after = [vars(convert_frame.ConvertFrameAssert)["__call__"], torch._dynamo.config.automatic_dynamic_local_pgo]
    assert after == before


def test_a_torch_that_cannot_be_measured_is_left_alone() -> None:
    with Watch(ROOT, lambda: "torch 2.0 is too old", lambda: None) as watch:
        with watch.body() as seen:
            sizes()

        assert seen.measurement is None
        assert watch.why_not == "torch 2.0 is too old"


def test_a_torch_without_the_tap_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes()
    monkeypatch.delattr(torch._dynamo.convert_frame, "ConvertFrameAssert")

    with Watch(ROOT, lambda: None, lambda: None) as watch:
        with watch.body():
            pass

        assert watch.why_not == "torch has no such module.__call__"


def test_a_module_is_awaited_wherever_it_is_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "awaited_by_a_test.py").write_text("VALUE = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    told: list[int] = []
    finder = _WhenImported("awaited_by_a_test", lambda: told.append(sys.modules["awaited_by_a_test"].VALUE))
    monkeypatch.setattr(sys, "meta_path", [finder, *sys.meta_path])

    import awaited_by_a_test  # type: ignore[import-not-found]  # noqa: F401

    assert told == [1]


# sessions

SUITE = """
import os
import threading
import unittest

import pytest

from pytest_compilecontract import compile_contract

DRIFT = os.environ.get("DRIFT")


def compiles(*sizes):
    import torch

    run = torch.compile(lambda x: x.sin() * 2, backend="eager")
    for size in sizes:
        run(torch.ones(size))


def test_plain():
    pass


def test_compiles_without_effect():
    import torch

    torch.compile(lambda x: x.sin(), backend="eager")
    assert not DRIFT, "my own assertion"


def test_torch_alone():
    import torch

    torch.ones(3).sin()


def test_compiles():
    compiles(3, 4)


def test_breaks():
    import torch

    def step(x):
        x = x.sin()
        if DRIFT:
            torch._dynamo.graph_break()
        return x.cos()

    torch.compile(step, backend="eager")(torch.ones(3))


def test_stops_compiling():
    if not DRIFT:
        compiles(3)


def test_fails_before_it_compiles():
    assert not DRIFT, "my own assertion"
    compiles(3)


def test_is_skipped_before_it_compiles():
    if DRIFT:
        pytest.skip("not on this torch")
    compiles(3)


def test_reaches_the_limit():
    import torch

    # Left as it is, for the next test to stumble over.
    torch._dynamo.config.recompile_limit = 2
    run = torch.compile(lambda x: x.sin(), backend="eager", dynamic=False)
    for size in (2, 3, 4, 5):
        run(torch.ones(size))


def test_runs_eager():
    import torch

    def whole(x):
        for _ in range(2):
            torch._dynamo.graph_break()
        return x.sin()

    torch.compile(whole, backend="eager")(torch.ones(3))


def test_fails_after():
    compiles(3)
    assert 1 == 2, "my own assertion"


def test_fails_and_compiles_nothing():
    assert 1 == 2, "my own assertion"


@pytest.mark.xfail
def test_is_expected_to_fail():
    compiles(3)
    assert 1 == 2


@pytest.mark.xfail(strict=True)
def test_passes_unexpectedly():
    compiles(3)


def test_skips():
    compiles(3)
    pytest.skip("not today")


@pytest.fixture
def no_fixture():
    raise RuntimeError("no fixture today")


def test_without_its_fixture(no_fixture):
    compiles(3)


@pytest.fixture
def no_end():
    yield
    raise RuntimeError("no end today")


def test_with_a_fixture_that_breaks_down(no_end):
    compiles(3)


@pytest.fixture(scope="module")
def model():
    import torch

    run = torch.compile(lambda x: x.sin() * 2, backend="eager")
    run(torch.ones(3))
    return run


def test_calls_a_compiled_fixture(model):
    import torch

    model(torch.ones(4))


def test_calls_a_compiled_fixture_too(model):
    import torch

    model(torch.ones(5))


@pytest.mark.parametrize("size", [3, 5])
def test_sizes(size):
    compiles(size)


def test_in_a_thread():
    thread = threading.Thread(target=compiles, args=(3,))
    thread.start()
    thread.join()


class TestUnit(unittest.TestCase):
    def setUp(self):
        compiles(3)

    def test_with_set_up(self):
        compiles(4)

    def test_fails(self):
        self.assertEqual(1, 2, "my own assertion")

    def test_subtests(self):
        for size in (3, 4):
            with self.subTest(size=size):
                compiles(size)


@compile_contract(max_graphs=0, min_ops_captured=0)
def test_marked():
    compiles(3)


def test_with_the_fixture(compile_lane):
    import torch

    compile_lane.run(lambda x: x.sin(), (torch.ones(3),))
"""
CONFTEST = """
import json, os, pathlib, sys


def pytest_collection_modifyitems(items):
    if os.environ.get("REVERSED"):
        items.reverse()


def pytest_unconfigure():
    if os.environ.get("LOADED"):
        loaded = [name for name in ("torch", "torch._dynamo") if name in sys.modules]
        pathlib.Path("loaded.json").write_text(json.dumps(loaded))
"""
OBSERVE = ("--compile-contracts", "--contract-observe", "--contract-lanes=capture")
# Verdict, and graphs of every test that is in the receipt.
EXPECTED = {
    "test_breaks": ("held", 1),
    "test_calls_a_compiled_fixture": ("held", 1),
    "test_calls_a_compiled_fixture_too": ("held", 1),
    "test_compiles": ("held", 2),
    "test_compiles_without_effect": ("held", 0),
    "test_fails_after": ("broken", 1),
    "test_fails_before_it_compiles": ("held", 1),
    "test_in_a_thread": ("held", 1),
    "test_is_skipped_before_it_compiles": ("held", 1),
    "test_marked": ("violated", 1),
    "test_passes_unexpectedly": ("broken", 1),
    "test_reaches_the_limit": ("held", 2),
    "test_runs_eager": ("held", 0),
    "test_sizes[3]": ("held", 1),
    "test_sizes[5]": ("held", 1),
    "test_stops_compiling": ("held", 1),
    "test_with_a_fixture_that_breaks_down": ("broken", 1),
    "test_with_the_fixture[capture]": ("held", 1),
    "TestUnit::test_fails": ("broken", 1),
    "TestUnit::test_subtests": ("held", 2),
    "TestUnit::test_with_set_up": ("held", 2),
}
FAIL_BY_THEMSELVES = {
    "test_fails_after",
    "test_fails_and_compiles_nothing",
    "test_passes_unexpectedly",
    "test_without_its_fixture",
    "test_with_a_fixture_that_breaks_down",
    "TestUnit::test_fails",
}
WHEN_IT_RAN = ("seconds", "worker", "environment")


@dataclass(frozen=True, kw_only=True)
class Ran:
    code: int
    out: str
    folder: Path

    @property
    def entries(self) -> dict[str, dict[str, Any]]:
        document = json.loads((self.folder / "out/receipt.json").read_text(encoding="utf-8"))
        return {each["test"].partition("::")[2]: each for each in document["entries"]}

    @property
    def facts(self) -> dict[str, dict[str, Any]]:
        # A lane with calls of ours has times.
        bodies = {name: entry for name, entry in self.entries.items() if entry["lane"] == "body"}
        for entry in bodies.values():
            (entry["measurement"] or {}).pop("stage_seconds", None)
        return {
            name: {key: value for key, value in entry.items() if key not in WHEN_IT_RAN}
            for name, entry in bodies.items()
        }

    @property
    def bad(self) -> set[str]:
        return {name for _, name in re.findall(r"^(FAILED|ERROR) test_suite\.py::(\S+)", self.out, re.MULTILINE)}


def session(folder: Path, *options: str, **variables: str) -> Ran:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "pyproject.toml").write_text("[tool.pytest.ini_options]\n")
    (folder / "conftest.py").write_text(CONFTEST)
    (folder / "test_suite.py").write_text(SUITE)
    environment = {
        **os.environ,
        **variables,
        "PYTHONPATH": str(Path(__file__).parent.parent.parent),
        "PYTEST_ADDOPTS": "-p no:cacheprovider -p no:hypothesispytest",
    }
    command = [sys.executable, "-m", "pytest", "-rfE", *options]
    ran = run_session(command, cwd=folder, env=environment, timeout=300)
    return Ran(code=ran.returncode, out=ran.stdout + ran.stderr, folder=folder)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    folder = tmp_path_factory.mktemp("observed") / "suite"
    return session(folder, *OBSERVE, "--contract-record", "--contract-report=out")


def held_to(recorded: Ran, folder: Path, *options: str, **variables: str) -> Ran:
    """Another session, with the baselines of the first."""
    kept = recorded.folder / "contracts/baselines"
    return session(folder, *OBSERVE, f"--contract-baselines={kept}", "--contract-report=out", *options, **variables)


def test_each_test_that_compiles_is_in_the_receipt_and_no_other(recorded: Ran) -> None:
    found = {name: (each["verdict"], each["measurement"]["graphs"]) for name, each in recorded.entries.items()}

    assert found == EXPECTED


def test_no_test_fails_that_does_not_fail_without_us(recorded: Ran) -> None:
    assert recorded.bad == {*FAIL_BY_THEMSELVES, "test_marked"}


def test_the_limit_that_a_test_reached_is_a_fact_and_no_failure(recorded: Ran) -> None:
    entry = recorded.entries["test_reaches_the_limit"]

    assert len(entry["measurement"]["limit_hits"]) == 1
    assert entry["violations"] == []


def test_all_are_told_in_one_line(recorded: Ran) -> None:
    assert "observed 19 tests that compile: 21 graphs, 1 break, 4 recompiles, 1 eager frame, 1 limit hit" in (
        recorded.out.splitlines()
    )
    assert "  test_compiles " not in recorded.out


def test_what_holds_is_recorded_and_what_broke_is_not(recorded: Ran) -> None:
    files = [*(recorded.folder / "contracts/baselines").rglob("test_*.json")]
    kept = json.loads(files[0].read_text(encoding="utf-8"))["contracts"]

    assert len(files) == 1
    names = {name.partition("::")[2] for name in kept}
    assert names == {name.removesuffix("[capture]") for name, (verdict, _) in EXPECTED.items() if verdict == "held"}


def test_the_command_that_records_the_rest_observes_too(recorded: Ran) -> None:
    (line,) = [each for each in recorded.out.splitlines() if each.startswith("  to record ")]

    assert line.startswith("  to record them anyway: python -m pytest --compile-contracts --contract-observe ")


@pytest.mark.parametrize(
    # In reverse, in a process that imports Dynamo only when a test does.
    ("options", "variables"),
    [((), {"REVERSED": "1", FRESH: "1"}), (("-n2",), {})],
    ids=["in-reverse", "on-two-workers"],
)
def test_facts_depend_on_no_order(
    recorded: Ran, tmp_path: Path, options: tuple[str, ...], variables: dict[str, str]
) -> None:
    ran = held_to(recorded, tmp_path, *options, **variables)

    assert ran.facts == recorded.facts
    assert ran.bad == recorded.bad


def test_drift_fails_a_test_and_what_does_not_compile_any_more_is_no_silence(recorded: Ran, tmp_path: Path) -> None:
    ran = held_to(recorded, tmp_path, DRIFT="1")

    changed = {
        "test_breaks",
        "test_compiles_without_effect",
        "test_stops_compiling",
        "test_fails_before_it_compiles",
    }
    assert ran.bad == recorded.bad | changed
    entries = ran.entries
    assert entries["test_breaks"]["measurement"]["graphs"] == 2
    assert (entries["test_stops_compiling"]["verdict"], entries["test_stops_compiling"]["measurement"]["graphs"]) == (
        "held",
        0,
    )
    assert (
        entries["test_fails_before_it_compiles"]["verdict"],
        entries["test_fails_before_it_compiles"]["reason"],
    ) == (
        "broken",
        "the test failed in call: AssertionError: my own assertion",
    )
    assert (
        entries["test_is_skipped_before_it_compiles"]["verdict"],
        entries["test_is_skipped_before_it_compiles"]["reason"],
    ) == ("unmeasured", "not on this torch")
    lines = ran.out.splitlines()
    held_to_what = f"--contract-baselines={recorded.folder / 'contracts/baselines'}"
    rerun = f"python -m pytest {held_to_what} --compile-contracts --contract-observe -- test_suite.py::test_breaks"
    assert rerun in lines
    assert "    + graphs: 1 -> 0" in lines
    assert any("my own assertion" in line for line in lines)


def test_drift_is_recorded_on_asking(recorded: Ran, tmp_path: Path) -> None:
    kept = recorded.folder / "contracts/baselines"
    copy = tmp_path / "kept"
    for file in kept.rglob("test_*.json"):
        target = copy / file.relative_to(kept)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(file.read_bytes())

    ran = session(
        tmp_path, *OBSERVE, "--contract-baselines=kept", "--contract-record=changed", "-k=test_breaks", DRIFT="1"
    )

    assert ran.code == pytest.ExitCode.OK
    assert "recorded 1 lane in 1 file of" in ran.out


def test_a_suite_that_compiles_nothing_does_not_import_dynamo(tmp_path: Path) -> None:
    ran = session(tmp_path, *OBSERVE, "-k=plain or torch_alone", LOADED="1", **{FRESH: "1"})

    assert ran.code == pytest.ExitCode.OK
    assert "no compile contract was measured" in ran.out.splitlines()
    assert json.loads((tmp_path / "loaded.json").read_text()) == ["torch"]


def test_a_worker_that_dies_leaves_its_test_broken(tmp_path: Path) -> None:
    session_file = tmp_path / "suite/test_dies.py"
    session_file.parent.mkdir()
    session_file.write_text("import os\n\ndef test_dies():\n    os._exit(3)\n")

    ran = session(tmp_path / "suite", *OBSERVE, "--contract-report=out", "-n1", "test_dies.py")

    found = {name: (each["verdict"], each["lane"]) for name, each in ran.entries.items()}
    assert found == {"test_dies": ("broken", "body")}
