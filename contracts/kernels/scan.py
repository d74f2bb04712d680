"""A selective scan as in Mamba: a state of each channel that decays and takes in at every step as the input says.

    state(t) = exp(step(t) a) state(t-1) + step(t) b(t) x(t)        y(t) = c(t) . state(t) + d x(t)

x and step (batch, length, channels), a (channels, states), b and c (batch, length, states), d (channels,). The operator
is a `triton_op`. The forward keeps one state in CHUNK; the backward makes the others of a chunk again.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.library import triton_op

from contracts.kernels.launching import wrap_triton

CHANNELS = 32  # of one program
CHUNK = 16


@triton.jit
def scan_forward_kernel(
    x_ptr, step_ptr, a_ptr, b_ptr, c_ptr, d_ptr, y_ptr, starts_ptr, length, channels, states,
    CHUNK: tl.constexpr, CHANNELS: tl.constexpr, STATES: tl.constexpr,
):  # fmt: skip
    """One program for CHANNELS channels of a sequence. Writes y, and the state that each chunk starts from."""
    batch = tl.program_id(0).to(tl.int64)
    channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    index = tl.arange(0, STATES)
    mine, known = channel < channels, index < states
    tile = channel[:, None] * states + index[None, :]
    within = mine[:, None] & known[None, :]
    a = tl.load(a_ptr + tile, mask=within, other=0.0).to(tl.float32)
    d = tl.load(d_ptr + channel, mask=mine, other=0.0).to(tl.float32)
    state = tl.zeros([CHANNELS, STATES], dtype=tl.float32)
    for time in range(length):
        at = batch * length + time
        if time % CHUNK == 0:
            chunk = batch * tl.cdiv(length, CHUNK) + time // CHUNK
            tl.store(starts_ptr + chunk * channels * states + tile, state, mask=within)
        x = tl.load(x_ptr + at * channels + channel, mask=mine, other=0.0).to(tl.float32)
        step = tl.load(step_ptr + at * channels + channel, mask=mine, other=0.0).to(tl.float32)
        b = tl.load(b_ptr + at * states + index, mask=known, other=0.0).to(tl.float32)
        c = tl.load(c_ptr + at * states + index, mask=known, other=0.0).to(tl.float32)
        state = tl.exp(step[:, None] * a) * state + (step * x)[:, None] * b[None, :]
        y = tl.sum(state * c[None, :], axis=1) + d * x
        tl.store(y_ptr + at * channels + channel, y.to(y_ptr.dtype.element_ty), mask=mine)


@triton.jit
def scan_backward_kernel(
    dy_ptr, x_ptr, step_ptr, a_ptr, b_ptr, c_ptr, d_ptr, starts_ptr, scratch_ptr,
    dx_ptr, dstep_ptr, da_ptr, db_ptr, dc_ptr, dd_ptr, length, channels, states,
    CHUNK: tl.constexpr, CHANNELS: tl.constexpr, STATES: tl.constexpr,
):  # fmt: skip
    """One program for CHANNELS channels of a sequence, from its last chunk to its first.

    da and dd are sums over the sequence, one a sequence; db and dc sums over the program's channels, one a program.
    """
    batch = tl.program_id(0).to(tl.int64)
    group = tl.program_id(1)
    channel = group * CHANNELS + tl.arange(0, CHANNELS)
    index = tl.arange(0, STATES)
    mine, known = channel < channels, index < states
    tile = channel[:, None] * states + index[None, :]
    within = mine[:, None] & known[None, :]
    own = tl.arange(0, CHANNELS)[:, None] * STATES + index[None, :]
    program = batch * tl.num_programs(1) + group
    scratch_ptr += program * CHUNK * CHANNELS * STATES
    db_ptr += program * length * states
    dc_ptr += program * length * states
    a = tl.load(a_ptr + tile, mask=within, other=0.0).to(tl.float32)
    d = tl.load(d_ptr + channel, mask=mine, other=0.0).to(tl.float32)
    da = tl.zeros([CHANNELS, STATES], dtype=tl.float32)
    dd = tl.zeros([CHANNELS], dtype=tl.float32)
    dstate = tl.zeros([CHANNELS, STATES], dtype=tl.float32)
    chunks = tl.cdiv(length, CHUNK)
    for back in range(chunks):
        chunk = chunks - 1 - back
        first = chunk * CHUNK
        size = min(CHUNK, length - first)
        state = tl.load(starts_ptr + (batch * chunks + chunk) * channels * states + tile, mask=within, other=0.0)
        for offset in range(size):
            tl.store(scratch_ptr + offset * CHANNELS * STATES + own, state)
            at = batch * length + first + offset
            x = tl.load(x_ptr + at * channels + channel, mask=mine, other=0.0).to(tl.float32)
            step = tl.load(step_ptr + at * channels + channel, mask=mine, other=0.0).to(tl.float32)
            b = tl.load(b_ptr + at * states + index, mask=known, other=0.0).to(tl.float32)
            state = tl.exp(step[:, None] * a) * state + (step * x)[:, None] * b[None, :]
        # What one thread has written another may read below.
        tl.debug_barrier()
        for late in range(size):
            offset = size - 1 - late
            at = batch * length + first + offset
            dy = tl.load(dy_ptr + at * channels + channel, mask=mine, other=0.0).to(tl.float32)
            x = tl.load(x_ptr + at * channels + channel, mask=mine, other=0.0).to(tl.float32)
            step = tl.load(step_ptr + at * channels + channel, mask=mine, other=0.0).to(tl.float32)
            b = tl.load(b_ptr + at * states + index, mask=known, other=0.0).to(tl.float32)
            c = tl.load(c_ptr + at * states + index, mask=known, other=0.0).to(tl.float32)
            before = tl.load(scratch_ptr + offset * CHANNELS * STATES + own)
            decay = tl.exp(step[:, None] * a)
            state = decay * before + (step * x)[:, None] * b[None, :]
            dstate += dy[:, None] * c[None, :]
            # The slope of the exponent step * a.
            dexponent = dstate * decay * before
            taken = tl.sum(dstate * b[None, :], axis=1)
            dstep = tl.sum(dexponent * a, axis=1) + taken * x
            dx = taken * step + d * dy
            da += dexponent * step[:, None]
            dd += dy * x
            db = tl.sum(dstate * (step * x)[:, None], axis=0)
            dc = tl.sum(dy[:, None] * state, axis=0)
            tl.store(dx_ptr + at * channels + channel, dx.to(dx_ptr.dtype.element_ty), mask=mine)
            tl.store(dstep_ptr + at * channels + channel, dstep.to(dstep_ptr.dtype.element_ty), mask=mine)
            tl.store(db_ptr + (first + offset) * states + index, db, mask=known)
            tl.store(dc_ptr + (first + offset) * states + index, dc, mask=known)
            dstate *= decay
        # The next chunk writes where this one reads.
        tl.debug_barrier()
    tl.store(da_ptr + batch * channels * states + tile, da, mask=within)
    tl.store(dd_ptr + batch * channels + channel, dd, mask=mine)


@triton_op("contracts::scan", mutates_args={})
def scan_op(x: Tensor, step: Tensor, a: Tensor, b: Tensor, c: Tensor, d: Tensor) -> tuple[Tensor, Tensor]:
    """y in the dtype of x, and the state that each chunk starts from in float32."""
    x, step, a, b, c, d = (each.contiguous() for each in (x, step, a, b, c, d))
    (batch, length, channels), states = x.shape, a.shape[1]
    y = torch.empty_like(x)
    starts = torch.empty((batch, triton.cdiv(length, CHUNK), channels, states), dtype=torch.float32, device=x.device)
    wrap_triton(scan_forward_kernel)[(batch, triton.cdiv(channels, CHANNELS))](
        x, step, a, b, c, d, y, starts, length, channels, states,
        CHUNK=CHUNK, CHANNELS=CHANNELS, STATES=triton.next_power_of_2(states),
    )  # fmt: skip
    return y, starts


@triton_op("contracts::scan_backward", mutates_args={})
def scan_backward_op(
    dy: Tensor, x: Tensor, step: Tensor, a: Tensor, b: Tensor, c: Tensor, d: Tensor, starts: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The gradients of x, step, a, b, c and d."""
    dy, x, step, a, b, c, d = (each.contiguous() for each in (dy, x, step, a, b, c, d))
    (batch, length, channels), states = x.shape, a.shape[1]
    groups, padded = triton.cdiv(channels, CHANNELS), triton.next_power_of_2(states)
    dx, dstep = torch.empty_like(x), torch.empty_like(step)
    sums = {"dtype": torch.float32, "device": x.device}
    scratch = torch.empty((batch, groups, CHUNK, CHANNELS, padded), **sums)
    da = torch.empty((batch, channels, states), **sums)
    db = torch.empty((batch, groups, length, states), **sums)
    dc = torch.empty((batch, groups, length, states), **sums)
    dd = torch.empty((batch, channels), **sums)
    wrap_triton(scan_backward_kernel)[(batch, groups)](
        dy, x, step, a, b, c, d, starts, scratch, dx, dstep, da, db, dc, dd, length, channels, states,
        CHUNK=CHUNK, CHANNELS=CHANNELS, STATES=padded,
    )  # fmt: skip
    return (
        dx, dstep, da.sum(0).to(a.dtype), db.sum(1).to(b.dtype), dc.sum(1).to(c.dtype), dd.sum(0).to(d.dtype),
    )  # fmt: skip


def _remember(ctx, inputs, output):
    ctx.save_for_backward(*inputs, output[1])


def _backward(ctx, dy, _starts_gradient):
    return scan_backward_op(dy, *ctx.saved_tensors)


scan_op.register_autograd(_backward, setup_context=_remember)


def scan(x: Tensor, step: Tensor, a: Tensor, b: Tensor, c: Tensor, d: Tensor) -> Tensor:
    """y of the scan; float64, which the kernel does not compute in, goes through the reference."""
    if x.dtype == torch.float64:
        return scan_reference(x, step, a, b, c, d)
    return scan_op(x, step, a, b, c, d)[0]


def scan_reference(x: Tensor, step: Tensor, a: Tensor, b: Tensor, c: Tensor, d: Tensor) -> Tensor:
    """The same in plain PyTorch, step after step, in the dtype of the arguments."""
    state = torch.zeros((x.shape[0], *a.shape), dtype=x.dtype, device=x.device)
    outputs = []
    for time in range(x.shape[1]):
        taken = (step[:, time] * x[:, time])[..., None] * b[:, time, None]
        state = torch.exp(step[:, time, :, None] * a) * state + taken
        outputs.append((state * c[:, time, None]).sum(-1) + d * x[:, time])
    return torch.stack(outputs, dim=1)
