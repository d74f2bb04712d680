"""`compilecontract waive`: print the waivers for what drifted between two runs, to append to a file."""

from __future__ import annotations

import argparse
import datetime
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from pytest_compilecontract.compare.comparison import compare
from pytest_compilecontract.compare.drift import LaneComparison
from pytest_compilecontract.compare.gate import why_open
from pytest_compilecontract.compare.waive import Rest, written
from pytest_compilecontract.compare.waivers import KINDS, waived
from pytest_compilecontract.errors import UsageError
from pytest_compilecontract.escaping import one_line
from pytest_compilecontract.facts.versions import minor_release, version_range
from pytest_compilecontract.wording import counted

from .exits import NO, YES, exit_codes, say
from .runs import add_judging, policy_of, read_two, waivers_of


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `waive` to the command line."""
    told = "print the waivers that tolerate what drifted: compilecontract waive OLD NEW ... >> contracts/waivers.toml"
    ends = exit_codes("printed", no="nothing drifted that a waiver could tolerate")
    command = commands.add_parser("waive", help=told, description=told, epilog=ends)
    command.add_argument("old", metavar="OLD", type=Path, help="a receipt or folder, as for compare")
    command.add_argument("new", metavar="NEW", type=Path, help="the same, for the newer run")
    command.add_argument("--owner", required=True, metavar="NAME", help="who is responsible for it")
    command.add_argument("--issue", required=True, metavar="URL", help="where it is discussed")
    command.add_argument(
        "--expires", required=True, metavar="DATE", type=_date, help="the last day it applies, for example 2027-01-31"
    )
    command.add_argument(
        "--torch", metavar="RANGE", help="versions of torch it applies to (default: NEW's minor release)"
    )
    command.add_argument("--kind", choices=KINDS, default=KINDS[0], help=f"(default: {KINDS[0]})")
    add_judging(command)
    command.set_defaults(command=_waive)


def _date(text: str) -> datetime.date:
    try:
        return datetime.date.fromisoformat(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected a date such as 2027-01-31, got {text!r}") from None


def _waive(chosen: argparse.Namespace) -> int:
    if not re.match(r"https?://\S+$", chosen.issue):
        raise UsageError(f"--issue: expected a URL, got {chosen.issue!r}")
    if not chosen.owner.strip():
        raise UsageError("--owner is empty")
    if chosen.expires < datetime.date.today():
        raise UsageError(f"--expires: expected a day to come, got {chosen.expires}")
    if chosen.torch is not None:
        version_range(chosen.torch, where="--torch")
    runs = read_two(chosen.old, chosen.new, "waive")
    if runs.chosen:
        say(one_line(runs.chosen), stream=sys.stderr)
    found = compare(runs.old, runs.new, policy_of(chosen))
    # What is waived already needs no second one.
    lanes = waived(found, waivers_of(chosen), datetime.date.today()).lanes
    made = written((lane, chosen.torch or _minor(lane.torch or "")) for lane in lanes)
    rest = Rest(issue=chosen.issue, owner=chosen.owner, expires=chosen.expires, kind=chosen.kind)
    texts = [each.as_toml(rest) for each in made]
    needing = {(each.contract, lane) for each in made for lane in each.lanes}
    over = sum((lane.contract, lane.lane) in needing and lane.over_its_limits for lane in lanes)
    # What is printed is appended to a file: anything else belongs elsewhere.
    if texts:
        say("\n".join(texts))
        if over:
            sys.stderr.write(
                f"compilecontract: {counted(over, 'lane')} also over the limits of the contract, which waivers do not "
                "change: pytest fails there until the limits are changed\n"
            )
        return YES
    sys.stderr.write(f"compilecontract: {_why_nothing(lanes)}\n")
    return NO


def _why_nothing(lanes: Sequence[LaneComparison]) -> str:
    """Why there is nothing to waive."""
    if any(lane.verdict == "waived" for lane in lanes):
        return "nothing to waive: what drifted is waived already"
    if open_ := [lane for lane in lanes if why_open(lane)]:
        first = one_line(f"{open_[0].contract} [{open_[0].lane}]")
        return f"nothing drifted, so nothing can be waived; {first}: {one_line(why_open(open_[0]))}"
    return "nothing to waive: no lane drifted"


def _minor(torch: str) -> str:
    """The range of a torch's minor release, such as "==2.12.*"."""
    release = minor_release(torch)
    return f"=={release}.*" if release else ">=0"
