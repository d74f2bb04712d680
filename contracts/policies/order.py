"""Wrapper order: distribute, compile and capture are put around a model in one order, read from the model as it is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from torch import nn
from torch._dynamo import OptimizedModule
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

DISTRIBUTE, COMPILE, CAPTURE = "distribute", "compile", "capture"


class OrderError(ValueError):
    """A model is wrapped in another order than was declared; the message says what is around what, and where."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Layer:
    """One wrapper as found: its `kind`, by what it is known (`how`), and the `path` of the module that has it."""

    kind: str
    how: str
    path: str

    def __str__(self) -> str:
        return f"{self.kind} ({self.how}) at {self.path or 'the model'}"


def layers(model: nn.Module) -> tuple[Layer, ...]:
    """The wrappers of a model, outermost first, on the way to where most of them are around one another.

    What compiles a module in place also compiles the hooks on it, so that it is around what FSDP2 hooked there,
    whichever came first.
    """
    return _layers(model, "", sharded=False)


def _layers(module: nn.Module, path: str, *, sharded: bool) -> tuple[Layer, ...]:
    own = tuple(_own(module, path, sharded=sharded))
    # What FSDP2 shards has DTensors all the way down, which is no wrapper of its own.
    sharded = sharded or isinstance(module, FSDPModule)
    below = (
        _layers(child, f"{path}.{name}" if path else name, sharded=sharded) for name, child in module.named_children()
    )
    return own + max(below, key=len, default=())


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

    Raises:
        OrderError: they are others, or in another order.
    """
    found = layers(model)
    kinds = tuple(dict.fromkeys(each.kind for each in found))
    if kinds != tuple(declared):
        told = " around ".join(map(str, found)) or "no wrapper"
        raise OrderError(f"declared {' around '.join(declared) or 'no wrapper'}, found {told}")
    return found
