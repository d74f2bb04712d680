"""This process of a session: its worker name, its environment, and whether it still has its CUDA device."""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pytest_compilecontract.facts.lanes import Lane

from .settings import Settings

if TYPE_CHECKING:
    from pytest_compilecontract.facts.receipt import Environment


class Process:
    """Where contracts run: a worker of pytest-xdist by its name, or the only process. `lost` is its CUDA device."""

    def __init__(self, settings: Settings, worker: str) -> None:
        self.worker = worker
        self.lost = False
        self._settings = settings
        # The variables of the environment as they are before the first test.
        self._variables: dict[str, str] = {}
        self._place: tuple[str, Environment] | None = None

    def pytest_collection_finish(self) -> None:
        self._variables = dict(os.environ)

    def where(self, lane: Lane | None = None) -> tuple[str, Environment]:
        """The environment of this process, and its key in entries; that of the lane's own, if it has one."""
        from pytest_compilecontract.facts.receipt import fingerprint

        if lane is not None and lane.is_xla and not unavailable(lane):
            environment = environment_in(self, lane)
            return fingerprint(environment), environment
        if self._place is None:
            from pytest_compilecontract.measure.environment import with_overrides

            # A body may be running, and have variables of its own.
            environment = _environment(self._settings.root, self._variables or os.environ)
            environment = with_overrides(environment, self._settings.overrides)
            self._place = fingerprint(environment), environment
        return self._place

    def take_gpu(self) -> None:
        """Move this process to a CUDA device of its own, if workers share several."""
        _take_card(self.worker)


def environment_in(process: Process, lane: Lane) -> Environment:
    """The environment of the process that runs an XLA lane."""
    from pytest_compilecontract.measure.probes.xla_packages import environment_of

    return environment_of(lane, process.where()[1])


def worker_of(config: pytest.Config) -> str:
    """pytest-xdist's name for this process; empty in the controller, and without workers."""
    return str(getattr(config, "workerinput", {}).get("workerid", ""))


def torch_defaults() -> dict[str, str]:
    """torch's own defaults of its settings, by their full names."""
    from pytest_compilecontract.measure.environment import torch_defaults as defaults

    return defaults()


@functools.cache
def gpu_of(lane: Lane) -> str:
    """The CUDA device of a lane, by index and uuid; empty without one."""
    from pytest_compilecontract.measure.probes.device import device_of, gpu

    return gpu(device_of(lane))


def unavailable(lane: Lane) -> str | None:
    """Why a lane cannot run here, or None."""
    from pytest_compilecontract.measure.probes.availability import unavailable as reason

    return reason(lane) or no_ranks(lane)


def no_ranks(lane: Lane) -> str | None:
    """Why the ranks of a lane cannot run here, or None."""
    from pytest_compilecontract.measure.group import no_group

    return no_group(lane)


@functools.cache
def _take_card(worker: str) -> None:
    from pytest_compilecontract.measure.probes.device import take_gpu

    take_gpu(worker)


def _environment(root: Path, variables: Mapping[str, str]) -> Environment:
    from pytest_compilecontract.measure.environment import current_environment

    return current_environment(root, variables)
