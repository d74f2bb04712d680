"""Waivers: drift that is tolerated until a date, each with its issue and owner.

    [[waiver]]
    contract = "contracts/test_decoder.py::*"      # a glob
    lane = "inductor"                              # a glob, or a list
    metric = "graph_breaks"                        # or a list, "*" for any, or {graph_breaks = 1}: that many at worst
    fact = "mask = mask.tolist()"                  # a glob, or a list, for the source line; with or instead of a metric
    torch = ">=2.12,<2.14"
    issue = "https://github.com/pytorch/pytorch/issues/1"
    owner = "someone"
    expires = 2027-01-31                           # its last day
    kind = "workaround"                            # or "open-risk"
    note = "the router copies its mask"            # optional

A waiver that has expired, that no longer matches a lane or that no lane needs is stale, and fails.
"""

from __future__ import annotations

import datetime
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Literal

from pytest_compilecontract.errors import UsageError
from pytest_compilecontract.facts.limits import LIMITS
from pytest_compilecontract.facts.measurement import Numerics, StepOperators
from pytest_compilecontract.facts.metrics import FOLLOWING, GATEABLE, LINED, METRICS, OF_LINES
from pytest_compilecontract.facts.receipt import Entry
from pytest_compilecontract.facts.verdict import STEADY
from pytest_compilecontract.facts.versions import VersionRange, version_range
from pytest_compilecontract.regular import refuse_special
from pytest_compilecontract.wording import first_line, meant

from .drift import Comparison, Drift, Fact, LaneComparison, Value
from .tell import facts_of

Kind = Literal["workaround", "open-risk"]
KINDS: tuple[Kind, ...] = ("workaround", "open-risk")
FILE = Path("contracts/waivers.toml")
MOST_BYTES = 1024 * 1024
ANY = "*"
# The largest value of a metric that can be tolerated.
LARGEST = 10**18
_TEXTS = ("contract", "torch", "issue", "owner")
_KEYS = ("contract", "lane", "metric", "fact", "torch", "issue", "owner", "expires", "kind", "note")
# What follows from a line is tolerated with it. A line says nothing of other limits, such as those of numbers, memory
# and speed.
_LIMITS_FOLLOWING = frozenset(
    ["fullgraph", STEADY, *(name for name, limit in LIMITS.items() if limit.metric in OF_LINES)]
)
# What a metric is called here, or where a drift is printed.
_NAMED = {called: name for name in GATEABLE for called in (name, METRICS[name].label)}
_BRACKET = re.compile(r"\[(?![*?]\])")
_TABLE = re.compile(r"\s*\[\[\s*(?:waiver|\"waiver\"|'waiver')\s*\]\]")


@dataclass(frozen=True, kw_only=True, slots=True)
class Waiver:
    """Drift that is tolerated, in each of `metrics`. `place` is its file and line, `expires` the last day it holds.

    With `facts`, only drift that they cause: each is a glob for a line's text, its place, or both as in a report, with
    or without the reason. `worst` has, by metric, the worst value that is tolerated; of a metric without one any is.
    """

    contract: str
    lanes: tuple[str, ...]
    metrics: tuple[str, ...]
    torch: VersionRange
    issue: str
    owner: str
    expires: datetime.date
    kind: Kind
    facts: tuple[str, ...] = ()
    worst: tuple[tuple[str, Value], ...] = ()
    note: str = ""
    place: str = ""

    def is_about(self, lane: LaneComparison) -> bool:
        """Whether it applies to this lane, with the torch that the lane ran on."""
        named = fnmatchcase(lane.contract, _glob(self.contract)) and any(fnmatchcase(lane.lane, g) for g in self.lanes)
        return named and lane.torch is not None and lane.torch in self.torch

    def names(self, fact: Fact) -> bool:
        """Whether it names this fact."""
        place = [text for text in (fact.where, fact.source, f"{fact.where}: {fact.source}") if text]
        reason = reason_of(fact)
        told = [*place, *(f"{text}: {reason}" for text in place if reason)]
        return not self.facts or any(
            fnmatchcase(text, glob) for each in self.facts for glob in _globs(each) for text in told
        )

    def allows(self, drift: Drift) -> bool:
        """Whether it tolerates drift of this metric, and so much of it."""
        worst = dict(self.worst).get(drift.metric, ANY)
        if drift.metric not in self.metrics or worst == ANY:
            return drift.metric in self.metrics
        if isinstance(worst, str) or isinstance(drift.after, str):
            return worst == drift.after
        metric = METRICS[drift.metric]
        near = metric.band or 0.0
        return drift.after >= worst * (1 - near) if metric.better == "higher" else drift.after <= worst * (1 + near)

    @property
    def exact(self) -> bool:
        """Whether it names one contract, and lanes by name."""
        return not set("*?") & {*self.contract, *"".join(self.lanes)}

    @property
    def by_lane(self) -> tuple[Waiver, ...]:
        """It as a waiver for each of the lanes that it names; itself if it has a glob for them."""
        globs = set("*?") & {*"".join(self.lanes)}
        return (self,) if globs else tuple(replace(self, lanes=(lane,)) for lane in self.lanes)

    def __str__(self) -> str:
        metrics = [ANY] if self.metrics == GATEABLE else self.metrics
        facts = (
            [self.facts[0] + (f" and {len(self.facts) - 1} more" if len(self.facts) > 1 else "")] if self.facts else []
        )
        what = facts or metrics if self.worst or self.metrics == GATEABLE else (*metrics, *facts)
        return f"{self.contract} [{', '.join(self.lanes)}] {', '.join(what)}"


def reason_of(fact: Fact) -> str:
    """The reason of a fact as a waiver names it: its first line, however often it occurred."""
    return first_line(fact.reason)


def read_waivers(path: Path) -> tuple[Waiver, ...]:
    """The waivers in the file.

    Raises:
        UsageError: the file cannot be read, or has an invalid waiver.
    """
    try:
        refuse_special(path)
        with path.open("rb") as file:
            data = file.read(MOST_BYTES + 1)
        if len(data) > MOST_BYTES:
            raise UsageError(f"{path}: larger than {MOST_BYTES // 1024**2} MiB, too large for waivers")
        text = data.decode()
        document = tomllib.loads(text)
    except (OSError, ValueError, RecursionError) as error:
        cause = (isinstance(error, OSError) and error.strerror) or str(error) or type(error).__name__
        raise UsageError(f"{path}: cannot be read ({cause})") from error
    for key in document:
        if key != "waiver":
            raise UsageError(f"{path}: unknown key {key!r} (known keys: waiver)")
    tables = document.get("waiver", [])
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise UsageError(f"{path}: waiver: expected tables such as [[waiver]]")
    lines = [number for number, line in enumerate(text.splitlines(), start=1) if _TABLE.match(line)]
    shown = from_here(path)
    # Only where each table has a line of its own is it known which is whose.
    places = [f"{shown}:{line}" for line in lines] if len(lines) == len(tables) else [str(shown)] * len(tables)
    return tuple(_waiver(table, place) for table, place in zip(tables, places, strict=True))


def from_here(path: Path) -> Path:
    """The path from the current folder, if it is below it: the same whoever names it."""
    try:
        return path.relative_to(Path.cwd())
    except (OSError, ValueError):
        return path


def waived(comparison: Comparison, waivers: Sequence[Waiver], today: datetime.date) -> Comparison:
    """The comparison with waived drift marked: a lane whose drift is all waived has the verdict "waived".

    A waiver that has expired waives nothing.
    """
    return replace(comparison, lanes=tuple(waived_lane(lane, waivers, today) for lane in comparison.lanes))


def waived_lane(lane: LaneComparison, waivers: Iterable[Waiver], today: datetime.date) -> LaneComparison:
    """The same for one lane."""
    wanted = [waiver for waiver in waivers if waiver.expires >= today and waiver.is_about(lane)]
    if not wanted or not (lane.verdict == "drifted" or lane.newly_broken):
        return lane
    found = _tolerating(lane.drifts, wanted)
    drifts = tuple(_marked(drift, found.get(drift.metric, [])) for drift in lane.drifts)
    if any(is_worse(drift) and not drift.waived for drift in drifts):
        return replace(lane, drifts=drifts)
    used = [waiver for drift in drifts if drift.waived for waiver in found[drift.metric]]
    return replace(
        lane,
        verdict="waived",
        drifts=drifts,
        reason="; ".join(dict.fromkeys(map(_said, used))),
        worked_around=all(waiver.kind == "workaround" for waiver in used),
    )


def stale(
    comparison: Comparison, waivers: Iterable[Waiver], today: datetime.date, *, whole: bool = True
) -> tuple[str, ...]:
    """The waivers to delete, one line each: where, which, and why.

    A glob can only be stale if the newer run is known to have run all that it may match, and not if a caller knows of
    tests that were left out (not `whole`). A waiver for a fact that the newer run still has may be needed by another
    comparison.
    """
    return tuple(
        f"{waiver.place}: the waiver of {waiver} {said}"
        for waiver in waivers
        if (said := _stale(waiver, comparison, today, whole and _ran_all(waiver, comparison)))
    )


def _stale(waiver: Waiver, comparison: Comparison, today: datetime.date, whole: bool) -> str:
    """Why a waiver is stale, and what to do; empty if it is not."""
    if waiver.expires < today:
        return f"expired on {waiver.expires}: {_what_would_do(waiver, comparison)}"
    whys = {each.lanes: _why_stale(each, comparison, whole) for each in waiver.by_lane}
    found = dict.fromkeys(why for why in whys.values() if why)
    if not found:
        return ""
    if all(whys.values()) and len(found) == 1:
        return f"{next(iter(found))}: delete it"
    lanes = {why: ", ".join(lane for each, told in whys.items() if told == why for lane in each) for why in found}
    return "; ".join(f"{why} in {named}: take out {named}" for why, named in lanes.items())


def _ran_all(waiver: Waiver, comparison: Comparison) -> bool:
    """Whether the newer run has every contract that the waiver may be about."""
    known = re.split(r"[*?]", waiver.contract, maxsplit=1)[0]
    return any(not folder or known.startswith(f"{folder}/") for folder in comparison.ran)


def _what_would_do(waiver: Waiver, comparison: Comparison) -> str:
    """What to do about a waiver that has expired: if its drift remains, or may remain, not just delete it."""
    lanes = [lane for lane in comparison.lanes if waiver.is_about(lane)]
    if not lanes:
        return "delete it if its drift is gone, no lane that it is about ran"
    if _is_needed(waiver, lanes):
        return "the drift is still there: fix it, or set a later date"
    return "delete it"


def _is_needed(waiver: Waiver, lanes: Iterable[LaneComparison]) -> bool:
    """Whether a lane has a drift that the waiver would tolerate."""
    return any(
        drift.metric in waiver.metrics and is_worse(drift) and (not waiver.facts or any(map(waiver.names, drift.came)))
        for lane in lanes
        for drift in lane.drifts
    )


def _tolerating(drifts: Sequence[Drift], waivers: Sequence[Waiver]) -> dict[str, list[Waiver]]:
    """By metric, the waivers that together tolerate all of its drift; empty if some of it remains."""
    worse = [drift for drift in drifts if is_worse(drift)]
    found = {drift.metric: _covering(drift, waivers) for drift in worse}
    by_line = [waiver for metric in LINED for waiver in found.get(metric, ()) if waiver.facts]
    for drift in worse:
        if drift.metric in FOLLOWING and not found[drift.metric]:
            found[drift.metric] = _covering(drift, waivers, [each for each in by_line if each.allows(drift)])
    return found


def _covering(drift: Drift, waivers: Sequence[Waiver], by_line: Sequence[Waiver] = ()) -> list[Waiver]:
    """The waivers that together tolerate this drift; `by_line` tolerate the lines that it may come of."""
    about = [waiver for waiver in waivers if waiver.allows(drift)]
    if whole := [waiver for waiver in about if not waiver.facts]:
        return whole[-1:]
    if drift.metric in FOLLOWING and drift.metric != "limits":
        return [*by_line[:1]]
    each = [_naming(fact, about) or (follows(fact) and next(iter(by_line), None)) or None for fact in drift.came]
    return [] if None in each else list(dict.fromkeys(waiver for waiver in each if waiver is not None))


def _naming(fact: Fact, waivers: Sequence[Waiver]) -> Waiver | None:
    return next((waiver for waiver in waivers if waiver.names(fact)), None)


def follows(limit: Fact) -> bool:
    """Whether it is a limit of what follows from a line."""
    return limit.name in _LIMITS_FOLLOWING


def _marked(drift: Drift, by: Sequence[Waiver]) -> Drift:
    return replace(drift, waived=by[0].issue) if by and is_worse(drift) else drift


def is_worse(drift: Drift) -> bool:
    """Whether it is drift that fails a lane."""
    return drift.gates and drift.direction == "worse"


def _said(waiver: Waiver) -> str:
    note = f": {waiver.note}" if waiver.note else ""
    return f"{waiver.kind}, {waiver.issue} ({waiver.owner}, until {waiver.expires}){note}"


def _why_stale(waiver: Waiver, comparison: Comparison, whole: bool) -> str:
    lanes = [lane for lane in comparison.lanes if waiver.is_about(lane)]
    if not lanes:
        # On another torch than it speaks of it says nothing, and is still needed.
        speaks = any(lane.torch is not None and lane.torch in waiver.torch for lane in comparison.lanes)
        return "no longer matches a lane" if whole and speaks else ""
    if not all(lane.compared for lane in lanes) or not (whole or waiver.exact):
        return ""
    if "errors" not in waiver.metrics and any(lane.after == "broken" for lane in lanes):
        # A lane that broke off shows no other drift.
        return ""
    return "" if _is_needed(waiver, lanes) or _shows(waiver, lanes) else "is no longer needed"


def _shows(waiver: Waiver, lanes: Iterable[LaneComparison]) -> bool:
    """Whether a lane still has a fact that the waiver is about, even if both runs have it."""
    entries = [lane.now for lane in lanes if lane.now is not None]
    if not waiver.facts:
        return any(_has(each, metric) for each in entries for metric in waiver.metrics)
    facts = [told for each in entries for metric, told in facts_of(each).items() if metric in waiver.metrics]
    return any(waiver.names(fact) for told in facts for _, fact in told)


def _has(entry: Entry, metric: str) -> bool:
    seen = entry.measurement
    if metric == "limits":
        return bool(entry.violations)
    if seen is None or METRICS[metric].better != "lower":
        return False
    if metric == "capture":
        return seen.graphs == 0
    value = getattr(seen, METRICS[metric].at)
    if isinstance(value, Numerics):
        return bool(value.differences)
    return bool(value.skipped if isinstance(value, StepOperators) else value)


def _glob(contract: str) -> str:
    # In a test's name, brackets are its parameters.
    return contract.replace("[", "[[]")


def _globs(fact: str) -> tuple[str, str]:
    # In a line, brackets are Python's; but "[*]" is also how a glob has a "*" that is one.
    return _glob(fact), _BRACKET.sub("[[]", fact)


def _waiver(table: Mapping[str, object], place: str) -> Waiver:
    for key in table:
        if key not in _KEYS:
            raise UsageError(f"{place}: unknown key {key!r} (known keys: {', '.join(_KEYS)})")
    for key in _KEYS:
        if key not in table and key not in ("fact", "note") and (key != "metric" or "fact" not in table):
            raise UsageError(f"{place}: {key}: missing")
    texts: dict[str, str] = {}
    for key in (*_TEXTS, "note"):
        value = table.get(key, "-")
        if not isinstance(value, str) or not value.strip():
            raise UsageError(f"{place}: {key}: expected a string, got {value!r}")
        texts[key] = value
    metrics, worst = _metrics(table.get("metric", ANY), place)
    kind = next((each for each in KINDS if each == table["kind"]), None)
    if kind is None:
        raise UsageError(f"{place}: kind: expected {' or '.join(map(repr, KINDS))}, got {table['kind']!r}")
    if not re.match(r"https?://\S+$", texts["issue"]):
        raise UsageError(f"{place}: issue: expected a URL, got {texts['issue']!r}")
    expires = table["expires"]
    if type(expires) is not datetime.date:
        raise UsageError(f"{place}: expires: expected a date such as 2027-01-31 without quotes, got {expires!r}")
    return Waiver(
        **{key: texts[key] for key in ("contract", "issue", "owner")},
        lanes=_texts(table["lane"], f"{place}: lane: expected a string or a list of them"),
        kind=kind,
        metrics=metrics,
        worst=worst,
        facts=_texts(table["fact"], f"{place}: fact: expected a string or a list of them") if "fact" in table else (),
        torch=version_range(texts["torch"], where=f"{place}: torch"),
        expires=expires,
        note=texts["note"] if "note" in table else "",
        place=place,
    )


def _metrics(given: object, place: str) -> tuple[tuple[str, ...], tuple[tuple[str, Value], ...]]:
    """The metrics that a waiver names, by name or by the label in reports, and the worst value of each in a table."""
    if given == ANY:
        return GATEABLE, ()
    values = given if isinstance(given, dict) else {}
    names = _texts([*values] or given, f"{place}: metric: expected a string, a list of strings, a table, or '*'")
    for each in names:
        if each not in _NAMED:
            known = ", ".join(sorted(GATEABLE))
            raise UsageError(f"{place}: metric: unknown metric {each!r}{meant(each, _NAMED)} (known metrics: {known})")
    for name, value in values.items():
        number = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= LARGEST
        if not number and not (isinstance(value, str) and value):
            raise UsageError(f"{place}: metric.{name}: expected its worst value, or '*' for any, got {value!r}")
    metrics = tuple(dict.fromkeys(_NAMED[each] for each in names))
    return metrics, tuple((_NAMED[name], value) for name, value in values.items())


def _texts(given: object, expected: str) -> tuple[str, ...]:
    listed = given if isinstance(given, list) else [given]
    texts = tuple(each for each in listed if isinstance(each, str) and each.strip())
    if not texts or len(texts) < len(listed):
        raise UsageError(f"{expected}, got {given!r}")
    return texts
