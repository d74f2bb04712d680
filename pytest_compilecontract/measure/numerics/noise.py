"""Noise: how far eager moves when rounded differently, and how much of compiled's difference that explains. Pure.

Each element has its own bound: it may be anywhere in the range of the noise runs, and, because there are few of them,
beyond it by as much as the range is wide, or as that of most of its row is. An element that moves a lot does not excuse
others, and a value that no run approaches, such as zeros in place of either of two branches, is not excused. Values
that do not move in most runs and jump in one, such as the row of a token that is routed to another expert, may do so in
compiled, too, as often and as far as in the noise runs, each of which is compared with the others for that. A whole row
may do so only if it also moves when everything is moved much further; otherwise its choice is not close.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import torch

from .together import broadcast, chunk_of, kth, two_largest

# How far beyond the outermost of a few runs, as a share of how far these are apart. Seven draws of a normal
# distribution are 2.7 deviations apart; another one is four deviations off once in ten thousand.
REACH = 1.0
# The share of a row that moves no further than what is taken for its move. It takes a quarter of it to move it.
MOST = 0.75
# A row of fewer elements says nothing of each.
ROW = 4
# How many times as far surprises may be as in the worst of eager's runs: not more of them, nor than this share of all.
SURPRISES = 2.0
SHARE = 0.05
# What most of a tensor is off by may be so many times as much as in the worst run of one step. Each element by itself
# has room beyond all runs, which noise never uses in most of them at once: sums that are kept in bfloat16 do.
USUAL = 2.0
USUALLY = 0.9
# A run that is this much further out than the bound will not be reached by more runs.
HOPE = 8.0
# With more than this share of a tensor that far out, and further than in any far run, no more runs help. What moves in
# a share p of all runs moves in compiled and in none of six others for p (1 - p)^6 of the elements: 5.7 % at most.
HOPELESS = 0.1
# Runs of more steps than this are far ones: what does not move in them either makes no close choice.
FURTHER = 3
# With so many runs that are none, it is known what moves in most of them and what jumps in one. What jumps in compiled
# may then have been a close choice. With fewer, more seems to jump.
ENOUGH = 16
# The share of a row that has to move in a far run.
HALF = 0.5

Limit = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


@dataclass(frozen=True, kw_only=True, slots=True)
class Noise:
    """The result for one tensor. `loud` are its elements that eager or compiled moved beyond what the rule allows.

    `moved` is the largest movement of an element in noise runs; `worst` is compiled's distance in units of its bound.
    `hopeless`: many elements are so far beyond it, and beyond all far runs, that more runs would not change that.
    """

    excused: bool
    moved: float
    worst: float
    loud: torch.Tensor
    hopeless: bool
    why: str = ""

    @property
    def hopeful(self) -> bool:
        return self.worst <= HOPE


@dataclass(kw_only=True, slots=True)
class _Surprises:
    """Elements that are far off in one run and do not move in all others: how many, and the largest distance."""

    count: int = 0
    largest: float = 0.0

    def add(self, off: torch.Tensor, which: torch.Tensor) -> None:
        self.count += int(which.sum())
        self.largest = max(self.largest, float(off.masked_fill(~which, 0.0).max()))

    def within(self, others: Sequence[_Surprises], total: int, times: float = 1.0) -> bool:
        """Whether there are at most `times` as many as in any noise run, and none further off."""
        most = max((each.count for each in others), default=0)
        furthest = max((each.largest for each in others), default=0.0)
        if not self.count:
            return True
        return most <= SHARE * total and self.count <= times * most and self.largest <= SURPRISES * furthest


@dataclass(kw_only=True, slots=True)
class _Count:
    """The surprises of one run, and of the elements that are none the sum of squares.

    They are apart: rows that move as a whole, elements alone, and those that move in other runs as well. `never` are
    those of rows, of either kind, that move in no far run. `usual` has how far most elements are from eager.
    """

    rows: _Surprises = field(default_factory=_Surprises)
    alone: _Surprises = field(default_factory=_Surprises)
    loud: _Surprises = field(default_factory=_Surprises)
    never: int = 0
    squares: float = 0.0
    elements: int = 0
    usual: float = 0.0
    most: int = 0

    def add(
        self, off: torch.Tensor, width: torch.Tensor, bare: torch.Tensor, close: torch.Tensor | None = None
    ) -> None:
        """Count what is off in a run; `close` are the rows that move as far in a far run."""
        beyond, quiet = off > bare + REACH * _with_row(width), width <= bare
        if beyond.any():
            # A choice that falls otherwise moves a row, one wrong element does not.
            with_row = (off > bare).to(torch.float64).mean(dim=-1, keepdim=True) > 1 - MOST
            self.rows.add(off, beyond & quiet & with_row)
            if close is not None:
                # Where everything moves, most of a row is off only if it went elsewhere as a whole.
                whole = beyond.to(torch.float64).mean(dim=-1, keepdim=True) > 1 - MOST
                self.never += int((beyond & ((quiet & with_row) | whole) & ~close).sum())
            self.alone.add(off, beyond & quiet & ~with_row)
            self.loud.add(off, beyond & ~quiet)
        self.squares += float(off.masked_fill(beyond, 0.0).square().sum())
        self.elements += int((~beyond).sum())

    def add_usual(self, away: torch.Tensor) -> None:
        """Count the smaller ones of these distances: a choice that falls otherwise is for surprises."""
        away = away.reshape(-1)
        count = int(USUALLY * away.numel())
        self.usual += float(away.topk(count, largest=False, sorted=False).values.square().sum())
        self.most += count

    @property
    def rms(self) -> float:
        return (self.squares / self.elements) ** 0.5 if self.elements else 0.0

    @property
    def usual_rms(self) -> float:
        return (self.usual / self.most) ** 0.5 if self.most else 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Sides:
    """One tensor in all runs, of one shape; `slack` is an error that each element may have in any case.

    The movement in a run with several `steps` is divided by their number.
    """

    compiled: torch.Tensor
    eager: torch.Tensor
    reference: torch.Tensor
    slack: torch.Tensor
    moved: Sequence[torch.Tensor]
    steps: Sequence[int]
    far: Sequence[torch.Tensor] = ()


def held_to_noise(sides: Sides, limit: Limit, rms_limit: float) -> Noise:
    """Whether eager's own noise explains how far compiled is off.

    `limit` gives the allowed error of each element without noise, from eager and the reference; `rms_limit` is the
    allowed RMS error.
    """
    compiled, others = _Count(), [_Count() for _ in sides.moved]
    loud: list[torch.Tensor] = []
    moved, worst, total, out = 0.0, 0.0, 0, 0
    settled = len(sides.moved) >= ENOUGH
    steps = torch.tensor(sides.steps, dtype=torch.float64, device=sides.eager.device)[:, None, None]
    for c, e, g, slack, *every in _rows(sides):
        runs, far = every[: len(sides.moved)], every[len(sides.moved) :]
        g = torch.where(g.isfinite(), g, e)
        found = torch.stack([torch.where(e.isfinite() & each.isfinite(), each, e) for each in runs])
        bare = limit(e, g)
        low, high = _outermost(found, torch.minimum(e, g), torch.maximum(e, g))
        # What moves with the size of the steps counts as if they were one.
        narrow, wide = _outermost((found - e) / steps, torch.zeros_like(e), torch.zeros_like(e))
        width = wide[-1] - narrow[-1]
        off = torch.where(c.isfinite() & e.isfinite(), _beyond(c, low[-1], high[-1]) - slack, 0.0).clamp(min=0.0)
        furthest = (found - e).abs().amax(dim=0)
        # A row whose choice is close goes as far in some far run as compiled is off, and not only what steps come to.
        close = torch.zeros_like(e[..., :1], dtype=torch.bool)
        ever = torch.full_like(e, not far, dtype=torch.bool)
        for each in far:
            as_far = SURPRISES * (each - e).abs() >= off
            close |= settled & (as_far.to(torch.float64).mean(dim=-1, keepdim=True) > HALF)
            ever |= as_far
        compiled.add(off, width, bare, close)
        away = torch.where(c.isfinite() & e.isfinite(), torch.minimum((c - e).abs(), (c - g).abs()) - slack, 0.0)
        compiled.add_usual(away.clamp(min=0.0))
        bound = bare + REACH * _with_row(width)
        loud.append(((off > bound) | (width > bare)).reshape(-1))
        worst = max(worst, float(torch.nan_to_num(off / bound, nan=0.0).max()))
        moved = max(moved, float(furthest.max()))
        total += off.numel()
        out += int(((off > HOPE * bound) & ~ever).sum())
        for at, count in enumerate(others):
            # Each of eager's runs is held against the others, as compiled is against all.
            count.add(_beyond(found[at], low[at], high[at]), wide[at] - narrow[at], bare)
            if sides.steps[at] == 1:
                count.add_usual(torch.nan_to_num((found[at] - e).abs(), nan=0.0, posinf=0.0))
    why = _why_not(compiled, others, total, rms_limit)
    hopeless = out > HOPELESS * total
    return Noise(excused=not why, moved=moved, worst=worst, loud=torch.cat(loud), hopeless=hopeless, why=why)


def _why_not(compiled: _Count, others: Sequence[_Count], total: int, rms_limit: float) -> str:
    """Why eager's noise does not explain compiled; empty if it does."""
    if compiled.never:
        return f"{compiled.never} elements are off where eager never is"
    for kind, where in (
        ("rows", "off where eager never is"),
        ("alone", "off where eager never is"),
        ("loud", "further off than eager's own noise there"),
    ):
        mine: _Surprises = getattr(compiled, kind)
        if not mine.within([getattr(each, kind) for each in others], total):
            return f"{mine.count} elements are {where}"
    noise = max((each.rms for each in others), default=0.0)
    if compiled.rms > rms_limit + SURPRISES * noise:
        return f"the RMS error {compiled.rms:.1e} is more than eager's own noise, {noise:.1e}"
    usual = max((each.usual_rms for each in others), default=0.0)
    if compiled.usual_rms > max(rms_limit, USUAL * usual):
        return f"the RMS error of most elements, {compiled.usual_rms:.1e}, is more than eager's own noise, {usual:.1e}"
    return ""


def _outermost(
    runs: torch.Tensor, low: torch.Tensor, high: torch.Tensor
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """The range of each element without each of the runs, and last over all, clamped to `low` and `high`."""
    lows: list[torch.Tensor] = []
    highs: list[torch.Tensor] = []
    for values, found, outer in ((-runs, lows, -low), (runs, highs, high)):
        largest, second, where = two_largest(values)
        for at in range(len(runs)):
            left = torch.where(where == at, second, largest)
            found.append(torch.maximum(left, outer) if len(runs) > 1 else outer)
        found.append(torch.maximum(largest, outer))
    return [-each for each in lows], highs


def _beyond(value: torch.Tensor, low: torch.Tensor, high: torch.Tensor) -> torch.Tensor:
    return torch.maximum(low - value, value - high).clamp(min=0.0)


def _with_row(moves: torch.Tensor) -> torch.Tensor:
    """How far each element moves, or most of its row if that is more."""
    length = moves.shape[-1]
    if length < ROW:
        return moves
    return torch.maximum(moves, kth(moves, max(1, int(MOST * length))))


def _rows(sides: Sides) -> Iterator[tuple[torch.Tensor, ...]]:
    """All sides in float64, a few whole rows of the last dimension at a time."""
    sides_of = (sides.compiled, sides.eager, sides.reference, sides.slack, *sides.moved, *sides.far)
    real = [torch.view_as_real(each.to(torch.complex128)) if each.is_complex() else each for each in sides_of]
    wide = broadcast(*real)
    length = wide[0].shape[-1] if wide[0].dim() else 1
    flat = [each.reshape(-1, length) if each.numel() else each.reshape(0, 1) for each in wide]
    rows = max(1, chunk_of(flat[0]) // max(1, length))
    for start in range(0, flat[0].shape[0], rows):
        yield tuple(each[start : start + rows].to(torch.float64) for each in flat)


def finite_unlike(eager: torch.Tensor, compiled: torch.Tensor, moved: Sequence[torch.Tensor]) -> float:
    """The share of elements of which one side is NaN or inf and the other is not, in compiled and in no noise run."""
    unlike = _unlike(eager, compiled)
    for each in moved:
        unlike = unlike & _unlike(each, compiled)
    return float(unlike.to(torch.float64).mean())


def _unlike(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """The elements of which one is NaN or inf and the other is not, or inf with another sign."""
    if one.is_complex():
        one, other = torch.view_as_real(one), torch.view_as_real(other.to(one.dtype))
        return _unlike(one, other).any(-1)
    a, b = one.to(torch.float64), other.to(torch.float64)
    return (a.isnan() != b.isnan()) | (a.isposinf() != b.isposinf()) | (a.isneginf() != b.isneginf())


def chosen_alike(compiled: torch.Tensor, known: Sequence[torch.Tensor]) -> bool:
    """Whether each discrete value of compiled occurs at its place in one of the other runs."""
    return not bool(_nobodys(compiled, known).any())


def chosen_as_often(
    compiled: torch.Tensor, known: Sequence[torch.Tensor], moved: Sequence[torch.Tensor], steps: Sequence[int]
) -> bool:
    """Whether compiled has unique values about as often as noise runs of one step do, and no further off.

    Among thousands of close choices, each run makes some that no other run does; each noise run is compared with the
    others. Places where all others agree are counted separately.
    """
    mine = _own_choices(compiled, [*known, *moved])
    runs = [
        _own_choices(each, [*known, *moved[:at], *moved[at + 1 :]]) for at, each in enumerate(moved) if steps[at] == 1
    ]
    total = compiled.numel()
    return all(own.within(others, total, SURPRISES) for own, others in zip(mine, zip(*runs, strict=True), strict=True))


def _own_choices(one: torch.Tensor, others: Sequence[torch.Tensor]) -> tuple[_Surprises, _Surprises]:
    """The values that no other run has, where the others differ and where they agree, as distances to the nearest."""
    own, differ, nearest = _nobodys(one, others), torch.zeros_like(one, dtype=torch.bool), None
    for each in others:
        off = (one.to(torch.float64) - each.to(torch.float64)).abs()
        nearest = off if nearest is None else torch.minimum(nearest, off)
        differ |= each != others[0]
    assert nearest is not None
    loud, quiet = _Surprises(), _Surprises()
    loud.add(nearest, own & differ)
    quiet.add(nearest, own & ~differ)
    return loud, quiet


def _nobodys(one: torch.Tensor, others: Sequence[torch.Tensor]) -> torch.Tensor:
    unlike = torch.ones_like(one, dtype=torch.bool)
    for each in others:
        unlike &= each != one
    return unlike
