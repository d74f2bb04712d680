"""What the process of an XLA lane answers, and a Python that answers it, with no XLA behind it."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from pytest_compilecontract.facts.lanes import BUILT_IN
from pytest_compilecontract.files.codec import record
from pytest_compilecontract.plugin.answer import Answer, Event, Report

from .receipts import HOLDING

LANE = BUILT_IN["xla-lazy"]
AGAIN = "OF THIS TEST"
# It answers as a Python with torch_xla does, and as pytest what stands in a file; `then` is run after it.
CHILD = """#!{python} -SE
import json, os, signal, subprocess, sys, time
from pathlib import Path
if sys.argv[1] == "-c":
    print({installed!r})
    sys.exit()
(place,) = [each.partition("=")[2] for each in sys.argv if each.startswith("--contract-rank=")]
folder = Path(place.partition(":")[2])
path, text = folder / "rank0.jsonl", Path({answers!r}).read_text()
launched = json.loads((folder / "launch.json").read_text())
text = text.replace("NOW", str(time.perf_counter())).replace("{again}", launched["test"])
def write():
    path.write_text(text)
{then}
"""
INSTALLED = json.dumps({"python": "3.11.7", "packages": {"torch": "2.9.0", "torch_xla": "2.9.0"}, "plugin": True})


def a_line(event: Event, report: dict[str, Any] | None = None, **changes: object) -> str:
    told = {**record(Answer(format=1, event=event, at_seconds=0.0)), "report": report, **changes}
    return json.dumps(told).replace('"at_seconds": 0.0', '"at_seconds": NOW')


def a_report(**changes: object) -> dict[str, Any]:
    told = Report(test=AGAIN, lane=LANE.name, outcome="passed", phase="call", measurements=(HOLDING,))
    return {**record(told), **changes}


def lines(*reports: dict[str, Any], more: str = "") -> str:
    """A whole answer with these reports; `more` comes before its end."""
    told = [a_line("begins"), *(a_line("measured", each) for each in reports), *filter(None, [more]), a_line("left")]
    return "\n".join(told) + "\n"


def that_answers(folder: Path, answers: str, then: str = "write()") -> Path:
    """A Python that answers so as pytest, or does something else."""
    (folder / "answers").write_text(answers, encoding="utf-8")
    names = {"python": sys.executable, "installed": INSTALLED, "again": AGAIN, "then": then}
    file = folder / "python"
    file.write_text(CHILD.format(answers=str(folder / "answers"), **names), encoding="utf-8")
    file.chmod(0o755)
    return file
