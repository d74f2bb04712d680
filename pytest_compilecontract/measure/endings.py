"""Endings: how passes ended, and how an exception in the compiled pass differs from eager's."""

from __future__ import annotations

import dis
import re
from types import FrameType

from pytest_compilecontract.errors import message_of
from pytest_compilecontract.facts.measurement import Location, Raised, RaisedInBoth
from pytest_compilecontract.wording import first_said

from .probes import memory
from .probes.backend_errors import backend_error, same_kind
from .probes.reasons import refused_for
from .probes.source import Paths
from .programs import Trail
from .said import said

# The instructions of a `raise`, and of what leaves an `except` or `with` again.
RAISING = ("RAISE_VARARGS", "RERAISE")
# Whose functions assert in the name of who calls them.
ASSERTING = ("torch.testing", "numpy.testing", "unittest", "pytest", "_pytest")

_TRACED = re.compile(r'^\s*File "([^"]+)", line (\d+), in (.+)$', re.MULTILINE)


class BrokenLane(Exception):  # noqa: N818 - the lane is broken; what it raised is the cause
    """The compiled run raised and eager did not, or the reverse; the measurement has the exception."""


class DeviceLost(BrokenLane):
    """An error after which CUDA refuses every call of this process: `where` it was raised, `what` CUDA said."""

    def __init__(self, what: str, where: str) -> None:
        super().__init__(what)
        self.what = what
        self.where = where


class Endings:
    """Exceptions of passes as facts of a measurement, with the user's line that raised them."""

    def __init__(self, paths: Paths) -> None:
        self._paths = paths

    def raised(self, eager: Trail, compiled: Trail, unit: str, again: Trail | None = None) -> Raised | None:
        """The exception by which the two runs differ, or None; `again` is a second eager run.

        What the project's own code raises has to say the same, but for a failed assertion, which pytest explains by the
        values that it found, and where random numbers were drawn. torch's messages name what it looked at, shapes alone
        or the tensors themselves, and are not compared.
        """
        theirs, ours = eager.error, compiled.error
        if theirs is None and ours is None:
            return None
        if theirs is None:
            assert ours is not None
            return self._as_raised(ours, f"in {unit} {compiled.error_at}; eager does not raise")
        eager_says = f"eager raises {type(theirs).__name__} in {unit} {eager.error_at}"
        if ours is None:
            return Raised(type="no exception", message=f"{eager_says}: {first_line(theirs)}; compiled does not raise")
        if not same_kind(ours, theirs) or eager.error_at != compiled.error_at:
            return self._as_raised(ours, f"in {unit} {compiled.error_at}; {eager_says}")
        if eager.random or self._says_the_same(ours, theirs):
            return None
        if again is not None and again.error is not None and said(again.error) != said(theirs):
            return None
        return self._as_raised(ours, f"in {unit} {compiled.error_at}; {eager_says}: {first_line(theirs)}")

    def ended_as(self, eager: Trail, compiled: Trail, unit: str) -> str:
        """How another eager run raised the exception of the compiled run; empty if it did not."""
        if type(eager.error) is not type(compiled.error) or eager.error_at != compiled.error_at:
            return ""
        if eager.error is None or compiled.error is None:
            return "eager differs from itself: run once more, it does not raise either"
        if not self._says_the_same(compiled.error, eager.error):
            return ""
        raised = f"{type(eager.error).__name__} in {unit} {eager.error_at}"
        return f"eager differs from itself: run once more, it raises {raised} too"

    def _says_the_same(self, ours: BaseException, theirs: BaseException) -> bool:
        return said(ours) == said(theirs) or not (is_own(ours, self._paths) or is_own(theirs, self._paths))

    def raised_in_both(self, eager: Trail, unit: str, calls: int) -> RaisedInBoth:
        assert eager.error is not None
        return RaisedInBoth(
            type=type(eager.error).__name__,
            message=self._paths.text(first_line(eager.error)),
            at=f"{unit} {eager.error_at}",
            left=max(calls - eager.error_at - 1, 0),
            unit=unit,
        )

    def _as_raised(self, error: Exception, when: str) -> Raised:
        backend = backend_error(error, self._paths)
        at = f", {backend.at}" if backend is not None and backend.at else ""
        if guard := refused_for(error):
            at = f": {self._paths.text(guard)}"
        return Raised(
            type=type(error).__name__,
            message=f"{self._paths.text(first_line(error))}{at} ({when})".lstrip(),
            location=(backend.location if backend is not None else None) or self.user_line(error),
            out_of_memory=memory.is_out_of_memory(error),
            asserted=isinstance(error, AssertionError) and self._is_asserted(error),
        )

    def _is_asserted(self, error: AssertionError) -> bool:
        """Whether the project's own code asserted, rather than torch or another library called from it."""
        below = False
        trace = error.__traceback__
        while trace is not None:
            if self._paths.runs_users(trace.tb_frame):
                below = True
            elif below and not _asserts(trace.tb_frame):
                below = False
            trace = trace.tb_next
        return below

    def user_line(self, error: BaseException) -> Location | None:
        """The innermost line of the project in the traceback; for a compile error, the line that was compiled."""
        # An internal error of Dynamo's has no stack of its own: it says in its text what it was tracing.
        traced = [
            (each.filename, each.lineno or 0, each.name) for each in getattr(error, "real_stack", None) or ()
        ] or [
            (file, int(line), name)
            for file, line, name in _TRACED.findall(message_of(error).partition("\nfrom user code:")[2])
        ]
        if traced:
            own = [each for each in traced if not self._paths.is_out_of_reach(each[0])]
            return self._paths.location(*(own or traced)[-1])
        found = None
        trace = error.__traceback__
        while trace is not None:
            code = trace.tb_frame.f_code
            if self._paths.runs_users(trace.tb_frame):
                found = self._paths.location(code.co_filename, trace.tb_lineno, code.co_name)
            trace = trace.tb_next
        return found


def is_own(error: BaseException, paths: Paths) -> bool:
    """Whether a `raise` of the project's own code raised it, and not what the line calls; False of an assertion."""
    if isinstance(error, AssertionError):
        return False
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None or not paths.runs_users(trace.tb_frame):
        return False
    return dis.opname[trace.tb_frame.f_code.co_code[trace.tb_lasti]] in RAISING


def _asserts(frame: FrameType) -> bool:
    module = f"{frame.f_globals.get('__name__', '')}."
    return any(module.startswith(f"{each}.") for each in ASSERTING)


def first_line(error: BaseException) -> str:
    """The first line of the error's own message; Dynamo appends the user's line, even to an empty one."""
    return first_said(message_of(error).partition("from user code:")[0])
