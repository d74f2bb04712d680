"""Baselines: what later runs compare a lane with, one JSON file per test module and environment, kept in git.

A file is written to be read in a diff: keys in order, one fact per line, no times, and nothing about lanes that did not
run. `contracts/baselines/torch2.13-cpu/test_block.json` is the one of `contracts/test_block.py`.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from pytest_compilecontract.compare.comparison import compare_sides
from pytest_compilecontract.compare.drift import LaneComparison
from pytest_compilecontract.compare.policy import DEFAULT_POLICY, Policy
from pytest_compilecontract.compare.side import Side
from pytest_compilecontract.errors import ReceiptError
from pytest_compilecontract.facts.ladder import without_details
from pytest_compilecontract.facts.receipt import (
    FORMAT,
    Entry,
    Environment,
    Receipt,
    defaults_key,
    environment_key,
    fingerprint,
)
from pytest_compilecontract.files.codec import document_from_json, value_from_data
from pytest_compilecontract.files.whole import clear_strays, read_bytes, remove_file, write_bytes
from pytest_compilecontract.regular import is_folder, stands_there

from .document import Baseline, BaselineLane, lines, read_baseline, to_json
from .environments import environments_in, older, refuse_several
from .kept import Mode, kept_entry, kept_measurement, kept_spread, refusal

FOLDER = PurePosixPath("contracts/baselines")
DEFAULTS = "defaults"


@dataclass(frozen=True, kw_only=True, slots=True)
class Found:
    """A lane's baseline: the environment key that it was recorded under, and what was recorded.

    `defaults` are those of the torch it was recorded on, empty if they were not kept.
    """

    key: str
    entry: Entry
    environment: Environment
    defaults: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class Recorded:
    """The result of recording: the lanes written and those refused, each as (contract, lane[, why]).

    `unmeasured` counts those refused because nothing was measured: giving a reason does not record these. `measured`
    counts all lanes that could be recorded, and `without` those that have no baseline and were not to get one.
    """

    files: tuple[Path, ...] = ()
    lanes: tuple[tuple[str, str], ...] = ()
    refused: tuple[tuple[str, str, str], ...] = ()
    unmeasured: int = 0
    measured: int = 0
    without: int = 0


class Baselines:
    """The baselines of a project, in one folder. Files are read when they are first asked for."""

    def __init__(self, folder: Path, root: Path) -> None:
        """`folder` is where they are kept, `root` the folder that the names of contracts are relative to."""
        self.folder = folder
        try:
            self._beside = PurePosixPath(folder.parent.relative_to(root).as_posix())
        except ValueError:
            self._beside = PurePosixPath("-")
        self._read: dict[Path, Baseline | None] = {}
        self._older: dict[str, tuple[str, ...]] = {}
        self._compared: dict[tuple[str, str, str], tuple[Entry, Entry, LaneComparison]] = {}
        self._defaults = _Defaults(folder)

    def find(self, contract: str, lane: str, environment: Environment) -> Found | None:
        """The lane's own baseline, else that of the newest older torch on the same device type.

        Raises:
            ReceiptError: a file on the way cannot be read.
        """
        key = environment_key(environment)
        for each in (key, *self.older(key)):
            baseline = self._file(self.path(contract, each))
            kept = baseline.contracts.get(contract, {}).get(lane) if baseline else None
            if baseline is not None and kept is not None:
                environment = baseline.environments[kept.environment]
                return Found(
                    key=each,
                    entry=_entry(contract, lane, kept),
                    environment=environment,
                    defaults=self._defaults.of(environment),
                )
        return None

    def compared(
        self, entry: Entry, environment: Environment, found: Found, defaults: Mapping[str, str] | None = None
    ) -> LaneComparison:
        """Compare a lane that ran with its baseline under the default policy.

        A session does so at the test's end, in its summary and when it records, so results are cached.
        """
        key = (entry.contract, entry.lane, found.key)
        known = self._compared.get(key)
        if known is None or known[:2] != (entry, found.entry):
            lane = compare_lane(entry, environment, found, defaults=defaults)
            known = self._compared[key] = (entry, found.entry, lane)
        return known[2]

    def path(self, contract: str, key: str) -> Path:
        """The file of a contract, named after its module; one next to the baselines folder is relative to there."""
        module = PurePosixPath(contract.partition("::")[0].replace("\\", "/"))
        if module.is_relative_to(self._beside):
            module = module.relative_to(self._beside)
        # A contract's name may come from a file: it never leads out of the folder.
        parts = [part for part in module.parts if part not in ("..", "/", "//")] or ["contracts"]
        if os.name == "nt":
            # A part with a drive would begin anew.
            parts = [part.replace(":", "_") for part in parts]
        return self.folder.joinpath(key, *parts).with_suffix(".json")

    def older(self, key: str) -> tuple[str, ...]:
        """The environments with a baseline of an older torch on the same device type, the newest first.

        Raises:
            ReceiptError: the folder of the baselines cannot be read.
        """
        if key not in self._older:
            self._older[key] = older(key, environments_in(self.folder))
        return self._older[key]

    def size(self, key: str) -> int:
        """The number of lanes recorded for an environment.

        Raises:
            ReceiptError: a file cannot be read.
        """
        return sum(len(lanes) for _, baseline in self._files(key) for lanes in baseline.contracts.values())

    def contracts(self, key: str) -> tuple[str, ...]:
        """The contracts that are recorded for an environment.

        Raises:
            ReceiptError: a file cannot be read.
        """
        return tuple(name for _, baseline in self._files(key) for name in baseline.contracts)

    def remove(self, key: str, contracts: Collection[str]) -> None:
        """Remove these contracts from the files of an environment; a file without others is deleted.

        Raises:
            ReceiptError: a file cannot be read or written.
        """
        for file, baseline in self._files(key):
            if not set(contracts) & set(baseline.contracts):
                continue
            self._refuse_outside(file)
            left = {name: lanes for name, lanes in baseline.contracts.items() if name not in contracts}
            if not left:
                remove_file(file)
                self._read[file] = None
                continue
            used = {lane.environment for lanes in left.values() for lane in lanes.values()}
            environments = {name: each for name, each in baseline.environments.items() if name in used}
            self._read[file] = trimmed = Baseline(environments=environments, contracts=left)
            write_bytes(file, to_json(trimmed))

    def names(self) -> frozenset[tuple[str, str]]:
        """Every contract and lane in any of the files; a file that cannot be read is reported once it is needed."""
        found: set[tuple[str, str]] = set()
        for file in sorted(self.folder.rglob("*.json")):
            if file.parent == self.folder / DEFAULTS:
                continue  # no baseline, and of some size
            with contextlib.suppress(ReceiptError):
                if (baseline := self._file(file)) is not None:
                    found |= {(contract, lane) for contract, lanes in baseline.contracts.items() for lane in lanes}
        return frozenset(found)

    def record(
        self,
        entries: Iterable[Entry],
        environments: Mapping[str, Environment],
        mode: Mode,
        accepted: str = "",
        defaults: Mapping[str, Mapping[str, str]] | None = None,
    ) -> Recorded:
        """Write what ran to the baseline of the environment that it ran in; everything else stays as it is.

        "new" writes lanes without a baseline there, "changed" those that differ from their baseline, "all" both.
        `defaults` are torch's own, by the key in an environment: each table is written once, to a file of its own.

        Raises:
            ReceiptError: a file cannot be read or written.
        """
        for folder in (self.folder, *(each for each in self.folder.rglob("*") if is_folder(each))):
            clear_strays(folder)
        written: dict[Path, Baseline] = {}
        lanes: list[tuple[str, str]] = []
        refused: list[tuple[str, str, str]] = []
        unmeasured = measured = without = 0
        for entry in entries:
            environment = environments[entry.environment]
            path = self.path(entry.contract, environment_key(environment))
            baseline = written.get(path) or self._file(path) or Baseline()
            kept = baseline.contracts.get(entry.contract, {}).get(entry.lane)
            if entry.verdict in ("unmeasured", "reference"):
                continue
            measured += 1
            if mode == ("changed" if kept is None else "new"):
                without += kept is None
                continue
            if kept is not None and not self._says_otherwise(entry, environment, baseline):
                continue
            why = refusal(entry)
            if why and not (accepted and entry.measurement is not None):
                refused.append((entry.contract, entry.lane, why))
                unmeasured += entry.measurement is None
                continue
            written[path] = _with(baseline, entry, environment, accepted if why else "")
            lanes.append((entry.contract, entry.lane))
        for path in written:
            self._refuse_outside(path)
        for path, baseline in written.items():
            for environment in baseline.environments.values():
                self._defaults.keep(environment, defaults or {})
            write_bytes(path, to_json(baseline))
            self._read[path] = baseline
        self._older.clear()
        return Recorded(
            files=tuple(written),
            lanes=tuple(lanes),
            refused=tuple(refused),
            unmeasured=unmeasured,
            measured=measured,
            without=without,
        )

    def _says_otherwise(self, entry: Entry, environment: Environment, baseline: Baseline) -> bool:
        """Whether an entry differs from its baseline; if not, the baseline is left unchanged."""
        kept = baseline.contracts[entry.contract][entry.lane]
        found = Found(
            key=environment_key(environment),
            entry=_entry(entry.contract, entry.lane, kept),
            environment=baseline.environments[kept.environment],
        )
        lane = self.compared(entry, environment, found)
        same = kept.limits == entry.limits and kept.lane_settings == entry.lane_settings
        # A baseline that has no band yet is to get it.
        same = same and (entry.repeats == 1 or kept.spread.keys() == entry.spread.keys())
        return lane.verdict != "held" or bool(lane.drifts) or not same

    def _refuse_outside(self, path: Path) -> None:
        """Refuse a path that leads out of the folder: a link may lead anywhere, and its target would be replaced."""
        try:
            inside = path.resolve().is_relative_to(self.folder.resolve())
        except (OSError, RuntimeError, ValueError):
            return  # writing it says more
        if not inside:
            raise ReceiptError("is outside the baselines folder, so it was not written", at=str(path))

    def _files(self, key: str) -> Iterator[tuple[Path, Baseline]]:
        for file in sorted((self.folder / key).rglob("*.json")):
            if not is_folder(file) and (baseline := self._file(file)) is not None:
                yield file, baseline

    def _file(self, path: Path) -> Baseline | None:
        if path not in self._read:
            # What is there and no file is not passed over: nothing would be compared, and nobody told.
            self._read[path] = read_baseline(path) if stands_there(path) else None
        return self._read[path]


class _Defaults:
    """Tables of torch's own defaults: one file each, named after its key, next to the folders of the environments."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / DEFAULTS
        self._read: dict[str, Mapping[str, str]] = {}

    def of(self, environment: Environment) -> Mapping[str, str]:
        """The table that the environment names; empty if it names none, or none is kept.

        Raises:
            ReceiptError: the file cannot be read, or its table does not match its name.
        """
        key = environment.defaults or ""
        path = self._folder / f"{key}.json"
        if key not in self._read:
            self._read[key] = read_defaults(path) if _is_key(key) and stands_there(path) else {}
        return self._read[key]

    def keep(self, environment: Environment, tables: Mapping[str, Mapping[str, str]]) -> None:
        """Write the table that the environment names, unless it exists.

        Raises:
            ReceiptError: the file cannot be written.
        """
        key = environment.defaults or ""
        path = self._folder / f"{key}.json"
        if key in tables and _is_key(key) and not stands_there(path):
            data = {"format": FORMAT, "torch": environment.torch, "defaults": dict(tables[key])}
            write_bytes(path, "\n".join(lines(data, "")).encode() + b"\n")
            self._read[key] = tables[key]


@dataclass(frozen=True, kw_only=True, slots=True)
class _DefaultsFile:
    format: int
    torch: str | None
    defaults: dict[str, str]


def read_defaults(path: Path) -> Mapping[str, str]:
    """Read a table of torch's own defaults, whose file is named after a digest of its contents.

    Raises:
        ReceiptError: the file cannot be read, or its table does not match its name.
    """
    name, key = str(path), path.stem
    read = value_from_data(document_from_json(read_bytes(path), name=name), _DefaultsFile, name=name)
    if defaults_key(read.defaults) != key:
        raise ReceiptError("does not match the digest in its name (delete it and record again)", at=name)
    return read.defaults


def _is_key(text: str) -> bool:
    # It names a file, and comes from one.
    return re.fullmatch("[0-9a-f]{12}", text) is not None


def compare_lane(
    entry: Entry,
    environment: Environment,
    found: Found,
    policy: Policy = DEFAULT_POLICY,
    defaults: Mapping[str, str] | None = None,
) -> LaneComparison:
    """Compare a lane that ran with its baseline; `defaults` are those of the torch that it ran on."""
    before = Side(entry=found.entry, environment=found.environment, defaults=found.defaults)
    after = Side(entry=kept_entry(entry), environment=environment, defaults=defaults or {})
    return compare_sides(before, after, policy)


def _with(baseline: Baseline, entry: Entry, environment: Environment, accepted: str) -> Baseline:
    assert entry.measurement is not None
    key = fingerprint(environment)
    lane = BaselineLane(
        test=entry.test,
        verdict=entry.verdict,
        environment=key,
        measurement=kept_measurement(entry.measurement),
        accepted=accepted,
        limits=dict(entry.limits),
        lane_settings=dict(entry.lane_settings),
        repeats=entry.repeats,
        spread=kept_spread(entry),
        frontier=None if entry.frontier is None else without_details(entry.frontier),
    )
    contracts = {**baseline.contracts, entry.contract: {**baseline.contracts.get(entry.contract, {}), entry.lane: lane}}
    used = {each.environment for lanes in contracts.values() for each in lanes.values()}
    environments = {**baseline.environments, key: environment}
    return Baseline(
        environments={name: each for name, each in environments.items() if name in used},
        contracts=contracts,
    )


def _entry(contract: str, lane: str, kept: BaselineLane) -> Entry:
    return Entry(
        contract=contract,
        lane=lane,
        test=kept.test,
        verdict=kept.verdict,
        environment=kept.environment,
        reason=kept.accepted and f"accepted: {kept.accepted}",
        limits=kept.limits,
        lane_settings=kept.lane_settings,
        measurement=kept.measurement,
        repeats=kept.repeats,
        spread=kept.spread,
        frontier=kept.frontier,
    )


def _receipt(
    environments: Mapping[str, Environment], entries: Sequence[Entry], defaults: Iterable[Mapping[str, str]]
) -> Receipt:
    named = zip((each.defaults for each in environments.values()), defaults, strict=True)
    return Receipt(
        plugin="",
        created="",
        environments=dict(environments),
        defaults={key: dict(table) for key, table in named if key and table},
        entries=tuple(entries),
    )


def read_folder(folder: Path) -> Receipt:
    """All baselines of one environment, as the receipt of a run that could have recorded them.

    Raises:
        ReceiptError: the folder holds no baseline, those of several environments, or one that cannot be read.
    """
    refuse_several(folder)
    inner = [folder / name for name in environments_in(folder)]
    for below in () if inner else (FOLDER, FOLDER.name):
        if is_folder(folder / below):
            raise ReceiptError(f"contains no receipt.json (its baselines are in {folder / below})", at=str(folder))
    environments: dict[str, Environment] = {}
    entries: list[Entry] = []
    files = sorted((inner[0] if inner else folder).rglob("*.json"))
    if not files:
        raise ReceiptError("contains neither receipt.json nor a baseline", at=str(folder))
    for file in files:
        baseline = read_baseline(file)
        environments |= baseline.environments
        entries += [
            _entry(contract, name, lane)
            for contract, lanes in baseline.contracts.items()
            for name, lane in lanes.items()
        ]
    kept = _Defaults(inner[0].parent if inner else folder.parent)
    return _receipt(environments, entries, [kept.of(each) for each in environments.values()])
