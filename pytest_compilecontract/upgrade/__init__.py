"""Upgrading: the whole job of a new torch: environments, a suite run in each, and the answer.

Runs pytest in children, and imports no torch. Imports every room but `plugin`, `measure` and `cli`.
"""
