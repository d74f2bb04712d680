"""What the contracts of fusion catch: each test plants the fault that one of them is there for."""

from __future__ import annotations

import pytest
import torch
from holding import hold_contract
from torch import Tensor

from contracts import test_policy_fusion as contracts
from contracts.policies.fusion import normalised

pytestmark = pytest.mark.insides

needs_cpu = pytest.mark.skipif(torch.cuda.is_available(), reason="the contracts count Inductor's kernels on the CPU")


@torch.library.custom_op("compilecontract_tests::barrier", mutates_args=())
def barrier(x: Tensor) -> Tensor:
    """What nothing is fused across."""
    return x.clone()


barrier.register_fake(torch.empty_like)


@needs_cpu
def test_the_policy_as_it_is_holds() -> None:
    contract = contracts.test_it_is_one_kernel_and_no_memory_but_its_output

    assert hold_contract(contract, lane="inductor", fused=normalised).verdict == "held"


@needs_cpu
def test_a_chain_that_is_cut_in_two_is_counted() -> None:
    def cut(x: Tensor, y: Tensor) -> Tensor:
        return torch.sigmoid(barrier(torch.relu(x + y)) * y - 0.5)

    with pytest.raises(AssertionError, match=r"assert \(2, \('aten::clone',\)\) == \(1, \(\)\)"):
        hold_contract(contracts.test_it_is_one_kernel_and_no_memory_but_its_output, lane="inductor", fused=cut)


@needs_cpu
def test_memory_that_the_caller_does_not_get_is_counted() -> None:
    def wasteful(x: Tensor, y: Tensor) -> Tensor:
        return torch.cat([x + y, x - y])[: x.shape[0]]

    with pytest.raises(AssertionError, match="assert 16384 == 8192"):
        hold_contract(contracts.test_it_is_one_kernel_and_no_memory_but_its_output, lane="inductor", fused=wasteful)
