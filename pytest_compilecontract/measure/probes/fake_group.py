"""torch's process group that transfers no data, which a module of torch.testing registers."""

from __future__ import annotations

import importlib

MODULE = "torch.testing._internal.distributed.fake_pg"


def no_fake_group() -> str | None:
    """Why this torch has no process group "fake", or None; it is registered afterwards."""
    try:
        importlib.import_module(MODULE)
    except Exception as error:  # noqa: BLE001 - what torch's tests need and torch does not
        return f"torch has no process group 'fake' ({type(error).__name__}: {error})"
    return None
