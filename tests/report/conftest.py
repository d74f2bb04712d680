"""A browser for the tests of pages."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from support.browser import chromium, watched


@pytest.fixture(scope="module")
def driver() -> Iterator[Any]:
    yield from chromium()


@pytest.fixture
def quiet_driver(driver: Any) -> Iterator[Any]:
    yield from watched(driver)
