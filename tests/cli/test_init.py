"""What `compilecontract check` and `init` write and print, whatever the names are. Nothing is measured here."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from support.receipts import HOLDING, NEW, an_entry
from support.sessions import run_session

from pytest_compilecontract.cli import check as checking
from pytest_compilecontract.cli.main import main
from pytest_compilecontract.facts.receipt import Receipt


class Recording:
    """What a test does with its lane."""

    def __init__(self) -> None:
        self.ran: list[tuple[Any, ...]] = []

    def run(self, target: Any, *calls: Any) -> None:
        self.ran.append((target, *calls))


@pytest.fixture(autouse=True)
def _project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "blocks", raising=False)


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sample that holds in the lane `capture`."""
    receipt = Receipt(
        plugin="0.1.0",
        created="2026-01-31T12:00:00Z",
        environments={"here": NEW},
        defaults={},
        entries=(an_entry(lane="capture", measurement=HOLDING, environment="here"),),
    )
    monkeypatch.setattr(checking, "measured", lambda _: receipt)


@pytest.mark.parametrize(
    "factory",
    [
        "sample",
        "_sample",
        "target",
        "calls",
        "compile_contract",
        "compile_lane",
        "call",
        "test_sample",
        "test_block",
        "setup_module",
        "pytest_plugins",
        "match",
    ],
)
@pytest.mark.usefixtures("measured")
def test_what_init_writes_runs_whatever_the_factory_is_called(factory: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("blocks.py").write_text(f"def {factory}():\n    return len, [('ab',)]\n")

    assert main(["init", f"blocks:{factory}", "--out=contracts/test_block.py"]) == 0

    collected = run_session([sys.executable, "-m", "pytest", "-q", "--collect-only", "--no-header", "contracts"])
    assert collected.stdout.splitlines()[0] == "contracts/test_block.py::test_block"
    assert "1 test collected" in collected.stdout
    spec = importlib.util.spec_from_file_location("written", "contracts/test_block.py")
    assert spec is not None
    assert spec.loader is not None
    written = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(written)
    lane = Recording()
    written.test_block(lane)
    assert lane.ran == [(len, ("ab",))]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["class:sample", "--out=test_block.py"],
            "class:sample: 'class' is a Python keyword, so no test can import it (use another name)",
        ),
        (
            ["models.import.block:sample", "--out=test_block.py"],
            "models.import.block:sample: 'import' is a Python keyword, so no test can import it (use another name)",
        ),
        (
            ["blocks:None", "--out=test_block.py"],
            "blocks:None: 'None' is a Python keyword, so no test can import it (use another name)",
        ),
        (
            ["blocks:sample", "--out=test_it's-odd.py"],
            """--out: expected letters, digits and _ as in test_block.py, got "test_it's-odd.py\"""",
        ),
        (
            ["blocks:sample", "--out=contracts/test_block.v2.py"],
            "--out: expected letters, digits and _ as in test_block.py, got 'test_block.v2.py'",
        ),
        (["blocks:sample", "--out=block.py"], "--out: pytest collects test_NAME.py, got 'block.py'"),
        (
            ["test_blocks:sample", "--out=contracts/test_blocks.py"],
            "--out: test_blocks.py would hide the sample's module 'test_blocks' (use another name)",
        ),
        (
            ["contracts.test_blocks:sample", "--out=contracts/test_blocks.py", "--force"],
            "--out: test_blocks.py would hide the sample's module 'contracts.test_blocks' (use another name)",
        ),
    ],
    ids=[
        "keyword for a module",
        "keyword in a path",
        "keyword for a factory",
        "quote and dash",
        "dot",
        "not collected",
        "the module itself",
        "the module in its package",
    ],
)
def test_a_name_that_cannot_be_written_is_refused(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code = main(["init", *words])

    assert capsys.readouterr() == ("", f"compilecontract: {message}\n")
    assert code == 2
    assert not list(Path.cwd().rglob("*.py"))


def test_a_name_that_another_test_has_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    Path("tests").mkdir()
    Path("tests/test_gpt.py").touch()

    code = main(["init", "blocks:sample", "--out=contracts/test_gpt.py"])

    said = capsys.readouterr().err
    assert said.startswith("compilecontract: --out: tests/test_gpt.py has the same name, and pytest distinguishes ")
    assert "(use another name, such as contracts/test_gpt_compile.py)" in said
    assert code == 2
    assert not Path("contracts").exists()


@pytest.mark.usefixtures("measured")
def test_a_test_of_that_name_in_a_package_is_none_of_its_name(capsys: pytest.CaptureFixture[str]) -> None:
    Path("tests").mkdir()
    for name in ("test_gpt.py", "__init__.py"):
        Path("tests", name).touch()

    main(["init", "blocks:sample", "--out=contracts/test_gpt.py"])

    assert Path("contracts/test_gpt.py").is_file(), capsys.readouterr().err


@pytest.mark.usefixtures("measured")
def test_the_command_that_holds_it_is_quoted(capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["init", "blocks:sample", "--out=my contracts/test_block.py"])

    assert capsys.readouterr().out.splitlines()[-2:] == [
        "wrote my contracts/test_block.py, hold it with:",
        "python -m pytest --compile-contracts --contract-lanes=capture -- 'my contracts/test_block.py'",
    ]
    assert code == 0


@pytest.mark.parametrize(
    ("sample", "out"),
    [
        ("blocks:sample", "contracts/test_sample.py"),
        ("blocks:test_sample", "contracts/test_sample.py"),
        ("test_sample:sample", "contracts/test_sample_compile.py"),
    ],
    ids=["plain", "named as a test", "of a module of that name"],
)
@pytest.mark.usefixtures("measured")
def test_check_proposes_a_file_that_init_writes(sample: str, out: str, capsys: pytest.CaptureFixture[str]) -> None:
    main(["check", sample])
    proposal = capsys.readouterr().out.splitlines()[-1]

    assert proposal == f"compilecontract init {sample} --out {out}"
    assert main(proposal.split()[1:]) == 0


@pytest.mark.usefixtures("measured")
def test_check_proposes_no_name_that_another_test_has(capsys: pytest.CaptureFixture[str]) -> None:
    Path("tests").mkdir()
    Path("tests/test_sample.py").write_text("")

    main(["check", "blocks:sample"])

    proposal = capsys.readouterr().out.splitlines()[-1]
    assert proposal == "compilecontract init blocks:sample --out contracts/test_sample_compile.py"
    assert main(proposal.split()[1:]) == 0


Collect = Callable[[str], "subprocess.CompletedProcess[str]"]


@pytest.fixture
def collect(monkeypatch: pytest.MonkeyPatch) -> Collect:
    """The session of `check`, up to what it collects."""

    def run(sample: str) -> subprocess.CompletedProcess[str]:
        found: list[subprocess.CompletedProcess[str]] = []

        def watched(command: Sequence[str], *, variables: dict[str, str], **_: object) -> int:
            ran = subprocess.run(
                [*command, "--collect-only"],
                env=variables,
                capture_output=True,
                text=True,
                check=False,
                start_new_session=True,
            )
            found.append(ran)
            return ran.returncode

        monkeypatch.setattr(checking, "watched", watched)
        main(["check", sample, "--lanes=mine"])
        return found[0]

    return run


def test_what_lies_around_the_temporary_folder_has_no_say(
    collect: Collect, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    around = tmp_path / "around"
    around.mkdir()
    (around / "pytest.ini").write_text("[pytest]\naddopts = --no-such-option\n")
    (around / "conftest.py").write_text("raise RuntimeError('read')\n")
    (around / "strange.py").write_text("raise RuntimeError('read')\n")
    monkeypatch.setattr("tempfile.tempdir", str(around))
    monkeypatch.setenv("PYTEST_PLUGINS", "strange")
    Path("pyproject.toml").write_text('[tool.compilecontract.lanes.mine]\nbackend = "eager"\n')

    ran = collect("blocks:sample")

    assert "::test_sample[mine]\n" in ran.stdout
    assert (ran.returncode, ran.stderr) == (0, "")
    assert sorted(each.name for each in around.iterdir() if each.name != "__pycache__") == [
        "conftest.py",
        "pytest.ini",
        "strange.py",
    ]


def test_no_module_of_the_project_has_the_name_of_the_generated_test(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    Path("test_sample.py").write_text("def made():\n    return len, [('ab',)]\n")
    said: list[str] = []

    def watched(command: Sequence[str], *, variables: dict[str, str], **_: object) -> int:
        folder = os.path.dirname(command[-1])
        code = (
            f"import sys; sys.path.insert(0, {folder!r}); from pytest_compilecontract.cli.sample import sampled; "
            "print(sampled('test_sample:made'))"
        )
        said.append(subprocess.check_output([sys.executable, "-c", code], env=variables, text=True))
        return 0

    monkeypatch.setattr(checking, "watched", watched)
    main(["check", "test_sample:made"])

    assert said == ["(<built-in function len>, (('ab',),))\n"]
