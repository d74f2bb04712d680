"""Receipts: written and read back the same, and one line for whatever cannot be read."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import pytest_compilecontract
from pytest_compilecontract.errors import ReceiptError
from pytest_compilecontract.escaping import one_line
from pytest_compilecontract.facts.limits import LARGEST_COUNT
from pytest_compilecontract.facts.measurement import (
    Call,
    Difference,
    EagerFrame,
    GraphBreak,
    Location,
    Measurement,
    Numerics,
    Recompile,
)
from pytest_compilecontract.facts.receipt import Entry, Environment, Receipt, environment_key, fingerprint
from pytest_compilecontract.facts.verdict import Violation
from pytest_compilecontract.files.codec import decoded, document_from_json
from pytest_compilecontract.files.receipt import (
    entry_from_data,
    entry_to_data,
    environment_from_data,
    environment_to_data,
    from_json,
    read_receipt,
    receipt_from_document,
    schema,
    schema_json,
    to_json,
    write_receipt,
)

CPU = Environment(torch="2.13.0+cpu", device="A processor", settings={"torch._dynamo.config.verbose": "True"})
LINE = Location(file="model.py", line=41, function="forward", source="n = mask.sum().item()")


def a_measurement() -> Measurement:
    return Measurement(
        backend="inductor",
        graphs=2,
        recompiles=(Recompile(frame=LINE, kind="guard", guard="L['x'].size()[0] == 8", guards=("a", "b")),),
        graph_breaks=(GraphBreak(location=LINE, kind="Tensor.item()", reason="why", stacks=((LINE, LINE),)),),
        calls=(Call(phase="cold", seconds=1.5, graphs_executed=2),),
        numerics=Numerics(
            method="fp64", worst_error=0.25, differences=(Difference(at="[0]", kind="value", detail="d"),)
        ),
        counters={"stats": {"unique_graphs": 2}},
        unmeasured={"backward_graphs": "no backward was run from a loss, as compile_lane.train does"},
    )


def an_entry(**changes: Any) -> Entry:
    entry = Entry(
        contract="tests/test_block.py::test_block",
        lane="inductor",
        test="tests/test_block.py::test_block[inductor]",
        verdict="violated",
        reason="2 violations",
        limits={"max_recompiles": 0, "lanes": ["inductor"], "rtol": 1e-3, "fullgraph": None},
        lane_settings={"backend": "inductor", "options": {"max_autotune": True}},
        violations=(Violation(limit="max_recompiles=0", measured=1, details=("model.py:41 in forward",)),),
        measurement=a_measurement(),
        environment="cpu",
        worker="gw0",
        seconds=2.5,
    )
    return replace(entry, **changes)


def a_receipt(*entries: Entry) -> Receipt:
    return Receipt(
        plugin="0.1.0",
        created="2026-01-31T12:00:00Z",
        environments={"cpu": CPU},
        entries=entries or (an_entry(),),
    )


def a_document() -> dict[str, Any]:
    document: dict[str, Any] = json.loads(to_json(a_receipt()))
    return document


def refusal(data: bytes) -> str:
    with pytest.raises(ReceiptError) as caught:
        from_json(data, name="receipt.json")
    return str(caught.value)


# Writing and reading back

WORDS = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
NAMES = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8).filter(
    lambda name: name.strip() and not name.startswith("-")
)
COUNTS = st.none() | st.integers(0, LARGEST_COUNT)
SECONDS = st.floats(0, allow_nan=False, allow_infinity=False)
FLOATS = st.floats(allow_nan=False)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**80), 2**80) | st.floats(allow_nan=False, allow_infinity=False) | WORDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=3),
    max_leaves=6,
)
LOCATIONS = st.builds(Location, file=WORDS, line=st.integers(0, LARGEST_COUNT), function=WORDS, source=WORDS)
MEASUREMENTS = st.builds(
    Measurement,
    graphs=COUNTS,
    recompiles=st.none()
    | st.lists(st.builds(Recompile, frame=LOCATIONS, kind=st.just("guard"), guard=WORDS), max_size=2).map(tuple),
    graph_breaks=st.none()
    | st.lists(
        st.builds(
            GraphBreak,
            location=LOCATIONS,
            kind=WORDS,
            reason=WORDS,
            stacks=st.lists(st.lists(LOCATIONS, max_size=2).map(tuple), max_size=2).map(tuple),
        ),
        max_size=2,
    ).map(tuple),
    eager_frames=st.none()
    | st.lists(st.builds(EagerFrame, frame=LOCATIONS, cause=st.just("error"), reason=WORDS), max_size=1).map(tuple),
    numerics=st.none() | st.builds(Numerics, method=WORDS, worst_error=st.none() | FLOATS),
    cold_seconds=st.none() | SECONDS,
    stage_seconds=st.none() | st.dictionaries(st.sampled_from(["dynamo", "inductor"]), SECONDS),
    counters=st.none() | st.dictionaries(WORDS, st.dictionaries(WORDS, st.integers(), max_size=2), max_size=2),
    unmeasured=st.dictionaries(WORDS, WORDS, max_size=2),
)
ENTRIES = st.builds(
    Entry,
    contract=NAMES,
    lane=NAMES,
    test=NAMES,
    verdict=st.sampled_from(["held", "violated", "broken", "unmeasured", "unverified", "unstable", "reference"]),
    environment=st.just("cpu"),
    reason=WORDS,
    limits=st.dictionaries(WORDS, JSON, max_size=3),
    lane_settings=st.dictionaries(WORDS, JSON, max_size=3),
    violations=st.lists(
        st.builds(
            Violation,
            limit=WORDS,
            measured=st.integers(0, 2**63 - 1) | WORDS,
            details=st.lists(WORDS, max_size=2).map(tuple),
        ),
        max_size=2,
    ).map(tuple),
    measurement=st.none() | MEASUREMENTS,
    repeats=st.integers(2, 9),
    spread=st.dictionaries(
        WORDS, st.tuples(*[st.floats(0, allow_nan=False)] * 2).filter(lambda ends: ends[0] <= ends[1]), max_size=2
    ),
    worker=WORDS,
    seconds=SECONDS,
).filter(lambda entry: entry.verdict != "held" or (entry.measurement is not None and not entry.violations))
QUICK = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@QUICK
@given(entries=st.lists(ENTRIES, max_size=3))
def test_what_is_written_is_read_back(entries: list[Entry]) -> None:
    receipt = replace(a_receipt(), entries=tuple(entries))

    again = from_json(to_json(receipt), name="receipt.json")

    assert again == receipt
    assert to_json(again) == to_json(receipt)


@QUICK
@given(entry=ENTRIES)
def test_an_entry_crosses_to_the_controller_as_plain_data(entry: Entry) -> None:
    data = entry_to_data(entry)

    assert entry_from_data(data) == entry
    assert_plain(data)


def assert_plain(data: object) -> None:
    assert type(data) in (dict, list, str, int, float, bool, type(None))
    for child in [*data.keys(), *data.values()] if isinstance(data, dict) else data if isinstance(data, list) else ():
        assert_plain(child)


def test_an_environment_crosses_to_the_controller_as_plain_data() -> None:
    data = environment_to_data(CPU)

    assert environment_from_data(data) == CPU
    assert_plain(data)


def test_every_field_of_a_measurement_is_written() -> None:
    document = a_document()

    assert set(document["entries"][0]["measurement"]) == {each.name for each in fields(Measurement)}


def test_the_document_is_indented_and_sorted_and_ends_its_last_line() -> None:
    text = to_json(Receipt(plugin="0.1.0", created="2026-01-31T12:00:00Z")).decode()

    assert text == (
        '{\n  "$schema": "urn:pytest-compilecontract:receipt:1",\n'
        '  "command": "",\n  "created": "2026-01-31T12:00:00Z",\n  "defaults": {},\n  "entries": [],\n'
        '  "environments": {},\n'
        '  "format": 1,\n  "launch": "",\n  "plugin": "0.1.0",\n  "setup": null,\n  "shard": null\n}\n'
    )


def test_the_order_that_entries_come_in_does_not_show() -> None:
    entries = [an_entry(contract=contract, lane=lane) for contract in ("b", "a") for lane in ("inductor", "aot")]

    forward, backward = a_receipt(*entries), a_receipt(*reversed(entries))

    assert to_json(forward) == to_json(backward)
    assert [(each.contract, each.lane) for each in forward.entries] == [
        ("a", "aot"),
        ("a", "inductor"),
        ("b", "aot"),
        ("b", "inductor"),
    ]


@pytest.mark.parametrize(
    ("value", "written"),
    [(math.inf, "inf"), (-math.inf, "-inf"), (math.nan, "nan")],
    ids=["infinity", "minus infinity", "not a number"],
)
def test_what_json_has_no_number_for_is_a_string_and_read_back_as_the_number(value: float, written: str) -> None:
    receipt = a_receipt(an_entry(measurement=Measurement(numerics=Numerics(method="fp64", worst_error=value))))

    data = to_json(receipt)
    measured = from_json(data, name="receipt.json").entries[0].measurement

    assert json.loads(data)["entries"][0]["measurement"]["numerics"]["worst_error"] == written
    assert measured is not None
    assert measured.numerics is not None
    assert repr(measured.numerics.worst_error) == repr(value)


@pytest.mark.parametrize(
    ("value", "written"),
    [("caf\udce9", "caf\\udce9"), ((1, 2), [1, 2]), (math.nan, "nan"), ({3: Path("a")}, {"3": "a"})],
    ids=["not UTF-8", "a tuple", "not a number", "what JSON does not have"],
)
def test_odd_settings_do_not_stop_a_receipt(value: object, written: object) -> None:
    receipt = a_receipt(an_entry(lane_settings={"odd": value}))

    data = to_json(receipt)

    assert from_json(data, name="receipt.json").entries[0].lane_settings == {"odd": written}


# Reading what is wrong


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "receipt.json: not JSON (input data was truncated)"),
        (to_json(a_receipt())[:-10], "receipt.json: not JSON (input data was truncated)"),
        (b"\x00garbage", "receipt.json: not JSON (invalid character (byte 0))"),
        (b"garbage" * 1_000_000, "receipt.json: not JSON (invalid character (byte 0))"),
        (b'{"a": "\xff"}', "receipt.json: not JSON (not UTF-8: invalid start byte)"),
        (b'{"a": NaN}', "receipt.json: not JSON (invalid character (byte 6))"),
        (
            b'{"a": "\\udc00 "}',
            "receipt.json: not JSON (invalid utf-16 surrogate pair (byte 13))",
        ),
        (b'{"format": 1' + b"0" * 5000 + b"}", "receipt.json: a number out of range"),
        (b"[]", "receipt.json: expected an object, got array"),
        (b"null", "receipt.json: expected an object, got null"),
        (b"[" * 1_000_000, "receipt.json: nested deeper than 64 levels"),
        (b'{"format": 1, "a": ' + b"[" * 64 + b"]" * 64 + b"}", "receipt.json: nested deeper than 64 levels"),
        (b'{"format": 1, "format": 1}', "receipt.json: key 'format' twice in one object"),
        (b'{"format": 1, "a": [{"b": 1, "b": 2}]}', "receipt.json: key 'b' twice in one object"),
        (b"{}", "receipt.json: format: missing"),
        (b'{"format": true}', "receipt.json: format: expected 1, got True"),
        (b'{"format": 0}', "receipt.json: format: expected 1, got 0"),
        (b'{"format": [[1]]}', "receipt.json: format: expected 1, got array"),
        (b'{"format": "1\\n2"}', r"receipt.json: format: expected 1, got '1\n2'"),
        (
            b'{"format": 2, "lanes": [1], "entries": {}}',
            "receipt.json: format 2 is newer than this version reads (1); upgrade pytest-compilecontract",
        ),
        (
            b'{"format": 2' + b"0" * 4000 + b"}",
            "receipt.json: format 2000000000000000000… is newer than this version reads (1); "
            "upgrade pytest-compilecontract",
        ),
    ],
    ids=[
        "empty",
        "truncated",
        "garbage",
        "megabytes of garbage",
        "not UTF-8",
        "a bare NaN",
        "a lone surrogate",
        "an integer of 5000 digits",
        "an array",
        "null",
        "a million brackets",
        "nested too deep",
        "format twice",
        "a key twice inside",
        "no format",
        "format true",
        "format 0",
        "format an array",
        "format two lines",
        "newer",
        "newer by far",
    ],
)
def test_a_file_that_is_no_receipt(data: bytes, message: str) -> None:
    assert refusal(data) == message


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (["plugin"], None, "plugin: expected str, got null"),
        (["created"], "yesterday", "created: expected a time such as 2026-01-31T12:00:00Z, got 'yesterday'"),
        (
            ["created"],
            "2026-1-3T1:2:3Z",
            "created: expected a time such as 2026-01-31T12:00:00Z, got '2026-1-3T1:2:3Z'",
        ),
        (["entries"], {}, "entries: expected array, got object"),
        (["entries", 0], 7, "entries[0]: expected object, got int"),
        (["entries", 0, "verdict"], "fine", "entries[0].verdict: unknown value 'fine'"),
        (["entries", 0, "verdict"], "held", "entries[0].verdict: 'held' with violations"),
        (["entries", 0, "seconds"], "1", "entries[0].seconds: expected float, got str"),
        (["entries", 0, "seconds"], True, "entries[0].seconds: expected float, got bool"),
        (["entries", 0, "measurement", "graphs"], 1.0, "entries[0].measurement.graphs: expected int | null, got float"),
        (
            ["entries", 0, "measurement", "calls", 0, "phase"],
            "luke\nwarm",
            r"entries[0].measurement.calls[0].phase: unknown value 'luke\nwarm'",
        ),
        (["entries", 0, "environment"], "gpu", "entries[0].environment: 'gpu' is not in environments"),
        (["environments", "cpu", "torch"], 2, "environments[...].torch: expected str | null, got int"),
        (
            ["environments", "cpu", "gpu"],
            2,
            "environments['cpu']: unknown key 'gpu' (known keys: capability, commit, cuda, cudnn, defaults, "
            "device, device_count, dirty, driver, libraries, nccl, overrides, platform, plugin, processor, pytest, "
            "python, settings, torch, triton, variables)",
        ),
        (
            ["matrix"],
            {},
            "unknown key 'matrix' (known keys: command, created, defaults, entries, environments, format, launch, "
            "plugin, setup, shard)",
        ),
    ],
    ids=lambda value: ".".join(map(str, value)) if isinstance(value, list) else "",
)
def test_a_document_of_another_shape_names_the_place(path: list[Any], value: object, message: str) -> None:
    document = a_document()
    inside: Any = document
    for step in path[:-1]:
        inside = inside[step]
    inside[path[-1]] = value

    assert refusal(json.dumps(document).encode()) == f"receipt.json: {message}"


def test_names_the_key_that_is_missing() -> None:
    document = a_document()
    del document["entries"][0]["lane"]

    assert refusal(json.dumps(document).encode()) == "receipt.json: entries[0].lane: missing"


def test_a_lowered_limit_of_digits_is_no_other_error() -> None:
    limit = sys.get_int_max_str_digits()
    sys.set_int_max_str_digits(640)
    try:
        message = refusal(b'{"format": 1' + b"0" * 1000 + b"}")
    finally:
        sys.set_int_max_str_digits(limit)

    assert message == "receipt.json: a number out of range"


def one_refusal_or_a_receipt(data: bytes) -> None:
    quick_is_careful(data)
    line = "receipt.json: "
    try:
        from_json(data, name="receipt.json")
    except ReceiptError as error:
        line = str(error)
    assert line.startswith("receipt.json: ")
    assert line.isprintable()
    assert len(line) <= 320


def quick_is_careful(data: bytes) -> None:
    """What is read the quick way is what the way that checks each value reads."""
    try:
        slow = receipt_from_document(document_from_json(data, name="receipt.json"), name="receipt.json")
    except ReceiptError:
        slow = None
    quick = decoded(data, Receipt)
    if slow is None:
        with pytest.raises(ReceiptError):
            from_json(data, name="receipt.json")
    elif quick is not None:
        assert repr(quick) == repr(slow)  # NaN is not equal to itself


@pytest.mark.parametrize(
    ("old", "new"),
    [
        pytest.param(b'"format": 1', b'"format": 1, "format": 1', id="a-key-twice"),
        pytest.param(b'"backend": "inductor",', b'"backend": "inductor", "backend": "",', id="a-key-twice-deep-inside"),
        pytest.param(b'"max_recompiles": 0', b'"max_recompiles": 0, "max_recompiles": 1', id="a-limit-twice"),
        pytest.param(b'"unique_graphs": 2', b'"unique_graphs": 2, "unique_graphs": 2', id="a-counter-twice"),
        pytest.param(b'"cpu": {', b'"cpu": {}, "cpu": {', id="an-environment-twice"),
        pytest.param(b'"graphs": 2', b'"graphs": 2, "graph": 2', id="an-unknown-key"),
        pytest.param(b'"worst_error": 0.25', b'"worst_error": "0.25"', id="a-number-in-quotes"),
        pytest.param(b'"worst_error": 0.25', b'"worst_error": "infinity"', id="an-infinity-of-another-name"),
        pytest.param(b'"worst_error": 0.25', b'"worst_error": "null"', id="null-in-quotes"),
        pytest.param(b'"graphs": 2', b'"graphs": "2"', id="a-count-in-quotes"),
        pytest.param(b'"graphs": 2', b'"graphs": 2.0', id="a-count-that-is-no-integer"),
        pytest.param(b'"format": 1', b'"plugin": "x"', id="no-format"),
        pytest.param(b'"max_autotune": true', b'"max_autotune": ' + b"[" * 70 + b"]" * 70, id="nested-too-deep"),
        pytest.param(b'"max_autotune": true', b'"max_autotune": {"a": 1, "a": 2}', id="a-setting-twice"),
    ],
)
def test_what_is_wrong_is_not_read_the_quick_way(old: bytes, new: bytes) -> None:
    data = to_json(a_receipt())
    assert old in data

    found = decoded(data.replace(old, new), Receipt)

    assert found is None
    assert refusal(data.replace(old, new)).startswith("receipt.json: ")


def test_what_is_right_is_read_the_quick_way() -> None:
    odd = Measurement(numerics=Numerics(method="fp64", worst_error=math.inf, eager_error=-math.inf), backend="null")
    receipt = a_receipt(
        an_entry(), an_entry(lane="odd", measurement=odd, limits={"a": ["nan", None, 2**70, {"b": []}]})
    )

    assert decoded(to_json(receipt), Receipt) == receipt
    assert decoded(json.dumps(json.loads(to_json(receipt))).encode(), Receipt) == receipt


@QUICK
@given(entries=st.lists(ENTRIES, max_size=3))
def test_both_ways_of_reading_agree(entries: list[Entry]) -> None:
    data = to_json(replace(a_receipt(), entries=tuple(entries)))

    assert decoded(data, Receipt) is not None
    quick_is_careful(data)


@settings(max_examples=300, deadline=None)
@given(data=st.binary())
def test_no_bytes_do_anything_else(data: bytes) -> None:
    one_refusal_or_a_receipt(data)


@settings(max_examples=150, deadline=None)
@given(
    at=st.integers(0, 10_000), cut=st.integers(0, 20), put=st.binary(max_size=4) | st.sampled_from([b"1e999", b'"x":'])
)
@example(at=0, cut=0, put=b"")
def test_no_damage_to_a_receipt_does_anything_else(at: int, cut: int, put: bytes) -> None:
    data = to_json(a_receipt())
    at %= len(data)

    one_refusal_or_a_receipt(data[:at] + put + data[at + cut :])


@QUICK
@given(value=JSON, place=st.integers(0, 200))
def test_no_value_anywhere_does_anything_else(value: object, place: int) -> None:
    document = a_document()
    places = list(every_place(document))
    holder, key = places[place % len(places)]
    holder[key] = value

    one_refusal_or_a_receipt(json.dumps(document).encode())


def every_place(value: Any) -> Any:
    keys = list(value) if isinstance(value, dict) else list(range(len(value))) if isinstance(value, list) else []
    for key in keys:
        yield value, key
        yield from every_place(value[key])


# Files


def test_a_file_is_written_with_its_folders_and_nothing_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "receipt.json"

    write_receipt(path, a_receipt())

    assert read_receipt(path) == a_receipt()
    assert list(path.parent.iterdir()) == [path]


def test_a_receipt_that_cannot_be_written_leaves_the_old_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "receipt.json"
    path.write_text("old")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(ReceiptError) as caught:
        write_receipt(path, a_receipt())

    assert str(caught.value) == f"{path}: cannot be written (No space left on device)"
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_folder_cannot_be_written_over(tmp_path: Path) -> None:
    with pytest.raises(ReceiptError) as caught:
        write_receipt(tmp_path, a_receipt())

    assert str(caught.value) == f"{tmp_path}: cannot be written (Is a directory)"
    assert list(tmp_path.parent.glob(".*.tmp")) == []


def test_a_file_where_a_folder_should_be(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    path = tmp_path / "file" / "receipt.json"

    with pytest.raises(ReceiptError) as caught:
        write_receipt(path, a_receipt())

    assert str(caught.value).startswith(f"{path}: cannot be written (")


@pytest.mark.parametrize(
    ("name", "cause"),
    [(".", "Is a directory"), ("none.json", "No such file or directory"), ("a\0b", "embedded null byte")],
    ids=["a folder", "missing", "no path at all"],
)
def test_a_file_that_cannot_be_read(tmp_path: Path, name: str, cause: str) -> None:
    path = tmp_path / name

    with pytest.raises(ReceiptError) as caught:
        read_receipt(path)

    assert str(caught.value) == f"{one_line(str(path))}: cannot be read ({cause})"


def test_held_without_a_measurement_is_no_receipt() -> None:
    entry = an_entry(verdict="held", violations=(), measurement=None)

    assert refusal(to_json(a_receipt(entry))) == "receipt.json: entries[0].verdict: 'held' without a measurement"


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "receipt.json"
    os.mkfifo(path)

    with pytest.raises(ReceiptError) as caught:
        read_receipt(path)

    assert str(caught.value) == f"{path}: cannot be read (not a regular file)"


def test_a_file_too_large_is_not_read_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pytest_compilecontract.files.whole.LARGEST_BYTES", 2 * 1024 * 1024)
    path = tmp_path / "receipt.json"
    path.write_bytes(b" " * (3 * 1024 * 1024))

    with pytest.raises(ReceiptError) as caught:
        read_receipt(path)

    assert str(caught.value) == f"{path}: larger than 2 MiB, too large for a receipt"


# The schema


def test_the_shipped_schema_is_the_one_that_the_dataclasses_make() -> None:
    folder = Path(next(iter(pytest_compilecontract.__path__)))

    # To write it anew: that folder, and what `schema_json()` gives.
    assert (folder / "schemas" / "receipt.schema.json").read_bytes() == schema_json()


def test_the_schema_is_a_schema() -> None:
    jsonschema = pytest.importorskip("jsonschema")

    jsonschema.Draft202012Validator.check_schema(schema())


def test_every_object_of_the_schema_says_what_it_is_and_refuses_unknown_properties() -> None:
    for name, definition in schema()["$defs"].items():
        assert definition["title"] == name
        assert definition["description"]
        assert name == "Number" or definition["additionalProperties"] is False


@QUICK
@given(entries=st.lists(ENTRIES, max_size=2))
def test_what_is_written_matches_the_schema(entries: list[Entry]) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    document = json.loads(to_json(a_receipt(*entries)))

    errors = list(jsonschema.Draft202012Validator(schema()).iter_errors(document))

    assert errors == []


# Environments


@pytest.mark.parametrize(
    ("env", "key"),
    [
        (Environment(torch="2.13.0+cpu"), "torch2.13-cpu"),
        (Environment(torch="2.11.0+cu130", capability="9.0"), "torch2.11-cuda-sm90"),
        (Environment(torch="2.16.0.dev20260901+cu132", capability="12.0"), "torch2.16-cuda-sm120"),
        (Environment(torch="2.12.0.fb"), "torch2.12-cpu"),
        (Environment(), "no-torch-cpu"),
        (Environment(torch="../../etc", capability="../9"), "no-torch-cuda-sm9"),
    ],
    ids=["cpu", "cuda", "nightly", "not of PEP 440", "no torch", "hostile"],
)
def test_the_key_of_an_environment(env: Environment, key: str) -> None:
    assert environment_key(env) == key


def test_the_fingerprint_is_of_every_field_that_may_change_a_run() -> None:
    changes: list[dict[str, Any]] = [{each.name: {"a": "b"}} for each in fields(Environment)]
    changed = [replace(CPU, **change) for change in changes]

    prints = {fingerprint(env) for env in [CPU, *changed]}

    # But for the name of torch's own defaults, which come with torch.
    assert len(prints) == len(fields(Environment))
    assert all(len(each) == 12 for each in prints)


def test_importing_receipts_imports_neither_torch_nor_msgspec() -> None:
    code = (
        "import sys, pytest_compilecontract.files.receipt; print({'torch', 'msgspec', 'jsonschema'} & set(sys.modules))"
    )

    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert ran.stdout == "set()\n"


def test_where_the_schema_is_may_be_left_out_as_in_older_files() -> None:
    document = json.loads(to_json(a_receipt()))
    del document["$schema"]

    assert from_json(json.dumps(document).encode(), name="receipt.json") == a_receipt()


@pytest.mark.parametrize("place", [("$schema",), ("environments", "here", "$schema")], ids=["a number", "deeper"])
def test_where_the_schema_is_is_a_text_of_the_document_alone(place: tuple[str, ...]) -> None:
    document = json.loads(to_json(a_receipt()))
    document["environments"] = {"here": {}}
    inside = document
    for step in place[:-1]:
        inside = inside[step]
    inside[place[-1]] = 1

    with pytest.raises(ReceiptError, match=r"\$schema"):
        from_json(json.dumps(document).encode(), name="receipt.json")
