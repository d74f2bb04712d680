"""Baselines of several environments, beside a run: which of them it is compared with, and what is said of it."""

from __future__ import annotations

import json
import shutil
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


# In a matrix


def columns(document: str) -> list[str]:
    """The torch of each column of a matrix."""
    return [each["torch"] for run in json.loads(document)["columns"] for each in run["environments"].values()]


@pytest.mark.parametrize(
    ("environment", "shown"),
    [
        pytest.param(NEW, ["2.11.0", "2.13.0", "2.15.0"], id="of a CPU"),
        pytest.param(replace(GPU, torch="2.12.1"), ["2.11.0", "2.12.1"], id="of a GPU"),
    ],
)
def test_a_matrix_has_a_column_for_each_environment_of_the_runs_device(
    environment: Environment, shown: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    ran(environment)

    main(["matrix", str(FOLDER), "run", "--format=json"])

    assert columns(capsys.readouterr().out) == shown


def test_a_matrix_says_which_environments_it_leaves_out(capsys: pytest.CaptureFixture[str]) -> None:
    ran(NEW)

    main(["matrix", str(FOLDER), "run"])

    chose = f"{FOLDER}: chose torch2.11-cpu, torch2.13-cpu, of the device of run"
    assert capsys.readouterr().err == f"{chose}\n"


def test_baselines_of_one_device_are_columns_the_oldest_torch_first(capsys: pytest.CaptureFixture[str]) -> None:
    shutil.rmtree(FOLDER / "torch2.11-cuda-sm90")
    newest = replace(OLD, torch="2.15.0")
    # By its name alone it would be the first.
    oldest = replace(OLD, torch="2.9.0")
    for environment in (newest, oldest):
        Baselines(FOLDER, Path()).record([an_entry()], {"here": environment}, "all")

    code = main(["matrix", str(FOLDER), "--format=json"])

    said = capsys.readouterr()
    assert columns(said.out) == ["2.9.0", "2.11.0", "2.13.0", "2.15.0"]
    assert (code, said.err) == (0, "")


def test_of_several_devices_a_matrix_asks_which(capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["matrix", str(FOLDER)])

    names = "cpu: torch2.11-cpu, torch2.13-cpu; cuda-sm90: torch2.11-cuda-sm90"
    choose = f"compilecontract matrix {FOLDER}/torch2.11-cpu {FOLDER}/torch2.13-cpu"
    assert capsys.readouterr().err == (
        f"compilecontract: {FOLDER}: baselines of several devices ({names}): name those of one, as in {choose}, "
        "or add --across-devices\n"
    )
    assert code == 2


def test_where_one_environment_of_each_device_is_left_only_comparing_devices_helps(
    capsys: pytest.CaptureFixture[str],
) -> None:
    shutil.rmtree(FOLDER / "torch2.11-cpu")

    code = main(["matrix", str(FOLDER)])

    assert code == 2
    assert capsys.readouterr().err.endswith("sm90; cpu: torch2.13-cpu): add --across-devices\n")


def test_across_devices_all_are_columns(capsys: pytest.CaptureFixture[str]) -> None:
    main(["matrix", "--across-devices", str(FOLDER), "--format=json"])

    assert columns(capsys.readouterr().out) == ["2.11.0", "2.11.0", "2.13.0"]


def test_a_run_of_a_device_without_baselines_is_compared_with_none(capsys: pytest.CaptureFixture[str]) -> None:
    ran(replace(GPU, capability="8.0"))

    code = main(["matrix", str(FOLDER), "run"])

    assert code == 2
    assert ", and the other runs are of cuda-sm80: name those of one, as in " in capsys.readouterr().err


def test_a_column_of_baselines_has_the_name_of_its_environment(capsys: pytest.CaptureFixture[str]) -> None:
    other = Path("other")
    Baselines(other, Path()).record([an_entry()], {"here": OLD}, "all")

    main(["matrix", str(FOLDER / "torch2.11-cpu"), str(other / "torch2.11-cpu")])

    assert "torch2.11-cpu" in capsys.readouterr().out
