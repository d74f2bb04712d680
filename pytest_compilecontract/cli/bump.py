"""`compilecontract bump`: its options; the work is done in `upgrade.bump`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from pytest_compilecontract.compare.waivers import FILE as WAIVERS
from pytest_compilecontract.errors import UsageError
from pytest_compilecontract.escaping import one_line
from pytest_compilecontract.files.whole import write_bytes
from pytest_compilecontract.upgrade.bump import KEPT, append_text, bump, uv_options
from pytest_compilecontract.upgrade.installing import installability, outcome, table_lines, table_markdown

from .exits import code_of, say
from .matrix import FORMATS_TOLD, Made, rendered, to_write

WRITTEN = ("html", "junit", "json")


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `bump` to the command line."""
    both = commands.add_parser(
        "bump",
        help="run the suite on two releases of torch, and answer the gate's question",
        usage="compilecontract bump [SPEC ...] [--from SPEC ...] [options] [-- PYTEST_ARGUMENT ...]",
        description="Run the project's tests before and after an upgrade, on the same commit, and print the matrix and "
        "the gate's answer. Exit code 0 yes, 1 no, 2 unusable input, 3 not known.",
        epilog="Arguments after -- go to pytest on both sides: compilecontract bump torch==2.12.1 -- -k router. "
        "To compare two interpreters that have their torch: compilecontract bump --from-python OLD --python NEW",
    )
    _add_arguments(both)
    both.set_defaults(command=_bump)


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("specs", metavar="SPEC", nargs="*", help="what to upgrade to, for example torch==2.12.1")
    parser.add_argument(
        "--from",
        dest="before",
        metavar="SPEC",
        nargs="+",
        action="extend",
        default=[],
        help="what to upgrade from, for example torch==2.11.0 (default: the Python that runs this, if it has torch; "
        "else the version that pyproject.toml or uv.lock pins, else that of the newest baseline)",
    )
    parser.add_argument(
        "--matrix",
        action="store_true",
        help="only report which of these releases can be resolved, installed and imported, for each --python-version "
        "and --torch-backend, for example 3.11,3.12 and cpu,cu130; no tests are run",
    )
    there = parser.add_argument_group("existing environments")
    there.add_argument("--python", metavar="PATH", type=Path, help="the Python interpreter that has the newer torch")
    there.add_argument(
        "--from-python", metavar="PATH", type=Path, help="the Python interpreter that has the older torch"
    )
    made = parser.add_argument_group("environments created with uv")
    made.add_argument("--group", metavar="NAME", action="append", default=[], help="a dependency group of the project")
    made.add_argument(
        "--extra",
        metavar="NAME",
        action="append",
        default=[],
        help="an extra of the project (default: test, tests, dev)",
    )
    made.add_argument(
        "--requirements", metavar="FILE", type=Path, action="append", default=[], help="a requirements file"
    )
    made.add_argument(
        "--with",
        dest="others",
        metavar="REQ",
        action="append",
        default=[],
        help="an additional requirement, for example timm==1.0.31",
    )
    made.add_argument("--no-project", action="store_true", help="do not install the project itself")
    made.add_argument("--python-version", metavar="X.Y", help="the environments' version of Python (default: this one)")
    made.add_argument("--index-url", metavar="URL", help="where uv finds packages; UV_* variables work too")
    made.add_argument(
        "--extra-index-url", metavar="URL", action="append", default=[], help="another index, searched first"
    )
    made.add_argument("--torch-backend", metavar="NAME", help="the build of torch for uv: cpu, cu130, auto, ...")
    run = parser.add_argument_group("the run")
    run.add_argument("--project", metavar="DIR", type=Path, default=Path(), help="default: the current folder")
    run.add_argument("--timeout", metavar="SECONDS", type=_seconds, help="time limit for the tests on each side")
    run.add_argument("--keep", metavar="DIR", type=Path, help=f"keeps environments and receipts (default: {KEPT})")
    run.add_argument("--receipts", metavar="DIR", type=Path, help="where the receipts go instead of DIR/receipts")
    run.add_argument(
        "--evidence",
        action="store_true",
        help="rerun the lanes that changed on both sides for their graphs and code; --html shows how the graphs differ",
    )
    run.add_argument("--summary", metavar="FILE", type=Path, help="add the matrix and the answer to FILE, as Markdown")
    for kind in WRITTEN:
        run.add_argument(f"--{kind}", metavar="FILE", type=Path, help=f"also write the matrix as {FORMATS_TOLD[kind]}")
    run.add_argument(
        "--policy", metavar="FILE", type=Path, help="the policy: what gates and what may stay open, in TOML"
    )
    run.add_argument("--waivers", metavar="FILE", type=Path, help=f"drift that is tolerated (default: {WAIVERS})")
    run.add_argument("-v", "--verbose", action="store_true", help="also list the lanes that held")


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise argparse.ArgumentTypeError(f"expected a number of seconds such as 600, got {text!r}")
    return seconds


def _installability(chosen: argparse.Namespace) -> int:
    """The table of what can be installed; options for running tests do not apply."""
    given = {"--from": chosen.before, "--python": chosen.python, "--from-python": chosen.from_python}
    if refused := next((name for name, value in {**given, "--": chosen.passed_on}.items() if value), ""):
        raise UsageError(f"{refused} does nothing with --matrix, which runs no tests")
    chosen.finding = uv_options(chosen)
    found = installability(chosen)
    say(*table_lines(found))
    if chosen.summary:
        append_text(chosen.summary, table_markdown(found))
    return code_of(outcome(found))


def _bump(chosen: argparse.Namespace) -> int:
    if chosen.matrix:
        return _installability(chosen)
    wanted = to_write([(kind, getattr(chosen, kind)) for kind in WRITTEN], chosen, {})
    for _, path in wanted:
        # Found out before the tests have run, and not after.
        if path.is_dir():
            raise UsageError(f"{path}: is a folder, the matrix is written to a file")
    found = bump(chosen, chosen.passed_on)
    made = Made(
        found=found.table, answered=found.answer, policy=found.policy, everything=chosen.verbose, graphs=found.graphs
    )
    for kind, path in wanted:
        write_bytes(path, rendered(kind, made))
        say(f"wrote {one_line(str(path), 1000)}", stream=sys.stderr)
    return code_of(found.answer.outcome)
