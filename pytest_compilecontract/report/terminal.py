"""Terminal text: the failure of one lane, and a session's summary. Nothing here writes."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from pytest_compilecontract.compare.cold import short
from pytest_compilecontract.escaping import plain, printed
from pytest_compilecontract.facts.limits import LIMITS
from pytest_compilecontract.facts.measurement import Hunted, Measurement
from pytest_compilecontract.facts.metrics import COUNTS
from pytest_compilecontract.facts.receipt import Entry
from pytest_compilecontract.facts.verdict import Verdict, Violation
from pytest_compilecontract.judge.device import unjudged
from pytest_compilecontract.wording import counted, cut, middle

FAILURE_LINES = 25
FAILURE_WIDTH = 160
SUMMARY_WIDTH = 100

Line = tuple[str, dict[str, bool]]
# A lane that keeps to its limits and not to its baseline is shown as drifted.
Shown = Verdict | Literal["drifted"]

_NAME_WIDTH = (24, 44)
_VERDICTS_WIDTH = 36
_COUNTS_WIDTH = 34
_REASON_WIDTH = 16
_MARGIN = "  "
# The worst first: the order in which a contract's verdicts are named.
_VERDICTS: tuple[Shown, ...] = (
    "broken",
    "violated",
    "drifted",
    "unstable",
    "unverified",
    "unmeasured",
    "held",
    "reference",
)
_NOT_HELD: tuple[Shown, ...] = ("broken", "violated", "drifted", "unstable", "unverified")
_SHOWN_ALWAYS = tuple(name for name, metric in COUNTS.items() if metric.shown == "always")
_SHOWN_IF_ANY = tuple(name for name, metric in COUNTS.items() if metric.shown == "if any")
_SHOWN_IF_KNOWN = tuple(name for name, metric in COUNTS.items() if not metric.shown_unknown)


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """One lane of one contract in the summary. `counts` are by metric, None where it cannot be measured.

    `observed` is a test that is not marked as a contract: there may be hundreds, so they are summarized in one line.
    `unjudged` are limits that were not judged here, each with the reason. `warm` is what a second process compiled, if
    one was started; `no_warm` is why none was, if one was asked for.
    """

    contract: str
    lane: str
    verdict: Shown
    counts: Mapping[str, int | None] = field(default_factory=dict, hash=False)
    reason: str = ""
    observed: bool = False
    frontier: str = ""
    unjudged: tuple[tuple[str, str], ...] = ()
    warm: str = ""
    no_warm: str = ""


def row_of(entry: Entry) -> Row:
    """An entry as the summary shows it."""
    counts = counts_of(entry.measurement) if entry.measurement else {}
    return Row(
        contract=entry.contract,
        lane=entry.lane,
        verdict=entry.verdict,
        counts=counts,
        reason=entry.reason or _why_fewer(entry),
        frontier=entry.frontier.told() if entry.frontier is not None else "",
        unjudged=unjudged(entry.limits, entry.measurement) if entry.measurement is not None else (),
        warm=warm_told(entry.measurement) if entry.measurement is not None else "",
    )


def hunt_told(found: Hunted) -> str:
    """How far a hunt got, and what ended it early."""
    ended = f", ended {found.ended}" if found.ended else ""
    return f"hunted {counted(found.sequences, 'sequence')} of calls{ended}"


def warm_told(seen: Measurement) -> str:
    """What a process that starts from warm caches compiles again; empty if none was started."""
    warm = seen.warm
    if warm is None or warm.seconds is None or warm.misses is None:
        return ""
    again = counted(warm.misses, "cache miss", "cache misses")
    return f"a second process took {short(warm.seconds)} s from its caches, with {again}"


def _why_fewer(entry: Entry) -> str:
    """Why a hunt that holds checked fewer sequences than requested."""
    seen = entry.measurement
    return hunt_told(seen.hunted) if seen is not None and seen.hunted is not None and seen.hunted.ended else ""


def counts_of(measurement: Measurement) -> dict[str, int | None]:
    """The counts that a summary shows, in its order, by metric; eager frames are those that lost something.

    Counts that need a GPU are included if they were measured.
    """
    found = {name: metric.count(measurement) for name, metric in COUNTS.items() if metric.count is not None}
    return {name: count for name, count in found.items() if count is not None or not COUNTS[name].on_device}


def failure_text(
    contract: str,
    lane: str,
    violations: Sequence[Violation],
    doubts: Sequence[str],
    rerun: str,
    *,
    unsteady: Sequence[str] = (),
) -> str:
    """Why one lane of a contract is not held, in at most 25 lines, ending with the command that reruns it alone.

    Every line except the command has at most 160 characters, and none contains a control character.
    """
    assert violations or doubts or unsteady, "a lane that is held has no failure"
    blocks = []
    if unsteady:
        blocks.append(_Block(head="its repeats disagree:", facts=tuple((plain(each),) for each in unsteady)))
    blocks += _once([_Block(head=_judged(each), facts=tuple(map(laid_out, each.facts))) for each in violations])
    if doubts:
        blocks.append(_Block(head="uncertain, so not held:", facts=tuple((plain(each),) for each in doubts)))
    found = "unstable" if unsteady else "violated" if violations else "unverified"
    start = f"compile contract {found}: "
    end = f", lane {plain(lane)}"
    if violations:
        end += f" ({counted(len(violations), 'violation')})"
    name = middle(plain(contract), max(FAILURE_WIDTH - len(start) - len(end), 40))
    tail = ["rerun this lane alone:", plain(rerun)]
    # pytest's own summary shows the first line, and of it what the terminal has room for.
    first = plain(unsteady[0]) if unsteady else ", ".join(map(_in_short, violations)) or plain(doubts[0])
    body = _body(blocks, FAILURE_LINES - 2 - len(tail))
    # Cut last: what keeps a line from being a command of a workflow makes it longer.
    lines = [cut(printed(each), FAILURE_WIDTH) for each in (first, start + name + end, *body)]
    return "\n".join([*lines, *map(printed, tail)])


def headline(rows: Sequence[Row], torch_version: str) -> str:
    """The result of a session's contracts, as a title. `torch_version` is empty if torch was not imported.

    A contract is held if no lane of it fails and at least one ran.
    """
    where = f"compile contracts on torch {plain(torch_version)}" if torch_version else "compile contracts"
    contracts = _by_contract(rows)
    if not contracts:
        return f"{where}: none measured"
    text = f"{where}: {sum(is_held(lanes) for lanes in contracts.values())} of {len(contracts)} held"
    if unmeasured := sum(row.verdict == "unmeasured" for row in rows):
        text += f", {counted(unmeasured, 'lane')} unmeasured"
    return text


def summary_lines(rows: Sequence[Row], verbosity: int) -> list[Line]:
    """The summary of a session as (text, markup) lines, with the markup of pytest's `write_line`.

    Verbosity below 0: what is not held, and the totals. 0: one line per contract, then what is unmeasured and why.
    Above 0: one line per lane, with all counts.
    """
    if not rows:
        return [("no compile contract was measured", {"yellow": True})]
    if verbosity < 0:
        return [*_not_held(rows), _totals(rows)]
    if verbosity > 0:
        return [*_lane_lines(rows), *_unjudged(rows), *_not_started(rows), _totals(rows)]
    told = [row for row in rows if not row.observed or row.verdict in _NOT_HELD]
    return [
        *(_contract_lines(told) if told else ()),
        *_observed(rows),
        *_unmeasured(rows),
        *_unjudged(rows),
        *_not_started(rows),
        _totals(rows),
    ]


def _unjudged(rows: Sequence[Row]) -> list[Line]:
    """The limits that lanes hold without having been judged by them."""
    held = [row for row in rows if row.verdict == "held" and row.unjudged]
    if not held:
        return []
    reasons: dict[str, dict[str, None]] = {}
    for name, reason in (each for row in held for each in row.unjudged):
        reasons.setdefault(reason, {})[name] = None
    told = "; ".join(f"{', '.join(names)} ({plain(reason)})" for reason, names in reasons.items())
    return [(f"held, but not judged here in {counted(len(held), 'lane')}: {told}", {"yellow": True})]


def _not_started(rows: Sequence[Row]) -> list[Line]:
    """The lanes that were to be started again, and were not."""
    lanes: dict[str, list[Row]] = {}
    for row in rows:
        if row.no_warm:
            lanes.setdefault(row.no_warm, []).append(row)
    told = (f"{counted(len(each), 'lane')} ({plain(reason)})" for reason, each in lanes.items())
    return [(f"no warm start of {'; '.join(told)}", {"yellow": True})] if lanes else []


# A failure


def laid_out(fact: tuple[str, ...]) -> tuple[str, ...]:
    """A fact's lines as a terminal shows them, all but the first indented."""
    # Lines of a program keep what they are indented by.
    inner = (f"{_MARGIN}{' ' * (len(line) - len(line.lstrip(' ')))}{plain(line).strip()}" for line in fact[1:])
    return (*(plain(line).strip() for line in fact[:1]), *inner)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Block:
    """A line that says what is wrong, and its facts, each of one or several lines."""

    head: str
    facts: tuple[tuple[str, ...], ...]

    @property
    def size(self) -> int:
        return sum(len(fact) for fact in self.facts)


def _judged(violation: Violation) -> str:
    measured = f"measured {violation.measured}" if isinstance(violation.measured, int) else violation.measured
    return plain(f"{violation.limit}: {measured}")


def _in_short(violation: Violation) -> str:
    """`max_graph_breaks: 3 > 0`, or what was measured in words."""
    name = violation.name
    if isinstance(violation.measured, int) and violation.bound is not None:
        least = name in LIMITS and LIMITS[name].bounds == "least"
        return plain(f"{name}: {violation.measured} {'<' if least else '>'} {violation.bound}")
    return plain(f"{name}: {violation.measured}")


def _once(blocks: Iterable[_Block]) -> Iterator[_Block]:
    """The blocks, with each fact only under the first limit that it is about."""
    shown: set[tuple[str, ...]] = set()
    for block in blocks:
        new = tuple(fact for fact in block.facts if fact not in shown)
        if (above := len(block.facts) - len(new)) > 0:
            new = (*new, (f"{above} more, listed above" if new else f"{above} listed above",))
        shown.update(block.facts)
        yield _Block(head=block.head, facts=new)


def _body(blocks: Sequence[_Block], room: int) -> list[str]:
    wrapped = [_Block(head=each.head, facts=tuple(map(_whole_lines, each.facts))) for each in blocks]
    if sum(1 + each.size for each in wrapped) <= room:
        blocks = wrapped
    shown, hidden = list(blocks), 0
    if len(blocks) > room:
        shown, hidden = shown[: room - 1], len(blocks) - room + 1
    shares = _shares([block.size for block in shown], room - len(shown) - (1 if hidden else 0))
    lines: list[str] = []
    for block, share in zip(shown, shares, strict=True):
        lines.append(cut(_MARGIN + block.head, FAILURE_WIDTH))
        lines += [cut(_MARGIN * 2 + line, FAILURE_WIDTH) for line in _fitted(block.facts, share)]
    if hidden:
        lines.append(f"{_MARGIN}... and {hidden} more")
    return lines


def _whole_lines(fact: tuple[str, ...]) -> tuple[str, ...]:
    """The fact with its long parts, such as torch's hints, on several lines."""
    width = FAILURE_WIDTH - 2 * len(_MARGIN)
    within = [(line, line[: len(line) - len(line.lstrip())] + _MARGIN) for line in fact]
    return tuple(part for line, indent in within for part in _wrapped(line, indent, width))


def _shares(wanted: Sequence[int], room: int) -> list[int]:
    """How many lines each block gets: what it needs if there is room, else an even share of the rest."""
    shares = [0] * len(wanted)
    left = room
    order = sorted(range(len(wanted)), key=lambda index: wanted[index])
    for place, index in enumerate(order):
        shares[index] = min(wanted[index], left // (len(wanted) - place))
        left -= shares[index]
    return shares


def _fitted(facts: Sequence[tuple[str, ...]], room: int) -> list[str]:
    """As many whole facts as fit, and the number of the others; a first fact that is too long is cut."""
    if sum(len(fact) for fact in facts) <= room:
        return [line for fact in facts for line in fact]
    if room <= 0:
        return []
    if len(facts) == 1:
        return list(facts[0][:room])
    lines: list[str] = []
    whole = 0
    for fact in facts:
        if len(lines) + len(fact) > room - 1:
            break
        lines += fact
        whole += 1
    if whole == 0 and room > 1:
        lines, whole = list(facts[0][: room - 1]), 1
    return [*lines, f"... and {len(facts) - whole} more" if whole else f"{len(facts)} in all"]


# A summary


def _contract_lines(rows: Sequence[Row]) -> list[Line]:
    contracts = _by_contract(rows)
    names = {contract: plain(contract.partition("::")[2] or contract) for contract in contracts}
    cells = {contract: (_verdicts(lanes), _folded_counts(lanes)) for contract, lanes in contracts.items()}
    # A column is as wide as what is in it, but for the rare wide cell: that one moves its own line alone.
    widest = min(_VERDICTS_WIDTH, max(len(lanes) for lanes, _ in cells.values()))
    counts = min(_COUNTS_WIDTH, max(len(text) for _, text in cells.values()))
    fewest, most = _NAME_WIDTH
    room = max(fewest, min(most, SUMMARY_WIDTH - len(_MARGIN) * 3 - widest - counts))
    width = min(room, max(len(name) for name in names.values()))
    lines: list[Line] = []
    file = ""
    for contract, lanes in contracts.items():
        if contract.partition("::")[1] and (here := plain(contract.partition("::")[0])) != file:
            file = here
            lines.append((middle(file, SUMMARY_WIDTH), {}))
        verdicts, folded = cells[contract]
        lines += [(line, _markup(lanes)) for line in _laid_out(names[contract], verdicts, folded, (width, widest))]
        lines += [(line, {"red": True}) for line in _why_not(lanes)]
        lines += [(cut(_MARGIN * 2 + plain(row.frontier), SUMMARY_WIDTH), {}) for row in lanes if row.frontier]
    return lines


def _why_not(lanes: Sequence[Row]) -> Iterator[str]:
    """Why lanes are broken or unverified, which counts do not show; shared reasons once."""
    reasons: dict[tuple[Shown, str], list[str]] = {}
    for row in lanes:
        if row.verdict in ("broken", "unverified") and row.reason.strip():
            reasons.setdefault((row.verdict, plain(row.reason).strip()), []).append(plain(row.lane))
    for (verdict, reason), names in reasons.items():
        yield cut(f"{_MARGIN * 2}{verdict} ({', '.join(names)}): {reason}", SUMMARY_WIDTH)


def _laid_out(name: str, verdicts: str, counts: str, widths: tuple[int, int]) -> list[str]:
    """A contract's line, its cells in columns if they fit; several lines if it is wider than the terminal."""
    start = f"{_MARGIN}{middle(name, widths[0]):{widths[0]}}{_MARGIN}"
    for cells in (f"{verdicts:{widths[1]}}{_MARGIN}{counts}", f"{verdicts}{_MARGIN}{counts}"):
        if len((start + cells).rstrip()) <= SUMMARY_WIDTH:
            return [(start + cells).rstrip()]
    indent = _MARGIN * 3
    name = middle(name, max(_NAME_WIDTH[0], SUMMARY_WIDTH - len(_MARGIN) * 2 - len(verdicts)))
    first = f"{_MARGIN}{name:{widths[0]}}{_MARGIN}{verdicts}"
    return [*_wrapped(first, indent), *(_wrapped(indent + counts, indent) if counts else ())]


def _verdicts(lanes: Sequence[Row]) -> str:
    """The lanes by verdict, the worst first. Lanes that did not run are named only where none did."""
    ran = [row for row in lanes if row.verdict not in ("unmeasured", "reference")]
    groups: dict[str, list[str]] = {verdict: [] for verdict in _VERDICTS}
    for row in ran or lanes:
        groups[row.verdict].append(plain(row.lane))
    return "; ".join(f"{verdict}: {', '.join(group)}" for verdict, group in groups.items() if group)


def _folded_counts(lanes: Sequence[Row]) -> str:
    counted = [row for row in lanes if row.verdict not in ("unmeasured", "reference") and row.counts]
    if not counted:
        return ""
    texts = [_folded(name, counted) for name in _SHOWN_ALWAYS if any(name in row.counts for row in counted)]
    texts += [_folded(name, counted) for name in _SHOWN_IF_ANY if any(row.counts.get(name) for row in counted)]
    return ", ".join(texts)


def _folded(name: str, lanes: Sequence[Row]) -> str:
    """A count, once if all lanes agree, else the most frequent value, and the other lanes by name."""
    values = [row.counts.get(name) for row in lanes]
    usual = Counter(values).most_common(1)[0][0]
    others: dict[int | None, list[str]] = {}
    for row, value in zip(lanes, values, strict=True):
        if value != usual:
            others.setdefault(value, []).append(plain(row.lane))
    text = _amount(usual, name)
    if others:
        named = ", ".join(f"{' '.join(group)} {_figure(value)}" for value, group in others.items())
        text += f" ({named})"
    return text


def _lane_lines(rows: Sequence[Row]) -> list[Line]:
    verdict_width = max(len(row.verdict) for row in rows)
    lane_width = min(24, max(len(plain(row.lane)) for row in rows))
    lines: list[Line] = []
    for contract, lanes in _by_contract(rows).items():
        lines.append((middle(plain(contract), SUMMARY_WIDTH), _markup(lanes)))
        for row in lanes:
            lane = middle(plain(row.lane), lane_width)
            start = f"{_MARGIN}{row.verdict:{verdict_width}}{_MARGIN}{lane:{lane_width}}{_MARGIN}"
            shown = [name for name, value in row.counts.items() if _is_shown(name, value)]
            counts = ", ".join(_amount(row.counts[name], name) for name in shown)
            why, warm = plain(row.reason).strip() or plain(row.frontier), row.warm and f"warm start: {row.warm}"
            texts = [text for text in (counts, why, warm) if text] or [""]
            for text, ahead in zip(texts, (start, *[" " * len(start)] * 2), strict=False):
                lines += [(line, _markup([row])) for line in _wrapped(ahead + text, " " * len(start))]
    return lines


def _is_shown(name: str, value: int | None) -> bool:
    if value is None and name in _SHOWN_IF_KNOWN:
        return False
    return value != 0 or name not in _SHOWN_IF_ANY


def _not_held(rows: Sequence[Row]) -> list[Line]:
    lines: list[Line] = []
    for row in rows:
        if row.verdict not in _NOT_HELD:
            continue
        reason = f": {plain(row.reason).strip()}" if row.reason.strip() else ""
        lane = f" [{plain(row.lane)}]"
        # A whole name can be copied, so the reason is what gives way to it.
        room = SUMMARY_WIDTH - len(row.verdict) - 1 - len(lane) - min(len(reason), _REASON_WIDTH)
        name = middle(plain(row.contract), max(_NAME_WIDTH[0], room))
        lines.append((cut(f"{row.verdict} {name}{lane}{reason}", SUMMARY_WIDTH), _markup([row])))
    return lines


def _observed(rows: Sequence[Row]) -> list[Line]:
    """All tests that were only observed, in one line; those that drifted or broke have lines of their own."""
    observed = [row for row in rows if row.observed and row.counts]
    if not observed:
        return []
    sums = {
        name: sum(count for row in observed if (count := row.counts.get(name)) is not None)
        for name in (*_SHOWN_ALWAYS, *_SHOWN_IF_ANY)
    }
    texts = [_amount(total, name) for name, total in sums.items() if total or name in _SHOWN_ALWAYS]
    who = "1 test that compiles" if len(observed) == 1 else f"{len(observed)} tests that compile"
    return [(line, {}) for line in _wrapped(f"observed {who}: {', '.join(texts)}", _MARGIN)]


def _unmeasured(rows: Sequence[Row]) -> list[Line]:
    reasons: dict[str, list[Row]] = {}
    for row in rows:
        if row.verdict == "unmeasured":
            reasons.setdefault(plain(row.reason).strip() or "no reason was given", []).append(row)
    if not reasons:
        return []
    lines = ["unmeasured, so not held:"]
    for reason, group in reasons.items():
        lanes = ", ".join(dict.fromkeys(plain(row.lane) for row in group))
        contracts = {row.contract for row in group}
        where = counted(len(contracts), "contract")
        if len(contracts) == 1:
            where = middle(plain(contracts.pop()), SUMMARY_WIDTH // 2)
        lines += _wrapped(f"{_MARGIN}{lanes} ({where}): {reason}", _MARGIN * 2)
    return [(line, {"yellow": True}) for line in lines]


def _totals(rows: Sequence[Row]) -> Line:
    totals = Counter(row.verdict for row in rows)
    judged = [verdict for verdict in reversed(_VERDICTS) if totals[verdict] and verdict != "reference"]
    named = ", ".join(f"{totals[verdict]} {verdict}" for verdict in judged)
    return f"lanes: {named or 'none judged'}", _markup(rows)


def _markup(rows: Iterable[Row]) -> dict[str, bool]:
    verdicts = {row.verdict for row in rows} - {"reference"}
    if not verdicts:
        return {}
    if verdicts & set(_NOT_HELD):
        return {"red": True}
    if "held" not in verdicts or "unmeasured" in verdicts:
        return {"yellow": True}
    return {"green": True}


def is_held(lanes: Sequence[Row]) -> bool:
    verdicts = {row.verdict for row in lanes}
    return "held" in verdicts and not verdicts & set(_NOT_HELD)


def _by_contract(rows: Sequence[Row]) -> dict[str, list[Row]]:
    contracts: dict[str, list[Row]] = {}
    for row in rows:
        contracts.setdefault(row.contract, []).append(row)
    return contracts


# Words and widths


def _amount(value: int | None, name: str) -> str:
    words = plain(name).replace("_", " ")
    one, many = COUNTS[name].noun if name in COUNTS else (words, words)
    return f"{_figure(value)} {one if value == 1 else many}"


def _figure(value: int | None) -> str:
    return "?" if value is None else str(value)


def _wrapped(text: str, indent: str, width: int = SUMMARY_WIDTH) -> list[str]:
    return textwrap.wrap(text, width, subsequent_indent=indent, drop_whitespace=True) or [""]
