"""What the contracts of distributed wrappers share: a small model, its training in ranks and in one process, meshes."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel

from pytest_compilecontract import compile_contract
from pytest_compilecontract.lane import CompileLane

WIDTH = 16
STEPS = 3
Compile = Callable[..., Any]
Wrap = Callable[[nn.Module, Compile], nn.Module]

# NCCL on GPUs, gloo on a CPU.
two = compile_contract(ranks=2)
fake = compile_contract(ranks=8, process_group="fake")
IN_BOTH = [pytest.param(2, marks=two, id="two"), pytest.param(8, marks=fake, id="fake")]
# With Inductor on GPUs alone: on a CPU it would take minutes, and changes none of the counts.
LANES = ["aot", "float32"]
# Of tensor parallel, for a block.
PLAN: dict[str, Any] = {"up": ColwiseParallel(), "down": RowwiseParallel()}


class Block(nn.Module):
    """Two products with what lies between, and what came in added."""

    def __init__(self, width: int = WIDTH, inner: int = 2 * WIDTH) -> None:
        super().__init__()
        self.up = nn.Linear(width, inner)
        self.down = nn.Linear(inner, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(torch.relu(self.up(x)))


class Stack(nn.Module):
    """Blocks, one after another."""

    def __init__(self, width: int = WIDTH, inner: int = 2 * WIDTH) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(width, inner) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return x


def device() -> str:
    """The type of device of this rank; the fake group moves nothing, and so needs none."""
    return "cuda" if dist.get_backend() == "nccl" else "cpu"


def mesh() -> DeviceMesh:
    """All ranks in a row."""
    return init_device_mesh(device(), (dist.get_world_size(),))


def fsdp(stack: Any, over: DeviceMesh | None = None) -> nn.Module:
    """FSDP2 around each block and around the whole."""
    over = mesh() if over is None else over
    for block in stack.blocks:
        fully_shard(block, mesh=over)
    return fully_shard(stack, mesh=over)


def compile_blocks(stack: Any, compile: Compile) -> None:
    """Compile each block where it is."""
    for block in stack.blocks:
        compile(block, in_place=True)


@dataclass(frozen=True)
class Part:
    """The share of the data that is a rank's own: the part `mine` of so many. A process of its own has all of them."""

    mine: int
    of: int

    @classmethod
    def of_rank(cls) -> Part:
        return cls(dist.get_rank(), dist.get_world_size())

    def batch(self, step: int, width: int) -> Tensor:
        # What comes in requires grad, as what a block hands to the next does: another answer is another graph.
        return torch.full((4, width), 0.1 * (step + 1) * (1 + self.mine), device=device()).requires_grad_()

    def all(self) -> list[Part]:
        return [Part(each, self.of) for each in range(self.of)]


Optimizer = Callable[[Any], torch.optim.Optimizer]


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1)


def whole(tensor: Tensor) -> Tensor:
    """A copy of all of a tensor, wherever its shards are."""
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).detach().clone()


def trained(
    model: nn.Module,
    part: Part,
    *,
    alone: bool = False,
    width: int = WIDTH,
    optimizer: torch.optim.Optimizer | None = None,
    after_backward: Callable[[nn.Module], Tensor | None] = lambda _: None,
    steps: range = range(STEPS),
    step_with: Callable[[], object] | None = None,
) -> list[Tensor]:
    """The losses of some steps on a part of the data, and the whole parameters after; `alone` learns from all parts."""
    used = optimizer or sgd(model.parameters())
    found = []
    for step in steps:
        losses = {each: model(each.batch(step, width)).square().mean() for each in (part.all() if alone else [part])}
        torch.stack([*losses.values()]).mean().backward()
        if (seen := after_backward(model)) is not None:
            found.append(seen)
        (step_with or used.step)()
        used.zero_grad()
        found.append(losses[part].detach())
    return [*found, *map(whole, model.parameters())]


def held(compile_lane: CompileLane, wrap: Wrap, part: Callable[[], Part] = Part.of_rank, **how: Any) -> nn.Module:
    """Train the stack under wrappers, eager against compiled and against one process; gives one so wrapped back.

    Not against one process without `compares`, where the contract compares no numbers.
    """
    compares = how.pop("compares", True)
    sizes = {name: how.pop(name) for name in ("width", "inner") if name in how}

    def stack() -> nn.Module:
        torch.manual_seed(0)
        return Stack(**sizes).to(device())

    def with_width(model: nn.Module, **more: Any) -> list[Tensor]:
        return trained(model, part(), width=sizes.get("width", WIDTH), **how, **more)

    def body(compile: Compile) -> tuple[list[Tensor], nn.Module]:
        model = wrap(stack(), compile)
        return with_width(model), model

    def one_process() -> tuple[list[Tensor], None]:
        return with_width(stack(), alone=True), None

    compile_lane.compare(body, alone=one_process if compares else None)
    return wrap(stack(), compile_lane.compile)


@contextlib.contextmanager
def alone(device: str) -> Iterator[DeviceMesh]:
    """A process group of this process alone, without a port; taken down afterwards."""
    dist.init_process_group("nccl" if device == "cuda" else "gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        yield init_device_mesh(device, (1,))
    finally:
        dist.destroy_process_group()


@pytest.fixture
def one_rank(compile_lane: CompileLane) -> Iterator[DeviceMesh]:
    """The mesh of this process alone, on the lane's device."""
    with alone(compile_lane.device.type) as mesh:
        yield mesh
