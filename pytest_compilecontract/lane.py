"""The type of the `compile_lane` fixture, for annotations in tests."""

from pytest_compilecontract.measure.compile_lane import CompileLane

__all__ = ["CompileLane"]
