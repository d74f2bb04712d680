"""`compilecontract schema`: print the JSON Schema of a document, for editors and other programs."""

from __future__ import annotations

import argparse
import sys
from importlib.resources import files

from .exits import YES, exit_codes

KINDS = ("receipt", "baseline", "matrix")


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `schema` to the command line."""
    told = "print the JSON Schema of a receipt, a baseline or a matrix"
    command = commands.add_parser("schema", help=told, description=told, epilog=exit_codes("printed"))
    command.add_argument("kind", choices=KINDS, help="which document")
    command.set_defaults(command=_schema)


def shipped(kind: str) -> bytes:
    """The schema of a document in this package."""
    return files("pytest_compilecontract").joinpath(f"schemas/{kind}.schema.json").read_bytes()


def _schema(chosen: argparse.Namespace) -> int:
    sys.stdout.write(shipped(chosen.kind).decode())
    return YES
