"""Judging: a measurement checked against limits, giving violations, doubts and a verdict.

Pure functions. Imports only `facts`.
"""
