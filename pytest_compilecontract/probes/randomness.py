"""Random number generators: seeded alike before each run, and asked afterwards whether a run drew from them."""

from __future__ import annotations

import hashlib
import random
import sys
from typing import Any

import torch


def seed(value: int) -> None:
    """Seed Python's, NumPy's (where it is loaded) and torch's generators."""
    random.seed(value)
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed(value)
    torch.manual_seed(value)


def generators() -> dict[str, Any]:
    """The state of every generator, to compare and to put back."""
    states: dict[str, Any] = {"python": random.getstate(), "cpu": torch.get_rng_state()}
    if numpy := sys.modules.get("numpy"):
        states["numpy"] = numpy.random.get_state()
    if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        states["cuda"] = torch.cuda.get_rng_state_all()
    return states


def put_back(states: dict[str, Any]) -> None:
    """Put the generators back to `states`."""
    random.setstate(states["python"])
    torch.set_rng_state(states["cpu"])
    if "numpy" in states and (numpy := sys.modules.get("numpy")):
        numpy.random.set_state(states["numpy"])
    if "cuda" in states:
        torch.cuda.set_rng_state_all(states["cuda"])


def left(before: dict[str, Any]) -> dict[str, str]:
    """Where each generator is now, in words that are the same for the same place."""
    return {
        f"random numbers: {name} generator": "untouched" if _same(before[name], now) else f"left at {_mark(now)}"
        for name, now in generators().items()
        if name in before
    }


def _same(one: Any, other: Any) -> bool:
    return _mark(one) == _mark(other)


def _mark(state: Any) -> str:
    if isinstance(state, torch.Tensor):
        # Without NumPy, which torch does not bring, a tensor has no `numpy()`.
        return hashlib.sha256(bytes(state.tolist())).hexdigest()[:8]
    if isinstance(state, list):
        return "-".join(map(_mark, state))
    return hashlib.sha256(repr(_plain(state)).encode()).hexdigest()[:8]


def _plain(state: Any) -> Any:
    # NumPy's state has an array in it, whose repr leaves most of it out.
    return tuple(each.tobytes() if hasattr(each, "tobytes") else each for each in state)


def drew(before: dict[str, Any]) -> bool:
    """Whether torch's generators moved since `before`."""
    if not torch.equal(before["cpu"], torch.get_rng_state()):
        return True
    if "cuda" not in before:
        return False
    pairs = zip(before["cuda"], torch.cuda.get_rng_state_all(), strict=False)
    return any(not torch.equal(one, other) for one, other in pairs)
