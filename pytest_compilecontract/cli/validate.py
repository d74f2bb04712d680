"""`compilecontract validate`: check that a file matches its schema and does not contradict itself.

Waivers have no schema: they are checked by reading them.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_compilecontract.baselines.document import from_document as baseline_from_document
from pytest_compilecontract.baselines.store import read_defaults
from pytest_compilecontract.compare.waivers import FILE as WAIVERS
from pytest_compilecontract.compare.waivers import read_waivers
from pytest_compilecontract.errors import ReceiptError, UsageError
from pytest_compilecontract.escaping import one_line
from pytest_compilecontract.files.codec import Data, document_from_json, kind_of
from pytest_compilecontract.files.receipt import receipt_from_document
from pytest_compilecontract.files.whole import read_bytes
from pytest_compilecontract.report import document
from pytest_compilecontract.wording import counted

from .exits import NO, YES, exit_codes, refused, say
from .schema import shipped

if TYPE_CHECKING:
    from jsonschema import ValidationError

MOST_ERRORS = 20


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `validate` to the command line."""
    validate = commands.add_parser(
        "validate",
        help="check receipts, baselines and matrices against the JSON Schema, and waivers",
        epilog=exit_codes("all match", no="one does not match its schema"),
    )
    validate.add_argument(
        "files",
        metavar="FILE",
        type=Path,
        nargs="+",
        help="a receipt.json, baseline, matrix or waivers.toml, or a folder of them",
    )
    validate.set_defaults(command=_validate)


def _validate(chosen: argparse.Namespace) -> int:
    return max(_validate_file(path) for given in chosen.files for path in _files_in(given))


def _files_in(given: Path) -> list[Path]:
    """The documents in a folder, or the file that was given.

    Raises:
        ReceiptError: there are none in the folder.
    """
    if not given.is_dir():
        return [given]
    named = (*given.rglob("*.json"), *given.rglob(WAIVERS.name))
    if not (found := sorted(path for path in named if path.is_file())):
        raise ReceiptError(f"{one_line(str(given))}: contains no receipt, baseline, matrix or {WAIVERS.name}")
    return found


def _validate_file(path: Path) -> int:
    if path.suffix == ".toml":
        return _validate_waivers(path)
    try:
        found = document_from_json(read_bytes(path), name=str(path))
        kind = kind_of(found) or "receipt"
        if kind == "defaults":
            size = counted(len(read_defaults(path)), "default", "defaults")
            say(f"{one_line(str(path))}: matches its name (format {found['format']}, {size} of torch)")
            return YES
        errors = list(islice(_schema_errors(found, kind), MOST_ERRORS + 1))
    except ReceiptError as error:
        return refused(error)
    for line in errors[:MOST_ERRORS]:
        say(f"{one_line(str(path))}: {line}")
    if len(errors) > MOST_ERRORS:
        say(f"{one_line(str(path))}: more than {MOST_ERRORS} errors, the others are not shown")
    if errors:
        return NO
    try:
        size = _READERS[kind](found, str(path))
    except ReceiptError as error:
        say(str(error))
        return NO
    say(f"{one_line(str(path))}: matches the schema (format {found['format']}, {size})")
    return YES


def _validate_waivers(path: Path) -> int:
    try:
        size = counted(len(read_waivers(path)), "waiver")
    except UsageError as error:
        if not path.is_file():
            return refused(error)
        say(one_line(str(error), 1000))
        return NO
    say(f"{one_line(str(path))}: {size}, no errors")
    return YES


def _receipt_size(found: Mapping[str, Data], name: str) -> str:
    return counted(len(receipt_from_document(found, name=name).entries), "entry", "entries")


def _baseline_size(found: Mapping[str, object], name: str) -> str:
    contracts = baseline_from_document(found, name=name).contracts
    return counted(sum(map(len, contracts.values())), "lane", "lanes")


def _matrix_size(found: Mapping[str, object], name: str) -> str:
    made = document.document_from_data(found, name=name)
    return f"{counted(len(made.rows), 'lane', 'lanes')}, {counted(len(made.columns), 'environment', 'environments')}"


# What each document must be beyond its schema; they give its size in words.
_READERS = {"receipt": _receipt_size, "baseline": _baseline_size, "matrix": _matrix_size}


def _schema_errors(found: Mapping[str, object], kind: str) -> Iterator[str]:
    """The mismatches between a document and the schema in this package, one line each."""
    # Both take longer to import than the rest of the command, and only this asks for them.
    import msgspec
    from jsonschema import Draft202012Validator

    for mismatch in Draft202012Validator(msgspec.json.decode(shipped(kind))).iter_errors(found):
        yield from _lines(mismatch)


def _lines(error: ValidationError) -> Iterator[str]:
    if error.validator == "anyOf":
        # Of "a measurement or null", the measurement is meant if it is the right kind of thing and wrong inside.
        branches: dict[int | str, list[ValidationError]] = {}
        for each in error.context:
            branches.setdefault(each.schema_path[0], []).append(each)
        meant = [inside for inside in branches.values() if not any(_is_other_kind(each) for each in inside)]
        if len(meant) == 1:
            for each in meant[0]:
                yield from _lines(each)
            return
    place = error.json_path.removeprefix("$").removeprefix(".")
    yield one_line(f"{place}: {_said(error)}" if place else _said(error))


def _is_other_kind(error: ValidationError) -> bool:
    return not error.relative_path and error.validator in ("type", "enum")


def _said(error: ValidationError) -> str:
    if error.validator in ("additionalProperties", "required"):
        return str(error.message)
    found = one_line(repr(error.instance), 60)
    if error.validator == "anyOf":
        branches = error.validator_value if isinstance(error.validator_value, list) else []
        return f"expected {' or '.join(map(_alternative, branches))}, got {found}"
    if error.validator == "type":
        return f"expected {error.validator_value}, got {found}"
    if error.validator == "enum":
        return f"expected {_alternative(error.schema)}, got {found}"
    if error.validator == "const":
        return f"expected {error.validator_value!r}, got {found}"
    return f"expected {error.validator} {error.validator_value}, got {found}"


def _alternative(schema: object) -> str:
    assert isinstance(schema, dict), "our own schemas have no other"
    if "enum" in schema:
        return " or ".join(map(repr, schema["enum"]))
    return str(schema["type"] if "type" in schema else schema["$ref"].rpartition("/")[2])
