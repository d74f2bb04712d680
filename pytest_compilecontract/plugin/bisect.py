"""Bisecting: `--contract-bisect` reruns a lane that fails to compile, or gives wrong numbers, stage by stage.

Each stage does more than the one before it: Dynamo's capture, AOTAutograd, decompositions, Inductor. The first that
fails is named, if it fails twice, and as the lane did. The lane's own verdict and measurement stay as they were.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pytest

from pytest_compilecontract import clock
from pytest_compilecontract.facts.lanes import ALL, BUILT_IN, Lane
from pytest_compilecontract.facts.rerun import Command

from .item import Contract
from .results import add_to_reason
from .run import Broke, Turn
from .started import as_started, set_options

if TYPE_CHECKING:
    from pytest_compilecontract.facts.receipt import Entry


@dataclass(frozen=True, kw_only=True, slots=True)
class Stage:
    """A stage of torch, the backend that stops after it, and the built-in lane of that backend, if any."""

    what: str
    backend: str
    lane: str = ""

    @property
    def told(self) -> str:
        """The stage and its backend; for a backend that is not torch's, the backend itself."""
        return f"{self.what} (backend {self.backend!r})" if self.what else f"backend {self.backend!r} itself"


STAGES = (
    Stage(what="Dynamo's capture", backend="eager", lane="capture"),
    Stage(what="AOTAutograd", backend="aot_eager", lane="aot"),
    Stage(what="decompositions", backend="aot_eager_decomp_partition"),
    Stage(what="Inductor", backend="inductor", lane="inductor"),
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """The outcome of one run of the contract: the kinds of its faults, none if it holds.

    `why` is why it was not measured, empty if it was. `backends` are the names of the backends that compiled in it.
    """

    faults: frozenset[str] = frozenset()
    why: str = ""
    backends: frozenset[str] = frozenset()

    @property
    def told(self) -> str:
        if self.why:
            return f"is not measured ({self.why})"
        return f"fails ({_listed(self.faults)})" if self.faults else "holds"


@dataclass(frozen=True, kw_only=True, slots=True)
class Found:
    """The first stage that fails, the last before it that holds, and those not measured; or why this is unknown."""

    stage: Stage | None = None
    held: Stage | None = None
    unknown: tuple[str, ...] = ()
    why: str = ""

    def lines(self) -> list[str]:
        if self.stage is None:
            return [f"where it broke: unknown, {self.why}"]
        measured = " of those measured" if self.unknown else ""
        held = f"; up to {self.held.what} it holds" if self.held is not None else ""
        first = f"where it broke: {self.stage.told} is the first to fail{measured}{held}"
        return [first, *(f"  {each}" for each in self.unknown)]


class Bisecting:
    """The strategy that looks for the stage in which a lane breaks."""

    def takes(self, contract: Contract) -> bool:
        """Whether the contract has one lane, which determines how it is compiled."""
        return not contract.bare and not contract.ladder

    def reports(self, turn: Turn) -> list[pytest.TestReport]:
        """The reports of the lane, with the result of the stages if it failed."""
        run = turn.run_once(turn.contract.lane)
        reports = [*run.reports]
        if run.entry is not None and faults(run.entry) and not turn.process.lost and run.failed:
            with turn.more(reports):
                said = _bisected(turn, run.entry)
            add_to_reason(reports, said)
        return reports


def not_bisected(entry: Entry, why: str) -> list[str]:
    """What is said of a lane that has faults, but whose stages are not run."""
    return Found(why=why).lines() if faults(entry) else []


def _bisected(turn: Turn, entry: Entry) -> list[str]:
    """The first stage that fails, and the command that shows it."""
    lane, item = turn.contract.lane, turn.contract.item
    own = next((each for each in STAGES if each.backend == lane.backend), Stage(what="", backend=lane.backend))

    def in_stage(stage: Stage) -> Lane:
        return lane if stage is own else replace(lane, backend=stage.backend, mode=None, options=None)

    stages, started = _up_to(lane.backend), clock.seconds()

    def outcome(stage: Stage) -> Outcome:
        what = "the lane itself" if stage is own else stage.told
        at = [*stages, own].index(stage) + 1
        turn.say(f"where it broke: runs {what}, {at} of {len(stages) + 1}, {clock.seconds() - started:.0f} s")
        return _outcome(turn, in_stage(stage))

    found = first_to_fail(stages, own, faults(entry), outcome)
    if found.stage is None:
        return found.lines()
    ran, asked = in_stage(found.stage), turn.contract.limits.lanes
    turn.broke = Broke(lane=ran, told=found.stage.told, numbers=WRONG_NUMBERS in faults(entry))
    allowed = asked is None or ALL in asked or found.stage.lane in asked
    shown = found.stage.lane if allowed and is_built_in(ran, found.stage.lane) else ""
    rerun = as_started(item.config, command(item.nodeid, item.name, lane.name, shown, set_options(item.config)))
    return [*found.lines(), f"  {rerun}"]


def _outcome(turn: Turn, lane: Lane) -> Outcome:
    """The outcome of the contract in this lane."""
    if turn.process.lost:
        return Outcome(why="the process has lost its CUDA device")
    from pytest_compilecontract.measure.probes.backends import Backends
    from pytest_compilecontract.measure.recorder import Measuring

    # Around the taps of a measurement; what a fixture compiles is none of the contract's.
    with Backends(Measuring.going_on) as backends:
        run = turn.run_once(lane, noted=False)
    if backends.missing:
        return Outcome(why=backends.missing)
    by_itself = Outcome(why="the test itself failed")
    if run.judged is not None:
        seen = Outcome(faults=faults(run.judged.entry), backends=frozenset(backends.names))
        if seen.faults:
            return seen
        # What was measured until then holds; what the rest of the test would show is not known.
        if run.failed and not run.state.failed:
            return by_itself
        # A stage that nothing reached says nothing for it.
        return seen if seen.backends else Outcome(why="nothing was compiled")
    return Outcome(why=run.skipped) if run.skipped is not None else by_itself


WRONG_NUMBERS = "wrong numbers"


def faults(entry: Entry) -> frozenset[str]:
    """Faults that a stage of torch can cause: exceptions raised by compiling, by type, and wrong numbers."""
    seen = entry.measurement
    if seen is None:
        return frozenset()
    # What a backend raised: the exception that Dynamo makes of it has another type for each backend.
    found = {each.type for each in seen.backend_failures or ()}
    if seen.raised is not None and not found:
        found.add(seen.raised.type)
    # A comparison that was asked for and could not be made is a violation as well, and shows no numbers.
    differs = seen.numerics is not None and bool(seen.numerics.differences)
    if differs and any(each.name == "numerics" for each in entry.violations):
        found.add(WRONG_NUMBERS)
    return frozenset(found)


def first_to_fail(
    stages: Sequence[Stage], own: Stage, wanted: frozenset[str], run: Callable[[Stage], Outcome]
) -> Found:
    """The first of `stages`, and then the lane's `own`, to fail like the lane, whose faults are `wanted`.

    A single result may be chance: the stage has to fail twice, and the one before it has to hold twice; for the first
    stage of all, the lane itself has to fail again.
    """
    held: list[Stage] = []
    unknown: list[str] = []
    for stage in (*stages, own):
        outcome = run(stage)
        who = "the lane itself" if stage is own else stage.told
        if others := outcome.backends - {stage.backend}:
            chosen = ", ".join(map(repr, sorted(others)))
            return Found(why=f"the test chooses its own backend: {chosen} compiled instead of {stage.backend!r}")
        if outcome.why and stage is own:
            return Found(why=f"{who} was not measured again: {outcome.why}")
        if outcome.why:
            unknown.append(f"{stage.what} not measured: {outcome.why}")
            continue
        if not outcome.faults and stage is own:
            return Found(why=f"{who} does not fail again")
        if not outcome.faults:
            held.append(stage)
            continue
        if outcome.faults != wanted:
            return Found(why=f"{who} {outcome.told}, where the lane failed differently ({_listed(wanted)})")
        if stage is not own and _differ(outcome, again := run(stage)):
            return Found(why=f"{who} {outcome.told}, and then {again.told}")
        if held and _differ(Outcome(), again := run(held[-1])):
            return Found(why=f"{held[-1].told} holds, and then {again.told}")
        if not held and stage is not own and _differ(outcome, again := run(own)):
            return Found(why=f"the lane itself {outcome.told}, and then {again.told}")
        return Found(stage=stage, held=held[-1] if held else None, unknown=tuple(unknown))
    raise AssertionError("the lane's own stage is the last")


def is_built_in(lane: Lane, name: str) -> bool:
    """Whether the lane equals the built-in lane of that name."""
    return name in BUILT_IN and replace(lane, name=name) == BUILT_IN[name]


def command(nodeid: str, name: str, lane: str, shown: str, options: Sequence[str]) -> Command:
    """The command that shows the fault: the test in the built-in lane `shown`, or if there is none, this run again.

    `nodeid` and `name` are those of the test in `lane`; `options` are further options.
    """
    if not shown or shown == lane:
        again = ("--compile-contracts", f"--contract-lanes={lane}", "--contract-bisect", *options)
        return Command(options=again, tests=(nodeid,))
    # The lane is the first of the parameters, and its name may be in the file's too.
    function, _, parameters = name.partition("[")
    test = f"{nodeid.removesuffix(name)}{function}[{shown}{parameters.removeprefix(lane)}"
    return Command(options=("--compile-contracts", f"--contract-lanes={shown}", *options), tests=(test,))


def _differ(one: Outcome, other: Outcome) -> bool:
    return bool(other.why) or one.faults != other.faults


def _listed(kinds: frozenset[str]) -> str:
    return ", ".join(sorted(kinds))


def _up_to(backend: str) -> tuple[Stage, ...]:
    """The stages before a backend; for one that is not torch's, all except Inductor."""
    names = [stage.backend for stage in STAGES]
    return STAGES[: names.index(backend)] if backend in names else STAGES[:2]
