"""One corpus case through what people hold torch.compile with today. catch_rate.py runs it, a process a case.

    python other_tools.py CASE.py RIGHT

RIGHT is JSON: the backend, the breaks and recompiles of the right outcome, the exception that both runs are to raise,
and whether the case sets a stance of its own. Each tool is used as its users write it. Printed is JSON: for each tool
"green", "red", "count N" where its users pin a number, or why it cannot be used: a tool that can only say "none" says
nothing of a case whose right outcome has one.

Each tool runs in a fork of its own, so that none sees what another compiled, and a crash is that tool's alone.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import torch._dynamo
from torch._dynamo.testing import CompileCounterWithBackend

SECONDS = 600
GREEN, RED = "green", "red"


class Count(Exception):  # noqa: N818 - what a tool gives
    """The number that a test with this tool pins."""


class Unusable(Exception):  # noqa: N818 - says that a tool is
    """The tool cannot say what is right of this case."""


def load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"case_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    case = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(case)
    return case


def options(case: ModuleType, right: dict[str, Any]) -> dict[str, Any]:
    return {"backend": right["backend"], **getattr(case, "KW", {})}


def made(case: ModuleType, wrap: Callable[[Any], Any]) -> list[Any]:
    """Build anew, wrap the target, make the calls; what they give."""
    target, calls = case.build()
    run = wrap(target)
    if hasattr(case, "drive"):
        return list(case.drive(run, target, calls))
    return [run(*each) for each in calls]


def inputs(case: ModuleType) -> tuple[Any, list[tuple[Any, ...]]]:
    """The target, and the arguments that the case calls it with, for a tool that makes the calls itself."""
    target, calls = case.build()
    if not hasattr(case, "drive"):
        return target, calls
    seen: list[tuple[Any, ...]] = []

    def noting(*args: Any, **kwargs: Any) -> Any:
        if kwargs:
            raise Unusable("the calls have keywords")
        seen.append(args)
        return target(*args)

    case.drive(noting, target, calls)
    return case.build()[0], seen


def fullgraph(case: ModuleType, right: dict[str, Any]) -> None:
    if right["breaks"]:
        raise Unusable("the right outcome has a break")
    made(case, lambda target: torch.compile(target, **{**options(case, right), "fullgraph": True}))


def error_on_recompile(case: ModuleType, right: dict[str, Any]) -> None:
    if right["recompiles"]:
        raise Unusable("the right outcome has a recompile")
    with torch._dynamo.config.patch(error_on_recompile=True):
        made(case, lambda target: torch.compile(target, **options(case, right)))


def fail_on_recompile(case: ModuleType, right: dict[str, Any]) -> None:
    """The first call warms up; the stance holds from the second on."""
    if right.get("stance"):
        raise Unusable("the case sets a stance of its own")
    if right["recompiles"]:
        raise Unusable("the right outcome has a recompile")

    def wrap(target: Any) -> Any:
        compiled = torch.compile(target, **options(case, right))
        warm = False

        def run(*args: Any, **kwargs: Any) -> Any:
            nonlocal warm
            with torch.compiler.set_stance("fail_on_recompile") if warm else contextlib.nullcontext():
                warm = True
                return compiled(*args, **kwargs)

        return run

    made(case, wrap)


def frame_count(case: ModuleType, right: dict[str, Any]) -> None:
    counting = CompileCounterWithBackend(right["backend"])
    made(case, lambda target: torch.compile(target, **{**options(case, right), "backend": counting}))
    raise Count(counting.frame_count)


def explain(case: ModuleType, right: dict[str, Any]) -> None:
    target, calls = inputs(case)
    raise Count(torch._dynamo.explain(target)(*calls[0]).graph_break_count)


def assert_close(case: ModuleType, right: dict[str, Any]) -> None:
    torch.manual_seed(0)
    expected = made(case, lambda target: target)
    torch.manual_seed(0)
    given = made(case, lambda target: torch.compile(target, **options(case, right)))
    ours, theirs = list(numbers(given)), list(numbers(expected))
    assert len(ours) == len(theirs)
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other)


def numbers(value: Any) -> Iterator[Any]:
    if isinstance(value, torch.Tensor | bool | int | float | complex):
        yield value
    elif isinstance(value, dict):
        for each in value.values():
            yield from numbers(each)
    elif isinstance(value, list | tuple):
        for each in value:
            yield from numbers(each)


def pytest_torch() -> ModuleType:
    try:
        import pytest_torch as package
    except ImportError as error:
        raise Unusable(f"not installed ({error})") from error
    return package


def no_graph_breaks(case: ModuleType, right: dict[str, Any]) -> None:
    package = pytest_torch()
    if right["breaks"]:
        raise Unusable("the right outcome has a break")
    target, calls = inputs(case)
    for each in calls:
        package.assert_no_graph_breaks(target, each, backend=right["backend"])


def no_recompiles(case: ModuleType, right: dict[str, Any]) -> None:
    package = pytest_torch()
    if right.get("stance"):
        raise Unusable("the case sets a stance of its own")
    target, calls = inputs(case)
    package.assert_no_recompiles(target, *calls, max_recompiles=right["recompiles"])


def compile_parity(case: ModuleType, right: dict[str, Any]) -> None:
    package = pytest_torch()
    target, calls = inputs(case)
    for each in calls:
        package.assert_compile_parity(target, each, **options(case, right))


TOOLS: dict[str, Callable[[ModuleType, dict[str, Any]], None]] = {
    "fullgraph=True": fullgraph,
    "error_on_recompile": error_on_recompile,
    'set_stance("fail_on_recompile")': fail_on_recompile,
    "CompileCounter.frame_count": frame_count,
    "explain().graph_break_count": explain,
    "assert_close of outputs": assert_close,
    "pytest-torch: assert_no_graph_breaks": no_graph_breaks,
    "pytest-torch: assert_no_recompiles": no_recompiles,
    "pytest-torch: assert_compile_parity": compile_parity,
}


def used(tool: str, path: Path, right: dict[str, Any]) -> str:
    """The tool's outcome, in a fork; a fork that dies or does not end is red."""
    read, write = os.pipe()
    pid = os.fork()
    if not pid:
        os.close(read)
        signal.alarm(SECONDS)
        os.write(write, outcome(tool, path, right).encode()[:4000])
        os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        said = pipe.read().decode()
    os.waitpid(pid, 0)
    return said or f"{RED}: the process died"


def outcome(tool: str, path: Path, right: dict[str, Any]) -> str:
    try:
        case = load(path)
        with torch._dynamo.config.patch(**getattr(case, "CFG", {})):
            TOOLS[tool](case, right)
            if right.get("raises"):
                return f"{RED}: nothing was raised"
    except Unusable as error:
        return f"not used: {error}"
    except Count as error:
        return f"count {error}"
    except Exception as error:  # noqa: BLE001 - whatever it raises, the test would be red
        if right.get("raises") in {type(each).__name__ for each in (error, error.__cause__)}:
            return GREEN  # written with pytest.raises
        said = traceback.format_exception_only(error)[-1].strip().splitlines()
        return f"{RED}: {said[0][:200]}" if said else RED
    return GREEN


def main() -> int:
    path, right = Path(sys.argv[1]), json.loads(sys.argv[2])
    torch.set_num_threads(1)
    # What the first compile imports is imported once, for all forks.
    torch.compile(lambda x: x + 1, backend=right["backend"])(torch.ones(1))
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    print(json.dumps({tool: used(tool, path, right) for tool in TOOLS}))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
