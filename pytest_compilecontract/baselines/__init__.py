"""Baselines: what was recorded for a lane, in git: which file it is in, what it keeps, and what can be removed.

Imports `compare`, `files`, `judge` and `facts`.
"""
