"""What the contracts of warm-up catch: each test plants the fault that one of them is there for."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch
from holding import hold_contract, kept_limits
from torch import Tensor

from contracts import test_policy_warmup as contracts
from contracts.policies.warmup import Padded

pytestmark = pytest.mark.insides


def test_the_policy_as_it_is_holds() -> None:
    assert hold_contract(contracts.test_after_the_warm_up_nothing_compiles).verdict == "held"


def test_a_size_that_was_forgotten_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    warm_up = contracts.warm_up
    monkeypatch.setattr(contracts, "warm_up", lambda serve, calls: warm_up(serve, calls[:-1]))

    entry = hold_contract(contracts.test_after_the_warm_up_nothing_compiles)

    assert entry.verdict == "broken"
    assert "fail_on_recompile" in entry.reason or "recompile" in str(entry.measurement and entry.measurement.raised)


def test_rows_that_are_not_padded_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    class Unpadded(Padded):
        def forward(self, x: Tensor) -> Tensor:
            return self.serve(x)

    monkeypatch.setattr(contracts, "Padded", Unpadded)

    assert hold_contract(contracts.test_after_the_warm_up_nothing_compiles).verdict == "broken"


def test_padding_that_is_left_on_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    class LeftOn(Padded):
        def forward(self, x: Tensor) -> Tensor:
            made = super().forward(x)
            return torch.cat([made, made[:1]])

    monkeypatch.setattr(contracts, "Padded", LeftOn)

    with pytest.raises(AssertionError):
        contracts.test_padding_is_cut_off()


def test_one_graph_for_all_sizes_is_no_padded_capture(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contracts, "SIZES", (1, 2, 4, 8, 16))

    verdict, broken = kept_limits(hold_contract(contracts.test_after_the_warm_up_nothing_compiles))

    assert (verdict, broken["max_graphs=4"]) == ("violated", 5)


def test_what_switched_off_means_for_fullgraph_on_this_release() -> None:
    """The rule that `may_ask_for_fullgraph` states, in a process that has it switched off."""
    program = (
        "import torch\n"
        "from contracts.policies.warmup import may_ask_for_fullgraph\n"
        "torch.compile(torch.sin, backend='eager', fullgraph=may_ask_for_fullgraph())(torch.ones(2))\n"
        "try:\n"
        "    torch.compile(lambda x: x.sin(), backend='eager', fullgraph=True)(torch.ones(2))\n"
        "except RuntimeError as error:\n"
        "    assert 'no compiled frames' in str(error), error\n"
        "    print('raises')\n"
    )
    surroundings = {**os.environ, "TORCH_COMPILE_DISABLE": "1"}

    ran = subprocess.run([sys.executable, "-c", program], env=surroundings, text=True, capture_output=True, timeout=300)

    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.strip() == ("" if contracts.RELEASE < contracts.STRICT else "raises")
