"""Explained: a tensor judged by the rule, and the rule's findings judged by eager's own noise. Pure.

The rule is quick, and what it accepts is correct. What it rejects may be noise: then eager is run again with every
result rounded differently, and compiled may be as far off as eager moves. In addition, biases that are too small for
the rule are searched for.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from pytest_compilecontract.facts.measurement import Difference

from .bias import Bias, Looked, find_bias, least_of, may_be_biased, spread, step_of
from .noise import (
    ENOUGH,
    FURTHER,
    HOPELESS,
    Noise,
    Sides,
    chosen_alike,
    chosen_as_often,
    finite_unlike,
    held_to_noise,
)
from .rule import (
    Finding,
    Tolerance,
    Values,
    allowed_by,
    difference,
    is_float,
    judge_values,
    widened,
    with_reference,
)
from .together import broadcast


def judge_with_noise(values: Values, tolerance: Tolerance) -> Finding:
    """What the rule finds and the noise runs in `moved` do not explain; a bias is a difference, too.

    Given tolerances, and "bitwise", are applied without noise.
    """
    finding = judge_values(values, tolerance)
    near, _ = _near_and_far(values)
    if tolerance.given or tolerance.method == "bitwise" or finding.unstable:
        return finding
    if not is_float(values.eager) or not is_float(values.compiled):
        # What float64 chooses is what eager would, if it did not round.
        known = (values.eager, values.reference)
        if not finding.differences or chosen_alike(values.compiled, known):
            return replace(finding, differences=(), hopeful=True)
        if chosen_alike(near.compiled, (*known, *near.moved)) or (
            len(near.moved) >= ENOUGH and chosen_as_often(near.compiled, known, near.moved, near.steps)
        ):
            return replace(finding, differences=(), noise="chooses differently")
        return replace(finding, hopeful=True)
    held, _ = with_reference(values)
    noise = _noise(held, tolerance) if values.moved else None
    kept = [_with(each, noise, near) for each in finding.differences if not _is_explained(each, noise, near)]
    bias = _bias(held, tolerance, noise) if tolerance.bias and not kept else None
    if bias is not None:
        kept.append(_told(values, bias))
    explained = noise is not None and finding.differences and not kept
    return replace(
        finding,
        hopeful=_may_be_explained(noise, bias),
        hopeless=noise is not None and any(_is_hopeless(each, noise, values) for each in kept),
        differences=tuple(kept),
        noise=f"by up to {noise.moved:.1e}" if noise is not None and explained else "",
    )


def _near_and_far(values: Values) -> tuple[Values, tuple[torch.Tensor, ...]]:
    """The values with the runs that show how far eager moves, and the runs that only show which choices are close."""
    runs = list(zip(values.moved, values.steps, strict=True))
    near = [(each, steps) for each, steps in runs if steps <= FURTHER]
    far = tuple(each for each, steps in runs if steps > FURTHER)
    return replace(values, moved=tuple(each for each, _ in near), steps=tuple(steps for _, steps in near)), far


def _noise(values: Values, tolerance: Tolerance) -> Noise:
    values, far = _near_and_far(values)
    allowed = widened(values, allowed_by(values, tolerance)).by_noise
    sides = Sides(
        compiled=values.compiled,
        eager=values.eager,
        reference=values.reference,
        slack=values.slack,
        moved=values.moved,
        steps=values.steps,
        far=far,
    )
    return held_to_noise(sides, lambda e, g: allowed.limit((e - g).abs(), g), allowed.rms)


def _is_explained(found: Difference, noise: Noise | None, values: Values) -> bool:
    if noise is None:
        return False
    if found.kind == "nan":
        return not finite_unlike(values.eager, values.compiled, values.moved)
    return noise.excused


def _is_hopeless(found: Difference, noise: Noise, values: Values) -> bool:
    """Whether no more noise runs would explain what these did not."""
    if found.kind != "nan":
        return noise.hopeless
    far = any(steps > FURTHER for steps in values.steps)
    return far and finite_unlike(values.eager, values.compiled, values.moved) > HOPELESS


def _with(found: Difference, noise: Noise | None, values: Values) -> Difference:
    """The finding, with how far eager itself moves."""
    if noise is None or found.kind == "nan":
        return found
    runs = len(values.moved)
    said = f"; eager itself moves by up to {noise.moved:.1e} in {runs} runs that are rounded differently: {noise.why}"
    return replace(found, detail=found.detail + said)


def _may_be_explained(noise: Noise | None, bias: Bias | None) -> bool:
    if bias is not None:
        return bias.noise is None or bias.hopeful
    return noise is None or noise.hopeful


def _bias(values: Values, tolerance: Tolerance, noise: Noise | None) -> Bias | None:
    """A systematic difference among the elements that are also judged one by one."""
    part = spread(values.compiled.shape)
    sides = [each[part] for each in (values.compiled, values.eager, values.reference, *values.moved)]
    compiled, eager, reference, *moved = _real(*sides)
    own = eager - reference
    off = torch.nan_to_num(compiled - reference, nan=0.0, posinf=0.0, neginf=0.0)
    if values.slack.any():
        (slack,) = _real(values.slack.expand(values.compiled.shape)[part].to(off.device))
        off = off.sign() * (off.abs() - slack).clamp(min=0.0)
        compiled = torch.where(compiled.isfinite(), reference + off, compiled)
    if not off.numel() or not may_be_biased(float(off.abs().max()), values.size, values.lowest):
        return None
    allowed = allowed_by(values, tolerance)
    counts = allowed.ordinary(own.abs(), reference)
    for each in (compiled, eager, reference, *moved):
        counts = counts & each.isfinite()
    if noise is not None:
        parts = (2,) if counts.dim() > values.compiled.dim() else ()
        counts = counts & ~noise.loud.reshape((*values.compiled.shape, *parts))[part]
    return find_bias(
        Looked(
            compiled=compiled,
            eager=eager,
            reference=reference,
            counts=counts,
            size=values.size,
            least=least_of(values.lowest),
            step=step_of(values.eager.dtype, values.lowest),
            floor=allowed.absolute,
            whole=allowed.unclear is not None,
            moved=moved,
            steps=values.steps,
            among=tolerance.among,
        )
    )


def _real(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Tensors of one shape in float64; a complex one has its two parts as a last dimension."""
    parts = [torch.view_as_real(each.to(torch.complex128)) if each.is_complex() else each for each in tensors]
    return tuple(each.to(torch.float64) for each in broadcast(*parts))


def _told(values: Values, bias: Bias) -> Difference:
    return difference(values.at, values.kind, f"systematically off, by {bias} (against {values.named})").differences[0]
