"""`compilecontract compare` and `gate`: all drift between two runs, and may we upgrade?"""

from __future__ import annotations

import argparse
import datetime
import sys
from dataclasses import dataclass, replace
from pathlib import Path

from pytest_compilecontract.compare.comparison import compare
from pytest_compilecontract.compare.drift import Comparison, LaneComparison
from pytest_compilecontract.compare.gate import Answer, answer
from pytest_compilecontract.compare.policy import Policy
from pytest_compilecontract.compare.waivers import stale, waived
from pytest_compilecontract.errors import UsageError
from pytest_compilecontract.escaping import one_line
from pytest_compilecontract.facts.receipt import RECEIPT
from pytest_compilecontract.report import color
from pytest_compilecontract.report.comparison import answer_lines, comparison_lines, stale_lines, title, totals
from pytest_compilecontract.upgrade.changed_defaults import explained, explained_line, refuse_other_torch, trial_in

from .exits import code_of, exit_codes, say
from .runs import Two, add_across_devices, add_judging, policy_of, read_two, start_here, waivers_of

ENDS = exit_codes("nothing drifted", no="a lane drifted or broke, or a waiver is stale", not_known="it cannot tell")


def add_commands(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `compare` and `gate` to the command line."""
    for name, help_, command in (
        ("compare", "print all drift between two runs", _compare),
        ("gate", "may we upgrade? exit code 0 yes, 1 no, 2 unusable input, 3 not known", _gate),
    ):
        two = commands.add_parser(name, help=help_, description=help_, epilog=ENDS)
        two.add_argument(
            "old",
            metavar="OLD",
            type=Path,
            help=f"a receipt, a folder with a {RECEIPT}, or a folder of baselines, of which those that fit are taken",
        )
        two.add_argument("new", metavar="NEW", type=Path, help="the same, for the newer run")
        add_judging(two)
        add_across_devices(two)
        louder = two.add_mutually_exclusive_group()
        louder.add_argument(
            "-v", "--verbose", dest="verbosity", action="store_const", const=1, help="show everything that changed"
        )
        louder.add_argument(
            "-q", "--quiet", dest="verbosity", action="store_const", const=-1, help="show only the answer"
        )
        if name == "compare":
            two.add_argument(
                "--try-settings",
                action="store_true",
                help="rerun what drifted, on NEW's torch with OLD's defaults, and name the setting that explains it",
            )
            two.add_argument(
                "--python",
                metavar="PATH",
                help="the interpreter with NEW's torch, for --try-settings (default: this one)",
            )
        two.set_defaults(command=command, named=name, verbosity=0)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Compared:
    """Two runs, their comparison under the policy, and the gate's answer."""

    runs: Two
    policy: Policy
    comparison: Comparison
    found: Answer


def _compared(chosen: argparse.Namespace) -> _Compared:
    policy, waivers, today = policy_of(chosen), waivers_of(chosen), datetime.date.today()
    runs = read_two(chosen.old, chosen.new, chosen.named)
    comparison = waived(compare(runs.old, runs.new, policy), waivers, today)
    comparison = replace(comparison, lanes=tuple(map(_rerun_here, comparison.lanes)))
    said = stale(comparison, waivers, today)
    return _Compared(runs=runs, policy=policy, comparison=comparison, found=answer(comparison, policy, said))


def _rerun_here(lane: LaneComparison) -> LaneComparison:
    return lane.rerun_by(start_here(lane.rerun.start, [lane.torch])) if lane.rerun is not None else lane


def _compare(chosen: argparse.Namespace) -> int:
    if chosen.python is not None and not chosen.try_settings:
        raise UsageError("--python does nothing without --try-settings")
    sides = _compared(chosen)
    if chosen.try_settings:
        refuse_other_torch(chosen.python or sys.executable, sides.runs.new)
    lines = [title(sides.comparison), totals(sides.comparison)]
    if chosen.verbosity >= 0:
        paint = color.paint_of(chosen.colors)
        lines = comparison_lines(sides.comparison, everything=chosen.verbosity > 0, paint=paint)
    say(*_chosen(sides), *lines, *stale_lines(sides.found))
    if chosen.try_settings:
        _try_settings(chosen, sides)
    return code_of(sides.found.outcome)


def _chosen(sides: _Compared) -> list[str]:
    return [one_line(sides.runs.chosen)] if sides.runs.chosen else []


def _try_settings(chosen: argparse.Namespace, sides: _Compared) -> None:
    """Print, lane by lane, which of torch's changed defaults explains the drift; progress goes to stderr."""
    run = trial_in(chosen.python or sys.executable, lambda text: say(one_line(text), stream=sys.stderr))
    shown = ""
    for each in explained(sides.runs.old, sides.runs.new, sides.policy, run):
        lane = f"{each.lane.contract} [{each.lane.lane}]"
        if lane != shown:
            say("", one_line(lane))
            shown = lane
        say(explained_line(each))
    if not shown:
        say("nothing drifted, so no setting was tried")


def _gate(chosen: argparse.Namespace) -> int:
    sides = _compared(chosen)
    paint, everything = color.paint_of(chosen.colors), chosen.verbosity > 0
    lines = answer_lines(sides.comparison, sides.found, sides.policy, sides.runs.paths, paint, everything=everything)
    say(*(lines[-1:] if chosen.verbosity < 0 else [*_chosen(sides), *lines]))
    return code_of(sides.found.outcome)
