"""Taps: replace a function of torch's while measuring, and restore it. A missing function is a reason, not a crash."""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable
from typing import Any


class Taps(contextlib.ExitStack):
    """The taps of one measurement; leaving restores every function, the last one first.

    `missing` says, by the tap's name, why it could not be set.
    """

    def __init__(self) -> None:
        super().__init__()
        self.missing: dict[str, str] = {}

    def set(
        self, name: str, owner: object, attribute: str, around: Callable[..., object], *, reads: tuple[str, ...] = ()
    ) -> None:
        """Put `around(original, *args, **kwargs)` in place of `owner.attribute`.

        `reads` are the parameters that `around` looks up by name; without one of them the tap is not set.
        """
        original = vars(owner).get(attribute) if owner is not None else None
        if not callable(original):
            self.missing[name] = f"torch has no {_path(owner)}.{attribute}"
            return
        # Not of those that nothing is read of: Python has no signature for some of its own.
        known = inspect.signature(original).parameters if reads else ()
        if unknown := [each for each in reads if each not in known]:
            self.missing[name] = f"{_path(owner)}.{attribute} of torch has no parameter {unknown[0]!r}"
            return

        @functools.wraps(original)
        def tapped(*args: object, **kwargs: object) -> object:
            return around(original, *args, **kwargs)

        setattr(owner, attribute, tapped)
        self.callback(setattr, owner, attribute, original)


def beneath(function: Any) -> object:
    """The function under this plugin's own taps: torch's, or what the project replaced it with."""
    while (code := getattr(function, "__code__", None)) and (code.co_filename, code.co_name) == (__file__, "tapped"):
        function = function.__wrapped__
    return function


def _path(owner: object) -> str:
    if owner is None:
        return "such module"
    module = getattr(owner, "__module__", "")
    name = getattr(owner, "__qualname__", getattr(owner, "__name__", repr(owner)))
    return f"{module}.{name}" if module and not name.startswith(module) else str(name)
