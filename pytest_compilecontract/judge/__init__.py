"""Judging: limits held against a measurement, and what becomes of it: violations, doubts, a verdict.

Pure functions. Imports `facts` alone.
"""
