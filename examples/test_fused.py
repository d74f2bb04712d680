"""A fused operator against the plain loop that it replaces, since it may be wrong in eager as well."""

import torch

from pytest_compilecontract import compile_contract


def scan(decay: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """y[t] = decay * y[t - 1] + x[t], for all t at once."""
    steps = torch.arange(len(x))
    weights = torch.tril(decay ** (steps[:, None] - steps).clamp(min=0))
    return weights @ x


def loop(decay: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """The same, one step at a time."""
    state, states = torch.zeros_like(x[0]), []
    for each in x:
        state = decay * state + each
        states.append(state)
    return torch.stack(states)


@compile_contract(fullgraph=True, max_recompiles=0, rtol=1e-4, atol=1e-5)
def test_the_scan_is_the_loop(compile_lane):
    """The compiled scan agrees with the loop in eager."""

    def inputs():
        return torch.tensor(0.9), torch.linspace(-1, 1, 48).reshape(12, 4)

    compile_lane.compare(lambda compile: compile(scan)(*inputs()), reference=lambda compile: loop(*inputs()))
