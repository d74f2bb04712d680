"""Planted faults: what each is, who should notice it, and what a run with one in it came to.

Knows neither torch nor pytest: tensors are handed in, and are asked by their own methods. Who puts a fault in its place
is `planting` (torch), and who runs a test with it is `sowing` (pytest).
"""
