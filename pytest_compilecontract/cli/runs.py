"""The runs that a command reads, and the policy and waivers that it applies."""

from __future__ import annotations

import argparse
from pathlib import Path

from pytest_compilecontract.baselines.store import read_folder
from pytest_compilecontract.compare.policy import DEFAULT_POLICY, Policy, read_policy
from pytest_compilecontract.compare.waivers import FILE, Waiver, read_waivers
from pytest_compilecontract.errors import ReceiptError
from pytest_compilecontract.facts.receipt import RECEIPT, Receipt
from pytest_compilecontract.files import journal as journals
from pytest_compilecontract.files.project import read_project
from pytest_compilecontract.files.receipt import read_receipt


def add_judging(parser: argparse.ArgumentParser) -> None:
    """Add the options for what gates and what is tolerated."""
    parser.add_argument(
        "--policy", metavar="FILE", type=Path, help="the policy: what gates and what may stay open, in TOML"
    )
    parser.add_argument(
        "--waivers",
        metavar="FILE",
        type=Path,
        help=f"drift that is known and tolerated, in TOML (default: {FILE.as_posix()}, if it exists)",
    )


def policy_of(chosen: argparse.Namespace) -> Policy:
    """The policy from the command line, else the project's if this is its folder, else the default."""
    file = chosen.policy or read_project(Path()).policy
    return read_policy(file) if file else DEFAULT_POLICY


def waivers_of(chosen: argparse.Namespace) -> tuple[Waiver, ...]:
    """The waivers from the command line, else the project's if this is its folder."""
    file = chosen.waivers or read_project(Path()).waivers or (FILE if FILE.is_file() else None)
    return read_waivers(file) if file else ()


def read_run(path: Path) -> Receipt:
    """Read a receipt, the receipt in a folder, or the baselines in a folder.

    Raises:
        ReceiptError: it cannot be read, or its run did not end.
    """
    file = receipt_file(path)
    return read_receipt(file) if file == path or file.exists() else read_folder(path)


def receipt_file(path: Path) -> Path:
    """The receipt file for a path to it, or to its folder.

    Raises:
        ReceiptError: the folder's run did not end.
    """
    if not path.is_dir():
        return path
    if (path / journals.NAME).exists():
        # Beside it may lie the receipt of an earlier run, which would pass for this one's.
        raise ReceiptError(f"{path}: its run did not end (`compilecontract recover {path}` writes the receipt)")
    return path / RECEIPT
