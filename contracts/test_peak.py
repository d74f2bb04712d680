"""A known graph break: a number taken out of a tensor."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from contracts.devices import ANYWHERE
from contracts.models.peak import limited, to_unit_peak
from pytest_compilecontract import compile_contract
from pytest_compilecontract.lane import CompileLane

pytestmark = pytest.mark.compile_contract(lanes=ANYWHERE)

# Up to torch 2.12, AOTAutograd makes the float that goes into `max` a constant again, so each value compiles.
FLOAT_STAYS_FREE = torch.__version__ >= "2.13"


def waves(*volumes: float) -> list[tuple[Tensor]]:
    """A wave of each volume, as the arguments of a call."""
    return [(volume * torch.randn(2, 64),) for volume in volumes]


@compile_contract(max_graph_breaks=1, max_graphs=3, max_recompiles=1)
def test_known_break(compile_lane: CompileLane) -> None:
    """One break, at `peak = centred.abs().max().item()` in contracts/models/peak.py, line 11.

    What follows is given the peak as a float. Its second value compiles that part once more, and then the float is
    free; with dynamic=True it is from the start.
    """
    seen = compile_lane.run(to_unit_peak, *waves(2.0, 5.0, 0.1, 0.2, 9.0))

    (found,) = seen.graph_breaks or ()
    assert str(found.location) == "contracts/models/peak.py:11 in to_unit_peak"


@compile_contract(
    max_graph_breaks=1,
    max_graphs=3 if FLOAT_STAYS_FREE else 6,
    max_recompiles=1 if FLOAT_STAYS_FREE else 4,
)
def test_known_break_before_a_max(compile_lane: CompileLane) -> None:
    """The same break on line 18, with a `max` after it: one recompile, but one a value on torch 2.11 and 2.12.

    Lane capture has one on every torch: it stops before AOTAutograd, which is what makes the float a constant there.
    """
    seen = compile_lane.run(limited, *waves(2.0, 5.0, 0.1, 0.2, 9.0))

    (found,) = seen.graph_breaks or ()
    assert str(found.location) == "contracts/models/peak.py:18 in limited"
