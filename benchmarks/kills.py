"""Kill recording runs at random moments, and see that nothing is half written and nothing measured is lost.

    python benchmarks/kills.py --kills 200 --log kills.jsonl

The signals take turns, and so do a run by itself and one with `-n 2`. The moment is drawn evenly over the length that
such a run has by itself; a run that has ended before is no kill, and is drawn again. After each kill, once every
process of the run is gone:

* every JSON file that is there parses, and is what it should be;
* what was reported as done before is in the receipt, or in the receipt that `compilecontract recover` writes;
* nothing else than receipt, journals and a file that was being written lies beside it.

The next run begins where this one was killed. Every fourth is let go to its end: it holds every contract, and leaves no
journal and no such file of any run before it.

A run by itself is forked from a process that has imported torch, or most of the kills would hit that import; the
workers of the others are processes of their own, and import it. With a log that is there already it goes on where it
ended.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import platform
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pytest_compilecontract.baselines.document import read_baseline
from pytest_compilecontract.baselines.store import DEFAULTS
from pytest_compilecontract.cli import main as compilecontract
from pytest_compilecontract.errors import ContractError
from pytest_compilecontract.facts.receipt import PAGE
from pytest_compilecontract.files.receipt import read_receipt

sys.path.append(str(Path(__file__).resolve().parent.parent / "tests"))

from support.forking import end_at_once, fork, say_in

SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
TESTS = 8
CONTRACTS = """
import pytest
import torch

def f(x):
    return torch.relu(x) + 1

@pytest.mark.parametrize("size", range(1, {count} + 1))
def test_{name}(compile_lane, size):
    compile_lane.run(f, (torch.ones(size),))
"""
# Says by itself, in files of its own, what was reported: in a worker when it is measured, in the controller when it
# has arrived. Last, so that the plugin has heard of it before.
CONFTEST = """
import os
import pytest

@pytest.hookimpl(trylast=True)
def pytest_runtest_logreport(report):
    if report.when == "call" and report.passed:
        with open(os.environ["DONE"], "a") as file:
            file.write(report.nodeid + "\\n")
"""
OPTIONS = (
    "--compile-contracts",
    "--contract-lanes=capture",
    "--contract-record",
    "--contract-report=report",
    "-q",
    "-p",
    "no:cacheprovider",
)


class Project:
    """The scratch project, and runs of it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.report = folder / "report"
        self.baselines = folder / "contracts" / "baselines"
        self.done = folder / "done"
        (folder / "pyproject.toml").write_text("", encoding="utf-8")
        (folder / "conftest.py").write_text(CONFTEST, encoding="utf-8")
        for name in ("one", "two"):
            text = CONTRACTS.format(name=name, count=TESTS // 2)
            (folder / f"test_{name}.py").write_text(text, encoding="utf-8")

    def start(self, *, workers: bool) -> int:
        """Start a run, in a session of its own; its process."""
        self.done.unlink(missing_ok=True)
        environ = {**os.environ, "DONE": str(self.done)}
        if workers:
            with (self.folder / "log").open("wb") as log:
                return subprocess.Popen(
                    [sys.executable, "-m", "pytest", *OPTIONS, "-n", "2"],
                    cwd=self.folder,
                    env=environ,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                ).pid

        def run() -> int:
            os.setsid()
            os.chdir(self.folder)
            os.environ.update(environ)
            say_in(self.folder / "log")
            return int(pytest.main([*OPTIONS]))

        return fork(run, ends=end_at_once)

    def whole(self, *, workers: bool = False) -> float:
        """A run that is let go to its end; its seconds."""
        began = time.monotonic()
        code = os.waitstatus_to_exitcode(os.waitpid(self.start(workers=workers), 0)[1])
        if code:
            raise SystemExit(f"a run by itself ended with {code}:\n{(self.folder / 'log').read_text()}")
        return time.monotonic() - began

    def faults_after(self, began: float) -> Iterator[str]:
        """What is wrong after a kill of a run that began then."""
        yield from self._half_written()
        done = set(self.done.read_text().split()) if self.done.exists() else set()
        file = self.report / "receipt.json"
        if (self.report / "journal.jsonl").exists():
            # In a copy, so that the next run meets what was left.
            copy = self.folder / "copy"
            shutil.rmtree(copy, ignore_errors=True)
            shutil.copytree(self.report, copy)
            file = copy / "receipt.json"
            with contextlib.redirect_stdout(io.StringIO()):
                code = compilecontract(["recover", str(copy)])
            if code:
                if done:
                    yield f"recover ended with {code}, and {len(done)} were done"
                return
        elif not file.exists() or file.stat().st_mtime < began:
            if done:
                yield f"no journal and no receipt of this run, and {len(done)} were done"
            return
        held = {entry.test for entry in read_receipt(file).entries if entry.verdict == "held"}
        if lost := done - held:
            yield f"lost: {sorted(lost)}"

    def faults_after_the_next(self) -> Iterator[str]:
        """What is wrong after a run that came to its end."""
        self.whole()
        yield from self._half_written()
        held = [entry.test for entry in read_receipt(self.report / "receipt.json").entries if entry.verdict == "held"]
        if len(held) != TESTS:
            yield f"the next run held {len(held)} of {TESTS}"
        left = sorted(path.name for path in self._files() if path.suffix != ".json" and path.name != PAGE)
        if left:
            yield f"the next run left {left}"

    def _half_written(self) -> Iterator[str]:
        for path in self._files():
            try:
                if path.name == "receipt.json":
                    read_receipt(path)
                elif path.suffix == ".json" and path.parent.name == DEFAULTS:
                    json.loads(path.read_bytes())["defaults"]
                elif path.suffix == ".json":
                    read_baseline(path)
                elif path.name == PAGE:
                    if not path.read_text(encoding="utf-8").rstrip().endswith("</html>"):
                        yield f"half written: {path}"
                elif path.suffix not in (".jsonl", ".tmp"):
                    yield f"nobody knows what {path} is"
            except (ContractError, ValueError, KeyError) as error:
                yield f"half written: {error}"

    def _files(self) -> list[Path]:
        folders = (self.report, self.baselines)
        return [path for folder in folders for path in sorted(folder.rglob("*")) if path.is_file()]


def killed(project: Project, how: signal.Signals, after: float, *, workers: bool, group: bool) -> bool:
    """Kill a run after so many seconds, and wait till all of it is gone; whether it was alive."""
    child = project.start(workers=workers)
    time.sleep(after)
    if os.waitpid(child, os.WNOHANG)[0]:
        return False
    try:
        (os.killpg if group else os.kill)(child, how)
    except ProcessLookupError:
        os.kill(child, how)  # forked this moment, it leads no group yet
    os.waitpid(child, 0)
    # Workers end once they notice that nobody listens; one that hangs is no matter of what is written.
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        try:
            os.killpg(child, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.05)
    os.killpg(child, signal.SIGKILL)
    return True


def main() -> int:
    parser = argparse.ArgumentParser(description="Kill recording runs at random moments.")
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--log", type=Path, default=Path("kills.jsonl"), help="a line a kill; it is gone on with")
    parser.add_argument("--whole", type=int, default=4, help="after how many kills a run is let go to its end")
    parser.add_argument("--seed", type=int, default=1)
    chosen = parser.parse_args()
    # Once, for all that are forked.
    import torch
    import torch._dynamo

    torch.compile(lambda x: x + 1, backend="eager")(torch.ones(1))
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()

    before = chosen.log.read_text(encoding="utf-8").splitlines() if chosen.log.exists() else []
    done: list[dict[str, Any]] = [json.loads(line) for line in before]
    with tempfile.TemporaryDirectory(prefix="kills-") as name:
        project = Project(Path(name))
        project.whole()  # what it finds in no cache yet takes longer
        lengths: dict[bool, float] = {}
        print(f"torch {torch.__version__}, {platform.platform()}")
        while len(done) < chosen.kills:
            number = len(done)
            chance = random.Random(f"{chosen.seed} {number} {time.time_ns()}")
            workers, how = number % 2 == 1, SIGNALS[number // 2 % len(SIGNALS)]
            if workers not in lengths:
                lengths[workers] = project.whole(workers=workers)
                print(f"a run {'with -n 2' if workers else 'by itself'} takes {lengths[workers]:.1f} s", flush=True)
            if chance.random() < 0.5:
                shutil.rmtree(project.report, ignore_errors=True)
            after, group = chance.uniform(0, lengths[workers]), how == signal.SIGINT or chance.random() < 0.5
            began = time.time()
            if not killed(project, how, after, workers=workers, group=group):
                continue
            reported = len(set(project.done.read_text().split())) if project.done.exists() else 0
            strays = sum(path.suffix == ".tmp" for path in Path(name).rglob("*"))
            faults = list(project.faults_after(began))
            whole = (number + 1) % chosen.whole == 0
            if whole:
                faults += project.faults_after_the_next()
            line = {
                "signal": how.name,
                "workers": workers,
                "group": group,
                "after": round(after, 3),
                "reported": reported,
                "strays": strays,
                "next": whole,
                "faults": faults,
            }
            done.append(line)
            with chosen.log.open("a", encoding="utf-8") as log:
                log.write(json.dumps(line) + "\n")
            print(f"{len(done)}/{chosen.kills}", json.dumps(line), flush=True)
    told = Counter((each["signal"], "-n 2" if each["workers"] else "by itself") for each in done)
    for (how_, where), count in sorted(told.items()):
        print(f"{how_} {where}: {count}")
    measured = sum(each["reported"] for each in done)
    print(f"{sum(each.get('next', True) for each in done)} times the next run was let go to its end")
    print(f"{measured} lanes were reported before the kills, {sum(each['strays'] for each in done)} files left over")
    wrong = [each for each in done if each["faults"]]
    print(f"{len(done) - len(wrong)} of {len(done)} kills without a fault")
    return bool(wrong)


if __name__ == "__main__":
    raise SystemExit(main())
