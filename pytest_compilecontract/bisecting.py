"""Where it broke: with `--contract-bisect` a lane that fails in compiling or in its numbers is run again by stages.

Each stage does more than the one before it: Dynamo's capture, AOTAutograd, decompositions, Inductor. The first that
fails is named. The lane's own verdict and measurement stay as they were.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pytest
from _pytest.runner import runtestprotocol

from .hooks import CONTRACT
from .repeating import as_one_test, forget, tear_down_the_rest

if TYPE_CHECKING:
    from .hooks import Contract, Hooks
    from .lanes import Lane
    from .receipt import Entry


@dataclass(frozen=True, kw_only=True, slots=True)
class Stage:
    """What torch does up to here, the backend that stops there, and the built-in lane of that backend, if any."""

    what: str
    backend: str
    lane: str = ""

    @property
    def told(self) -> str:
        """The stage and its backend; of a backend that is not torch's, itself."""
        return f"{self.what} (backend {self.backend!r})" if self.what else f"backend {self.backend!r} itself"


STAGES = (
    Stage(what="Dynamo's capture", backend="eager", lane="capture"),
    Stage(what="AOTAutograd", backend="aot_eager", lane="aot"),
    Stage(what="decompositions", backend="aot_eager_decomp_partition"),
    Stage(what="Inductor", backend="inductor", lane="inductor"),
)


class Bisecting:
    """The part of the plugin that is there only where `--contract-bisect` asks for it."""

    def __init__(self, hooks: Hooks) -> None:
        self._hooks = hooks

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
        contract = item.stash.get(CONTRACT, None)
        if contract is None or contract.bare or contract.limits.frontier is not None or self._hooks.lost:
            return None
        return as_one_test(item, lambda: self._run(item, contract, nextitem))

    def _run(self, item: pytest.Item, contract: Contract, nextitem: pytest.Item | None) -> list[pytest.TestReport]:
        sections, properties = len(item._report_sections), len(item.user_properties)
        with self._hooks.surrounded(contract):
            reports = runtestprotocol(item, log=False, nextitem=item.parent)  # type: ignore[arg-type]
        entry = contract.judged.entry if contract.judged is not None else None
        if entry is not None and broke(entry) and not self._hooks.lost and any(report.failed for report in reports):
            said = self._bisected(item, contract, (sections, properties))
            self._hooks.add_to_reason(reports, said)
        return [*reports, *tear_down_the_rest(item, nextitem)]

    def _bisected(self, item: pytest.Item, contract: Contract, before: tuple[int, int]) -> list[str]:
        """Which stage is the first to fail, and the command that shows it."""
        kept = contract.lane, contract.judged, contract.drifted
        passed: list[Stage] = []
        unknown: list[str] = []
        try:
            for stage in _up_to(contract.lane.backend):
                outcome = self._outcome(
                    item, contract, replace(kept[0], backend=stage.backend, mode=None, options=None), before
                )
                if outcome == "fails":
                    return _told(stage, passed, unknown, contract, item.nodeid, kept[0].name)
                if outcome == "holds":
                    passed.append(stage)
                else:
                    unknown.append(f"{stage.what} {outcome}")
            # The lane itself, as it was: what does not fail again is no fault of its backend's for sure.
            again = self._outcome(item, contract, kept[0], before)
        finally:
            contract.lane, contract.judged, contract.drifted = kept
        if again != "fails":
            return ["where it broke: not known, the lane itself does not fail again"]
        last = next((each for each in STAGES if each.backend == contract.lane.backend), None)
        own = last or Stage(what="", backend=contract.lane.backend)
        return _told(own, passed, unknown, contract, item.nodeid, contract.lane.name)

    def _outcome(self, item: pytest.Item, contract: Contract, lane: Lane, before: tuple[int, int]) -> str:
        """ "fails", "holds", or why that is not known, of the contract in this lane."""
        forget(item, *before)
        contract.lane = lane
        with self._hooks.surrounded(contract):
            reports = runtestprotocol(item, log=False, nextitem=item.parent)  # type: ignore[arg-type]
        if contract.judged is not None:
            return "fails" if broke(contract.judged.entry) else "holds"
        if skipped := next((report for report in reports if report.skipped), None):
            return f"not measured: {self._hooks.why_skipped(skipped)}"
        return "not measured: the test failed by itself"


def broke(entry: Entry) -> bool:
    """Whether compiling failed, or compiled numbers are not eager's: what a stage of torch's can be the cause of."""
    seen = entry.measurement
    if seen is not None and (seen.raised is not None or seen.backend_failures):
        return True
    return any(each.limit.startswith("numerics=") for each in entry.violations)


def _up_to(backend: str) -> tuple[Stage, ...]:
    """The stages before a backend; of one that is not torch's, all that are not Inductor's."""
    names = [stage.backend for stage in STAGES]
    return STAGES[: names.index(backend)] if backend in names else STAGES[:2]


def _told(
    stage: Stage, passed: list[Stage], unknown: list[str], contract: Contract, nodeid: str, lane: str
) -> list[str]:
    held = f"; up to {passed[-1].what} it holds" if passed else ""
    lines = [f"where it broke: {stage.told} is the first to fail{held}"]
    lines += [f"  {each}" for each in unknown]
    allowed = contract.limits.lanes is None or stage.lane in contract.limits.lanes
    if stage.lane and stage.lane != lane and allowed:
        test = nodeid.replace(f"[{lane}", f"[{stage.lane}", 1)
        lines.append(f"  pytest --compile-contracts --contract-lanes={stage.lane} {shlex.quote(test)}")
    else:
        lines.append(f"  pytest --compile-contracts --contract-lanes={lane} --contract-bisect {shlex.quote(nodeid)}")
    return lines
