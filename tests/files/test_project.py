"""What a project says in pyproject.toml: which keys, of what kind, and one line for each that is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_compilecontract.errors import UsageError
from pytest_compilecontract.files.project import Project, read_project

TABLE = """
[tool.compilecontract]
report = "out/report"
baselines = "kept"
policy = "ci/policy.toml"
waivers = "ci/waivers.toml"
timeout = 90
repeat = 3
allow-unmeasured = true

[tool.compilecontract.lanes.whole]
backend = "aot_eager"
fullgraph = true
"""


def said(folder: Path, text: str) -> Project:
    (folder / "pyproject.toml").write_text(text, encoding="utf-8")
    return read_project(folder)


def test_every_key_is_read_and_paths_are_from_the_project(tmp_path: Path) -> None:
    found = said(tmp_path, TABLE)

    assert list(found.lanes) == ["whole"]
    assert (found.report, found.baselines) == (tmp_path / "out/report", tmp_path / "kept")
    assert (found.policy, found.waivers) == (tmp_path / "ci/policy.toml", tmp_path / "ci/waivers.toml")
    assert (found.timeout, found.repeat, found.allow_unmeasured) == (90.0, 3, True)


@pytest.mark.parametrize("text", [None, "", "[tool.other]\nreport = 1\n", "[tool.compilecontract]\n"])
def test_what_is_not_said_is_as_without_the_table(tmp_path: Path, text: str | None) -> None:
    assert (read_project(tmp_path) if text is None else said(tmp_path, text)) == Project()


@pytest.mark.parametrize(
    ("line", "message"),
    [
        pytest.param("report = 1", "report: expected a path, got 1", id="report"),
        pytest.param('report = "x\\u0000y"', "report: expected a path, got 'x\\x00y'", id="nul"),
        pytest.param('waivers = " "', "waivers: expected a path, got ' '", id="waivers"),
        pytest.param("timeout = 0", "timeout: expected a number of seconds above 0, got 0", id="timeout"),
        pytest.param("timeout = inf", "timeout: expected a number of seconds above 0, got inf", id="endless"),
        pytest.param("timeout = true", "timeout: expected a number of seconds above 0, got True", id="true"),
        pytest.param("repeat = 0", "repeat: expected a whole number from 1 to 1000, got 0", id="repeat"),
        pytest.param("repeat = 1.5", "repeat: expected a whole number from 1 to 1000, got 1.5", id="half"),
        pytest.param("allow-unmeasured = 1", "allow-unmeasured: expected true or false, got 1", id="allow"),
        pytest.param("lanes = 1", "lanes: expected a table, got 1 (to choose lanes: --contract-lanes)", id="lanes"),
    ],
)
def test_a_value_of_another_kind_is_refused(tmp_path: Path, line: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        said(tmp_path, f"[tool.compilecontract]\n{line}\n")

    assert str(caught.value) == f"pyproject.toml: tool.compilecontract.{message}"


def test_a_key_that_is_not_known_is_refused_with_the_one_that_is_meant(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        said(tmp_path, "[tool.compilecontract]\nallow_unmeasured = true\n")

    assert str(caught.value) == (
        "pyproject.toml: tool.compilecontract: unknown key 'allow_unmeasured', did you mean 'allow-unmeasured'? "
        "(known keys: allow-unmeasured, baselines, evidence, lanes, policy, repeat, report, timeout, waivers)"
    )
