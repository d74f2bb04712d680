"""Strategies for `compile_lane.hunt`, and the tensors that they draw."""

from pytest_compilecontract.measure.shapes import buckets, calls, mode, modes, sizes, tensor, tensors

__all__ = ["buckets", "calls", "mode", "modes", "sizes", "tensor", "tensors"]
