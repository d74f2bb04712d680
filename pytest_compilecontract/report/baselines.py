"""Text about baselines in pytest's terminal output: a lane that drifted, and a session's summary."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from pytest_compilecontract.baselines.store import Found, Recorded
from pytest_compilecontract.compare.drift import LaneComparison, Verdict
from pytest_compilecontract.escaping import plain, printed
from pytest_compilecontract.facts.rerun import Command
from pytest_compilecontract.wording import counted

from .comparison import cut, drift_headline, lane_lines, place_of
from .terminal import FAILURE_LINES, Line

MOST = 20
# How a session is started where nothing else is known.
SESSION = Command()
# The verdicts of lanes that fail by themselves, with a text of their own.
_TOLD = ("violated", "unverified", "unstable")
_ORDER: tuple[Verdict, ...] = (
    "held",
    "improved",
    "waived",
    "unmeasured",
    "unverified",
    "unstable",
    "broken",
    "drifted",
)


def drift_text(lane: LaneComparison, found: Found, mode: str, refusal: str) -> str:
    """How a lane differs from its baseline, and what to do; no longer than the text of a violated limit.

    `mode` is the mode of recording that would accept it; `refusal` is why that requires a reason, if it does.
    """
    head = f"compile contract drifted: {plain(lane.contract)}, lane {plain(lane.lane)}, compared with {_where(found)}"
    accept = "accept it as the baseline:"
    if refusal:
        accept = cut(f"accept it as the baseline, with your reason ({plain(refusal)}):")
    # Above it, the text of what the lane fails by itself has its command.
    rerun = [] if lane.after in _TOLD else ["rerun this lane alone:", plain(str(lane.rerun))]
    tail = [*rerun, accept, _recording(mode, lane, reason=bool(refusal))]
    body = list(lane_lines(lane))
    room = FAILURE_LINES - 1 - len(tail)
    if len(body) > room:
        body = [*body[: room - 1], f"  ... and {len(body) - room + 1} more lines (compilecontract compare shows all)"]
    return "\n".join(map(printed, [head, *body, *tail]))


def baseline_lines(
    lanes: Sequence[tuple[Found, LaneComparison]],
    new: int,
    known: int,
    mode: str,
    session: Command = SESSION,
) -> list[Line]:
    """Which baselines the session's lanes were compared with, and the result; `mode` records what improved.

    `session` is the command that collects and measures the same.
    """
    if not lanes:
        to_record = session.recording("new")
        return (
            [(f"baselines: none for {counted(new, 'lane')}; to record: {to_record}", {"yellow": True})] if new else []
        )
    found = Counter(lane.verdict for _, lane in lanes)
    totals = ", ".join(f"{found[verdict]} {verdict}" for verdict in _ORDER if found[verdict])
    where = ", ".join(dict.fromkeys(_where(each) for each, _ in lanes))
    compared = sum(lane.compared for _, lane in lanes)
    bad = bool({"drifted", "broken"} & set(found))
    lines: list[Line] = [
        (
            f"baselines: compared {compared} of {counted(known, 'lane')} with {where}: {totals}",
            {"red": True} if bad else {"yellow": True} if {"unstable", "unverified"} & set(found) else {"green": True},
        )
    ]
    for verdict, markup in (
        ("drifted", {"red": True}),
        ("waived", {"yellow": True}),
        ("unstable", {"yellow": True}),
        ("unverified", {"yellow": True}),
    ):
        named = [lane for _, lane in lanes if lane.verdict == verdict]
        lines += [(cut(f"  {verdict} {_name(lane)}: {what_drifted(lane)}"), markup) for lane in named[:MOST]]
        if over := sum(lane.over_its_limits for lane in named) if verdict == "waived" else 0:
            lines.append((f"  {counted(over, 'lane')} of these over its limits, which waivers do not change", markup))
        if len(named) > MOST:
            lines.append((f"  ... and {len(named) - MOST} {verdict} more", markup))
    improved = [lane for _, lane in lanes if lane.verdict == "improved"]
    lines += [(cut(f"  improved {_name(lane)}: {what_drifted(lane)}"), {"green": True}) for lane in improved[:MOST]]
    if improved:
        lines.append((f"  to record what improved: {session.recording(mode)}", {}))
    if new:
        to_record = session.recording("new")
        lines.append((f"  {counted(new, 'lane')} without a baseline; to record: {to_record}", {"yellow": True}))
    return lines


def record_lines(recorded: Recorded, folder: str, mode: str = "all", session: Command = SESSION) -> list[Line]:
    """What was recorded, and what was refused with its reason."""
    lines: list[Line] = [
        (
            f"recorded {counted(len(recorded.lanes), 'lane')} in {counted(len(recorded.files), 'file')} of {folder}"
            if recorded.lanes
            else f"nothing recorded{_why_nothing(recorded, mode)}",
            {},
        )
    ]
    if recorded.without:
        to_record = session.recording("new")
        lines.append(
            (f"  {counted(recorded.without, 'lane')} without a baseline; to record: {to_record}", {"yellow": True})
        )
    for contract, lane, why in recorded.refused[:MOST]:
        lines.append((cut(f"  not recorded: {plain(contract)} [{plain(lane)}]: {plain(why)}"), {"red": True}))
    if len(recorded.refused) > MOST:
        lines.append((f"  ... and {len(recorded.refused) - MOST} more not recorded", {"red": True}))
    if len(recorded.refused) > recorded.unmeasured:
        them = "those that were measured" if recorded.unmeasured else "them"
        lines.append((f"  to record {them} anyway: {session.recording(mode, reason=True)}", {}))
    return lines


def _why_nothing(recorded: Recorded, mode: str) -> str:
    """Why nothing was recorded and nothing refused, as a suffix."""
    if recorded.refused:
        return ""
    if not recorded.measured:
        return ": no lane was measured"
    if mode == "new":
        return ": every lane has a baseline"
    if mode == "changed" and recorded.without == recorded.measured:
        return ": no lane has a baseline"
    return ": no lane has changed" if mode == "changed" else ": no lane is new or changed"


def what_drifted(lane: LaneComparison, labels: Mapping[str, str] = MappingProxyType({})) -> str:
    """The metrics that changed, in one line: the root cause first, with its place.

    `labels` replaces the labels of metrics.
    """
    judged = [drift for drift in lane.by_cause if drift.gates]
    headlines = [drift_headline(drift, labels.get(drift.metric, "")) for drift in judged]
    said = [headline + ("" if at else place_of(judged[at])) for at, headline in enumerate(headlines)]
    return ", ".join(said) or plain(lane.reason)


def _name(lane: LaneComparison) -> str:
    return f"{plain(lane.contract)} [{plain(lane.lane)}]"


def _recording(mode: str, lane: LaneComparison, *, reason: bool) -> str:
    """The command that makes this run of a lane its baseline."""
    return plain(str(lane.rerun.recording(mode, reason=reason))) if lane.rerun is not None else ""


def _where(found: Found) -> str:
    torch = f" (torch {plain(found.environment.torch)})" if found.environment.torch else ""
    return f"{plain(found.key)}{torch}"
