"""Runs to show on a page: receipts with facts on lines of source, and that source."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from pytest_compilecontract.facts.measurement import (
    Call,
    EagerFrame,
    GraphBreak,
    LimitHit,
    Location,
    Measurement,
    StepOperators,
)
from pytest_compilecontract.facts.receipt import Entry, Receipt
from pytest_compilecontract.facts.rerun import PYTEST
from pytest_compilecontract.facts.verdict import Violation
from pytest_compilecontract.files.sources import Source
from pytest_compilecontract.report.run_page import run_page
from pytest_compilecontract.report.run_view import RunView, run_view
from support.receipts import BREAK, HOLDING, ITEM, RECOMPILE, SKIPPED, a_receipt, an_entry

HOSTILE = "</script><script>document.title='owned'</script><img src=x onerror=alert(1)>\u202e"
MODEL = tuple(
    {
        9: "loss = model(x)",
        40: "    def forward(self, x):",
        41: "        mask = copy.deepcopy(self.mask)",
        45: "        n = mask.sum().item()",
        46: f"        # {HOSTILE}",
        47: "\treturn x",
    }.get(number, "")
    for number in range(1, 51)
)
SOURCES = {"model.py": Source(lines=MODEL), "train.py": Source(lines=MODEL[:9])}
# As torch writes it, with the sizes before and after.
MOVED = "tensor 'x' size mismatch at index 0. expected 8, actual 9"
AGAIN = replace(RECOMPILE, guard=MOVED, continuation=False)
# A break in a library, which a line of the project's leads to.
DEEP = Location(file="torch/nn/functional.py", line=7, function="pad", source="raise")
BROKE_DEEP = replace(BREAK, location=DEEP, stacks=((ITEM, DEEP),))

CALLS = (
    Call(phase="cold", seconds=2.0, graphs_executed=1),
    Call(phase="warm-up", seconds=1.0, graphs_executed=1),
    *(Call(phase="steady", seconds=0.001, graphs_executed=2) for _ in range(5)),
)
RAN = StepOperators(
    compiled=5,
    eager=3,
    lines={"model.py:41": (2, 0), "model.py:45": (2, 1), "model.py:47": (1, 0), "train.py:9": (0, 2)},
    modules={"": (1, 0), "layers.2.mlp": (2, 1), "layers.10.mlp": (1, 0), "head": (1, 2)},
    groups=(SKIPPED,),
)
STAGES = {"dynamo": 0.5, "aot_autograd": 0.0, "inductor": 0.0, "code_generation": 2.5}
BROKEN = replace(
    HOLDING, graph_breaks=(BREAK,), recompiles=(AGAIN,), operators_run=RAN, calls=CALLS, stage_seconds=STAGES
)


def entry(name: str, lane: str = "aot", measurement: Measurement | None = HOLDING, **changes: Any) -> Entry:
    contract = name if "::" in name else f"tests/test_model.py::{name}"
    return an_entry(measurement, contract=contract, lane=lane, test=f"{contract}[{lane}]", **changes)


def violated(name: str, lane: str = "aot", measurement: Measurement = BROKEN) -> Entry:
    violations = (
        Violation(limit="max_graph_breaks=0", measured=1, details=("model.py:41 in forward", "  copy.deepcopy()")),
        Violation(limit="max_recompiles=0", measured=1),
    )
    reason = "max_graph_breaks=0: 1; max_recompiles=0: 1"
    return entry(name, lane, measurement, verdict="violated", violations=violations, reason=reason)


def a_run() -> Receipt:
    """Two contracts of which one holds, in two lanes; one that is broken, and a hostile one."""
    return a_receipt(
        entry("test_fine"),
        entry("test_fine", "inductor"),
        violated("test_model"),
        violated("test_model", "inductor"),
        entry("test_crash", measurement=None, verdict="broken", reason="the test failed in call: no"),
        entry(f"tests/test_x.py::test_{HOSTILE}", measurement=replace(HOLDING, limit_hits=(hostile_hit(),))),
    )


def hostile_hit() -> LimitHit:
    here = Location(file="model.py", line=46, function="forward", source=f"# {HOSTILE}")
    return LimitHit(frame=here, limit="recompile_limit", reason=HOSTILE, guard=HOSTILE)


def seen_in(receipt: Receipt, sources: dict[str, Source] | None = None) -> RunView:
    return run_view(receipt, SOURCES if sources is None else sources)


def page_of(receipt: Receipt, sources: dict[str, Source] | None = None) -> str:
    view = seen_in(receipt, sources)
    return run_page(view, receipt, root="project", plugin="0.1.0", created="2026-01-31T12:00:00Z", start=PYTEST)


def a_large_run(contracts: int, files: int) -> tuple[Receipt, dict[str, Source]]:
    """Contracts in three lanes, each through five files; a third of them break, half are compiled again."""
    lines = 300
    sources = {
        f"pkg/mod_{at}.py": Source(
            lines=tuple(f"    value_{n} = self.layer(x, {n}, {at})" for n in range(1, lines + 1))
        )
        for at in range(files)
    }
    entries = []
    for number in range(contracts):
        names = [f"pkg/mod_{(number * 3 + each) % files}.py" for each in range(5)]
        line = 40 + number % 50
        here = Location(file=names[0], line=line, function="forward", source=(sources[names[0]].lines or ())[line - 1])
        ran = {f"{name}:{at}": (number % 5 + 1, int(at % 17 == 0)) for name in names for at in range(10, 60)}
        seen = replace(
            HOLDING,
            graph_breaks=(_break_at(here),) if number % 3 == 0 else (),
            recompiles=(replace(AGAIN, frame=here),) if number % 2 else (),
            eager_frames=(EagerFrame(frame=here, cause="error", reason="no"),) if number % 50 == 0 else (),
            operators_run=StepOperators(
                compiled=100, eager=3, lines=ran, modules={f"layers.{each}.mlp": (4, 0) for each in range(24)}
            ),
        )
        for lane in ("capture", "aot", "inductor"):
            verdict = "violated" if number % 25 == 0 else "held"
            name = f"tests/test_{number // 10}.py::test_{number}"
            entries.append(entry(name, lane, seen, verdict=verdict))
    return a_receipt(*entries), sources


def _break_at(here: Location) -> GraphBreak:
    return replace(BREAK, location=here, stacks=((here,),))
