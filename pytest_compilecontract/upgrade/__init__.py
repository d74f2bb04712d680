"""Upgrading to another torch: environments, a suite run in each, and the answer.

Runs pytest in child processes, without importing torch. Imports every package except `plugin`, `measure` and `cli`.
"""
