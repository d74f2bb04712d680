"""RMSNorm as one kernel: each row is read once, normalised in float32 and scaled by the weight.

The operator is a `triton_op`: Dynamo keeps it whole, Inductor sees the kernel inside and calls it beside its own.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor, nn
from torch.library import triton_op

from contracts.kernels.launching import wrap_triton

# Rows that one program of the backward adds up for the weight's gradient, before PyTorch adds the programs.
ROWS_A_PROGRAM = 16


@triton.jit
def rms_norm_forward_kernel(x_ptr, weight_ptr, y_ptr, scale_ptr, width, eps, BLOCK: tl.constexpr):
    """One program a row. Writes the row, and the factor that normalised it, for the backward."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < width
    x = tl.load(x_ptr + row * width + column, mask=inside, other=0.0).to(tl.float32)
    weight = tl.load(weight_ptr + column, mask=inside, other=0.0).to(tl.float32)
    scale = 1.0 / tl.sqrt(tl.sum(x * x, axis=0) / width + eps)
    tl.store(scale_ptr + row, scale)
    tl.store(y_ptr + row * width + column, (x * scale * weight).to(y_ptr.dtype.element_ty), mask=inside)


@triton.jit
def rms_norm_backward_kernel(
    dy_ptr, x_ptr, weight_ptr, scale_ptr, dx_ptr, partial_ptr, rows, width,
    ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One program for ROWS rows. The weight's gradient is a partial sum a program: no atomics, so no chance in it."""
    program = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < width
    weight = tl.load(weight_ptr + column, mask=inside, other=0.0).to(tl.float32)
    partial = tl.zeros([BLOCK], dtype=tl.float32)
    for row in range(program * ROWS, min((program + 1) * ROWS, rows)):
        x = tl.load(x_ptr + row * width + column, mask=inside, other=0.0).to(tl.float32)
        dy = tl.load(dy_ptr + row * width + column, mask=inside, other=0.0).to(tl.float32)
        scale = tl.load(scale_ptr + row)
        normal = x * scale
        slope = dy * weight
        dx = scale * (slope - normal * (tl.sum(slope * normal, axis=0) / width))
        tl.store(dx_ptr + row * width + column, dx.to(dx_ptr.dtype.element_ty), mask=inside)
        partial += dy * normal
    tl.store(partial_ptr + program * width + column, partial, mask=inside)


@triton_op("contracts::rms_norm", mutates_args={})
def rms_norm_op(x: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """The normalised rows of x (..., width), and each row's factor in float32."""
    x = x.contiguous()
    width = x.shape[-1]
    y = torch.empty_like(x)
    scale = torch.empty(x.shape[:-1], dtype=torch.float32, device=x.device)
    wrap_triton(rms_norm_forward_kernel)[(scale.numel(),)](
        x, weight, y, scale, width, eps, BLOCK=triton.next_power_of_2(width)
    )
    return y, scale


@triton_op("contracts::rms_norm_backward", mutates_args={})
def rms_norm_backward_op(dy: Tensor, x: Tensor, weight: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    """The gradients of x and of the weight."""
    dy, x = dy.contiguous(), x.contiguous()
    width, rows = x.shape[-1], scale.numel()
    programs = triton.cdiv(rows, ROWS_A_PROGRAM)
    dx = torch.empty_like(x)
    partial = torch.empty((programs, width), dtype=torch.float32, device=x.device)
    wrap_triton(rms_norm_backward_kernel)[(programs,)](
        dy, x, weight, scale, dx, partial, rows, width, ROWS=ROWS_A_PROGRAM, BLOCK=triton.next_power_of_2(width)
    )
    return dx, partial.sum(0).to(weight.dtype)


def _remember(ctx, inputs, output):
    x, weight, _ = inputs
    ctx.save_for_backward(x, weight, output[1])


def _backward(ctx, dy, _scale_gradient):
    dx, dweight = rms_norm_backward_op(dy, *ctx.saved_tensors)
    return dx, dweight, None


rms_norm_op.register_autograd(_backward, setup_context=_remember)


def rms_norm(x: Tensor, weight: Tensor, eps: float = 1e-6) -> Tensor:
    """The rows of x at a root mean square of one, times the weight."""
    return rms_norm_op(x, weight, eps)[0]


def rms_norm_reference(x: Tensor, weight: Tensor, eps: float = 1e-6) -> Tensor:
    """The same in plain PyTorch, in the dtype of x."""
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight


class FusedRMSNorm(nn.Module):
    """RMSNorm through the kernel; in float64, which the kernel does not compute in, through the reference."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return (rms_norm_reference if x.dtype == torch.float64 else rms_norm)(x, self.weight)
