"""Samples: a target and its calls, returned by a user's function named as "module:factory"."""

from __future__ import annotations

import keyword
import traceback
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_compilecontract.calls import call
from pytest_compilecontract.errors import UsageError

if TYPE_CHECKING:
    from pytest_compilecontract.measure.compile_lane import CompileLane

# Where a sample's own fault is left for who asked for the run.
FAULT = "fault"
EXPECTED = "expected (target, [call, ...]), each call a tuple of arguments, call(...) or a tensor"


def parted(name: str) -> tuple[str, str]:
    """The module and the factory of "module:factory".

    Raises:
        UsageError: the name does not have that form, or cannot be imported.
    """
    module, _, factory = name.partition(":")
    parts = [*module.split("."), factory]
    if not all(part.isidentifier() for part in parts):
        raise UsageError(f"expected MODULE:FACTORY such as models.block:sample, got {name!r}")
    if found := next(filter(keyword.iskeyword, parts), ""):
        raise UsageError(f"{name}: {found!r} is a Python keyword, so no test can import it (use another name)")
    return module, factory


def sampled(name: str) -> tuple[Any, tuple[object, ...]]:
    """What the factory returns: a function or module that is not compiled yet, and its calls.

    Raises:
        UsageError: the factory cannot be imported, raises, or returns something else.
    """
    module_name, factory_name = parted(name)
    try:
        module = import_module(module_name)
    except Exception as error:
        raise UsageError(f"{name}: cannot import {module_name!r}: {_said(error)}") from error
    factory = getattr(module, factory_name, None)
    if not callable(factory):
        made = [each for each, value in vars(module).items() if _is_factory(value, module_name)]
        known = f" (functions there: {', '.join(made[:8])})" if made else ""
        what = "is not callable" if hasattr(module, factory_name) else "is not there"
        raise UsageError(f"{name}: {factory_name!r} {what}{known}")
    try:
        made = factory()
    except Exception as error:
        raise UsageError(f"{name} raised {_said(error)}") from error
    return _checked(name, made)


def hold(name: str, lane: CompileLane, *, train: bool, folder: Path) -> None:
    """Run the sample in a lane, like the body of a test; an error in it is also written to the folder.

    Raises:
        UsageError: the sample cannot be created, or eager itself raises.
    """
    try:
        _run(name, lane, train=train)
    except UsageError as error:
        (folder / FAULT).write_text(str(error), encoding="utf-8")
        raise


def _run(name: str, lane: CompileLane, *, train: bool) -> None:
    from pytest_compilecontract.measure.endings import BrokenLane

    target, calls = sampled(name)
    try:
        if train:
            lane.train(target, calls)
        else:
            lane.run(target, *calls)
    except BrokenLane:
        raise
    except UsageError as error:
        raise UsageError(f"{name}: {error}") from error
    except Exception as error:
        raise UsageError(f"{name}: eager itself raises {_said(error)}") from error


def _checked(name: str, made: object) -> tuple[object, tuple[object, ...]]:
    if not isinstance(made, tuple) or len(made) != 2:
        raise UsageError(f"{name} returned {_shape(made)}: {EXPECTED}")
    target, calls = made
    if not callable(target) or isinstance(target, type):
        got = f"the class {target.__name__}" if isinstance(target, type) else type(target).__name__
        raise UsageError(f"{name} returned {got} as the target: expected a function or module")
    if not isinstance(calls, (list, tuple)) or not calls or not all(_is_call(each, calls) for each in calls):
        one = f" (for one call with these arguments: [{_shape(calls)}])" if isinstance(calls, tuple) and calls else ""
        raise UsageError(f"{name} returned {_shape(calls)} as the calls: {EXPECTED}{one}")
    return target, tuple(calls)


def _is_call(value: object, calls: object) -> bool:
    if isinstance(value, (tuple, call)):
        return True
    from pytest_compilecontract.measure.tensors import is_tensor

    # A tuple of tensors may be meant as one call.
    return isinstance(calls, list) and is_tensor(value)


def _is_factory(value: object, module_name: str) -> bool:
    return callable(value) and not isinstance(value, type) and getattr(value, "__module__", None) == module_name


def _shape(value: object) -> str:
    """A description of a value without its contents, which may be long."""
    if isinstance(value, (list, tuple)):
        inside = ", ".join(type(each).__name__ for each in value[:4]) + (", ..." if len(value) > 4 else "")
        if isinstance(value, list):
            return f"[{inside}]"
        return f"({inside},)" if len(value) == 1 else f"({inside})"
    return type(value).__name__


def _said(error: BaseException) -> str:
    from pytest_compilecontract.measure.probes.source import OWN, Paths

    paths = Paths(Path.cwd())
    frames = [each for each in traceback.extract_tb(error.__traceback__) if not each.filename.startswith(OWN)]
    # The innermost line that is the user's to change: what he called may have raised far below it.
    own = [each for each in frames if paths.is_users(each.filename)]
    at = f" (line {own[-1].lineno} of {Path(own[-1].filename).name})" if own else ""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}{': ' if text else ''}{text}{at}"
