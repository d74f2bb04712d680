"""XLA: lanes that XLA compiles instead of Dynamo: the calls through it, and the measurement made of them.

What is private to an engine of XLA is in `probes.xla_*`; its process is started by the plugin.
"""
