"""Receipts as files: read, written, and their JSON Schema."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from pytest_compilecontract.errors import ReceiptError
from pytest_compilecontract.escaping import one_line
from pytest_compilecontract.facts.receipt import CREATED, FORMAT, Entry, Environment, Receipt

from .codec import SCHEMA, Data, address_of, built, decoded, document_from_json, record, refuse_other_kind, schema_of
from .sense import is_consistent, refuse_inconsistent
from .whole import named, read_bytes, write_bytes


def to_json(receipt: Receipt) -> bytes:
    """The receipt as JSON: indented, keys in order, the same bytes for equal receipts."""
    import msgspec

    document = {SCHEMA: address_of("receipt"), **record(receipt)}
    return msgspec.json.format(msgspec.json.encode(document, order="sorted"), indent=2) + b"\n"


def from_json(data: bytes, *, name: str) -> Receipt:
    """The receipt in `data`; `name` is its name in messages.

    Raises:
        ReceiptError: `data` is not a receipt. The message is one line, whatever the bytes are.
    """
    receipt = decoded(data, Receipt)
    if receipt is not None and receipt.format == FORMAT and is_consistent(receipt):
        return receipt
    # Something is wrong, or may be: this way is slower, and says what and where.
    return receipt_from_document(document_from_json(data, name=name), name=name)


def receipt_from_document(document: Mapping[str, Data], *, name: str) -> Receipt:
    """The receipt from its JSON document.

    Raises:
        ReceiptError: it is another kind of document, a key is missing or unknown, or a value is not of its type.
    """
    refuse_other_kind(document, "receipt", name=name)
    try:
        receipt = built(document, Receipt)
        refuse_inconsistent(receipt, document)
    except ReceiptError as error:
        raise named(error, name) from None
    return receipt


def entry_to_data(entry: Entry) -> dict[str, Data]:
    """The entry as plain data (dict, list, str, int, float, bool, None), which pytest-xdist can send."""
    return record(entry)


def entry_from_data(data: object) -> Entry:
    """The entry from the result of `entry_to_data`.

    Raises:
        ReceiptError: `data` is not such a result.
    """
    return built(data, Entry)


def environment_to_data(env: Environment) -> dict[str, Data]:
    """The environment as plain data, which pytest-xdist can send."""
    return record(env)


def environment_from_data(data: object) -> Environment:
    """The environment from the result of `environment_to_data`.

    Raises:
        ReceiptError: `data` is not such a result.
    """
    return built(data, Environment)


def read_receipt(path: Path) -> Receipt:
    """The receipt in the file.

    Raises:
        ReceiptError: the file cannot be read, or is not a receipt.
    """
    return from_json(read_bytes(path), name=str(path))


def write_receipt(path: Path, receipt: Receipt) -> None:
    """Write the file as a whole or not at all; missing folders are created.

    Raises:
        ReceiptError: the file cannot be written.
    """
    try:
        data = to_json(receipt)
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
        raise ReceiptError(f"{path}: cannot be written ({one_line(str(error))})") from error
    write_bytes(path, data)


def schema() -> dict[str, object]:
    """The JSON Schema (2020-12) of a receipt of this format, made from the dataclasses.

    Unknown properties are refused: within one format there are none. Check `format` before the schema, so that a newer
    document is reported as newer and not as wrong.
    """
    made = schema_of(
        Receipt,
        name="receipt",
        description="What compiling did in one session of `pytest --compile-contracts`, contract by contract.",
    )
    made["$defs"]["Receipt"]["properties"]["created"]["pattern"] = CREATED
    return made


def schema_json() -> bytes:
    """The text of schemas/receipt.schema.json."""
    return json.dumps(schema(), indent=2, sort_keys=True).encode() + b"\n"
