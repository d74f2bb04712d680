"""Lanes that the contracts name together, and what a contract says where there is no GPU."""

from __future__ import annotations

import pytest

from pytest_compilecontract.lane import CompileLane

# Without a GPU too: cheap enough for every run on a CPU.
ANYWHERE = ("capture", "aot", "inductor", "dynamic")
# Inductor in each precision that models run in, and under CUDA graphs.
PRECISIONS = ("float32", "tf32", "bf16", "autocast")
GPU = (*PRECISIONS, "cudagraphs")
# A policy: what Inductor makes of it on a CPU, too, and what CUDA graphs make of that.
POLICY = ("aot", "inductor", "cudagraphs")
# Whole models: on a CPU no Inductor, which takes half a minute for each.
MODEL = ("aot", *GPU)

# What a steady step on the GPU holds: replayed whole where the lane asks for CUDA graphs, never waited for by the CPU,
# and of no more kernels than eager has.
STEADY = {"cudagraphs": "required", "max_host_syncs": 0, "max_kernels_ratio": 1.0}


def need_gpu(compile_lane: CompileLane) -> None:
    """Leave the lane unmeasured where a Triton kernel has nothing to run on."""
    pytest.importorskip("triton", reason="Triton is not installed")
    if compile_lane.device.type != "cuda":
        pytest.skip("a Triton kernel needs a CUDA device to be compiled for")
