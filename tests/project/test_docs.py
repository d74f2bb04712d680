"""What the pages of docs/ say in the words of the code, they say as the code does."""

from __future__ import annotations

import re
from pathlib import Path

from pytest_compilecontract.facts.measurement import RECOMPILE_KINDS

DOCS = Path(__file__).resolve().parent.parent.parent / "docs"


def test_the_kinds_of_recompiles_are_explained_as_on_the_page_of_a_run() -> None:
    page = (DOCS / "contracts.md").read_text(encoding="utf-8")

    rows = page.partition("| kind | why code was compiled again |")[2].partition("\n\n")[0]

    assert dict(re.findall(r"^\| `(\w+)` \| (.+) \|$", rows, re.MULTILINE)) == RECOMPILE_KINDS
