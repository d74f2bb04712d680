"""Versions: torch releases in order, with pre-releases before their release."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from dataclasses import dataclass

from packaging.specifiers import InvalidSpecifier, Specifier
from packaging.version import Version

from pytest_compilecontract.errors import UsageError

_HOW: dict[str, Callable[[Version, Version], bool]] = {
    "==": operator.eq,
    "!=": operator.ne,
    ">=": operator.ge,
    "<=": operator.le,
    ">": operator.gt,
    "<": operator.lt,
}


def version_key(text: str) -> Version | None:
    """A sort key for a version; None if it is not a version. A local part ("+cu130") is ignored."""
    try:
        return Version(Version(text).public)
    except ValueError:
        # No version, or one with a number of thousands of digits, which int refuses.
        return None


def minor_release(text: str | None) -> str:
    """The minor release that a version belongs to, as "2.12"; empty if it begins with none.

    Also for a version that packaging refuses, such as "2.12.0.fb": torch's own builds may have any (TorchVersion).
    """
    release = re.match(r"[0-9]+\.[0-9]+", text or "")
    return release[0] if release else ""


@dataclass(frozen=True, kw_only=True, slots=True)
class VersionRange:
    """Bounds that a version must satisfy, such as ">=2.12,<2.14"; without bounds every version does."""

    text: str
    bounds: tuple[Specifier, ...] = ()

    def __contains__(self, version: object) -> bool:
        key = version_key(version) if isinstance(version, str) else None
        return key is not None and all(_keeps(key, bound) for bound in self.bounds)


def version_range(text: str, *, where: str) -> VersionRange:
    """The range that `text` describes; `where` is what messages call its place.

    Raises:
        UsageError: a part is not a bound.
    """
    try:
        # A local part does not count, and packaging takes none in ">=".
        bounds = tuple(Specifier(re.sub(r"\+[\w.]+\s*$", "", part)) for part in text.split(","))
    except InvalidSpecifier:
        bounds = ()
    if not bounds or not all(_is_known(bound) for bound in bounds):
        raise UsageError(f"{where}: expected a version range such as '>=2.12,<2.14' or '==2.13.*', got {text!r}")
    return VersionRange(text=text, bounds=bounds)


def _is_known(bound: Specifier) -> bool:
    return bound.operator in _HOW and (bound.version.endswith(".*") or version_key(bound.version) is not None)


def _keeps(key: Version, bound: Specifier) -> bool:
    if bound.version.endswith(".*"):
        return bound.contains(key, prereleases=True)
    # Not packaging's own word: to it 2.14.0rc1 is not below 2.14, and here a pre-release is what leads to its release.
    limit = version_key(bound.version)
    assert limit is not None
    return _HOW[bound.operator](key, limit)
