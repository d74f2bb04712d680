"""What a whole tensor's difference looks like, in words."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_compilecontract.measure.numerics.pattern import pattern

pytestmark = pytest.mark.torch

GIVEN = torch.randn(8, 16, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    ("compiled", "told"),
    [
        pytest.param(GIVEN * 1.01, "1.01 times float64 in all elements", id="factor"),
        pytest.param(-GIVEN, "-1 times float64 in all elements", id="sign"),
        pytest.param(GIVEN * 0, "0 in all elements", id="zeros"),
        pytest.param(GIVEN + 0.25, "float64 + 0.25 in all elements", id="offset"),
        pytest.param(GIVEN - 0.25, "float64 - 0.25 in all elements", id="negative-offset"),
        pytest.param(GIVEN.roll(1, 0), "the values of float64 in another order", id="order"),
        pytest.param(GIVEN, "", id="equal"),
        pytest.param(GIVEN * torch.linspace(0.9, 1.1, 16), "", id="no-one-factor"),
    ],
)
def test_a_simple_fault_is_said_in_words(compiled: torch.Tensor, told: str) -> None:
    assert pattern(compiled, GIVEN, "float64") == told


def test_what_is_not_finite_is_left_out() -> None:
    reference, compiled = GIVEN.clone(), GIVEN * 1.01
    reference[0, 0], compiled[1, 1] = float("inf"), float("nan")

    assert pattern(compiled, reference, "eager") == "1.01 times eager in all elements"


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 1 << 30), st.sampled_from([(64,), (8, 16), (2, 3, 40)]))
def test_scatter_and_one_wrong_element_are_no_pattern(seed: int, shape: tuple[int, ...]) -> None:
    rng = torch.Generator().manual_seed(seed)
    reference = torch.randn(shape, generator=rng)
    one = reference.clone()
    one.view(-1)[seed % one.numel()] += 0.01

    assert pattern(reference + 0.01 * torch.randn(shape, generator=rng), reference, "float64") == ""
    assert pattern(one, reference, "float64") == ""
