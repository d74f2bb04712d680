"""Noise: how far eager moves when it is rounded differently, what that excuses, and what is systematic and no noise."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from holding import hold, measured
from hypothesis import given, settings
from hypothesis import strategies as st
from planting import spoiled
from torch import nn
from torch.nn import functional

from pytest_compilecontract.measure import noise_runs
from pytest_compilecontract.measure.compile_lane import CompileLane
from pytest_compilecontract.measure.numerics import Run, Runs, Tolerance, explained, judged, snapshot
from pytest_compilecontract.measure.numerics.bias import (
    KNOWN,
    Looked,
    beyond_noise,
    find_bias,
    least_of,
    slices_of,
    step_of,
)
from pytest_compilecontract.measure.numerics.explained import judge_with_noise
from pytest_compilecontract.measure.numerics.noise import ENOUGH, Noise, Sides, held_to_noise
from pytest_compilecontract.measure.numerics.rule import Finding, Values, size_of
from pytest_compilecontract.measure.probes.refusals import Refusals
from pytest_compilecontract.measure.probes.rounding import Choices, Rounding
from pytest_compilecontract.measure.probes.schemas import keeps_seeds
from pytest_compilecontract.measure.probes.source import Paths

pytestmark = pytest.mark.torch

HERE = Path(__file__).parent


def rounding(seed: int = 0, choices: Choices | None = None) -> Rounding:
    return Rounding(seed, choices or Choices(Paths(HERE)), tf32=False)


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


# Rounding


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_a_result_goes_to_a_neighbour_or_stays(dtype: torch.dtype) -> None:
    x, y = normal(200, 200, dtype=dtype), normal(200, 200, seed=1, dtype=dtype)
    right = x * y

    with rounding():
        moved = x * y

    up, down = (torch.nextafter(right, torch.full_like(right, way)) for way in (torch.inf, -torch.inf))
    shares = [float((moved == each).double().mean()) for each in (right, up, down)]
    assert shares == pytest.approx([0.75, 0.125, 0.125], abs=0.01)


@pytest.mark.parametrize("module", [nn.BatchNorm1d, nn.InstanceNorm1d])
def test_a_running_mean_is_updated_in_a_run_that_is_rounded_otherwise(module: Any) -> None:
    plain, rounded = module(4, track_running_stats=True), module(4, track_running_stats=True)
    x = normal(8, 4, 3, dtype=torch.float32) + 1

    plain(x)
    with rounding():
        rounded(x)

    torch.testing.assert_close(rounded.running_mean, plain.running_mean)
    torch.testing.assert_close(rounded.running_var, plain.running_var)


def test_a_running_mean_that_compiled_leaves_alone_is_no_noise() -> None:
    class Forgets(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.BatchNorm1d(4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            mean = None if torch.compiler.is_compiling() else self.norm.running_mean
            return functional.batch_norm(x, mean, None if mean is None else self.norm.running_var, training=True)

    entry = hold(lambda lane: lane.run(Forgets(), normal(8, 4, dtype=torch.float32) + 1))

    assert entry.verdict == "violated"
    assert [each.name for each in entry.violations] == ["numerics"]


EXACT: dict[str, Callable[[torch.Tensor], object]] = {
    "relu": torch.relu,
    "negative": torch.neg,
    "rows": lambda x: x[torch.tensor([3, 1])],
    "view": lambda x: x.t().reshape(-1),
    "joined": lambda x: torch.cat([x, x]),
    "copy": lambda x: torch.empty_like(x).copy_(x),
    "where": lambda x: torch.where(x > 0, x, 0.0),
    "zeros": lambda x: x * 0,
    "wider": lambda x: x.double(),
    "wider, written": lambda x: torch.empty_like(x, dtype=torch.float64).copy_(x),
    "wider, complex": lambda x: x.to(torch.complex128),
    "integers": lambda x: (x.argmax(-1), x > 0, x.topk(3).indices),
    "random": lambda x: torch.rand(4, 4),
}


@pytest.mark.parametrize("make", EXACT.values(), ids=EXACT.keys())
def test_what_is_only_moved_about_stays(make: Callable[[torch.Tensor], Any]) -> None:
    x = normal(50, 50, dtype=torch.float32)
    torch.manual_seed(3)
    right = make(x)

    torch.manual_seed(3)
    with rounding():
        moved = make(x)

    for one, other in zip(*(each if isinstance(each, tuple) else (each,) for each in (right, moved)), strict=True):
        assert torch.equal(one, other)


def test_no_random_number_of_the_programs_is_drawn() -> None:
    before = torch.get_rng_state()

    with rounding():
        normal(8, 8) @ normal(8, 8)

    assert torch.equal(torch.get_rng_state(), before)


def test_what_is_written_to_moves_and_what_is_given_does_not() -> None:
    x, y = normal(100, 100, dtype=torch.float32), normal(100, 100, seed=1, dtype=torch.float32)
    x_before, y_before = x.clone(), y.clone()

    with rounding():
        x.add_(y)
        product = x @ y

    assert not torch.equal(x, x_before + y)
    assert torch.allclose(x, x_before + y, rtol=1e-5)
    assert torch.equal(y, y_before)
    assert not torch.equal(product, x @ y)


def test_gradients_move_too() -> None:
    layer = nn.Linear(32, 32)
    x = normal(64, 32, dtype=torch.float32)
    layer(x).square().sum().backward()
    right = layer.weight.grad
    assert right is not None
    layer.weight.grad = None

    with rounding():
        layer(x).square().sum().backward()

    assert layer.weight.grad is not None
    assert not torch.equal(layer.weight.grad, right)
    assert torch.allclose(layer.weight.grad, right, rtol=1e-3, atol=1e-4)


def test_a_choice_that_falls_otherwise_is_told_with_its_line() -> None:
    choices = Choices(Paths(HERE))
    near = torch.ones(1, 64)
    for seed in range(4):
        choices.start()
        with rounding(seed, choices):
            (near * 1.1).topk(1)

    (flip,) = choices.told()
    assert (flip.operator, flip.of) == ("topk", 1)
    assert flip.location is not None
    assert flip.location.source == "(near * 1.1).topk(1)"


@pytest.mark.parametrize(("named", "is_choice"), [("philox_seed", False), ("rng_state", False), ("index", True)])
def test_the_seeds_of_an_attention_are_no_choice(named: str, is_choice: bool) -> None:
    """Those of CUDA return them, with sizes and an integer that is not filled in."""
    library = torch.library.Library(f"seeds_{named}", "DEF")
    library.define(f"attend(Tensor x) -> (Tensor output, Tensor {named}, Tensor unused)")
    drawn = iter(range(9))
    library.impl("attend", lambda x: (x * 2, torch.tensor(next(drawn)), torch.tensor(1)), "CompositeExplicitAutograd")
    choices = Choices(Paths(HERE))

    for seed in range(2):
        choices.start()
        with rounding(seed, choices):
            getattr(torch.ops, f"seeds_{named}").attend(torch.ones(4) * 1.1)

    assert choices.any == is_choice
    assert bool(choices.told()) == is_choice


@pytest.mark.parametrize("name", ["flash", "cudnn", "efficient"])
def test_attentions_of_cuda_are_known_to_return_seeds(name: str) -> None:
    assert keeps_seeds(getattr(torch.ops.aten, f"_scaled_dot_product_{name}_attention").default)


# References


def test_an_operator_that_refuses_float64_runs_in_float32() -> None:
    x, weight = normal(16, 32), normal(4, 32, 16)
    offs = torch.tensor([4, 8, 12, 16], dtype=torch.int32)

    with Refusals(torch.float64) as refusals:
        found = torch._grouped_mm(x, weight, offs=offs)

    assert found.dtype == torch.float64
    assert torch.allclose(found[:4], x[:4] @ weight[0], atol=1e-4)
    assert refusals.ran_in == {"aten._grouped_mm.default": torch.float32}


def test_an_operator_of_two_precisions_is_given_the_wider_one() -> None:
    with Refusals(torch.float64) as refusals:
        found = normal(4, 4) @ normal(4, 4, dtype=torch.float32)

    assert found.dtype == torch.float64
    assert refusals.ran_in == {}


def test_what_is_no_refusal_is_raised() -> None:
    with Refusals(torch.float64), pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        normal(4, 4) @ normal(3, 3)


# What noise excuses


def sides(
    compiled: torch.Tensor, eager: torch.Tensor, moved: list[torch.Tensor], far: Sequence[torch.Tensor] = ()
) -> Noise:
    steps = [1] * len(moved)
    return held_to_noise(
        Sides(compiled=compiled, eager=eager, reference=eager, slack=torch.zeros(1), moved=moved, steps=steps, far=far),
        lambda e, g: torch.full_like(g, 1e-6),
        1e-6,
    )


def test_where_eager_moves_as_far_compiled_may_be() -> None:
    eager = normal(64, 64)
    moved = [eager + 1e-2 * normal(64, 64, seed=seed) for seed in range(1, 7)]

    assert sides(eager + 1e-2 * normal(64, 64, seed=9), eager, moved).excused
    assert not sides(eager + 1e-1 * normal(64, 64, seed=9), eager, moved).excused


def test_most_elements_are_not_off_by_what_one_may_be() -> None:
    """All in the room that each has beyond eager's runs, which grows with their steps."""
    eager = normal(64, 64)
    steps = [1] * 6 + [3] * 10
    moved = [eager + each * 1e-2 * normal(64, 64, seed=seed) for seed, each in enumerate(steps, 1)]

    def excused(compiled: torch.Tensor) -> bool:
        slack = torch.zeros(1)
        sides = Sides(compiled=compiled, eager=eager, reference=eager, slack=slack, moved=moved, steps=steps)
        return held_to_noise(sides, lambda e, g: torch.full_like(g, 1e-6), 1e-6).excused

    assert excused(eager + 1.5e-2 * normal(64, 64, seed=50))
    assert not excused(eager + 3e-2 * normal(64, 64, seed=50).sign())


def test_one_chaotic_element_excuses_itself_alone() -> None:
    eager = normal(64, 64)
    moved = [eager.clone() for _ in range(6)]
    for seed, each in enumerate(moved):
        each[3, 3] += 5 * normal(1, seed=seed).item()
    chaotic, wrong = eager.clone(), eager.clone()
    chaotic[3, 3] += 4.0
    wrong[3, 4] += 4.0

    assert sides(chaotic, eager, moved).excused
    assert sides(wrong, eager, moved).why == "1 elements are off where eager never is"


def test_a_row_that_flips_may_flip_where_others_did_in_eager() -> None:
    eager = normal(256, 32)
    moved = [eager.clone() for _ in range(ENOUGH)]
    for seed, each in enumerate(moved):
        each[seed * 7] = normal(32, seed=seed + 20)
    flipped, many, larger = eager.clone(), eager.clone(), eager.clone()
    flipped[100] = normal(32, seed=50)
    many[100:110] = normal(10, 32, seed=50)
    one = eager.clone()
    one[100, 3] += 1.0
    larger[100] = 20 * normal(32, seed=50)

    # Every choice that is close falls otherwise once everything is moved by much more; and all else moves a little.
    far = [eager + 1e-3 * normal(256, 32, seed=7)]
    far[0][90:120] = normal(30, 32, seed=60)
    decided = eager.clone()
    decided[200] = normal(32, seed=50)

    assert sides(flipped, eager, moved, far).excused
    assert not sides(flipped, eager, moved[: ENOUGH - 1], far).excused
    assert not sides(flipped, eager, moved).excused
    assert not sides(decided, eager, moved, far).excused
    assert not sides(many, eager, moved, far).excused
    assert not sides(larger, eager, moved, far).excused
    assert not sides(one, eager, moved, far).excused


def test_one_wrong_element_is_no_row_that_flips() -> None:
    eager = normal(256, 32)
    moved = [eager.clone() for _ in range(6)]
    wrong = eager.clone()
    wrong[100, 3] += 1.0

    assert sides(wrong, eager, moved).why == "1 elements are off where eager never is"


def judged_runs(
    compiled: torch.Tensor, eager: torch.Tensor, moved: list[torch.Tensor], gold: torch.Tensor | None = None
) -> list[str]:
    tolerance = Tolerance(method="fp64", rtol=None, atol=None, precision=None)
    runs = [Run(groups={"output": snapshot(each, at="output")}) for each in (eager, compiled, *moved)]
    reference = Run(groups={"output": snapshot(eager.double() if gold is None else gold, at="output")})
    found = judged(Runs(eager=runs[0], compiled=runs[1], gold=reference, moved=runs[2:]), tolerance)
    return [each.kind for each in found.numerics.differences]


@pytest.mark.parametrize("value", [torch.nan, torch.inf], ids=["nan", "inf"])
def test_what_is_not_finite_in_compiled_alone_is_never_excused(value: float) -> None:
    eager = normal(8, 8, dtype=torch.float32)
    moved = [100 * normal(8, 8, seed=seed, dtype=torch.float32) for seed in range(6)]
    compiled = eager.clone()
    compiled[2, 2] = value
    overflown = [each.clone() for each in moved]
    overflown[3][2, 2] = value

    assert judged_runs(compiled, eager, moved) == ["nan"]
    assert judged_runs(compiled, eager, overflown) == []


def test_an_index_is_excused_where_eager_chooses_it_too() -> None:
    eager, other, third = torch.tensor([3, 5, 7]), torch.tensor([3, 6, 7]), torch.tensor([3, 8, 7])

    assert judged_runs(other, eager, [eager, other]) == []
    assert judged_runs(third, eager, [eager, other]) == ["value"]


# Bias


def looked(
    compiled: torch.Tensor,
    eager: torch.Tensor,
    gold: torch.Tensor,
    moved: list[torch.Tensor] | None = None,
    dtype: torch.dtype = torch.bfloat16,
    far: int = 0,
) -> Looked:
    """What bias is looked for in; the last so many of the runs are far ones."""
    steps = [1] * (len(moved or ()) - far) + [noise_runs.FAR_STEPS] * far
    return Looked(
        compiled=compiled.double(),
        eager=eager.double(),
        reference=gold,
        counts=torch.ones_like(gold, dtype=torch.bool),
        size=float(gold.square().mean().sqrt()),
        least=least_of(dtype),
        step=step_of(dtype, dtype),
        moved=[each.double() for each in moved or ()],
        steps=steps,
    )


def noisy(gold: torch.Tensor, share: float, seed: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return (gold + share * normal(*gold.shape, seed=1000 + seed)).to(dtype)


@pytest.mark.parametrize("shape", [(256,), (32, 64), (2, 16, 64)], ids=str)
@pytest.mark.parametrize(
    ("dtype", "factor", "share"),
    [(torch.bfloat16, 1.01, 0.004), (torch.float32, 1.001, 1e-4)],
    ids=["one-percent-in-bfloat16", "one-in-a-thousand-in-float32"],
)
def test_a_factor_below_the_noise_of_each_element_is_found(
    shape: tuple[int, ...], dtype: torch.dtype, factor: float, share: float
) -> None:
    found = 0
    for seed in range(100):
        gold = normal(*shape, seed=seed)
        eager, compiled = (noisy(gold, share, 2 * seed + each, dtype) for each in range(2))
        moved = [eager + noisy(gold, share, 7 * seed + each, dtype) - gold.to(dtype) for each in range(16)]
        bias = find_bias(looked((compiled * factor).to(dtype), eager, gold, moved, dtype))
        found += bias is not None

    assert found >= 99


def test_of_more_rows_one_is_further_off_by_chance() -> None:
    assert [round(beyond_noise(among), 2) for among in (0, KNOWN, 10 * KNOWN, 1000 * KNOWN)] == [3.5, 3.5, 4.07, 5.04]
    assert [slices_of(shape) for shape in ((), (9,), (8, 16), (4096, 8192), (4, 2))] == [1, 1, 25, 4097, 1]


@pytest.mark.parametrize(("factor", "among", "is_found"), [(1.048, 1, 1), (1.048, 1 << 24, 0), (1.1, 1 << 24, 1)])
def test_a_row_is_held_to_how_many_there_are(factor: float, among: int, is_found: int) -> None:
    """Its factor scatters by a hundredth from run to run, and is off by 4.8 or by 10 of them."""
    gold = normal(8, 512, seed=1)
    moved = [gold * (1 + 0.01 * normal(8, 1, seed=each)) for each in range(16)]
    compiled = gold.clone()
    compiled[3] *= factor

    found = find_bias(replace(looked(compiled, gold, gold, moved), among=among))

    assert (found is not None) == is_found


@pytest.mark.parametrize(("off", "among"), [(0.0, 1 + 8 + 512), (0.01, 1 + 8 + 512 + 2 * (1 + 64 + 16))])
def test_a_row_is_not_hidden_behind_rows_that_are_the_same(
    off: float, among: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is off by chance where all bits are eager's, as in a table that no step changes."""
    seen: list[int] = []
    monkeypatch.setattr(explained, "find_bias", lambda asked: seen.append(asked.among))
    gold, table = normal(8, 512, seed=1), normal(64, 16, seed=2)

    def run(value: torch.Tensor, beside: torch.Tensor) -> Run:
        return Run(groups={"output": snapshot({"row": value, "tables": [beside, beside + 1]}, at="output")})

    low, same = gold.bfloat16(), table.bfloat16()
    eager, compiled = run(low, same), run(low * 1.01, same * (1 + off))
    tolerance = Tolerance(method="fp64", rtol=None, atol=None, precision=None)
    judged(Runs(eager=eager, compiled=compiled, gold=run(gold, table)), tolerance)

    assert set(seen) == {among}


# The same draws each time: once in some ten thousand, a single element is more than four deviations off.
@settings(max_examples=150, deadline=None, derandomize=True)
@given(
    st.sampled_from([(1,), (5,), (16,), (4, 8), (64,), (3, 50), (2, 8, 8), (128, 16)]),
    st.floats(1e-4, 0.1),
    st.integers(0, 1 << 30),
    st.sampled_from([torch.bfloat16, torch.float16, torch.float32]),
)
def test_scatter_is_no_bias(shape: tuple[int, ...], share: float, seed: int, dtype: torch.dtype) -> None:
    gold = normal(*shape, seed=seed)
    eager, compiled = (noisy(gold, share, seed + each, dtype) for each in range(2))
    moved = [eager + noisy(gold, share, seed + each, dtype) - gold.to(dtype) for each in range(2, 18)]

    assert find_bias(looked(compiled, eager, gold, moved, dtype)) is None


def test_nearer_to_the_reference_than_eager_is_no_bias() -> None:
    gold = normal(64, 64)

    assert find_bias(looked(gold, gold * 1.02, gold)) is None
    assert find_bias(looked(gold * 1.019, gold * 1.02, gold)) is None
    assert find_bias(looked(gold * 1.03, gold * 1.02, gold)) is not None


def test_a_row_a_channel_and_an_offset_are_named() -> None:
    gold = normal(40, 64)
    eager = noisy(gold, 0.002, 1)
    row, channel, offset = (noisy(gold, 0.002, 2).double() for _ in range(3))
    row[7] *= 1.02
    channel[:, 9] *= 1.02
    offset += 0.02

    found = [str(find_bias(looked(each, eager, gold))) for each in (row, channel, offset)]

    assert "over 64 elements at 7 of dimension 0; " in found[0]
    assert "over 40 elements at 9 of dimension 1; " in found[1]
    assert found[0].startswith("a factor of 1.0")
    assert found[2].startswith("an offset of 0.0199 over 2560 elements; eager's own ")


def test_a_bias_that_eagers_runs_have_too_is_noise() -> None:
    gold = normal(64, 64)
    eager = noisy(gold, 0.002, 1)
    moved = [eager.double() * (1 + 0.01 * normal(1, seed=seed).item()) for seed in range(16)]

    assert find_bias(looked(gold * 1.015, eager, gold)) is not None
    assert find_bias(looked(gold * 1.015, eager, gold, moved)) is None


def test_noise_that_scatters_further_than_compiled_excuses_less() -> None:
    gold = normal(64, 64)
    eager, compiled = noisy(gold, 0.002, 1), noisy(gold, 0.002, 2)
    moved = [noisy(eager.double() * (1 + 0.003 * normal(1, seed=seed).item()), 0.01, seed) for seed in range(3, 19)]

    assert find_bias(looked(compiled, eager, gold, moved)) is None
    assert find_bias(looked(compiled * 1.01, eager, gold, moved)) is not None
    # What scatters as far as a run may be off as far as a run, and a single number shows no scatter.
    assert find_bias(looked(noisy(gold, 0.01, 2) * 1.01, eager, gold, moved)) is None
    number = torch.tensor([0.5], dtype=torch.float64)
    alone = [number * (1 + 0.003 * normal(1, seed=seed).item()) for seed in range(16)]
    assert find_bias(looked(number * 1.006, number, number, alone)) is None


def test_a_bias_that_a_close_choice_makes_is_noise() -> None:
    gold = normal(64, 64)
    eager = noisy(gold, 0.002, 1)
    near = [noisy(gold, 0.002, seed) for seed in range(2, 18)]
    without, one_token_less = noisy(gold, 0.02, 18), noisy(gold * 0.9, 0.02, 19)

    assert find_bias(looked(gold * 0.92, eager, gold, [*near, without], far=1)) is not None
    assert find_bias(looked(gold * 0.92, eager, gold, [*near, without, one_token_less], far=2)) is None
    assert find_bias(looked(gold * 0.88, eager, gold, [*near, without, one_token_less], far=2)) is not None


def test_what_larger_steps_come_to_is_no_choice() -> None:
    gold = normal(64, 64)
    eager = noisy(gold, 0.002, 1)
    near = [eager.double() * (1 + 0.002 * normal(1, seed=seed).clamp(-1, 1).item()) for seed in range(16)]
    far = [eager.double() * (1 + 0.002 * noise_runs.FAR_STEPS * each) for each in (-1, 1)]

    assert find_bias(looked(gold * 1.02, eager, gold, [*near, *far], far=2)) is not None


# Whole lanes


class Routed(nn.Module):
    """Each row goes to one of two layers, by a difference that is rounding for half of them."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(16, 16), nn.Linear(16, 16)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores = torch.stack([(x * 1.1).sum(-1), (x.flip(-1) * 1.1).sum(-1)], dim=-1)
        which = scores.argmax(-1)
        first, second = (layer(x) for layer in self.layers)
        return torch.where((which == 0).unsqueeze(-1), first, second)


def by_the_other_order(module: Routed) -> Callable[[torch.Tensor], torch.Tensor]:
    """Sums the other way round, which rounds otherwise."""

    def forward(x: torch.Tensor) -> torch.Tensor:
        scores = torch.stack([(x.flip(-1) * 1.1).sum(-1), (x * 1.1).sum(-1)], dim=-1)
        which = 1 - scores.argmax(-1)
        first, second = (layer(x) for layer in module.layers)
        return torch.where((which == 0).unsqueeze(-1), first, second)

    return forward


def note_of(entry: Any) -> str:
    return str(entry.measurement.numerics.note)


def test_a_choice_between_equals_may_fall_otherwise() -> None:
    def body(compile_lane: CompileLane) -> None:
        torch.manual_seed(0)
        module = Routed()
        compile_lane.run(
            module, torch.randn(64, 16), compile_with=lambda of: compile_lane.compile(by_the_other_order(of))
        )

    entry = hold(body)

    assert entry.verdict == "held"
    assert "within eager's own noise (6 runs rounded differently): call 0 output by up to " in note_of(entry)
    assert "in which a discrete choice flips: argmax at test_noise.py:" in note_of(entry)


def by_a_factor(compiled: Callable[..., torch.Tensor], factor: float) -> Callable[..., torch.Tensor]:
    def run(*args: Any) -> torch.Tensor:
        right = compiled(*args)
        return (right * factor).to(right.dtype)

    return run


@pytest.mark.parametrize(
    ("dtype", "factor"),
    [(torch.bfloat16, 1.01), (torch.float32, 1.001), (torch.float16, 1.01)],
    ids=["bfloat16", "float32", "float16"],
)
def test_a_small_factor_is_found_in_a_model(dtype: torch.dtype, factor: float) -> None:
    def body(compile_lane: CompileLane) -> None:
        torch.manual_seed(0)
        module = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.LayerNorm(64), nn.Linear(64, 64)).to(dtype)
        compile_lane.run(
            module,
            torch.randn(32, 64, dtype=dtype),
            compile_with=lambda of: by_a_factor(compile_lane.compile(of), factor),
        )

    entry = hold(body, max_eager_ops=9)

    assert [each.name for each in entry.violations] == ["numerics"]


@torch.library.custom_op("tests_of_noise::in_half_precision", mutates_args=())
def in_half_precision(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """A product whose sum is rounded to bfloat16 after every eight of its terms: one operator, to trace in one step."""
    total = torch.zeros(x.shape[0], weight.shape[0], dtype=x.dtype)
    for at in range(0, x.shape[1], 8):
        total = total + x[:, at : at + 8] @ weight[:, at : at + 8].t()
    return total


in_half_precision.register_fake(lambda x, weight: x.new_empty(x.shape[0], weight.shape[0]))


def test_a_sum_that_is_kept_in_half_precision_is_found() -> None:
    def body(compile_lane: CompileLane) -> None:
        torch.manual_seed(0)
        x, weight = torch.randn(8, 2048).bfloat16(), (torch.randn(64, 2048) / 45).bfloat16()
        half = compile_lane.compile(lambda x, weight: in_half_precision(x, weight))
        compile_lane.run(functional.linear, (x, weight), compile_with=lambda _: half)

    entry = hold(body)

    assert [each.name for each in entry.violations] == ["numerics"]


def chaotic(x: torch.Tensor) -> torch.Tensor:
    """One element is a quotient of two roundings."""
    y = x * 1.1
    small = y[0, 0] * 3 - y[0, 0] - y[0, 0] * 2 + 1e-20
    return torch.cat([(y.square().sum() * 1e-3 / small).reshape(1), y.flatten()])


@pytest.mark.parametrize("wrong", [False, True], ids=["right", "wrong"])
def test_a_chaotic_element_hides_no_other(wrong: bool) -> None:
    def compile_with(compile_lane: CompileLane) -> Callable[[torch.Tensor], torch.Tensor]:
        compiled = compile_lane.compile(chaotic)

        def run(x: torch.Tensor) -> torch.Tensor:
            y = compiled(x).clone()
            y[0] *= 1.5
            y[9] += 0.5 if wrong else 0.0
            return y

        return run

    entry = hold(
        lambda lane: lane.run(chaotic, torch.randn(32, 8), compile_with=lambda _: compile_with(lane)), max_eager_ops=9
    )

    assert entry.verdict == ("violated" if wrong else "held")


class WithLoss(nn.Module):
    """A model in bfloat16, whose loss is summed in float32."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(64, 64), nn.Linear(64, 64)

    def forward(self, x: torch.Tensor, of: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(self.second(functional.gelu(self.first(x))).float(), of)


@pytest.mark.parametrize(("factor", "verdict"), [(1.0003, "held"), (1.01, "violated")], ids=["noise", "fault"])
def test_a_loss_in_float32_is_judged_by_the_noise_of_what_it_is_summed_from(factor: float, verdict: str) -> None:
    def body(compile_lane: CompileLane) -> None:
        torch.manual_seed(0)
        compile_lane.run(
            WithLoss().bfloat16(),
            (torch.randn(16, 64, dtype=torch.bfloat16), torch.randint(0, 64, (16,))),
            compile_with=lambda of: by_a_factor(compile_lane.compile(of), factor),
        )

    entry = hold(body, max_eager_ops=9)

    assert entry.verdict == verdict
    if verdict == "held":
        assert note_of(entry).startswith("within eager's own noise (")
    else:
        assert "; eager itself moves by up to " in entry.measurement.numerics.differences[0].detail


def test_state_and_random_numbers_are_put_back_around_noise() -> None:
    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(16, 16)
            self.register_buffer("seen", torch.zeros(16))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.seen += x.mean(0)
            return torch.dropout(self.layer(x), 0.5, True)

    module = Counting()
    before = {name: each.clone() for name, each in module.state_dict().items()}

    entry = hold(
        lambda lane: lane.run(module, torch.randn(8, 16), compile_with=lambda of: by_a_factor(lane.compile(of), 1.001)),
        max_eager_ops=9,
    )

    assert [each.name for each in entry.violations] == ["numerics"]
    assert all(torch.equal(before[name], each) for name, each in module.state_dict().items())


# What somebody else found: results that need no rounding, and rows that no choice is close for.


def put(at: Any, value: Any) -> Callable[[torch.Tensor], torch.Tensor]:
    def wrong(out: torch.Tensor) -> torch.Tensor:
        out[at] = value
        return out

    return wrong


ONES = torch.ones(4, 32)
EXACT_PROGRAMS = [
    pytest.param(lambda m: (m.cumsum(-1) - 1).long(), ONES, (0, 8), 7, id="positions"),
    pytest.param(lambda m: m.sum(-1) == 32, ONES, 0, False, id="a count compared"),
    pytest.param(lambda m: torch.where((m + m) == 2, m, 0.0), ONES, 3, 0.0, id="a mask"),
    pytest.param(
        lambda i: torch.div(i.float(), 4, rounding_mode="floor"), torch.arange(64), 16, 3.0, id="a rounded quotient"
    ),
    pytest.param(lambda m: m.sum(-1).long(), ONES, 2, 31, id="a length"),
]


@pytest.mark.parametrize(("program", "given", "at", "value"), EXACT_PROGRAMS)
def test_what_needs_no_rounding_has_no_noise(program: Any, given: torch.Tensor, at: Any, value: Any) -> None:
    lane = spoiled(put(at, value))

    entry = hold(lambda compile_lane: compile_lane.run(program, (given,)), lane=lane)

    assert entry.verdict == "violated", measured(entry).numerics


@pytest.mark.parametrize(
    ("of", "to"),
    [
        (torch.float16, torch.float32),
        (torch.bfloat16, torch.float32),
        (torch.float8_e4m3fn, torch.float32),
        (torch.float8_e4m3fn, torch.bfloat16),
        (torch.float8_e5m2, torch.float16),
        (torch.float32, torch.float64),
        (torch.float32, torch.complex128),
        (torch.complex64, torch.complex128),
    ],
)
def test_a_wider_format_has_each_number_as_it_is(of: torch.dtype, to: torch.dtype) -> None:
    x = normal(50, 50).to(of)

    with rounding():
        moved = x.to(to)

    assert torch.equal(moved, x.to(to))


@pytest.mark.parametrize(("of", "to"), [(torch.float16, torch.bfloat16), (torch.bfloat16, torch.float16)])
def test_neither_half_format_has_the_numbers_of_the_other(of: torch.dtype, to: torch.dtype) -> None:
    x = normal(50, 50).to(of) * 1e-5

    with rounding():
        moved = x.to(to)

    assert not torch.equal(moved, x.to(to))


@pytest.mark.parametrize("to", [torch.float16, torch.bfloat16, torch.float32])
def test_a_narrower_format_rounds(to: torch.dtype) -> None:
    x = normal(50, 50)

    with rounding():
        moved = x.to(to)

    assert not torch.equal(moved, x.to(to))


def test_what_float64_computes_is_not_excused_by_a_float32_input() -> None:
    lane = spoiled(lambda out: out.float().double())

    entry = hold(
        lambda compile_lane: compile_lane.run(lambda x: x.double() * 3.14159, (normal(64).float(),)), lane=lane
    )

    assert entry.verdict == "violated", measured(entry).numerics
    (found,) = measured(entry).numerics.differences
    compiled, eager = (found.detail.split(f"{side} ")[1].split(",")[0].split(";")[0] for side in ("compiled", "eager"))
    assert compiled != eager


@pytest.mark.parametrize("limits", [{"numerics": "bitwise"}, {"rtol": 0.0, "atol": 0.0}], ids=["bitwise", "given"])
def test_a_number_of_pythons_is_kept_to_as_it_stands(limits: dict[str, Any]) -> None:
    scores = normal(64).to(torch.bfloat16)
    other = int(scores.topk(2).indices[1])
    lane = spoiled(lambda out: torch.full_like(out, other))

    entry = hold(
        lambda compile_lane: compile_lane.run(lambda x: int((x * 1.001).argmax()), (scores,)),
        lane=lane,
        max_graph_breaks=1,
        **limits,
    )

    assert entry.verdict == "violated", measured(entry).numerics


class Experts(nn.Module):
    """Two of eight experts for each token, in bfloat16."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(32, 8, bias=False)
        self.experts = nn.ModuleList(nn.Linear(32, 32, bias=False) for _ in range(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weights, chosen = self.router(x).softmax(-1).topk(2, dim=-1)
        every = torch.stack([expert(x) for expert in self.experts], dim=1)
        return (every.gather(1, chosen[..., None].expand(-1, -1, 32)) * weights[..., None]).sum(1)


# In the third, noise moves each element of that row by more than the rule allows.
@pytest.mark.parametrize("seed", range(4))
def test_a_row_that_is_routed_without_doubt_is_not_excused(seed: int) -> None:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model, x = Experts().to(torch.bfloat16), torch.randn(256, 32).to(torch.bfloat16)
    with torch.no_grad():
        scores = model.router(x).float().topk(3, dim=-1).values
    decided = int((scores[:, 1] - scores[:, 2]).argmax())
    lane = spoiled(put(decided, 0.0))

    with torch.no_grad():
        entry = hold(lambda compile_lane: compile_lane.run(model, (x,)), lane=lane)

    assert entry.verdict == "violated", measured(entry).numerics


def test_integers_of_float64_are_as_good_as_eagers() -> None:
    def quantized(x: torch.Tensor) -> torch.Tensor:
        return (x.sigmoid() * x * 255).round().to(torch.int32)

    given = normal(64, 64).to(torch.bfloat16)
    exact = quantized(given.double()).to(torch.int32)
    lane = spoiled(lambda out: exact.clone())

    entry = hold(lambda compile_lane: compile_lane.run(quantized, (given,)), lane=lane)

    assert entry.verdict == "held", measured(entry).numerics


def test_a_program_that_never_ends_under_noise_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(noise_runs, "SECONDS", 0.3)
    monkeypatch.setattr(noise_runs, "TIMES", 0.0)

    def waits(x: torch.Tensor) -> torch.Tensor:
        y = x.sin()
        while not torch.equal(x.sin() / 3, x.sin() / 3):
            y = y + 1
        return y

    entry = hold(
        lambda compile_lane: compile_lane.run(waits, (normal(256),)),
        lane=spoiled(put(3, 2.0)),
        max_graph_breaks=9,
        max_recompiles=9,
        max_eager_frames=9,
        max_eager_ops=99,
    )

    assert entry.verdict == "violated"
    assert "not finished after 0 s" in str(measured(entry).numerics)


def judged_with(
    sides: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    moved: Sequence[torch.Tensor],
    steps: Sequence[int],
    *,
    size: float,
    group_size: float,
    bias: bool = True,
) -> Finding:
    """What is found of one tensor of bfloat16, compiled, eager and float64's, with eager's runs in `moved`."""
    compiled, eager, gold = sides
    values = Values(
        at="output",
        kind="value",
        compiled=compiled,
        eager=eager,
        again=eager,
        gold=gold,
        slack=torch.zeros((), dtype=torch.float64),
        size=size,
        group_size=group_size,
        lowest=torch.bfloat16,
        moved=tuple(moved),
        steps=tuple(steps),
    )
    return judge_with_noise(values, Tolerance(method="fp64", rtol=None, atol=None, precision=None, bias=bias))


class AnExpert:
    """The gradient of one expert in bfloat16: a sum over tokens, of which the router gives it one more or one less.

    It is small beside that of another parameter, so that rounding of what is as large as that one would be more.
    """

    def __init__(self, seed: int) -> None:
        self._random = torch.Generator().manual_seed(seed)
        self._tokens = [torch.outer(self._normal(32), self._normal(32)) for _ in range(8)]

    def _normal(self, *shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=self._random, dtype=torch.float64)

    def run(self, tokens: int) -> torch.Tensor:
        total = sum(self._tokens[:tokens], torch.zeros(()))
        return (total * (1 + self._normal(32, 32) / 512)).to(torch.bfloat16)

    def judged(self, change: Callable[[torch.Tensor], torch.Tensor], *, runs: int, bias: bool = True) -> Finding:
        gold = sum(self._tokens[:7], torch.zeros(()))
        eager = self.run(8)
        sides = (change(self.run(7)), eager, gold)
        moved = [self.run(7 + at % 2) for at in range(runs)]
        return judged_with(sides, moved, (1,) * runs, size=size_of(gold), group_size=30 * size_of(gold), bias=bias)


@pytest.mark.parametrize("seed", range(6))
def test_a_gradient_that_a_choice_makes_unclear_is_not_nothing(seed: int) -> None:
    expert = AnExpert(seed)

    for runs in (0, 16):
        assert expert.judged(torch.clone, runs=runs).differences == ()
        for wrong in (torch.zeros_like, lambda data: data / 2, lambda data: data.roll(1, 0)):
            assert expert.judged(wrong, runs=runs).differences, (runs, wrong)


def test_where_eager_cannot_be_run_again_an_unclear_gradient_has_the_floor_of_what_cancels() -> None:
    assert AnExpert(0).judged(torch.zeros_like, runs=0, bias=False).differences == ()


class Codes:
    """Thousands of codes, each rounded from a number that bfloat16 leaves open by about one."""

    def __init__(self, seed: int) -> None:
        self._random = torch.Generator().manual_seed(seed)
        self._numbers = 400 * torch.randn(4096, generator=self._random, dtype=torch.float64)

    def run(self, steps: int = 1) -> torch.Tensor:
        noise = torch.randn(4096, generator=self._random, dtype=torch.float64)
        return (self._numbers * (1 + steps * noise / 700)).round().to(torch.int32)

    def judged(self, change: Callable[[torch.Tensor], torch.Tensor]) -> Finding:
        """Of a run like eager's with a change in it."""
        steps = (1,) * 6 + (3,) * 10
        moved = tuple(self.run(each) for each in steps)
        gold, eager = self._numbers.round().to(torch.int32), self.run()
        # Where all that is known agrees, a wrong one is nobody's.
        self.agreed = torch.stack([gold, eager, *moved]).double().std(0, correction=0).argmin()
        return judged_with((change(self.run()), eager, gold), moved, steps, size=1.0, group_size=1.0)


@pytest.mark.parametrize("seed", range(6))
def test_codes_that_are_nobodys_are_as_many_as_in_eagers_runs(seed: int) -> None:
    codes = Codes(seed)

    def one_is_wrong(data: torch.Tensor) -> torch.Tensor:
        return data.index_fill(0, codes.agreed, 99_999)

    assert codes.judged(torch.clone).differences == ()
    for wrong in (
        one_is_wrong,
        lambda data: data + 1,
        lambda data: (data * 1.01).round().to(data.dtype),
        torch.zeros_like,
    ):
        assert codes.judged(wrong).differences
