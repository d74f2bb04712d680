"""`compilecontract bump`: the options of the job that `upgrade.bump` does."""

from __future__ import annotations

import argparse

from pytest_compilecontract.upgrade.bump import add_arguments, bump

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
    add_arguments(both)
    both.set_defaults(command=_bump)


def _bump(chosen: argparse.Namespace) -> int:
    return code_of(bump(chosen, chosen.passed_on))
