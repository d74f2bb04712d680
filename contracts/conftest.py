"""The contract suite: real code, each test a promise of what compiling it does. Nothing is downloaded."""

from __future__ import annotations

import os

import pytest
import torch

# Read when transformers is imported: whatever asks for a file of a hub is refused, without asking the network.
os.environ.setdefault("HF_HUB_OFFLINE", "1")
# Read when a Triton kernel is defined, and Triton's own are as soon as it is imported, which Inductor does: without a
# GPU Triton can only interpret them.
if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")

# Each worker of pytest-xdist takes as many threads as there are cores, and as many processes to compile with, if nobody
# says otherwise; eight of them then wait for one another.
if workers := os.environ.get("PYTEST_XDIST_WORKER_COUNT"):
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(max(1, torch.get_num_threads() // int(workers)))

import torch._inductor.config

from contracts.vision import name_operators

name_operators()

# Inductor pads a product, or does not, by a benchmark that it runs while it compiles: kernels and strides would differ
# from one run to the next.
torch._inductor.config.shape_padding = False


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What takes longest goes first, so that no worker ends long after the other: Inductor's lanes, and ranks."""
    items.sort(key=lambda item: not ("[inductor" in item.nodeid or item.path.name.startswith("test_distributed_")))
