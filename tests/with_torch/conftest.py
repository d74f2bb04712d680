"""What the tests that compile have in common."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.forking import import_all, know_the_processor, leave_guards_untimed
from support.sessions import PROCESSOR

from pytest_compilecontract.measure.numerics import Judging
from pytest_compilecontract.measure.probes.trace import quiet
from pytest_compilecontract.measure.runner import Runner

# By which a stage of CI chooses files for another torch (`markers` in pyproject.toml).
STAGES = ("insides", "torch", "sessions")

leave_guards_untimed()


def pytest_collection_finish() -> None:
    """Keep what is here by now out of collections of garbage: each compile makes one, which would walk all of torch."""
    import_all()
    if "PYTEST_XDIST_WORKER" in os.environ:
        # Worth it in a run of many tests, of which one would find it out at any rate.
        PROCESSOR.update(know_the_processor())
    gc.collect()
    gc.freeze()


def pytest_unconfigure() -> None:
    """What is left at the end is collected, or libraries of torch's say that they have leaked."""
    gc.unfreeze()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Refuse a file that is in no stage: nothing would run it on another torch, and nobody would notice."""
    here = Path(__file__).parent
    without = {item.path.name for item in items if here in item.path.parents and not stages_of(item)}
    if without:
        known = " or ".join(f"pytest.mark.{name}" for name in STAGES)
        raise pytest.UsageError(f"in no stage: {', '.join(sorted(without))} (write pytestmark = {known})")


def stages_of(item: pytest.Item) -> list[str]:
    return [name for name in STAGES if item.get_closest_marker(name) is not None]


@pytest.fixture(autouse=True)
def proved(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where bits are the same everywhere no float64 run is made: here one is, and it must not find otherwise."""
    real = Runner._gold

    def checked(self: Runner, job: Any, compiled: Any, *, eager: Any, again: Any) -> Any:
        found = real(self, job, compiled, eager=eager, again=again)
        if found is None:
            without, whole = (
                Judging(*self.sides(compiled, eager=eager, again=again, gold=gold)).judged((), True)
                for gold in (None, self._passes.reference(job, eager))
            )
            assert whole.numerics.differences == without.numerics.differences
            assert whole.numerics.uncompared == without.numerics.uncompared
            assert whole.numerics.compared == without.numerics.compared
            assert not whole.values
        return found

    monkeypatch.setattr(Runner, "_gold", checked)


@pytest.fixture
def with_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    """A float64 run is made wherever it can be made."""
    monkeypatch.setattr("pytest_compilecontract.measure.numerics.all_alike", lambda _: False)


@pytest.fixture
def mesh() -> Iterator[Any]:
    """A DeviceMesh of this process alone."""
    from contracts.distributed import alone

    with alone("cpu") as found:
        yield found


@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_runtest_call() -> Iterator[Any]:
    with quiet():
        return (yield)
