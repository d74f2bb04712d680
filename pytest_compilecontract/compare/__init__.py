"""Comparing two receipts: which metrics drifted, by which facts, and what that means for an upgrade.

Pure functions. Imports `judge` and `facts`.
"""
