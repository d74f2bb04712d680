"""Lanes: the built-in ones, the project's own, and how they are chosen."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence

import pytest

from pytest_compilecontract.errors import UsageError
from pytest_compilecontract.facts.lanes import BUILT_IN, Lane, chosen, lanes_from_table, narrowed

KNOWN_KEYS = (
    "autocast, backend, cache, device, disable, dtype, dynamic, dynamo, fullgraph, in_place, inductor, "
    "isolate_recompiles, matmul_precision, mode, name, options, process_group, ranks, "
    "recompile_limit, requires"
)


def names_of(lanes: Sequence[Lane]) -> list[str]:
    return [lane.name for lane in lanes]


def test_the_built_in_lanes_in_order() -> None:
    of_torch = ["eager", "capture", "aot", "inductor", "dynamic", "cudagraphs", "autotune"]
    assert list(BUILT_IN) == [*of_torch, "xla-torchax", "xla-lazy", "xla-openxla"]
    assert all(lane.name == name for name, lane in BUILT_IN.items())


def test_all_lanes_are_those_of_torch_compile() -> None:
    found = names_of(chosen(["all"], BUILT_IN))

    assert found == ["capture", "aot", "inductor", "dynamic", "cudagraphs", "autotune"]
    assert [name for name, lane in BUILT_IN.items() if lane.is_xla] == ["xla-torchax", "xla-lazy", "xla-openxla"]


def test_only_eager_is_the_reference() -> None:
    assert [name for name, lane in BUILT_IN.items() if lane.reference] == ["eager"]


def test_the_built_in_lanes_that_need_cuda() -> None:
    assert [name for name, lane in BUILT_IN.items() if lane.needs_cuda] == ["cudagraphs", "autotune"]


@pytest.mark.parametrize(
    ("lane", "needs_cuda"),
    [
        pytest.param(Lane(name="own"), False, id="any device"),
        pytest.param(Lane(name="own", device="cpu"), False, id="cpu"),
        pytest.param(Lane(name="own", device="cuda"), True, id="cuda"),
        pytest.param(Lane(name="own", device="cuda:1"), True, id="second GPU"),
        pytest.param(Lane(name="own", mode="reduce-overhead"), True, id="CUDA graphs by mode"),
        pytest.param(Lane(name="own", mode="reduce-overhead", device="cpu"), False, id="CUDA graphs meant for cpu"),
    ],
)
def test_needs_cuda(lane: Lane, needs_cuda: bool) -> None:
    assert lane.needs_cuda is needs_cuda


@pytest.mark.parametrize(
    ("name", "options"),
    [
        pytest.param("capture", {"backend": "eager"}, id="capture"),
        pytest.param("aot", {"backend": "aot_eager"}, id="aot"),
        pytest.param("inductor", {"backend": "inductor"}, id="inductor"),
        pytest.param("dynamic", {"backend": "inductor", "dynamic": True}, id="dynamic"),
        pytest.param("cudagraphs", {"backend": "inductor", "mode": "reduce-overhead"}, id="cudagraphs"),
        pytest.param("autotune", {"backend": "inductor", "mode": "max-autotune-no-cudagraphs"}, id="autotune"),
    ],
)
def test_compile_options_are_those_that_the_lane_sets(name: str, options: dict[str, object]) -> None:
    assert BUILT_IN[name].compile_options() == options


def test_a_table_sets_every_parameter_of_torch_compile() -> None:
    table = {
        "own": {
            "backend": "aot_eager",
            "options": {"max_autotune": True},
            "dynamic": False,
            "fullgraph": True,
            "disable": False,
            "name": "block",
            "recompile_limit": 2,
            "isolate_recompiles": True,
        }
    }

    lane = lanes_from_table(table, where="pyproject.toml")["own"]

    assert lane.compile_options() == table["own"]


def test_a_table_sets_the_rest_of_the_lane() -> None:
    table = {
        "bf16": {
            "device": "cuda:0",
            "dtype": "bfloat16",
            "autocast": "float16",
            "matmul_precision": "high",
            "in_place": True,
            "cache": "shared",
            "dynamo": {"capture_scalar_outputs": True},
            "inductor": {"triton": {"cudagraphs": True}, "cpp.threads": 1},
            "requires": ["timm"],
        }
    }

    lanes = lanes_from_table(table, where="pyproject.toml")

    assert lanes == {
        "bf16": Lane(
            name="bf16",
            device="cuda:0",
            dtype="bfloat16",
            autocast="float16",
            matmul_precision="high",
            in_place=True,
            cache="shared",
            dynamo={"capture_scalar_outputs": True},
            inductor={"triton.cudagraphs": True, "cpp.threads": 1},
            requires=("timm",),
        )
    }


def test_every_key_makes_the_round_through_a_dict() -> None:
    table = {
        "own": {"backend": "eager", "dynamic": False, "name": "b", "requires": ["timm"], "dynamo": {"verbose": True}}
    }

    plain = lanes_from_table(table, where="pyproject.toml")["own"].to_dict()

    assert json.loads(json.dumps(plain)) == table["own"]


def test_every_field_has_a_key() -> None:
    fields = {each.name for each in dataclasses.fields(Lane)} - {"compile_name", "given"}

    assert fields == set(KNOWN_KEYS.split(", "))


@pytest.mark.parametrize(
    ("table", "message"),
    [
        pytest.param({"a": {"mod": "x"}}, f"lane 'a': unknown key 'mod' (known keys: {KNOWN_KEYS})", id="unknown key"),
        pytest.param({"a": 3}, "lane 'a': expected a table, got 3", id="no table"),
        pytest.param({"a": {"dynamic": "yes"}}, "lane 'a': dynamic: expected true or false, got 'yes'", id="no flag"),
        pytest.param({"a": {"fullgraph": 1}}, "lane 'a': fullgraph: expected true or false, got 1", id="a number"),
        pytest.param({"a": {"backend": ""}}, "lane 'a': backend: expected a name, got ''", id="empty name"),
        pytest.param(
            {"a": {"recompile_limit": True}},
            "lane 'a': recompile_limit: expected a whole number of at least 1, got True",
            id="flag as number",
        ),
        pytest.param(
            {"a": {"device": "gpu 0"}},
            "lane 'a': device: expected a device such as 'cpu' or 'cuda:0', got 'gpu 0'",
            id="device",
        ),
        pytest.param(
            {"a": {"dtype": "int8"}},
            "lane 'a': dtype: expected one of bfloat16, float16, float32, float64, got 'int8'",
            id="dtype",
        ),
        pytest.param(
            {"a": {"autocast": "float32"}},
            "lane 'a': autocast: expected one of bfloat16, float16, got 'float32'",
            id="autocast that torch would switch off",
        ),
        pytest.param(
            {"a": {"matmul_precision": "tf32"}},
            "lane 'a': matmul_precision: expected one of highest, high, medium, got 'tf32'",
            id="precision by another name",
        ),
        pytest.param({"a": {"cache": "none"}}, "lane 'a': cache: expected one of lane, shared, got 'none'", id="cache"),
        pytest.param({"a": {"dynamo": []}}, "lane 'a': dynamo: expected a table, got []", id="settings"),
        pytest.param(
            {"a": {"requires": "timm"}},
            "lane 'a': requires: expected a list of package names, got 'timm'",
            id="one package",
        ),
        pytest.param(
            {"a": {"mode": "default", "options": {}}},
            "lane 'a': mode and options: torch.compile takes one of them, got both",
            id="mode and options",
        ),
        pytest.param(
            {"aot": {}},
            "lane 'aot': this name is built in (built-in names: all, aot, autotune, capture, cudagraphs, dynamic, "
            "eager, frontier, inductor, xla-lazy, xla-openxla, xla-torchax)",
            id="built-in name",
        ),
        pytest.param(
            {"a,b": {}}, "lane 'a,b': expected a name of letters, digits, '_', '.' and '-'", id="name with a comma"
        ),
    ],
)
def test_a_table_that_cannot_mean_anything(table: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        lanes_from_table(table, where="pyproject.toml")

    assert str(caught.value) == f"pyproject.toml: {message}"


def test_chosen_in_the_order_of_the_names_and_each_once() -> None:
    assert names_of(chosen(["inductor", "aot", "inductor"], BUILT_IN)) == ["inductor", "aot"]


def test_all_is_every_known_lane_but_eager() -> None:
    known = BUILT_IN | {"own": Lane(name="own")}

    assert names_of(chosen(["dynamic", "all"], known)) == [
        "dynamic",
        "capture",
        "aot",
        "inductor",
        "cudagraphs",
        "autotune",
        "own",
    ]


def test_eager_can_be_chosen_by_name() -> None:
    assert names_of(chosen(["eager", "aot"], BUILT_IN)) == ["eager", "aot"]


@pytest.mark.parametrize(
    ("names", "message"),
    [
        pytest.param(["fast"], "unknown lane 'fast'", id="unknown"),
        pytest.param([], "no lane given", id="none"),
    ],
)
def test_a_choice_that_cannot_be_made(names: list[str], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        chosen(names, BUILT_IN)

    assert str(caught.value) == (
        f"{message} (known lanes: aot, autotune, capture, cudagraphs, dynamic, eager, inductor, "
        "xla-lazy, xla-openxla, xla-torchax)"
    )


@pytest.mark.parametrize(
    ("names", "left"),
    [
        pytest.param(None, ["aot", "inductor"], id="no narrowing"),
        pytest.param(["all"], ["aot", "inductor"], id="all"),
        pytest.param(["inductor", "capture"], ["inductor"], id="never wider"),
        pytest.param(["capture"], [], id="nothing left"),
    ],
)
def test_a_marker_narrows(names: list[str] | None, left: list[str]) -> None:
    assert names_of(narrowed(chosen(["aot", "inductor"], BUILT_IN), names)) == left
