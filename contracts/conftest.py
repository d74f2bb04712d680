"""The contract suite: real code, each test a promise of what compiling it does. Nothing is downloaded."""

from __future__ import annotations

import os

import torch

# Read when transformers is imported: whatever asks for a file of a hub is refused, without asking the network.
os.environ.setdefault("HF_HUB_OFFLINE", "1")
# Read when a Triton kernel is defined: without a card Triton can only interpret it.
if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")
