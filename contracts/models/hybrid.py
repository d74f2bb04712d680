"""A hybrid stack on kernels of our own: attention, a selective scan, a mixture of experts, and a fused loss."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from contracts.kernels.cross_entropy import cross_entropy
from contracts.kernels.experts import grouped_product
from contracts.kernels.rms_norm import FusedRMSNorm
from contracts.kernels.scan import scan
from contracts.models.decoder import Attention, SwiGLU


class NormBlock(nn.Module):
    """A gated feed-forward layer behind the RMSNorm kernel, added to what it was given."""

    def __init__(self, width: int = 48) -> None:
        super().__init__()
        self.norm = FusedRMSNorm(width)
        self.feed_forward = SwiGLU(width, 2 * width)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.feed_forward(self.norm(x))


class LossHead(nn.Module):
    """The words' logits and their loss by the cross-entropy kernel; hidden (tokens, width), target (tokens,)."""

    def __init__(self, width: int = 48, words: int = 50_257) -> None:
        super().__init__()
        self.project = nn.Linear(width, words, bias=False)

    def forward(self, hidden: Tensor, target: Tensor) -> Tensor:
        return cross_entropy(self.project(F.gelu(hidden)), target)


class ScanMixer(nn.Module):
    """A Mamba-style layer: what enters the state, how long it stays, and what is read, all made from the input."""

    def __init__(self, width: int = 48, states: int = 8) -> None:
        super().__init__()
        self.states = states
        self.enter = nn.Linear(width, 2 * width, bias=False)
        self.select = nn.Linear(width, width + 2 * states)
        self.log_decay = nn.Parameter(torch.arange(1.0, states + 1).log().repeat(width, 1))
        self.skip = nn.Parameter(torch.ones(width))
        self.leave = nn.Linear(width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        inner, gate = self.enter(x).chunk(2, dim=-1)
        inner = F.silu(inner)
        step, b, c = self.select(inner).split([inner.shape[-1], self.states, self.states], dim=-1)
        mixed = scan(inner, F.softplus(step), -self.log_decay.exp(), b, c, self.skip)
        return self.leave(mixed * F.silu(gate))


class Router(nn.Module):
    """Each token's logits of the experts, in float32 at least, whatever the rest computes in."""

    def __init__(self, width: int, experts: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(experts, width) / width**0.5)

    def forward(self, tokens: Tensor) -> Tensor:
        wide = torch.promote_types(tokens.dtype, torch.float32)
        with torch.autocast(tokens.device.type, enabled=False):
            return F.linear(tokens.to(wide), self.weight.to(wide))


class ExpertLayer(nn.Module):
    """Each token through two of the experts, which the router chooses, by two grouped GEMMs.

    `chosen` (tokens, 2) says the experts instead of the router.
    """

    def __init__(self, width: int = 48, experts: int = 4, hidden: int = 64) -> None:
        super().__init__()
        self.router = Router(width, experts)
        self.up = nn.Parameter(torch.randn(experts, width, hidden) / width**0.5)
        self.down = nn.Parameter(torch.randn(experts, hidden, width) / hidden**0.5)

    def forward(self, x: Tensor, chosen: Tensor | None = None) -> Tensor:
        tokens = x.reshape(-1, x.shape[-1])
        logits = self.router(tokens)
        if chosen is None:
            chosen = logits.topk(2).indices
        gates = logits.gather(-1, chosen).softmax(-1).to(x.dtype)
        # Rows sorted by expert, and where each expert's end; a permutation, so that no gradient is a sum by chance.
        expert, order = chosen.reshape(-1).sort(stable=True)
        ends = (expert[None, :] <= torch.arange(self.up.shape[0], device=x.device)[:, None]).sum(-1)
        rows = tokens.repeat_interleave(2, dim=0)[order]
        hidden = F.silu(grouped_product(rows, self.up, ends))
        out = grouped_product(hidden, self.down, ends)[order.argsort()]
        return (out.view(-1, 2, x.shape[-1]) * gates[..., None]).sum(1).view_as(x)


class Residual(nn.Module):
    """A layer behind the RMSNorm kernel, added to what it was given."""

    def __init__(self, width: int, layer: nn.Module) -> None:
        super().__init__()
        self.norm = FusedRMSNorm(width)
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        return x + self.layer(self.norm(x))


class HybridStack(nn.Module):
    """Words to loss: attention, scan and experts once each."""

    def __init__(self, words: int = 32, width: int = 32, positions: int = 64) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, width)
        self.layers = nn.ModuleList(
            Residual(width, layer)
            for layer in (Attention(width, 4, positions), ScanMixer(width), ExpertLayer(width, hidden=32))
        )
        self.norm = FusedRMSNorm(width)
        self.head = nn.Linear(width, words, bias=False)

    def forward(self, words: Tensor, target: Tensor) -> Tensor:
        x = self.embedding(words)
        for layer in self.layers:
            x = layer(x)
        return cross_entropy(self.head(self.norm(x)).flatten(0, 1), target.flatten())
