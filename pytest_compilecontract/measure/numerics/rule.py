"""The rule: how far one tensor of a compiled run may be from eager's and from the float64 reference.

It is quick, and what it accepts is correct. What it rejects is judged by eager's own noise (`explained`), which needs
none of the constants below. They cover rounding inside a single operator, which noise runs cannot vary, and avoid
measuring noise that is known.

It is that of PyTorch's own benchmarks (`same` in torch/_dynamo/utils.py): compiled may be no further from a float64
reference than a multiple of eager's own distance, plus a floor. Theirs is a mean over each tensor, with an absolute
floor. Here it holds for every element as well, and the floor follows the size of the values, so that one wrong element
in a million and a doubled gradient of any size are found.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

import torch

from pytest_compilecontract.facts.measurement import Difference

from .pattern import pattern
from .together import broadcast, chunk_of, kth, level

Method = Literal["fp64", "allclose", "bitwise"]

# Times eager's own error. `same` in torch/_dynamo/utils.py takes 2, and 3 for half precision and for small tensors:
# there eager's error is one draw of a noise of which compiled's is another.
MULTIPLE = 3.0

# Kept for the order of a sum, which is inside of an operator, and for functions that a compiler approximates.
# The floor, as a share of the larger of the element and the tensor's RMS. It carries where eager's own error says
# little: a loss is one element, and eager sums a BatchNorm's gradient in double where Inductor does in float32. Over
# 12 small models, two steps, 6 seeds, Inductor on a CPU, the largest share needed was 6.6e-5 in float32 (gradients
# before and of a BatchNorm), 2.2e-5 under bfloat16 autocast and 0 in bfloat16. In float16 it was 0.31, in a convolution
# trained without loss scaling, whose gradients underflow: that alarms. `same` takes 1e-4, for values of size one.
FLOOR: dict[torch.dtype, float] = {
    torch.float64: 1e-12,
    torch.float32: 2e-4,
    torch.float16: 2e-3,
    torch.bfloat16: 2e-2,
}

# The floor of the RMS over a tensor, as a share of FLOOR. Rounding averages out over a tensor; a factor does not.
# The same models needed 1.1e-5 in float32, without one whose gradients reach 1e15 (see MASK).
RMS_SHARE = 0.25

# Eager's largest error counts for all elements up to so many times that of MOST of those that have one: six deviates of
# a normal distribution. Where a few rows went another way, theirs is no measure for the others.
TAIL = 3.0
MOST = 0.95
TELLING = 20  # elements with an error, without which there is no telling

# Kept so that what cancels, which is in every model with BatchNorm or attention, costs no runs.
# A tensor that eager has with an error of more than this share is rounding noise of larger numbers that cancel (the
# gradient of a key's bias, of a convolution's bias before BatchNorm). Its floor is GRAIN, as a share of the largest
# tensor's RMS in its group: 90, 84, 16 and 8 steps of the precision. The same models needed 16 in float32 and none in
# the others. In float32 a hundredth is 100 000 steps, which nothing but cancelling takes: an EfficientNet's weight of a
# BatchNorm before another has a gradient of 1e-7 that eager has with 2.6 % of error, and Inductor with 16 %.
CANCELLED: dict[torch.dtype, float] = {
    torch.float64: 0.01,
    torch.float32: 0.01,
    torch.float16: 0.1,
    torch.bfloat16: 0.1,
}
GRAIN: dict[torch.dtype, float] = {
    torch.float64: 2e-14,
    torch.float32: 1e-5,
    torch.float16: 1.6e-2,
    torch.bfloat16: 6e-2,
}

# In half precision a choice that falls otherwise takes a tenth as well, as that of a token's expert: such a tensor is
# unclear. Eager's error is no measure of it then, nor is a floor that is larger than many a gradient: it holds where
# compiled went one of the two ways, eager's or the reference's, up to that share, and else where eager's noise says so.
# What cancels has an error larger than itself.
UNCLEAR = (torch.float16, torch.bfloat16)

# A group whose largest tensor is smaller than what went in by this share is nothing (`x - x`) up to float64's rounding.
# Then the size of what went in stands for the size of the group.
NOTHING = 1e-12

# Kept to tell a reference from none, before anything is compared with it.
# The largest error, as a share of the element or the RMS, that rounding explains. Where eager is further than that from
# float64 it went another way: a discrete choice flipped, or, in more than FLIPPED of the elements, the float64 run
# computed something else (other random numbers) and is no reference.
PLAUSIBLE: dict[torch.dtype, float] = {
    torch.float64: 1e-6,
    torch.float32: 1e-2,
    torch.float16: 0.25,
    torch.bfloat16: 0.5,
}
FLIPPED = 0.05
FAR_GRAIN = 64.0  # times GRAIN: the same for what cancels

# Kept for the same reason: every model that Adam trains has such elements.
# An optimizer that divides by the size of the gradient (Adam) makes a whole step of the sign of a gradient that is
# rounding noise. An element of a parameter may be off by twice what the steps moved any parameter, times this multiple
# of the share of its gradient that may be noise, which ends at 1.
DOUBT = 2.0

# An element this many times larger than the tenth percentile, and larger than MASK_LEAST, is a mask (-1e9 beside
# logits), not a value to scale the others by.
MASK = 1e4
MASK_LEAST = 5e3
SAMPLE = 100_000  # elements that the percentile is taken from


@dataclass(frozen=True, kw_only=True, slots=True)
class Tolerance:
    """What is asked for, and what is known of the program: `among` is how many rows and channels it has."""

    method: Method
    rtol: float | None
    atol: float | None
    precision: torch.dtype | None
    tf32: bool = False
    reference: str = "float64"
    bias: bool = True
    among: int = 0

    @property
    def given(self) -> bool:
        return self.rtol is not None or self.atol is not None


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """The result for one place. `zeros` are those with the opposite sign of eager's.

    `noise` is how far eager itself moves there, if that explains compiled. `hopeful`: if a few noise runs do not
    explain the differences, more may. `hopeless`: much is so far off that no more runs can, unless a choice flips.
    """

    at: str
    compared: bool = False
    differences: tuple[Difference, ...] = ()
    error: float | None = None
    eager_error: float | None = None
    zeros: int = 0
    unstable: str = ""
    without_gold: str = ""
    unread: str = ""
    noise: str = ""
    hopeful: bool = False
    hopeless: bool = False


def difference(at: str, kind: str, detail: str) -> Finding:
    return Finding(at=at, differences=(Difference(at=at, kind=kind, detail=detail),))


def turned_zeros(compiled: torch.Tensor, eager: torch.Tensor) -> int:
    """The number of elements that are 0 in both with different signs, which Inductor does not promise to keep."""
    if not eager.is_floating_point() or not compiled.is_floating_point():
        return 0
    # PyTorch reads no sign of a float of one byte.
    eager, compiled = (each.to(torch.float32) if each.itemsize == 1 else each for each in (eager, compiled))
    turned = (eager == 0) & (compiled == 0) & (torch.signbit(eager) != torch.signbit(compiled))
    return int(turned.sum())


@dataclass(frozen=True, kw_only=True, slots=True)
class Values:
    """One tensor's values in each run.

    `lowest` is the coarsest dtype on the way to it. `slack` is an additional error allowed for each element. `moved`
    are its values in noise runs, by this many `steps`. `named` is the name of the reference.
    """

    at: str
    kind: str
    compiled: torch.Tensor
    eager: torch.Tensor
    again: torch.Tensor
    gold: torch.Tensor | None
    slack: torch.Tensor
    size: float
    group_size: float
    lowest: torch.dtype
    moved: tuple[torch.Tensor, ...] = ()
    steps: tuple[int, ...] = ()
    named: str = "float64"

    @property
    def reference(self) -> torch.Tensor:
        return self.eager if self.gold is None else self.gold

    @property
    def grain(self) -> float:
        """The rounding error that cancellation of numbers as large as the group's largest tensor leaves."""
        return GRAIN.get(self.lowest, GRAIN[torch.bfloat16]) * self.group_size

    @property
    def far(self) -> float:
        """The largest relative error that rounding explains; `far_least` is an absolute part."""
        return PLAUSIBLE.get(self.lowest, PLAUSIBLE[torch.bfloat16])

    @property
    def far_least(self) -> float:
        return self.far * self.size + FAR_GRAIN * self.grain


@dataclass(frozen=True, kw_only=True, slots=True)
class Allowed:
    """The allowed error of the elements of one tensor: `multiple` times eager's error, plus the floor.

    `own` is eager's largest error among the ordinary elements, `own_rms` its RMS there. An element is not ordinary if
    it is a mask, or if eager took another path than float64; then eager's error at that element is used, as it is if
    the largest error is far larger than most. If eager's error is no measure, `unclear` is the allowed RMS distance
    from the nearer of eager and the reference.
    """

    multiple: float
    own: float
    own_rms: float
    relative: float
    size: float
    absolute: float
    rms_floor: float
    mask_above: float
    far: float
    far_least: float
    unclear: float | None = None

    def floor(self, reference: torch.Tensor) -> torch.Tensor:
        return self.relative * reference.abs().clamp(min=self.size) + self.absolute

    def ordinary(self, own: torch.Tensor, reference: torch.Tensor) -> torch.Tensor:
        return (reference.abs() <= self.mask_above) & (own <= self.far * reference.abs() + self.far_least)

    def limit(self, own: torch.Tensor, reference: torch.Tensor) -> torch.Tensor:
        """How far each element may be off, given eager's error there and the reference."""
        ordinary = self.ordinary(own, reference)
        return self.multiple * torch.where(ordinary, own.clamp(min=self.own), own) + self.floor(reference)

    @property
    def rms(self) -> float:
        return self.multiple * self.own_rms + self.rms_floor

    @property
    def by_noise(self) -> Allowed:
        """The error that the noise runs need not explain; without eager's error if that is no measure."""
        return self if self.unclear is None else replace(self, own=0.0, own_rms=0.0, multiple=0.0)


@dataclass(kw_only=True, slots=True)
class _Errors:
    """Errors of one tensor against the reference, accumulated chunk by chunk.

    `largest` is of all elements; `ordinary` and the RMS are of ordinary ones, less their slack.
    """

    largest: float = 0.0
    ordinary: float = 0.0
    norm: float = 0.0
    count: int = 0
    beyond: int = 0
    excess: float = -math.inf
    worst: int = 0
    allowed: float = 0.0
    values: tuple[float, float, float] = (0.0, 0.0, 0.0)

    @property
    def rms(self) -> float:
        return self.norm / math.sqrt(self.count) if self.count else 0.0

    def exceed(self, allowed: Allowed) -> bool:
        return self.beyond > 0 or self.rms > allowed.rms


def judge_values(values: Values, tolerance: Tolerance) -> Finding:
    if not is_float(values.eager) and not is_float(values.compiled):
        return _judge_exactly(values)
    if _not_finite_elsewhere(values.eager, values.again) is not None:
        return Finding(at=values.at, compared=True, unstable="NaN or inf")
    moved = _not_finite_elsewhere(values.eager, values.compiled)
    if moved is not None:
        differs = difference(values.at, "nan", _moved(values, *moved)).differences
        if tolerance.method == "bitwise":
            return Finding(at=values.at, compared=True, differences=differs)
    else:
        differs = ()
        if tolerance.method == "bitwise":
            return _judge_exactly(values)
    held, without_gold = with_reference(values)
    if tolerance.method == "fp64" and values.gold is None:
        without_gold = f"{values.named} has nothing comparable there"
    verdict = _judge_floats(held, allowed_by(held, tolerance))
    return replace(verdict, differences=differs + verdict.differences, without_gold=without_gold)


def with_reference(values: Values) -> tuple[Values, str]:
    """The values without an unusable reference, and why it is unusable."""
    if values.gold is None or not went_another_way(values):
        return values, ""
    return replace(values, gold=None, size=size_of(values.eager)), f"{values.named} took another path than eager"


def widened(values: Values, allowed: Allowed) -> Allowed:
    """The same, with how far eager itself moves from one run to the next."""
    if same_bits(values.eager, values.again):
        return allowed
    largest, rms = noise(values.eager, values.again)
    return replace(
        allowed, absolute=allowed.absolute + MULTIPLE * largest, rms_floor=allowed.rms_floor + MULTIPLE * rms
    )


def _judge_floats(values: Values, allowed: Allowed) -> Finding:
    own = allowed.own if values.gold is not None else None
    base = Finding(at=values.at, compared=True, eager_error=own)
    if not same_bits(values.eager, values.again):
        if _errors(replace(values, compiled=values.again), allowed).exceed(allowed):
            largest, _ = noise(values.eager, values.again)
            return replace(base, unstable=f"{largest:.1e}")
        allowed = widened(values, allowed)
    errors = _errors(values, allowed)
    base = replace(base, error=errors.largest)
    if not errors.exceed(allowed):
        if allowed.unclear is None or (apart := _apart(values)) <= allowed.unclear:
            return base
        detail = f"RMS error {apart:.1e} from the nearer of eager and {values.named} > allowed {allowed.unclear:.1e} "
        detail += f"over {_numel(values)} elements; eager's own is {allowed.own_rms:.1e}, more than rounding explains"
        return replace(base, differences=difference(values.at, values.kind, detail).differences)
    return replace(base, differences=difference(values.at, values.kind, _worst(values, errors, allowed)).differences)


def allowed_by(values: Values, tolerance: Tolerance) -> Allowed:
    has_gold, floor = values.gold is not None, floor_of(values.lowest)
    # Below its smallest normal number a format rounds to steps of one size (float16: 6e-8, under which gradients lie).
    smallest = torch.float32 if tolerance.tf32 and values.eager.dtype == torch.float32 else values.lowest
    step = 4 * torch.finfo(smallest).smallest_normal * torch.finfo(smallest).eps
    bounds = Allowed(
        multiple=MULTIPLE if has_gold else 0.0,
        own=0.0,
        own_rms=0.0,
        relative=floor if has_gold else 2 * floor,
        size=values.size,
        absolute=step if has_gold else step + values.grain,
        rms_floor=step + RMS_SHARE * floor * values.size if has_gold else math.inf,
        mask_above=_mask_above(values.reference),
        far=values.far,
        far_least=values.far_least,
    )
    own = _errors(replace(values, compiled=values.eager), bounds)
    bounds = replace(bounds, own=min(own.ordinary, TAIL * _most(values, bounds)), own_rms=own.rms)
    if tolerance.given:
        relative, absolute = tolerance.rtol or 0.0, tolerance.atol or 0.0
        rms_floor = relative * values.size + absolute if has_gold else math.inf
        return replace(bounds, relative=relative, size=0.0, absolute=absolute, rms_floor=rms_floor)
    if has_gold and (
        values.size == 0.0 or own.rms > CANCELLED.get(values.lowest, CANCELLED[torch.bfloat16]) * values.size
    ):
        if tolerance.bias and values.lowest in UNCLEAR and own.rms <= values.size:
            return replace(bounds, unclear=CANCELLED[values.lowest] * values.size)
        return replace(bounds, absolute=bounds.absolute + values.grain, rms_floor=bounds.rms_floor + values.grain)
    return bounds


def _apart(values: Values) -> float:
    """The RMS of compiled's distance from eager or from the reference, whichever is less."""
    squares, count = [0.0, 0.0], 0
    for c, e, g, slack in chunks(values.compiled, values.eager, values.reference, values.slack):
        for at, other in enumerate((e, g)):
            off = torch.where(c.isfinite() & other.isfinite(), ((c - other).abs() - slack).clamp(min=0.0), 0.0)
            squares[at] += _norm(off) ** 2
        count += c.numel()
    return math.sqrt(min(squares) / count) if count else 0.0


def _most(values: Values, bounds: Allowed) -> float:
    """The quantile MOST of eager's nonzero errors at ordinary elements."""
    e, g, slack = (each.reshape(-1) for each in _real(values.eager, values.reference, values.slack))
    every = max(1, e.numel() // SAMPLE)
    e, g, slack = (each[::every].to(torch.float64) for each in (e, g, slack))
    own = (e - g).abs() - slack
    own = own[(own > 0) & own.isfinite() & bounds.ordinary(own, g)]
    if own.numel() < TELLING:
        return math.inf
    return float(kth(own, int(MOST * own.numel())))


def _errors(values: Values, allowed: Allowed) -> _Errors:
    found = _Errors()
    start = 0
    for c, e, g, slack in chunks(values.compiled, values.eager, values.reference, values.slack):
        comparable = torch.isfinite(c) & torch.isfinite(e)
        # Where float64 overflows or is undefined, eager's own value stands in.
        g = torch.where(comparable, torch.where(torch.isfinite(g), g, e), 0.0)
        off = torch.where(comparable, (c - g).abs(), 0.0)
        found.largest = max(found.largest, _largest(off))
        off = (off - slack).clamp(min=0.0)
        own = torch.where(comparable, (e - g).abs() - slack, 0.0).clamp(min=0.0)
        ordinary = allowed.ordinary(own, g) & comparable
        found.ordinary = max(found.ordinary, _largest(off[ordinary]))
        found.norm = math.hypot(found.norm, _norm(off[ordinary]))
        found.count += int(ordinary.sum())
        limit = allowed.limit(own, g)
        excess = torch.where(comparable, off - limit, -math.inf)
        # What is not a number (an overflow less another) says nothing: then only the same value is within.
        excess = torch.where(excess.isnan(), torch.where(c == e, -math.inf, math.inf), excess)
        found.beyond += int((excess > 0).sum())
        worst = int(excess.argmax())
        if float(excess[worst]) > found.excess:
            found.excess, found.worst = float(excess[worst]), start + worst
            found.allowed = float(limit[worst] + slack[worst])
            found.values = float(c[worst]), float(e[worst]), float(g[worst])
        start += c.numel()
    return found


def went_another_way(values: Values) -> bool:
    """Whether eager took another path: more elements are far from float64 than rounding explains."""
    count = implausible = 0
    for e, g, slack in chunks(values.eager, values.reference, values.slack):
        off = torch.where(torch.isfinite(e) & torch.isfinite(g), (e - g).abs() - slack, 0.0)
        implausible += int((off > values.far * torch.nan_to_num(g).abs() + values.far_least).sum())
        count += e.numel()
    return implausible > FLIPPED * count


def _worst(values: Values, errors: _Errors, allowed: Allowed) -> str:
    compiled, eager, reference = errors.values
    error, own, numel = abs(compiled - reference), abs(eager - reference), _numel(values)
    real, of = _real(values.compiled, values.reference)
    seen = pattern(real, of, values.named if values.gold is not None else "eager")
    text = f"{seen}; " if seen else ""
    text += f"worst at {_part(errors.worst, values)}: " if numel > 1 else ""
    digits = _digits(compiled, reference)
    text += f"compiled {compiled:.{digits}g}, eager {eager:.{digits}g}"
    if values.gold is not None:
        text += f", {values.named} {reference:.{digits}g}"
    text += f"; error {error:.1e}"
    if not errors.beyond:
        text += f" is allowed, but the RMS error {errors.rms:.1e} > allowed {allowed.rms:.1e}"
        return f"{text} (eager's own {allowed.own_rms:.1e}) over {numel} elements"
    text += f" > allowed {errors.allowed:.1e}"
    if values.gold is not None:
        text += f" (eager's own {max(own, allowed.own):.1e})"
    text += f"; {errors.beyond} of {numel} elements beyond"
    if (
        numel > 1
        and errors.beyond <= max(1.0, FLIPPED * numel)
        and error > allowed.far * max(abs(reference), values.size)
    ):
        text += "; few but far off: a discrete choice may have flipped"
    elif own > allowed.far * abs(reference) + allowed.far_least:
        text += f"; eager itself is far from {values.named} there: a discrete choice may have flipped"
    return text


def _digits(one: float, other: float) -> int:
    """The number of digits needed to distinguish two numbers."""
    return next((digits for digits in (6, 9, 13) if f"{one:.{digits}g}" != f"{other:.{digits}g}"), 17)


def _judge_exactly(values: Values) -> Finding:
    base = Finding(at=values.at, compared=True)
    if not same_bits(values.eager, values.again):
        largest, _ = noise(values.eager, values.again)
        return replace(base, unstable=f"{largest:.1e}" if largest else "its bits")
    largest, _ = noise(values.eager, values.compiled)
    base = replace(base, error=largest)
    different = _differing(values.eager, values.compiled)
    count = int(different.sum())
    if not count:
        return base
    first = int(different.reshape(-1).to(torch.uint8).argmax())
    compiled, eager = (_element(data, different, first) for data in (values.compiled, values.eager))
    detail = f"{count} of {different.numel()} elements differ, first at {_index(first, values)}: "
    detail += f"compiled {compiled!r}, eager {eager!r}"
    if values.gold is not None and not is_float(values.eager):
        detail += f", {values.named} {_element(values.gold, different, first)!r}"
    return replace(base, differences=difference(values.at, values.kind, detail).differences)


def _moved(values: Values, first: int, count: int) -> str:
    tensors = _real(values.compiled, values.eager)
    compiled, eager = (_element(data, tensors[0], first) for data in tensors)
    text = f"compiled {compiled!r}, eager {eager!r} at {_part(first, values)}; {count} of {_numel(values)} elements"
    if values.gold is None:
        return text
    gold = _element(_real(values.gold, values.eager)[0], tensors[0], first)
    return f"{text}; {values.named} has {gold!r} there"


def _not_finite_elsewhere(eager: torch.Tensor, other: torch.Tensor) -> tuple[int, int] | None:
    """The first element at which only one is NaN or inf, or their signs differ, and the number of such elements."""
    first, count, start = 0, 0, 0
    for e, c in chunks(eager, other):
        differs = (e.isnan() != c.isnan()) | (e.isposinf() != c.isposinf()) | (e.isneginf() != c.isneginf())
        if differs.any():
            first = first if count else start + int(differs.to(torch.uint8).argmax())
            count += int(differs.sum())
        start += e.numel()
    return (first, count) if count else None


def noise(one: torch.Tensor, other: torch.Tensor) -> tuple[float, float]:
    """The largest difference and its RMS, over the elements that are finite in both."""
    largest, norm, count = 0.0, 0.0, 0
    for a, b in chunks(one, other):
        off = torch.where(a.isfinite() & b.isfinite(), (a - b).abs(), 0.0).clamp(max=torch.finfo(torch.float64).max)
        largest, norm, count = max(largest, _largest(off)), math.hypot(norm, _norm(off)), count + off.numel()
    return largest, norm / math.sqrt(count) if count else 0.0


def size_of(data: torch.Tensor) -> float:
    """The RMS of the finite elements, masks left out."""
    above = _mask_above(data)
    norm, count = 0.0, 0
    for (values,) in chunks(data):
        values = values[torch.isfinite(values) & (values.abs() <= above)]
        norm, count = math.hypot(norm, _norm(values)), count + values.numel()
    return norm / math.sqrt(count) if count else 0.0


def _norm(values: torch.Tensor) -> float:
    """The root of the sum of squares, without overflow: an infinite size would allow everything."""
    largest = _largest(values.abs())
    if largest == 0.0 or not math.isfinite(largest):
        return largest
    return largest * math.sqrt(float((values / largest).square().sum()))


def _mask_above(data: torch.Tensor) -> float:
    (flat,) = _real(data)
    flat = flat.reshape(-1)
    sample = flat[:: max(1, flat.numel() // SAMPLE)].to(torch.float64).abs()
    sample = sample[torch.isfinite(sample) & (sample > 0)]
    if not sample.numel():
        return math.inf
    return max(MASK * float(kth(sample, 1 + sample.numel() // 10)), MASK_LEAST)


def chunks(*tensors: torch.Tensor) -> Iterator[tuple[torch.Tensor, ...]]:
    """Chunks of the tensors side by side, flat and in float64. Nothing for empty tensors."""
    flat = [each.reshape(-1) for each in _real(*tensors)]
    size = chunk_of(flat[0])
    for start in range(0, flat[0].numel(), size):
        yield tuple(each[start : start + size].to(torch.float64) for each in flat)


def _real(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Tensors of one shape; a complex one has its two parts as a last dimension."""
    parts = [torch.view_as_real(each.to(torch.complex128)) if each.is_complex() else each for each in tensors]
    return broadcast(*parts)


def _bits(data: torch.Tensor) -> torch.Tensor:
    """Integers that differ where the elements do; all NaNs are equal."""
    if data.is_complex():
        data = torch.view_as_real(data)
    # PyTorch compares floats by value, and has few operations for unsigned integers and for floats of one byte.
    bits = data.view(_INTEGERS[data.itemsize])
    if not data.is_floating_point() or not is_number(data.dtype):
        return bits
    if data.itemsize == 1:
        return torch.where(data.to(torch.float32).isnan(), -1, bits.to(torch.int16))
    return torch.where(data.isnan(), math.nan, data).view(bits.dtype)


@functools.cache
def is_number(dtype: torch.dtype) -> bool:
    """Whether PyTorch can convert a dtype to numbers; others (two float4 in a byte) are compared by their bits."""
    if str(dtype).startswith(("torch.qint", "torch.quint")):
        return True
    try:
        torch.zeros(dtype.itemsize, dtype=torch.uint8, device="cpu").view(dtype).to(torch.complex128)
    except (RuntimeError, NotImplementedError, TypeError):
        return False
    return True


# Integers by their width in bytes.
_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def _differing(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    if one.dtype != other.dtype:
        common = torch.complex128 if one.is_complex() or other.is_complex() else torch.float64
        return _differing(one.to(common), other.to(common))
    ours, theirs = broadcast(_bits(one), _bits(other))
    differs = ours != theirs
    return differs.any(-1) if one.is_complex() else differs


def same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors of one shape have the same dtype and bits; NaN equals NaN, -0.0 is not 0.0."""
    if one.dtype != other.dtype:
        return False
    one, other = level(one, other)
    # What is the same in memory is the same, at a tenth of the time.
    return same_memory(one, other) or not bool(_differing(one, other).any())


def same_memory(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors of one shape and dtype have the same bits, also in NaN; copies neither."""
    if one.is_complex():
        one, other = torch.view_as_real(one), torch.view_as_real(other)
    integers = _INTEGERS[one.itemsize]
    return bool(torch.equal(one.view(integers), other.view(integers)))


def same_values(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors of one shape and dtype have the same values; NaN equals NaN, -0.0 equals 0.0."""
    if one.is_complex():
        return same_values(torch.view_as_real(one), torch.view_as_real(other))
    if not is_float(one) or not is_number(one.dtype):
        return same_bits(one, other)
    if one.itemsize == 1:
        one, other = one.to(torch.float32), other.to(torch.float32)
    return bool(torch.equal(one, other)) or not bool(((one != other) & ~(one.isnan() & other.isnan())).any())


def _element(data: torch.Tensor, like: torch.Tensor, index: int) -> object:
    return data.broadcast_to(like.shape).reshape(-1)[index].item()


def _numel(values: Values) -> int:
    return _real(values.compiled, values.eager, values.reference)[0].numel()


def _part(flat: int, values: Values) -> str:
    """The element that a number of `chunks` belongs to: a complex element has two."""
    if not values.eager.is_complex():
        return _index(flat, values)
    return f"{_index(flat // 2, values)} ({'imaginary' if flat % 2 else 'real'} part)"


def _index(flat: int, values: Values) -> str:
    index = []
    for size in reversed(values.eager.shape):
        index.append(flat % size)
        flat //= size
    return str(index[::-1])


def _largest(values: torch.Tensor) -> float:
    return float(values.max()) if values.numel() else 0.0


def floor_of(dtype: torch.dtype) -> float:
    """FLOOR, and for the narrow formats three steps."""
    return FLOOR[dtype] if dtype in FLOOR else 3 * torch.finfo(dtype).eps


def lowest_of(*dtypes: torch.dtype) -> torch.dtype:
    floating = [each.to_real() if each.is_complex else each for each in dtypes]
    return max((each for each in floating if each.is_floating_point), key=floor_of, default=torch.float64)


def is_float(data: torch.Tensor) -> bool:
    return data.is_floating_point() or data.is_complex()
