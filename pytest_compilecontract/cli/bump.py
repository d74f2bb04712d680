"""`compilecontract bump`: the options of the job that `upgrade.bump` does."""

from __future__ import annotations

import argparse
from pathlib import Path

from pytest_compilecontract.compare.waivers import FILE as WAIVERS
from pytest_compilecontract.upgrade.bump import KEPT, bump

from .exits import code_of


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `bump` to the command line."""
    both = commands.add_parser(
        "bump",
        help="run the suite on two releases of torch, and answer the gate's question",
        usage="compilecontract bump [SPEC ...] [--from SPEC ...] [options] [-- PYTEST_ARGUMENT ...]",
        description="Run the project's tests before and after an upgrade, on the same commit, and print the matrix and "
        "the gate's answer. Exit code 0 yes, 1 no, 2 unusable input, 3 not known.",
        epilog="What follows -- is for pytest, on both sides: compilecontract bump torch==2.12.1 -- -k router",
    )
    _add_arguments(both)
    both.set_defaults(command=_bump)


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("specs", metavar="SPEC", nargs="*", help="what to upgrade to, as torch==2.12.1")
    parser.add_argument(
        "--from",
        dest="before",
        metavar="SPEC",
        nargs="+",
        action="extend",
        default=[],
        help="what to upgrade from, as torch==2.11.0 (default: the Python that runs this, if it has torch; else the "
        "version that pyproject.toml or uv.lock pins, else that of the newest baseline)",
    )
    there = parser.add_argument_group("existing environments")
    there.add_argument("--python", metavar="PATH", type=Path, help="the Python interpreter that has the newer torch")
    there.add_argument(
        "--from-python", metavar="PATH", type=Path, help="the Python interpreter that has the older torch"
    )
    made = parser.add_argument_group("environments made with uv")
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
        help="one more requirement, as timm==1.0.31",
    )
    made.add_argument("--no-project", action="store_true", help="do not install the project itself")
    made.add_argument("--python-version", metavar="X.Y", help="the Python to make them with (default: this one)")
    made.add_argument("--index-url", metavar="URL", help="where uv finds packages; UV_* variables work too")
    made.add_argument(
        "--extra-index-url", metavar="URL", action="append", default=[], help="another index, searched first"
    )
    made.add_argument("--torch-backend", metavar="NAME", help="uv's choice of torch's builds: cpu, cu130, auto, ...")
    run = parser.add_argument_group("the run")
    run.add_argument("--project", metavar="DIR", type=Path, default=Path(), help="the project (default: this folder)")
    run.add_argument("--timeout", metavar="SECONDS", type=_seconds, help="time limit for the tests on each side")
    run.add_argument("--keep", metavar="DIR", type=Path, help=f"keeps environments and receipts (default: {KEPT})")
    run.add_argument("--receipts", metavar="DIR", type=Path, help="where the receipts go instead of DIR/receipts")
    run.add_argument("--summary", metavar="FILE", type=Path, help="add the matrix and the answer to FILE, as Markdown")
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
        raise argparse.ArgumentTypeError(f"expected seconds as 600, got {text!r}")
    return seconds


def _bump(chosen: argparse.Namespace) -> int:
    return code_of(bump(chosen, chosen.passed_on))
