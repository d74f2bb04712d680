"""Trying settings: which of torch's changed defaults explains a drift. Each trial is a separate pytest run.

The lane is run on the new torch with the old torch's defaults: with all that changed, then with fewer, until only those
are left that the drift depends on. No torch here.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from pytest_compilecontract.compare.attribution import changed_defaults
from pytest_compilecontract.compare.comparison import compare, compare_sides
from pytest_compilecontract.compare.drift import LaneComparison
from pytest_compilecontract.compare.policy import Policy
from pytest_compilecontract.compare.side import Side, sides_of
from pytest_compilecontract.errors import ReceiptError, UsageError
from pytest_compilecontract.escaping import leads_out, one_line, plain
from pytest_compilecontract.facts.metrics import METRICS
from pytest_compilecontract.facts.receipt import RECEIPT, Entry, Environment, Receipt
from pytest_compilecontract.facts.rerun import Command, rerun_command
from pytest_compilecontract.files.receipt import read_receipt

Settings = Mapping[str, str]
# What a trial gives: the lane as it was measured with these settings, and where.
Trial = Callable[[Entry, Settings], "Measured"]
VERSION = "import torch; print(torch.__version__)"
VERSION_SECONDS = 300


@dataclass(frozen=True, kw_only=True, slots=True)
class Measured:
    """What a trial measured. Without an entry, nothing was measured, and `problem` says why."""

    entry: Entry | None = None
    environment: Environment = field(default_factory=Environment)
    problem: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Explained:
    """What explains the drift of one metric in one lane: settings, each with the old default and the new one.

    Without settings, none explains it; `tried` is how many were tried, and `problem` why this is not known.
    """

    lane: LaneComparison
    metric: str
    settings: tuple[tuple[str, str, str], ...] = ()
    tried: int = 0
    problem: str = ""


def explained(before: Receipt, after: Receipt, policy: Policy, run: Trial) -> Iterator[Explained]:
    """For each metric that drifted in each lane, the changed defaults that explain it."""
    comparison = compare(before, after, policy)
    old, new = sides_of(before), sides_of(after)
    likely: list[frozenset[str]] = []
    for lane in comparison.lanes:
        if lane.verdict == "drifted" or lane.newly_broken:
            key = (lane.contract, lane.lane)
            yield from _Lane(lane, old[key], new[key], policy, run, likely).explained()


def explained_line(found: Explained) -> str:
    """What explains a drift, as one line for a terminal."""
    label = METRICS[found.metric].label
    if found.problem:
        return f"  {label}: not known: {plain(found.problem)}"
    if found.settings:
        said = " together with ".join(f"{name}: {was} -> {now}" for name, was, now in found.settings)
        return f"  {label}: explained by {plain(said)}"
    if not found.tried:
        return f"  {label}: no default changed, so none explains it"
    return f"  {label}: none of the {found.tried} changed defaults explains it"


def drifting(lane: LaneComparison) -> tuple[str, ...]:
    """The metrics of a lane that became worse."""
    return tuple(drift.metric for drift in lane.drifts if drift.gates and drift.direction == "worse")


class _Lane:
    """One lane that drifted, and the results of its trials."""

    def __init__(
        self,
        lane: LaneComparison,
        old: Side,
        new: Side,
        policy: Policy,
        run: Trial,
        likely: list[frozenset[str]],
    ) -> None:
        self._lane, self._policy, self._run, self._likely = lane, policy, run, likely
        self._old, self._new = old, new
        self._known = bool(old.defaults and new.defaults)
        changed = changed_defaults(old.defaults, new.defaults)
        self._changed = {name: (was, now) for name, was, now in changed}
        self._left: dict[frozenset[str], frozenset[str] | str] = {}

    def explained(self) -> Iterator[Explained]:
        metrics = drifting(self._lane)
        problem = self._problem()
        for metric in metrics:
            if problem or not self._changed:
                yield Explained(lane=self._lane, metric=metric, problem=problem)
                continue
            settings = self._explaining(metric)
            if settings and settings not in self._likely:
                self._likely.append(settings)
            yield Explained(
                lane=self._lane,
                metric=metric,
                settings=tuple((name, *self._changed[name]) for name in sorted(settings)),
                tried=len(self._changed),
            )

    def _problem(self) -> str:
        """Why trials of this lane would be meaningless; empty if they are not."""
        if not self._known:
            return "torch's defaults were not recorded on both sides"
        if not self._changed:
            return ""
        left = self._drifting(frozenset())
        if isinstance(left, str):
            return left
        gone = [METRICS[metric].label for metric in drifting(self._lane) if metric not in left]
        return f"rerun without changing a setting, it does not drift ({', '.join(gone)})" if gone else ""

    def _explaining(self, metric: str) -> frozenset[str]:
        """The fewest settings whose old defaults remove the drift of the metric; empty if there are none."""
        for settings in self._likely:
            if settings <= self._changed.keys() and self._goes(metric, settings):
                return settings
        every = frozenset(self._changed)
        if self._goes(metric, every):
            return frozenset(_smallest(frozenset(), sorted(every), lambda tried: self._goes(metric, tried)))
        # All of them at once may be too many for another reason, so each alone.
        return next((one for name in sorted(every) if self._goes(metric, one := frozenset((name,)))), frozenset())

    def _goes(self, metric: str, settings: frozenset[str]) -> bool:
        left = self._drifting(settings)
        return not isinstance(left, str) and metric not in left

    def _drifting(self, settings: frozenset[str]) -> frozenset[str] | str:
        """What still drifts with the old defaults of these settings, or why this is not known."""
        if settings not in self._left:
            self._left[settings] = self._tried(settings)
        return self._left[settings]

    def _tried(self, settings: frozenset[str]) -> frozenset[str] | str:
        measured = self._run(self._new.entry, {name: self._changed[name][0] for name in sorted(settings)})
        if measured.entry is None:
            return measured.problem
        # Named what it is in the receipt; here it is held against what was before all the same.
        environment = replace(measured.environment, overrides={})
        found = compare_sides(self._old, Side(entry=measured.entry, environment=environment), self._policy)
        left = frozenset(drifting(found))
        if found.verdict == "broken":
            return left | frozenset(METRICS)
        if found.verdict in ("held", "improved", "drifted"):
            return left
        return f"the trial was {found.verdict}: {found.reason}" if found.reason else f"the trial was {found.verdict}"


def _smallest(
    given: frozenset[str], names: Sequence[str], goes: Callable[[frozenset[str]], bool], changed: bool = False
) -> list[str]:
    """The fewest of `names` that suffice together with `given` (QuickXplain, Junker 2004); all of them do."""
    if changed and goes(given):
        return []
    if len(names) == 1:
        return list(names)
    half = len(names) // 2
    left, right = names[:half], names[half:]
    of_right = _smallest(given | frozenset(left), right, goes, bool(left))
    of_left = _smallest(given | frozenset(of_right), left, goes, bool(of_right))
    return of_left + of_right


# Running


def refuse_other_torch(python: str, after: Receipt) -> None:
    """Refuse an interpreter with another torch than the newer side was measured with.

    Raises:
        UsageError: it has another torch or none, or the interpreter does not run.
    """
    wanted = sorted({each.torch for each in after.environments.values() if each.torch})
    try:
        ran = subprocess.run(
            [python, "-c", VERSION], capture_output=True, text=True, check=False, timeout=VERSION_SECONDS
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        cause = (isinstance(error, OSError) and error.strerror) or str(error)
        raise UsageError(f"--try-settings: {python} does not run ({cause})") from error
    found = ran.stdout.strip()
    if ran.returncode or found not in wanted:
        has = f"torch {found}" if found else "no torch"
        raise UsageError(f"--try-settings: {python} has {has}, NEW has {_named(wanted)} (--python chooses another)")


def trial_in(python: str, told: Callable[[str], None]) -> Trial:
    """Trials in this interpreter, from the current folder; `told` is called with a line for each."""
    count = 0

    def run(entry: Entry, settings: Settings) -> Measured:
        nonlocal count
        count += 1
        told(f"trial {count}: {entry.contract} [{entry.lane}] with {_with(settings)}")
        with tempfile.TemporaryDirectory() as folder:
            return _run(python, entry, settings, Path(folder))

    return run


def command_of(python: str, entry: Entry, settings: Settings) -> Command:
    """The command that runs the one lane in this interpreter with these settings in place of torch's defaults."""
    rerun = rerun_command(entry, (python, "-m", "pytest"))
    given = [f"--contract-set={name}={value}" for name, value in settings.items()]
    return replace(rerun, options=(*rerun.options, *given))


def _run(python: str, entry: Entry, settings: Settings, folder: Path) -> Measured:
    if leads_out(entry.test):
        # The receipt may be anybody's, and what is run is code.
        return Measured(problem=f"its test is not in this folder ({one_line(entry.test)}), so it was not run")
    command = command_of(python, entry, settings)
    words = [*command.start, *command.arguments(f"--contract-report={folder}", "-q")]
    ran = subprocess.run(
        words, capture_output=True, text=True, errors="replace", check=False, env={**os.environ, "COLUMNS": "200"}
    )
    lines = reversed((ran.stdout + ran.stderr).splitlines())
    said = next((line for line in lines if line.strip()), "it printed nothing")
    try:
        receipt = read_receipt(folder / RECEIPT)
    except ReceiptError:
        return Measured(problem=f"the trial left no receipt ({one_line(said)}): {command}")
    for found in receipt.entries:
        if (found.contract, found.lane) == (entry.contract, entry.lane):
            return Measured(entry=found, environment=receipt.environments[found.environment])
    return Measured(problem=f"the trial did not measure the lane ({one_line(said)})")


def _with(settings: Settings) -> str:
    if not settings:
        return "nothing changed"
    return next(iter(settings)) if len(settings) == 1 else f"{len(settings)} settings"


def _named(versions: Sequence[str]) -> str:
    return " and ".join(f"torch {version}" for version in versions) or "no torch"
