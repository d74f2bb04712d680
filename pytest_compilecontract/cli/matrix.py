"""`compilecontract matrix`: lanes down and environments across, in every output format."""

from __future__ import annotations

import argparse
import datetime
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from pytest_compilecontract.compare.gate import Answer, answer
from pytest_compilecontract.compare.matrix import Matrix, matrix
from pytest_compilecontract.compare.policy import Policy
from pytest_compilecontract.compare.side import apart
from pytest_compilecontract.compare.waivers import stale
from pytest_compilecontract.errors import UsageError
from pytest_compilecontract.escaping import one_line, printed, printed_json
from pytest_compilecontract.facts.receipt import RECEIPT, Receipt
from pytest_compilecontract.files.evidence import graphs_of
from pytest_compilecontract.files.whole import write_bytes
from pytest_compilecontract.measure.environment import plugin_version
from pytest_compilecontract.report import color, document
from pytest_compilecontract.report.comparison import verdict_line
from pytest_compilecontract.report.junit import junit
from pytest_compilecontract.report.matrix import markdown, terminal_lines
from pytest_compilecontract.report.page import Graphs, page
from pytest_compilecontract.report.table import room

from .exits import NOT_KNOWN, code_of, exit_codes, say
from .runs import add_across_devices, add_judging, policy_of, read_columns, receipt_file, waivers_of

FORMATS_TOLD = {
    "terminal": "text",
    "markdown": "Markdown for a pull request or a job's summary",
    "json": "JSON (its schema is in the package)",
    "junit": "JUnit XML, one test case per lane",
    "html": "one HTML page that needs no network",
}
FORMATS = tuple(FORMATS_TOLD)
ENDS = exit_codes("the gate says yes", no="it says no", not_known="it cannot tell, or there is one environment")


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `matrix` to the command line."""
    table = commands.add_parser("matrix", help="print verdicts, lanes down and environments across", epilog=ENDS)
    table.add_argument(
        "runs",
        metavar="RUN",
        type=Path,
        nargs="+",
        help="receipts, their folders, or folders of baselines, the oldest first",
    )
    table.add_argument("--format", choices=FORMATS, default="terminal", help="what to print (default: terminal)")
    table.add_argument("--output", metavar="FILE", type=Path, help="write it to a file instead")
    for kind in FORMATS[1:]:
        table.add_argument(f"--{kind}", metavar="FILE", type=Path, help=f"also write it as {FORMATS_TOLD[kind]}")
    add_judging(table)
    add_across_devices(table)
    table.add_argument("-v", "--verbose", action="store_true", help="also list the lanes that held everywhere")
    table.set_defaults(command=_matrix)


def _called(run: Path, receipt: Receipt) -> str:
    """The name of a run, to distinguish it from others with the same torch: its folder or file, with its workers."""
    # The name of an environment has a dot in it.
    name = run.parent.name if run.name == RECEIPT and run.parent.name else run.name if run.is_dir() else run.stem
    # What ran on each machine is a column for each, and has one environment.
    worker = receipt.entries[0].worker if len(receipt.environments) == 1 and receipt.entries else ""
    return f"{name}, {worker}" if worker else name


def _matrix(chosen: argparse.Namespace) -> int:
    """Print or write the matrix; its exit code is the gate's from the first environment to the last."""
    wanted = _wanted(chosen)
    policy, waivers = policy_of(chosen), waivers_of(chosen)
    today = datetime.date.today()
    read, which = read_columns(chosen.runs, across_devices=policy.across_devices)
    runs = [(path, _called(path, part), part) for path, receipt in read for part in apart(receipt)]
    receipts = [receipt for _, _, receipt in runs]
    found = matrix(receipts, policy, waivers, today, runs=[called for _, called, _ in runs])
    last = found.comparisons[-1] if found.comparisons else None
    said = stale(last, waivers, today) if last else ()
    answered = answer(last, policy, said) if last else None
    # Each is written before the next is made: of a large matrix they need not all be there at once.
    graphs = [graphs_of(receipt_file(path).parent, receipt) for path, _, receipt in runs]
    made = Made(found=found, answered=answered, policy=policy, everything=chosen.verbose, graphs=tuple(graphs))
    if which:
        say(one_line(which, 1000), stream=sys.stderr)
    for kind, path in wanted:
        write_bytes(path, rendered(kind, made))
        say(f"wrote {one_line(str(path), 1000)}", stream=sys.stderr)
    if chosen.output is None:
        paint = color.paint_of(chosen.colors)
        sys.stdout.write(rendered(chosen.format, made, width=room(sys.stdout), paint=paint).decode())
    for line in said:
        say(one_line(line, 1000), stream=sys.stderr)
    return code_of(answered.outcome) if answered else NOT_KNOWN


def _wanted(chosen: argparse.Namespace) -> list[tuple[str, Path]]:
    """The files to write, each with its format."""
    named = [(chosen.format, chosen.output), *((kind, getattr(chosen, kind)) for kind in FORMATS[1:])]
    places: dict[Path, str] = {}
    for run in chosen.runs:
        for path in (run, *(run.rglob("*.json") if run.is_dir() else ())):
            places[_place(path)] = "is one of the runs" if path == run else f"belongs to {run}, one of the runs"
    return to_write(named, chosen, places)


def to_write(
    named: Iterable[tuple[str, Path | None]], chosen: argparse.Namespace, places: dict[Path, str]
) -> list[tuple[str, Path]]:
    """The files to write, each with its format; `places` are other files that must not be overwritten, with the reason.

    Raises:
        UsageError: one of them is an input, or named twice.
    """
    wanted = [(kind, path) for kind, path in named if path is not None]
    for given in filter(None, (chosen.policy, chosen.waivers)):
        places[_place(given)] = "is also read"
    for _, path in wanted:
        if why := places.get(_place(path)):
            raise UsageError(f"{path}: {why}, write the matrix to another file")
        places[_place(path)] = "is named twice"
    return wanted


def _place(path: Path) -> Path:
    """The resolved path: equal for two paths to one file."""
    try:
        place = path.resolve()
    except RuntimeError as error:
        # So Python 3.11 and 3.12 say it; later ones give the loop as it is.
        raise UsageError(f"{path}: a symlink loop") from error
    if place.is_symlink():
        raise UsageError(f"{path}: a symlink loop")
    return place


@dataclass(frozen=True, kw_only=True, slots=True)
class Made:
    """A matrix with the gate's answer (None if there is only one environment)."""

    found: Matrix
    answered: Answer | None
    policy: Policy
    everything: bool = False
    graphs: tuple[Graphs, ...] = ()

    @property
    def question(self) -> str:
        """The gate's question with its answer, as a line."""
        if self.answered is None:
            return "only one environment: nothing to compare it with"
        return verdict_line(self.found.comparisons[-1], self.answered)


def rendered(kind: str, made: Made, *, width: int | None = None, paint: color.Paint = color.unpainted) -> bytes:
    """The matrix in one of the formats; text is `width` wide."""
    found, answered = made.found, made.answered
    if kind == "markdown":
        return _lined(markdown(found, made.question).splitlines())
    if kind == "json":
        outcome = answered.outcome if answered else "not known"
        text = document.to_json(found, outcome=outcome, plugin=plugin_version() or "")
        return printed_json(text.decode()).encode()
    if kind == "junit":
        return junit(found, made.policy).encode()
    if kind == "html":
        now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")
        return page(found, answered, plugin=plugin_version() or "", created=now, graphs=made.graphs).encode()
    answer_says = answered.outcome if answered else ""
    lines = terminal_lines(
        found, everything=made.everything, answer=made.question, outcome=answer_says, width=width, paint=paint
    )
    return _lined(lines)


def _lined(lines: Iterable[str]) -> bytes:
    return "".join(f"{printed(line)}\n" for line in lines).encode(errors="backslashreplace")
