"""Small models, one of each kind that rounds in its own way. They need torch alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

WORDS = 97
WIDTH = 64


@dataclass(frozen=True, kw_only=True, slots=True)
class Kind:
    """A model, what one batch of it is, and the loss that it is trained by; without one the output has its own."""

    name: str
    make: Callable[[], nn.Module]
    batch: Callable[[], tuple[Any, ...]]
    loss: Callable[..., Tensor] | None


class RMSNorm(nn.Module):
    def __init__(self, width: int = WIDTH) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6)).to(x.dtype) * self.scale


class Attention(nn.Module):
    """Rotated queries and keys, grouped heads."""

    def __init__(self, heads: int = 4, groups: int = 2) -> None:
        super().__init__()
        self.heads, self.groups, self.size = heads, groups, WIDTH // heads
        self.q = nn.Linear(WIDTH, WIDTH, bias=False)
        self.kv = nn.Linear(WIDTH, 2 * groups * self.size, bias=False)
        self.out = nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        q = self.q(x).unflatten(-1, (self.heads, self.size)).transpose(1, 2)
        k, v = self.kv(x).unflatten(-1, (2 * self.groups, self.size)).transpose(1, 2).chunk(2, dim=1)
        angle = torch.arange(x.shape[1], device=x.device)[:, None] / 100 ** torch.linspace(
            0, 1, self.size // 2, device=x.device
        )
        q, k = (_rotated(each, angle.cos().to(x.dtype), angle.sin().to(x.dtype)) for each in (q, k))
        k, v = (each.repeat_interleave(self.heads // self.groups, dim=1) for each in (k, v))
        return self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))


def _rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    one, other = x.chunk(2, dim=-1)
    return torch.cat([one * cos - other * sin, other * cos + one * sin], dim=-1)


class Gated(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.gate, self.down = (
            nn.Linear(*size, bias=False) for size in ((WIDTH, 128), (WIDTH, 128), (128, WIDTH))
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Experts(nn.Module):
    """Two of eight experts a token, by a router in the model's precision; each expert sees the tokens that chose it."""

    def __init__(self, count: int = 8, chosen: int = 2) -> None:
        super().__init__()
        self.count, self.chosen = count, chosen
        self.router = nn.Linear(WIDTH, count, bias=False)
        self.up = nn.Parameter(torch.randn(count, WIDTH, 128) / 8)
        self.down = nn.Parameter(torch.randn(count, 128, WIDTH) / 11)

    def weights(self, x: Tensor) -> tuple[Tensor, Tensor]:
        weights, which = self.router(x).softmax(-1).topk(self.chosen, dim=-1)
        return weights / weights.sum(-1, keepdim=True), which

    def forward(self, x: Tensor) -> Tensor:
        flat = x.flatten(0, -2)
        weights, which = self.weights(flat)
        each = torch.einsum("td,edh->eth", flat, self.up)
        each = torch.einsum("eth,ehd->etd", F.silu(each), self.down)
        gate = torch.zeros(flat.shape[0], self.count, dtype=x.dtype, device=x.device).scatter(-1, which, weights)
        return (each * gate.t().unsqueeze(-1)).sum(0).view_as(x)


class GroupedExperts(Experts):
    """The same by a grouped product, which takes no float64."""

    def forward(self, x: Tensor) -> Tensor:
        flat = x.flatten(0, -2)
        weights, which = self.weights(flat)
        order = which.flatten().argsort(stable=True)
        ends = torch.bincount(which.flatten(), minlength=self.count).cumsum(0).to(torch.int32)
        rows = flat[order // self.chosen].to(self.up.dtype)
        rows = torch._grouped_mm(F.silu(torch._grouped_mm(rows, self.up, offs=ends)), self.down, offs=ends)
        rows = rows * weights.flatten()[order].unsqueeze(-1).to(rows.dtype)
        return torch.zeros_like(flat).index_add(0, order // self.chosen, rows.to(flat.dtype)).view_as(x)


class Language(nn.Module):
    """A decoder whose loss is summed in float32."""

    def __init__(self, mixer: Callable[[], nn.Module], inner: Callable[[], nn.Module], depth: int = 2) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, WIDTH)
        self.blocks = nn.ModuleList(nn.ModuleList([RMSNorm(), mixer(), RMSNorm(), inner()]) for _ in range(depth))
        self.norm, self.head = RMSNorm(), nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        for before, mixer, after, inner in self.blocks:
            x = x + mixer(before(x))
            x = x + inner(after(x))
        return self.head(self.norm(x))


class Recurrent(nn.Module):
    """A gated state, step by step."""

    def __init__(self) -> None:
        super().__init__()
        self.into, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        decay, value, gate = self.into(x).chunk(3, dim=-1)
        state, states = torch.zeros_like(value[:, 0]), []
        for step in range(x.shape[1]):
            keep = decay[:, step].sigmoid()
            state = keep * state + (1 - keep) * value[:, step].tanh()
            states.append(state)
        return self.out(torch.stack(states, dim=1) * F.silu(gate))


class LinearAttention(nn.Module):
    """The delta rule, in parts, as fast weights that are summed up."""

    def __init__(self, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.qkv, self.rate, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, heads), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (each.unflatten(-1, (self.heads, -1)).transpose(1, 2) for each in self.qkv(x).chunk(3, dim=-1))
        k, rate = F.normalize(k, dim=-1), self.rate(x).sigmoid().transpose(1, 2)
        state, outs = torch.zeros_like(k[:, :, 0].unsqueeze(-1) * v[:, :, 0].unsqueeze(-2)), []
        for step in range(x.shape[1]):
            key, value = k[:, :, step], v[:, :, step]
            known = (state * key.unsqueeze(-1)).sum(-2)
            state = state + key.unsqueeze(-1) * ((value - known) * rate[:, :, step, None]).unsqueeze(-2)
            outs.append((state * q[:, :, step].unsqueeze(-1)).sum(-2))
        return self.out(torch.stack(outs, dim=2).transpose(1, 2).flatten(2))


class Residual(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(x + self.inner(x))


def _residual(width: int) -> nn.Module:
    return Residual(
        nn.Sequential(
            nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width),
        )
    )  # fmt: skip


def convolutions() -> nn.Module:
    """Biases before BatchNorm, whose gradients are nothing but rounding."""
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, 2, 1), nn.BatchNorm2d(16), nn.ReLU(), _residual(16), nn.MaxPool2d(2), _residual(16),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10),
    )  # fmt: skip


def groups() -> nn.Module:
    """Up and down again, with GroupNorm."""
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, 2, 1), nn.GroupNorm(4, 16), nn.SiLU(), nn.Conv2d(16, 32, 3, 2, 1), nn.GroupNorm(4, 32),
        nn.SiLU(), nn.Upsample(scale_factor=2.0), nn.Conv2d(32, 16, 3, padding=1), nn.GELU(), nn.Conv2d(16, 3, 1),
    )  # fmt: skip


class Depthwise(nn.Module):
    """Depthwise convolution, LayerNorm over channels, a squeeze that weighs them."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 32, 4, 4)
        self.deep, self.norm = nn.Conv2d(32, 32, 7, padding=3, groups=32), nn.LayerNorm(32)
        self.up, self.down, self.squeeze = nn.Linear(32, 64), nn.Linear(64, 32), nn.Linear(32, 32)
        self.head = nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        y = self.down(F.gelu(self.up(self.norm(self.deep(x).permute(0, 2, 3, 1)))))
        y = y * self.squeeze(y.mean((1, 2))).sigmoid()[:, None, None]
        return self.head((x.permute(0, 2, 3, 1) + y).mean((1, 2)))


class Patches(nn.Module):
    """A vision transformer of two blocks of torch's own."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, WIDTH, 8, 8)
        self.blocks = nn.TransformerEncoder(
            nn.TransformerEncoderLayer(WIDTH, 4, 128, dropout=0.0, batch_first=True, norm_first=True), 2,
            enable_nested_tensor=False,
        )  # fmt: skip
        self.head = nn.Linear(WIDTH, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.blocks(self.stem(x).flatten(2).transpose(1, 2)).mean(1))


class Gru(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell, self.head = nn.GRUCell(WIDTH, WIDTH), nn.Linear(WIDTH, 10)

    def forward(self, x: Tensor) -> Tensor:
        state = torch.zeros(x.shape[0], WIDTH, dtype=x.dtype, device=x.device)
        for step in range(x.shape[1]):
            state = self.cell(x[:, step], state)
        return self.head(state)


class Pairs(nn.Module):
    """Two towers whose loss contrasts all pairs."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = (
            nn.Sequential(nn.Linear(WIDTH, 128), nn.GELU(), nn.LayerNorm(128), nn.Linear(128, 32)) for _ in range(2)
        )
        self.scale = nn.Parameter(torch.tensor(2.0))

    def forward(self, one: Tensor, other: Tensor) -> Tensor:
        one, other = F.normalize(self.one(one), dim=-1), F.normalize(self.other(other), dim=-1)
        return one @ other.t() * self.scale.exp()


class Quantized(nn.Module):
    """The nearest of sixteen codes, by argmin, with a straight-through gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.into, self.out = nn.Linear(WIDTH, 16), nn.Linear(16, WIDTH)
        self.codes = nn.Parameter(torch.randn(32, 16))

    def forward(self, x: Tensor) -> Tensor:
        y = self.into(x)
        which = (y.unsqueeze(-2) - self.codes).square().sum(-1).argmin(-1)
        code = self.codes[which]
        return self.out(y + (code - y).detach()) + 0.1 * (code - y.detach()).square().mean()


class Mixer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.across, self.along = nn.Linear(16, 16), nn.Linear(WIDTH, WIDTH)
        self.norms = nn.ModuleList([nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)])

    def forward(self, x: Tensor) -> Tensor:
        x = x + F.gelu(self.across(self.norms[0](x).transpose(1, 2))).transpose(1, 2)
        return x + F.gelu(self.along(self.norms[1](x)))


def reductions() -> nn.Module:
    class Reductions(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(2048))

        def forward(self, x: Tensor) -> Tensor:
            y = x * self.weight
            return torch.stack([y.sum(-1), y.var(-1), y.logsumexp(-1), y.square().mean(-1).rsqrt(), y.amax(-1)])

    return Reductions()


def _ids() -> tuple[Tensor, Tensor]:
    ids = torch.randint(0, WORDS, (4, 33))
    return ids[:, :-1], ids[:, 1:]


def _sequence() -> tuple[Tensor, Tensor]:
    return torch.randn(8, 16, WIDTH), torch.randint(0, 10, (8,))


def _image() -> tuple[Tensor, Tensor]:
    return torch.randn(8, 3, 32, 32), torch.randint(0, 10, (8,))


def words_loss(logits: Tensor, ids: Tensor) -> Tensor:
    return F.cross_entropy(logits.float().flatten(0, 1), ids.flatten())


def class_loss(logits: Tensor, of: Tensor) -> Tensor:
    return F.cross_entropy(logits.float(), of)


def pair_loss(logits: Tensor) -> Tensor:
    return F.cross_entropy(logits.float(), torch.arange(logits.shape[0], device=logits.device))


def size_loss(output: Tensor) -> Tensor:
    return output.float().square().mean()


KINDS = (
    Kind(name="decoder", make=lambda: Language(Attention, Gated), batch=_ids, loss=words_loss),
    Kind(name="experts", make=lambda: Language(Attention, Experts), batch=_ids, loss=words_loss),
    Kind(name="grouped experts", make=lambda: Language(Attention, GroupedExperts), batch=_ids, loss=words_loss),
    Kind(name="recurrent", make=lambda: Language(Recurrent, Gated, 1), batch=_ids, loss=words_loss),
    Kind(name="linear attention", make=lambda: Language(LinearAttention, Gated, 1), batch=_ids, loss=words_loss),
    Kind(name="recurrent experts", make=lambda: Language(Recurrent, Experts, 1), batch=_ids, loss=words_loss),
    Kind(name="gru", make=Gru, batch=_sequence, loss=class_loss),
    Kind(name="convolution batchnorm", make=convolutions, batch=_image, loss=class_loss),
    Kind(name="convolution groupnorm", make=groups, batch=lambda: _image()[:1], loss=size_loss),
    Kind(name="depthwise", make=Depthwise, batch=_image, loss=class_loss),
    Kind(name="patches", make=Patches, batch=_image, loss=class_loss),
    Kind(name="mixer", make=Mixer, batch=lambda: _sequence()[:1], loss=size_loss),
    Kind(
        name="pairs", make=Pairs, batch=lambda: (torch.randn(16, WIDTH), torch.randn(16, WIDTH)), loss=pair_loss
    ),
    Kind(name="codes", make=Quantized, batch=lambda: _sequence()[:1], loss=size_loss),
    Kind(name="reductions", make=reductions, batch=lambda: (torch.randn(16, 2048),), loss=size_loss),
)  # fmt: skip
