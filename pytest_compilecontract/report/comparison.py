"""The text of a comparison and of the gate's answer, for a terminal. Nothing here writes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from pytest_compilecontract.compare.attribution import Attribution
from pytest_compilecontract.compare.cold import cold_lines
from pytest_compilecontract.compare.drift import Comparison, Drift, Fact, LaneComparison, Value, Verdict
from pytest_compilecontract.compare.gate import Answer, why_open
from pytest_compilecontract.compare.policy import DEFAULT_POLICY, Policy
from pytest_compilecontract.compare.waivers import FILE as WAIVERS
from pytest_compilecontract.escaping import plain, typed
from pytest_compilecontract.facts.metrics import METRICS
from pytest_compilecontract.shell import PROGRAM, in_shell
from pytest_compilecontract.wording import counted, first_line
from pytest_compilecontract.wording import cut as cut_to

from .color import Paint, unpainted

WIDTH = 160
MOST_FACTS = 6
MOST_GROUPS = 40
MOST_SETTINGS = 8
MOST_DEFAULTS = 2

# The worst first.
_ORDER: tuple[Verdict, ...] = (
    "broken",
    "drifted",
    "unstable",
    "unverified",
    "missing",
    "unmeasured",
    "new",
    "waived",
    "improved",
    "held",
)
_MARGIN = "  "
_STACK_SHOWN = 4


@dataclass(frozen=True, kw_only=True, slots=True)
class _Group:
    """Lanes of one contract with the same text."""

    verdict: str
    contract: str
    lanes: tuple[str, ...]
    rerun: str
    lines: tuple[str, ...]


def comparison_lines(comparison: Comparison, *, everything: bool = False, paint: Paint = unpainted) -> list[str]:
    """Every lane that changed, the worst first, and the totals.

    `everything` also shows what no policy judges, and each lane that held. `paint` colors the verdicts.
    """
    shared = _shared(comparison)
    lines = [title(comparison), *_attribution_lines(shared, everything)]
    shown = [lane for lane in comparison.lanes if everything or _is_news(lane)]
    groups = _grouped(shown, shared, everything)
    for group in groups if everything else groups[:MOST_GROUPS]:
        lines += ["", *_group_lines(group, paint)]
    if not everything and len(groups) > MOST_GROUPS:
        lines += ["", f"... and {len(groups) - MOST_GROUPS} more (shown by -v)"]
    return [*lines, "", *cold_told(comparison, everything=everything), totals(comparison)]


def answer_lines(
    comparison: Comparison,
    answer: Answer,
    policy: Policy = DEFAULT_POLICY,
    runs: tuple[Path, Path] | None = None,
    paint: Paint = unpainted,
    *,
    everything: bool = False,
) -> list[str]:
    """The lanes that make the answer no or not known, and the answer on the last line.

    `everything` shows every lane, with what no policy judges, as `comparison_lines` does. `runs` are the paths of the
    two runs, for the command that writes waivers. `paint` colors the verdicts and the answer.
    """
    shared = _shared(comparison)
    lines = [title(comparison), *_attribution_lines(shared, everything)]
    groups = _grouped(comparison.lanes if everything else answer.against, shared, everything)
    for group in groups if everything else groups[:MOST_GROUPS]:
        lines += ["", *_group_lines(group, paint)]
    if not everything and len(groups) > MOST_GROUPS:
        lines += ["", f"... and {len(groups) - MOST_GROUPS} more (shown by compilecontract compare -v)"]
    if answer.open:
        lines += ["", "not known:", *_open_lines(answer.open, policy)]
    tolerated = [lane for lane in comparison.lanes if lane.verdict == "waived"]
    lines += ["", "waived:", *_waived_lines(tolerated)] if tolerated else []
    lines += ["", *stale_lines(answer)] if answer.stale else []
    lines += ["", *waiving(*runs)] if answer.against and runs is not None else []
    answered = paint(verdict_line(comparison, answer), answer.outcome)
    return [*lines, "", *cold_told(comparison, everything=everything), totals(comparison), answered]


def waiving(old: Path, new: Path) -> list[str]:
    """The command that writes waivers for all drift, to be completed by their owner."""
    command = typed(in_shell([PROGRAM, "waive", str(old), str(new)], Path.cwd()))
    return ["to waive this drift until a date:", f"{command} --owner ... --issue ... --expires ... >> {WAIVERS}"]


def cold_told(comparison: Comparison, *, everything: bool = False) -> list[str]:
    """First-call seconds before and after: in total, and with `everything`, where they differ most."""
    first, *lanes = cold_lines(comparison.lanes) or [""]
    return [first, *(cut(f"{_MARGIN}{plain(each)}") for each in lanes if everything)] if first else []


def _waived_lines(lanes: Sequence[LaneComparison]) -> Iterator[str]:
    """The waivers in use, with owner, issue and date: one line for each, with lanes over their limits apart."""
    reasons: dict[tuple[str, bool], list[LaneComparison]] = {}
    for lane in lanes:
        reasons.setdefault((lane.reason, lane.over_its_limits), []).append(lane)
    for (reason, exceeds), group in list(reasons.items())[:MOST_GROUPS]:
        more = f" and {len(group) - 1} more" if len(group) > 1 else ""
        over = "; also over its limits" if exceeds else ""
        yield cut(f"{_MARGIN}{plain(group[0].contract)} [{plain(group[0].lane)}]{more}: {plain(reason)}{over}")
    if len(reasons) > MOST_GROUPS:
        yield f"{_MARGIN}... and {len(reasons) - MOST_GROUPS} more waivers"


def stale_lines(answer: Answer) -> list[str]:
    """The stale waivers, one uncut line each."""
    return [plain(line) for line in answer.stale]


def title(comparison: Comparison) -> str:
    """What was compared with what, and how much of it."""
    contracts = {lane.contract for lane in comparison.lanes}
    compared = sum(lane.compared for lane in comparison.lanes)
    where = f"{plain(comparison.before)} -> {plain(comparison.after)}"
    return f"{where}: compared {compared} of {counted(len(comparison.lanes), 'lane')} of " + counted(
        len(contracts), "contract"
    )


def totals(comparison: Comparison) -> str:
    """The number of lanes with each verdict."""
    found = Counter(lane.verdict for lane in comparison.lanes)
    named = ", ".join(f"{found[verdict]} {verdict}" for verdict in reversed(_ORDER) if found[verdict])
    exceeding = sum(lane.verdict in ("held", "improved") and lane.over_its_limits for lane in comparison.lanes)
    note = f" ({exceeding} of them over the contract's limits, as before)" if exceeding else ""
    return f"lanes: {named or 'none'}{note}"


def drift_headline(drift: Drift, label: str = "") -> str:
    """The metric, by this label where one is given, and its two values, as "graph breaks 0 -> 1"."""
    label = label or METRICS[drift.metric].label
    if drift.metric == "capture":
        return label if drift.direction == "worse" else "captured again"
    return f"{label} {_value(drift.before)} -> {_value(drift.after)}"


def place_of(drift: Drift) -> str:
    """The place of the first fact that was added, or else removed, as " at net.py:29 in forward"."""
    places = [fact.where for fact in drift.came or drift.went if fact.source]
    return f" at {plain(places[0])}" if places else ""


def excuse_note(drift: Drift) -> str:
    """The rule that excuses a drift; empty if none does."""
    return f"not gated: {drift.excuse}" if drift.excuse and not drift.gates else drift.excuse


def lane_lines(lane: LaneComparison) -> Iterator[str]:
    """The text about one lane: its drifts with their facts, and what differs between the two runs."""
    yield from _lane_lines(lane, lane.attribution, False)
    yield from _attribution_lines(lane.attribution)


def _value(value: Value) -> str:
    return f"{value:.3g}" if isinstance(value, float) else plain(str(value))


def _is_news(lane: LaneComparison) -> bool:
    return lane.verdict != "held" or bool(why_open(lane))


def _shared(comparison: Comparison) -> Attribution:
    """What differs for most lanes; other lanes report their own differences."""
    found = Counter(lane.attribution for lane in comparison.lanes if lane.before and lane.after)
    return found.most_common(1)[0][0] if found else Attribution()


def _attribution_lines(attribution: Attribution, everything: bool = False) -> list[str]:
    lines = []
    for kind in attribution.suspects():
        changes = getattr(attribution, kind)
        shown = ", ".join(plain(change) for change in changes[:MOST_SETTINGS])
        more = f", and {len(changes) - MOST_SETTINGS} more" if len(changes) > MOST_SETTINGS else ""
        lines.append(cut(f"{_MARGIN}{kind}: {shown}{more}"))
    if attribution.defaults:
        changed = [plain(change) for change in attribution.defaults]
        count = counted(len(changed), "setting")
        if everything:
            lines += [f"{_MARGIN}{count} with a changed default:", *(cut(_MARGIN * 2 + change) for change in changed)]
        else:
            more = ", ..." if len(changed) > MOST_DEFAULTS else ""
            shown = ", ".join(changed[:MOST_DEFAULTS])
            lines.append(cut(f"{_MARGIN}{count} with a changed default: {shown}{more}"))
    return lines


def _grouped(lanes: Sequence[LaneComparison], shared: Attribution, everything: bool) -> list[_Group]:
    groups: dict[tuple[str, str, tuple[str, ...]], list[LaneComparison]] = {}
    ordered = sorted(lanes, key=lambda lane: (_ORDER.index(lane.verdict), lane.contract))
    for lane in ordered:
        lines = tuple(_lane_lines(lane, shared, everything))
        groups.setdefault((lane.contract, lane.verdict, lines), []).append(lane)
    return [
        _Group(
            verdict=verdict,
            contract=contract,
            lanes=tuple(lane.lane for lane in members),
            rerun=str(members[0].rerun or ""),
            lines=lines,
        )
        for (contract, verdict, lines), members in groups.items()
    ]


def _group_lines(group: _Group, paint: Paint) -> list[str]:
    lanes = ", ".join(plain(lane) for lane in group.lanes)
    named = cut_to(f" {plain(group.contract)} [{lanes}]", WIDTH - len(group.verdict))
    lines = [paint(group.verdict, group.verdict) + named, *group.lines]
    if group.verdict in ("broken", "drifted", "unstable", "unverified"):
        # To be copied, so whole.
        lines.append(f"{_MARGIN}rerun: {plain(group.rerun)}")
    return lines


def _lane_lines(lane: LaneComparison, shared: Attribution, everything: bool) -> Iterator[str]:
    if lane.reason:
        yield cut(f"{_MARGIN}{plain(lane.reason)}")
    elif open_ := why_open(lane):
        yield f"{_MARGIN}{plain(open_)}"
    yield from _drifts_lines([drift for drift in lane.by_cause if drift.gates or everything])
    if everything:
        yield from (cut(f"{_MARGIN}not gated: {each}") for each in lane.excused)
    if lane.verdict in ("drifted", "broken", "improved") and lane.attribution != shared:
        yield from (f"{_MARGIN}{line}" for line in _attribution_lines(lane.attribution))


def _drifts_lines(drifts: Sequence[Drift]) -> Iterator[str]:
    for at, drift in enumerate(drifts):
        yield from _drift_lines(drift, "" if at else place_of(drift))


def _drift_lines(drift: Drift, place: str) -> Iterator[str]:
    notes = [f"waived: {plain(drift.waived)}"] if drift.waived else [drift.direction]
    notes = [each for each in (*notes, excuse_note(drift)) if each not in ("", "worse")]
    yield cut(f"{_MARGIN}{drift_headline(drift)}{place}" + (f" ({', '.join(notes)})" if notes else ""))
    for mark, facts in (("+", drift.came), ("-", drift.went)):
        for fact in facts[:MOST_FACTS]:
            yield from _fact_lines(mark, fact)
        if len(facts) > MOST_FACTS:
            yield f"{_MARGIN * 2}{mark} ... and {len(facts) - MOST_FACTS} more"


def _fact_lines(mark: str, fact: Fact) -> Iterator[str]:
    reason = plain(first_line(fact.said))
    inner = _MARGIN * 4
    # Where there is no user's line to show, the reason takes its place.
    said = plain(fact.source) or reason
    yield cut(f"{_MARGIN * 2}{mark} {plain(fact.where)}" + (f": {said}" if said else ""))
    if fact.source and reason:
        yield cut(inner + reason)
    if fact.hint and mark == "+":
        yield cut(f"{inner}hint: {plain(first_line(fact.hint))}")
    if fact.stack:
        calls = [plain(frame) for frame in fact.stack[-_STACK_SHOWN:]]
        yield cut(f"{inner}called from {', '.join(reversed(calls))}")


def _open_lines(lanes: Sequence[LaneComparison], policy: Policy) -> Iterator[str]:
    reasons: dict[tuple[str, str], list[LaneComparison]] = {}
    for lane in lanes:
        reasons.setdefault((lane.verdict, why_open(lane, policy)), []).append(lane)
    for (verdict, reason), group in list(reasons.items())[:MOST_GROUPS]:
        names = [f"{plain(lane.contract)} [{plain(lane.lane)}]" for lane in group]
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        said = "" if verdict in ("held", "improved") else f"{verdict}: "
        yield cut(f"{_MARGIN}{names[0]}{more}: {said}{plain(reason)}")
    if len(reasons) > MOST_GROUPS:
        yield f"{_MARGIN}... and {len(reasons) - MOST_GROUPS} more reasons"


def verdict_line(comparison: Comparison, answer: Answer) -> str:
    """The question, and the gate's answer with its reasons."""
    question = f"may we upgrade from {plain(comparison.before)} to {plain(comparison.after)}?"
    if answer.outcome == "yes":
        over = sum(lane.verdict == "waived" and lane.over_its_limits for lane in comparison.lanes)
        note = f", but pytest still fails {counted(over, 'waived lane')}: waivers do not change limits" if over else ""
        return f"{question} yes{note}"
    said = []
    broken = sum(lane.verdict == "broken" for lane in answer.against)
    if drifted := len(answer.against) - broken:
        said.append(f"{counted(drifted, 'lane')} drifted")
    if broken:
        said.append(f"{counted(broken, 'lane')} broke")
    if answer.stale:
        said.append(counted(len(answer.stale), "stale waiver"))
    if answer.outcome == "not known":
        if answer.note:
            said.append(answer.note)
        elif answer.open:
            said.append(f"{counted(len(answer.open), 'lane')} left open")
    return f"{question} {answer.outcome}: {', '.join(said)}"


def cut(text: str) -> str:
    """A line no wider than a terminal's."""
    return cut_to(text, WIDTH)
