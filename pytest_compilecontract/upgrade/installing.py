"""`compilecontract bump --matrix`: which torch releases install and import, by Python and build. No tests run.

Each environment is resolved and installed as for a run, torch is imported in it, and it is removed again: several CUDA
builds would not fit on most disks.
"""

from __future__ import annotations

import argparse
import itertools
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pytest_compilecontract.compare.gate import Outcome
from pytest_compilecontract.errors import InstallError, UsageError
from pytest_compilecontract.escaping import markdown as in_markdown
from pytest_compilecontract.escaping import plain
from pytest_compilecontract.processes import ended_by_sigterm
from pytest_compilecontract.wording import cut

from .bench import claimed
from .environments import Uv, probe, uv_program, variables_of
from .progress import Progress
from .requirements import Wanted, exact, specs_from, wanted

STEPS = ("resolved", "installed", "imported")
HEAD = ("torch", "Python", "build", *STEPS)
USUAL = "usual"
WIDEST = 60


@dataclass(frozen=True, kw_only=True, slots=True)
class Tried:
    """How far one environment got: the number of steps that it passed, and why it failed the next.

    `absent` is why nothing is known: this version of Python is not available.
    """

    torch: str
    python: str
    build: str
    passed: int = 0
    refused: str | None = None
    absent: str = ""

    @property
    def cells(self) -> tuple[str, ...]:
        """A row of the table."""
        steps = (f"not known: {self.absent}", "", "") if self.absent else self.steps
        return (self.torch, self.python, self.build, *steps)

    @property
    def steps(self) -> tuple[str, ...]:
        """How each step went, in words."""
        went = (*("yes" for _ in range(self.passed)), *(() if self.refused is None else (f"no: {self.refused}",)))
        return (*went, *("not tried" for _ in STEPS[len(went) :]))


def installability(chosen: argparse.Namespace) -> list[Tried]:
    """Try every requested environment: releases by Pythons by builds.

    Raises:
        UsageError: the request is not valid, or there is no uv.
    """
    project = chosen.project.resolve()
    if not chosen.specs:
        example = "compilecontract bump --matrix torch==2.14.1 torch==2.15.0"
        raise UsageError(f"--matrix needs releases, for example: {example}")
    releases = [specs_from([spec], where="bump --matrix") for spec in chosen.specs]
    contents = wanted(
        project,
        asked={name for specs in releases for name in specs},
        groups=chosen.group,
        extras=chosen.extra,
        files=[file.absolute() for file in chosen.requirements],
        others=chosen.others,
        without_project=chosen.no_project,
    )
    progress = Progress(stream=sys.stderr, prefix="bump", live=sys.stderr.isatty())
    pythons = _listed(chosen.python_version, "--python-version") or [_here()]
    builds = _listed(chosen.torch_backend, "--torch-backend") or [USUAL]
    kept = (chosen.keep or project / ".compilecontract").absolute()
    found: list[Tried] = []
    with ended_by_sigterm(), claimed(kept):
        uv = Uv(program=uv_program(), folder=kept / "matrix", options=[], python="", progress=progress)
        for specs, python, build in itertools.product(releases, pythons, builds):
            torch = ", ".join(exact(spec) or spec for spec in specs.values())
            one = Tried(torch=torch, python=python, build=build)
            options = [*chosen.finding, *(["--torch-backend", build] if build != USUAL else [])]
            with_python = replace(uv, python=sys.executable if python == _here() else python, options=options)
            uv.folder.mkdir(exist_ok=True)
            found.append(_tried(one, specs, contents, with_python, kept))
            if chosen.keep is None:
                shutil.rmtree(uv.folder, ignore_errors=True)
            progress.stage(f"{', '.join(cut(plain(cell), WIDEST) for cell in found[-1].cells if cell)}")
    return found


def _tried(one: Tried, specs: Mapping[str, str], contents: Wanted, uv: Uv, kept: Path) -> Tried:
    name = f"torch {one.torch}, Python {one.python}, {one.build}"
    log = kept / "installing.log"
    try:
        python = uv.environment(name, specs, contents, {}, log)
    except InstallError as error:
        if error.step not in STEPS:
            return replace(one, absent=str(error))
        return replace(one, passed=STEPS.index(error.step), refused=str(error))
    seen = probe(python, kept, variables_of(python))
    if seen.torch is None:
        return replace(one, passed=STEPS.index("imported"), refused=str(seen.failed))
    return replace(one, torch=seen.torch, passed=len(STEPS))


def table_lines(found: Sequence[Tried]) -> list[str]:
    """The table as text; long cells are shown in full below it."""
    rows = [HEAD, *(each.cells for each in found)]
    shown = [[cut(plain(cell), WIDEST) for cell in row] for row in rows]
    widths = [max(len(row[at]) for row in shown) for at in range(len(HEAD))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in shown]
    long = [f"{row[0]}, Python {row[1]}, {row[2]}: {plain(cell)}" for row in rows for cell in row if len(cell) > WIDEST]
    return [*lines, *(["", *long] if long else [])]


def table_markdown(found: Sequence[Tried]) -> str:
    """The same as a Markdown table."""
    rows = [HEAD, ("---",) * len(HEAD), *(tuple(map(in_markdown, each.cells)) for each in found)]
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def outcome(found: Sequence[Tried]) -> Outcome:
    """The answer for all of them: no if any is no, else not known if any is, else yes."""
    if any(each.refused is not None for each in found):
        return "no"
    return "not known" if any(each.absent for each in found) else "yes"


def _listed(text: str | None, option: str) -> list[str]:
    names = [each.strip() for each in (text or "").split(",")]
    if text is not None and not all(names):
        raise UsageError(f"{option}: expected names separated by commas, got {text!r}")
    return list(dict.fromkeys(filter(None, names)))


def _here() -> str:
    return f"{sys.version_info.major}.{sys.version_info.minor}"
