"""A baseline as a document: one test module in one environment, read and written."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_compilecontract.errors import ReceiptError
from pytest_compilecontract.facts.ladder import Frontier
from pytest_compilecontract.facts.measurement import Measurement
from pytest_compilecontract.facts.receipt import FORMAT, Environment
from pytest_compilecontract.facts.verdict import Verdict
from pytest_compilecontract.files.codec import (
    SCHEMA,
    address_of,
    decoded,
    document_from_json,
    plain,
    refuse_other_kind,
    schema_of,
    value_from_data,
)
from pytest_compilecontract.files.sense import lane_faults
from pytest_compilecontract.files.whole import read_bytes

from .kept import COUNTED_BY_NAME

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


@dataclass(frozen=True, kw_only=True, slots=True)
class BaselineLane:
    """One lane of one contract, as it was when it was recorded.

    `accepted` is the reason given for recording a lane that would be refused. `environment` is a key of the file's
    `environments`. `spread` is the band of each banded metric over the `repeats`, rounded outward.
    """

    test: str
    verdict: Verdict
    environment: str
    measurement: Measurement
    accepted: str = ""
    limits: dict[str, Any] = field(default_factory=dict)
    lane_settings: dict[str, Any] = field(default_factory=dict)
    repeats: int = 1
    spread: dict[str, tuple[float, float]] = field(default_factory=dict)
    frontier: Frontier | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Baseline:
    """The baseline of a test module in one environment: lanes by contract, then by name."""

    format: int = FORMAT
    environments: dict[str, Environment] = field(default_factory=dict)
    contracts: dict[str, dict[str, BaselineLane]] = field(default_factory=dict)


# Files


def read_baseline(path: Path) -> Baseline:
    """The baseline in the file.

    Raises:
        ReceiptError: the file cannot be read, or is not a baseline.
    """
    return from_json(read_bytes(path), name=str(path))


def from_json(data: bytes, *, name: str) -> Baseline:
    """The baseline in `data`; `name` is its name in messages.

    Raises:
        ReceiptError: `data` is not a baseline. The message is one line, whatever the bytes are.
    """
    baseline = decoded(data, Baseline)
    if baseline is not None and baseline.format == FORMAT and next(_faults(baseline), None) is None:
        return baseline
    # Something is wrong, or may be: this way is slower, and says what and where.
    return from_document(document_from_json(data, name=name), name=name)


def from_document(document: Mapping[str, object], *, name: str) -> Baseline:
    """The baseline from its JSON document.

    Raises:
        ReceiptError: it is another kind of document, a key is missing or unknown, a value has the wrong type, or an
            environment is missing.
    """
    refuse_other_kind(document, "baseline", name=name)
    baseline = value_from_data(document, Baseline, name=name)
    for at, fault in _faults(baseline):
        raise ReceiptError(fault, at=f"{name}: {at}")
    return baseline


def _faults(baseline: Baseline) -> Iterator[tuple[str, str]]:
    """Contradictions in a baseline, with their places: lanes whose environment is not in the file, then bands."""
    lanes = [(contract, name, lane) for contract, each in baseline.contracts.items() for name, lane in each.items()]
    for contract, name, lane in lanes:
        if lane.environment not in baseline.environments:
            yield f"contracts[{contract!r}][{name!r}].environment", f"{lane.environment!r} is not in environments"
    for contract, name, lane in lanes:
        for at, fault in lane_faults(lane.measurement, lane.repeats, lane.spread):
            yield f"contracts[{contract!r}][{name!r}].{at}", fault


def to_json(baseline: Baseline) -> bytes:
    """The baseline as JSON: keys in order, one fact per line, without fields that have their default."""
    data = {
        SCHEMA: address_of("baseline"),
        "format": baseline.format,
        "environments": {name: _said(each) for name, each in baseline.environments.items()},
        "contracts": {
            contract: {name: _said(lane) for name, lane in lanes.items()}
            for contract, lanes in baseline.contracts.items()
        },
    }
    return "\n".join(lines(data, "")).encode() + b"\n"


def schema() -> dict[str, object]:
    """The JSON Schema (2020-12) of a baseline file."""
    return schema_of(
        Baseline,
        name="baseline",
        description="The baseline of one test module in one environment.",
    )


def schema_json() -> bytes:
    """The text of schemas/baseline.schema.json."""
    return json.dumps(schema(), indent=2, sort_keys=True).encode() + b"\n"


def _said(value: object) -> object:
    """Plain data without the fields that have their default, which a reader fills in."""
    if isinstance(value, tuple):
        return [_said(each) for each in value]
    if not is_dataclass(value) or isinstance(value, type):
        return plain(value)
    bare = _defaults(type(value))
    said = {each.name: getattr(value, each.name) for each in fields(value)}
    return {name: _said(each) for name, each in said.items() if name not in bare or each != bare[name]}


def _defaults(type_: type[DataclassInstance]) -> dict[str, object]:
    found: dict[str, object] = {}
    for each in fields(type_):
        if each.default is not MISSING:
            found[each.name] = each.default
        elif each.default_factory is not MISSING:
            found[each.name] = each.default_factory()
    return found


def lines(value: object, indent: str) -> Iterator[str]:
    """JSON text in which each item of a list, and so each fact, has its own line."""
    inner = indent + "  "
    if isinstance(value, dict) and value:
        yield "{"
        items = sorted(value.items())
        for index, (key, item) in enumerate(items):
            first, *rest = [_compact(item)] if key in COUNTED_BY_NAME else lines(item, inner)
            comma = "," if index + 1 < len(items) else ""
            text = [f"{inner}{_compact(key)}: {first}", *rest]
            yield from [*text[:-1], text[-1] + comma]
        yield indent + "}"
    elif isinstance(value, list) and any(not isinstance(item, float) for item in value):
        yield "["
        last = len(value) - 1
        yield from (f"{inner}{_compact(item)}{'' if index == last else ','}" for index, item in enumerate(value))
        yield indent + "]"
    else:
        yield _compact(value)


def _compact(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, sort_keys=True)
