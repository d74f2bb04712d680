"""Settings: the options of a session, as one frozen object. No pytest objects past this module."""

from __future__ import annotations

import ast
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from pytest_compilecontract.baselines.kept import Mode
from pytest_compilecontract.baselines.store import FOLDER
from pytest_compilecontract.compare.waivers import FILE as WAIVERS
from pytest_compilecontract.errors import UsageError
from pytest_compilecontract.facts.lanes import BUILT_IN, Lane, chosen
from pytest_compilecontract.files.evidence import refuse_foreign
from pytest_compilecontract.files.project import read_project
from pytest_compilecontract.measure.probes.settings import MODULES
from pytest_compilecontract.processes import started

EVIDENCE = "evidence"
DEFAULT_LANES = ("capture", "aot", "inductor")


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """The settings of a session.

    `lanes` are those chosen, `known` every lane by name, `report` the folder that `receipt.json` goes to.
    `baselines` is the folder of the baselines, `waivers` the file of what may drift. `asked_for_baselines` and
    `asked_for_lanes`: an option named them. `record` says what to write there, None nothing; `accepted` is why even
    what should not be recorded is to be. A lane is measured `repeat` times. `overrides` are settings of torch by
    their full names, given to every lane in place of torch's defaults. `observe`: tests that are not contracts are
    measured too. `timeout` is how many seconds the body of a test may run in a lane, None for ever. `timed`: every
    lane on a CUDA device is timed, not only those with a limit on their speed. `rest` is the file that says what a
    replacement of a process that lost its device is to run. `allow_unmeasured`: a session of which no lane could be
    measured is not a failure. `rank` is that of this process among several that run the same session, which `launch`
    names: all but the first write to folders of their own, and record nothing.
    `shard` is the part of the tests to run and how many parts there are, `times` the receipt that says how long each
    takes.
    `warm`: every lane is started again from its compile caches. `again`: this process does so, for its parent.
    `evidence` is the folder that lanes which are not held leave evidence in, with `evidence_all` those that hold too.
    """

    root: Path
    lanes: tuple[Lane, ...]
    known: Mapping[str, Lane]
    report: Path | None
    baselines: Path
    waivers: Path
    asked_for_baselines: bool = False
    asked_for_lanes: bool = False
    record: Mode | None = None
    accepted: str = ""
    repeat: int = 1
    overrides: Mapping[str, object] = field(default_factory=dict)
    observe: bool = False
    timeout: float | None = None
    timed: bool = False
    rest: Path | None = None
    allow_unmeasured: bool = False
    rank: int = 0
    launch: str = ""
    evidence: Path | None = None
    evidence_all: bool = False
    shard: tuple[int, int] | None = None
    times: Path | None = None
    warm: bool = False
    again: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Options:
    """The options of a session as they were given, None where one was not.

    `asked` is `--contract-lanes`, `configured` the ini option `contract_lanes`. `invocation` is the folder that pytest
    was started in, `variables` those of the process.
    """

    root: Path
    asked: str | None
    configured: Sequence[str]
    report: str | None
    invocation: Path
    baselines: str | None = None
    record: Mode | None = None
    accepted: str | None = None
    repeat: int | None = None
    overrides: Sequence[str] = ()
    observe: bool = False
    timeout: float | None = None
    timed: bool = False
    rest: str | None = None
    allow_unmeasured: bool = False
    variables: Mapping[str, str] = field(default_factory=dict)
    evidence: str | None = None
    evidence_all: bool = False
    shard: tuple[int, int] | None = None
    times: str | None = None
    warm: bool = False


def settings_from(given: Options) -> Settings:
    """The settings behind the options: `--contract-lanes` wins over the ini option, and all over pyproject.toml.

    Raises:
        UsageError: an unknown lane, an option that does nothing, or an invalid table in pyproject.toml.
    """
    project = read_project(given.root)
    known = {**BUILT_IN, **project.lanes}
    rank = _rank(given.variables)
    if project.waivers is not None and not project.waivers.is_file():
        raise UsageError(f"pyproject.toml: tool.compilecontract.waivers: {project.waivers}: no such file")
    if given.report == "":
        raise UsageError("--contract-report needs a folder")
    if given.baselines == "":
        raise UsageError("--contract-baselines needs a folder")
    if given.accepted is not None and given.record is None:
        raise UsageError("--contract-accept-reason does nothing without --contract-record")
    if given.overrides and given.record is not None:
        raise UsageError("--contract-record records what users run with, which --contract-set changes")
    if given.accepted is not None and not given.accepted.strip():
        raise UsageError("--contract-accept-reason needs a reason")
    asked = None if given.asked is None else [name.strip() for name in given.asked.split(",") if name.strip()]
    if asked == []:
        raise UsageError(f"--contract-lanes needs a lane (known lanes: {', '.join(sorted(known))}, or 'all')")
    reported = given.invocation / given.report if given.report else project.report
    return Settings(
        root=given.root,
        lanes=chosen(asked or [*given.configured] or DEFAULT_LANES, known),
        known=known,
        report=_of_rank(reported, rank) if reported is not None else None,
        baselines=given.invocation / given.baselines if given.baselines else project.baselines or given.root / FOLDER,
        waivers=project.waivers or given.root / WAIVERS,
        asked_for_baselines=given.baselines is not None,
        asked_for_lanes=given.asked is not None,
        record=given.record,
        accepted=(given.accepted or "").strip(),
        repeat=project.repeat if given.repeat is None else given.repeat,
        overrides=_overrides(given.overrides),
        observe=given.observe,
        timeout=project.timeout if given.timeout is None else given.timeout,
        timed=given.timed,
        rest=Path(given.rest) if given.rest else None,
        allow_unmeasured=given.allow_unmeasured or project.allow_unmeasured,
        rank=rank,
        launch=_launch(given.variables),
        shard=given.shard,
        times=_times(given.times, given.shard, given.record, given.invocation),
        evidence=_of_rank(left, rank)
        if (left := _evidence(project.evidence, given.evidence, given.invocation, reported)) is not None
        else None,
        evidence_all=given.evidence_all,
        warm=given.warm,
    )


def of_rank(settings: Settings, *, again: bool) -> Settings:
    """The settings of a process that is one rank of a contract: its parent writes, judges and repeats."""
    return replace(
        settings,
        report=None,
        record=None,
        repeat=1,
        observe=False,
        timed=False,
        rank=0,
        launch="",
        evidence=None,
        shard=None,
        times=None,
        warm=False,
        again=again,
    )


def _evidence(configured: Path | None, asked: str | None, invocation: Path, report: Path | None) -> Path | None:
    """The folder of evidence, None if none is wanted; without a value, the option uses the folder of the report."""
    beside = (report or invocation) / EVIDENCE
    folder = configured if asked is None else invocation / asked if asked else beside
    if folder is not None:
        refuse_foreign(folder)
    return folder


def _times(asked: str | None, shard: tuple[int, int] | None, record: Mode | None, invocation: Path) -> Path | None:
    """The receipt with the duration of each test, if one was given."""
    if shard is not None and record is not None:
        raise UsageError("--contract-record writes the baselines of a whole run: remove --contract-shard")
    if asked is not None and shard is None:
        raise UsageError("--contract-times does nothing without --contract-shard")
    if asked == "":
        raise UsageError("--contract-times needs a receipt")
    return invocation / asked if asked is not None else None


def _rank(variables: Mapping[str, str]) -> int:
    """The rank of this process in its job, as set by torchrun; 0 if it is the only one."""
    return int(variables["RANK"]) if _is_one_of_several(variables) else 0


def _is_one_of_several(variables: Mapping[str, str]) -> bool:
    rank, size = variables.get("RANK", ""), variables.get("WORLD_SIZE", "")
    return all(each.isascii() and each.isdecimal() for each in (rank, size)) and int(size) > 1


def _launch(variables: Mapping[str, str]) -> str:
    """An id that the processes of one job share: torchrun's run id, or their parent process."""
    if not _is_one_of_several(variables):
        return ""
    named = variables.get("TORCHELASTIC_RUN_ID", "none")
    return named if named != "none" else f"{os.getppid()}:{started(os.getppid())}"


def _of_rank(report: Path, rank: int) -> Path:
    return report / f"rank{rank}" if rank else report


def _overrides(texts: Sequence[str]) -> dict[str, object]:
    found: dict[str, object] = {}
    for text in texts:
        name, sign, value = text.partition("=")
        if not sign or not name.startswith(tuple(f"{module}." for module in MODULES)):
            raise UsageError(
                f"--contract-set={text}: expected NAME=VALUE such as torch._dynamo.config.recompile_limit=4, "
                f"a setting of {', '.join(MODULES)}"
            )
        try:
            found[name] = ast.literal_eval(value)
        except (ValueError, SyntaxError, MemoryError, RecursionError) as error:
            expected = "a value as Python writes it (True, 8, 'text')"
            raise UsageError(f"--contract-set={text}: expected {expected}, got {value!r}") from error
    return found
