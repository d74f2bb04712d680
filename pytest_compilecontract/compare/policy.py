"""Policies: what an upgrade may change: which metrics gate, how far banded ones may move, which verdicts may stay open.

A TOML file; what it leaves out keeps its default:

    gate = ["graph_breaks", "recompiles"]     # the metrics whose worsening is drift
    allow = ["new"]                           # verdicts that the gate does not wait for

    [band]
    ops_captured = 0.05                       # 5 % less is not drift
    steady_seconds = 0.25                     # 25 % beyond the spread that was measured is not drift
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pytest_compilecontract.errors import UsageError
from pytest_compilecontract.facts.metrics import BANDED, BANDS, GATEABLE, METRICS
from pytest_compilecontract.regular import refuse_special
from pytest_compilecontract.wording import meant

MOST_BYTES = 1024 * 1024


ALLOWABLE = ("missing", "new", "unmeasured")
_KEYS = ("allow", "band", "gate")


@dataclass(frozen=True, kw_only=True, slots=True)
class Policy:
    """`gate` are the metrics whose worsening is drift.

    `band` is how far beyond its measured spread a banded one may move (0.05 is 5 %).

    `allow` are the verdicts that the gate tolerates.

    `across_devices`: whether a lane on one type of device is compared with itself on another, by what does not depend
    on the device.
    """

    gate: frozenset[str] = frozenset(name for name, metric in METRICS.items() if metric.gates)
    band: Mapping[str, float] = field(default_factory=lambda: dict(BANDS), hash=False)
    allow: frozenset[str] = frozenset()
    across_devices: bool = False


DEFAULT_POLICY = Policy()


def read_policy(path: Path) -> Policy:
    """The policy in a TOML file.

    Raises:
        UsageError: the file cannot be read, or is not a valid policy.
    """
    try:
        refuse_special(path)
        with path.open("rb") as file:
            data = file.read(MOST_BYTES + 1)
        if len(data) > MOST_BYTES:
            raise UsageError(f"{path}: larger than {MOST_BYTES // 1024**2} MiB, too large for a policy")
        document = tomllib.loads(data.decode())
    except (OSError, ValueError, RecursionError) as error:
        cause = (isinstance(error, OSError) and error.strerror) or str(error) or type(error).__name__
        raise UsageError(f"{path}: cannot be read ({cause})") from error
    return policy_from_table(document, where=str(path))


def policy_from_table(table: Mapping[str, object], *, where: str) -> Policy:
    """The policy in a table; `where` is the file that contains it.

    Raises:
        UsageError: an unknown key or name, or a value of the wrong type.
    """
    for key in table:
        if key not in _KEYS:
            raise UsageError(f"{where}: unknown key {key!r} (known keys: {', '.join(_KEYS)})")
    band = table.get("band", {})
    if not isinstance(band, dict):
        raise UsageError(f"{where}: band: expected a table, got {band!r}")
    for name, width in band.items():
        _refuse_unknown(name, BANDED, where=f"{where}: band", what="banded metric")
        if not isinstance(width, int | float) or isinstance(width, bool) or not 0 <= width < math.inf:
            raise UsageError(f"{where}: band.{name}: expected a finite number of at least 0, got {width!r}")
    return Policy(
        gate=_names(table, "gate", GATEABLE, DEFAULT_POLICY.gate, where=where, what="metric that can gate"),
        band={**DEFAULT_POLICY.band, **band},
        allow=_names(table, "allow", ALLOWABLE, frozenset(), where=where, what="verdict that can be allowed"),
    )


def _names(
    table: Mapping[str, object], key: str, known: tuple[str, ...], unsaid: frozenset[str], *, where: str, what: str
) -> frozenset[str]:
    names = table.get(key)
    if names is None:
        return unsaid
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise UsageError(f"{where}: {key}: expected a list of names, got {names!r}")
    for name in names:
        _refuse_unknown(name, known, where=f"{where}: {key}", what=what)
    return frozenset(names)


def _refuse_unknown(name: str, known: tuple[str, ...], *, where: str, what: str) -> None:
    if name in known:
        return
    raise UsageError(f"{where}: not a {what}: {name!r}{meant(name, known)} (known: {', '.join(sorted(known))})")
