"""Triton kernels of our own, each an operator with a forward, a backward and a plain-PyTorch reference beside it."""
