"""The contract suite's Triton kernels where there is no GPU: what a graph has of them, and that they compile for one.

Their arithmetic is in contracts/test_kernels_numerics.py, which Triton's interpreter runs in a process of its own.
"""

from __future__ import annotations

import importlib
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.backends.common import aot_autograd
from torch._subclasses.fake_tensor import FakeTensorMode

pytestmark = pytest.mark.torch

triton = pytest.importorskip("triton", reason="Triton is not installed")
if triton.knobs.runtime.interpret:
    pytest.skip("TRITON_INTERPRET is set: nothing is compiled then", allow_module_level=True)
hybrid: Any = importlib.import_module("contracts.models.hybrid")
GPUTarget = importlib.import_module("triton.backends.compiler").GPUTarget

# What each kernel is told beside its tensors' dtype.
CONSTANTS = {
    "BLOCK": 64,
    "ROWS": 16,
    "INNER": 32,
    "COLUMNS": 32,
    "EXPERTS": 4,
    "CHUNK": 16,
    "CHANNELS": 32,
    "STATES": 8,
}
CONSTANTS |= {"IGNORED": -100, "PRECISION": "tf32"}
IN_FLOAT32 = {"scale", "partial", "loss", "dloss", "lse", "starts", "scratch", "da", "db", "dc", "dd"}
KERNELS = [
    "rms_norm.rms_norm_forward_kernel",
    "rms_norm.rms_norm_backward_kernel",
    "cross_entropy.cross_entropy_forward_kernel",
    "cross_entropy.cross_entropy_backward_kernel",
    "scan.scan_forward_kernel",
    "scan.scan_backward_kernel",
    "experts.grouped_product_kernel",
    "experts.grouped_weight_gradient_kernel",
]


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("name", KERNELS)
def test_a_kernel_compiles_for_a_card_that_is_not_here(name: str, dtype: str) -> None:
    module, _, kernel_name = name.partition(".")
    kernel = getattr(importlib.import_module(f"contracts.kernels.{module}"), kernel_name)
    signature = {argument: argument_type(argument, dtype) for argument in kernel.arg_names}
    constants = {argument: CONSTANTS[argument] for argument in kernel.arg_names if argument in CONSTANTS}
    source = triton.compiler.ASTSource(kernel, signature, constexprs=constants)

    compiled = triton.compile(source, target=GPUTarget("cuda", 90, 32))

    assert f".entry {kernel_name}" in compiled.asm["ptx"]


def argument_type(argument: str, dtype: str) -> str:
    """The type of a kernel's argument as Triton writes it, by the argument's name."""
    if argument in CONSTANTS:
        return "constexpr"
    if not argument.endswith("_ptr"):
        return "fp32" if argument == "eps" else "i32"
    of = argument.removesuffix("_ptr")
    return "*i64" if of in ("ends", "target") else "*fp32" if of in IN_FLOAT32 else f"*{dtype}"


class Gpu:
    """The driver of a GPU that is not here, as far as tracing asks it."""

    def get_current_target(self) -> Any:
        return GPUTarget("cuda", 90, 32)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    # Its own `set_active` cannot be undone: `reset_active` looks for the GPU that is not here.
    monkeypatch.setattr(type(triton.runtime.driver), "active", Gpu())


TRITON = "triton_kernel_wrapper_functional"
PRODUCT = "contracts.grouped_product.default"
LAYERS: dict[str, tuple[Callable[[], nn.Module], Callable[[], tuple[Tensor, ...]], dict[str, int]]] = {
    "norm": (lambda: hybrid.NormBlock(), lambda: (torch.randn(2, 17, 48),), {TRITON: 1}),
    "loss": (lambda: hybrid.LossHead(words=99), lambda: (torch.randn(21, 48), torch.randint(99, (21,))), {TRITON: 1}),
    "scan": (lambda: hybrid.ScanMixer(), lambda: (torch.randn(2, 37, 48),), {TRITON: 1}),
    "experts": (lambda: hybrid.ExpertLayer(), lambda: (torch.randn(19, 48),), {PRODUCT: 2}),
    "all": (
        lambda: hybrid.HybridStack(),
        lambda: (torch.randint(32, (2, 21)), torch.randint(32, (2, 21))),
        {TRITON: 6, PRODUCT: 2},
    ),
}


@pytest.mark.skipif(torch.version.cuda is None, reason="a build of torch for the CPU aborts when it traces for a GPU")
@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize("dynamic", [None, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("layer", LAYERS)
def test_a_layer_is_one_graph_with_each_kernel_in_it(layer: str, dynamic: bool | None) -> None:
    make, arguments, expected = LAYERS[layer]
    graphs: list[Counter[str]] = []

    def record(graph: torch.fx.GraphModule, _inputs: object) -> torch.fx.GraphModule:
        graphs.append(Counter(str(node.target) for node in graph.graph.nodes if node.op == "call_function"))
        return graph

    torch.compiler.reset()
    with FakeTensorMode(allow_non_fake_inputs=True), torch.no_grad():
        with torch.device("cuda"):
            model, given = make(), arguments()
        torch.compile(model, backend=aot_autograd(fw_compiler=record), fullgraph=True, dynamic=dynamic)(*given)

    (graph,) = graphs
    assert {name: count for name, count in graph.items() if name in (TRITON, PRODUCT)} == expected
