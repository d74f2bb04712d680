"""Versions: releases of torch in their order, pre-releases below the release that they lead to."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pytest_compilecontract.errors import UsageError

# PEP 440, less its epochs and rarer spellings: "2.12.0", "2.12.0a0+gitabc", "2.12.0rc1", "2.12.0.dev20260301+cu130".
_VERSION = re.compile(
    r"\s*v?(?P<release>\d{1,9}(?:\.\d{1,9}){0,9})(?:(?P<pre>a|b|rc)(?P<number>\d{0,9}))?(?:\.post(?P<post>\d{0,9}))?"
    r"(?:\.?dev(?P<dev>\d{0,12}))?(?:\+[\w.]+)?\s*"
)
_BOUND = re.compile(r"\s*(?P<how>==|!=|>=|<=|>|<)\s*(?P<version>[^\s*]+?)(?P<any>\.\*)?\s*")
_HOW: dict[str, Callable[[Any, Any], bool]] = {
    "==": operator.eq,
    "!=": operator.ne,
    ">=": operator.ge,
    "<=": operator.le,
    ">": operator.gt,
    "<": operator.lt,
}

Key = tuple[tuple[int, ...], tuple[float, float], float, float]


def version_key(text: str) -> Key | None:
    """What to order a version by; None for what is no version. A local part ("+cu130") does not count."""
    found = _VERSION.fullmatch(text)
    if found is None:
        return None
    release = [int(part) for part in found["release"].split(".")]
    while len(release) > 1 and release[-1] == 0:
        release.pop()
    pre = (math.inf, 0.0)
    if found["pre"]:
        pre = (float(("a", "b", "rc").index(found["pre"])), float(found["number"] or 0))
    elif found["dev"] is not None and found["post"] is None:
        pre = (-1.0, 0.0)
    post = -1.0 if found["post"] is None else float(found["post"] or 0)
    dev = math.inf if found["dev"] is None else float(found["dev"] or 0)
    return tuple(release), pre, post, dev


@dataclass(frozen=True, kw_only=True, slots=True)
class VersionRange:
    """Bounds that a version keeps all of, as ">=2.12,<2.14"; no bound is kept by every version."""

    text: str
    bounds: tuple[tuple[str, Key, bool], ...] = ()

    def __contains__(self, version: object) -> bool:
        key = version_key(version) if isinstance(version, str) else None
        return key is not None and all(_keeps(key, *bound) for bound in self.bounds)


def version_range(text: str, *, where: str) -> VersionRange:
    """The range that `text` describes; `where` is what messages call its place.

    Raises:
        UsageError: a part is no bound.
    """
    bounds = []
    for part in text.split(","):
        found = _BOUND.fullmatch(part)
        key = version_key(found["version"]) if found else None
        if found is None or key is None or (found["any"] and found["how"] not in ("==", "!=")):
            raise UsageError(f"{where}: no version range: {text!r} (as '>=2.12,<2.14', '==2.13.*')")
        bounds.append((found["how"], key, bool(found["any"])))
    return VersionRange(text=text, bounds=tuple(bounds))


def _keeps(key: Key, how: str, bound: Key, any_below: bool) -> bool:
    if not any_below:
        return _HOW[how](key, bound)
    release = bound[0]
    # "2.10" has lost its zero for the order, and not for what begins with it.
    padded = key[0] + (0,) * max(0, len(release) - len(key[0]))
    return _HOW[how](padded[: len(release)], release)
