"""Waivers: drift that is tolerated until a date, each with its issue and owner.

    [[waiver]]
    contract = "contracts/test_decoder.py::*"      # a glob
    lane = "inductor"                              # a glob
    metric = "graph_breaks"                        # or a list, or "*" for any metric
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
import json
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Literal

from pytest_compilecontract.errors import UsageError
from pytest_compilecontract.facts.measurement import Numerics, StepOperators
from pytest_compilecontract.facts.metrics import GATEABLE, METRICS
from pytest_compilecontract.facts.receipt import Entry
from pytest_compilecontract.facts.versions import VersionRange, version_range
from pytest_compilecontract.regular import refuse_special
from pytest_compilecontract.wording import meant

from .drift import Comparison, Drift, Fact, LaneComparison
from .tell import facts_of

Kind = Literal["workaround", "open-risk"]
KINDS: tuple[Kind, ...] = ("workaround", "open-risk")
FILE = Path("contracts/waivers.toml")
MOST_BYTES = 1024 * 1024
ANY = "*"
_TEXTS = ("contract", "lane", "torch", "issue", "owner")
_KEYS = (*_TEXTS, "metric", "fact", "expires", "kind", "note")
# What is counted of a break, and has no line of its own: tolerated with the line that is.
_FOLLOWING = ("capture", "fullgraph", "limits", "ops_captured")
# What a metric is called here, or where a drift is printed.
_NAMED = {called: name for name in GATEABLE for called in (name, METRICS[name].label)}
_NEEDLESS = "is no longer needed"
_TABLE = re.compile(r"\s*\[\[\s*(?:waiver|\"waiver\"|'waiver')\s*\]\]")


@dataclass(frozen=True, kw_only=True, slots=True)
class Waiver:
    """Drift that is tolerated, in each of `metrics`. `place` is its file and line, `expires` the last day it holds.

    With `facts`, only drift that they cause: each is a glob for a line's text, its place, or both as in a report.
    """

    contract: str
    lane: str
    metrics: tuple[str, ...]
    torch: VersionRange
    issue: str
    owner: str
    expires: datetime.date
    kind: Kind
    facts: tuple[str, ...] = ()
    note: str = ""
    place: str = ""

    def is_about(self, lane: LaneComparison) -> bool:
        """Whether it applies to this lane, with the torch that the lane ran on."""
        named = fnmatchcase(lane.contract, _glob(self.contract)) and fnmatchcase(lane.lane, self.lane)
        return named and lane.torch is not None and lane.torch in self.torch

    def names(self, fact: Fact) -> bool:
        """Whether it names this fact."""
        told = (fact.where, fact.source, f"{fact.where}: {fact.source}")
        return not self.facts or any(fnmatchcase(text, _glob(each)) for each in self.facts for text in told if text)

    @property
    def exact(self) -> bool:
        """Whether it names one lane of one contract."""
        return not set("*?") & {*self.contract, *self.lane}

    def __str__(self) -> str:
        metrics = [ANY] if self.metrics == GATEABLE else self.metrics
        what = self.facts if self.facts and self.metrics == GATEABLE else (*metrics, *self.facts)
        return f"{self.contract} [{self.lane}] {', '.join(what)}"


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
    # Only where each table has a line of its own is it known which is whose.
    places = [f"{path}:{line}" for line in lines] if len(lines) == len(tables) else [str(path)] * len(tables)
    return tuple(_waiver(table, place) for table, place in zip(tables, places, strict=True))


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
    if any(_is_worse(drift) and not drift.waived for drift in drifts):
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
    comparison: Comparison,
    waivers: Iterable[Waiver],
    today: datetime.date,
    *,
    whole: bool,
    new: Iterable[Entry] | None = None,
) -> tuple[str, ...]:
    """The waivers to delete, one line each: where, which, and why.

    If a run is not `whole`, a glob without a match is not stale. `new` are the entries of the newer run: a waiver for a
    fact that they still have may be needed by another comparison.
    """
    entries = None if new is None else {(each.contract, each.lane): each for each in new}
    found = [(waiver, _why_stale(waiver, comparison, today, whole)) for waiver in waivers]
    if entries is not None:
        found = [
            (waiver, "" if why == _NEEDLESS and _shows(waiver, comparison, entries) else why) for waiver, why in found
        ]
    return tuple(
        f"{waiver.place}: the waiver of {waiver} {why}: {_what_would_do(waiver, comparison, today)}"
        for waiver, why in found
        if why
    )


def _what_would_do(waiver: Waiver, comparison: Comparison, today: datetime.date) -> str:
    """What to do about a stale waiver: if it has expired and its drift remains, or may remain, not just delete it."""
    lanes = [lane for lane in comparison.lanes if waiver.is_about(lane)]
    if waiver.expires < today and not lanes:
        return "delete it if its drift is gone, no lane that it is about ran"
    needed = waiver.expires < today and _is_needed(waiver, lanes)
    return "the drift is still there: fix it, or set a later date" if needed else "delete it"


def _is_needed(waiver: Waiver, lanes: Iterable[LaneComparison]) -> bool:
    """Whether a lane has a drift that the waiver would tolerate."""
    return any(
        drift.metric in waiver.metrics and _is_worse(drift) and (not waiver.facts or any(map(waiver.names, drift.came)))
        for lane in lanes
        for drift in lane.drifts
    )


def _tolerating(drifts: Sequence[Drift], waivers: Sequence[Waiver]) -> dict[str, list[Waiver]]:
    """By metric, the waivers that together tolerate all of its drift; empty if some of it remains."""
    found = {drift.metric: _covering(drift, waivers) for drift in drifts if _is_worse(drift)}
    by_line = [waiver for each in found.values() for waiver in each if waiver.facts]
    for metric in _FOLLOWING:
        if metric in found and not found[metric]:
            found[metric] = [waiver for waiver in by_line if metric in waiver.metrics][:1]
    return found


def _covering(drift: Drift, waivers: Sequence[Waiver]) -> list[Waiver]:
    about = [waiver for waiver in waivers if drift.metric in waiver.metrics]
    if whole := [waiver for waiver in about if not waiver.facts]:
        return whole[-1:]
    if not drift.came or drift.metric in _FOLLOWING:
        return []
    each = [next((waiver for waiver in about if waiver.names(fact)), None) for fact in drift.came]
    return [] if None in each else list(dict.fromkeys(waiver for waiver in each if waiver is not None))


def _marked(drift: Drift, by: Sequence[Waiver]) -> Drift:
    return replace(drift, waived=by[0].issue) if by and _is_worse(drift) else drift


def _is_worse(drift: Drift) -> bool:
    return drift.gates and drift.direction == "worse"


def _said(waiver: Waiver) -> str:
    note = f": {waiver.note}" if waiver.note else ""
    return f"{waiver.kind}, {waiver.issue} ({waiver.owner}, until {waiver.expires}){note}"


def _why_stale(waiver: Waiver, comparison: Comparison, today: datetime.date, whole: bool) -> str:
    if waiver.expires < today:
        return f"expired on {waiver.expires}"
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
    return "" if _is_needed(waiver, lanes) else _NEEDLESS


def _shows(waiver: Waiver, comparison: Comparison, entries: Mapping[tuple[str, str], Entry]) -> bool:
    """Whether a lane still has a fact that the waiver is about, even if both runs have it."""
    found = [entries.get((lane.contract, lane.lane)) for lane in comparison.lanes if waiver.is_about(lane)]
    lanes = [each for each in found if each is not None]
    if not waiver.facts:
        return any(_has(each, metric) for each in lanes for metric in waiver.metrics)
    facts = [told for each in lanes for metric, told in facts_of(each).items() if metric in waiver.metrics]
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


def _waiver(table: Mapping[str, object], place: str) -> Waiver:
    for key in table:
        if key not in _KEYS:
            raise UsageError(f"{place}: unknown key {key!r} (known keys: {', '.join(_KEYS)})")
    for key in (*_TEXTS[:2], "metric", *_TEXTS[2:], "expires", "kind"):
        if key not in table and (key != "metric" or "fact" not in table):
            raise UsageError(f"{place}: {key}: missing")
    texts: dict[str, str] = {}
    for key in (*_TEXTS, "note"):
        value = table.get(key, "-")
        if not isinstance(value, str) or not value.strip():
            raise UsageError(f"{place}: {key}: expected a string, got {value!r}")
        texts[key] = value
    metrics = _metrics(table.get("metric", ANY), place)
    kind = next((each for each in KINDS if each == table["kind"]), None)
    if kind is None:
        raise UsageError(f"{place}: kind: expected {' or '.join(map(repr, KINDS))}, got {table['kind']!r}")
    if not re.match(r"https?://\S+$", texts["issue"]):
        raise UsageError(f"{place}: issue: expected a URL, got {texts['issue']!r}")
    expires = table["expires"]
    if type(expires) is not datetime.date:
        raise UsageError(f"{place}: expires: expected a date such as 2027-01-31 without quotes, got {expires!r}")
    return Waiver(
        **{key: texts[key] for key in ("contract", "lane", "issue", "owner")},
        kind=kind,
        metrics=metrics,
        facts=_texts(table["fact"], f"{place}: fact: expected a string or a list of them") if "fact" in table else (),
        torch=version_range(texts["torch"], where=f"{place}: torch"),
        expires=expires,
        note=texts["note"] if "note" in table else "",
        place=place,
    )


def _metrics(given: object, place: str) -> tuple[str, ...]:
    """The metrics that a waiver names: one, a list, or "*"; by name or by the label in reports."""
    if given == ANY:
        return GATEABLE
    names = _texts(given, f"{place}: metric: expected a string, a list of strings, or '*'")
    for each in names:
        if each not in _NAMED:
            known = ", ".join(sorted(GATEABLE))
            raise UsageError(f"{place}: metric: unknown metric {each!r}{meant(each, _NAMED)} (known metrics: {known})")
    return tuple(dict.fromkeys(_NAMED[each] for each in names))


def _texts(given: object, expected: str) -> tuple[str, ...]:
    listed = given if isinstance(given, list) else [given]
    texts = tuple(each for each in listed if isinstance(each, str) and each.strip())
    if not texts or len(texts) < len(listed):
        raise UsageError(f"{expected}, got {given!r}")
    return texts


def as_toml(lane: LaneComparison, *, torch: str, issue: str, owner: str, expires: datetime.date, kind: Kind) -> str:
    """The waiver, as TOML, for everything that drifted in a lane; empty if nothing needs one."""
    metrics = list(dict.fromkeys(drift.metric for drift in lane.drifts if _is_worse(drift) and not drift.waived))
    if not metrics:
        return ""
    texts = {"contract": lane.contract, "lane": lane.lane}
    named = metrics[0] if len(metrics) == 1 else metrics
    rest = {"torch": torch, "issue": issue, "owner": owner}
    # JSON's strings and lists are TOML's as well.
    lines = [f"{key} = {json.dumps(value)}" for key, value in {**texts, "metric": named, **rest}.items()]
    return "\n".join(["[[waiver]]", *lines, f"expires = {expires}", f"kind = {json.dumps(kind)}", ""])
