"""Upgrades without torch and without a network: a uv and interpreters that do what a plan says.

A plan is what an interpreter is to show: what it has, and for each time that pytest is started in it the lines that are
told, what pytest prints, and how the process ends.
"""

from __future__ import annotations

import json
import stat
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pytest_compilecontract.facts.measurement import Measurement
from pytest_compilecontract.files.receipt import entry_to_data, environment_to_data
from support.receipts import HOLDING, OLD, an_entry

PYTHON = """#!{python}
import json, os, signal, sys, time
here = os.path.dirname(os.path.abspath(__file__))
plan = json.load(open(os.path.join(here, "plan.json")))
if sys.argv[1] == "-c":
    for facts in plan["probe"]:
        print("\\n" + json.dumps({{"probe": 1, **facts}}), flush=True)
    if plan.get("probe_dies"):
        os.kill(os.getpid(), signal.SIGSEGV)
    sys.exit(0)
with open(os.path.join(here, "calls"), "a") as calls:
    calls.write(json.dumps(sys.argv[1:]) + "\\n")
before = len(open(os.path.join(here, "calls")).readlines()) - 1
run = plan["runs"][min(before, len(plan["runs"]) - 1)]
told = next(word.partition("=")[2] for word in sys.argv if word.startswith("--contract-events="))
with open(told, "a") as file:
    for event in run["events"]:
        file.write((json.dumps(event) if isinstance(event, dict) else event) + "\\n")
for file, text in run.get("writes", {{}}).items():
    os.makedirs(os.path.dirname(file) or ".", exist_ok=True)
    open(file, "w").write(text)
print(run.get("says", ""), flush=True)
time.sleep(run.get("seconds", 0))
if run["code"] < 0:
    os.kill(os.getpid(), -run["code"])
sys.exit(run["code"])
"""
UV = """#!{python}
import json, os, shutil, sys
here = os.path.dirname(os.path.abspath(__file__))
words = sys.argv[1:]
with open(os.path.join(here, "uv-calls"), "a") as calls:
    calls.write(json.dumps(words) + "\\n")
if words[0] == "venv" and words[words.index("--python") + 1] == "3.99":
    print("error: No interpreter found for Python 3.99 in managed installations or search path", file=sys.stderr)
    sys.exit(2)
if words[0] == "venv":
    folder = os.path.join(words[-1], "bin")
    os.makedirs(folder)
    shutil.copy(os.path.join(here, "a-python"), os.path.join(folder, "python"))
elif words[:2] == ["pip", "compile"]:
    target = words[words.index("--output-file") + 1]
    lines = open(words[-1]).read().split("\\n")
    torch = next(line for line in lines if line.startswith("torch=="))
    if not os.path.exists(os.path.join(here, torch[7:] + ".json")):
        print("error: No solution found when resolving dependencies", file=sys.stderr)
        print(f"  cause: Because there is no version of {{torch}} and you require {{torch}}, we can conclude that your "
              "requirements are unsatisfiable.", file=sys.stderr)
        print("hint: none", file=sys.stderr)
        sys.exit(1)
    open(target, "a").write(torch + "\\n")
elif "--requirements" in words:
    locked = open(words[-1]).read().split("\\n")
    torch = next(line for line in locked if line.startswith("torch=="))
    if torch == "torch==2.13.0" and "cu130" in words:
        print("error: Failed to download `torch==2.13.0`", file=sys.stderr)
        sys.exit(1)
    python = words[words.index("--python") + 1]
    shutil.copy(os.path.join(here, torch[7:] + ".json"), os.path.join(os.path.dirname(python), "plan.json"))
"""
LANES = ("aot", "capture")


def a_test(lane: str) -> str:
    return f"tests/test_block.py::test_block[{lane}]"


def an_event(
    lane: str, measurement: Measurement | None = HOLDING, torch: str = "2.11.0", **changes: Any
) -> dict[str, Any]:
    entry = an_entry(measurement, lane=lane, test=a_test(lane), environment=f"torch {torch}", **changes)
    environment = {**environment_to_data(OLD), "torch": torch}
    return {"event": "entry", "entry": entry_to_data(entry), "environment": environment}


def started(lane: str) -> dict[str, Any]:
    entry = an_entry(
        None,
        lane=lane,
        test=a_test(lane),
        environment="unknown",
        verdict="broken",
        limits={},
        lane_settings={"backend": "aot_eager"},
    )
    return {"event": "start", "test": a_test(lane), "entry": entry_to_data(entry)}


def finished(lane: str) -> dict[str, Any]:
    return {"event": "finish", "test": a_test(lane)}


def a_course(torch: str, measurement: Measurement | None = HOLDING, lanes: tuple[str, ...] = LANES) -> list[Any]:
    """The events of a run that came to its end, every lane with this measurement."""
    events: list[Any] = [{"event": "collected", "count": len(lanes)}]
    for lane in lanes:
        events += [started(lane), an_event(lane, measurement, torch), finished(lane)]
    return [*events, {"event": "end", "code": 0}]


def a_run(events: list[Any], code: int = 0, **more: Any) -> dict[str, Any]:
    return {"events": events, "code": code, **more}


def a_plan(
    torch: str | None, *runs: dict[str, Any], packages: dict[str, str] | None = None, **more: Any
) -> dict[str, Any]:
    found = {"pytest": "8.4.0", "numpy": "2.3.5", **({"torch": torch} if torch else {}), **(packages or {})}
    probe: list[dict[str, Any]] = [{"python": "3.11.7", "packages": found}, {"plugin": ""}]
    probe.append({"torch": torch, "failed": "" if torch else "ImportError: libcuda.so.1: cannot open"})
    return {"probe": probe, "runs": list(runs) or [a_run(a_course(torch or ""))], **more}


@dataclass(kw_only=True, slots=True)
class Bench:
    """A folder with a project, a uv, and interpreters."""

    folder: Path
    project: Path = field(init=False)
    programs: Path = field(init=False)

    def __post_init__(self) -> None:
        self.project, self.programs = self.folder / "project", self.folder / "programs"
        self.project.mkdir()
        self.programs.mkdir()
        _write_program(self.programs / "a-python", PYTHON)

    def with_uv(self, **plans: dict[str, Any]) -> None:
        """A uv that can install these releases of torch, named as v2_11_0, and no other."""
        _write_program(self.programs / "uv", UV)
        for name, plan in plans.items():
            version = name.removeprefix("v").replace("_", ".")
            (self.programs / f"{version}.json").write_text(json.dumps(plan))

    def interpreter(self, name: str, plan: dict[str, Any]) -> Path:
        """An interpreter that is there already."""
        folder = self.folder / name
        folder.mkdir()
        _write_program(folder / "python", PYTHON)
        (folder / "plan.json").write_text(json.dumps(plan))
        return folder / "python"

    def uv_calls(self) -> list[list[str]]:
        return [json.loads(line) for line in (self.programs / "uv-calls").read_text().splitlines()]

    def pytest_calls(self, interpreter: Path) -> list[list[str]]:
        return [json.loads(line) for line in (interpreter.parent / "calls").read_text().splitlines()]


def _write_program(path: Path, text: str) -> None:
    path.write_text(text.format(python=sys.executable))
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
