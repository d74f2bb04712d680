"""What the tests that compile have in common."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from pytest_compilecontract.measure.probes.trace import quiet


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
