"""The installed torch: whether it can be used, and its version. Imports torch only when asked."""

from __future__ import annotations

import functools

from pytest_compilecontract.facts.lanes import TORCH_XLA, Lane
from pytest_compilecontract.facts.versions import version_key

OLDEST_TORCH = (2, 11)


@functools.cache
def no_torch(lane: Lane | None = None) -> str | None:
    """Why nothing can be measured in this process, or nothing in the lane; or None."""
    try:
        version = torch_version()
    except (ImportError, OSError) as error:  # OSError: a shared library of torch's is missing
        return f"torch cannot be imported ({str(error).splitlines()[0]})"
    key = version_key(version)
    # What torch_xla is built for has all that such a lane needs.
    if key is not None and key.release < OLDEST_TORCH and not (lane is not None and lane.backend in TORCH_XLA):
        return f"torch {version} is older than {OLDEST_TORCH[0]}.{OLDEST_TORCH[1]}, the oldest supported"
    return None


def torch_version() -> str:
    """The version of torch, with its local part."""
    import torch

    return torch.__version__
