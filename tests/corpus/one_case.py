"""Hold a corpus case in a lane. A case that cannot be used is one verdict, in one line."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

CASES = Path(__file__).parent / "cases"


def hold(compile_lane: Any, name: str, *, raises: str = "") -> None:
    """Run a case eager and compiled as it says. `raises` is the exception that both are to raise."""
    case = loaded(name)
    if hasattr(case, "contract"):
        case.contract(compile_lane)
    elif not raises:
        _run(compile_lane, case, name)
    else:
        try:
            _run(compile_lane, case, name)
        except Exception as error:
            if type(error).__name__ != raises:
                raise
        else:
            pytest.fail(f"case {name}: neither run raised {raises}", pytrace=False)


def _run(compile_lane: Any, case: ModuleType, name: str) -> None:
    if not hasattr(case, "drive"):
        target, calls = built(case, name)
        compile_lane.run(target, *calls)
        return

    def body(compile: Any) -> Any:
        target, calls = built(case, name)
        return case.drive(compile(target), target, calls)

    compile_lane.compare(body)


def loaded(name: str) -> ModuleType:
    """The case as a module of its own; skips where a package is missing, fails where it cannot be imported."""
    path = CASES / f"{name}.py"
    spec = importlib.util.spec_from_file_location(f"case_{name}", path)
    assert spec is not None
    assert spec.loader is not None
    case = importlib.util.module_from_spec(spec)
    # As of any program that was imported: Dynamo looks up there where a function is from.
    sys.modules[spec.name] = case
    try:
        spec.loader.exec_module(case)
    except ModuleNotFoundError as error:
        pytest.skip(f"case {name} needs the package {error.name!r}")
    except Exception as error:  # noqa: BLE001 - a case is somebody's program
        pytest.fail(f"case {name} cannot be imported: {type(error).__name__}: {error}", pytrace=False)
    if not callable(getattr(case, "build", None)):
        pytest.fail(f"case {name} has no build()", pytrace=False)
    return case


def built(case: ModuleType, name: str) -> tuple[Any, list[tuple[Any, ...]]]:
    """What build() gives, or a failure that says what it gave."""
    try:
        made = case.build()
    except Exception as error:  # noqa: BLE001 - a case is somebody's program
        pytest.fail(f"case {name}: build() raised {type(error).__name__}: {error}", pytrace=False)
    if not isinstance(made, tuple) or len(made) != 2 or not callable(made[0]) or not isinstance(made[1], list | tuple):
        pytest.fail(f"case {name}: build() gave {type(made).__name__!r}, not (target, calls)", pytrace=False)
    return made
