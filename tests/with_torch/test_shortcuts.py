"""Shortcuts: what answers before the rule never answers otherwise than the rule, whatever the numbers are."""

from __future__ import annotations

import math
import struct
from decimal import Decimal
from typing import Any
from unittest import mock

import pytest
import torch
from holding import hold
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pytest_compilecontract.facts.measurement import Numerics
from pytest_compilecontract.measure.gpu_steps import _is_still
from pytest_compilecontract.measure.numerics import Run, judge, judging, same_bits, same_memory, same_values, snapshot
from pytest_compilecontract.measure.numerics.together import kth, one_after_another, two_largest
from pytest_compilecontract.measure.state import State
from pytest_compilecontract.measure.tensors import Saved

pytestmark = pytest.mark.torch

FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
NARROW = [
    dtype
    for name in ("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu")
    if (dtype := getattr(torch, name, None)) is not None
]
COMPLEX = [torch.complex32, torch.complex64, torch.complex128]
DISCRETE = [torch.int64, torch.int8, torch.uint8, torch.bool]
SPECIAL = [
    math.nan, math.inf, -math.inf, 0.0, -0.0, 1.0, -1.5, 3.0, 1e-3, 5e-324, 1e-40, 6e-8, 448.0, 6e4, 1e9, -3e38, 1e200,
    -1.7e308,
]  # fmt: skip
SHAPES: list[tuple[int, ...]] = [(), (0,), (1,), (4,), (2, 3), (2, 0, 3), (3, 1, 2)]
METHODS: list[Any] = ["fp64", "allclose", "bitwise"]

numbers = st.one_of(st.sampled_from(SPECIAL), st.floats(width=64), st.floats(-10, 10))


def tensor(values: list[float], shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    made = torch.tensor(values, dtype=torch.float64).reshape(shape)
    if dtype.is_complex:
        return torch.complex(made, made.flip(0) if made.dim() else made).to(dtype)
    return made.nan_to_num(0.0, 9.0, -9.0).to(dtype) if dtype in DISCRETE else made.to(dtype)


def laid_out(data: torch.Tensor, how: str) -> torch.Tensor:
    """The same values in other strides."""
    if how == "transposed" and data.dim() > 1:
        return data.transpose(0, -1).contiguous().transpose(0, -1)
    if how == "a slice" and data.dim():
        return torch.stack([data, data], -1)[..., 0] if data.dtype not in NARROW else data
    if how == "expanded" and data.dim():
        return data[:1].expand(data.shape)
    return data


@st.composite
def runs(draw: st.DrawFn) -> dict[str, Any]:
    """Eager, again, compiled and float64 of one place: mostly near one another, with anything in some elements."""
    dtype = draw(st.sampled_from([*FLOATS, *FLOATS, *NARROW, *COMPLEX, *DISCRETE]))
    shape = draw(st.sampled_from(SHAPES))
    how = draw(st.sampled_from(["plain", "plain", "transposed", "a slice", "expanded"]))
    count = math.prod(shape)
    base = draw(st.lists(numbers, min_size=count, max_size=count))

    def variant(off: float) -> list[float]:
        kind = draw(st.sampled_from(["same", "same", "near", "near", "one", "all"]))
        if kind == "same":
            return base
        if kind == "near":
            share = off * draw(st.sampled_from([0.0, 0.01, 0.2, 0.25, 0.26, 1.0, 4.0, 100.0]))
            return [each * (1 + share) for each in base]
        changed = list(base)
        for index in range(count) if kind == "all" else [draw(st.integers(0, count - 1))] if count else []:
            changed[index] = draw(numbers)
        return changed

    floor = {torch.float64: 1e-12, torch.float32: 2e-4, torch.float16: 2e-3}.get(dtype, 2e-2)
    eager, compiled, again = (
        laid_out(tensor(values, shape, dtype), how)
        for values in (base, variant(floor), base if draw(st.integers(0, 3)) else variant(floor))
    )
    wide = torch.complex128 if dtype.is_complex else dtype if dtype in DISCRETE else torch.float64
    gold = laid_out(tensor(variant(floor), shape, wide), draw(st.sampled_from(["plain", how])))
    if draw(st.booleans()):
        gold = None
    if draw(st.integers(0, 19)) == 0 and dtype in FLOATS:
        compiled = compiled.to(torch.float64)
    given: dict[str, Any] = {"method": draw(st.sampled_from(METHODS))}
    if given["method"] != "bitwise" and draw(st.integers(0, 3)) == 0:
        given |= {"rtol": draw(st.sampled_from([None, 0.0, 1e-3])), "atol": draw(st.sampled_from([0.0, 1e-5, 1.0]))}
    given["precision"] = draw(st.sampled_from([None, None, torch.bfloat16]))
    given["tf32"] = draw(st.booleans()) and given["precision"] is None
    group = draw(st.sampled_from(["output", "grad", "parameter", "loss", "input", "buffer", "state"]))
    return {"eager": eager, "compiled": compiled, "again": again, "gold": gold, "group": group, **given}


def verdict(found: Numerics) -> tuple[Any, ...]:
    return found.differences, found.compared, found.uncompared, "not deterministic" in found.note


def judged(values: dict[str, Any]) -> Numerics:
    values = dict(values)
    group = values.pop("group")
    at = "step 0 parameter" if group == "parameter" else group
    taken: dict[str, Run | None] = {
        name: None if (value := values.pop(name)) is None else Run(groups={group: snapshot([value], at=at)})
        for name in ("eager", "compiled", "again", "gold")
    }
    assert taken["eager"] is not None
    assert taken["compiled"] is not None
    return judge(eager=taken["eager"], compiled=taken["compiled"], again=taken["again"], gold=taken["gold"], **values)


ONE_NAN = {
    "eager": torch.ones(3), "again": torch.ones(3), "compiled": torch.tensor([1.0, math.nan, 1.0]),
    "gold": torch.ones(3, dtype=torch.float64), "group": "output", "method": "fp64",
}  # fmt: skip
OVERFLOW = {
    name: torch.tensor([1e200, value], dtype=torch.float64)
    for name, value in (("eager", 1e200), ("again", 1e200), ("compiled", 3.0), ("gold", 1e200))
} | {"group": "grad", "method": "fp64"}
EXPANDED = {
    name: torch.tensor([value], dtype=torch.float16).expand(4)
    for name, value in (("eager", math.nan), ("again", math.nan), ("compiled", math.inf))
} | {"gold": torch.tensor([math.nan, 1.0, math.nan, math.nan]), "group": "output", "method": "fp64"}


@settings(max_examples=200, deadline=None)
@example(values=ONE_NAN)
@example(values=EXPANDED)
@example(values=OVERFLOW)
@given(values=runs())
def test_no_shortcut_answers_otherwise_than_the_rule(values: dict[str, Any]) -> None:
    with mock.patch.object(judging, "_alike", side_effect=lambda *_: (set(), [])):
        by_the_rule = judged(values)

    assert verdict(judged(values)) == verdict(by_the_rule)


def to_wide(data: torch.Tensor) -> torch.Tensor:
    return data.to(torch.complex128 if data.is_complex() else torch.float64)


def parts(data: torch.Tensor) -> torch.Tensor:
    wide = to_wide(data)
    return torch.view_as_real(wide.resolve_conj()) if wide.is_complex() else wide


def kind_of_number(value: float) -> str:
    return "nan" if math.isnan(value) else str(value) if math.isinf(value) else "finite"


@settings(max_examples=200, deadline=None)
@example(values=ONE_NAN)
@example(values=EXPANDED)
@given(values=runs())
def test_nan_and_inf_that_eager_has_not_are_a_difference(values: dict[str, Any]) -> None:
    eager, compiled, again = ([*map(kind_of_number, parts(values[name]).reshape(-1).tolist())] for name in (
        "eager", "compiled", "again"))  # fmt: skip

    found = judged(values)

    at = "step 0 parameter[0]" if values["group"] == "parameter" else f"{values['group']}[0]"
    if eager != compiled and eager == again:
        assert (at, "nan") in [(each.at, each.kind) for each in found.differences]
    elif eager == compiled:
        assert "nan" not in [each.kind for each in found.differences]


@pytest.mark.parametrize("dtype", [*FLOATS, *COMPLEX, *NARROW], ids=str)
@pytest.mark.parametrize("method", METHODS)
def test_nan_in_compiled_alone_is_told_with_its_place(method: Any, dtype: torch.dtype) -> None:
    eager = torch.full((2, 2), 1.0).to(dtype)
    compiled = torch.tensor([[1.0, 1.0], [math.nan, 1.0]]).to(dtype)
    if torch.isnan(parts(compiled)).sum() == 0:
        pytest.skip(f"{dtype} has no NaN")

    found = judged({
        "eager": eager, "again": eager, "compiled": compiled, "gold": to_wide(eager), "group": "grad",
        "method": method,
    })  # fmt: skip

    assert (found.differences[0].at, found.differences[0].kind) == ("grad[0]", "nan")
    place = "[1, 0] (real part)" if dtype.is_complex else "[1, 0]"
    assert f"compiled nan, eager 1.0 at {place}; 1 of" in found.differences[0].detail


@pytest.mark.parametrize("method", METHODS)
def test_values_whose_squares_overflow_are_judged(method: Any) -> None:
    eager = torch.tensor([1e200, 2e200], dtype=torch.float64)

    found = judged({"eager": eager, "again": eager, "compiled": eager * 1.01, "gold": eager, "group": "grad",
                    "method": method})  # fmt: skip

    assert [each.kind for each in found.differences] == ["value"]


def nan_everywhere(out: torch.Tensor) -> torch.Tensor:
    return torch.full_like(out, math.nan)


def nan_in_one(out: torch.Tensor) -> torch.Tensor:
    out = out.clone()
    out.reshape(-1)[0] = math.nan
    return out


class NanGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return grad * math.nan


def broken(change: Any) -> Any:
    """What compiles with a backend whose results are changed."""

    def backend(graph: Any, inputs: Any) -> Any:
        return lambda *args: tuple(change(out) if isinstance(out, torch.Tensor) else out for out in graph(*args))

    return lambda target: torch.compile(target, backend=backend)


def chain(x: torch.Tensor) -> torch.Tensor:
    return torch.relu(x * 1.5)


LINEAR = torch.nn.Linear(8, 4)
BODIES: dict[str, tuple[Any, dict[str, Any], str]] = {
    "all of it": (lambda lane: lane.run(chain, *[(torch.ones(4, 8),)] * 3, compile_with=broken(nan_everywhere)), {},
                  "call 0 output"),
    "one element": (lambda lane: lane.run(chain, *[(torch.ones(4, 8),)] * 3, compile_with=broken(nan_in_one)), {},
                    "call 0 output"),
    "bfloat16": (lambda lane: lane.run(chain, (torch.ones(4, 8).bfloat16(),), compile_with=broken(nan_in_one)), {},
                 "call 0 output"),
    "gradients": (lambda lane: lane.run(LINEAR, (torch.randn(3, 8),), compile_with=broken(NanGradient.apply)),
                  {"check_grads": True}, "call 0 grad['weight']"),
    "training": (lambda lane: lane.train(LINEAR, [(torch.randn(3, 8),)] * 2, compile_with=broken(NanGradient.apply)),
                 {}, "step 0 grad['weight']"),
}  # fmt: skip


@pytest.mark.parametrize("name", BODIES)
@pytest.mark.parametrize("rule", [{}, {"numerics": "allclose"}], ids=["fp64", "allclose"])
def test_nan_of_a_broken_backend_is_a_violation(name: str, rule: dict[str, Any]) -> None:
    body, limits, place = BODIES[name]

    entry = hold(body, lane="capture", **limits, **rule)

    assert entry.verdict == "violated"
    (violation,) = entry.violations
    assert any(each.startswith(f"{place}: nan: compiled nan, eager ") for each in violation.details)
    assert all(torch.isfinite(each).all() for each in LINEAR.parameters())


# Bits and values


def bits(data: torch.Tensor) -> list[Any]:
    """Each element as its bytes; NaN as one."""
    flat = torch.view_as_real(data).reshape(-1) if data.is_complex() else data.reshape(-1)
    whole = bytes(flat.clone(memory_format=torch.contiguous_format).view(torch.uint8).tolist()) if len(flat) else b""
    each = [whole[start : start + flat.itemsize] for start in range(0, len(whole), flat.itemsize)]
    nan = [math.isnan(value) for value in parts(data).reshape(-1).tolist()]
    return ["nan" if is_nan else element for is_nan, element in zip(nan, each, strict=True)]


@settings(max_examples=200, deadline=None)
@given(values=runs())
def test_same_bits_and_same_values_are_what_they_say(values: dict[str, Any]) -> None:
    one, other = values["eager"].contiguous(), values["compiled"].contiguous()
    ours, theirs = (parts(each).reshape(-1).tolist() for each in (one, other))
    equal = all(a == b or (math.isnan(a) and math.isnan(b)) for a, b in zip(ours, theirs, strict=True))

    if one.dtype == other.dtype:
        assert same_bits(one, other) == (bits(one) == bits(other))
        assert same_values(one, other) == equal
        assert same_bits(one, other) or not same_memory(one, other)
        assert same_memory(one, one.clone())
    else:
        assert not same_bits(one, other)


def test_another_payload_of_nan_is_the_same_bits_and_other_memory() -> None:
    one, other = (
        torch.tensor([pattern], dtype=torch.int32).view(torch.float32) for pattern in (0x7FC00000, 0x7FC00001)
    )

    assert (same_bits(one, other), same_values(one, other), same_memory(one, other)) == (True, True, False)


@pytest.mark.parametrize(
    ("was", "now", "still"),
    [(math.nan, math.nan, True), (math.nan, 0.0, False), (0.0, math.nan, False), (math.inf, 3.4e38, False),
     (0.0, -0.0, False), (1.0, 1.0, True)],
    ids=["nan", "nan to zero", "zero to nan", "inf to large", "sign of zero", "same"],
)  # fmt: skip
def test_an_output_that_is_overwritten_is_not_still_there(was: float, now: float, still: bool) -> None:
    kept = torch.tensor([was, 1.0])
    copy = kept.clone()
    kept[0] = now

    assert _is_still(kept, copy) == still


# State


@settings(max_examples=150, deadline=None)
@given(values=runs())
def test_what_is_put_back_is_what_was_there_bit_by_bit(values: dict[str, Any]) -> None:
    held, other = values["eager"].clone(), values["compiled"]
    saved, before = Saved(held), bits(held)

    assert saved.is_in(held)
    assert saved.has_values_of(held)
    if other.dtype == held.dtype:
        held.copy_(other)
        assert saved.has_values_of(held) == same_values(values["eager"].clone(), held)
    saved.put_in(held)

    assert bits(held) == before


def test_nan_that_was_there_before_is_no_change_and_one_that_comes_or_goes_is() -> None:
    held = {"buffer": torch.tensor([math.nan, 1.0, 0.0]), "number": math.nan, "list": [math.nan]}

    def target() -> Any:
        return held

    state = State(target)
    held["number"] = float("nan")
    held["list"][0] = float("nan")  # type: ignore[index]
    assert state.changed() == {}

    held["buffer"][2] = -0.0  # type: ignore[index]
    assert state.changed() == {}
    held["buffer"][1] = math.nan  # type: ignore[index]
    assert [*state.changed()] == ["held.buffer"]
    state.restore()
    assert struct.pack("2f", *held["buffer"].tolist()[1:]) == struct.pack("2f", 1.0, 0.0)  # type: ignore[attr-defined]
    held["buffer"][0] = 0.0  # type: ignore[index]
    assert [*state.changed()] == ["held.buffer"]
    held["number"] = 2.0
    assert sorted(state.changed()) == ["held.buffer", "held.number"]


# Plain values


@pytest.mark.parametrize(
    ("compiled", "eager", "kinds"),
    [
        (Decimal("NaN"), Decimal("NaN"), []),
        (Decimal("sNaN"), Decimal("sNaN"), []),
        (Decimal(1), Decimal("NaN"), ["value"]),
        (Decimal("sNaN"), Decimal("NaN"), ["value"]),
        ({math.nan, 1.0}, {float("nan"), 1.0}, []),
        ({math.nan}, {1.0}, ["value"]),
        (math.nan, math.nan, []),
        (math.nan, 1.0, ["nan"]),
        (1.0, math.nan, ["nan"]),
        (math.inf, -math.inf, ["nan"]),
        (complex(math.nan, 1), complex(0, 1), ["nan"]),
        ({math.nan: 1, float("nan"): 2}, {math.nan: 1, float("nan"): 2}, []),
        ({math.nan: 1, float("nan"): 3}, {math.nan: 1, float("nan"): 2}, ["value"]),
    ],
    # The order of a set with NaN in it is another in each process.
    ids=lambda value: type(value).__name__ if isinstance(value, (set, dict)) else repr(value),
)
@pytest.mark.parametrize("method", METHODS)
def test_nan_in_plain_values(compiled: Any, eager: Any, kinds: list[str], method: Any) -> None:
    found = judged({"eager": eager, "again": eager, "compiled": compiled, "gold": eager, "group": "output",
                    "method": method})  # fmt: skip

    assert [each.kind for each in found.differences] == kinds
    assert found.note == ""


@settings(max_examples=150, deadline=None)
@given(
    st.sampled_from([(3,), (64,), (8, 16), (4, 8, 8)]),
    st.sampled_from([torch.bfloat16, torch.float16, torch.float32]),
    st.floats(1e-5, 0.02),
    st.sampled_from([0.0, 1e-4, 1e-3, 3e-3, 0.01, 0.03]),
    st.booleans(),
    st.integers(0, 1 << 20),
)
def test_no_shortcut_lets_a_bias_by(
    shape: tuple[int, ...], dtype: torch.dtype, share: float, factor: float, one_row: bool, seed: int
) -> None:
    gold, *off = torch.randn(3, *shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    eager, compiled = (gold + share * each for each in off)
    (compiled[-1] if one_row else compiled).mul_(1 + factor)
    values = {
        "eager": eager.to(dtype), "again": eager.to(dtype), "compiled": compiled.to(dtype), "gold": gold,
        "group": "output", "method": "fp64",
    }  # fmt: skip

    with mock.patch.object(judging, "_alike", side_effect=lambda *_: (set(), [])):
        by_the_rule = judged(values)

    assert verdict(judged(values)) == verdict(by_the_rule)


NEAR = st.sampled_from([0.0, -0.0, 1.0, 1.5, -2.0, math.inf, -math.inf])


@settings(max_examples=200, deadline=None)
@given(st.lists(st.lists(NEAR, min_size=5, max_size=5), min_size=1, max_size=7))
def test_the_two_largest_one_after_another_are_those_of_topk(rows: list[list[float]]) -> None:
    values = torch.tensor(rows, dtype=torch.float64)

    largest, second, where = one_after_another(values)

    assert all(torch.equal(*pair) for pair in zip((largest, second), two_largest(values)[:2], strict=True))
    assert torch.equal(values.gather(0, where[None])[0], largest)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_the_same_in_all_is_the_largest_and_the_second(value: float) -> None:
    same = torch.tensor([[value, 1.0]] * 3, dtype=torch.float64)

    for find in (two_largest, one_after_another):
        assert all(torch.equal(each.nan_to_num(7.0), same[0].nan_to_num(7.0)) for each in find(same)[:2])


def test_the_kth_is_that_of_torch() -> None:
    values = torch.randn(6, 9, generator=torch.Generator().manual_seed(0), dtype=torch.float64)

    assert torch.equal(kth(values, 4), values.kthvalue(4, keepdim=True).values)
    assert float(kth(values[0], 9)) == float(values[0].max())
