"""Probes: the only place that touches torch's private functions. One file a kind of fact."""
