"""`compilecontract bump`: may we upgrade? Create both environments, run the suite in each, print matrix and answer."""

# ruff: noqa: T201 - what this module prints is what it is for

from __future__ import annotations

import argparse
import datetime
import html
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from pytest_compilecontract.compare.comparison import compare
from pytest_compilecontract.compare.gate import Answer, answer
from pytest_compilecontract.compare.matrix import Matrix, matrix
from pytest_compilecontract.compare.policy import DEFAULT_POLICY, Policy, read_policy
from pytest_compilecontract.compare.waivers import FILE as WAIVERS
from pytest_compilecontract.compare.waivers import Waiver, from_here, read_waivers, stale
from pytest_compilecontract.errors import ReceiptError, UsageError
from pytest_compilecontract.escaping import markdown as in_markdown
from pytest_compilecontract.escaping import markdown_paragraph, one_line, printed, typed
from pytest_compilecontract.files.evidence import graphs_of
from pytest_compilecontract.files.project import read_project
from pytest_compilecontract.processes import ended_by_sigterm
from pytest_compilecontract.report import color
from pytest_compilecontract.report.comparison import answer_lines
from pytest_compilecontract.report.matrix import markdown, terminal_lines
from pytest_compilecontract.report.page import Graphs
from pytest_compilecontract.report.table import room
from pytest_compilecontract.wording import counted

from .bench import Bench, Measured, claimed
from .checkout import Checkout, checkout_of
from .environments import PackageChange, Uv, differing, uv_program
from .progress import Progress
from .requirements import Wanted, wanted
from .sides import Side, sides_from

KEPT = ".compilecontract"
# pytest's options that say where a run goes, which is decided here, or that write what a comparison must not.
OURS = ("--contract-report", "--contract-record", "--contract-baselines", "--contract-accept-reason")
MOST_DIFFERING = 4
# Lanes of which evidence is collected, on each side.
MOST_EVIDENCE = 50
# Files of the project that are named as changed during a run.
MOST_CHANGED = 3


@dataclass(frozen=True, kw_only=True, slots=True)
class Concluded:
    """The matrix of the two sides, and the gate's answer by the policy; the graphs that lanes left on each side."""

    table: Matrix
    answer: Answer
    policy: Policy
    graphs: tuple[Graphs, ...] = ()


def bump(chosen: argparse.Namespace, arguments: Sequence[str]) -> Concluded:
    """Do the whole job; `arguments` are pytest's.

    Raises:
        ContractError: an argument cannot be used.
    """
    project = chosen.project.resolve()
    if not project.is_dir():
        raise UsageError(f"--project {chosen.project}: no such folder")
    _refuse_ours(arguments)
    said = read_project(project)
    policy_file = chosen.policy or said.policy
    policy = read_policy(policy_file) if policy_file else DEFAULT_POLICY
    waivers = _waivers(chosen.waivers or said.waivers, project)
    sides = sides_from(chosen, project)
    progress = Progress(stream=sys.stderr, prefix="bump", live=sys.stderr.isatty())
    kept = (chosen.keep or project / KEPT).absolute()
    with ended_by_sigterm(), claimed(kept):
        bench = bench_from(chosen, project, kept, sides, arguments, progress)
        at_first = _told_checkout(project, progress)
        measured = _measured(bench, sides)
        if chosen.evidence:
            measured = _with_evidence(measured, bench, policy)
        changed = _changed(at_first, checkout_of(project))
    return _concluded(measured, bench, policy, waivers, chosen, changed=changed)


def _measured(bench: Bench, sides: tuple[Side, Side]) -> list[Measured]:
    # An environment that is there already says which versions one that is made is to keep to.
    ready = {id(side): bench.prepare(side) for side in sorted(sides, key=lambda side: side.python is None)}
    pair = [ready[id(side)] for side in sides]
    if any(each.python is None for each in pair):
        # One side alone answers nothing, and takes its time.
        return [bench.leave(each) for each in pair]
    old = bench.run(pair[0])
    if old.usage_error:
        raise UsageError(old.usage_error)
    return [old, bench.run(pair[1])]


def _with_evidence(measured: Sequence[Measured], bench: Bench, policy: Policy) -> list[Measured]:
    """Both sides, with evidence of the lanes that changed."""
    old, new = measured
    changed = compare(old.receipt, new.receipt, policy).of("drifted", "broken", "improved")
    names = {(each.contract, each.lane) for each in changed[:MOST_EVIDENCE]}
    if left := len(changed[MOST_EVIDENCE:]):
        bench.progress.stage(f"evidence: of the first {MOST_EVIDENCE} lanes that changed, and not of {left} more")
    tests = [[each.test for each in side.receipt.entries if (each.contract, each.lane) in names] for side in (old, new)]
    if not all(tests):
        return [*measured]
    return [bench.again(side, of_side) for side, of_side in zip((old, new), tests, strict=True)]


def bench_from(
    chosen: argparse.Namespace,
    project: Path,
    kept: Path,
    sides: Sequence[Side],
    arguments: Sequence[str],
    progress: Progress,
) -> Bench:
    """Where these sides are measured.

    Raises:
        UsageError: an environment has to be created and there is no uv, or the project's requirements cannot be read.
    """
    asked = {name for side in sides for name in side.specs}
    makes = any(side.python is None for side in sides)
    uv, contents = None, Wanted()
    if makes:
        contents = wanted(
            project,
            asked=asked,
            groups=chosen.group,
            extras=chosen.extra,
            files=[file.absolute() for file in chosen.requirements],
            others=chosen.others,
            without_project=chosen.no_project,
        )
        environments = kept / "environments"
        environments.mkdir(exist_ok=True)
        uv = Uv(
            program=uv_program(),
            folder=environments,
            options=[*uv_options(chosen), *(["--torch-backend", backend] if (backend := chosen.torch_backend) else [])],
            python=chosen.python_version or sys.executable,
            progress=progress,
        )
        progress.stage(f"installing beside torch: {', '.join(contents.told)}")
    receipts = chosen.receipts.absolute() if chosen.receipts else kept / "receipts"
    return Bench(
        project=project,
        wanted=contents,
        receipts=receipts,
        arguments=arguments,
        seconds=chosen.timeout,
        progress=progress,
        uv=uv,
    )


def uv_options(chosen: argparse.Namespace) -> list[str]:
    """Where uv looks for packages, from the command line."""
    options = ["--default-index", chosen.index_url] if chosen.index_url else []
    for url in chosen.extra_index_url:
        options += ["--index", url]
    if chosen.extra_index_url:
        # An index of a few packages has old releases of others, which are not to hide the newer ones elsewhere.
        options += ["--index-strategy", "unsafe-best-match"]
    return options


def _refuse_ours(arguments: Sequence[str]) -> None:
    for word in arguments:
        if word.partition("=")[0] in OURS:
            raise UsageError(
                f"{word}: cannot be used with bump, which runs the tests twice to compare, and records nothing"
            )


def _waivers(given: Path | None, project: Path) -> tuple[Waiver, ...]:
    file = given or project / WAIVERS
    return read_waivers(file) if given or file.exists() else ()


def _told_checkout(project: Path, progress: Progress) -> Checkout | None:
    found = checkout_of(project)
    if found is None:
        progress.stage("the project is not in a git checkout: changes to it during the run are not detected")
    elif found.dirty:
        progress.stage(f"commit {found.commit[:12]} with uncommitted changes: both sides run the files as they are now")
    else:
        progress.stage(f"commit {found.commit[:12]}")
    return found


def _changed(before: Checkout | None, after: Checkout | None) -> tuple[str, ...]:
    """The files of the project that changed during the run, if that can be known."""
    if before is None:
        return ()
    return ("no git checkout any more",) if after is None else after.changed_since(before)


# The answer


def _concluded(
    measured: Sequence[Measured],
    bench: Bench,
    policy: Policy,
    waivers: Sequence[Waiver],
    chosen: argparse.Namespace,
    *,
    changed: Sequence[str],
) -> Concluded:
    old, new = measured
    today = datetime.date.today()
    table = matrix([old.receipt, new.receipt], policy, waivers, today)
    table = _rerun_by(new.python, table)
    comparison = table.comparisons[-1]
    found = answer(comparison, policy, stale(comparison, waivers, today))
    if changed:
        more = f" and {len(changed) - MOST_CHANGED} more" if len(changed) > MOST_CHANGED else ""
        named = one_line(", ".join(changed[:MOST_CHANGED])) + more
        note = f"the project's files changed while it was measured ({named}), so the two sides ran different code"
        found = replace(found, outcome="not known", note=note)
    notes = list(_notes(old, new))
    told = partial(answer_lines, comparison, found, policy, (from_here(old.file), from_here(new.file)))
    files = f"receipts: {typed([str(from_here(old.file)), str(from_here(new.file))])}"
    paint = color.paint_of(chosen.colors)
    lines = terminal_lines(table, everything=chosen.verbose, width=room(sys.stdout), paint=paint)
    *reasons, answered = told(paint)
    # Once before all that it rests on, and once where a terminal stops.
    for line in (answered, *notes, files, "", *lines, "", *reasons, answered):
        print(printed(line))
    if chosen.summary:
        _add_summary(chosen.summary, table, notes, told())
    graphs = tuple(graphs_of(each.file.parent, each.receipt) for each in (old, new))
    return Concluded(table=table, answer=found, policy=policy, graphs=graphs)


def _rerun_by(python: Path | None, table: Matrix) -> Matrix:
    """The matrix with commands that rerun a lane on the newer side's interpreter, which is not this one."""
    if python is None:
        return table
    start = (str(from_here(python)), "-m", "pytest")

    rows = tuple(
        replace(
            row,
            cells=tuple(
                replace(cell, lane=cell.lane.rerun_by(start)) if cell.lane is not None else cell for cell in row.cells
            ),
        )
        for row in table.rows
    )
    comparisons = tuple(
        replace(each, lanes=tuple(lane.rerun_by(start) for lane in each.lanes)) for each in table.comparisons
    )
    return replace(table, rows=rows, comparisons=comparisons)


def _notes(old: Measured, new: Measured) -> Iterator[str]:
    if old.found is not None and new.found is not None:
        asked = {**old.side.specs, **new.side.specs}
        if old.found.torch == new.found.torch and not differing(old.found.packages, new.found.packages, {}):
            yield f"both sides have torch {old.found.torch} and the same packages: nothing was upgraded"
        if changes := differing(old.found.packages, new.found.packages, asked):
            yield _told_packages(changes)
        if old.found.python != new.found.python:
            yield f"the two sides run on different Pythons: {old.found.python} and {new.found.python}"


def _told_packages(changes: Sequence[PackageChange]) -> str:
    """The packages that differ unrequested, in a line: the first of those on both sides, and how many there are."""
    lone = [change for change in changes if change.before is None or change.after is None]
    both = [change for change in changes if change not in lone]
    left = len(both[MOST_DIFFERING:])
    said = [", ".join(map(str, both[:MOST_DIFFERING])) + (f", and {left} more" if left else "")] if both else []
    if lone:
        few = f": {', '.join(map(str, lone))}" if len(changes) <= MOST_DIFFERING else ""
        said.append(f"{counted(len(lone), 'package')} on one side only{few}")
    folded = left or (lone and len(changes) > MOST_DIFFERING)
    where = " (packages.txt beside each receipt has all)" if folded else ""
    return f"besides what was requested, these differ: {'; '.join(said)}{where}"


def _add_summary(file: Path, table: Matrix, notes: Sequence[str], answered: Sequence[str]) -> None:
    shown = html.escape("\n".join(map(printed, answered)))
    parts = [
        f"### {in_markdown(answered[-1])}\n",
        markdown(table),
        f"<details><summary>Every lane that changed</summary>\n\n<pre>{shown}</pre>\n\n</details>\n",
        *(f"{markdown_paragraph(note)}\n" for note in notes),
    ]
    append_text(file, "\n".join(parts))


def append_text(file: Path, text: str) -> None:
    """Add text to a file.

    Raises:
        ReceiptError: it cannot be written.
    """
    try:
        with file.open("a", encoding="utf-8") as out:
            out.write(text)
    except OSError as error:
        raise ReceiptError(f"{file}: cannot be written ({error.strerror})") from error
