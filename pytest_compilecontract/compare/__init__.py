"""Comparing: two receipts against each other: which metric drifted, by which facts, and what that means for an upgrade.

Pure functions. Imports `judge` and `facts`.
"""
