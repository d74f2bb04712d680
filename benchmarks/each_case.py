"""Run corpus cases, each in a process of its own; catch_rate.py calls it with the interpreter of one torch release.

    python each_case.py JOBS.json

torch and pytest are imported once, and every job is a fork of that. A job is a folder and either arguments for pytest
or a case for other_tools.py. A line of JSON is printed as each ends.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import other_tools
import pytest
import torch
import torch._dynamo

sys.path.append(str(Path(__file__).resolve().parent.parent / "tests"))

from support.forking import end_at_once, fork, say_in

STEP = 0.02


def main() -> int:
    jobs = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    torch.set_num_threads(1)
    torch.compile(lambda x: x + 1, backend="aot_eager")(torch.ones(1))
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    for job in jobs:
        started = time.monotonic()
        ended = run(job)
        if ended < 0 and job["kind"] == "pytest" and ended != -signal.SIGKILL:
            # The case took its process with it. A worker of pytest-xdist is then what dies, and pytest lives to tell.
            job["arguments"] += ["-n", "1"]
            run(job)
        print(json.dumps({"job": job["name"], "ended": ended, "seconds": time.monotonic() - started}), flush=True)
    return 0


def run(job: dict[str, Any]) -> int:
    """The exit code of the job's process; minus a signal's number if it died of one, SIGKILL being the time limit."""
    pid = fork(lambda: inside(job), ends=end_at_once)
    deadline = time.monotonic() + job["seconds"]
    while True:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > deadline:
            os.killpg(pid, signal.SIGKILL)
            return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        time.sleep(STEP)


def inside(job: dict[str, Any]) -> int:
    os.setpgid(0, 0)
    folder = Path(job["folder"])
    say_in(folder / f"{job['kind']}.txt")
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(folder / "inductor")
    if job["kind"] == "pytest":
        os.chdir(folder / "project")
        # Nothing of it is rewritten: it was imported before pytest started.
        return int(pytest.main(["-W", "ignore::pytest.PytestAssertRewriteWarning", *job["arguments"]]))
    sys.path.append(job["pytest_torch"])
    found = {tool: other_tools.used(tool, Path(job["case"]), job["right"]) for tool in other_tools.TOOLS}
    (folder / "other_tools.json").write_text(json.dumps(found, indent=1), encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
