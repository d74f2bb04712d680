"""The kernels' arithmetic, forward and backward, against plain PyTorch in float64, at sizes that fit no block.

Ordinary tests: nothing is compiled by torch. On a GPU the kernels run as they are; without one Triton interprets them,
which covers the arithmetic and the masks, and neither races nor what the GPU's compiler makes of them.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
# The largest error allowed, as a share of the largest value of the tensor: a kernel adds up in float32, and what comes
# out in bfloat16 is rounded once.
ALLOWED = {torch.float32: 2e-5, torch.bfloat16: 8e-3}


def target(rows: int, words: int) -> Tensor:
    """A word for each row; the second row's is ignored."""
    words_wanted = torch.randint(words, (rows,))
    words_wanted[1:2] = -100
    return words_wanted


def scan_arguments(batch: int, length: int, channels: int, states: int) -> list[Tensor]:
    x, b, c = (torch.randn(batch, length, width) for width in (channels, states, states))
    return [x, torch.rand(batch, length, channels), -2 * torch.rand(channels, states), b, c, torch.randn(channels)]


def grouped(inner: int, columns: int, ends: list[int]) -> list[Tensor]:
    return [torch.randn(ends[-1], inner), torch.randn(len(ends), inner, columns), torch.tensor(ends)]


CASES: dict[str, tuple[str, Callable[[], list[Tensor]]]] = {
    "rms_norm of 15 rows of 37": ("rms_norm.rms_norm", lambda: [torch.randn(3, 5, 37), torch.randn(37)]),
    "rms_norm of one row of 3": ("rms_norm.rms_norm", lambda: [torch.randn(1, 3), torch.randn(3)]),
    "rms_norm of no row": ("rms_norm.rms_norm", lambda: [torch.randn(0, 8), torch.randn(8)]),
    "rms_norm of 33 rows of 64": ("rms_norm.rms_norm", lambda: [torch.randn(33, 64), torch.randn(64)]),
    "cross_entropy of 37 words": ("cross_entropy.cross_entropy", lambda: [3 * torch.randn(5, 37), target(5, 37)]),
    "cross_entropy of 5000 words": ("cross_entropy.cross_entropy", lambda: [torch.randn(3, 5000), target(3, 5000)]),
    "cross_entropy of far logits": ("cross_entropy.cross_entropy", lambda: [80 * torch.randn(4, 99), target(4, 99)]),
    "scan of 37 steps": ("scan.scan", lambda: scan_arguments(2, 37, 40, 5)),
    "scan of one step": ("scan.scan", lambda: scan_arguments(1, 1, 3, 1)),
    "scan of one whole chunk": ("scan.scan", lambda: scan_arguments(2, 16, 32, 16)),
    "experts, one without a row": ("experts.grouped_product", lambda: grouped(40, 50, [0, 20, 20, 37])),
    "experts, three of them": ("experts.grouped_product", lambda: grouped(3, 2, [2, 2, 5])),
    "experts, whole tiles": ("experts.grouped_product", lambda: grouped(32, 32, [16, 32, 48, 64])),
}


def kernel_of(name: str) -> tuple[Callable[..., Tensor], Callable[..., Tensor]]:
    """A kernel and its reference in plain PyTorch."""
    triton = pytest.importorskip("triton", reason="Triton is not installed")
    if DEVICE == "cpu" and triton.__version__ < "3.7":
        pytest.skip(f"the interpreter of Triton {triton.__version__} has no loops whose bounds are arguments")
    module, _, function = name.partition(".")
    kernels: Any = importlib.import_module(f"contracts.kernels.{module}")
    return getattr(kernels, function), getattr(kernels, f"{function}_reference")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("case", CASES)
def test_agrees_with_float64(case: str, dtype: torch.dtype) -> None:
    name, make = CASES[case]
    kernel, reference = kernel_of(name)
    if DEVICE == "cpu" and name.startswith("experts") and dtype == torch.bfloat16:
        pytest.skip("Triton's interpreter multiplies the bits of bfloat16 as whole numbers")
    torch.manual_seed(0)
    given = [each.to(DEVICE, dtype if each.is_floating_point() else None) for each in make()]
    ours = [each.clone().requires_grad_(each.is_floating_point()) for each in given]
    theirs = [each.double().requires_grad_() if each.is_floating_point() else each for each in given]

    out, wanted = kernel(*ours), reference(*theirs)
    slope = torch.randn(wanted.shape, dtype=torch.float64, device=DEVICE).to(out.dtype)
    out.backward(slope)
    wanted.backward(slope.double())

    errors = {"output": error(out, wanted)}
    for index, (mine, exact) in enumerate(zip(ours, theirs, strict=True)):
        if mine.requires_grad:
            assert mine.grad is not None
            assert mine.grad.dtype == dtype
            errors[f"gradient {index}"] = error(mine.grad, exact.grad)
    assert {name: each for name, each in errors.items() if not each <= ALLOWED[dtype]} == {}


def error(found: Tensor, wanted: Tensor) -> float:
    """The largest distance, as a share of the largest value; NaN where there is one in either."""
    if not found.numel():
        return 0.0
    return float((found.detach().double() - wanted.detach()).abs().max() / wanted.detach().abs().max().clamp(min=1e-30))


OPERATORS = {
    "rms_norm.rms_norm_op": lambda: (torch.randn(3, 37), torch.randn(37), 1e-6),
    "cross_entropy.cross_entropy_op": lambda: (torch.randn(5, 37), target(5, 37)),
    "scan.scan_op": lambda: tuple(scan_arguments(2, 18, 8, 4)),
    "experts.grouped_product_op": lambda: tuple(grouped(8, 6, [2, 2, 5])),
}


@pytest.mark.parametrize("name", OPERATORS)
def test_is_registered_as_torch_asks(name: str) -> None:
    """Schema, fake implementation, autograd and tracing, by torch.library.opcheck."""
    pytest.importorskip("triton", reason="Triton is not installed")
    module, _, operator = name.partition(".")
    if DEVICE == "cpu" and module != "experts":
        pytest.skip("a triton_op is traced into its kernel, which the interpreter's are not made for")
    torch.manual_seed(0)
    arguments = tuple(
        each.to(DEVICE).requires_grad_(each.is_floating_point()) if isinstance(each, Tensor) else each
        for each in OPERATORS[name]()
    )

    # Raises where one of its four checks fails.
    torch.library.opcheck(getattr(importlib.import_module(f"contracts.kernels.{module}"), operator), arguments)
