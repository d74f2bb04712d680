"""Planted faults as terminal lines, a Markdown document and an HTML page. Nothing here writes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from pytest_compilecontract.escaping import markdown as marked_up
from pytest_compilecontract.escaping import one_line, plain
from pytest_compilecontract.facts.faults import KNOWN
from pytest_compilecontract.facts.lanes import not_run_again
from pytest_compilecontract.facts.planted import Planted, survivors
from pytest_compilecontract.facts.receipt import Entry
from pytest_compilecontract.wording import counted

from .terminal import Line

LONGEST = 400


def planted_lines(entries: Sequence[Entry], verbosity: int) -> list[Line]:
    """The title, then the faults that were not noticed; with a verbosity above 0, every fault."""
    sown = [each for each in entries if each.planted]
    lines: list[Line] = [(title(entries), {})]
    for entry in sown:
        counts = _counts(entry.planted)
        left = survivors(entry.planted)
        if verbosity >= 0 or left:
            lines.append((f"{_name(entry)}: {counts}", {"red": True} if left else {"green": True}))
        if verbosity > 0:
            lines += [(f"  {line_of(each)}", {"red": True} if each.survived else {}) for each in entry.planted]
        else:
            lines += [(f"  {text}", {"red": True}) for text in _folded(left)]
    if verbosity == 0:
        lines += _why_not(sown)
    if others := [each for each in entries if not each.planted and each.verdict not in ("unmeasured", "reference")]:
        lines.append((f"nothing planted in {counted(len(others), 'lane')}:", {}))
        lines += [(f"  {_name(each)}: {_verdict(each)}", {}) for each in others]
    seconds = sum(each.seconds for entry in sown for each in entry.planted)
    tried = [each for entry in sown for each in entry.planted if each.seconds]
    lines.append((f"{counted(len(tried), 'run')} with a fault planted took {seconds:.1f} s", {}))
    return lines


def title(entries: Sequence[Entry]) -> str:
    """The outcome of all planted faults, in one line."""
    planted = [each for entry in entries for each in entry.planted]
    tried = [each for each in planted if each.outcome != "not applicable"]
    left = survivors(tried)
    if not tried:
        return "planted faults: none could be planted"
    if not left:
        return f"planted faults: every one was noticed ({len(tried)} of {len(tried)})"
    return f"planted faults: {len(tried) - len(left)} of {len(tried)} noticed, {len(left)} not"


def line_of(planted: Planted) -> str:
    """The outcome of one fault, in one line."""
    fault = KNOWN.get(planted.fault)
    what = f" ({fault.what})" if fault is not None else ""
    said = {
        "noticed": f"noticed by {planted.by}",
        "not noticed": f"NOT NOTICED: {planted.why}",
        "another reason": f"NOT NOTICED: failed for another reason: {planted.by}",
        "not applicable": f"not applicable: {planted.why}",
    }[planted.outcome]
    return plain(one_line(f"{planted.fault}{what}: {said}", LONGEST))


def _folded(left: Sequence[Planted]) -> Iterator[str]:
    """The faults that were not noticed, one line for all that the same change would catch."""
    groups: dict[str, list[str]] = {}
    for each in left:
        said = each.why if each.outcome == "not noticed" else f"failed for another reason: {each.by}"
        groups.setdefault(said, []).append(each.fault)
    for said, names in groups.items():
        yield plain(one_line(f"NOT NOTICED: {', '.join(names)}: {said}", LONGEST))


def _verdict(entry: Entry) -> str:
    """Why nothing was planted in a lane."""
    if entry.frontier is not None:
        return "a ladder (plant in its lanes, with --contract-lanes)"
    if entry.verdict == "held":
        return (
            not_run_again(entry.lane_settings)
            or "it drifted from its baseline, is only observed, or is expected to fail"
        )
    return entry.verdict


def markdown(entries: Sequence[Entry]) -> str:
    """The table, contract by fault, as Markdown."""
    lines = [f"# {title(entries)[:1].upper()}{title(entries)[1:]}", ""]
    lines += [
        "| fault | noticed | not noticed | failed for another reason | not applicable |",
        "| --- | --- | --- | --- | --- |",
    ]
    lines += [f"| {' | '.join(each)} |" for each in _by_fault(entries)]
    for entry in entries:
        lines += ["", f"## {marked_up(_name(entry))}", ""]
        if not entry.planted:
            lines.append(f"Nothing planted: {marked_up(_verdict(entry))}.")
            continue
        lines += ["| fault | outcome | by, or why |", "| --- | --- | --- |"]
        for each in entry.planted:
            lines.append(f"| {marked_up(_told(each))} | {_marked(each)} | {marked_up(each.by or each.why)} |")
    return "\n".join(lines) + "\n"


def html(entries: Sequence[Entry]) -> str:
    """The table as one self-contained HTML page. No text of a test is parsed as HTML."""
    import jinja2

    page = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined).from_string(_PAGE)
    return page.render(
        title=title(entries),
        faults=list(_by_fault(entries)),
        lanes=[
            {
                "name": _name(entry),
                "verdict": _verdict(entry),
                "counts": _counts(entry.planted),
                "planted": [
                    (_told(each), each.outcome, plain(each.by or each.why), each.survived) for each in entry.planted
                ],
            }
            for entry in entries
        ],
    )


def _by_fault(entries: Sequence[Entry]) -> Iterator[tuple[str, ...]]:
    counts: dict[str, Counter[str]] = {}
    for entry in entries:
        for each in entry.planted:
            counts.setdefault(each.fault, Counter())[each.outcome] += 1
    order = list(KNOWN)
    for name in sorted(counts, key=lambda each: order.index(each) if each in order else len(order)):
        found = counts[name]
        outcomes = ("noticed", "not noticed", "another reason", "not applicable")
        yield marked_up(name), *(str(found[each]) for each in outcomes)


def _why_not(sown: Iterable[Entry]) -> list[Line]:
    """Why faults could not be planted, the lanes of each reason counted."""
    reasons: dict[str, dict[str, int]] = {}
    for entry in sown:
        for each in entry.planted:
            if each.outcome == "not applicable":
                faults = reasons.setdefault(plain(each.why), {})
                faults[each.fault] = faults.get(each.fault, 0) + 1
    lines: list[Line] = [("not applicable:", {})] if reasons else []
    for why, faults in reasons.items():
        told = ", ".join(plain(each) for each in faults)
        lines.append((one_line(f"  {why}: {told}", LONGEST), {}))
    return lines


def _counts(planted: Sequence[Planted]) -> str:
    found = Counter(each.outcome for each in planted)
    tried = sum(found.values()) - found["not applicable"]
    text = f"{found['noticed']} of {tried} noticed"
    return f"{text}, {found['not applicable']} not applicable" if found["not applicable"] else text


def _name(entry: Entry) -> str:
    return plain(f"{entry.contract} [{entry.lane}]")


def _told(planted: Planted) -> str:
    fault = KNOWN.get(planted.fault)
    return f"{planted.fault}: {fault.what}" if fault is not None else planted.fault


def _marked(planted: Planted) -> str:
    return f"**{planted.outcome}**" if planted.survived else planted.outcome


_PAGE = """\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>{{ title }}</title>
<style>
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem; color: #222; background: #fff; }
table { border-collapse: collapse; margin: 0 0 2rem; }
th, td { border: 1px solid #ccc; padding: .2rem .6rem; text-align: left; vertical-align: top; }
.survived { background: #fdd; font-weight: 600; }
.noticed { background: #e6f5e6; }
.none { color: #777; }
</style>
</head>
<body>
<h1>{{ title }}</h1>
<table>
<tr><th>fault</th><th>noticed</th><th>not noticed</th><th>failed for another reason</th><th>not applicable</th></tr>
{% for row in faults %}<tr>{% for cell in row %}<td>{{ cell }}</td>{% endfor %}</tr>
{% endfor %}</table>
{% for lane in lanes %}
<h2>{{ lane.name }}</h2>
{% if lane.planted %}<p>{{ lane.counts }}</p>
<table>
<tr><th>fault</th><th>outcome</th><th>by, or why</th></tr>
{% for fault, outcome, said, survived in lane.planted %}\
<tr class="{{ 'survived' if survived else 'noticed' if outcome == 'noticed' else 'none' }}">\
<td>{{ fault }}</td><td>{{ outcome }}</td><td>{{ said }}</td></tr>
{% endfor %}</table>
{% else %}<p>Nothing planted: {{ lane.verdict }}.</p>
{% endif %}{% endfor %}
</body>
</html>
"""
