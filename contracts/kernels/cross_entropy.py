"""Softmax cross-entropy over a large vocabulary: the logits are read once, and no softmax of them is ever kept.

The operator is a `triton_op`. Its backward makes the gradient of the logits from them and one number a row.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.library import triton_op

from contracts.kernels.launching import wrap_triton

BLOCK = 2048
IGNORED = -100


@triton.jit
def cross_entropy_forward_kernel(
    logits_ptr, target_ptr, loss_ptr, lse_ptr, words, IGNORED: tl.constexpr, BLOCK: tl.constexpr
):
    """One program a row: the log of the sum of exponentials, block by block, each time from the largest so far."""
    row = tl.program_id(0).to(tl.int64)
    # A row times a large vocabulary does not fit in 32 bits.
    logits_ptr += row * words
    largest = float("-inf")
    total = 0.0
    for start in range(0, words, BLOCK):
        word = start + tl.arange(0, BLOCK)
        logits = tl.load(logits_ptr + word, mask=word < words, other=float("-inf")).to(tl.float32)
        now = tl.maximum(largest, tl.max(logits, axis=0))
        total = total * tl.exp(largest - now) + tl.sum(tl.exp(logits - now), axis=0)
        largest = now
    lse = largest + tl.log(total)
    target = tl.load(target_ptr + row)
    counts = target != IGNORED
    wanted = tl.load(logits_ptr + target, mask=counts, other=0.0).to(tl.float32)
    tl.store(loss_ptr + row, tl.where(counts, lse - wanted, 0.0))
    tl.store(lse_ptr + row, lse)


@triton.jit
def cross_entropy_backward_kernel(
    dloss_ptr, logits_ptr, target_ptr, lse_ptr, dlogits_ptr, words, IGNORED: tl.constexpr, BLOCK: tl.constexpr
):
    """One program for a block of a row: softmax less one at the target, times the gradient of the row's loss."""
    row = tl.program_id(0).to(tl.int64)
    word = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = word < words
    target = tl.load(target_ptr + row)
    logits = tl.load(logits_ptr + row * words + word, mask=inside, other=float("-inf")).to(tl.float32)
    softmax = tl.exp(logits - tl.load(lse_ptr + row))
    dloss = tl.where(target == IGNORED, 0.0, tl.load(dloss_ptr + row))
    dlogits = dloss * (softmax - tl.where(word == target, 1.0, 0.0))
    tl.store(dlogits_ptr + row * words + word, dlogits.to(dlogits_ptr.dtype.element_ty), mask=inside)


@triton_op("contracts::cross_entropy", mutates_args={})
def cross_entropy_op(logits: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """The loss of each row of logits (rows, words) and its log of the sum of exponentials, in float32."""
    logits = logits.contiguous()
    rows, words = logits.shape
    loss = torch.empty(rows, dtype=torch.float32, device=logits.device)
    lse = torch.empty_like(loss)
    wrap_triton(cross_entropy_forward_kernel)[(rows,)](logits, target, loss, lse, words, IGNORED=IGNORED, BLOCK=BLOCK)
    return loss, lse


@triton_op("contracts::cross_entropy_backward", mutates_args={})
def cross_entropy_backward_op(dloss: Tensor, logits: Tensor, target: Tensor, lse: Tensor) -> Tensor:
    """The gradient of the logits."""
    dloss, logits = dloss.contiguous(), logits.contiguous()
    rows, words = logits.shape
    dlogits = torch.empty_like(logits)
    wrap_triton(cross_entropy_backward_kernel)[(rows, triton.cdiv(words, BLOCK))](
        dloss, logits, target, lse, dlogits, words, IGNORED=IGNORED, BLOCK=BLOCK
    )
    return dlogits


def _remember(ctx, inputs, output):
    ctx.save_for_backward(*inputs, output[1])


def _backward(ctx, dloss, _lse_gradient):
    return cross_entropy_backward_op(dloss, *ctx.saved_tensors), None


cross_entropy_op.register_autograd(_backward, setup_context=_remember)


def cross_entropy(logits: Tensor, target: Tensor) -> Tensor:
    """The mean loss, in float32, over the rows whose target is not IGNORED; float64 goes through the reference."""
    if logits.dtype == torch.float64:
        return cross_entropy_reference(logits, target)
    return cross_entropy_op(logits, target)[0].sum() / (target != IGNORED).sum()


def cross_entropy_reference(logits: Tensor, target: Tensor) -> Tensor:
    """The same in plain PyTorch, in the dtype of the logits."""
    rows = torch.arange(target.numel(), device=target.device)
    counts = target != IGNORED
    loss = logits.logsumexp(-1) - logits[rows, target.clamp(min=0)]
    return torch.where(counts, loss, 0.0).sum() / counts.sum()
