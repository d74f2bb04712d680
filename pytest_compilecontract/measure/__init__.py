"""Measuring: a target run eager and compiled in one lane, what Dynamo and the device showed, and all put back.

Knows torch; its private functions are touched in `probes` alone. Imports `judge` and `facts`.
"""
