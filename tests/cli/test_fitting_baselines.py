"""Baselines of several environments, beside a run: which of them it is compared with, and what is said of it."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from support.receipts import BREAK, HOLDING, NEW, OLD, a_receipt, an_entry

from pytest_compilecontract.baselines.store import Baselines
from pytest_compilecontract.cli.main import main
from pytest_compilecontract.facts.receipt import Environment
from pytest_compilecontract.files.receipt import write_receipt

FOLDER = Path("contracts/baselines")
MIDDLE = replace(OLD, torch="2.13.0")
GPU = replace(OLD, device="A card", capability="9.0")
WAIVING = ("--owner", "me", "--issue", "https://example.org/1", "--expires", "2099-01-31")


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A project with baselines of torch 2.11 on a CPU and on a GPU, and of torch 2.13: each with other counts."""
    monkeypatch.chdir(tmp_path)
    for graphs, environment in ((2, OLD), (3, MIDDLE), (4, GPU)):
        measured = replace(HOLDING, graphs=graphs)
        Baselines(FOLDER, Path()).record([an_entry(measured)], {"here": environment}, "all")


def ran(environment: Environment, name: str = "run", graphs: int = 2) -> None:
    """Write the receipt of a run."""
    write_receipt(
        Path(name, "receipt.json"), a_receipt(an_entry(replace(HOLDING, graphs=graphs)), environment=environment)
    )


@pytest.mark.parametrize(
    ("environment", "chosen"),
    [
        pytest.param(MIDDLE, "torch2.13-cpu, the environment of run", id="its-own"),
        pytest.param(
            NEW, "torch2.13-cpu, of the newest torch before that of run (torch2.15-cpu)", id="the-newest-older"
        ),
        pytest.param(
            replace(OLD, torch="2.12.1"),
            "torch2.11-cpu, of the newest torch before that of run (torch2.12-cpu)",
            id="never-a-newer",
        ),
        pytest.param(GPU, "torch2.11-cuda-sm90, the environment of run", id="its-own-device"),
    ],
)
@pytest.mark.parametrize("command", ["compare", "gate"])
def test_a_run_is_compared_with_the_baselines_that_fit_it(
    command: str, environment: Environment, chosen: str, capsys: pytest.CaptureFixture[str]
) -> None:
    ran(environment)
    name = chosen.partition(",")[0]

    main([command, str(FOLDER), "run"])

    first, *said = capsys.readouterr().out.splitlines()
    assert first == f"{FOLDER}: chose {chosen}"
    main([command, str(FOLDER / name), "run"])
    assert said == capsys.readouterr().out.splitlines()


def test_as_the_newer_side_only_the_runs_own_environment_fits(capsys: pytest.CaptureFixture[str]) -> None:
    ran(MIDDLE)
    ran(NEW, "newer")

    codes = [main(["compare", name, str(FOLDER)]) for name in ("run", "newer")]

    said = capsys.readouterr()
    assert codes == [0, 2]
    assert said.out.startswith(f"{FOLDER}: chose torch2.13-cpu, the environment of run\n")
    assert said.err == (
        f"compilecontract: {FOLDER}: baselines of several environments (torch2.11-cpu, torch2.11-cuda-sm90, "
        "torch2.13-cpu), and newer is of torch2.15-cpu: choose one, as in compilecontract compare newer "
        f"{FOLDER / 'torch2.13-cpu'}\n"
    )


@pytest.mark.parametrize(
    ("environments", "of", "choice"),
    [
        pytest.param([replace(GPU, capability="8.0")], "torch2.11-cuda-sm80", "torch2.13-cpu", id="another-device"),
        pytest.param([replace(OLD, torch=None)], "no-torch-cpu", "torch2.13-cpu", id="no-torch"),
        pytest.param([OLD, GPU], "torch2.11-cpu, torch2.11-cuda-sm90", "torch2.11-cuda-sm90", id="a-run-of-several"),
    ],
)
def test_where_none_or_several_fit_one_line_lists_them_with_the_command_that_chooses(
    environments: Sequence[Environment], of: str, choice: str, capsys: pytest.CaptureFixture[str]
) -> None:
    receipts = [a_receipt(an_entry(), environment=each) for each in environments]
    together = {f"e{at}": each for at, receipt in enumerate(receipts) for each in receipt.environments.values()}
    entries = tuple(replace(an_entry(), lane=f"lane{at}", environment=f"e{at}") for at in range(len(receipts)))
    write_receipt(Path("run/receipt.json"), replace(receipts[0], environments=together, entries=entries))

    code = main(["gate", str(FOLDER), "run"])

    assert code == 2
    assert capsys.readouterr().err == (
        f"compilecontract: {FOLDER}: baselines of several environments (torch2.11-cpu, torch2.11-cuda-sm90, "
        f"torch2.13-cpu), and run is of {of}: choose one, as in compilecontract gate {FOLDER / choice} run\n"
    )


def test_waivers_go_to_a_file_and_what_was_chosen_does_not(capsys: pytest.CaptureFixture[str]) -> None:
    write_receipt(
        Path("run/receipt.json"), a_receipt(an_entry(replace(HOLDING, graph_breaks=(BREAK,))), environment=MIDDLE)
    )

    code = main(["waive", str(FOLDER), "run", *WAIVING])

    said = capsys.readouterr()
    assert code == 0
    assert said.out.startswith("[[waiver]]\n")
    assert said.err.startswith(f"{FOLDER}: chose torch2.13-cpu, the environment of run\n")


def test_the_command_that_waives_names_what_was_chosen(capsys: pytest.CaptureFixture[str]) -> None:
    write_receipt(
        Path("run/receipt.json"), a_receipt(an_entry(replace(HOLDING, graph_breaks=(BREAK,))), environment=MIDDLE)
    )

    main(["gate", str(FOLDER), "run"])

    assert f"compilecontract waive {FOLDER / 'torch2.13-cpu'} run " in capsys.readouterr().out


def test_a_document_of_another_kind_is_named_as_that(capsys: pytest.CaptureFixture[str]) -> None:
    ran(OLD, "runs/one")
    baseline = FOLDER / "torch2.13-cpu/tests/test_block.json"

    codes = [main(["show", str(baseline)]), main(["compare", "runs", "runs/one"])]

    assert codes == [2, 2]
    assert capsys.readouterr().err == (
        f"compilecontract: {baseline}: is a baseline, expected a receipt\n"
        f"compilecontract: {Path('runs/one/receipt.json')}: is a receipt, expected a baseline\n"
    )


@pytest.mark.parametrize("command", ["compare", "gate"])
@pytest.mark.parametrize(
    ("installed", "told"),
    [
        # A wheel of PyPI does not tell the build in its version.
        pytest.param("2.15.0", "env/bin/pytest", id="the torch of the newer run"),
        pytest.param("2.11.0", "pytest", id="another, so that which interpreter has it is not known"),
        pytest.param(None, "pytest", id="none"),
    ],
)
def test_a_lane_is_rerun_on_this_interpreter_if_it_has_the_torch_that_drifted(
    command: str,
    installed: str | None,
    told: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    script = tmp_path / "env/bin/pytest"
    script.parent.mkdir(parents=True)
    script.touch()
    monkeypatch.setattr(sys, "executable", str(script.with_name("python")))
    monkeypatch.setattr("pytest_compilecontract.cli.runs.version_of", {"torch": installed}.get)
    broken = an_entry(replace(HOLDING, graph_breaks=(BREAK,)))
    write_receipt(Path("run/receipt.json"), a_receipt(broken, environment=replace(NEW, torch="2.15.0+cpu")))

    main([command, str(FOLDER / "torch2.13-cpu"), "run"])

    (line,) = [line for line in capsys.readouterr().out.splitlines() if "rerun: " in line]
    assert line.startswith(f"  rerun: {told} --compile-contracts ")
