"""Tracebacks that log records keep: pytest's capture holds records, and with a traceback all callers and their locals.

Without the capture nothing would keep them, so what is alive because of them is not kept by what runs.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from types import CodeType, FrameType, TracebackType

from pytest_compilecontract.errors import chain

_FORMATTER = logging.Formatter()


def forget_tracebacks(below: CodeType) -> None:
    """Let go of tracebacks that were logged below a call of this code, in the records of any handler.

    As `logging.handlers.QueueHandler` does: the text of the traceback stays, and `exc_info` becomes None. To clear the
    locals of its frames would not do: a frame keeps its function, and that the variables it closes over.
    """
    for record in _records():
        # Some write True or a tuple of None there.
        if not isinstance(record.exc_info, tuple) or record.exc_info[1] is None:
            continue
        # An exception may have lost its own traceback since.
        met = [record.exc_info[2], *(each.__traceback__ for each in chain(record.exc_info[1], contexts=True))]
        if any(frame.f_code is below for each in met for frame in _callers(each)):
            record.exc_text = record.exc_text or _FORMATTER.formatException(record.exc_info)
            record.exc_info = None


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
