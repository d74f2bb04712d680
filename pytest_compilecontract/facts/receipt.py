"""Receipts: what a session measured and where, as one JSON document, and its JSON Schema."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import inspect
import json
import math
import os
import re
import secrets
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from pytest_compilecontract.errors import ReceiptError
from pytest_compilecontract.escaping import one_line
from pytest_compilecontract.judge.contract import LARGEST_COUNT, Verdict, Violation

from .ladder import Frontier
from .measurement import Measurement
from .planted import Planted

# msgspec is imported where it is used: it takes longer to import than all of this package, and a pytest run that
# writes no receipt must not pay for it.

T = TypeVar("T")

FORMAT = 1
RECEIPT = "receipt.json"
DEEPEST = 64
LARGEST_BYTES = 256 * 1024 * 1024
# How old a file has to be, where there are no locks, till its writer must be gone.
STRAY_SECONDS = 3600
_STRAY = re.compile(r"\.[0-9a-f]{16}\.tmp")
# Of bytes, and of what a limit on them has measured.
LARGEST_SIZE = 2**63 - 1
DIALECT = "https://json-schema.org/draft/2020-12/schema"
# JSON has no such numbers. They are written as these strings, where a number is expected and nowhere else.
NON_FINITE = ("nan", "inf", "-inf")
CREATED = "^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z$"


@dataclass(frozen=True, kw_only=True, slots=True)
class Environment:
    """Where a measurement was taken. None means: not found, or not there.

    `torch` is the full version ("2.13.0+cu130"), `cuda` the toolkit that torch was built for. `cudnn`, `nccl`, `driver`
    and `capability` ("9.0") are those of the CUDA device, and `device` is its name; where there is none, `device` is
    the processor's name. `dirty`: tracked files differ from `commit`. `settings` are the values of torch's config
    modules that differ from torch's defaults, by their full names; `variables` the environment variables that torch,
    triton or CUDA read. Folders of this machine are written as <home>, <root> and <tmp>.

    `overrides` are settings that the run was given in place of torch's defaults (`--contract-set`): it is no run as
    users have it. `defaults` is the key of torch's own defaults, a table that many environments share.
    """

    torch: str | None = None
    triton: str | None = None
    cuda: str | None = None
    cudnn: str | None = None
    nccl: str | None = None
    driver: str | None = None
    device: str | None = None
    capability: str | None = None
    device_count: int | None = None
    processor: str | None = None
    python: str | None = None
    platform: str | None = None
    pytest: str | None = None
    plugin: str | None = None
    commit: str | None = None
    dirty: bool | None = None
    libraries: dict[str, str] = field(default_factory=dict)
    settings: dict[str, str] | None = None
    variables: dict[str, str] = field(default_factory=dict)
    overrides: dict[str, str] = field(default_factory=dict)
    defaults: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """One contract in one lane: what it was held to, what was measured, and the verdict with its reason.

    `contract` is the test without its lane, `test` pytest's node id. `environment` is a key of the receipt's
    `environments`. `worker` is pytest-xdist's name for the process ("" without xdist), `card` the CUDA device by index
    and uuid ("" without one), `seconds` the test's wall time. `limits` and `lane_settings` hold JSON values only:
    lists, not tuples, and no NaN or infinity. `repeats` is how often the lane was measured, `spread` the lowest and the
    highest value of each banded metric over them. `frontier` is how far a contract with a ladder holds; the measurement
    is then that of the highest rung that did. `planted` are the faults that were planted in it, one at a time, and what
    became of each.
    """

    contract: str
    lane: str
    test: str
    verdict: Verdict
    environment: str
    reason: str = ""
    limits: dict[str, Any] = field(default_factory=dict)
    lane_settings: dict[str, Any] = field(default_factory=dict)
    violations: tuple[Violation, ...] = ()
    measurement: Measurement | None = None
    worker: str = ""
    card: str = ""
    seconds: float = 0.0
    repeats: int = 1
    spread: dict[str, tuple[float, float]] = field(default_factory=dict)
    frontier: Frontier | None = None
    planted: tuple[Planted, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Setup:
    """How far a run came that did not come to its end: what it was to measure, and what stopped it.

    `asked` names it, as "torch 2.12.1". The others are why that could not be installed, why it could not be imported,
    and why the tests did not run to their end; empty where nothing is known against it.
    """

    asked: str
    not_installed: str = ""
    not_imported: str = ""
    not_finished: str = ""

    @property
    def failure(self) -> str:
        """What stopped it, as a sentence; empty where nothing did."""
        for what, why in (
            ("could not be installed", self.not_installed),
            ("could not be imported", self.not_imported),
            ("the tests did not run to their end", self.not_finished),
        ):
            if why:
                return f"{self.asked}: {what}: {why}"
        return ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Receipt:
    """What one session measured, with the environments it was measured in.

    `created` is UTC, as "2026-01-31T12:00:00Z". `defaults` are torch's own defaults of its settings, by the key that
    the environments name: full name and value, as Python writes it. The entries are always in order of contract, lane,
    environment, test and worker, whatever the order they were given in. `setup` is there where the session did not come
    to its end, and says why: then what is missing is no fact about the contracts.
    """

    format: int = FORMAT
    plugin: str
    created: str
    environments: dict[str, Environment] = field(default_factory=dict)
    defaults: dict[str, dict[str, str]] = field(default_factory=dict)
    entries: tuple[Entry, ...] = ()
    setup: Setup | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "entries", tuple(sorted(self.entries, key=_order)))


@dataclass(frozen=True, kw_only=True, slots=True)
class Bounds:
    """What makes sense in a field, whatever was measured: a number's least and most, or that a text names something."""

    least: float = 0
    most: float = math.inf
    finite: bool = False
    names: bool = False

    def fault(self, value: object) -> str:
        """What is wrong with a value of the field's type; empty where nothing is. NaN is no number that is out."""
        if isinstance(value, str):
            return (name_fault(value) if self.names else "") or (
                f"expected a number, got {value!r}" if self.finite and value in NON_FINITE else ""
            )
        if isinstance(value, bool) or not isinstance(value, int | float):
            return ""
        if self.finite and not math.isfinite(value):
            return f"expected a number, got {value}"
        if value < self.least:
            return f"expected at least {self.least}, got {one_line(str(value), 40)}"
        return f"expected at most {self.most}, got {one_line(str(value), 40)}" if value > self.most else ""


_COUNT = Bounds(most=LARGEST_COUNT)
_SIZE = Bounds(most=LARGEST_SIZE)
_SECONDS = Bounds(finite=True)
_NAME = Bounds(names=True)
# What names something that is looked for, made a folder of, or run; and what holds such names as its keys.
_NAMES = ("contract", "lane", "test", "environment", "environments", "contracts", "contracts.*")
# Torch's own counters say what torch likes.
_FREE = ("counters", "caches", "spread")


@cache
def bounds_of(owner: str, name: str, type_: Any) -> Bounds | None:
    """What makes sense in this field of a dataclass, or in what it holds; None where everything does."""
    if name.partition(".")[0] in _FREE:
        return None
    if type_ is str:
        return _NAME if name in _NAMES else None
    if type_ in (int, float) and owner in ("Drift", "MatrixChange"):
        return None  # of any metric, by its own bounds in the receipt
    if type_ is int:
        return _SIZE if name.endswith("bytes") or owner == "Violation" else _COUNT
    if type_ is float:
        return _SECONDS if name.endswith("seconds") or owner == "Timing" else None
    return None


def name_fault(name: str) -> str:
    """Why a text names nothing that could be looked for, or would be taken for an option; empty where it does not."""
    if not name.strip():
        return f"expected a name, got {name!r}"
    option = name.startswith("-")
    return f"expected a name that does not begin with '-', got {one_line(repr(name), 80)}" if option else ""


def cut_off(environments: Mapping[str, Environment], why: str) -> Setup:
    """What a receipt says of a run that began to measure and did not come to its end."""
    known = sorted({f"torch {each.torch}" for each in environments.values() if each.torch})
    return Setup(asked=", ".join(known) or "the run", not_finished=why)


_ORDER = ("contract", "lane", "environment", "test", "worker")


def _order(entry: Entry) -> tuple[str, ...]:
    return (entry.contract, entry.lane, entry.environment, entry.test, entry.worker)


def environment_key(env: Environment) -> str:
    """What a baseline is kept for: torch's minor release and the kind of device, as "torch2.11-cuda-sm90"."""
    # It names a folder, and the versions may come from a file: nothing but digits and dots is let through.
    release = re.match(r"[0-9]+\.[0-9]+", env.torch or "")
    torch = f"torch{release[0]}" if release else "no-torch"
    return f"{torch}-cuda-sm{re.sub('[^0-9]', '', env.capability)}" if env.capability else f"{torch}-cpu"


def fingerprint(env: Environment) -> str:
    """12 hex digits over every field: two environments with the same are the same in all that is recorded.

    But for torch's own defaults: they come with torch.
    """
    return _digest({each.name: getattr(env, each.name) for each in fields(env) if each.name != "defaults"})


def defaults_key(defaults: Mapping[str, str]) -> str:
    """12 hex digits that name a table of torch's own defaults."""
    return _digest(dict(defaults))


def _digest(value: object) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:12]


def to_json(receipt: Receipt) -> bytes:
    """The document: indented, keys in order, the same bytes for equal receipts."""
    import msgspec

    return msgspec.json.format(msgspec.json.encode(_plain(receipt), order="sorted"), indent=2) + b"\n"


def from_json(data: bytes, *, name: str) -> Receipt:
    """The receipt in `data`; `name` is what messages call it.

    Raises:
        ReceiptError: one line, whatever the bytes are.
    """
    receipt = decoded(data, Receipt)
    if receipt is not None and receipt.format == FORMAT and _is_consistent(receipt):
        return receipt
    # Something is wrong, or may be: this way is slower, and says what and where.
    return receipt_from_document(document_from_json(data, name=name), name=name)


def decoded(data: bytes, type_: type[T]) -> T | None:
    """The dataclass `type_` in `data`, or None where any of what `value_from_data` and `document_from_json` refuse may
    be in it.

    Everything is done by msgspec's decoder, many times faster than by what says what is wrong. It is asked twice: once
    strictly for what was written, with every unknown key refused, and once for the value. What neither tells, a key
    that is there twice, is found by writing out what the first one read: then there are fewer lines than there were.
    """
    import msgspec

    named: Any = type_  # mypy does not know that a class can be hashed
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
    """A decoder for what was written of a dataclass, and one for its value.

    The second takes "nan" and "inf" for numbers. It would take more, but only sees what the first has let pass.
    """
    import msgspec

    return msgspec.json.Decoder(_written(type_)), msgspec.json.Decoder(type_, strict=False)


@cache
def _written(type_: Any, owner: str = "", name: str = "") -> Any:
    """The type of what is written for a value of `type_`: a dataclass is a Struct that refuses keys it does not have.

    A key that may be left out is unset then, so that what was there can be written out again.
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
        return msgspec.defstruct(type_.__name__, named, kw_only=True, forbid_unknown_fields=True, gc=False)
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


def _within(type_: Any, bounds: Bounds | None) -> Any:
    """The type with its bounds, for msgspec to check."""
    import msgspec

    if bounds is None:
        return type_
    if bounds.names:
        return Annotated[type_, msgspec.Meta(pattern=r"\A(?!-)(?=[\s\S]*\S)")]
    most = bounds.most if bounds.most < math.inf else None
    return Annotated[type_, msgspec.Meta(ge=bounds.least, le=most)]


def value_from_data(data: object, type_: type[T], *, name: str) -> T:
    """The dataclass `type_` that plain `data` describes, every key and type checked.

    Raises:
        ReceiptError: `data` is of another shape.
    """
    try:
        value: T = _built(data, type_)
    except ReceiptError as error:
        raise _named(error, name) from None
    return value


def value_to_data(value: object) -> Any:
    """Dataclasses as plain data, as JSON has it."""
    return _plain(value)


def document_from_json(data: bytes, *, name: str) -> dict[str, Any]:
    """The JSON object in `data`, known to be of this format and to be sane, its shape not looked at yet.

    Raises:
        ReceiptError: not JSON, of a newer format, with a key twice, or nested deeper than any receipt.
    """
    try:
        return _document(data)
    except ReceiptError as error:
        raise _named(error, name) from None


def receipt_from_document(document: dict[str, Any], *, name: str) -> Receipt:
    """The receipt that `document` describes.

    Raises:
        ReceiptError: a key is missing or unknown, or a value is not of its type.
    """
    try:
        receipt: Receipt = _built(document, Receipt)
        _refuse_inconsistent(receipt, document)
    except ReceiptError as error:
        raise _named(error, name) from None
    return receipt


def entry_to_data(entry: Entry) -> dict[str, Any]:
    """The entry as dict, list, str, int, float, bool and None alone, as pytest-xdist can send it."""
    data: dict[str, Any] = _plain(entry)
    return data


def entry_from_data(data: object) -> Entry:
    """The entry that `entry_to_data` made `data` of.

    Raises:
        ReceiptError: `data` is of another shape.
    """
    entry: Entry = _built(data, Entry)
    return entry


def environment_to_data(env: Environment) -> dict[str, Any]:
    """The environment as plain data, as pytest-xdist can send it."""
    data: dict[str, Any] = _plain(env)
    return data


def environment_from_data(data: object) -> Environment:
    """The environment that `environment_to_data` made `data` of.

    Raises:
        ReceiptError: `data` is of another shape.
    """
    env: Environment = _built(data, Environment)
    return env


def read_receipt(path: Path) -> Receipt:
    """The receipt in the file.

    Raises:
        ReceiptError: the file cannot be read, or is no receipt.
    """
    return from_json(read_bytes(path), name=str(path))


def read_bytes(path: Path) -> bytes:
    """The file's bytes, at most `LARGEST_BYTES`.

    Raises:
        ReceiptError: the file cannot be read, or is larger.
    """
    try:
        if path.exists() and not path.is_file() and not path.is_dir():
            # Reading a pipe would wait for its writer.
            raise ValueError("not a regular file")
        with path.open("rb") as file:
            data = file.read(LARGEST_BYTES + 1)
    except (OSError, ValueError) as error:
        raise _named(ReceiptError(f"cannot be read ({_cause(error)})"), str(path)) from error
    if len(data) > LARGEST_BYTES:
        raise _named(ReceiptError(f"larger than {LARGEST_BYTES // 1024**2} MiB, so no receipt"), str(path))
    return data


def write_receipt(path: Path, receipt: Receipt) -> None:
    """Write the file whole or not at all; folders that are missing are made.

    Raises:
        ReceiptError: the file cannot be written.
    """
    try:
        data = to_json(receipt)
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
        raise ReceiptError(f"{path}: cannot be written ({one_line(str(error))})") from error
    write_bytes(path, data)


def write_bytes(path: Path, data: bytes) -> None:
    """Write the file whole or not at all; folders that are missing are made.

    Raises:
        ReceiptError: the file cannot be written.
    """
    try:
        if not path.name:
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        if path.is_symlink():
            # What it leads to is replaced, and not the link.
            path = path.resolve()
        if path.exists() and not path.is_file() and not path.is_dir():
            # A device or a pipe would be gone, with a file in its place.
            raise ValueError("not a regular file")
        path.parent.mkdir(parents=True, exist_ok=True)
        clear_strays(path.parent)
        while not _written_beside(path, data):
            pass
    except (OSError, ValueError) as error:
        raise _named(ReceiptError(f"cannot be written ({_cause(error)})"), str(path)) from error
    except RuntimeError as error:
        # So Python 3.11 and 3.12 say that a link leads to itself.
        raise ReceiptError(f"{path}: cannot be written (a loop of links)") from error


def _written_beside(path: Path, data: bytes) -> bool:
    """Write a new file and put it in the place of `path`; whether nobody had taken it for a stray before."""
    beside = path.with_name(f".{secrets.token_hex(8)}.tmp")
    try:
        with beside.open("xb") as file:
            # While it is written its lock is held, by which others know that its writer lives. Who clears strays may
            # have been quicker.
            locked = _lock(file.fileno())
            if locked is False or not os.fstat(file.fileno()).st_nlink:
                return False
            file.write(data)
            file.flush()
            if locked:
                os.replace(beside, path)
                return True
        os.replace(beside, path)  # Windows, which has no such lock, moves no file that is open
        return True
    finally:
        beside.unlink(missing_ok=True)


def clear_strays(folder: Path) -> None:
    """Remove what a process that was killed while it wrote has left in the folder: nobody holds its lock any more.

    Nothing here fails what is going on: a stray that cannot be removed stays.
    """
    with contextlib.suppress(OSError), os.scandir(folder) as found:
        for each in [each for each in found if _STRAY.fullmatch(each.name)]:
            with contextlib.suppress(OSError):
                if each.is_file(follow_symlinks=False):
                    _clear_stray(Path(each.path), time.time() - each.stat().st_mtime)


def _clear_stray(path: Path, age: float) -> None:
    with path.open("r+b") as file:
        locked = _lock(file.fileno())
        if locked:
            path.unlink()
    if locked is None and age > STRAY_SECONDS:
        path.unlink()


def _lock(file: int) -> bool | None:
    """Take the lock of an open file: True if it was free, False if another process has it, None if there are none."""
    try:
        import fcntl

        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except (ImportError, OSError):
        return None
    return True


def remove_file(path: Path) -> None:
    """Remove the file.

    Raises:
        ReceiptError: it cannot be removed.
    """
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise _named(ReceiptError(f"cannot be removed ({_cause(error)})"), str(path)) from error


def _cause(error: OSError | ValueError) -> str:
    return (isinstance(error, OSError) and error.strerror) or str(error)


def _named(error: ReceiptError, name: str) -> ReceiptError:
    named = ReceiptError(f"{one_line(name)}: {one_line(str(error))}")
    named.at = error.at
    return named


def _plain(value: Any) -> Any:
    """`value` as JSON has it. Nothing a session measured is lost to a value that JSON does not have."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else NON_FINITE[0 if math.isnan(value) else 1 if value > 0 else 2]
    if is_dataclass(value) and not isinstance(value, type):
        return {each.name: _plain(getattr(value, each.name)) for each in fields(value)}
    if isinstance(value, dict):
        return {_text(str(key)): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return _text(str(value))


def _text(text: str) -> str:
    # Source lines and paths that are not UTF-8 arrive with lone surrogates, which JSON cannot carry.
    return text.encode(errors="backslashreplace").decode()


def _document(data: bytes) -> dict[str, Any]:
    import msgspec

    try:
        document = msgspec.json.decode(data)
    except UnicodeDecodeError as error:
        raise ReceiptError(f"not JSON (not UTF-8: {error.reason})") from error
    except RecursionError as error:
        raise ReceiptError(f"nested deeper than {DEEPEST} levels") from error
    except msgspec.ValidationError as error:
        raise ReceiptError("a number out of range") from error
    except msgspec.DecodeError as error:
        message = str(error).removeprefix("JSON is malformed: ")
        raise ReceiptError(f"not JSON ({message[:1].lower()}{message[1:]})") from error
    if not isinstance(document, dict):
        raise ReceiptError(f"expected an object, got {_kind(document)}")
    _refuse_format(document)
    if _deeper(document, DEEPEST):
        raise ReceiptError(f"nested deeper than {DEEPEST} levels")
    # msgspec keeps the last of two equal keys without a word, and two readers must not see two documents.
    json.loads(data, object_pairs_hook=_refuse_repeated)
    return document


def _refuse_format(document: dict[str, Any]) -> None:
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


def _refuse_repeated(pairs: list[tuple[str, Any]]) -> None:
    seen: set[str] = set()
    for key, _ in pairs:
        if key in seen:
            raise ReceiptError(f"key {key!r} twice in one object")
        seen.add(key)


def _kind(value: object) -> str:
    names = {list: "array", dict: "object", str: "str", bool: "bool", int: "int", float: "float"}
    return names.get(type(value), "null")


def _built(data: object, type_: type[Any]) -> Any:
    import msgspec

    fitted = _fitted(data, type_, "", type_.__name__, "")
    try:
        return msgspec.convert(fitted, type_)
    except msgspec.ValidationError as error:
        raise _translated(str(error)) from None


def _fitted(value: Any, type_: Any, at: str, owner: str, name: str) -> Any:
    """`value` with NaN and infinities restored, and each number and name known to make sense.

    msgspec checks the types but lets unknown keys pass: refused here. `name` is that of the field of `owner`.
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
    if isinstance(value, _KINDS.get(type_, ())):
        bounds = bounds_of(owner, name, type_)
        if bounds is not None and (fault := bounds.fault(value)):
            raise ReceiptError(fault, at=at)
        if type_ is float and value in NON_FINITE:
            return float(value)
    return value


# What a field of each type may be before it is known to be right.
_KINDS: dict[Any, tuple[type, ...]] = {str: (str,), int: (int,), float: (int, float, str)}


@cache
def _shape(type_: Any) -> tuple[dict[str, Any] | None, Any, tuple[Any, ...]]:
    """The fields of a dataclass and their types, or what a generic type is of, and its parts."""
    known = get_type_hints(type_) if isinstance(type_, type) and is_dataclass(type_) else None
    return known, get_origin(type_), get_args(type_)


def _translated(message: str) -> ReceiptError:
    """msgspec's sentence and place in our words and order."""
    said, _, place = message.rpartition(" - at `$")
    if not said:
        said, place = message, ""
    place = place.removesuffix("`").removeprefix(".")
    if said.startswith("Object missing required field `"):
        missing = said.removeprefix("Object missing required field `").removesuffix("`")
        return ReceiptError("missing", at=f"{place}.{missing}" if place else missing)
    said = said.replace("`", "").replace("Invalid enum value", "unknown value")
    return ReceiptError(f"{said[:1].lower()}{said[1:]}", at=place or None)


def _refuse_inconsistent(receipt: Receipt, document: dict[str, Any]) -> None:
    if not _is_time(receipt.created):
        raise ReceiptError(f"expected a time as 2026-01-31T12:00:00Z, got {receipt.created!r}", at="created")
    # By the document's own numbering: the receipt's entries have been sorted.
    written = document.get("entries", ())
    places = sorted(range(len(written)), key=lambda at: tuple(written[at].get(name, "") for name in _ORDER))
    for index, entry in sorted(zip(places, receipt.entries, strict=True), key=lambda pair: pair[0]):
        if entry.environment not in receipt.environments:
            raise ReceiptError(f"{entry.environment!r} is not in environments", at=f"entries[{index}].environment")
        if entry.verdict == "held" and not written[index].get("measurement"):
            raise ReceiptError("'held' without a measurement", at=f"entries[{index}].verdict")
        for at, fault in entry_faults(entry):
            raise ReceiptError(fault, at=f"entries[{index}].{at}")


def _is_consistent(receipt: Receipt) -> bool:
    """Whether `_refuse_inconsistent` has nothing to refuse. No is also said where only the document could tell."""
    nothing = Measurement()
    return _is_time(receipt.created) and all(
        entry.environment in receipt.environments
        and not (entry.verdict == "held" and entry.measurement == nothing)
        and next(entry_faults(entry), None) is None
        for entry in receipt.entries
    )


def entry_faults(entry: Entry) -> Iterator[tuple[str, str]]:
    """What no entry can be whose every value is right by itself, each with its place in the entry."""
    if entry.verdict == "held" and entry.violations:
        yield "verdict", "'held' with violations"
    if entry.verdict == "held" and entry.measurement is None:
        yield "verdict", "'held' without a measurement"
    yield from lane_faults(entry.measurement, entry.repeats, entry.spread)


def lane_faults(
    measurement: Measurement | None, repeats: int, spread: Mapping[str, tuple[float, float]]
) -> Iterator[tuple[str, str]]:
    """What shows that a lane cannot have been so, in a receipt or a baseline, each with its place in it."""
    yield from spread_faults(repeats, spread)
    for at, fault in _miscounted(measurement) if measurement is not None else ():
        yield f"measurement.{at}", fault


def spread_faults(repeats: int, spread: Mapping[str, tuple[float, float]]) -> Iterator[tuple[str, str]]:
    """What shows that a band cannot have been measured, each with its place in the entry.

    Fewer than one repeat, a band of a single run, or one whose ends are not in order.
    """
    if repeats < 1:
        yield "repeats", f"expected at least 1, got {repeats}"
    if spread and repeats < 2:
        yield "spread", "a spread without repeats"
    for name, (low, high) in spread.items():
        if not 0 <= low <= high:
            yield f"spread.{name}", f"expected the lowest and the highest value, got {low} and {high}"


def _miscounted(seen: Measurement) -> Iterator[tuple[str, str]]:
    """A part that is more than the whole."""
    first, later = seen.first_compiles, seen.continuations
    if first is not None and later is not None and later > first:
        yield "continuations", f"{later}, more than first_compiles, {first}"
    for side in ("compiled", "eager") if seen.kernels is not None else ():
        kernels = getattr(seen.kernels, side)
        if kernels.triton + kernels.library > kernels.total:
            yield f"kernels.{side}", f"{kernels.triton + kernels.library}, more than total, {kernels.total}"
    for side in ("compiled", "eager") if seen.speed is not None else ():
        timing = getattr(seen.speed, side)
        if not timing.low <= timing.median <= timing.high:
            found = f"{timing.low}, {timing.median} and {timing.high}"
            yield f"speed.{side}", f"expected low, median and high in order, got {found}"


def timestamp() -> str:
    """Now, as a receipt's `created` has it."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _is_time(text: str) -> bool:
    try:
        datetime.strptime(text, "%Y-%m-%dT%H:%M:%SZ")
    except ValueError:
        return False
    return re.fullmatch(CREATED, text) is not None


def schema() -> dict[str, Any]:
    """The JSON Schema (2020-12) of a receipt of this format, made from the dataclasses.

    Unknown properties are refused: within one format there are none. A reader looks at `format` before the schema, so
    that a newer document is called newer and not wrong.
    """
    made = schema_of(
        Receipt,
        name="receipt",
        description="What compiling did in one session of `pytest --compile-contracts`, contract by contract.",
    )
    made["$defs"]["Receipt"]["properties"]["created"]["pattern"] = CREATED
    return made


def schema_of(type_: type[Any], *, name: str, description: str) -> dict[str, Any]:
    """The JSON Schema of a document that is a dataclass with a `format`."""
    import msgspec

    definitions: dict[str, Any] = _adjusted(msgspec.json.schema(type_)["$defs"])
    root = definitions[type_.__name__]
    root["properties"]["format"] = {"const": FORMAT}
    root["required"] = ["format", *root.get("required", ())]
    definitions["Number"] = {
        "title": "Number",
        "description": "A number. JSON has no NaN and no infinity; they are written as strings.",
        "anyOf": [{"type": "number"}, {"enum": list(NON_FINITE)}],
    }
    return {
        "$schema": DIALECT,
        "$id": f"urn:pytest-compilecontract:{name}:{FORMAT}",
        "title": f"pytest-compilecontract {name}",
        "description": description,
        "$ref": f"#/$defs/{type_.__name__}",
        "$defs": definitions,
    }


def schema_json() -> bytes:
    """The text of schemas/receipt.schema.json."""
    return json.dumps(schema(), indent=2, sort_keys=True).encode() + b"\n"


def _adjusted(node: Any) -> Any:
    if isinstance(node, list):
        return [_adjusted(item) for item in node]
    if not isinstance(node, dict):
        return node
    if node.get("type") == "number":
        return {"$ref": "#/$defs/Number", **{key: value for key, value in node.items() if key != "type"}}
    adjusted = {key: _adjusted(value) for key, value in node.items()}
    if "properties" in adjusted and adjusted.get("type") == "object":
        adjusted["additionalProperties"] = False
        adjusted["description"] = inspect.cleandoc(adjusted["description"])
    return adjusted
