"""Baselines: what a lane was recorded as, in git: which file it is in, what is kept there, and what may go.

Imports `compare`, `files`, `judge` and `facts`.
"""
