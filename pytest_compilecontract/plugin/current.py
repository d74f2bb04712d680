"""The running contract: what is known of it, and the only object that changes that.

`State` is what is known, frozen, so that the outcome of a finished run cannot change. `Current` has the state of the
running one; the other parts tell it what has happened, and read it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from pytest_compilecontract import clock
from pytest_compilecontract.facts.ladder import Rung, Step
from pytest_compilecontract.facts.lanes import Lane

from .another import Another
from .item import Contract
from .judged import Judged, Subject, over_repeats
from .process import Process

if TYPE_CHECKING:
    from pytest_compilecontract.measure.compile_lane import CompileLane, Observation


@dataclass(frozen=True, kw_only=True, slots=True)
class State:
    """The current run, or the last one of a test: the results of its phases so far.

    `earlier` are the repeats before it, and `steps` the rungs below it, of which `rung` is the one that runs. `own` is
    what this run shows by itself, and `judged` the verdict over it and the earlier ones. `whole`: the body ran to its
    end; `running`: it has not ended; `failed_within`: a part of it with its own report, such as a subtest, failed;
    `overdue`: it exceeded its time limit; `cut_short` is what ended it early. `noted`: the verdict is over it, and it
    is in the journal. `held_back`: its reports are sent once all runs are over. `keeps`: its results are kept for
    another lane; `another` is what its own are compared with.
    """

    contract: Contract
    lane: Lane
    rung: Rung | None = None
    noted: bool = True
    held_back: bool = False
    keeps: bool = False
    another: Another | None = None
    # Random generators as the first run of the test had them when its body began: wider fixtures may have drawn in it.
    random: Mapping[str, object] | None = None
    steps: tuple[Step, ...] = ()
    earlier: tuple[Judged, ...] = ()
    started: float = 0.0
    # The environment that the run began with, before its fixtures and its body changed any of it.
    variables: Mapping[str, str] = field(default_factory=dict)
    # Why the lane cannot run here, and again once the test was skipped for it; why it is not to be run, which fails it.
    unusable: str | None = None
    turned_away: str = ""
    refused: str = ""
    # Which of the project's settings differ in the lane from those outside the test.
    notes: tuple[str, ...] = ()
    gpu: str = ""
    compile_lane: CompileLane | None = None
    seen: Observation | None = None
    running: bool = False
    failed_within: bool = False
    overdue: bool = False
    cut_short: str = ""
    lost: bool = False
    own: Judged | None = None
    judged: Judged | None = None
    drifted: str = ""
    whole: bool = False
    raised: BaseException | None = None

    @property
    def number(self) -> int:
        """Which repeat this is, from 1."""
        return len(self.earlier) + 1

    @property
    def in_journal(self) -> bool:
        """Whether the journal says that the lane has begun: for the verdict, or for what it is compared with."""
        return self.noted or self.keeps

    @property
    def in_lane(self) -> Lane:
        """The lane that the test reports: if this run is of another one, the contract's own."""
        return self.contract.lane if self.keeps else self.lane

    @property
    def failed(self) -> bool:
        """Whether the contract does not hold, by its limits or by its baseline."""
        return bool(self.drifted) or (self.judged is not None and self.judged.failed)

    def subject(self, process: Process) -> Subject:
        """The subject of the verdict."""
        return Subject(
            contract=self.contract.name,
            lane=self.lane,
            test=self.contract.item.nodeid,
            limits=self.contract.limits,
            environment=process.where(self.lane)[0],
            worker=process.worker,
            gpu=self.gpu,
            notes=self.notes,
        )


class Current:
    """The current run. Nothing else changes its state."""

    def __init__(self, state: State) -> None:
        self.state = state

    # before the test

    def start(self) -> None:
        """Start the clock, unless the first repeat has done so."""
        self.state = replace(self.state, started=self.state.started or clock.seconds(), variables=dict(os.environ))

    def cannot_run(self, why: str | None) -> None:
        """Set why the lane cannot run here; None if it can."""
        self.state = replace(self.state, unusable=why)

    def refuse(self, why: str) -> None:
        """Set why the lane must not run, so that the test fails."""
        self.state = replace(self.state, refused=why)

    def note(self, *notes: str) -> None:
        """Note that a setting in the lane differs from the one outside the test."""
        self.state = replace(self.state, notes=(*self.state.notes, *notes))

    def place_on(self, gpu: str) -> None:
        """Set the lane's CUDA device; empty for none."""
        self.state = replace(self.state, gpu=gpu)

    # its phases

    def turn_away(self) -> None:
        """Note that the test is skipped because its lane cannot run."""
        self.state = replace(self.state, turned_away=self.state.unusable or "")

    def give(self, compile_lane: CompileLane) -> None:
        """Set what the fixture gave to the test."""
        self.state = replace(self.state, compile_lane=compile_lane)

    def set_up(self) -> None:
        """The setup begins, perhaps again: a plugin that reruns failed tests does so within the same isolation."""
        self.state = replace(
            self.state,
            compile_lane=None,
            seen=None,
            failed_within=False,
            overdue=False,
            cut_short="",
            own=None,
            judged=None,
            drifted="",
            whole=False,
            raised=None,
        )

    def begin_body(self) -> None:
        """The body begins."""
        self.state = replace(self.state, running=True)

    def draw_from(self, random: Mapping[str, object]) -> None:
        """Set the random generators that the body begins with, as those of its later runs do."""
        self.state = replace(self.state, random=random)

    def observe(self, seen: Observation) -> None:
        """The body compiles by itself, and is observed."""
        self.state = replace(self.state, seen=seen)

    def fail_within(self) -> None:
        """A part of the body that has a report of its own has failed."""
        self.state = replace(self.state, failed_within=True)

    def overrun(self) -> None:
        """The body has exceeded its time limit, and is ended."""
        self.state = replace(self.state, overdue=True)

    def end_body(self) -> None:
        """The body has ended, in whatever way."""
        self.state = replace(self.state, running=False)

    def cut(self, by: str) -> None:
        """The body ended early."""
        self.state = replace(self.state, cut_short=by)

    def lose_device(self) -> None:
        """The run lost the CUDA device of its process."""
        self.state = replace(self.state, lost=True)

    def fail(self, raised: BaseException) -> None:
        """pytest reports a failure; the first one is kept."""
        if self.state.raised is None:
            self.state = replace(self.state, raised=raised)

    # what it comes to

    def judge(self, judged: Judged | None) -> None:
        """The verdict of the run; None if it is not judged."""
        self.state = replace(self.state, judged=judged)

    def judge_whole(self, own: Judged) -> None:
        """A body that ran to its end: the verdict is over this run and the repeats before it."""
        over_all = over_repeats([*self.state.earlier, own])
        self.state = replace(self.state, own=own, judged=over_all, whole=True)

    def drift(self, said: str) -> None:
        """How it differs from its baseline; empty if it does not."""
        self.state = replace(self.state, drifted=said)
