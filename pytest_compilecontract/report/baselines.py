"""Text about baselines in pytest's terminal output: a lane that drifted, and a session's summary."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from pytest_compilecontract.baselines.store import Found, Recorded
from pytest_compilecontract.compare.drift import LaneComparison, Verdict
from pytest_compilecontract.escaping import as_tests, plain, printed, typed
from pytest_compilecontract.wording import counted

from .comparison import cut, drift_headline, lane_lines, place_of
from .terminal import FAILURE_LINES, Line

MOST = 20
# How a session is started where nothing else is known.
PYTEST = ("pytest", "--compile-contracts")
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


def recording(mode: str, paths: Sequence[str], *, reason: bool = False, start: Sequence[str] = PYTEST) -> str:
    """The command that records in this mode, for a session with these paths that was started with these words."""
    given = "" if mode == "all" and not paths else f"={mode}"
    why = ' --contract-accept-reason="..."' if reason else ""
    return f"{typed(start)} --contract-record{given}{why}{' ' + typed(as_tests(*paths)) if paths else ''}"


def drift_text(lane: LaneComparison, found: Found, mode: str, refusal: str) -> str:
    """How a lane differs from its baseline, at most as long as a failure by limits, and what to do.

    `mode` is the mode of recording that would accept it; `refusal` is why it takes a reason for that, if it does.
    """
    head = f"compile contract drifted: {plain(lane.contract)}, lane {plain(lane.lane)}, compared with {_where(found)}"
    accept = "accept it as the baseline:"
    if refusal:
        accept = cut(f"accept it as the baseline, with your reason ({plain(refusal)}):")
    tail = ["rerun this lane alone:", plain(lane.rerun), accept, _record(mode, lane, reason=bool(refusal))]
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
    paths: Sequence[str] = (),
    start: Sequence[str] = PYTEST,
) -> list[Line]:
    """Which baselines the session's lanes were compared with, and the result; `mode` records what improved.

    `paths` are those that the session was given, and `start` the words that started it, for commands that collect and
    measure the same.
    """
    if not lanes:
        to_record = recording("new", paths, start=start)
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
        if over := sum(lane.after == "violated" for lane in named) if verdict == "waived" else 0:
            lines.append((f"  {counted(over, 'lane')} of these over its limits, which waivers do not change", markup))
        if len(named) > MOST:
            lines.append((f"  ... and {len(named) - MOST} {verdict} more", markup))
    improved = [lane for _, lane in lanes if lane.verdict == "improved"]
    lines += [(cut(f"  improved {_name(lane)}: {what_drifted(lane)}"), {"green": True}) for lane in improved[:MOST]]
    if improved:
        lines.append((f"  to record what improved: {recording(mode, paths, start=start)}", {}))
    if new:
        to_record = recording("new", paths, start=start)
        lines.append((f"  {counted(new, 'lane')} without a baseline; to record: {to_record}", {"yellow": True}))
    return lines


def record_lines(
    recorded: Recorded, folder: str, mode: str = "all", paths: Sequence[str] = (), start: Sequence[str] = PYTEST
) -> list[Line]:
    """What was recorded, and what was refused with its reason."""
    lines: list[Line] = [
        (
            f"recorded {counted(len(recorded.lanes), 'lane')} in {counted(len(recorded.files), 'file')} of {folder}"
            if recorded.lanes
            else "nothing recorded: no lane is new or changed"
            if not recorded.refused
            else "nothing recorded",
            {},
        )
    ]
    for contract, lane, why in recorded.refused[:MOST]:
        lines.append((cut(f"  not recorded: {plain(contract)} [{plain(lane)}]: {plain(why)}"), {"red": True}))
    if len(recorded.refused) > MOST:
        lines.append((f"  ... and {len(recorded.refused) - MOST} more not recorded", {"red": True}))
    if len(recorded.refused) > recorded.unmeasured:
        them = "those that were measured" if recorded.unmeasured else "them"
        lines.append((f"  to record {them} anyway: {recording(mode, paths, reason=True, start=start)}", {}))
    return lines


def what_drifted(lane: LaneComparison, labels: Mapping[str, str] = MappingProxyType({})) -> str:
    """The metrics that changed, in one line: the root cause first, with its place.

    `labels` are what metrics are called, where that is not their own label.
    """
    judged = [drift for drift in lane.by_cause if drift.gates]
    headlines = [drift_headline(drift, labels.get(drift.metric, "")) for drift in judged]
    said = [headline + ("" if at else place_of(judged[at])) for at, headline in enumerate(headlines)]
    return ", ".join(said) or plain(lane.reason)


def _name(lane: LaneComparison) -> str:
    return f"{plain(lane.contract)} [{plain(lane.lane)}]"


def _record(mode: str, lane: LaneComparison, *, reason: bool) -> str:
    asked = f"--compile-contracts --contract-record={mode}" + (' --contract-accept-reason="..."' if reason else "")
    return plain(lane.rerun.replace("--compile-contracts", asked, 1))


def _where(found: Found) -> str:
    torch = f" (torch {plain(found.environment.torch)})" if found.environment.torch else ""
    return f"{plain(found.key)}{torch}"
