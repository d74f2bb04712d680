"""What the README has a reader paste and run does what it says."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest
from support.sessions import forked_pythons, run_session

from pytest_compilecontract.cli.main import main

pytestmark = pytest.mark.torch

ROOT = Path(__file__).parent.parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES = sorted((ROOT / "docs").glob("*.md"))


def blocks(kind: str) -> list[str]:
    return re.findall(rf"```{kind}\n(.*?)```", README, flags=re.DOTALL)


def test_the_first_contract_is_held_as_it_is_shown(tmp_path: Path) -> None:
    for block in blocks("python"):
        name, _, code = block.partition("\n")
        file = tmp_path / name.removeprefix("# ")
        file.parent.mkdir(exist_ok=True)
        file.write_text(code)
    shown = next(block for block in blocks("console") if "test_block.py" in block)
    command, *said = shown.splitlines()

    ran = run_session(
        [sys.executable, *command.split()[2:], "-p", "no:cacheprovider"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )

    assert ran.returncode == 0
    held = next(line for line in said if " held: " in line)
    assert held.split() in [line.split() for line in ran.stdout.splitlines()]
    assert said[-1] in ran.stdout


def test_the_tutorial_s_model_shows_what_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tutorial = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")
    name, _, code = re.findall(r"```python\n(.*?)```", tutorial, flags=re.DOTALL)[0].partition("\n")
    (tmp_path / name.removeprefix("# ")).write_text(code)
    monkeypatch.chdir(tmp_path)

    with forked_pythons():
        ended = main(["check", "net:sample", "--lanes=capture"])

    said = capsys.readouterr().out
    assert "held  capture  4 graphs, 1 break, 1 recompile" in said
    assert said.splitlines()[-1] == "compilecontract init net:sample --lanes=capture --out contracts/test_sample.py"
    assert ended == 0


@pytest.mark.parametrize("page", [ROOT / "README.md", *PAGES], ids=lambda page: page.name)
def test_every_link_leads_somewhere(page: Path) -> None:
    text = page.read_text(encoding="utf-8")

    missing = [
        link
        for link in re.findall(r"\]\(([^)#\s]+)?(#[^)\s]+)?\)", text)
        if not link[0].startswith("http") and not leads(page, *link)
    ]

    assert missing == []


def leads(page: Path, file: str, anchor: str) -> bool:
    target = page.parent / file if file else page
    if not target.exists():
        return False
    return not anchor or target.suffix != ".md" or anchor[1:] in anchors(target)


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_the_readme_is_short() -> None:
    words = re.sub(r"```.*?```", "", README, flags=re.DOTALL).split()

    assert len(words) <= 1000
