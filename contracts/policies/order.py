"""Wrapper order: distribute, compile and capture are applied to a model in one order, which is read from the model."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from torch import nn
from torch._dynamo import OptimizedModule
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

DISTRIBUTE, COMPILE, CAPTURE = "distribute", "compile", "capture"


class OrderError(ValueError):
    """A model is wrapped in an order other than declared; the message says what wraps what, and where."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Layer:
    """One wrapper: its `kind`, how it was recognized (`how`), and the `path` of the wrapped module."""

    kind: str
    how: str
    path: str

    def __str__(self) -> str:
        return f"{self.kind} ({self.how}) at {self.path or 'the model'}"


def layers(model: nn.Module) -> tuple[Layer, ...]:
    """The wrappers of a model, outermost first, on the path to the module with the most wrappers around it.

    Compiling a module in place also compiles its hooks, so it counts as around FSDP2's hooks there, whichever was
    applied first.
    """
    return max(_ways(model, "", sharded=False), key=len)


def _ways(module: nn.Module, path: str, *, sharded: bool) -> Iterator[tuple[Layer, ...]]:
    """The wrappers on the path to each innermost module: a branch in order does not excuse another."""
    own = tuple(_own(module, path, sharded=sharded))
    # What FSDP2 shards has DTensors all the way down, which is no wrapper of its own.
    sharded = sharded or isinstance(module, FSDPModule)
    below = list(module.named_children())
    if not below:
        yield own
    for name, child in below:
        for way in _ways(child, f"{path}.{name}" if path else name, sharded=sharded):
            yield own + way


def kinds(found: Sequence[Layer]) -> tuple[str, ...]:
    """The kinds of wrappers, outermost first; adjacent wrappers of one kind are listed once."""
    return tuple(kind for kind, _ in itertools.groupby(each.kind for each in found))


def _own(module: nn.Module, path: str, *, sharded: bool) -> Iterator[Layer]:
    if isinstance(module, OptimizedModule):
        yield Layer(kind=COMPILE, how="torch.compile", path=path)
    if module._compiled_call_impl is not None:
        yield Layer(kind=COMPILE, how="in place", path=path)
    if isinstance(module, DistributedDataParallel):
        yield Layer(kind=DISTRIBUTE, how="DistributedDataParallel", path=path)
    if isinstance(module, FSDPModule):
        yield Layer(kind=DISTRIBUTE, how="fully_shard", path=path)
    elif not sharded and any(isinstance(each, DTensor) for each in module.parameters(recurse=False)):
        yield Layer(kind=DISTRIBUTE, how="DTensor parameters", path=path)
    if getattr(vars(module).get("forward"), "__module__", "") == "torch.cuda.graphs":
        yield Layer(kind=CAPTURE, how="make_graphed_callables", path=path)


def check_order(model: nn.Module, declared: Sequence[str]) -> tuple[Layer, ...]:
    """The model's wrappers, if their kinds are those declared, outermost first.

    A part of the model may lack some of them (a stem that is not compiled), but no part may have others, or another
    order. A kind that occurs twice, such as blocks that FSDP2 shards within the sharded model, is declared twice.

    Raises:
        OrderError: somewhere there are other wrappers, or another order.
    """
    for way in _ways(model, "", sharded=False):
        if not _within(kinds(way), declared):
            raise _not_as(declared, way)
    found = layers(model)
    if kinds(found) != tuple(declared):
        raise _not_as(declared, found)
    return found


def _within(some: Sequence[str], declared: Sequence[str]) -> bool:
    """Whether these kinds are in the declared order; declared kinds may be missing."""
    rest = iter(declared)
    return all(kind in rest for kind in some)


def _not_as(declared: Sequence[str], found: Sequence[Layer]) -> OrderError:
    told = " around ".join(map(str, found)) or "no wrapper"
    return OrderError(f"declared {' around '.join(declared) or 'no wrapper'}, found {told}")
