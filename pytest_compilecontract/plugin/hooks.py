"""The plugin when enabled: its parts, and the order in which they are registered with pytest."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from pytest_compilecontract.errors import UsageError
from pytest_compilecontract.facts.faults import Fault, chosen

from .agree import Agreeing
from .climb import Climbing
from .collect import Collecting
from .finish import Finishing
from .history import History
from .in_xla import InXla
from .launch import Place, place_of
from .lost_device import Child
from .phases import Phases
from .process import Process, worker_of
from .ranks import Ranked
from .results import Results
from .run import Often, Once, Runs, Strategy
from .run_page import command_of
from .session import Session
from .settings import Options, Settings, of_rank, settings_from
from .started import as_started, keep_start, start_in_shell
from .told_once import ToldOnce
from .workers import Receiving

if TYPE_CHECKING:
    from .observe import Observer

ALL_FAULTS = "all"


@dataclass(frozen=True, kw_only=True, slots=True)
class Parts:
    """What the parts of the plugin share."""

    session: Session
    history: History
    process: Process
    phases: Phases
    results: Results


class Opening:
    """Opens the session's journal, before a test is collected."""

    def __init__(self, session: Session, worker: str) -> None:
        self._session = session
        self._worker = worker

    def pytest_sessionstart(self, session: pytest.Session) -> None:
        if self._session.settings.rest is not None or session.config.option.collectonly:
            return
        try:
            self._session.open_journal(self._worker)
        except UsageError as error:
            raise pytest.UsageError(str(error)) from error


def switch_on(config: pytest.Config) -> Parts:
    """Enable contracts in this session.

    Raises:
        pytest.UsageError: an option, or a file that it names, is not valid.
    """
    keep_start(config)
    if (place := config.getoption("--contract-rank")) is not None:
        return _switch_on_rank(config, place_of(place))
    worker = worker_of(config)
    try:
        settings = _settings(config)
        history = History(settings=settings)
        _refuse_beside_one_another(config, settings)
    except UsageError as error:
        raise pytest.UsageError(str(error)) from error
    session = Session(
        settings=settings,
        each=config.getoption("dist", "no") == "each",
        command=command_of(config.invocation_params.args, config.rootpath),
    )
    process = Process(settings, worker)
    runs = Runs(session, process)
    results = Results(settings, history, runs, functools.partial(as_started, config))
    phases = Phases(settings, runs, results)
    collecting = Collecting(settings, worker)
    parts: list[tuple[str, object]] = []
    if settings.rest is not None:
        parts.append(("child", Child(settings.rest)))
    parts += [
        ("process", process),
        ("opening", Opening(session, worker)),
        ("collecting", collecting),
        ("phases", phases),
        ("results", results),
        ("receiving", Receiving(session, worker)),
        ("finishing", Finishing(session, history, collecting, worker, start_in_shell(config))),
        ("told_once", ToldOnce()),
    ]
    if settings.shard is not None and settings.rest is None:
        from .shard import Sharding

        try:
            parts.insert(0, ("sharding", Sharding(session, *settings.shard, worker)))
        except UsageError as error:
            raise pytest.UsageError(str(error)) from error
    # First: what a lane of several ranks calls more than its test does, all of them would have to call.
    ranked = Ranked(settings, runs, results)
    strategies: list[Strategy] = [Climbing(settings.known, results)]
    if settings.repeat > 1:
        from .repeat import Repeating

        strategies.append(Repeating(settings.repeat))
    elif config.getoption("--contract-bisect"):
        from .bisect import Bisecting

        strategies.append(Bisecting())
    elif (kinds := config.getoption("--contract-plant")) is not None:
        from .plant import Sowing

        sowing = Sowing(_faults(kinds), session, history)
        parts.append(("sowing", sowing))
        strategies.append(sowing)
    if settings.evidence is not None:
        from .evidence import Evidencing

        strategies = [Evidencing(strategies, settings)]
    strategies = [InXla(settings, runs, results), *strategies]
    strategies = [ranked, Agreeing(strategies, settings.known, results), *strategies]
    others: Strategy | None = None
    if settings.observe:
        observer, others = _observer(settings, runs, history, results)
        parts.append(("observer", observer))
    parts += [("once", Once(runs, strategies)), ("often", Often(runs, strategies, others))]
    for name, part in parts:
        config.pluginmanager.register(part, f"compilecontract-{name}")
    return Parts(session=session, history=history, process=process, phases=phases, results=results)


def _observer(settings: Settings, runs: Runs, history: History, results: Results) -> tuple[Observer, Strategy | None]:
    """What measures tests that are not contracts, and how they are run, if that is not pytest's affair."""
    from .observe import Observer

    observer = Observer(settings, history, runs.process, results)
    if settings.evidence is None:
        return observer, None
    from .observed_evidence import ObservedEvidence

    return observer, ObservedEvidence(settings, observer)


def _switch_on_rank(config: pytest.Config, place: Place) -> Parts:
    """Make this process a rank, which measures one test and neither writes nor judges."""
    from .rank import Launch, Rank

    try:
        settings = of_rank(_settings(config), again=Launch.read(place.folder).again)
        history = History(settings=settings)
    except UsageError as error:
        raise pytest.UsageError(str(error)) from error
    session = Session(settings=settings)
    process = Process(settings, "")
    runs = Runs(session, process)
    results = Results(settings, history, runs, functools.partial(as_started, config))
    phases = Phases(settings, runs, results, holds=False)
    rank = Rank(place, runs, config)
    for name, part in (
        ("process", process),
        ("collecting", Collecting(settings, "")),
        ("phases", phases),
        ("rank", rank),
        ("once", Once(runs, [], rank.another)),
    ):
        config.pluginmanager.register(part, f"compilecontract-{name}")
    return Parts(session=session, history=history, process=process, phases=phases, results=results)


def _settings(config: pytest.Config) -> Settings:
    given = Options(
        root=config.rootpath,
        asked=config.getoption("--contract-lanes"),
        configured=config.getini("contract_lanes"),
        report=config.getoption("--contract-report"),
        invocation=config.invocation_params.dir,
        baselines=config.getoption("--contract-baselines"),
        record=config.getoption("--contract-record"),
        accepted=config.getoption("--contract-accept-reason"),
        repeat=config.getoption("--contract-repeat"),
        overrides=config.getoption("--contract-set") or (),
        observe=bool(config.getoption("--contract-observe")),
        timeout=config.getoption("--contract-timeout"),
        timed=bool(config.getoption("--contract-speed")),
        rest=config.getoption("--contract-rest"),
        allow_unmeasured=bool(config.getoption("--contract-allow-unmeasured")),
        warm=bool(config.getoption("--contract-warm")),
        variables=_variables(),
        shard=config.getoption("--contract-shard"),
        times=config.getoption("--contract-times"),
        evidence=config.getoption("--contract-evidence"),
        evidence_all=bool(config.getoption("--contract-evidence-all")),
    )
    return settings_from(given)


def _variables() -> Mapping[str, str]:
    """The variables of this process, with its rank if a process group was created before pytest began."""
    group = sys.modules.get("torch.distributed")
    if group is None or not group.is_available() or not group.is_initialized():
        return os.environ
    return {"RANK": str(group.get_rank()), "WORLD_SIZE": str(group.get_world_size()), **os.environ}


def _refuse_beside_one_another(config: pytest.Config, settings: Settings) -> None:
    """Refuse options that cannot be combined."""
    if config.getoption("--contract-bisect") and settings.repeat > 1:
        raise UsageError("--contract-bisect runs a lane once per stage: remove --contract-repeat")
    if config.getoption("--contract-plant") is None:
        return
    for option in ("--contract-repeat", "--contract-bisect", "--contract-record"):
        if config.getoption(option):
            raise UsageError(f"--contract-plant runs a lane once per fault: remove {option}")


def _faults(kinds: str) -> tuple[Fault, ...]:
    return chosen([each.strip() for each in kinds.split(",")] if kinds != ALL_FAULTS else [])
