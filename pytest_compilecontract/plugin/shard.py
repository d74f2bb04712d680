"""Sharding: with `--contract-shard` a session runs its part of the tests, and its receipt says which."""

from __future__ import annotations

import pytest

from pytest_compilecontract.errors import ReceiptError, UsageError
from pytest_compilecontract.facts.receipt import RECEIPT
from pytest_compilecontract.facts.shards import Shard, planned
from pytest_compilecontract.files.codec import plain, value_from_data
from pytest_compilecontract.files.receipt import read_receipt

from .item import contract_of
from .session import Session

# Where a worker of pytest-xdist leaves its shard, for the controller.
SHARD = "compile_contract_shard"


class Sharding:
    """The part of the plugin that leaves out the tests of other shards.

    Raises:
        UsageError: the receipt with the times cannot be read.
    """

    def __init__(self, session: Session, index: int, of: int, worker: str) -> None:
        self._session = session
        self._index = index
        self._of = of
        self._worker = worker
        self._seconds = self._times()

    def _times(self) -> dict[str, float]:
        """The seconds of each test in an earlier receipt; none without a receipt of a whole run."""
        settings = self._session.settings
        file = settings.times or (settings.report / RECEIPT if settings.report else None)
        if file is None or (settings.times is None and not file.is_file()):
            return {}
        try:
            receipt = read_receipt(file)
        except ReceiptError as error:
            raise UsageError(f"the times of an earlier run: {error}") from error
        if receipt.shard is not None and settings.times is None:
            return {}
        return {entry.test: entry.seconds for entry in receipt.entries if entry.measurement is not None}

    # Last: of what is left once others have chosen.
    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        tests = {item.nodeid: contract_of(item) is not None or self._session.settings.observe for item in items}
        shard = planned(tests, self._seconds, self._of)[self._index - 1]
        kept = set(shard.tests)
        if others := [item for item in items if item.nodeid not in kept]:
            items[:] = [item for item in items if item.nodeid in kept]
            config.hook.pytest_deselected(items=others)
        self._session.cut_to(shard)
        if self._worker:
            config.workeroutput[SHARD] = plain(shard)  # type: ignore[attr-defined]

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: object) -> None:
        if (sent := getattr(node, "workeroutput", {}).get(SHARD)) is not None:
            self._session.cut_to(value_from_data(sent, Shard, name="a worker's shard"))

    # A shard for which no test was left is whole: there are more machines than tests.
    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        shard = self._session.shard
        if session.exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED and shard is not None and not shard.tests:
            session.exitstatus = pytest.ExitCode.OK
