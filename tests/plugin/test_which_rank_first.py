"""Which of two ranks ended first is what they say, and not the order in which their logs are read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pytest_compilecontract import clock
from pytest_compilecontract.files.run_log import Log
from pytest_compilecontract.judge.ranks import to_blame
from pytest_compilecontract.plugin import launch
from pytest_compilecontract.plugin.answer import Answers, Report, answer
from pytest_compilecontract.plugin.launch import Place, log_of


class Ended:
    """A process that has ended well."""

    def poll(self) -> int:
        return 0


@pytest.mark.parametrize("first", [0, 1])
def test_of_two_that_ended_between_two_looks_the_first_is_to_blame(
    first: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = clock.seconds() - 20
    ranks = []
    for rank in (0, 1):
        place = Place(rank=rank, folder=tmp_path)
        log = Log(log_of(place))
        at = started + (9.0 if rank == first else 9.001)
        report = Report(test="it", lane="aot", outcome="failed", phase="call", said="did not end", overdue=True)
        monkeypatch.setattr(clock._Real, "seconds", lambda at=at: at)
        answers = Answers(log_of(place), test="it", lane="aot")
        answer(log, "measured", report)
        log.close()
        monkeypatch.undo()
        child: Any = Ended()
        ranks.append(launch._Rank(place, child, started, answers))
    for each in ranks:
        each.look()

    blamed = to_blame([each.run().end for each in ranks])

    assert blamed is not None
    assert (blamed.rank, blamed.kind, blamed.seconds) == (first, "hung", 9.0)
