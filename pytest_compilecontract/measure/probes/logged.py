"""Tracebacks that log records keep: pytest's capture holds records, and with a traceback all callers and their locals.

Without the capture nothing would keep them, so what is alive because of them is not kept by what runs.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Mapping
from types import CodeType, FrameType, TracebackType

from pytest_compilecontract.errors import chain

_FORMATTER = logging.Formatter()


def forget_tracebacks(below: CodeType) -> None:
    """Let go of tracebacks that were logged below a call of this code, in the records of any handler.

    As `logging.handlers.QueueHandler` does: the text of the traceback stays, and `exc_info` becomes None; a message
    with an exception in it, which has a traceback too, becomes its text. To clear the locals of its frames would not
    do: a frame keeps its function, and that the variables it closes over.
    """
    for record in _records():
        if _is_logged_with(record.exc_info, below):
            record.exc_text = record.exc_text or _FORMATTER.formatException(record.exc_info)  # type: ignore[arg-type]
            record.exc_info = None
        if any(_is_of(each, below) for each in _in_message(record)):
            # What cannot be formatted stays as it is: to see it fail is its handler's.
            with contextlib.suppress(Exception):
                record.msg, record.args = record.getMessage(), None


def _is_logged_with(exc_info: object, below: CodeType) -> bool:
    # Some write True or a tuple of None there; and an exception may have lost its own traceback since.
    if not isinstance(exc_info, tuple) or exc_info[1] is None:
        return False
    return _is_below(exc_info[2], below) or _is_of(exc_info[1], below)


def _is_of(error: BaseException, below: CodeType) -> bool:
    return any(_is_below(each.__traceback__, below) for each in chain(error, contexts=True))


def _is_below(traceback: TracebackType | None, below: CodeType) -> bool:
    return any(frame.f_code is below for frame in _callers(traceback))


def _in_message(record: logging.LogRecord) -> Iterator[BaseException]:
    args = record.args.values() if isinstance(record.args, Mapping) else record.args or ()
    return (each for each in (record.msg, *args) if isinstance(each, BaseException))


def _records() -> Iterator[logging.LogRecord]:
    """The records that handlers keep, as those of pytest and of its caplog fixture do."""
    for logger in [logging.getLogger(), *logging.Logger.manager.loggerDict.values()]:
        for handler in getattr(logger, "handlers", ()):
            kept = getattr(handler, "records", None)
            if isinstance(kept, list):
                yield from (each for each in kept if isinstance(each, logging.LogRecord))


def _callers(traceback: TracebackType | None) -> Iterator[FrameType]:
    """The first frame of a traceback, which caught the exception, and its callers."""
    frame = traceback.tb_frame if traceback is not None else None
    while frame is not None:
        yield frame
        frame = frame.f_back
