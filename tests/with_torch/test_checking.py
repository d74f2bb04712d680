"""`compilecontract check` and `init`: from a sample to a contract that holds, and what is said of one at fault."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.sessions import forked_pythons, run_session

from pytest_compilecontract import processes
from pytest_compilecontract.cli import check
from pytest_compilecontract.cli.main import main

pytestmark = pytest.mark.torch

SOURCE = """\
import time

import torch


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(8, 8)

    def forward(self, x):
        x = self.linear(x)
        if x.sum() > 0:
            x = x + 1
        return x.relu()


def sample():
    return Block(), [(torch.randn(2, 8),), (torch.randn(2, 8),)]


def misfit():
    return Block(), [(torch.randn(2, 9),)]


def sizes():
    return torch.sin, [(torch.randn(2),), (torch.randn(3),)]


def tensors():
    return Block(), [torch.randn(2, 8), torch.randn(2, 8)]


def eager_frame(x):
    with open("/dev/null"):
        torch._dynamo.graph_break()
        return x + 1


def allowed():
    return lambda x: eager_frame(x.sin()), [(torch.randn(2),), (torch.randn(2),)]


def one_call():
    return torch.add, (torch.randn(2), torch.randn(2))


def failing():
    raise ValueError("no weights")


def bare():
    return Block(), torch.randn(2, 8)


def one_argument():
    return Block(), (torch.randn(2, 8),)


def endless():
    time.sleep(600)
"""


@pytest.fixture(autouse=True)
def _model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("blocks.py").write_text(SOURCE)


@pytest.fixture(autouse=True)
def _forked(request: pytest.FixtureRequest) -> Iterator[None]:
    """The child of all tests but one, which shows that a Python of its own does."""
    if request.function is test_a_tensor_is_the_one_argument_of_a_call:
        yield
        return
    with forked_pythons():
        yield


def test_check_says_which_contract_holds(capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["check", "blocks:sample", "--lanes=capture"])

    said = capsys.readouterr()
    assert said.err == ""
    out = re.sub(r"(?m)^ +hint: .*\n", "", said.out)  # torch's words
    assert re.sub(r"^torch \S+", "torch", out) == (
        "torch\n"
        "blocks:sample\n"
        "  held  capture  2 graphs, 1 break, 0 recompiles, 4 ops, 4 executed\n"
        "lanes: 1 held\n"
        "\n"
        "this contract holds today in capture, over 2 calls:\n"
        "\n"
        "@compile_contract(max_recompiles=0, max_graph_breaks=1)\n"
        "\n"
        "what it allows:\n"
        "  max_graph_breaks, in capture\n"
        "    blocks.py:13 in forward: if x.sum() > 0:\n"
        "      Data-dependent branching\n"
        "\n"
        "to write it as a test:\n"
        "compilecontract init blocks:sample --lanes=capture --out contracts/test_sample.py\n"
    )
    assert code == 0


def test_init_writes_what_a_limit_tolerates_above_it(tmp_path: Path) -> None:
    out = tmp_path / "test_written.py"

    code = main(["init", "blocks:sample", "--lanes=capture", f"--out={out}"])

    assert code == 0
    assert (
        "@compile_contract(\n"
        "    max_recompiles=0,\n"
        "    # this tolerates a graph break at blocks.py:13 in forward: if x.sum() > 0:\n"
        "    max_graph_breaks=1,\n"
        ")\n"
        "def test_written(compile_lane):\n"
    ) in out.read_text()


def test_check_says_where_no_call_was_steady(capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["check", "blocks:sizes", "--lanes=capture"])

    out = capsys.readouterr().out
    assert (
        "\neach of the 2 calls compiled: repeat the last, to check that compiled code is reused; if it compiles again, "
        "the guard of its recompile says why\n" in out
    )
    assert code == 0


def test_a_tensor_is_the_one_argument_of_a_call(capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["check", "blocks:tensors", "--lanes=capture"])

    assert "this contract holds today in capture, over 2 calls:" in capsys.readouterr().out
    assert code == 0


def test_check_says_what_its_code_means_where_a_lane_is_violated(capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["check", "blocks:allowed", "--lanes=capture"])

    out = capsys.readouterr().out
    assert "\n  violated  capture  " in out
    assert (
        "violated in capture only by the default limits: the contract below allows it, so the exit code is 0\n"
    ) in out
    assert code == 0


def test_a_module_named_as_the_sessions_own_test_would_be_is_found(capsys: pytest.CaptureFixture[str]) -> None:
    Path("test_sample.py").write_text(SOURCE)

    code = main(["check", "test_sample:sample", "--lanes=capture"])

    said = capsys.readouterr()
    assert said.err == ""
    assert said.out.splitlines()[-1] == (
        "compilecontract init test_sample:sample --lanes=capture --out contracts/test_sample_compile.py"
    )
    assert code == 0


def test_what_init_writes_holds(capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["init", "blocks:sample", "--train", "--lanes=aot", "--out=contracts/test_block.py"])

    command = capsys.readouterr().out.splitlines()[-1]
    assert code == 0
    assert command == "python -m pytest --compile-contracts --contract-lanes=aot -- contracts/test_block.py"
    ran = run_session([sys.executable, *command.split()[1:]])
    assert "1 of 1 held" in ran.stdout
    assert ran.returncode == 0


def test_init_replaces_nothing_unasked(capsys: pytest.CaptureFixture[str]) -> None:
    Path("test_block.py").write_text("mine")

    code = main(["init", "blocks:sample", "--out=test_block.py"])

    assert capsys.readouterr().err == "compilecontract: test_block.py exists (--force replaces it)\n"
    assert Path("test_block.py").read_text() == "mine"
    assert code == 2


EXPECTED = "expected (target, [call, ...]), each call a tuple of arguments, call(...) or a tensor"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["blocks:failing"], "blocks:failing raised ValueError: no weights (line 49 of blocks.py)"),
        (["blocks:bare"], f"blocks:bare returned Tensor as the calls: {EXPECTED}"),
        (
            ["blocks:one_call"],
            f"blocks:one_call returned (Tensor, Tensor) as the calls: {EXPECTED} "
            "(for one call with these arguments: [(Tensor, Tensor)])",
        ),
        (
            ["blocks:one_argument"],
            f"blocks:one_argument returned (Tensor,) as the calls: {EXPECTED} "
            "(for one call with these arguments: [(Tensor,)])",
        ),
        (
            ["blocks:simple"],
            "blocks:simple: 'simple' is not there "
            "(functions there: sample, misfit, sizes, tensors, eager_frame, allowed, one_call, failing)",
        ),
        (["block:sample"], "block:sample: cannot import 'block': ModuleNotFoundError: No module named 'block'"),
        (["blocks"], "expected MODULE:FACTORY such as models.block:sample, got 'blocks'"),
        (["blocks:sample", "--timeout=0"], "--timeout: expected seconds, got 0"),
        (
            ["blocks:endless", "--timeout=0.01"],
            "blocks:endless: took longer than 0.01 s (no lane had started); --timeout changes the limit",
        ),
    ],
    ids=[
        "raises",
        "wrong calls",
        "one call for a list",
        "one argument for a list",
        "no such name",
        "no such module",
        "no colon",
        "no time",
        "too little time",
    ],
)
def test_a_sample_at_fault_is_one_line(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(check, "QUIET_SECONDS", 600.0)
    # A session that is forked has started a lane by the time of the usual look.
    monkeypatch.setattr(processes, "POLL_SECONDS", 0.01)

    code = main(["check", *words, "--lanes=capture"])

    assert capsys.readouterr() == ("", f"compilecontract: {message}\n")
    assert code == 2


def test_a_sample_without_an_end_is_told_with_its_lane(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(check, "QUIET_SECONDS", 0.0)

    code = main(["check", "blocks:endless", "--timeout=5", "--lanes=capture"])

    # A busy machine may take the five seconds to start.
    said = r"compilecontract: blocks:endless: took longer than 5 s \({}\); --timeout changes the limit\n"
    told = rf"check: lane capture, 1 of 1, \d+ s\n{said.format('it was in lane capture')}"
    assert re.fullmatch(f"{told}|{said.format('no lane had started')}", capsys.readouterr().err)
    assert code == 2


@pytest.mark.parametrize("chosen", [[], ["--lanes=capture"]])
def test_who_chose_no_lanes_and_waits_is_told_which_are_quick(
    chosen: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(check, "SLOW_SECONDS", 0.0)

    main(["check", "blocks:endless", "--timeout=5", *chosen])

    said = capsys.readouterr().err
    assert said.count("--lanes capture,aot") == ("no lane had started" not in said and not chosen)


def test_a_call_that_eager_itself_refuses_is_the_samples_fault(capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["check", "blocks:misfit", "--lanes=capture"])

    said = capsys.readouterr().err
    assert said.startswith("compilecontract: blocks:misfit: eager itself raises RuntimeError: ")
    assert "mat1 and mat2 shapes cannot be multiplied" in said  # torch 2.15 puts the operator before it
    assert said.endswith(" (line 12 of blocks.py)\n")
    assert code == 2


def test_modes_puts_the_lanes_side_by_side(capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["modes", "blocks:sample", "--lanes=capture,aot"])

    said = capsys.readouterr()
    lines = said.out.splitlines()
    assert (code, said.err) == (0, "")
    assert lines[0].endswith(": blocks:sample")
    assert lines[1].split() == ["capture", "aot"]
    assert lines[2].split() == ["verdict", "held", "held"]
    assert [line.split()[-2] for line in lines if line.startswith(("compiling ", "steady call"))] != []
    assert "  capture, aot: compiling, caches warm: only Inductor's graphs are in torch's compile caches" in lines


def test_modes_of_a_sample_at_fault_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["modes", "blocks:failing", "--lanes=capture"])

    assert code == 2
    assert capsys.readouterr().err.startswith("compilecontract: blocks:failing raised ValueError: no weights")
