"""Baselines: what was recorded for a lane, in git: the files, what they keep, and what can be removed.

Imports `compare`, `files`, `judge` and `facts`.
"""
