"""The contract suite: real code, each test a promise of what compiling it does. Nothing is downloaded."""

from __future__ import annotations

import os

import torch

# Read when transformers is imported: whatever asks for a file of a hub is refused, without asking the network.
os.environ.setdefault("HF_HUB_OFFLINE", "1")
# Read when a Triton kernel is defined, and Triton's own are as soon as it is imported, which Inductor does: without a
# card Triton can only interpret them.
if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")

import torch._inductor.config

# Inductor pads a product, or does not, by a benchmark that it runs while it compiles: kernels and strides would differ
# from one run to the next.
torch._inductor.config.shape_padding = False
