"""XLA by way of torch_xla: lazy tensors, or Dynamo's backend `openxla`, counted by torch_xla.debug.metrics.

Before each count everything is cleared, and what moves tensors to the device and back is outside of it. The backend
clears the counters while it compiles, so that operators that fall back to the CPU show in steady calls alone.
"""

from __future__ import annotations

import importlib
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from pytest_compilecontract import clock

from ..xla.calls import Asked, Counted, Returned
from .counters import counters
from .xla_trees import apart

OPENXLA = "openxla"
# Python reads a value, for which XLA has to run what it has so far.
VALUE_READ = "aten::_local_scalar_dense"
# How long a program that ran is waited for: one that ran nothing, such as a target without operators, takes as long.
SETTLE_SECONDS = 2.0
POLL_SECONDS = 0.01
# What moves a tensor, or makes its memory, and computes nothing.
MOVES = frozenset(("_to_copy", "_copy_from", "_to_cpu", "detach_copy", "empty_symint"))


class TorchXla:
    """Programs of torch_xla's, on the CPU plugin of PJRT; XLA's cache of them is that of the process."""

    def __init__(self, backend: str) -> None:
        self._xla: Any = importlib.import_module("torch_xla")
        self._metrics: Any = importlib.import_module("torch_xla.debug.metrics")
        self._device: torch.device = self._xla.device()
        self._backend = backend
        self._targets: list[Callable[..., object]] = []
        self._buffers: list[frozenset[int]] = []
        # The operators of each program, by what it was made for.
        self._operations: dict[object, dict[str, int]] = {}
        self._counted = Counted()

    def add(self, module: torch.nn.Module, names: Sequence[str]) -> int:
        def whole(state: dict[str, torch.Tensor], args: tuple[object, ...], kwargs: dict[str, object]) -> object:
            return torch.func.functional_call(module, state, args, kwargs)

        named = tuple(names)
        run: Any = torch.compile(whole, backend=OPENXLA) if self._backend == OPENXLA else whole

        def call(asked: Asked, tensors: Sequence[torch.Tensor]) -> object:
            args, kwargs = asked.called.filled(tensors[len(named) :])
            return run(dict(zip(named, tensors, strict=False)), args, kwargs)

        self._targets.append(call)
        parameters = {name for name, _ in module.named_parameters()}
        self._buffers.append(frozenset(at for at, name in enumerate(named) if name not in parameters))
        return len(self._targets) - 1

    def forward(self, number: int, asked: Asked, tensors: Sequence[torch.Tensor]) -> Returned:
        __tracebackhide__ = True
        there = [each.detach().to(self._device) for each in tensors]
        for at in asked.gradients:
            there[at].requires_grad_()
        versions = [each._version for each in there]
        self._clear()
        try:
            with torch.set_grad_enabled(bool(asked.gradients)):
                output = self._targets[number](asked, there)
            found, tree = apart(output)
            self._xla.sync(wait=True)
        finally:
            self._count((number, asked.key, "forward"))
        host = Counter(f"output as a tensor of {each.device}" for each in found if each.device.type != "xla")
        if host:
            self._counted = _with(self._counted, host)
        # Batch norm changes its running mean and no version of it.
        buffers = self._buffers[number]
        changed = [at for at, each in enumerate(there) if at in buffers or each._version != versions[at]]
        return Returned(
            tensors=[each.detach().cpu() for each in found],
            tree=tree,
            changed={at: there[at].detach().cpu() for at in changed},
            constant=frozenset(at for at, each in enumerate(found) if not each.requires_grad),
            token=(number, asked, there, found),
        )

    def backward(self, token: Any, grads: Sequence[torch.Tensor]) -> list[torch.Tensor | None]:
        number, asked, there, found = token
        roots = [at for at, each in enumerate(found) if each.requires_grad]
        upstream = [grads[at].to(self._device) for at in roots]
        self._clear()
        try:
            wanted = [there[at] for at in asked.gradients]
            got = torch.autograd.grad([found[at] for at in roots], wanted, upstream, allow_unused=True)
            self._xla.sync(wait=True)
        finally:
            self._count((number, asked.key, "backward"))
        result: list[torch.Tensor | None] = [None] * len(there)
        for at, each in zip(asked.gradients, got, strict=True):
            result[at] = None if each is None else each.cpu()
        return result

    def counted(self) -> Counted:
        found, self._counted = self._counted, Counted()
        return found

    def _clear(self) -> None:
        self._xla.sync(wait=True)
        self._metrics.clear_all()
        counters()["graph_break"].clear()

    def _count(self, key: object) -> None:
        names = self._metrics.counter_names()
        counts = {name: int(self._metrics.counter_value(name) or 0) for name in names}
        outside = {name: count for name, count in counts.items() if name.startswith("aten::") and count}
        new = counts.get("UncachedCompile", 0)
        if key not in self._operations:
            # What the process had compiled before, this target has not.
            new += counts.get("CachedCompile", 0)
        if new:
            operations = {
                name.removeprefix("xla::"): count for name, count in counts.items() if name.startswith("xla::")
            }
            self._operations[key] = {name: count for name, count in operations.items() if name not in MOVES and count}
        breaks = {str(reason): int(count) for reason, count in counters()["graph_break"].items()}
        if reads := outside.pop(VALUE_READ, 0):
            breaks.setdefault(f"a value was read ({VALUE_READ})", reads)
        self._counted = Counted(
            compiles=self._samples("CompileTime"),
            programs=new,
            executed=self._executed(counts.get("UncachedCompile", 0) + counts.get("CachedCompile", 0)),
            ran=sum(self._operations.get(key, {}).values()),
            operations=self._operations[key] if new else {},
            outside=outside,
            breaks=breaks,
        )

    def _executed(self, least: int) -> int:
        """How many programs ran. XLA notes each in a thread of its own, a little after its results are there."""
        deadline = clock.seconds() + SETTLE_SECONDS
        found = -1
        while clock.seconds() < deadline and ((now := self._samples("ExecuteTime")) != found or now < max(least, 1)):
            found = now
            time.sleep(POLL_SECONDS)
        return self._samples("ExecuteTime")

    def _samples(self, metric: str) -> int:
        found = self._metrics.metric_data(metric)
        return 0 if found is None else int(found[0])


def _with(counted: Counted, outside: Counter[str]) -> Counted:
    return replace(counted, outside={**counted.outside, **outside})
