"""Shapes: what calls may be made of, as strategies of hypothesis, and the tensors that these draw.

A tensor that is drawn is known by how it was made, so that a sequence of calls can be written down as Python.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.weak import WeakTensorKeyDictionary

from pytest_compilecontract.calls import call
from pytest_compilecontract.errors import UsageError

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

# How each tensor that `tensor` made is written.
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

    One that is not contiguous is a transposed one, or where it has one dimension every other element of a longer one.
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
    _written[made] = f"tensor({', '.join(given)})"
    return made


def _filled(sizes: Sequence[int], dtype: torch.dtype, high: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    if dtype.is_floating_point or dtype.is_complex:
        wide = torch.complex64 if dtype.is_complex else torch.float32
        return torch.randn(sizes, generator=generator, dtype=wide).to(dtype)
    return torch.randint(0, 2 if dtype == torch.bool else high, sizes, generator=generator).to(dtype)


def sizes(low: int, high: int) -> SearchStrategy[int]:
    """Sizes from `low` to `high`, both included; the ends, 1 and what is near a power of two more often."""
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


def buckets(*values: Any) -> SearchStrategy[Any]:
    """One of these values: the sizes that a project pads to, flags, names."""
    if not values:
        raise UsageError("buckets: expected at least one value")
    found: SearchStrategy[Any] = strategies().sampled_from(values)
    return found


def tensors(
    *dimensions: Any,
    dtype: Any = torch.float32,
    requires_grad: Any = False,
    contiguous: Any = True,
    high: int = HIGH,
) -> SearchStrategy[torch.Tensor]:
    """Tensors as `tensor` makes them; each size and each keyword is a value, or a strategy that draws one."""
    st = strategies()
    keywords = _drawn_by_name({"dtype": dtype, "requires_grad": requires_grad, "contiguous": contiguous})
    found: SearchStrategy[torch.Tensor] = st.builds(tensor, *map(_drawn, dimensions), high=st.just(high), **keywords)
    return found


def calls(*args: Any, **kwargs: Any) -> SearchStrategy[call]:
    """Calls of these arguments, each a value or a strategy that draws one."""
    found: SearchStrategy[call] = strategies().builds(call, *map(_drawn, args), **_drawn_by_name(kwargs))
    return found


def modes(drawn: Any, *, grad: Any = None, training: Any = None) -> SearchStrategy[Moded]:
    """The calls that `drawn` gives, with gradients or not, in training or not: each a bool, or a strategy of them."""
    given = _drawn_by_name({"grad": grad, "training": training})
    found: SearchStrategy[Moded] = strategies().builds(Moded, made=drawn.map(as_call), **given)
    return found


def _drawn(value: Any) -> Any:
    """A strategy, or one that draws the value."""
    st = strategies()
    return value if isinstance(value, st.SearchStrategy) else st.just(value)


def _drawn_by_name(values: dict[str, Any]) -> dict[str, Any]:
    return {name: _drawn(value) for name, value in values.items()}


def as_call(value: Any) -> call:
    """What was drawn, as a call: a tensor or another single value is its one argument."""
    if isinstance(value, call):
        return value
    return call(*value) if type(value) is tuple else call(value)


def strategies() -> Any:
    """hypothesis' strategies.

    Raises:
        UsageError: there is no hypothesis.
    """
    try:
        from hypothesis import strategies as found
    except ImportError as error:
        raise UsageError("hypothesis is not installed: pip install hypothesis") from error
    return found


def written(value: Any) -> str:
    """How a value is written as Python; in angle brackets what is not known to be the same when it is made again."""
    if isinstance(value, torch.Tensor):
        return str(_written.get(value) or f"<tensor {tuple(value.shape)} {value.dtype}>")
    if value is None or isinstance(value, (bool, int, float, str, bytes, torch.dtype, torch.device)):
        return repr(value)
    if type(value) is list:
        return f"[{', '.join(map(written, value))}]"
    if type(value) is tuple:
        return f"({', '.join(map(written, value))}{',' if len(value) == 1 else ''})"
    if type(value) is dict:
        return f"{{{', '.join(f'{written(key)}: {written(each)}' for key, each in value.items())}}}"
    return f"<{type(value).__name__}>"


def written_call(made: call) -> str:
    """How a call is written, as an argument of `compile_lane.run`."""
    if not made.kwargs:
        return written(tuple(made.args))
    named = [f"{name}={written(each)}" for name, each in made.kwargs.items()]
    return f"call({', '.join([*map(written, made.args), *named])})"
