"""Contracts that `testpaths` leaves out are named, with the command that holds them; commands keep their paths."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from pathlib import Path

import pytest

CONTRACT = "def test_block(compile_lane):\n    pass\n"
LEFT_OUT = "contracts outside testpaths, not collected: {}; to run them: {}pytest --compile-contracts -- {}"


@pytest.fixture
def project(pytester: pytest.Pytester) -> pytest.Pytester:
    pytester.makeini("[pytest]\ntestpaths = tests\n")
    for name, text in (
        ("tests/test_gpt.py", "def test_gpt():\n    pass\n"),
        ("contracts/test_gpt_compile.py", CONTRACT),
        ("contracts/deep/test_block.py", CONTRACT),
        ("contracts/helper.py", CONTRACT),
        ("docs/test_page.py", "def test_page():\n    pass\n"),
        (".venv/lib/test_theirs.py", CONTRACT),
        ("other/pyvenv.cfg", ""),
        ("other/test_theirs.py", CONTRACT),
    ):
        file = pytester.path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return pytester


def test_contracts_outside_of_testpaths_are_named(project: pytest.Pytester) -> None:
    ran = project.runpytest("--compile-contracts")

    ran.stdout.fnmatch_lines([LEFT_OUT.format("contracts (2 files)", "*", "contracts")])


def test_the_command_starts_pytest_as_it_was_started(project: pytest.Pytester) -> None:
    ran = project.run(sys.executable, "-m", "pytest", "--compile-contracts")

    ran.stdout.fnmatch_lines([LEFT_OUT.format("contracts (2 files)", "python -m ", "contracts")])


def test_the_command_runs_in_a_shell_that_does_not_find_this_interpreter(project: pytest.Pytester) -> None:
    _environment(project.path / "env")
    (project.path / "contracts/test_gpt_compile.py").write_text("# compile_lane\ndef test_it_ran(): pass\n")
    (project.path / "contracts/deep/test_block.py").unlink()
    elsewhere = {**os.environ, "PATH": "/usr/bin:/bin"}

    ran = _shell("env/bin/python -m pytest --compile-contracts", project.path, elsewhere)

    (told,) = [line for line in ran.splitlines() if "; to run them: " in line]
    command = told.partition("; to run them: ")[2]
    assert command == "env/bin/python -m pytest --compile-contracts -- contracts"
    assert "1 passed" in _shell(command, project.path, elsewhere)


def _environment(folder: Path) -> None:
    """A virtual environment with the packages of this one, as it is before it is activated."""
    venv.create(folder, symlinks=True)
    (site,) = folder.glob("lib/python*/site-packages")
    (site / "these.pth").write_text("\n".join(path for path in sys.path if path))


def _shell(command: str, folder: Path, environment: dict[str, str]) -> str:
    ran = subprocess.run(
        command, shell=True, cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=120
    )
    return ran.stdout + ran.stderr


def test_a_file_at_the_top_is_named_by_itself(project: pytest.Pytester) -> None:
    (project.path / "test_top.py").write_text(CONTRACT)

    ran = project.runpytest("--compile-contracts")

    told = LEFT_OUT.format("contracts (2 files), test_top.py (1 file)", "*", "contracts test_top.py")
    ran.stdout.fnmatch_lines([told])


@pytest.mark.parametrize("words", [["tests"], ["contracts", "--co"]], ids=["paths", "paths and --co"])
def test_who_gives_paths_means_them(project: pytest.Pytester, words: list[str]) -> None:
    ran = project.runpytest("--compile-contracts", *words)

    ran.stdout.no_fnmatch_line("*testpaths leaves out*")


def test_without_the_option_nothing_is_looked_for(project: pytest.Pytester) -> None:
    ran = project.runpytest()

    ran.stdout.no_fnmatch_line("*testpaths leaves out*")


@pytest.mark.parametrize(
    ("where", "as_module", "told"),
    [
        (
            "mini.py",
            False,
            "mini.py is in this folder, *: run python -m pytest --compile-contracts -- contracts, or set *",
        ),
        (
            "mini/__init__.py",
            False,
            "mini is in this folder, *: run python -m pytest --compile-contracts -- contracts, or *",
        ),
        ("src/mini.py", True, 'mini.py is in src, *: set pythonpath = [[]"src"] in the settings of pytest'),
    ],
)
def test_a_module_that_is_not_on_the_path_is_told_with_what_finds_it(
    where: str, as_module: bool, told: str, pytester: pytest.Pytester
) -> None:
    test = "import mini.inner\n\ndef test_block(compile_lane):\n    pass\n"
    for name, text in ((where, ""), ("contracts/test_block.py", test)):
        (pytester.path / name).parent.mkdir(parents=True, exist_ok=True)
        (pytester.path / name).write_text(text)

    # Pytester has its folder on the path, which pytest by itself has not.
    without = "import os, sys; sys.path[:] = [each for each in sys.path if each not in ('', os.getcwd())]"
    start = ["-m", "pytest"] if as_module else ["-c", f"{without}; import pytest; pytest.console_main()"]
    ran = pytester.run(sys.executable, *start, "--compile-contracts", "contracts")

    ran.stdout.fnmatch_lines([told])


def test_a_module_missing_in_a_package_that_was_found_is_pytests_to_tell(pytester: pytest.Pytester) -> None:
    pytester.mkpydir("mini")
    pytester.makepyfile("import mini.missing\n\ndef test_block(compile_lane):\n    pass\n")

    ran = pytester.run(sys.executable, "-m", "pytest", "--compile-contracts")

    ran.stdout.fnmatch_lines(["*No module named 'mini.missing'*"])
    ran.stdout.no_fnmatch_line("*does not look for modules*")


def test_a_module_that_is_nowhere_is_pytests_to_tell(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("import nowhere_at_all\n\ndef test_block(compile_lane):\n    pass\n")

    ran = pytester.runpytest("--compile-contracts")

    ran.stdout.no_fnmatch_line("*does not look for modules*")
    ran.assert_outcomes(errors=1)
