"""Which folders a session ran every test of, by the command in its receipt."""

from __future__ import annotations

import pytest

from pytest_compilecontract.facts.rerun import whole_folders


@pytest.mark.parametrize(
    ("session", "folders"),
    [
        pytest.param("", ("",), id="of a folder of baselines"),
        pytest.param("pytest --compile-contracts --contract-report=report -q", ("",), id="all"),
        pytest.param("python -m pytest --compile-contracts -n 2 -p no:cacheprovider", ("",), id="values of options"),
        pytest.param("python -m pytest --compile-contracts ./contracts/ tests", ("contracts", "tests"), id="folders"),
        pytest.param("pytest --compile-contracts contracts -k router", (), id="by keyword"),
        pytest.param("pytest --compile-contracts -mslow", (), id="by marker"),
        pytest.param("pytest --compile-contracts --contract-lanes=aot", (), id="some lanes"),
        pytest.param("pytest --compile-contracts --deselect tests/test_a.py", (), id="but one"),
        pytest.param("pytest --compile-contracts --last-failed", (), id="those that failed"),
        pytest.param("pytest --compile-contracts tests/test_a.py", (), id="a file"),
        pytest.param("pytest --compile-contracts contracts tests/test_a.py::test_a", (), id="one test"),
        pytest.param("pytest --compile-contracts ..", (), id="a folder that is not below"),
        pytest.param("pytest 'unclosed", (), id="no command"),
    ],
)
def test_the_folders_of_a_command(session: str, folders: tuple[str, ...]) -> None:
    assert whole_folders(session) == folders
