"""Contracts in several ranks, whole sessions: which rank is named where one fails, and that nothing of it is left."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from support.sessions import forked_pythons, run_session
from support.shared import made_once

pytestmark = pytest.mark.sessions

HEADER = """
import os
import signal
import time

import pytest
import torch
import torch.distributed as dist

from pytest_compilecontract import compile_contract

two = compile_contract(ranks=2, process_group="gloo", lanes=["aot"], max_graph_breaks=0)


def grown(x):
    return torch.relu(x) + 1


def summed(x):
    y = x * (dist.get_rank() + 1)
    dist.all_reduce(y)
    return y
"""
CONTRACTS = (
    HEADER
    + """
@two
def test_holds(compile_lane):
    assert dist.get_world_size() == int(os.environ["WORLD_SIZE"]) == 2
    assert compile_lane.run(summed, torch.ones(4)).graphs == 1


@two
def test_raises(compile_lane):
    if dist.get_rank() == 1:
        raise ValueError("only here")
    dist.barrier()


@two
def test_is_killed(compile_lane):
    dist.barrier()
    if dist.get_rank() == 1:
        os.kill(os.getpid(), signal.SIGSEGV)
    dist.all_reduce(torch.ones(3))


@two
def test_leaves(compile_lane):
    if dist.get_rank() == 0:
        os._exit(0)
    dist.barrier()


@two
def test_damages_its_report(compile_lane, request):
    compile_lane.run(summed, torch.ones(4))
    rank, _, folder = str(request.config.getoption("--contract-rank")).partition(":")
    if rank == "1":
        with open(os.path.join(folder, "rank1.jsonl"), "a") as file:
            # More than the rank itself writes over.
            file.write("oh no\\n" * 100_000)


@two
def test_one_hangs(compile_lane):
    if dist.get_rank() == 1:
        time.sleep(1000)
    dist.barrier()


@two
def test_all_hang(compile_lane):
    dist.recv(torch.ones(3), 1 - dist.get_rank())


@two
def test_differs(compile_lane):
    calls = [(torch.ones(2, 3),), (torch.ones(3, 4),)]
    compile_lane.run(grown, *calls[: 1 + dist.get_rank()])


@compile_contract(ranks=2, lanes=["aot"], max_recompiles=0)
def test_is_violated(compile_lane):
    compile_lane.run(grown, (torch.ones(2, 3),), (torch.ones(3, 4),))


@two
def test_is_wrong_on_one(compile_lane):
    def off(compile):
        compile(grown)(torch.ones(3))
        return torch.ones(3) * (1 + (compile is not None and "compile" in compile.__name__ and dist.get_rank()))

    compile_lane.compare(off)


@two
def test_raises_once_compiled(compile_lane):
    def bad(target):
        compiled = compile_lane.compile(target)

        def called(x):
            if dist.get_rank() == 1:
                raise ValueError("compiled only")
            return compiled(x)

        return called

    compile_lane.run(summed, torch.ones(4), compile_with=bad)


@compile_contract(ranks=2, process_group="gloo", lanes=["aot"], max_saved_ratio=1.0)
def test_one_refuses_hooks(compile_lane):
    def body(compile):
        x = torch.ones(4, requires_grad=True)
        y = compile(torch.exp)(x)
        if dist.get_rank() == 1:
            with torch.autograd.graph.disable_saved_tensors_hooks("not here"):
                y = y * 2
        dist.all_reduce(y.detach())
        y.sum().backward()
        return x.grad

    compile_lane.compare(body)


@two
@pytest.mark.xfail(reason="known", strict=True)
def test_is_expected_to_fail(compile_lane):
    raise ValueError("known")


@two
def test_is_skipped(compile_lane):
    pytest.skip("not here")


@compile_contract(ranks=2)
def test_compiles_by_itself():
    torch.compile(summed, backend="aot_eager")(torch.ones(3))
"""
)
TWO = """
@two
def test_holds(compile_lane):
    compile_lane.run(summed, torch.ones(4))
"""
SLEEPING = """
@two
def test_sleeps(compile_lane):
    with open(os.path.join(os.environ["PIDS"], str(os.getpid())), "w"):
        time.sleep(1000)
"""


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "pytest", "--compile-contracts", "-p", "no:cacheprovider", *arguments]


def variables(temporary: Path) -> dict[str, str]:
    """Those of this process, with a folder of temporary files in which nothing is to be left."""
    temporary.mkdir()
    return {**os.environ, "TMPDIR": str(temporary), "OMP_NUM_THREADS": "1"}


def running(text: str) -> list[str]:
    """The commands of processes that have a text in them."""
    found = []
    for each in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            said = each.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if text in said and "contract-rank" in said:
            found.append(said)
    return found


def left_in(temporary: Path) -> list[str]:
    return [each.name for each in temporary.iterdir() if "ranks" in each.name]


def gone_within(seconds: float, text: str) -> bool:
    deadline = time.monotonic() + seconds
    while running(text) and time.monotonic() < deadline:
        time.sleep(0.2)
    return not running(text)


class Ran:
    """A session that is over: its receipt by test, and what it printed."""

    def __init__(self, folder: Path, said: str) -> None:
        receipt = json.loads((folder / "receipt.json").read_text(encoding="utf-8"))
        self.entries: dict[str, dict[str, Any]] = {
            each["contract"].rpartition("::")[2]: each for each in receipt["entries"]
        }
        self.said = said


def run_contracts(folder: Path) -> str:
    """What a session of the contracts above printed; it leaves its report in this folder, and no process."""
    (folder / "test_of_ranks.py").write_text(CONTRACTS, encoding="utf-8")
    env = variables(folder / "tmp")

    done = run_session(
        command("-n2", "-rxX", "--contract-timeout=8", "--contract-report=report", "test_of_ranks.py"),
        cwd=folder,
        env=env,
        timeout=1200,
    )

    assert running(str(folder)) == []
    assert left_in(folder / "tmp") == []
    return done.stdout


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    folder, said = made_once(tmp_path_factory, "ranks", run_contracts)
    return Ran(folder / "report", said)


def test_a_lane_that_holds_has_what_each_rank_measured(ran: Ran) -> None:
    entry = ran.entries["test_holds"]

    assert (entry["verdict"], entry["reason"]) == ("held", "")
    assert entry["limits"] == {"lanes": ["aot"], "max_graph_breaks": 0, "process_group": "gloo", "ranks": 2}
    assert entry["lane_settings"] == {"backend": "aot_eager", "process_group": "gloo", "ranks": 2}
    assert [each["rank"] for each in entry["ranks"]] == [0, 1]
    assert [each["measurement"]["graphs"] for each in entry["ranks"]] == [1, 1]
    assert entry["measurement"] == entry["ranks"][0]["measurement"]


def test_what_ranks_would_have_to_call_together_is_not_measured(ran: Ran) -> None:
    measured = ran.entries["test_holds"]["measurement"]

    assert measured["operators_run"] is None
    assert measured["unmeasured"]["operators_run"] == "ranks make only the calls that all of them make"
    assert measured["numerics"]["differences"] == []


def test_the_rank_that_raises_is_named_and_not_its_neighbour(ran: Ran) -> None:
    entry = ran.entries["test_raises"]

    assert entry["verdict"] == "broken"
    assert entry["reason"] == "rank 1: the test failed in call: ValueError: only here"
    assert entry["own_failure"] == {"phase": "call", "exception": "ValueError", "said": "only here"}
    assert entry["ranks"][0]["reason"] != ""
    assert 'raise ValueError("only here")' in ran.said


def test_the_rank_that_a_signal_ends_is_named(ran: Ran) -> None:
    assert ran.entries["test_is_killed"]["verdict"] == "broken"
    assert ran.entries["test_is_killed"]["reason"] == "rank 1: the test failed in call: died (SIGSEGV) without a report"


def test_the_rank_that_leaves_early_is_named(ran: Ran) -> None:
    assert ran.entries["test_leaves"]["reason"] == "rank 0: the test failed in call: ended with code 0 without a report"


def test_the_rank_whose_report_is_damaged_is_named_and_the_lane_is_not_held(ran: Ran) -> None:
    entry = ran.entries["test_damages_its_report"]

    assert entry["verdict"] == "broken"
    assert entry["reason"].startswith("rank 1: the test failed in call: its report cannot be read: line ")
    assert entry["ranks"][0]["measurement"] is not None
    assert entry["ranks"][1]["measurement"] is None


def test_the_rank_that_hangs_is_named_with_its_line(ran: Ran) -> None:
    reason = ran.entries["test_one_hangs"]["reason"]

    assert reason.startswith(
        "rank 1: the test failed in call: Failed: did not end within 8 s (--contract-timeout), at "
    )
    assert reason.endswith("in test_one_hangs")


def test_ranks_that_all_hang_are_ended_and_told_where_they_wait(ran: Ran) -> None:
    entry = ran.entries["test_all_hang"]

    assert entry["verdict"] == "broken"
    assert entry["reason"].startswith(
        "rank 0: the test failed in call: did not end in time, waiting in torch, called at "
    )
    assert [each["reason"].startswith("did not end in time, waiting in torch") for each in entry["ranks"]] == [True] * 2


def test_ranks_that_differ_violate_the_lane(ran: Ran) -> None:
    entry = ran.entries["test_differs"]
    (violation,) = entry["violations"]

    assert entry["verdict"] == "violated"
    assert violation["limit"] == "ranks agree (default)"
    assert violation["measured"] == "graphs, recompiles differ between ranks"
    assert ["graphs differ", "rank 0: 1 graph", "rank 1: 2 graphs"] in violation["facts"]


def test_a_violation_on_every_rank_is_said_once(ran: Ran) -> None:
    (violation,) = ran.entries["test_is_violated"]["violations"]

    assert (violation["limit"], violation["measured"]) == ("max_recompiles=0", 1)


def test_a_difference_on_one_rank_says_which(ran: Ran) -> None:
    (violation,) = ran.entries["test_is_wrong_on_one"]["violations"]

    assert violation["name"] == "numerics"
    assert violation["measured"].endswith(" on rank 1")


def test_a_lane_that_raises_on_one_rank_names_it_and_tells_of_the_others(ran: Ran) -> None:
    entry = ran.entries["test_raises_once_compiled"]
    violation = entry["violations"][0]

    assert entry["verdict"] == "broken"
    assert violation["limit"] == "no exception (default)"
    assert violation["measured"] == "raised ValueError on rank 1"
    assert violation["facts"][-1][0].startswith("then rank 0: ")


def test_a_rank_that_alone_refuses_hooks_on_saved_tensors_is_named_and_keeps_no_other_waiting(ran: Ran) -> None:
    entry = ran.entries["test_one_refuses_hooks"]

    assert entry["verdict"] == "broken"
    said = "max_saved_ratio: with hooks on saved tensors the run raises RuntimeError: not here"
    assert entry["reason"] == f"rank 1: the test failed in call: Failed: {said}"


def test_marks_and_skips_are_of_all_ranks(ran: Ran) -> None:
    assert "XFAIL" in ran.said
    assert (ran.entries["test_is_skipped"]["verdict"], ran.entries["test_is_skipped"]["reason"]) == (
        "unmeasured",
        "not here",
    )


def test_a_test_that_compiles_by_itself_has_ranks_too(ran: Ran) -> None:
    entry = ran.entries["test_compiles_by_itself"]

    assert (entry["verdict"], entry["lane"]) == ("held", "body")
    assert [each["measurement"]["graphs"] for each in entry["ranks"]] == [1, 1]


@pytest.mark.torch
def test_two_sessions_launch_ranks_at_once(tmp_path: Path) -> None:
    (tmp_path / "test_of_ranks.py").write_text(HEADER + TWO, encoding="utf-8")
    env = variables(tmp_path / "tmp")

    with forked_pythons(env):
        both = [
            subprocess.Popen(
                command(f"--contract-report=report{number}", "test_of_ranks.py"),
                cwd=tmp_path,
                env=env,
                stdout=subprocess.DEVNULL,
            )
            for number in range(2)
        ]

    assert [each.wait(300) for each in both] == [0, 0]
    for number in range(2):
        assert Ran(tmp_path / f"report{number}", "").entries["test_holds"]["verdict"] == "held"
    assert left_in(tmp_path / "tmp") == []


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="no /proc to see processes in")
def test_no_rank_outlives_its_parent(tmp_path: Path) -> None:
    (tmp_path / "test_of_ranks.py").write_text(HEADER + SLEEPING, encoding="utf-8")
    pids = tmp_path / "pids"
    pids.mkdir()
    parent = subprocess.Popen(
        command("test_of_ranks.py"),
        cwd=tmp_path,
        env={**variables(tmp_path / "tmp"), "PIDS": str(pids)},
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        deadline = time.monotonic() + 120
        while len([*pids.iterdir()]) < 2 and time.monotonic() < deadline:
            time.sleep(0.1)
        assert len(running(str(tmp_path))) == 2
    finally:
        parent.send_signal(signal.SIGKILL)
        parent.wait()

    assert gone_within(30, str(tmp_path))
    assert left_in(tmp_path / "tmp") == []


# Sessions that are ranks themselves

OF_A_GROUP = """
@compile_contract(lanes=["aot"], max_graph_breaks=0)
def test_holds(compile_lane):
    if not dist.is_initialized():
        dist.init_process_group("gloo")
    compile_lane.run(summed, torch.ones(4))
"""
SPAWNING = """
import os
import sys

import pytest
import torch.distributed as dist
import torch.multiprocessing


def go(rank):
    dist.init_process_group("gloo", store=dist.FileStore("store", 2), rank=rank, world_size=2)
    code = pytest.main(sys.argv[1:])
    dist.barrier()
    sys.stdout.flush()
    os._exit(code)


if __name__ == "__main__":
    torch.multiprocessing.spawn(go, nprocs=2)
"""
STARTERS = {
    "torchrun": ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m", "pytest"],
    "spawn": ["spawning.py"],
}


@pytest.mark.parametrize("starter", STARTERS.values(), ids=STARTERS)
def test_ranks_that_others_started_have_one_receipt(tmp_path: Path, starter: list[str]) -> None:
    (tmp_path / "test_of_ranks.py").write_text(HEADER + OF_A_GROUP, encoding="utf-8")
    (tmp_path / "spawning.py").write_text(SPAWNING, encoding="utf-8")
    options = command("--contract-report=report", "test_of_ranks.py")[3:]

    env = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}

    with forked_pythons(env):
        running = subprocess.Popen(
            [sys.executable, *starter, *options],
            cwd=tmp_path,
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
    said, _ = running.communicate(timeout=300)

    assert running.returncode == 0, said
    entry = Ran(tmp_path / "report", said).entries["test_holds"]
    assert entry["verdict"] == "held"
    assert [each["rank"] for each in entry["ranks"]] == [0, 1]
    assert [each["measurement"]["collectives"]["compiled"] for each in entry["ranks"]] == [
        [{"kind": "all_reduce", "times": 1}]
    ] * 2
    assert entry["measurement"]["unmeasured"]["overhead_seconds"] != ""
    assert sorted(each.name for each in (tmp_path / "report").glob("rank*")) == ["rank0", "rank1"]
