"""What a backend raised: its own exception, the operator, and the user's line of that operator.

torch writes the last two into the exception's text: torch.fx where a graph is interpreted (`Interpreter._run_node`,
torch/fx/interpreter.py), Inductor where an operator is lowered (`LoweringException`, torch/_inductor/exc.py).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from pytest_compilecontract.errors import message_of
from pytest_compilecontract.facts.measurement import Location
from pytest_compilecontract.wording import first_said

from .source import Paths

_EXECUTING = re.compile(r"While executing (?P<node>%\S+) : .*?= (?P<call>\w+\[target=[^\]]+\])")
_LOWERED = re.compile(r"^\s*target: (?P<target>\S+)", re.MULTILINE)
_USERS = re.compile(r"^\s*(?:Original traceback:|Found from ?:|from user code:)\s*$", re.MULTILINE)
_FRAME = re.compile(r'^\s*File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<function>\S+)', re.MULTILINE)


@dataclass(frozen=True, kw_only=True, slots=True)
class BackendError:
    """The exception of a backend: its type, the first line of its message, the operator, and the user's line."""

    exception: str
    said: str
    operator: str = ""
    location: Location | None = None

    @property
    def at(self) -> str:
        """The operator and the user's line; empty if torch gives neither."""
        place = ""
        if self.location is not None:
            place = f"at {self.location}" + (f": {self.location.source}" if self.location.source else "")
        return " ".join(each for each in (f"while executing {self.operator}" if self.operator else "", place) if each)

    @property
    def raised(self) -> str:
        """The exception as a traceback's last line has it."""
        return f"{self.exception}: {self.said}" if self.said else self.exception


def backend_error(error: BaseException, paths: Paths) -> BackendError | None:
    """What the backend raised, for an exception of Dynamo's caused by it; None for any other."""
    inner = _of_backend(error)
    if inner is None:
        return None
    text = message_of(inner)
    return BackendError(
        exception=type(inner).__name__,
        said=paths.text(first_said(text)),
        operator=paths.text(_operator(text)),
        location=_location(text, paths),
    )


def _of_backend(error: BaseException) -> BaseException | None:
    inner = getattr(error, "inner_exception", None)
    if isinstance(inner, BaseException):
        return inner
    # Where the backend says that it cannot, and not that it failed, Dynamo breaks the graph.
    gave_up = (str(getattr(error, "gb_type", "")) or message_of(error)).startswith("Backend compiler exception")
    return error.__cause__ if gave_up else None


def _operator(text: str) -> str:
    if found := _EXECUTING.search(text):
        return f"{found['node']} = {found['call']}"
    found = _LOWERED.search(text)
    return found["target"] if found else ""


def _location(text: str, paths: Paths) -> Location | None:
    """The innermost line of the project in the last stack in the text."""
    *_, stack = ["", *_USERS.split(text)[1:]]
    frames = [(each["file"], int(each["line"]), each["function"]) for each in _FRAME.finditer(stack)]
    own = [each for each in frames if not paths.is_out_of_reach(each[0])] or frames
    return paths.location(*own[-1]) if own else None


def same_kind(error: BaseException, eager: BaseException) -> bool:
    """Whether the exception of the compiled run is of the type that eager's has.

    Dynamo raises its own where it runs an operator on shapes alone: `TorchRuntimeError`, a RuntimeError. Its other
    exceptions are of compiling, whatever they derive from.
    """
    if type(error) is type(eager):
        return True
    kind = type(error)
    return (kind.__module__, kind.__name__) == ("torch._dynamo.exc", "TorchRuntimeError") and isinstance(
        error, type(eager)
    )
