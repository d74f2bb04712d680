"""Random number generators: seeded alike before each run, and checked afterwards for whether a run drew from them."""

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


def generators() -> dict[str, object]:
    """The state of every generator, to compare and to restore."""
    states: dict[str, object] = {"python": random.getstate(), "cpu": torch.get_rng_state()}
    if numpy := sys.modules.get("numpy"):
        states["numpy"] = numpy.random.get_state()
    if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        states["cuda"] = torch.cuda.get_rng_state_all()
    return states


def put_back(states: dict[str, Any]) -> None:
    """Restore the generators to `states`."""
    random.setstate(states["python"])
    torch.set_rng_state(states["cpu"])
    if "numpy" in states and (numpy := sys.modules.get("numpy")):
        numpy.random.set_state(states["numpy"])
    if "cuda" in states:
        torch.cuda.set_rng_state_all(states["cuda"])


def left(before: dict[str, object]) -> dict[tuple[str, str], str]:
    """The state of each generator in a comparable form."""
    return {
        ("random numbers", f"{name} generator"): "untouched" if _same(before[name], now) else f"left at {mark(now)}"
        for name, now in generators().items()
        if name in before
    }


def _same(one: Any, other: Any) -> bool:
    """Whether two states of one generator are the same; digests of all take three times as long."""
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(_same(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(_same, one, other))
    return bool(one.tobytes() == other.tobytes()) if hasattr(one, "tobytes") else bool(one == other)


def mark(state: object) -> str:
    """A short digest of a generator's state, or of several."""
    if isinstance(state, list):
        return "-".join(map(mark, state))
    return hashlib.sha256(repr(_plain(state)).encode()).hexdigest()[:12]


def _plain(state: object) -> object:
    """The state with its arrays as bytes: a long one's repr leaves most of it out."""
    if isinstance(state, torch.Tensor):
        # Without NumPy, which torch does not bring, a tensor has no `numpy()`.
        return bytes(state.tolist())
    if isinstance(state, dict):
        return {key: _plain(value) for key, value in state.items()}
    if isinstance(state, tuple):
        return tuple(map(_plain, state))
    return state.tobytes() if hasattr(state, "tobytes") else state


def drew(before: dict[str, Any]) -> bool:
    """Whether torch's generators have changed since `before`."""
    if not torch.equal(before["cpu"], torch.get_rng_state()):
        return True
    if "cuda" not in before:
        return False
    pairs = zip(before["cuda"], torch.cuda.get_rng_state_all(), strict=False)
    return any(not torch.equal(one, other) for one, other in pairs)
