"""Rounding: eager with every result rounded differently, at random, and the discrete choices that it then makes.

A rounded result represents any number at most half a unit in the last place away. Perturbed at random within that
range and rounded again, it stays the same or becomes one of its neighbors, each for an eighth of the results (Monte
Carlo arithmetic: Parker, UCLA CSD-970002, 1997). Results that need no rounding stay: those that are equal in float64,
such as a count or 0.5. Values that are only copied stay as they are, and so do integers and booleans, which change only
if the numbers that they are computed from do.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache, partial

import torch

from pytest_compilecontract import clock
from pytest_compilecontract.facts.measurement import Location

from .protocols import Operator
from .schemas import TorchDispatchMode, is_operator, is_view, is_wrapper, keeps_seeds, mapped, tensors_in, written
from .source import Paths

# Of so many results one goes up and one goes down.
OF = 8
# Elements of choices that are kept to be compared with those of a later run.
KEPT = 1 << 25
# Integers by the width of a float in bytes; a float of one byte stays what it is.
INTEGERS = {2: torch.int16, 4: torch.int32, 8: torch.int64}
# What gives numbers that it was given, or that have no rounding.
EXACT = frozenset(
    """
    _conj _local_scalar_dense _neg_view _reshape_copy _to_copy _unsafe_index _unsafe_view abs alias amax amin arange
    as_strided_scatter bernoulli broadcast_tensors cat ceil chunk clamp clamp_ clamp_max clamp_min clamp_min_ clone
    concat constant_pad_nd contiguous copy copy_ copysign detach diagonal_backward diagonal_scatter embedding empty
    empty_like empty_permuted empty_strided expand_copy eye fill fill_ flatten flip floor fmax fmin full full_like
    gather hardtanh hardtanh_ index index_copy index_copy_ index_fill index_select item lift lift_fresh masked_fill
    masked_fill_ masked_scatter masked_select max max_pool2d_with_indices max_pool3d_with_indices maximum min
    minimum narrow_copy neg neg_ new_empty new_empty_strided new_full new_ones new_zeros ones ones_like pad
    permute_copy pixel_shuffle relu relu6 relu_ repeat repeat_interleave reshape resize_ roll round scalar_tensor
    scatter select_backward select_copy select_scatter set_ sign slice_backward slice_copy slice_scatter sort
    split_copy split_with_sizes squeeze_copy stack t_copy take threshold threshold_backward topk transpose_copy tril
    triu trunc unbind_copy unfold_copy unsqueeze_copy upsample_nearest2d view_copy where zero_ zeros zeros_like
    """.split()  # noqa: SIM905 - one a line they are a page
)
# What CUDA may compute in TF32, which keeps as many digits as float16.
PRODUCTS = ("mm", "conv", "matmul", "linear", "einsum", "attention", "bilinear")
TF32_STEP = 2.0**-10
# What writes to its running mean and variance, at these positions, and has no mark of it in its schema.
RUNNING = ("native_batch_norm", "cudnn_batch_norm", "miopen_batch_norm", "batch_norm", "_batch_norm_impl_index")
RUNNING_AT = slice(3, 5)
# Of these it cannot be told what rounding did.
WIDEST = (torch.float64, torch.complex128)


@dataclass(frozen=True, kw_only=True, slots=True)
class Flip:
    """A discrete choice that differs between two runs, in `count` of its `of` elements."""

    operator: str
    location: Location | None
    count: int
    of: int


@dataclass(frozen=True, kw_only=True, slots=True)
class _Choice:
    operator: str
    made: tuple[torch.Tensor, ...]
    location: Location | None


class Choices:
    """The integers and booleans that operators compute from floats (topk, comparisons), in the first run's order."""

    def __init__(self, paths: Paths) -> None:
        self._paths = paths
        self._first: list[_Choice] = []
        self._runs = 0
        # The place in `_first` of the choice that this run makes next.
        self._next = 0
        # Whether some were not compared: there are too many, or a run made others than the first.
        self._lost = False
        self.elements = 0
        self.flips: dict[int, Flip] = {}

    def start(self) -> None:
        """Another run begins. Its choices are compared with those of the first."""
        self._end()
        self._runs += 1
        self._next = 0

    def note(self, operator: str, made: tuple[torch.Tensor, ...]) -> None:
        if self._runs == 1:
            self._keep(operator, made)
        elif self._next < len(self._first):
            self._compare(self._first[self._next], operator, made)
        elif self._runs:
            self._lost = True

    @property
    def any(self) -> bool:
        """Whether the program makes such choices at all."""
        return bool(self._first) or self._lost

    @property
    def flipped(self) -> bool:
        """Whether a choice differed in any run, or may have: some of them were not compared."""
        self._end()
        return bool(self.flips) or self._lost

    def told(self) -> list[Flip]:
        """The choices that differed in any run, the earliest first."""
        return [flip for _, flip in sorted(self.flips.items())]

    def _end(self) -> None:
        """A run has ended, if one had begun. It should have made all choices of the first."""
        self._lost = self._lost or (self._runs > 1 and self._next < len(self._first))

    def _keep(self, operator: str, made: tuple[torch.Tensor, ...]) -> None:
        more = sum(each.numel() for each in made)
        if self._lost or self.elements + more > KEPT:
            self._lost = True
            return
        self.elements += more
        copies = tuple(each.detach().clone() for each in made)
        self._first.append(_Choice(operator=operator, made=copies, location=self._paths.innermost(sys._getframe())))

    def _compare(self, first: _Choice, operator: str, made: tuple[torch.Tensor, ...]) -> None:
        if first.operator != operator or [each.shape for each in first.made] != [each.shape for each in made]:
            # From here on the run goes another way, and nothing stands beside anything.
            self._lost, self._next = True, len(self._first)
            return
        at, self._next = self._next, self._next + 1
        # Of several outputs one tells.
        flipped = int((first.made[0] != made[0]).sum())
        if flipped > (self.flips[at].count if at in self.flips else 0):
            self.flips[at] = Flip(operator=operator, location=first.location, count=flipped, of=made[0].numel())


class Rounding(TorchDispatchMode):  # type: ignore[misc]
    """While entered, what operators compute is rounded differently. `tf32`: products of float32 may be in TF32.

    Each result moves by `steps` units in the last place, if at all: rounding itself moves by one. It has a random
    generator of its own, so that the program draws the same numbers. After `seconds` it raises TimeoutError: a program
    that iterates until its numbers agree may never end.
    """

    supports_higher_order_operators = True

    def __init__(self, seed: int, choices: Choices, *, tf32: bool, steps: int = 1, seconds: float = math.inf) -> None:
        super().__init__()
        self._seconds = seconds
        self._ends = clock.seconds() + seconds
        self._seed = seed
        self._steps = steps
        self._choices = choices
        self._tf32 = tf32
        self._generators: dict[torch.device, torch.Generator] = {}

    def __torch_dispatch__(
        self,
        func: Callable[..., object],
        types: Iterable[type],
        args: tuple[object, ...] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        kwargs = kwargs or {}
        if any(map(is_wrapper, types)):
            # What it does with the tensors that it consists of comes here, too.
            return NotImplemented
        if not is_operator(func):
            return func(*args, **kwargs)
        if clock.seconds() > self._ends:
            raise TimeoutError(f"not finished after {self._seconds:.0f} s")
        name = func.overloadpacket.__name__
        exact = name in EXACT and not _casts(name, args, kwargs)
        fixed = exact or is_view(func) or torch.Tag.nondeterministic_seeded in func.tags
        unrounded = [] if fixed else _unrounded(func, args, kwargs)
        fixed = fixed or (unrounded is not None and all(bool(same.all()) for _, same in unrounded))
        if not fixed and torch.Tag.pointwise not in func.tags:
            # A sum or a product rounds its partial results, too, by steps of what it is given.
            args, kwargs = self._given_otherwise(func, name, args, kwargs)
        result = func(*args, **kwargs)
        if not fixed:
            own = _own(func, args, kwargs, result)
            for each in own:
                self._move(each)
            for each, (plain, same) in zip(own, unrounded or (), strict=False):
                each.copy_(torch.where(same, plain, each))
        self._note(name, func, (args, kwargs), result)
        return result

    def _given_otherwise(
        self, func: object, name: str, args: tuple[object, ...], kwargs: Mapping[str, object]
    ) -> tuple[tuple[object, ...], Mapping[str, object]]:
        kept = {id(each) for each in written(func, args, kwargs)}
        if name in RUNNING:
            # On a copy the update would be lost, and whether there is one would be eager's own noise.
            kept |= {id(each) for each in args[RUNNING_AT]}
        in_tf32 = self._tf32 and any(part in name for part in PRODUCTS)

        def moved(tensor: torch.Tensor) -> torch.Tensor:
            if id(tensor) in kept or not _is_moved(tensor):
                return tensor
            copy = tensor.clone()
            if in_tf32 and copy.dtype == torch.float32:
                draw = torch.rand(copy.shape, generator=self._generator(copy.device), device=copy.device)
                return copy.mul_(1 + self._steps * TF32_STEP * (draw - 0.5))
            self._move(copy)
            return copy

        return mapped(moved, torch.Tensor, args), mapped(moved, torch.Tensor, kwargs)

    def _move(self, tensor: torch.Tensor) -> None:
        """Move each element to a neighbor, or leave it; zeros, and elements without a neighbor in range, stay."""
        if tensor.is_complex():
            tensor = torch.view_as_real(tensor)
        # Read as an integer, a magnitude is the number of its neighbours below.
        bits = tensor.view(INTEGERS[tensor.itemsize])
        below = bits & torch.iinfo(bits.dtype).max
        largest = _largest(tensor.dtype)
        stays = (below < self._steps) | (below > largest - self._steps)
        draw = torch.randint(
            OF, tensor.shape, generator=self._generator(tensor.device), device=tensor.device, dtype=torch.int8
        )
        step = (draw == 0).to(torch.int8) - (draw == 1).to(torch.int8)
        bits.add_(step.masked_fill_(stays, 0), alpha=self._steps)

    def _generator(self, device: torch.device) -> torch.Generator:
        if device not in self._generators:
            self._generators[device] = torch.Generator(device).manual_seed(self._seed)
        return self._generators[device]

    def _note(self, name: str, func: Operator, given: object, result: object) -> None:
        made = tuple(each for each in tensors_in(result) if not each.is_floating_point() and not each.is_complex())
        if not made or is_view(func) or not all(map(_is_plain, made)) or keeps_seeds(func):
            return
        if any(each.is_floating_point() for each in tensors_in(given)):
            self._choices.note(name, made)


@cache
def _largest(dtype: torch.dtype) -> int | float:
    """The largest finite number of a dtype, read as an integer."""
    return torch.tensor(torch.finfo(dtype).max, dtype=dtype).view(INTEGERS[dtype.itemsize]).item()


def _unrounded(
    func: Operator, args: tuple[object, ...], kwargs: Mapping[str, object]
) -> list[tuple[torch.Tensor, torch.Tensor]] | None:
    """The float results of an operator as computed, and which of their elements are exact: equal in float64.

    None if that cannot be told: operators of other libraries are called once, and float64 has no wider dtype.
    """
    if func.namespace not in ("aten", "prims") or not all(map(_is_plain, tensors_in((args, kwargs)))):
        return None
    found = []
    try:
        for to in (None, torch.float64):
            copied = mapped(partial(_copied, to=to), torch.Tensor, (args, kwargs))
            args_of, kwargs_of = mapped(partial(_dtype, to=to), torch.dtype, copied)
            found.append(_own(func, args_of, kwargs_of, func(*args_of, **kwargs_of)))
    except Exception:  # noqa: BLE001 - whatever an operator does not like of float64, or of copies
        return None
    plain, wide = found
    if [each.shape for each in plain] != [each.shape for each in wide]:
        return None
    return [
        (one, torch.zeros_like(one, dtype=torch.bool) if one.dtype in WIDEST else one == other)
        for one, other in zip(plain, wide, strict=True)
    ]


def _copied(tensor: torch.Tensor, *, to: torch.dtype | None) -> torch.Tensor:
    """A writable copy of a tensor; floats in another dtype."""
    if to is None or not tensor.is_floating_point():
        return tensor.clone()
    return tensor.to(to, copy=True)


def _dtype(dtype: torch.dtype, *, to: torch.dtype | None) -> torch.dtype:
    return to if to is not None and dtype.is_floating_point else dtype


def _casts(name: str, args: tuple[object, ...], kwargs: Mapping[str, object]) -> bool:
    """Whether an operator copies to a dtype that may not hold the values exactly, as a wider one does."""
    given = [each.dtype for each in tensors_in(args)]
    if name == "copy_":
        to, of = given[0], given[-1]
    elif name == "_to_copy":
        asked = kwargs.get("dtype")
        to, of = asked if isinstance(asked, torch.dtype) else given[0], given[0]
    else:
        return False
    return to != of and not _holds(to, of)


@cache
def _holds(wide: torch.dtype, dtype: torch.dtype) -> bool:
    """Whether a format can represent every value of another. PyTorch has no promotion rules for one-byte floats."""
    if not (dtype.is_floating_point or dtype.is_complex) or not (wide.is_floating_point or wide.is_complex):
        return False
    one, other = torch.finfo(wide), torch.finfo(dtype)
    finer = one.eps <= other.eps and one.smallest_normal * one.eps <= other.smallest_normal * other.eps
    return finer and one.max >= other.max and (wide.is_complex or not dtype.is_complex)


def _own(func: object, args: tuple[object, ...], kwargs: Mapping[str, object], result: object) -> list[torch.Tensor]:
    """The float tensors that an operator has computed: its results, and those that it wrote to."""
    given = {id(each) for each in tensors_in((args, kwargs))}
    made = [each for each in tensors_in(result) if id(each) not in given]
    return [each for each in (*made, *written(func, args, kwargs)) if _is_moved(each)]


def _is_plain(tensor: torch.Tensor) -> bool:
    return type(tensor) in (torch.Tensor, torch.nn.Parameter) and tensor.layout == torch.strided


def _is_moved(tensor: torch.Tensor) -> bool:
    if not _is_plain(tensor):
        return False
    real = tensor.itemsize // 2 if tensor.is_complex() else tensor.itemsize
    floating = tensor.is_floating_point() or tensor.is_complex()
    # In the memory of a conjugate, or of a negative, are other numbers than it has.
    own = not tensor.is_conj() and not tensor.is_neg()
    # Several elements of an expanded tensor are one number.
    own = own and all(stride or size < 2 for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return floating and own and real in INTEGERS and tensor.device.type != "meta"
