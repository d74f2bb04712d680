"""Writing waivers: of what drifted, one for each cause in the lanes that show the same of it, and nothing beyond.

A cause is a line of the user's code, with all that was counted of it; drift that has no line is a cause of its own.
"""

from __future__ import annotations

import datetime
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from pytest_compilecontract.facts.limits import LIMITS
from pytest_compilecontract.facts.metrics import FOLLOWING, LINED, METRICS
from pytest_compilecontract.wording import first_line

from .drift import Drift, Fact, LaneComparison, Value
from .waivers import ANY, Kind, follows, is_worse, reason_of

# Facts of one kind, as the keys of a state dict, that are named one by one; more of them are named by a glob.
MOST_NAMED = 3
# The line in what a violation tells of a place, as a rung that does not hold has it.
_LINE = re.compile(r":\d+ in ")
_NUMBER = re.compile(r"(?<![\w.])(?<!index )-?\d+(?:\.\d+)?(?![\w.]*\w)")


@dataclass(frozen=True, kw_only=True, slots=True)
class Rest:
    """What is the same in all waivers that are written: who tolerates the drift, until when, and why."""

    issue: str
    owner: str
    expires: datetime.date
    kind: Kind


@dataclass(kw_only=True, slots=True)
class _Cause:
    """What drifted in a lane because of one line, if it has one: its facts as globs, and the value of each metric."""

    line: str
    facts: dict[str, None] = field(default_factory=dict)
    worst: dict[str, Value] = field(default_factory=dict)

    def add(self, drift: Drift, *globs: str) -> None:
        self.facts |= dict.fromkeys(globs)
        metric = METRICS[drift.metric]
        # What varies and has no band that is known may be any.
        self.worst[drift.metric] = ANY if metric.banded and metric.band is None else _short(drift.after)


@dataclass(frozen=True, kw_only=True, slots=True)
class Written:
    """One waiver as it is written; `lanes` are those in which it is needed."""

    contract: str
    lanes: tuple[str, ...]
    torch: str
    facts: tuple[str, ...]
    worst: tuple[tuple[str, Value], ...]

    def as_toml(self, rest: Rest) -> str:
        """It as a table of a waivers file."""
        metrics = ", ".join(f"{name} = {_toml(value)}" for name, value in self.worst)
        lines = [
            "[[waiver]]",
            f"contract = {_toml(self.contract)}",
            f"lane = {_toml(self.lanes)}",
            f"metric = {{{metrics}}}",
            *([f"fact = {_toml(self.facts)}"] if len(self.facts) == 1 else _lines("fact", self.facts)),
            f"torch = {_toml(self.torch)}",
            f"issue = {_toml(rest.issue)}",
            f"owner = {_toml(rest.owner)}",
            f"expires = {rest.expires}",
            f"kind = {_toml(rest.kind)}",
            "",
        ]
        return "\n".join(lines)


def written(lanes: Iterable[tuple[LaneComparison, str]]) -> tuple[Written, ...]:
    """The waivers for what drifted in these lanes and is not waived; each lane with the range of torch it is about."""
    found: dict[Written, list[str]] = {}
    for lane, torch in lanes:
        for cause in _causes(lane):
            made = Written(
                contract=lane.contract, lanes=(), torch=torch, facts=(*cause.facts,), worst=(*cause.worst.items(),)
            )
            found.setdefault(made, []).append(lane.lane)
    return tuple(replace(made, lanes=tuple(named)) for made, named in found.items())


def _causes(lane: LaneComparison) -> Sequence[_Cause]:
    """The causes of what drifted in a lane, in the order of a report."""
    worse = [drift for drift in lane.by_cause if is_worse(drift) and not drift.waived]
    causes: dict[str, _Cause] = {}
    for drift in worse:
        if drift.metric in LINED:
            _add_lines(drift, causes)
    by_line = [*causes.values()]
    # What follows from lines is counted of all of them.
    roots = [each for each in by_line if set(each.worst) - {"recompiles"}] or by_line
    for drift in worse:
        if drift.metric == "limits":
            _add_limits(drift, causes, roots)
        elif drift.metric in FOLLOWING and roots:
            for cause in roots:
                cause.add(drift)
        elif drift.metric not in LINED:
            causes.setdefault(drift.metric, _Cause(line="")).add(drift, *_globs(drift))
    return [*causes.values()]


def _add_lines(drift: Drift, causes: dict[str, _Cause]) -> None:
    """Add each fact of a drift to the cause with its line, or to the only break that it may come of."""
    breaks = [each for each in causes.values() if "graph_breaks" in each.worst]
    for fact in drift.came:
        line = _line(fact)
        comes_along = METRICS[drift.metric].lines == "of a break" or fact.continuation
        if line not in causes and comes_along and len(breaks) == 1:
            line = breaks[0].line
        causes.setdefault(line, _Cause(line=line)).add(drift, _glob(drift.metric, fact))


def _add_limits(drift: Drift, causes: dict[str, _Cause], roots: Sequence[_Cause]) -> None:
    """Add each limit that is exceeded to the causes that it follows from, or to what is counted of its metric."""
    for fact in drift.came:
        if follows(fact) and roots:
            for cause in roots:
                cause.add(drift)
            continue
        counted = LIMITS[fact.name].metric if fact.name in LIMITS else ""
        of_metric = [each for each in causes.values() if any(METRICS[metric].at == counted for metric in each.worst)]
        cause = of_metric[0] if of_metric else causes.setdefault(fact.where, _Cause(line=""))
        cause.add(drift, _glob("limits", fact))


def _globs(drift: Drift) -> Sequence[str]:
    """The facts of a drift without lines; many of one kind by what their places have in common."""
    if METRICS[drift.metric].banded or drift.metric in FOLLOWING:
        return []
    if len(drift.came) <= MOST_NAMED:
        return [_glob(drift.metric, fact) for fact in drift.came]
    by_reason: dict[str, list[str]] = {}
    for fact in drift.came:
        by_reason.setdefault(reason_of(fact), []).append(fact.where)
    return [f"{_common(places)}*: {_escaped(reason)}" for reason, places in by_reason.items()]


def _common(places: Sequence[str]) -> str:
    """The prefix of all places, to its last dot."""
    first, last = min(places), max(places)
    same = next((at for at, (one, other) in enumerate(zip(first, last, strict=False)) if one != other), len(first))
    prefix, dot, _ = first[:same].rpartition(".")
    return _escaped(prefix + dot)


def _glob(metric: str, fact: Fact) -> str:
    """A fact as a waiver names it: valid when its line moves, and for no other fact."""
    where = _escaped(first_line(fact.where)) + ("*" if "\n" in fact.where.strip() else "")
    if metric == "numerics":
        return f"{where}: {_escaped(fact.name)}: *"
    if metric == "state_dict":
        return f"{where}: {_escaped(reason_of(fact))}"
    source = f": {_escaped(fact.source)}" if fact.source else ""
    # Which guard failed is which recompile; the sizes in it are not.
    guard = f": {_NUMBER.sub('*', _escaped(reason_of(fact)))}" if metric == "recompiles" else ""
    if fact.at is not None and (source or guard):
        where = where.replace(f":{fact.at.line} in ", ":* in ", 1)
    # What has neither is known by its place.
    return where + (source if fact.at is not None else _LINE.sub(":* in ", source)) + guard


def _line(fact: Fact) -> str:
    """The line of a fact, wherever it is in its file; its place if it has no text."""
    if fact.at is None:
        return fact.where
    return f"{fact.at.file} in {fact.at.function}: {fact.source}" if fact.source else str(fact.at)


def _escaped(text: str) -> str:
    return re.sub(r"[*?]", lambda found: f"[{found[0]}]", text)


def _short(value: Value) -> Value:
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _lines(key: str, texts: Sequence[str]) -> Iterator[str]:
    """A list of texts, each on a line of its own; nothing for none."""
    if texts:
        yield from (f"{key} = [", *(f"    {_toml(each)}," for each in texts), "]")


def _toml(value: Value | Sequence[str]) -> str:
    """A value as TOML; a list of one text as the text."""
    only = value[0] if isinstance(value, Sequence) and not isinstance(value, str) and len(value) == 1 else value
    # JSON's strings and lists are TOML's as well, but for one character, and for what JSON writes in two halves.
    return json.dumps(only, ensure_ascii=False).replace("\x7f", "\\u007f")
