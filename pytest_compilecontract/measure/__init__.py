"""Measuring: a target run in eager and compiled in one lane, what Dynamo and the device did, and everything restored.

The only package that imports torch; private functions of torch are used only in `probes`. Imports `judge` and `facts`.
"""
