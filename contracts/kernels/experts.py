"""A grouped GEMM for a mixture of experts: rows sorted by expert, each group times the weight of its own expert.

The operator is a `custom_op`, opaque to Inductor as well: it reads torch's matmul precision at each launch, as torch's
own matmul does, and a graph would keep what it was when it was made. A custom operator is also what runs compiled
where Triton only interprets.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.library import custom_op

ROWS, INNER, COLUMNS = 16, 32, 32  # of one tile


@triton.jit
def grouped_product_kernel(
    x_ptr, weight_ptr, ends_ptr, y_ptr, experts, inner, columns, weight_expert, weight_inner, weight_column,
    EXPERTS: tl.constexpr, ROWS: tl.constexpr, INNER: tl.constexpr, COLUMNS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """One program a tile of y. A tile has rows of one expert; which ones, each program works out from `ends`."""
    number = tl.arange(0, EXPERTS)
    exists = number < experts
    ends = tl.load(ends_ptr + number, mask=exists, other=0)
    begins = tl.load(ends_ptr + number - 1, mask=exists & (number > 0), other=0)
    tiles = tl.cdiv(ends - begins, ROWS)
    last_tiles = tl.cumsum(tiles, axis=0)
    tile = tl.program_id(0)
    passed = last_tiles <= tile
    expert = tl.sum(passed.to(tl.int32), axis=0)
    # The grid has room for the worst case; most often some programs at its end have nothing to do.
    if expert < experts:
        chosen = number == expert
        begin = tl.sum(tl.where(chosen, begins, 0), axis=0).to(tl.int64)
        end = tl.sum(tl.where(chosen, ends, 0), axis=0).to(tl.int64)
        first_tile = tl.sum(tl.where(chosen, last_tiles - tiles, 0), axis=0)
        row = begin + (tile - first_tile) * ROWS + tl.arange(0, ROWS)
        column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
        weight_ptr += expert.to(tl.int64) * weight_expert
        total = tl.zeros([ROWS, COLUMNS], dtype=tl.float32)
        for start in range(0, inner, INNER):
            at = start + tl.arange(0, INNER)
            x_mask = (row < end)[:, None] & (at < inner)[None, :]
            weight_mask = (at < inner)[:, None] & (column < columns)[None, :]
            x = tl.load(x_ptr + row[:, None] * inner + at[None, :], mask=x_mask, other=0.0)
            weight = tl.load(
                weight_ptr + at[:, None] * weight_inner + column[None, :] * weight_column, mask=weight_mask, other=0.0
            )
            total = tl.dot(x, weight, total, input_precision=PRECISION)
        y_mask = (row < end)[:, None] & (column < columns)[None, :]
        y_at = row[:, None] * columns + column[None, :]
        tl.store(y_ptr + y_at, total.to(y_ptr.dtype.element_ty), mask=y_mask)


@triton.jit
def grouped_weight_gradient_kernel(
    x_ptr, dy_ptr, ends_ptr, dweight_ptr, inner, columns,
    ROWS: tl.constexpr, INNER: tl.constexpr, COLUMNS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """One program a tile of one expert's weight: its rows of x, turned, times its rows of dy. No row: zeros."""
    expert = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * INNER + tl.arange(0, INNER)
    column = tl.program_id(2) * COLUMNS + tl.arange(0, COLUMNS)
    begin = tl.load(ends_ptr + expert - 1, mask=expert > 0, other=0).to(tl.int64)
    end = tl.load(ends_ptr + expert).to(tl.int64)
    total = tl.zeros([INNER, COLUMNS], dtype=tl.float32)
    for start in range(begin, end, ROWS):
        row = start + tl.arange(0, ROWS)
        x_mask = (at < inner)[:, None] & (row < end)[None, :]
        dy_mask = (row < end)[:, None] & (column < columns)[None, :]
        turned = tl.load(x_ptr + row[None, :] * inner + at[:, None], mask=x_mask, other=0.0)
        dy = tl.load(dy_ptr + row[:, None] * columns + column[None, :], mask=dy_mask, other=0.0)
        total = tl.dot(turned, dy, total, input_precision=PRECISION)
    mask = (at < inner)[:, None] & (column < columns)[None, :]
    tl.store(
        dweight_ptr + (expert * inner + at[:, None]) * columns + column[None, :],
        total.to(dweight_ptr.dtype.element_ty),
        mask=mask,
    )


@custom_op("contracts::grouped_product", mutates_args=())
def grouped_product_op(x: Tensor, weight: Tensor, ends: Tensor) -> Tensor:
    """y (rows, columns) of x (rows, inner), weight (experts, inner, columns) and where each expert's rows end."""
    x = x.contiguous()
    (rows, inner), (experts, _, columns) = x.shape, weight.shape
    y = torch.empty((rows, columns), dtype=x.dtype, device=x.device)
    # Each expert may end in a tile that is not full.
    grid = (triton.cdiv(rows, ROWS) + experts, triton.cdiv(columns, COLUMNS))
    grouped_product_kernel[grid](
        x, weight, ends, y, experts, inner, columns, *weight.stride(),
        EXPERTS=triton.next_power_of_2(experts), ROWS=ROWS, INNER=INNER, COLUMNS=COLUMNS, PRECISION=precision(),
    )  # fmt: skip
    return y


@grouped_product_op.register_fake
def _(x: Tensor, weight: Tensor, ends: Tensor) -> Tensor:
    return x.new_empty((x.shape[0], weight.shape[2]))


@custom_op("contracts::grouped_weight_gradient", mutates_args=())
def grouped_weight_gradient_op(x: Tensor, dy: Tensor, ends: Tensor) -> Tensor:
    """The gradient (experts, inner, columns) of the weight."""
    x, dy = x.contiguous(), dy.to(x.dtype).contiguous()
    experts, inner, columns = ends.numel(), x.shape[1], dy.shape[1]
    dweight = torch.empty((experts, inner, columns), dtype=x.dtype, device=x.device)
    grouped_weight_gradient_kernel[(experts, triton.cdiv(inner, INNER), triton.cdiv(columns, COLUMNS))](
        x, dy, ends, dweight, inner, columns, ROWS=ROWS, INNER=INNER, COLUMNS=COLUMNS, PRECISION=precision()
    )
    return dweight


@grouped_weight_gradient_op.register_fake
def _(x: Tensor, dy: Tensor, ends: Tensor) -> Tensor:
    return x.new_empty((ends.numel(), x.shape[1], dy.shape[1]))


def _remember(ctx, inputs, output):
    ctx.save_for_backward(*inputs)


def _backward(ctx, dy):
    x, weight, ends = ctx.saved_tensors
    return grouped_product_op(dy, weight.transpose(1, 2), ends), grouped_weight_gradient_op(x, dy, ends), None


grouped_product_op.register_autograd(_backward, setup_context=_remember)


def precision() -> str:
    """What Triton makes of float32 in a product, as torch is set to: "ieee", or "tf32"."""
    return "ieee" if torch.get_float32_matmul_precision() == "highest" else "tf32"


def grouped_product(x: Tensor, weight: Tensor, ends: Tensor) -> Tensor:
    """The rows of each expert times its weight; float64 goes through the reference."""
    if x.dtype == torch.float64:
        return grouped_product_reference(x, weight, ends)
    return grouped_product_op(x, weight.to(x.dtype), ends)


def grouped_product_reference(x: Tensor, weight: Tensor, ends: Tensor) -> Tensor:
    """The same in plain PyTorch: every row times every weight, and the one of its own expert kept."""
    rows = torch.arange(x.shape[0], device=x.device)
    expert = torch.searchsorted(ends, rows, right=True, out_int32=False)
    return torch.einsum("ri,eic->erc", x, weight)[expert, rows]
