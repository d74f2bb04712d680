"""Receipts to compare: a lane that holds, and what may be wrong with one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from pytest_compilecontract.facts.collectives import Collective, Collectives
from pytest_compilecontract.facts.ladder import Frontier, Step, StepVerdict
from pytest_compilecontract.facts.measurement import (
    Call,
    CompileFailure,
    CudaGraphs,
    Difference,
    EagerFrame,
    EagerOps,
    FrameGuards,
    GraphBreak,
    GraphSkip,
    GraphStep,
    HostSync,
    Kernels,
    LimitHit,
    Location,
    Measurement,
    Numerics,
    Raised,
    Recompile,
    StateChange,
    StepKernels,
    StepOperators,
)
from pytest_compilecontract.facts.metrics import BANDED, METRICS, Metric
from pytest_compilecontract.facts.receipt import Entry, Environment, Receipt
from pytest_compilecontract.facts.structure import PLAIN, Placements, SavedBytes
from pytest_compilecontract.facts.verdict import Violation

OLD = Environment(torch="2.11.0", triton="3.6.0", device="A processor", python="3.11.7", commit="a" * 40, dirty=False)
NEW = replace(OLD, torch="2.15.0", triton="3.9.0")
CONTRACT = "tests/test_block.py::test_block"

FORWARD = Location(file="model.py", line=40, function="forward", source="def forward(self, x):")
COPY = Location(file="model.py", line=41, function="forward", source="mask = copy.deepcopy(self.mask)")
ITEM = Location(file="model.py", line=45, function="forward", source="n = mask.sum().item()")
CALLER = Location(file="train.py", line=9, function="step", source="loss = model(x)")

BREAK = GraphBreak(
    location=COPY,
    kind="copy.deepcopy()",
    reason="copy.deepcopy() is not supported",
    hints=("Avoid calling copy.deepcopy()",),
    registry_id="GB0179",
    stacks=((COPY,), (CALLER, COPY)),
)
OTHER_BREAK = replace(BREAK, location=ITEM, stacks=((ITEM,),))
RECOMPILE = Recompile(
    frame=FORWARD, kind="dynamic", guard="tensor 'x' size mismatch at index 0. expected 3, actual 4", continuation=True
)
EAGER = EagerFrame(frame=FORWARD, cause="graph break", reason="a loop", location=ITEM)
SKIPPED = EagerOps(
    why="skipped",
    frame=Location(file="torch/nn/modules/container.py", line=248, function="forward"),
    name="Sequential.forward",
    location=CALLER,
    broke=ITEM,
    operators={"linear": 4, "relu": 4},
)
LIMIT_HIT = LimitHit(frame=FORWARD, limit="recompile_limit", reason="recompile_limit reached (8)")
FAILURE = CompileFailure(frame=FORWARD, type="torch._inductor.exc.LoweringException", message="no lowering")
DIFFERENCE = Difference(at="output[0]", kind="value", detail="worst error 3e-2 > 4e-4")
RAISED = Raised(type="torch._dynamo.exc.InternalTorchDynamoError", message="oh no", location=ITEM)

HOLDING = Measurement(
    backend="aot_eager",
    graphs=1,
    backend_calls=1,
    ops_captured=100,
    recompiles=(),
    graph_breaks=(),
    break_events=0,
    eager_frames=(),
    operators_run=StepOperators(compiled=100, eager=0),
    limit_hits=(),
    backend_failures=(),
    errors_suppressed=(),
    backward_graphs=1,
    graphs_executed=3,
    calls=(Call(phase="cold", seconds=1.0, graphs_executed=1),),
    numerics=Numerics(method="fp64", compared=1, worst_error=1e-7),
    state_change=StateChange(),
    cold_seconds=1.0,
    warmup_seconds=0.1,
    steady_seconds=0.001,
    overhead_seconds=0.0001,
)
# Each metric of the default policy worsened in turn, and nothing else that a policy judges.
WORSENED: dict[str, Measurement] = {
    "graph_breaks": replace(HOLDING, graph_breaks=(BREAK,)),
    "recompiles": replace(HOLDING, recompiles=(RECOMPILE,)),
    "eager_frames": replace(HOLDING, eager_frames=(EAGER,)),
    "eager_ops": replace(HOLDING, operators_run=StepOperators(compiled=92, eager=8, groups=(SKIPPED,))),
    "limit_hits": replace(HOLDING, limit_hits=(LIMIT_HIT,)),
    "ops_captured": replace(HOLDING, ops_captured=94),
    "capture": replace(HOLDING, graphs_executed=0),
    "numerics": replace(HOLDING, numerics=replace(HOLDING.numerics, differences=(DIFFERENCE,))),  # type: ignore[type-var]
    "state_dict": replace(HOLDING, state_change=StateChange(keys_added=("_orig_mod.weight",))),
    "errors": replace(HOLDING, backend_failures=(FAILURE,)),
}
VIOLATION = Violation(limit="max_graphs=1", measured=2)


def an_entry(measurement: Measurement | None = HOLDING, **changes: Any) -> Entry:
    entry = Entry(
        contract=CONTRACT,
        lane="aot",
        test=f"{CONTRACT}[aot]",
        verdict="held",
        environment="here",
        lane_settings={"backend": "aot_eager"},
        measurement=measurement,
    )
    return replace(entry, **changes)


def a_walk(*verdicts: StepVerdict, reason: str = "max_graph_breaks=0: 1") -> Frontier:
    """A ladder of so many rungs; those that did not hold have the reason."""
    names = ("capture", "aot", "inductor", "train")
    return Frontier(
        steps=tuple(
            Step(name=name, verdict=each, reason="" if each == "held" else reason)
            for name, each in zip(names, verdicts, strict=False)
        )
    )


def repeated(measurement: Measurement | None = HOLDING, *, repeats: int = 3, **spread: tuple[float, float]) -> Entry:
    """The entry of a lane that was measured several times, with the bands that were seen."""
    return an_entry(measurement, repeats=repeats, spread=spread)


def a_receipt(*entries: Entry, environment: Environment = OLD) -> Receipt:
    return Receipt(
        plugin="0.1.0", created="2026-01-31T12:00:00Z", environments={"here": environment}, entries=tuple(entries)
    )


def before(*entries: Entry) -> Receipt:
    return a_receipt(*entries)


def after(*entries: Entry) -> Receipt:
    return a_receipt(*entries, environment=NEW)


def _on_a_gpu(**facts: Any) -> Entry:
    return an_entry(replace(HOLDING, **facts))


def _kernels(total: int) -> StepKernels:
    return StepKernels(compiled=Kernels(total=total), eager=Kernels(total=40))


REPLAYED = CudaGraphs(steady=GraphStep(replayed=20), steady_steps=20)
# What only a CUDA device shows, as it was and worse.
WORSE_ON_A_GPU: dict[str, tuple[Entry, Entry]] = {
    "cuda_graphs": (
        _on_a_gpu(cuda_graphs=REPLAYED),
        _on_a_gpu(cuda_graphs=replace(REPLAYED, skips=(GraphSkip(reason="mutated inputs", location=ITEM),))),
    ),
    "host_syncs": (_on_a_gpu(host_syncs=()), _on_a_gpu(host_syncs=(HostSync(location=ITEM),))),
    "kernels_a_step": (_on_a_gpu(kernels=_kernels(10)), _on_a_gpu(kernels=_kernels(12))),
}


def _placed(at: str) -> Entry:
    return an_entry(replace(HOLDING, placements=Placements(compiled={"weight": at}, eager={"weight": at})))


def _saved(count: int) -> Entry:
    return an_entry(replace(HOLDING, saved_bytes=SavedBytes(compiled=count, eager=100)))


def _recomputed(count: int) -> Entry:
    return an_entry(replace(HOLDING, recomputed_graphs=count))


def _in_ranks(**times: int) -> Entry:
    made = tuple(Collective(kind=kind, times=number) for kind, number in times.items())
    return an_entry(replace(HOLDING, collectives=Collectives(compiled=made)))


def _guarded(count: int) -> Entry:
    return an_entry(replace(HOLDING, guards=(FrameGuards(frame=FORWARD, kinds={"TENSOR_MATCH": count}),)))


def _beyond_its_band(metric: Metric) -> tuple[Entry, Entry]:
    more = 1.1 + (metric.beyond or 0.0)
    ends = (repeated(**{metric.name: (1.0, 1.2)}), repeated(**{metric.name: (1.2 * more, 1.4 * more)}))
    return ends if metric.better == "lower" else ends[::-1]


# Each metric that can gate, as it was and worse. A new one that is banded has its case; any other needs one here.
WORSE: dict[str, tuple[Entry, Entry]] = {
    **{name: (an_entry(), an_entry(measured)) for name, measured in WORSENED.items()},
    "limits": (an_entry(), an_entry(verdict="violated", violations=(VIOLATION,))),
    "fullgraph": (an_entry(), an_entry(WORSENED["graph_breaks"])),
    "frontier": (an_entry(frontier=a_walk("held", "held")), an_entry(frontier=a_walk("held", "failed"))),
    "collectives": (_in_ranks(all_reduce=1), _in_ranks(all_reduce=2)),
    "placements": (_placed("Shard(0) on 2"), _placed(PLAIN)),
    "bytes_saved": (_saved(100), _saved(110)),
    "recomputed_graphs": (_recomputed(0), _recomputed(1)),
    **WORSE_ON_A_GPU,
    **{
        name: _beyond_its_band(METRICS[name])
        for name in BANDED
        if name not in (*WORSENED, *WORSE_ON_A_GPU, "bytes_saved")
    },
    "guards_a_call": (_guarded(40), _guarded(60)),
}
# What torch renames, and what is no drift.
BENIGN: dict[str, GraphBreak] = {
    "reworded": replace(BREAK, reason="deepcopy is unsupported", explanation="other", kind="copy.deepcopy", hints=()),
    "renumbered": replace(BREAK, registry_id="GB0007"),
    "met-more-often": replace(BREAK, events=5, whole_frame=True),
    "moved-lines": replace(BREAK, location=replace(COPY, line=57), stacks=((replace(COPY, line=57),), BREAK.stacks[1])),
    "met-by-its-caller-alone": replace(BREAK, stacks=BREAK.stacks[1:]),
    "in-a-resume-function": replace(
        BREAK,
        location=replace(COPY, function="torch_dynamo_resume_in_forward_at_40"),
    ),
}
