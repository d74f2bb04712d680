"""Receipts: what a session measured and where, as one JSON document, and its JSON Schema."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from typing import Any

from .evidence import Evidence
from .ladder import Frontier
from .lanes import BUILT_IN
from .measurement import Measurement
from .own_failure import OwnFailure
from .planted import Planted
from .ranks import RankMeasured
from .shards import Shard
from .verdict import Verdict, Violation
from .versions import minor_release

FORMAT = 1
# Taken now, for a test may have its own in place of `json.dumps`, and digests are to stay.
_canonical = json.JSONEncoder(sort_keys=True).encode
RECEIPT = "receipt.json"
# Among the libraries of an environment in which XLA compiles: the plugin of PJRT that it runs on.
PJRT = "pjrt"
# The same as a page, beside it.
PAGE = "index.html"
CREATED = "^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z$"


@dataclass(frozen=True, kw_only=True, slots=True)
class Environment:
    """Where a measurement was taken. None means: not found, or not available.

    `torch` is the full version ("2.13.0+cu130"), `cuda` the toolkit that torch was built for. `cudnn`, `nccl`, `driver`
    and `capability` ("9.0") are those of the CUDA device, and `device` is its name; where there is none, `device` is
    the processor's name. `dirty`: tracked files differ from `commit`. `settings` are the values of torch's config
    modules that differ from torch's defaults, by their full names; `variables` the environment variables that torch,
    triton or CUDA read. Folders of this machine are written as <home>, <root> and <tmp>.

    `overrides` are settings that `--contract-set` gave the run in place of torch's defaults: it does not show what
    users get. `defaults` is the key of torch's own defaults, a table that many environments share.
    """

    torch: str | None = None
    triton: str | None = None
    cuda: str | None = None
    cudnn: str | None = None
    nccl: str | None = None
    driver: str | None = None
    device: str | None = None
    capability: str | None = None
    device_count: int | None = None
    processor: str | None = None
    python: str | None = None
    platform: str | None = None
    pytest: str | None = None
    plugin: str | None = None
    commit: str | None = None
    dirty: bool | None = None
    libraries: dict[str, str] = field(default_factory=dict)
    settings: dict[str, str] | None = None
    variables: dict[str, str] = field(default_factory=dict)
    overrides: dict[str, str] = field(default_factory=dict)
    defaults: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """One contract in one lane: what it was held to, what was measured, and the verdict with its reason.

    `contract` is the test without its lane, `test` pytest's node id. `environment` is a key of the receipt's
    `environments`. `worker` is pytest-xdist's name for the process ("" without xdist), `card` the CUDA device by index
    and uuid ("" without one), `seconds` the test's wall time. `limits` and `lane_settings` hold JSON values only:
    lists, not tuples, and no NaN or infinity. `repeats` is how often the lane was measured, `spread` the lowest and the
    highest value of each banded metric over them. `frontier` is how far a contract with a ladder holds; the measurement
    is then that of the highest rung that did. `planted` are the faults that were planted in it, one at a time, each
    with its outcome. `evidence` are the files that it left for debugging, `own_failure` is how the test failed by
    itself, if it did. `ranks` is what each rank measured, if there were several; `measurement` is then that of the
    rank that the verdict is about, or of the first if it is about all.
    """

    contract: str
    lane: str
    test: str
    verdict: Verdict
    environment: str
    reason: str = ""
    limits: dict[str, Any] = field(default_factory=dict)
    lane_settings: dict[str, Any] = field(default_factory=dict)
    violations: tuple[Violation, ...] = ()
    measurement: Measurement | None = None
    worker: str = ""
    card: str = ""
    seconds: float = 0.0
    repeats: int = 1
    spread: dict[str, tuple[float, float]] = field(default_factory=dict)
    frontier: Frontier | None = None
    planted: tuple[Planted, ...] = ()
    evidence: Evidence | None = None
    own_failure: OwnFailure | None = None
    ranks: tuple[RankMeasured, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Setup:
    """How far a run got that did not finish: what it was to measure, and what stopped it.

    `asked` names that, as "torch 2.12.1". The others are why it could not be installed, why it could not be imported,
    and why the tests did not run to their end; empty if nothing prevented it.
    """

    asked: str
    not_installed: str = ""
    not_imported: str = ""
    not_finished: str = ""

    @property
    def failure(self) -> str:
        """What stopped it, as a sentence; empty if nothing did."""
        for what, why in (
            ("could not be installed", self.not_installed),
            ("could not be imported", self.not_imported),
            ("the tests did not run to their end", self.not_finished),
        ):
            if why:
                return f"{self.asked}: {what}: {why}"
        return ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Receipt:
    """What one session measured, with the environments it was measured in.

    `created` is UTC, as "2026-01-31T12:00:00Z". `defaults` are torch's own defaults of its settings, by the key that
    the environments name: full name and value, as Python writes it. The entries are always in order of contract, lane,
    environment, test and worker, whatever order they were given in. `setup` says why the session did not finish, if it
    did not: then a missing entry says nothing about its contract. `command` is what was run, with folders of this
    machine replaced as in the environments; empty if it is not known. `shard` is the part of a suite that it ran; None
    for all of it. `launch` identifies the sessions of one launch of several ranks; empty if there was only one.
    """

    format: int = FORMAT
    plugin: str
    created: str
    environments: dict[str, Environment] = field(default_factory=dict)
    defaults: dict[str, dict[str, str]] = field(default_factory=dict)
    entries: tuple[Entry, ...] = ()
    setup: Setup | None = None
    command: str = ""
    shard: Shard | None = None
    launch: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "entries", tuple(sorted(self.entries, key=_order)))


def cut_off(environments: Mapping[str, Environment], why: str) -> Setup:
    """The setup in the receipt of a run that began to measure and did not finish."""
    known = sorted({f"torch {each.torch}" for each in environments.values() if each.torch})
    return Setup(asked=", ".join(known) or "the run", not_finished=why)


ORDER = ("contract", "lane", "environment", "test", "worker")


def _order(entry: Entry) -> tuple[str, ...]:
    return (entry.contract, entry.lane, entry.environment, entry.test, entry.worker)


def in_order(entries: Iterable[Entry]) -> list[Entry]:
    """The entries as they are shown: of each contract by the order of the lanes, each of which adds to those before."""
    rank = {name: at for at, name in enumerate(BUILT_IN)}
    return sorted(entries, key=lambda entry: (entry.contract, rank.get(entry.lane, len(rank))))


def environment_key(env: Environment) -> str:
    """What a baseline is kept for: torch's minor release and the kind of device.

    As "torch2.11-cuda-sm90", or "torch2.9-pjrt-cpu".
    """
    # It names a folder, and what it is made of may come from a file: nothing but digits and dots is let through.
    release = minor_release(env.torch)
    torch = f"torch{release}" if release else "no-torch"
    if PJRT in env.libraries:
        # XLA's, which no upgrade of the suite's torch is compared with.
        return f"{torch}-pjrt-{re.sub('[^a-z0-9]', '', env.libraries[PJRT])}"
    return f"{torch}-cuda-sm{re.sub('[^0-9]', '', env.capability)}" if env.capability else f"{torch}-cpu"


def fingerprint(env: Environment) -> str:
    """12 hex digits over every field: environments with equal fingerprints are equal in everything recorded.

    Except for torch's own defaults, which come with torch.
    """
    return _digest({each.name: getattr(env, each.name) for each in fields(env) if each.name != "defaults"})


def defaults_key(defaults: Mapping[str, str]) -> str:
    """12 hex digits that name a table of torch's own defaults."""
    return _digest(dict(defaults))


def _digest(value: object) -> str:
    return hashlib.sha256(_canonical(value).encode()).hexdigest()[:12]


# What a field of each type may be before it is known to be right.
KINDS: dict[object, tuple[type, ...]] = {str: (str,), int: (int,), float: (int, float, str)}


def timestamp() -> str:
    """Now, as a receipt's `created` has it."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def is_time(text: str) -> bool:
    try:
        datetime.strptime(text, "%Y-%m-%dT%H:%M:%SZ")
    except ValueError:
        return False
    return re.fullmatch(CREATED, text) is not None
