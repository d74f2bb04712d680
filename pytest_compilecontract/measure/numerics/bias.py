"""Bias: a difference by the same factor or amount over a tensor, a row or a channel. Pure.

Rounding errors average out over many elements. A factor that is off by one percent is well within the rounding of each
element in bfloat16, and far beyond that of their mean. So means are compared: the factor by which compiled differs from
the reference with the one by which eager does, and with the standard error of the mean.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import NormalDist

import torch

from .noise import ENOUGH, FURTHER
from .together import kth

# The least factor and offset that are looked for, the latter as a share of the tensor's RMS: half of what is promised.
LEAST: dict[torch.dtype, float] = {
    torch.float64: 1e-6,
    torch.float32: 5e-4,
    torch.float16: 2.5e-3,
    torch.bfloat16: 5e-3,
}
NARROW = 1.5e-2
# Deviates of a normal distribution. Beyond the first of them a mean is looked into, which costs a few runs of eager.
# With few runs of eager, what is beyond DOUBTED of their noise is not settled; with ENOUGH of them NOISE settles it.
SCATTER = 4.5
DOUBTED = 2.0
NOISE = 3.5
# That is for a program of up to so many rows and channels. Some of ever more are that far off by chance: of the 71,000
# in a decoder of three blocks, 474 were looked into, and the furthest was 1.8 deviates off; of the two million in one
# of 1.5 billion parameters, two were 3.5 and 3.7.
KNOWN = 1 << 17
# A run moves a result, and the two factors of a product, by one step in a quarter of the elements: nine times the
# variance of rounding. So at least this share of its noise is to be expected.
LEAST_SHARE = 1 / 3
# With fewer elements that count, scatter says nothing; of a tensor that is no longer, the mean is looked into where it
# is this often eager's own.
FEW = 8
TIMES = 4.0
STEPS = 1.5
# A row or channel that is smaller than this share of the tensor is left to the floor of the elements; and so is one of
# which fewer elements than this share count, or one of more rows.
SMALL = 0.1
MOST = 0.5
SLICES = 4096
# Elements that are looked at; of more, a part that is evenly spread.
LOOKED_AT = 1 << 24


@dataclass(frozen=True, kw_only=True, slots=True)
class Looked:
    """A tensor in the compared runs, in float64, and the elements that count.

    `moved` is eager rounded differently, by this many `steps`. `least` is the smallest factor that is searched for,
    `step` the relative change that one rounding may cause, and `floor` an error that every number may have. If `whole`,
    rows and channels are not examined by themselves: a flipped choice moves one as far as a fault does. `among` is how
    many of them the program has.
    """

    compiled: torch.Tensor
    eager: torch.Tensor
    reference: torch.Tensor
    counts: torch.Tensor
    size: float
    least: float
    step: float
    floor: float = 0.0
    whole: bool = False
    moved: Sequence[torch.Tensor] = ()
    steps: Sequence[int] = ()
    among: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Bias:
    """A bias: `by` is the factor minus 1, or the offset; `hopeful`: more runs might explain it."""

    kind: str
    place: str
    by: float
    eagers: float
    noise: float | None
    elements: int
    hopeful: bool = False

    def __str__(self) -> str:
        if self.kind == "factor":
            text = f"a factor of {1 + self.by:.6g} over {self.elements} elements{self.place}"
            text += f"; eager's own {1 + self.eagers:.6g}"
        else:
            text = f"an offset of {self.by:.3g} over {self.elements} elements{self.place}"
            text += f"; eager's own {self.eagers:.3g}"
        return text if self.noise is None else f"{text}; rounding moves it by {self.noise:.1e}"


@dataclass(frozen=True, kw_only=True, slots=True)
class _Means:
    """For each slice of a tensor: the means of compiled, eager and its noise runs, and the scatter of compiled's."""

    kind: str
    of: torch.Tensor
    eagers: torch.Tensor
    scatter: torch.Tensor
    freedom: torch.Tensor
    unit: torch.Tensor
    moves: torch.Tensor | None


def find_bias(looked: Looked) -> Bias | None:
    """The worst bias of the tensor, a row or a channel that noise does not explain, or None.

    With noise runs in `moved`, it is more than these show; without, noise may still explain it.
    """
    for dim in (None,) if looked.whole else _dims(looked.compiled.shape):
        # What is off as a whole is off in each row, too.
        if found := list(_of_dim(looked, dim)):
            return max(found, key=lambda each: abs(each.by) / _unit(each, looked))
    return None


def _unit(bias: Bias, looked: Looked) -> float:
    return 1.0 if bias.kind == "factor" else looked.size


def deviates(ratio: torch.Tensor, freedom: torch.Tensor | float) -> torch.Tensor:
    """A t statistic with `freedom` degrees of freedom, as a deviate of the normal distribution.

    The approximation is Wallace's: Annals of Mathematical Statistics 30 (1959), 1124.
    """
    freedom = torch.as_tensor(freedom, dtype=torch.float64, device=ratio.device).clamp(min=1.0)
    corrected = (8 * freedom + 1) / (8 * freedom + 3)
    return corrected * torch.sqrt(freedom * torch.log1p(ratio.square() / freedom))


def beyond_noise(among: int) -> float:
    """The deviate that so many means, or KNOWN, reach by chance as seldom as KNOWN of them reach NOISE."""
    normal = NormalDist()
    return -normal.inv_cdf(normal.cdf(-NOISE) * KNOWN / max(among, KNOWN))


def slices_of(shape: Sequence[int]) -> int:
    """How many means of a tensor are looked at: its own, and that of each row and channel."""
    return 1 + sum(shape[dim] for dim in _dims(shape) if dim is not None)


def _dims(shape: Sequence[int]) -> Iterator[int | None]:
    yield None
    numel = math.prod(shape)
    if len(shape) > 1:
        yield from (dim for dim, size in enumerate(shape) if 1 < size <= SLICES and numel // size >= FEW)


def spread(shape: Sequence[int]) -> tuple[slice, ...]:
    """An index of the elements that are examined: all, or every n-th of the longest dimension."""
    numel = math.prod(shape)
    if numel <= LOOKED_AT:
        return ()
    dim = max(range(len(shape)), key=lambda each: shape[each])
    return (slice(None),) * dim + (slice(None, None, -(-numel // LOOKED_AT)),)


def may_be_biased(error: float, size: float, lowest: torch.dtype) -> bool:
    """Whether an error of at most this size could be a bias: a mean is no larger than its largest part."""
    return 0.0 < size < math.inf and error > SMALL * least_of(lowest) * size


def least_of(dtype: torch.dtype) -> float:
    """LEAST, and for the narrow formats what is beyond three steps of the coarsest."""
    return LEAST.get(dtype, NARROW)


def step_of(dtype: torch.dtype, lowest: torch.dtype) -> float:
    """The relative rounding error of a dtype."""
    return STEPS * torch.finfo(dtype if dtype.is_floating_point or dtype.is_complex else lowest).eps


def _of_dim(looked: Looked, dim: int | None) -> Iterator[Bias]:
    weights = _sliced(looked.counts, dim).to(torch.float64)
    c, e, g, *moved = (
        torch.where(weights > 0, _sliced(each, dim), 0.0)
        for each in (looked.compiled, looked.eager, looked.reference, *looked.moved)
    )
    count = weights.sum(-1)
    rms = (g.square().sum(-1) / count.clamp(min=1.0)).sqrt()
    moves = [each - e for each in moved]
    share = _share(c - g, e - g, g, [move for move, by in zip(moves, looked.steps, strict=True) if by <= FURTHER])
    for means in (_factors(c - g, e - g, g, moves), _offsets(c - g, e - g, weights, moves, looked.size)):
        # Few elements show no scatter.
        yield from _beyond(means, looked, dim, count, rms, torch.where(means.freedom < FEW, 1.0, share))


def _share(off: torch.Tensor, own: torch.Tensor, g: torch.Tensor, moves: list[torch.Tensor]) -> torch.Tensor:
    """The share of the noise of eager's runs that compiled and eager have: by how far their elements scatter.

    A run moves what a product is given, and its result, each by more than rounding does.
    """
    if not moves:
        return torch.ones(len(g), dtype=torch.float64, device=g.device)
    has = torch.maximum(_scatter(off, g), _scatter(own, g))
    runs = torch.stack([_scatter(each, g).square() for each in moves]).mean(0).sqrt()
    return (has / runs.clamp(min=torch.finfo(torch.float64).tiny)).clamp(LEAST_SHARE, 1.0)


def _scatter(off: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
    """How far the elements of each slice scatter about the factor by which it is off."""
    squares = g.square().sum(-1, keepdim=True).clamp(min=torch.finfo(torch.float64).tiny)
    return (off - (off * g).sum(-1, keepdim=True) / squares * g).square().sum(-1).sqrt()


def _sliced(data: torch.Tensor, dim: int | None) -> torch.Tensor:
    return data.reshape(1, -1) if dim is None else data.movedim(dim, 0).reshape(data.shape[dim], -1)


def _factors(off: torch.Tensor, own: torch.Tensor, g: torch.Tensor, moves: list[torch.Tensor]) -> _Means:
    squares = g.square().sum(-1).clamp(min=torch.finfo(torch.float64).tiny)
    of = (off * g).sum(-1) / squares
    scatter = ((off - of[:, None] * g) * g).square().sum(-1).sqrt() / squares
    # A few large elements are the whole of the sum: they alone are what is drawn.
    freedom = squares.square() / g.square().square().sum(-1).clamp(min=torch.finfo(torch.float64).tiny) - 1
    return _Means(
        kind="factor",
        of=of,
        eagers=(own * g).sum(-1) / squares,
        scatter=scatter,
        freedom=freedom,
        unit=torch.ones_like(of),
        moves=torch.stack([(each * g).sum(-1) / squares for each in moves]) if moves else None,
    )


def _offsets(
    off: torch.Tensor, own: torch.Tensor, weights: torch.Tensor, moves: list[torch.Tensor], size: float
) -> _Means:
    count = weights.sum(-1).clamp(min=1.0)
    of = off.sum(-1) / count
    return _Means(
        kind="offset",
        of=of,
        eagers=own.sum(-1) / count,
        scatter=((off - of[:, None]) * weights).square().sum(-1).sqrt() / count,
        freedom=count - 1,
        unit=torch.full_like(of, size),
        moves=torch.stack([each.sum(-1) / count for each in moves]) if moves else None,
    )


def _beyond(
    means: _Means, looked: Looked, dim: int | None, count: torch.Tensor, rms: torch.Tensor, share: torch.Tensor
) -> Iterator[Bias]:
    """The worst slice that scatter, eager's own bias and its noise do not explain."""
    # Nearer to the reference than eager is nothing to complain of, and as near to eager as that allows is no more.
    by = torch.minimum(means.of.abs(), (means.of - means.eagers).abs())
    suspect = (by >= looked.least * means.unit) & (means.of.abs() > means.eagers.abs())
    suspect &= (rms >= SMALL * looked.size) & (by * (rms if means.kind == "factor" else 1.0) > looked.floor)
    few = means.freedom < FEW
    enough = deviates(by / means.scatter.clamp(min=torch.finfo(torch.float64).tiny), means.freedom) >= SCATTER
    # Of a few elements the last digit may be all that is off.
    alone = (by > TIMES * means.eagers.abs()) & (by > looked.step * means.unit)
    suspect &= torch.where(few, alone & (dim is None) & bool(looked.counts.all()), enough)
    # What is left of a tensor that moves as a whole stands for nothing.
    suspect &= count >= MOST * (looked.counts.numel() / len(count))
    noise, hopeful = None, torch.zeros_like(suspect)
    if means.moves is not None:
        size = torch.tensor(looked.steps, dtype=torch.float64, device=by.device)[:, None]
        near = size[:, 0] <= FURTHER
        settled = int(near.sum()) >= ENOUGH
        if settled:
            noise, _ = _noise(means.moves[near], by, size[near])
            suspect &= ~_moved_by_choice(means.moves[~near], by, noise * size[~near])
        noise, beyond = _noise(means.moves[near] * share, by, size[near])
        suspect &= beyond >= (beyond_noise(looked.among) if settled else DOUBTED)
        hopeful = (beyond < 2 * NOISE) & (not settled)
    if not bool(suspect.any()):
        return
    worst = int(torch.where(suspect, by / means.unit, -1.0).argmax())
    yield Bias(
        kind=means.kind,
        place="" if dim is None else f" at {worst} of dimension {dim}",
        by=float(means.of[worst]),
        eagers=float(means.eagers[worst]),
        noise=None if noise is None else float(noise[worst]),
        elements=int(count[worst]),
        hopeful=bool(hopeful[worst]),
    )


def _noise(moves: torch.Tensor, by: torch.Tensor, steps: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """How far each mean moves in eager's runs, and how far beyond that compiled's is, in standard deviations.

    What a choice moves that falls otherwise is of no normal distribution, and moves as far whatever the steps are: no
    further than in any run is not beyond, if a run of larger steps is taken at something between.
    """
    runs, slices = moves.shape
    own = (moves / steps).square().mean(0).sqrt()
    if slices >= FEW:
        # Few runs tell little of one slice. What nine in ten keep below counts for each.
        own = torch.maximum(own, kth(own, math.ceil(0.9 * slices)))
    beyond = deviates(by / own.clamp(min=torch.finfo(torch.float64).tiny), float(runs))
    return own, torch.where(by > (moves.abs() / steps.sqrt()).amax(0), beyond, 0.0)


def _moved_by_choice(moves: torch.Tensor, by: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
    """The means that move as far in a far run, and further there than noise: a choice flipped.

    A token that is routed to another expert changes a part of that expert's gradient, perhaps in compiled and in none
    of a few noise runs.
    """
    return ((moves.abs() >= by) & (moves.abs() > NOISE * noise)).any(0)
