"""Shapes: strategies of hypothesis for the arguments of calls, and the tensors that they draw.

How a drawn tensor was made is kept, so that a sequence of calls can be written as Python.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import torch
from torch.utils.weak import WeakTensorKeyDictionary

from pytest_compilecontract.calls import call
from pytest_compilecontract.errors import UsageError

from .probes.tensors import backward_hooks

T = TypeVar("T")

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

    # A value, or a strategy that draws one.
    Given: TypeAlias = T | SearchStrategy[T]

# How each tensor that `tensor` made is written, and made again.
_written: Any = WeakTensorKeyDictionary()
# What integers that are drawn stay below, where nothing is said.
HIGH = 10
# Half of the sizes are no farther than this from the least.
SMALL = 16


@dataclass(frozen=True, kw_only=True, slots=True)
class Moded:
    """A call, and the modes it is made in; None leaves a mode as it is."""

    made: call
    grad: bool | None = None
    training: bool | None = None

    @property
    def has_modes(self) -> bool:
        return self.grad is not None or self.training is not None


def tensor(
    *sizes: int,
    dtype: torch.dtype = torch.float32,
    requires_grad: bool = False,
    contiguous: bool = True,
    high: int = HIGH,
) -> torch.Tensor:
    """A tensor of these sizes, with the same values each time: normally distributed, or integers from 0 below `high`.

    If not contiguous, it is transposed, or with one dimension, every other element of a longer tensor.
    """
    stored = list(sizes)
    if not contiguous and len(stored) > 1:
        stored[-2:] = reversed(stored[-2:])
    elif not contiguous and stored:
        stored[0] *= 2
    made = _filled(stored, dtype, high)
    if not contiguous and len(stored) > 1:
        made = made.transpose(-2, -1)
    elif not contiguous and stored:
        made = made[::2]
    made.requires_grad_(requires_grad)
    given = [*map(str, sizes)]
    given += [f"dtype={dtype}"] if dtype != torch.float32 else []
    given += ["requires_grad=True"] if requires_grad else []
    given += ["contiguous=False"] if not contiguous else []
    given += [f"high={high}"] if high != HIGH else []
    again = functools.partial(
        tensor, *sizes, dtype=dtype, requires_grad=requires_grad, contiguous=contiguous, high=high
    )
    _written[made] = (f"tensor({', '.join(given)})", again)
    return made


def text_of(value: torch.Tensor) -> str | None:
    """The call of `tensor` that makes this tensor; None if there is none, or the tensor has changed since."""
    text, again = _written.get(value) or (None, None)
    return text if again is not None and _is_same(value, again()) else None


def _is_same(value: torch.Tensor, fresh: torch.Tensor) -> bool:
    """Whether a tensor is unchanged. Compares the whole storage, since the version counter misses writes to `.data`."""
    if type(value) is not torch.Tensor or value.layout != torch.strided or vars(value):
        return False
    if any(backward_hooks(value)) or not value.is_leaf or value.grad is not None or _facts(value) != _facts(fresh):
        return False
    return torch.equal(*(torch.empty(0, dtype=torch.uint8).set_(each.untyped_storage()) for each in (value, fresh)))


def _facts(value: torch.Tensor) -> tuple[object, ...]:
    kind = (value.dtype, value.device, value.requires_grad, value.is_inference(), value.is_conj(), value.is_neg())
    return (*kind, value.shape, value.stride(), value.storage_offset(), value.untyped_storage().nbytes())


def _filled(sizes: Sequence[int], dtype: torch.dtype, high: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    if dtype.is_floating_point or dtype.is_complex:
        wide = torch.complex64 if dtype.is_complex else torch.float32
        return torch.randn(sizes, generator=generator, dtype=wide).to(dtype)
    return torch.randint(0, 2 if dtype == torch.bool else high, sizes, generator=generator).to(dtype)


def sizes(low: int, high: int) -> SearchStrategy[int]:
    """Sizes from `low` to `high`, inclusive; the ends, 1 and sizes near a power of two are drawn more often."""
    st = strategies()
    if not 0 <= low <= high:
        raise UsageError(f"sizes: expected 0 <= low <= high, got {low!r} and {high!r}")
    near = [(1 << power) + by for power in range(high.bit_length()) for by in (-1, 0, 1)]
    edges = sorted({each for each in (low, low + 1, high - 1, high, *near) if low <= each <= high})
    any_size = st.integers(low, min(high, low + SMALL)) | st.integers(low, high)
    # The size itself is drawn, and then moved to an edge or not: so a size at an edge shrinks to those beside it.

    def moved(drawn: tuple[bool, int]) -> int:
        to_edge, size = drawn
        return min(edges, key=lambda edge: abs(edge - size)) if to_edge else size

    found: SearchStrategy[int] = st.tuples(st.booleans(), any_size).map(moved)
    return found


def buckets(*values: T) -> SearchStrategy[T]:
    """One of these values, such as the sizes that a project pads to, flags or names."""
    if not values:
        raise UsageError("buckets: expected at least one value")
    found: SearchStrategy[T] = strategies().sampled_from(values)
    return found


def tensors(
    *dimensions: Given[int],
    dtype: Given[torch.dtype] = torch.float32,
    requires_grad: Given[bool] = False,
    contiguous: Given[bool] = True,
    high: int = HIGH,
) -> SearchStrategy[torch.Tensor]:
    """Tensors as `tensor` makes them; each size and each keyword is a value, or a strategy that draws one."""
    st = strategies()
    keywords = _drawn_by_name({"dtype": dtype, "requires_grad": requires_grad, "contiguous": contiguous})
    found: SearchStrategy[torch.Tensor] = st.builds(tensor, *map(_drawn, dimensions), high=st.just(high), **keywords)
    return found


def calls(*args: object, **kwargs: object) -> SearchStrategy[call]:
    """Calls of these arguments, each a value or a strategy that draws one."""
    found: SearchStrategy[call] = strategies().builds(call, *map(_drawn, args), **_drawn_by_name(kwargs))
    return found


def modes(
    drawn: SearchStrategy[object], *, grad: Given[bool | None] = None, training: Given[bool | None] = None
) -> SearchStrategy[Moded]:
    """The calls from `drawn`, with or without gradients, in training or not: each a bool or a strategy for one."""
    given = _drawn_by_name({"grad": grad, "training": training})
    found: SearchStrategy[Moded] = strategies().builds(Moded, made=drawn.map(as_call), **given)
    return found


def mode(made: object, *, grad: bool | None = None, training: bool | None = None) -> Moded:
    """One call in its modes, as `modes` draws it, for `compile_lane.run`: a tensor, a tuple or `call(...)`."""
    return Moded(made=as_call(made), grad=grad, training=training)


def _drawn(value: object) -> object:
    """The strategy itself, or one that draws the value."""
    st = strategies()
    return value if isinstance(value, st.SearchStrategy) else st.just(value)


def _drawn_by_name(values: dict[str, object]) -> dict[str, object]:
    return {name: _drawn(value) for name, value in values.items()}


def as_call(value: object) -> call:
    """A drawn value as a call: a single value is its only argument."""
    if isinstance(value, call):
        return value
    return call(*value) if type(value) is tuple else call(value)


def strategies() -> Any:
    """hypothesis' strategies.

    Raises:
        UsageError: hypothesis is not installed.
    """
    try:
        from hypothesis import strategies as found
    except ImportError as error:
        raise UsageError("hypothesis is not installed: pip install hypothesis") from error
    return found
