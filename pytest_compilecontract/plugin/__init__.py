"""The plugin as pytest loads it: options, the marker, the fixture, and with `--compile-contracts` the session.

The only package that imports pytest. Imports every package except `upgrade` and `cli`; what imports torch with it, only
where a contract runs.
"""

from .options import compile_lane, pytest_addoption, pytest_configure

__all__ = ["compile_lane", "pytest_addoption", "pytest_configure"]
