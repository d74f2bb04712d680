"""How often the rule of numerics alarms for nothing, and how often it finds a small fault, beside other rules.

    python benchmarks/numerics.py run STATE [--device cuda] [--seconds 480] [--only WORD] [--lanes inductor,dynamic]
        [--precisions bfloat16,float16]
    python benchmarks/numerics.py show STATE ...        the table of what was measured, of several states side by side

Each model runs in each precision and lane, inferred and trained with AdamW, once. What the runs left is then judged by
four rules, as it is and with one fault at a time put into compiled's values: an output, one channel of it, the loss or
a gradient, times 1.01, or 1.001 where float32 computes. STATE is a file of JSON lines: what is in it is not run again.
"""

from __future__ import annotations

import argparse
import contextlib
import inspect
import itertools
import json
import logging
import sys
import time
import traceback
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest import mock

import torch

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

from small_models import KINDS, Kind, class_loss  # noqa: E402

from pytest_compilecontract.calls import call  # noqa: E402
from pytest_compilecontract.facts.lanes import BUILT_IN, Lane  # noqa: E402
from pytest_compilecontract.facts.limits import limits_from  # noqa: E402
from pytest_compilecontract.facts.measurement import Numerics  # noqa: E402
from pytest_compilecontract.measure import numerics  # noqa: E402
from pytest_compilecontract.measure.compile_lane import CompileLane  # noqa: E402
from pytest_compilecontract.measure.isolation import isolated  # noqa: E402
from pytest_compilecontract.measure.noise_runs import NoiseRuns  # noqa: E402
from pytest_compilecontract.measure.numerics import explained, rule  # noqa: E402
from pytest_compilecontract.measure.probes.trace import quiet  # noqa: E402
from pytest_compilecontract.measure.runner import Runner  # noqa: E402

RULES = ("this rule", "the rule before", "assert_close", "same")
PRECISIONS = ("bfloat16", "float32", "tf32", "autocast", "float16")
STEPS = 2
CLASSES = 1000
SCALE = 1024.0  # of a loss in float16, so that its gradients do not underflow
# What `same` is given by torch's benchmarks for inference and training in float32, and in less.
SAME = {"float32": 1e-4, "tf32": 1e-3, "bfloat16": 1e-3, "float16": 1e-3, "autocast": 1e-3}
# The rule as it was before eager's noise was measured.
BEFORE = {torch.float64: 1e-12, torch.float32: 2e-4, torch.float16: 2e-3, torch.bfloat16: 2e-2}


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    kind: Kind
    precision: str
    lane: str
    trains: bool

    @property
    def name(self) -> str:
        return f"{self.kind.name}, {self.precision}, {'train' if self.trains else 'infer'}, {self.lane}"

    @property
    def factor(self) -> float:
        return 1.001 if self.precision == "float32" else 1.01


def classifier(model: Any) -> Any:
    """A model of timm with as many classes as timm's have by default: of twenty numbers a mean says little."""
    model.reset_classifier(CLASSES)
    return model


def families() -> Iterator[Kind]:
    """Models of transformers, where it is installed."""
    with contextlib.suppress(ImportError):
        import transformers
        import whole_models

        for family in (
            whole_models.llama, whole_models.gpt2, whole_models.gemma3, whole_models.qwen3_moe,
            whole_models.deepseek_v3, whole_models.mamba2, whole_models.bamba, whole_models.t5, whole_models.bert,
        ):  # fmt: skip
            yield Kind(
                name=f"transformers {family.__name__}",
                make=lambda family=family: family(transformers),
                batch=lambda: (torch.randint(0, whole_models.WORDS, (2, 16)),),
                loss=None,
            )
        from contracts.vision import name_operators

        name_operators()
        import timm

        for family in (
            whole_models.vit, whole_models.swin, whole_models.resnet, whole_models.convnext,
            whole_models.efficientnet, whole_models.mixer,
        ):  # fmt: skip
            yield Kind(
                name=f"timm {family.__name__}",
                make=lambda family=family: classifier(family(timm.models)),
                batch=lambda: (torch.randn(8, 3, 64, 64), torch.randint(0, CLASSES, (8,))),
                loss=class_loss,
            )


def cases(device: str, lanes: list[str], chosen: Sequence[str] = PRECISIONS) -> Iterator[Case]:
    precisions = [each for each in chosen if device == "cuda" or each != "tf32"]
    kinds = (*KINDS, *families())
    # What is left out when the time is up is not all of one kind.
    for lane, trains, precision in itertools.product(lanes, (False, True), precisions):
        yield from (Case(kind=kind, precision=precision, lane=lane, trains=trains) for kind in kinds)


def lane_of(case: Case, device: str) -> Lane:
    lane = replace(BUILT_IN[case.lane], device=device, cache="shared")
    if case.precision == "autocast" or (case.precision == "float16" and case.trains):
        # What is trained in float16 has its parameters in float32, where a step of AdamW does not underflow.
        return replace(lane, autocast="bfloat16" if case.precision == "autocast" else "float16")
    if case.precision in ("bfloat16", "float16"):
        return replace(lane, dtype=case.precision)
    return replace(lane, matmul_precision="high" if case.precision == "tf32" else "highest")


# What is judged


Planted = Callable[[numerics.Run], numerics.Run | None]


def with_factor(run: numerics.Run, group: str, change: Callable[[torch.Tensor], torch.Tensor]) -> numerics.Run | None:
    """A run with another largest floating tensor in a group; None where it has none, or one that does not change."""
    found = run.groups.get(group, numerics.Snapshot()).tensors()
    tensors = [(at, leaf) for at, leaf in found if leaf.data is not None and leaf.data.is_floating_point()]
    if not tensors:
        return None
    at, leaf = max(tensors, key=lambda each: each[1].data.numel())
    changed = change(leaf.data)
    if torch.equal(changed, leaf.data):
        return None
    nodes = {**run.groups[group].nodes, at: replace(leaf, kept=numerics.Apart(changed))}
    return replace(run, groups={**run.groups, group: numerics.Snapshot(nodes=nodes)})


def faults(case: Case) -> dict[str, Planted]:
    def whole(data: torch.Tensor) -> torch.Tensor:
        return (data * case.factor).to(data.dtype)

    def channel(data: torch.Tensor) -> torch.Tensor:
        changed = data.clone()
        changed[..., data.shape[-1] // 2] *= case.factor
        return changed

    found: dict[str, Planted] = {
        "an output": lambda run: with_factor(run, "output", whole),
        "a channel": lambda run: with_factor(run, "output", channel),
    }
    if case.trains:
        found["the loss"] = lambda run: with_factor(run, "loss", whole)
        found["a gradient"] = lambda run: with_factor(run, "grad", whole)
    return found


def pairs(runs: numerics.Runs) -> Iterator[tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]]:
    """The floating tensors of eager, of compiled and of the reference that are compared."""
    for group, eager in runs.eager.groups.items():
        if group in ("input", "state", numerics.MADE):
            continue
        for at, leaf in eager.tensors():
            other = runs.compiled.groups[group].nodes.get(at)
            if leaf.data is None or not leaf.data.is_floating_point() or other is None or other.data is None:
                continue
            gold = runs.gold.groups[group].nodes.get(at) if runs.gold else None
            yield leaf.data, other.data, getattr(gold, "data", None)


def by_assert_close(runs: numerics.Runs) -> bool:
    try:
        for eager, compiled, _ in pairs(runs):
            torch.testing.assert_close(compiled, eager, equal_nan=True)
    except AssertionError:
        return True
    return False


def by_same(runs: numerics.Runs, precision: str) -> bool:
    from torch._dynamo.utils import same

    logging.getLogger("torch._dynamo.utils").setLevel(logging.CRITICAL)
    for eager, compiled, gold in pairs(runs):
        if not same(eager, compiled, gold, tol=SAME[precision], equal_nan=True):
            return True
    return False


def by_the_rule_before(runs: numerics.Runs, tolerance: numerics.Tolerance, told: str) -> bool:
    """Without a reference where that was refused then."""
    if told:
        runs = replace(runs, gold=None)
    with (
        mock.patch.dict(rule.FLOOR, BEFORE),
        mock.patch.object(explained, "find_bias", return_value=None),
        mock.patch("pytest_compilecontract.measure.numerics.judging.find_bias", return_value=None),
    ):
        return bool(_values(numerics.judged(runs, tolerance).numerics))


def _values(found: Numerics) -> list[Any]:
    return [each for each in found.differences if each.kind in ("value", "nan", "input changed")]


class Everywhere(frozenset[str]):
    """All places: what is found wrong in one of them is looked up in the same runs of eager as what is in another."""

    def __contains__(self, _place: object) -> bool:
        return True


class AllRuns(NoiseRuns):
    def _run(self, until: int, _places: frozenset[str]) -> None:
        super()._run(until, Everywhere())


class Judges:
    """Stands in the place of the runner's own judging, where all runs are at hand."""

    def __init__(self, case: Case) -> None:
        self._case = case
        self.result: dict[str, Any] = {}

    def __call__(self, runner: Any, job: Any, compiled: Any, **more: Any) -> Numerics:
        return self._judge(runner, job, compiled, **more)

    def _judge(self, runner: Any, job: Any, compiled: Any, *, eager: Any, again: Any, gold: Any, note: str) -> Numerics:
        runs, tolerance = runner.sides(compiled, eager=eager, again=again, gold=gold)
        told = gold.told if gold is not None else ""
        noise = AllRuns(runner._passes, job, eager, runner._paths, tf32=runner._tf32)

        def ours(of: numerics.Runs) -> Numerics:
            return noise.judged(
                lambda moved, bias: numerics.judged(replace(of, moved=moved, bias=bias), tolerance)
            ).numerics

        def all_rules(of: numerics.Runs, found: Numerics) -> dict[str, bool]:
            return {
                "this rule": bool(_values(found)),
                "the rule before": by_the_rule_before(of, tolerance, told),
                "assert_close": by_assert_close(of),
                "same": by_same(of, self._case.precision),
            }

        started = time.perf_counter()
        found = ours(runs)
        self.result = {
            "alarm": all_rules(runs, found),
            "note": "; ".join(each for each in (found.note, told, note) if each),
            "differences": [f"{each.at}: {each.detail}" for each in _values(found)][:5],
            "seconds": round(time.perf_counter() - started, 2),
            "runs": noise.made,
            "found": {},
        }
        for name, plant in faults(self._case).items():
            wrong = plant(runs.compiled)
            if wrong is not None:
                of = replace(runs, compiled=wrong)
                self.result["found"][name] = all_rules(of, ours(of))
        return found


def measured(case: Case, device: str) -> dict[str, Any]:
    torch.manual_seed(0)
    model = case.kind.make()
    model.train(case.trains)
    batches = [case.kind.batch() for _ in range(STEPS if case.trains else 1)]
    loss = case.kind.loss
    if loss is None:
        batches = [call(input_ids=each, labels=each) for (each,) in batches]
    elif not case.trains:
        # The last arguments are the loss's.
        batches = [each[: len(each) - (loss.__code__.co_argcount - 1)] for each in batches]
    lane, judges = lane_of(case, device), Judges(case)
    if case.precision == "float16" and loss is not None:
        scaled = loss

        def loss(*args: Any) -> torch.Tensor:
            return scaled(*args) * SCALE

        loss.__signature__ = inspect.signature(scaled)  # type: ignore[attr-defined]
    with (
        isolated(lane),
        quiet(),
        mock.patch.object(Runner, "_judged", lambda self, *args, **more: judges(self, *args, **more)),
    ):
        compile_lane = CompileLane(lane, limits_from([("bench", {})], test="bench"), ROOT)
        try:
            if case.trains:
                compile_lane.train(model, batches, loss=loss, optimizer=lambda of: torch.optim.AdamW(of, lr=1e-3))
            else:
                compile_lane.run(model, *batches)
        finally:
            compile_lane.close()
    return judges.result


def run(args: argparse.Namespace) -> None:
    known = {each["case"] for each in _read(args.state)}
    until = time.monotonic() + args.seconds
    todo = [
        each
        for each in cases(args.device, args.lanes.split(","), args.precisions.split(","))
        if each.name not in known and all(word in each.name for word in args.only)
    ]
    print(f"torch {torch.__version__}, {args.device}: {len(known)} known, {len(todo)} to run", flush=True)
    for case in todo:
        if time.monotonic() > until:
            print("out of time: run it again to go on", flush=True)
            return
        started = time.monotonic()
        try:
            result = measured(case, args.device)
        except Exception as error:  # noqa: BLE001 - one that cannot run here says nothing of the others
            result = {"error": f"{type(error).__name__}: {error}".splitlines()[0]}
            if args.trace:
                traceback.print_exc()
        entry = {"case": case.name, "precision": case.precision, "torch": torch.__version__, "device": args.device}
        entry |= {"lane": case.lane, "trains": case.trains, **result}
        with open(args.state, "a") as file:
            file.write(json.dumps(entry) + "\n")
        alarms = [name for name, is_one in result.get("alarm", {}).items() if is_one]
        missed = [name for name, by in result.get("found", {}).items() if not by["this rule"]]
        text = result.get("error") or f"alarms: {', '.join(alarms) or 'none'}; missed: {', '.join(missed) or 'none'}"
        print(f"{time.monotonic() - started:6.1f} s  {case.name}: {text}", flush=True)
        if result.get("alarm", {}).get("this rule"):
            print("          ", *result["differences"], sep="\n           ", flush=True)


def _read(state: str) -> list[dict[str, Any]]:
    path = Path(state)
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def show(args: argparse.Namespace) -> None:
    entries = [each for state in args.states for each in _read(state)]
    ran = [each for each in entries if each.get("alarm")]
    print(f"{len(ran)} lanes; {len(entries) - len(ran)} could not run.\n")
    print("| torch, device, precision | lanes | noise was measured in | " + " | ".join(RULES) + " |")
    print("| --- " * (3 + len(RULES)) + "|")
    for key in sorted({_where(each) for each in ran}):
        print(_alarms(key, [each for each in ran if _where(each) == key]))
    print(_alarms("false alarms, all", ran))
    print("\n| fault, precision | planted | " + " | ".join(RULES) + " |")
    print("| --- " * (2 + len(RULES)) + "|")
    for name in dict.fromkeys(name for each in ran for name in each["found"]):
        for precision in dict.fromkeys(each["precision"] for each in ran):
            found = [each["found"][name] for each in ran if each["precision"] == precision and name in each["found"]]
            cells = [str(sum(each[rule_name] for each in found)) for rule_name in RULES]
            print(f"| {name}, {precision} | {len(found)} | {' | '.join(cells)} |")
    missed: dict[str, list[str]] = defaultdict(list)
    for each in ran:
        for name, found in each["found"].items():
            if not found["this rule"]:
                missed[name].append(each["case"])
    for name, names in missed.items():
        print(f"\nmissed in {name}: {'; '.join(names)}")
    for each in ran:
        if each["alarm"]["this rule"]:
            print(f"\nalarm: {each['case']}: {'; '.join(each['differences'])}")
    for each in entries:
        if each.get("error"):
            print(f"\ncould not run: {each['case']}: {each['error']}")


def _where(entry: dict[str, Any]) -> str:
    return f"{entry['torch']}, {entry['device']}, {entry['precision']}"


def _alarms(name: str, entries: list[dict[str, Any]]) -> str:
    cells = [str(sum(each["alarm"][rule_name] for each in entries)) for rule_name in RULES]
    noisy = sum(each["runs"] > 0 for each in entries)
    return f"| {name} | {len(entries)} | {noisy} | {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    running = commands.add_parser("run")
    running.add_argument("state")
    running.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    running.add_argument("--lanes", default="inductor")
    running.add_argument("--precisions", default=",".join(PRECISIONS))
    running.add_argument("--seconds", type=float, default=480.0)
    running.add_argument("--only", action="append", default=[])
    running.add_argument("--trace", action="store_true")
    running.set_defaults(do=run)
    showing = commands.add_parser("show")
    showing.add_argument("states", nargs="+")
    showing.set_defaults(do=show)
    args = parser.parse_args()
    args.do(args)


if __name__ == "__main__":
    main()
