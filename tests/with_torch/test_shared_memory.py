"""Outputs that share the memory of the target's own tensors: whoever writes to one writes to the other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from holding import hold, measured
from torch import Tensor, nn

pytestmark = pytest.mark.torch

GLOBAL = torch.ones(4, 4)
Change = Callable[[Any], Any]


class Own(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("cache", torch.zeros(8, 4))
        self.weight = nn.Parameter(torch.ones(4, 4))


class Buffer(Own):
    def forward(self, x: Tensor) -> Tensor:
        self.cache[1:5] = x
        return self.cache


class View(Own):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.weight[1:], x @ self.weight


class Window(Own):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.cache[:3], x + self.cache[0]


class Plain(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return GLOBAL, x + GLOBAL


def same(output: Any) -> Any:
    return output


def aliases(target: nn.Module, change: Change, lane: str) -> list[str]:
    """The differences in aliases of the first call, where compiled's output is changed in this way."""

    def run(it: Any) -> None:
        def put(module: nn.Module) -> Callable[[Tensor], Any]:
            compiled = it.compile(module)
            return lambda x: change(compiled(x))

        it.run(target, (torch.randn(4, 4),), (torch.randn(4, 4),), compile_with=put)

    found = measured(hold(run, lane=lane)).numerics
    assert found is not None
    assert {each.kind for each in found.differences} <= {"alias"}
    return [f"{each.at}: {each.detail}" for each in found.differences if each.at.startswith("call 0")]


@pytest.mark.parametrize("lane", ["capture", "aot", "inductor"])
@pytest.mark.parametrize("target", [Buffer, View, Window, Plain])
def test_an_output_that_is_the_targets_own_is_so_in_compiled(target: type[nn.Module], lane: str) -> None:
    assert aliases(target(), same, lane) == []


@pytest.mark.parametrize(
    ("target", "change", "said"),
    [
        pytest.param(
            Buffer,
            lambda output: output.clone(),
            "call 0 output: shares memory with the target's cache in eager, not in compiled",
            id="a copy of a buffer",
        ),
        pytest.param(
            View,
            lambda output: (output[0].clone(), output[1]),
            "call 0 output[0]: shares memory with the target's weight from byte 16 in eager, not in compiled",
            id="a copy of a part of a parameter",
        ),
        pytest.param(
            Window,
            lambda output: (output[0]._base[5:], output[1]),
            "call 0 output[0]: shares memory with the target's cache in eager, not in compiled; "
            "shares memory with the target's cache from byte 80 in compiled, not in eager",
            id="another part of a buffer",
        ),
        pytest.param(
            Plain,
            lambda output: (output[0].clone(), output[1]),
            "call 0 output[0]: shares memory with the target's GLOBAL in eager, not in compiled",
            id="a copy of a global tensor",
        ),
    ],
)
def test_another_memory_than_in_eager_is_named(target: type[nn.Module], change: Change, said: str) -> None:
    assert aliases(target(), change, "aot") == [said]


class Odd(nn.Module):
    """Tensors without a storage beside the output's."""

    def __init__(self) -> None:
        super().__init__()
        self.lazy = nn.LazyLinear(3)
        self.coo = torch.eye(3).to_sparse()
        self.csr = torch.eye(3).to_sparse_csr()
        self.nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])
        self.meta = torch.ones(3, device="meta")
        self.quantized = torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8)

    def forward(self, x: Tensor) -> Tensor:
        return x * 2


@pytest.mark.filterwarnings("ignore")
def test_what_has_no_storage_shares_none() -> None:
    odd = Odd()

    entry = hold(lambda it: it.run(lambda x: odd(x), (torch.ones(3),), (torch.ones(3),)))

    assert (entry.verdict, entry.reason) == ("held", "")
