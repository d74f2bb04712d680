"""Frozen data as JSON and back, by its types, with one clear error; and the JSON Schema of it."""

from __future__ import annotations

import inspect
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from types import UnionType
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Literal,
    TypeAlias,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from pytest_compilecontract.errors import ReceiptError
from pytest_compilecontract.escaping import one_line
from pytest_compilecontract.facts.receipt import FORMAT, KINDS

from .sense import NON_FINITE, Bounds, bounds_of
from .whole import named

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

# msgspec is imported where it is used: it takes longer to import than all of this package, and a pytest run that
# writes no receipt must not pay for it.

T = TypeVar("T")
# What JSON can hold.
Data: TypeAlias = "bool | int | float | str | list[Data] | dict[str, Data] | None"
DEEPEST = 64
DIALECT = "https://json-schema.org/draft/2020-12/schema"
# What a document may say of itself beside its fields: where its schema is.
SCHEMA = "$schema"


def decoded(data: bytes, type_: type[T]) -> T | None:
    """The dataclass `type_` in `data`; None if it may contain anything that `value_from_data` or `document_from_json`
    refuses.

    It only uses msgspec's decoder, which is many times faster than the code that explains errors, and decodes twice:
    first strictly, refusing unknown keys, and then to the value. Neither detects a duplicate key: for that, the result
    of the first is encoded again, which gives fewer lines than the original.
    """
    import msgspec

    named: object = type_  # mypy does not know that a class can be hashed
    strict, loose = _decoders(named)
    try:
        lines = msgspec.json.format(data, indent=1)
        # No text has a line break in it, so this is indentation: a level of nesting a space.
        if b"\n" + b" " * (DEEPEST - 1) in lines:
            return None
        count = lines.count(b"\n")
        del lines
        written = strict.decode(data)
        if written.format is msgspec.UNSET:
            return None
        again = msgspec.json.encode(written)
        del written
        if msgspec.json.format(again, indent=1).count(b"\n") != count:
            return None
        del again
        value: T = loose.decode(data)
    except (msgspec.MsgspecError, ValueError, RecursionError, OverflowError):
        return None
    return value


@cache
def _decoders(type_: Any) -> tuple[Any, Any]:
    """A decoder for the written form of a dataclass, and one for its value.

    The second accepts "nan" and "inf" as numbers. It would accept more, but only sees what the first one accepted.
    """
    import msgspec

    return msgspec.json.Decoder(_written(type_)), msgspec.json.Decoder(type_, strict=False)


@cache
def _written(type_: object, owner: str = "", name: str = "") -> Any:
    """The written form of `type_`: for a dataclass, a Struct that refuses unknown keys.

    An optional key that is missing stays unset, so that the document can be encoded again as it was.
    """
    import msgspec

    if isinstance(type_, type) and is_dataclass(type_):
        hints: Any = get_type_hints(type_)
        named = [
            (each.name, of_field)
            if each.default is MISSING and each.default_factory is MISSING
            else (each.name, of_field | msgspec.UnsetType, msgspec.UNSET)
            for each in fields(type_)
            for of_field in [_written(hints[each.name], type_.__name__, each.name)]
        ]
        rename = None
        if not owner:
            # No field of Python's could have that name.
            named.append(("schema", str | msgspec.UnsetType, msgspec.UNSET))
            rename = {"schema": SCHEMA}
        return msgspec.defstruct(
            type_.__name__, named, kw_only=True, forbid_unknown_fields=True, gc=False, rename=rename
        )
    origin, parts = get_origin(type_), get_args(type_)
    if origin in (UnionType, Union):
        return Union[tuple(_written(part, owner, name) for part in parts)]  # noqa: UP007 - made of a list
    if origin is tuple:
        return list[_written(parts[0], owner, name)]  # type: ignore[misc]
    if origin is dict:
        key = _within(str, bounds_of(owner, name, str))
        return dict[key, _written(parts[1], owner, f"{name}.*")]  # type: ignore[misc, valid-type]
    bounds = bounds_of(owner, name, type_) if owner else None
    # What has bounds is a number: infinity and NaN, which are written as texts, are none.
    return float | Literal[NON_FINITE] if type_ is float and bounds is None else _within(type_, bounds)


def _within(type_: object, bounds: Bounds | None) -> object:
    """The type with its bounds, for msgspec to check."""
    import msgspec

    if bounds is None:
        return type_
    if bounds.names:
        return Annotated[type_, msgspec.Meta(pattern=r"\A(?!-)(?=[\s\S]*\S)")]
    most = bounds.most if bounds.most < math.inf else None
    return Annotated[type_, msgspec.Meta(ge=bounds.least, le=most)]


def value_from_data(data: object, type_: type[T], *, name: str) -> T:
    """The dataclass `type_` from plain `data`, with every key and type checked.

    Raises:
        ReceiptError: `data` does not fit the type.
    """
    try:
        return built(data, type_)
    except ReceiptError as error:
        raise named(error, name) from None


def document_from_json(data: bytes, *, name: str) -> dict[str, Data]:
    """The JSON object in `data`, checked for its format and its nesting, but not for its shape.

    Raises:
        ReceiptError: it is not JSON, has a newer format or a duplicate key, or is nested deeper than any receipt.
    """
    try:
        return _document(data)
    except ReceiptError as error:
        raise named(error, name) from None


def kind_of(document: Mapping[str, object]) -> str | None:
    """The kind of document, by a key that no other kind has; None if it has none of them."""
    if "entries" in document:
        return "receipt"
    if document.keys() - {SCHEMA} == {"format", "torch", "defaults"}:
        return "defaults"
    return next((kind for key, kind in (("contracts", "baseline"), ("rows", "matrix")) if key in document), None)


def refuse_other_kind(document: Mapping[str, object], wanted: str, *, name: str) -> None:
    """Refuse a document of another kind as that, and not for the keys that it has.

    Raises:
        ReceiptError: it is one.
    """
    if (kind := kind_of(document)) not in (None, wanted):
        told = "is a table of torch's defaults" if kind == "defaults" else f"is a {kind}"
        raise named(ReceiptError(f"{told}, expected a {wanted}"), name)


def plain(value: object) -> Data:
    """`value` as JSON data. A value that JSON does not support is converted rather than refused."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else NON_FINITE[0 if math.isnan(value) else 1 if value > 0 else 2]
    if is_dataclass(value) and not isinstance(value, type):
        return record(value)
    if isinstance(value, dict):
        return {_text(str(key)): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return _text(str(value))


def record(value: DataclassInstance) -> dict[str, Data]:
    """A dataclass as JSON data."""
    return {each.name: plain(getattr(value, each.name)) for each in fields(value)}


def _text(text: str) -> str:
    # Source lines and paths that are not UTF-8 arrive with lone surrogates, which JSON cannot carry.
    return text.encode(errors="backslashreplace").decode()


def _document(data: bytes) -> dict[str, Data]:
    import msgspec

    try:
        document: Data = msgspec.json.decode(data)
    except RecursionError as error:
        raise ReceiptError(f"nested deeper than {DEEPEST} levels") from error
    except msgspec.ValidationError as error:
        raise ReceiptError("a number out of range") from error
    except (UnicodeDecodeError, msgspec.DecodeError) as error:
        raise ReceiptError(f"not JSON ({_why_not_json(data, error)})") from error
    if not isinstance(document, dict):
        raise ReceiptError(f"expected an object, got {_kind(document)}")
    _refuse_format(document)
    if _deeper(document, DEEPEST):
        raise ReceiptError(f"nested deeper than {DEEPEST} levels")
    # msgspec keeps the last of two equal keys without a word, and two readers must not see two documents.
    json.loads(data, object_pairs_hook=_refuse_repeated)
    return document


def _why_not_json(data: bytes, error: Exception) -> str:
    """What is wrong with the text. Since 0.23, msgspec has an error of its own for bytes that are not UTF-8."""
    try:
        data.decode()
    except UnicodeDecodeError as own:
        return f"not UTF-8: {own.reason}"
    message = str(error).removeprefix("JSON is malformed: ")
    return f"{message[:1].lower()}{message[1:]}"


def _refuse_format(document: Mapping[str, Data]) -> None:
    if "format" not in document:
        raise ReceiptError("missing", at="format")
    found = document["format"]
    if type(found) is not int or found < 1:
        shown = _kind(found) if isinstance(found, dict | list) else repr(found)
        raise ReceiptError(f"expected {FORMAT}, got {shown}", at="format")
    if found > FORMAT:
        raise ReceiptError(
            f"format {one_line(str(found), 20)} is newer than this version reads ({FORMAT}); "
            "upgrade pytest-compilecontract"
        )


def _deeper(document: object, levels: int) -> bool:
    layer = [document]
    for _ in range(levels):
        if not layer:
            return False
        layer = [child for value in layer for child in _children(value)]
    return bool(layer)


def _children(value: object) -> Iterable[object]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()


def _refuse_repeated(pairs: list[tuple[str, object]]) -> None:
    seen: set[str] = set()
    for key, _ in pairs:
        if key in seen:
            raise ReceiptError(f"key {key!r} twice in one object")
        seen.add(key)


def _kind(value: object) -> str:
    names = {list: "array", dict: "object", str: "str", bool: "bool", int: "int", float: "float"}
    return names.get(type(value), "null")


def built(data: object, type_: type[T]) -> T:
    """The dataclass `type_` from plain `data`.

    Raises:
        ReceiptError: `data` does not fit the type.
    """
    import msgspec

    versioned = is_dataclass(type_) and any(each.name == "format" for each in fields(type_))
    if versioned and isinstance(data, dict) and SCHEMA in data:
        if not isinstance(data[SCHEMA], str):
            raise ReceiptError(f"expected a str, got {_kind(data[SCHEMA])}", at=SCHEMA)
        data = {key: value for key, value in data.items() if key != SCHEMA}
    fitted = _fitted(data, type_, "", type_.__name__, "")
    try:
        return msgspec.convert(fitted, type_)
    except msgspec.ValidationError as error:
        raise _translated(str(error)) from None


def _fitted(value: object, type_: Any, at: str, owner: str, name: str) -> object:
    """`value` with NaN and infinities restored, and each number and name checked.

    msgspec checks types but accepts unknown keys, which are refused here. `name` is the field's name in `owner`.
    """
    known, origin, parts = _shape(type_)
    if known is not None and isinstance(value, dict):
        for key in value:
            if key not in known:
                raise ReceiptError(f"unknown key {key!r} (known keys: {', '.join(sorted(known))})", at=at or None)
        return {
            key: _fitted(item, known[key], f"{at}.{key}" if at else key, type_.__name__, key)
            for key, item in value.items()
        }
    if origin is UnionType:
        # Of a number or a text, which it is decides.
        meant = next((part for part in parts if type(value) is part), parts[0])
        return _fitted(value, meant, at, owner, name)
    if origin is tuple and isinstance(value, list):
        return [_fitted(item, parts[0], f"{at}[{index}]", owner, name) for index, item in enumerate(value)]
    if origin is dict and isinstance(value, dict):
        bounds = bounds_of(owner, name, str)
        if bounds is not None and (fault := next(filter(None, map(bounds.fault, value)), "")):
            raise ReceiptError(fault, at=at)
        return {key: _fitted(item, parts[1], f"{at}[{key!r}]", owner, f"{name}.*") for key, item in value.items()}
    if isinstance(value, KINDS.get(type_, ())):
        bounds = bounds_of(owner, name, type_)
        if bounds is not None and (fault := bounds.fault(value)):
            raise ReceiptError(fault, at=at)
        if type_ is float and value in NON_FINITE:
            return float(value)
    return value


@cache
def _shape(type_: object) -> tuple[dict[str, object] | None, object, tuple[object, ...]]:
    """The fields of a dataclass and their types, or the origin and arguments of a generic type."""
    known = get_type_hints(type_) if isinstance(type_, type) and is_dataclass(type_) else None
    return known, get_origin(type_), get_args(type_)


def _translated(message: str) -> ReceiptError:
    """msgspec's message, in the form of our own errors: place first."""
    said, _, place = message.rpartition(" - at `$")
    if not said:
        said, place = message, ""
    place = place.removesuffix("`").removeprefix(".")
    if said.startswith("Object missing required field `"):
        missing = said.removeprefix("Object missing required field `").removesuffix("`")
        return ReceiptError("missing", at=f"{place}.{missing}" if place else missing)
    said = said.replace("`", "").replace("Invalid enum value", "unknown value")
    return ReceiptError(f"{said[:1].lower()}{said[1:]}", at=place or None)


def address_of(name: str) -> str:
    """The `$schema` of a document: a name that `compilecontract schema` knows."""
    return f"urn:pytest-compilecontract:{name}:{FORMAT}"


def schema_of(type_: type, *, name: str, description: str) -> dict[str, Any]:
    """The JSON Schema of a document that is a dataclass with a `format`."""
    import msgspec

    definitions: dict[str, Any] = _adjusted(msgspec.json.schema(type_)["$defs"])
    root = definitions[type_.__name__]
    root["properties"] = {SCHEMA: {"type": "string"}, **root["properties"], "format": {"const": FORMAT}}
    root["required"] = ["format", *root.get("required", ())]
    definitions["Number"] = {
        "title": "Number",
        "description": "A number. JSON has no NaN and no infinity; they are written as strings.",
        "anyOf": [{"type": "number"}, {"enum": list(NON_FINITE)}],
    }
    return {
        "$schema": DIALECT,
        "$id": address_of(name),
        "title": f"pytest-compilecontract {name}",
        "description": description,
        "$ref": f"#/$defs/{type_.__name__}",
        "$defs": definitions,
    }


def _adjusted(node: Any) -> Any:
    if isinstance(node, list):
        return [_adjusted(item) for item in node]
    if not isinstance(node, dict):
        return node
    if node.get("type") == "number":
        return {"$ref": "#/$defs/Number", **{key: value for key, value in node.items() if key != "type"}}
    # msgspec says the default of a table since 0.23.
    adjusted = {key: _adjusted(value) for key, value in node.items() if (key, value) != ("default", {})}
    if "properties" in adjusted and adjusted.get("type") == "object":
        adjusted["additionalProperties"] = False
        adjusted["description"] = inspect.cleandoc(adjusted["description"])
    return adjusted
