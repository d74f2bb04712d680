"""Policies: what a project lets an upgrade change. Which metrics gate, how far a banded one may move, what may be open.

A file in TOML; what it does not say is as by default:

    gate = ["graph_breaks", "recompiles"]     # the metrics whose worsening is drift
    allow = ["new"]                           # verdicts that the gate does not wait for

    [band]
    ops_captured = 0.05                       # 5 % less is no drift
    steady_seconds = 0.25                     # 25 % beyond the spread that was measured is no drift
"""

from __future__ import annotations

import difflib
import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from pytest_compilecontract.errors import UsageError

Better = Literal["lower", "higher"]
MOST_BYTES = 1024 * 1024


@dataclass(frozen=True, kw_only=True, slots=True)
class Metric:
    """One thing that is compared.

    `better` is None where neither direction is. `banded` metrics move by themselves: what lies within the spread over
    repeats (`--contract-repeat`) is no change, and without a spread on both sides they are not compared. One that is
    `counted` may then be judged by the policy's width alone. `gates` is the default policy's word. A `young` one is not
    in receipts of older versions of this package, which say nothing of it: then it is not compared.
    """

    name: str
    label: str
    better: Better | None = None
    banded: bool = False
    counted: bool = False
    gates: bool = False
    young: bool = False


METRICS: dict[str, Metric] = {
    each.name: each
    for each in (
        Metric(name="errors", label="errors", better="lower", gates=True),
        Metric(name="limits", label="limits exceeded", better="lower", gates=True),
        Metric(name="frontier", label="frontier", better="higher", gates=True),
        Metric(name="capture", label="capture lost", better="lower", gates=True),
        Metric(name="fullgraph", label="fullgraph", better="higher", gates=True),
        Metric(name="graph_breaks", label="graph breaks", better="lower", gates=True),
        Metric(name="recompiles", label="recompiles", better="lower", gates=True),
        Metric(name="eager_frames", label="eager frames", better="lower", gates=True),
        Metric(name="eager_ops", label="operators in skipped frames", better="lower", gates=True, young=True),
        Metric(name="limit_hits", label="recompile limit hits", better="lower", gates=True),
        Metric(name="ops_captured", label="ops captured", better="higher", banded=True, counted=True, gates=True),
        Metric(name="numerics", label="numeric differences", better="lower", gates=True),
        Metric(name="state_dict", label="state dict changes", better="lower", gates=True),
        Metric(name="cuda_graphs", label="ways out of CUDA graphs", better="lower", gates=True),
        Metric(name="host_syncs", label="host syncs of a steady step", better="lower", gates=True),
        Metric(
            name="kernels_a_step",
            label="kernels of a steady step",
            better="lower",
            banded=True,
            counted=True,
            gates=True,
        ),
        Metric(name="graphs", label="graphs"),
        Metric(name="backward_graphs", label="backward graphs"),
        Metric(name="graphs_executed", label="graphs executed"),
        Metric(name="cold_seconds", label="seconds of the first call", better="lower", banded=True),
        Metric(name="warmup_seconds", label="seconds of the calls that compiled", better="lower", banded=True),
        Metric(name="steady_seconds", label="seconds of a steady call", better="lower", banded=True),
        Metric(name="overhead_seconds", label="seconds of overhead a call", better="lower", banded=True),
        Metric(name="peak_bytes", label="peak bytes of a steady step", better="lower", banded=True),
        Metric(name="device_seconds", label="device seconds of a steady step", better="lower", banded=True),
    )
}
# Without a direction there is no worse, so nothing to gate by.
GATEABLE = tuple(name for name, metric in METRICS.items() if metric.better)
BANDED = tuple(name for name, metric in METRICS.items() if metric.banded)
ALLOWABLE = ("missing", "new", "unmeasured")
_KEYS = ("allow", "band", "gate")


@dataclass(frozen=True, kw_only=True, slots=True)
class Policy:
    """`gate` are the metrics whose worsening is drift.

    `band` is how far beyond its measured spread a banded one may move (0.05 is 5 %).

    `allow` are the verdicts that the gate does not wait for.
    """

    gate: frozenset[str] = frozenset(name for name, metric in METRICS.items() if metric.gates)
    band: Mapping[str, float] = field(default_factory=lambda: {"ops_captured": 0.05, "kernels_a_step": 0.1}, hash=False)
    allow: frozenset[str] = frozenset()


DEFAULT_POLICY = Policy()


def read_policy(path: Path) -> Policy:
    """The policy in a TOML file.

    Raises:
        UsageError: the file cannot be read, or says what cannot mean anything.
    """
    try:
        with path.open("rb") as file:
            data = file.read(MOST_BYTES + 1)
        if len(data) > MOST_BYTES:
            raise UsageError(f"{path}: larger than {MOST_BYTES // 1024**2} MiB, so no policy")
        document = tomllib.loads(data.decode())
    except (OSError, ValueError, RecursionError) as error:
        cause = (isinstance(error, OSError) and error.strerror) or str(error) or type(error).__name__
        raise UsageError(f"{path}: cannot be read ({cause})") from error
    return policy_from_table(document, where=str(path))


def policy_from_table(table: Mapping[str, Any], *, where: str) -> Policy:
    """The policy that a table describes; `where` is the file that it is in.

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
    table: Mapping[str, Any], key: str, known: tuple[str, ...], unsaid: frozenset[str], *, where: str, what: str
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
    close = difflib.get_close_matches(name, known, n=1)
    meant = f", did you mean {close[0]!r}?" if close else ""
    raise UsageError(f"{where}: no {what}: {name!r}{meant} (known: {', '.join(sorted(known))})")
