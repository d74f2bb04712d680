"""What decides whether the numerics of a mixture of experts can be judged: how far its router is from a tie.

Rounding that moves a token to another expert changes its output by as much as the experts differ, which no tolerance
could allow and mean anything. So a contract does not widen its tolerance: it holds a router that has decided, shows by
`smallest_margin` that no rounding of its precision comes near a tie, and is then judged like any other model.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

# Of the root mean square of the logits. bfloat16 rounds a logit by 0.004 of its size, and what a layer or two before
# the router leave in it was below 0.03 where this was measured.
DECIDED = 0.2


@torch.no_grad()
def decide(router: Tensor, embedding: Tensor, *, times: float = 1.0) -> None:
    """Make a router's weight (experts, width) choose by the word: expert word % n first, the one after it second.

    The embedding (words, width), no more words than channels, becomes orthogonal rows as long as sqrt(width), as after
    an RMSNorm, `times` so long where one is before the router. The layers between may then turn a word's vector a
    little without moving its expert, the less the longer it is.
    """
    words, width = embedding.shape
    experts = router.shape[0]
    # In float64 whatever the lane's dtype is: there is no such factorisation in bfloat16.
    rows = torch.linalg.qr(torch.randn(width, width, dtype=torch.float64)).Q[:words] * width**0.5
    embedding.copy_(rows * times)
    wanted = torch.full((words, experts), -1.0, dtype=torch.float64)
    number = torch.arange(words)
    wanted[number, number % experts] = 3.0
    wanted[number, (number + 1) % experts] = 1.5
    router.copy_(wanted.t() @ rows / width)


def smallest_margin(
    model: nn.Module,
    routers: Sequence[str],
    run: Callable[[nn.Module], object],
    *,
    top: int = 2,
    logits_of: Callable[[object], Tensor] = lambda output: output,  # type: ignore[assignment,return-value]
) -> float:
    """How far the chosen experts' logits were above the others', at the least, as a share of the logits' RMS.

    `run` runs a copy of the model, eager, as the contract will: whole training steps where it trains.
    """
    found: list[float] = []

    def note(_module: nn.Module, _inputs: object, output: object) -> None:
        logits = logits_of(output).detach().double()
        ranked = logits.sort(descending=True).values
        gap = ranked[..., top - 1] - ranked[..., top]
        found.append(float(gap.min() / logits.square().mean().sqrt()))

    twin = copy.deepcopy(model)
    for name in routers:
        twin.get_submodule(name).register_forward_hook(note)
    run(twin)
    assert found, "no router ran"
    return min(found)
