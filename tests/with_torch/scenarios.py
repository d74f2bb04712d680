"""Ground truth: small functions and the exact numbers that any measuring of them must give.

They hold on every torch from 2.11 to 2.15, on the CPU, after `torch.compiler.reset()`. A probe that disagrees is wrong;
a new torch that disagrees has changed what Dynamo does. A count that a scenario does not name is 0.

    graphs      graphs that Dynamo made and kept
    backend     graphs handed to the backend
    first       code installed for a frame that had no usable entry; `resume` of it are continuations of a graph break
    recompiles  code installed for a frame that had one; `kinds` says why, one word each, sorted
    limit       refusals for a recompile limit
    eager       frames given back to eager
    events      graph breaks, at most one an attempt; `sites` are the distinct ones: user line and kind
    executed    compiled graphs run, where a scenario names it
"""

from __future__ import annotations

import contextlib
import gc
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch._dynamo

X = torch.ones(3)
COUNTS = ("graphs", "backend", "first", "resume", "recompiles", "limit", "eager", "events", "sites")


@dataclass(frozen=True, kw_only=True, slots=True)
class Scenario:
    """One function to run, and what must be counted.

    `first_reasons[i]` is in the first guard failure that torch gives for the i-th attempt at a recompile, `any_reasons`
    are somewhere in them, `leads` are the guards that the probe names, `breaks` are kinds of break.
    """

    run: Callable[[], object]
    counts: dict[str, int]
    kinds: tuple[str, ...] = ()
    executed: int | None = None
    first_reasons: tuple[str, ...] = ()
    any_reasons: tuple[str, ...] = ()
    leads: tuple[str, ...] = ()
    breaks: tuple[str, ...] = ()
    config: dict[str, Any] = field(default_factory=dict)


SCENARIOS: dict[str, Scenario] = {}


def counts(**expected: Any) -> Callable[[Callable[[], object]], Callable[[], object]]:
    """Register a scenario with what must be counted in it."""
    numbers = {name: expected.pop(name, 0) for name in COUNTS}

    def register(run: Callable[[], object]) -> Callable[[], object]:
        SCENARIOS[run.__name__] = Scenario(run=run, counts=numbers, **expected)
        return run

    return register


def compiled(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    return torch.compile(function, **{"backend": "eager", **options})


def broken(x):
    x = x.sin()
    torch._dynamo.graph_break()
    return x.cos()


def boom(_module, _inputs):
    raise RuntimeError("boom")


@counts(graphs=1, backend=1, first=1, executed=3)
def one_graph():
    def f(x):
        return x.sin() + 1

    run = compiled(f)
    for _ in range(3):
        run(X)


@counts(graphs=2, backend=2, first=2, resume=1, events=1, sites=1, executed=4, breaks=("Call to `torch._dynamo",))
def one_break():
    run = compiled(broken)
    run(X)
    run(X)


# Graphs less one says no break here.
@counts(graphs=1, backend=1, first=2, resume=1, events=1, sites=1, executed=1)
def break_before_the_first_op():
    def f(x):
        torch._dynamo.graph_break()
        return x.sin()

    compiled(f)(X)


# Never in counters["graph_break"].
@counts(graphs=3, backend=3, first=3, resume=2, events=1, sites=1, executed=8, breaks=("Data-dependent branching",))
def branch_on_a_tensor_both_sides():
    def f(x):
        y = x.sin()
        if y.sum() > 0:
            return y + 1
        return y - 1

    run = compiled(f)
    for x in (X, -X, X, -X):
        run(x)


@counts(graphs=2, backend=2, first=2, resume=1, events=1, sites=1, breaks=("Tensor.item",))
def scalar_read():
    def f(x):
        n = x.sum().item()
        return x * n

    compiled(f)(X)


# The caller breaks at the call and the callee at the line: two events of one site.
@counts(graphs=4, backend=4, first=4, resume=2, events=2, sites=1)
def break_in_a_callee():
    def f(x):
        return broken(x + 1) + 2

    compiled(f)(X)


@counts(graphs=2, backend=2, first=2, resume=1, events=1, sites=1, config={"nested_graph_breaks": True})
def break_in_a_callee_nested():
    def f(x):
        return broken(x + 1) + 2

    compiled(f)(X)


@counts(eager=1, events=1, sites=1, executed=0)
def break_in_a_loop():
    def f(x):
        for _ in range(3):
            x = x.sin()
            torch._dynamo.graph_break()
        return x

    run = compiled(f)
    run(X)
    run(X)


@counts(eager=1, events=1, sites=1, executed=0)
def break_under_try():
    def f(x):
        try:
            x = x.sin()
            torch._dynamo.graph_break()
            x = x.cos()
        except ValueError:
            pass
        return x

    compiled(f)(X)


# Refused before tracing: no metric, log or trace of torch's has it.
@counts(eager=1, events=1, sites=1, breaks=("Attempt to trace generator",))
def generator():
    def f(x):
        yield x.sin()

    list(compiled(f)(X))


# A frame with nothing left to compile after the break is given back too, and loses nothing.
@counts(graphs=1, backend=1, first=1, eager=1, events=1, sites=1)
def break_at_the_end():
    def f(x):
        y = x.sin()
        torch._dynamo.graph_break()
        return y

    compiled(f)(X)


@counts(
    graphs=2,
    backend=2,
    first=1,
    recompiles=1,
    kinds=("dynamic",),
    executed=4,
    first_reasons=("size mismatch at index 0. expected 3, actual 4",),
    leads=("tensor 'x' size mismatch at index 0. expected 3, actual 4",),
)
def automatic_dynamic():
    def f(x):
        return x.sin() + 1

    run = compiled(f)
    for n in (3, 4, 5, 6):
        run(torch.ones(n))


@counts(
    graphs=4,
    backend=4,
    first=1,
    recompiles=3,
    kinds=("guard", "guard", "guard"),
    first_reasons=("expected 3, actual 4", "expected 4, actual 5", "expected 5, actual 6"),
)
def static_shapes():
    def f(x):
        return x.sin() + 1

    run = compiled(f, dynamic=False)
    for n in (3, 4, 5, 6):
        run(torch.ones(n))


@counts(graphs=1, backend=1, first=1)
def marked_dynamic():
    def f(x):
        return x.sin() + 1

    run = compiled(f)
    for n in (3, 4, 5):
        x = torch.ones(n)
        torch._dynamo.mark_dynamic(x, 0)
        run(x)


# No size became free: it was from the first.
@counts(
    graphs=2,
    backend=2,
    first=1,
    recompiles=1,
    kinds=("guard",),
    first_reasons=("10",),
    leads=("2 <= x.size()[0] <= 10",),
)
def branch_on_a_size():
    def f(x):
        if x.shape[0] > 10:
            return x + 1
        return x - 1

    run = compiled(f, dynamic=True)
    for n in (5, 20, 6, 30):
        run(torch.ones(n))


# torch's first reason speaks of the newest entry; for the last recompile that is the wrong one.
@counts(
    graphs=4,
    backend=4,
    first=1,
    recompiles=3,
    kinds=("guard", "guard", "guard"),
    first_reasons=(
        "0/0: tensor 'x' requires_grad mismatch",
        "0/1: GLOBAL_STATE changed: grad_mode",
        "0/2: GLOBAL_STATE changed: grad_mode",
    ),
    any_reasons=("0/0: tensor 'x' dtype mismatch. expected Float, actual Double",),
    leads=(
        "tensor 'x' requires_grad mismatch. expected requires_grad=0",
        "GLOBAL_STATE changed: grad_mode",
        "tensor 'x' dtype mismatch. expected Float, actual Double",
    ),
)
def tensor_properties():
    def f(x):
        return x.sin() + 1

    run = compiled(f)
    run(X)
    x = torch.ones(3, requires_grad=True)
    run(x)
    with torch.no_grad():
        run(x)
    run(X.double())


@counts(graphs=2, backend=2, first=1, recompiles=1, kinds=("dynamic",), first_reasons=("n == 2",), leads=("n == 2",))
def int_argument():
    def f(x, n):
        return x * n

    run = compiled(f)
    for n in (2, 3, 4, 5):
        run(X, n)


# Seven recompiles, one refusal, then eager without a word.
@counts(
    graphs=8,
    backend=8,
    first=1,
    recompiles=7,
    limit=1,
    kinds=("guard",) * 7,
    executed=8,
    first_reasons=("k == ''",),
)
def recompile_limit():
    def f(x, k):
        return x * len(k)

    run = compiled(f)
    for n in range(12):
        run(X, "a" * n)


@counts(graphs=8, backend=8, first=1, recompiles=7, limit=1, kinds=("guard",) * 7)
def recompile_limit_under_fullgraph():
    def f(x, k):
        return x * len(k)

    run = compiled(f, fullgraph=True)
    with contextlib.suppress(torch._dynamo.exc.FailOnRecompileLimitHit):
        for n in range(12):
            run(X, "a" * n)


@counts(
    graphs=4,
    backend=4,
    first=2,
    resume=1,
    recompiles=2,
    kinds=("dynamic", "dynamic"),
    events=2,
    sites=1,
    first_reasons=("size mismatch", "size mismatch"),
)
def recompile_across_a_break():
    run = compiled(broken)
    for n in (3, 4, 5):
        run(torch.ones(n))


class Block(torch.nn.Module):
    def __init__(self, scale=1):
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)
        self.scale = scale

    def forward(self, x):
        return self.linear(x).relu() * self.scale


@counts(graphs=1, backend=1, first=1, executed=5)
def equal_blocks():
    x = torch.ones(2, 4, requires_grad=True)
    for block in [Block() for _ in range(5)]:
        block.compile(backend="eager")
        x = block(x)


# The ninth block that differs, and all after it, run in eager.
@counts(graphs=8, backend=8, first=1, recompiles=7, limit=1, kinds=("instance",) * 7, executed=8)
def unequal_blocks():
    x = torch.ones(2, 4, requires_grad=True)
    for block in [Block(scale=n) for n in range(10)]:
        x = compiled(block)(x)


@counts(graphs=2, backend=2, first=1, recompiles=1, kinds=("wrapper",))
def library_modules_share_a_frame():
    compiled(torch.nn.ReLU())(X)
    compiled(torch.nn.Sigmoid())(X)


@counts(graphs=2, backend=2, first=1, recompiles=1, kinds=("backend",), first_reasons=("BACKEND_MATCH",))
def two_backends():
    def f(x):
        return x.sin()

    def other(module, _inputs):
        return module.forward

    compiled(f)(X)
    compiled(f, backend=other)(X)


@counts(graphs=2, backend=2, first=1, recompiles=1, kinds=("invalidated",))
def a_guarded_class_dies():
    def f(x, kind):
        return x * kind.value

    def kind():
        return type("Kind", (), {"value": 2})

    run = compiled(f)
    dying = kind()
    run(X, dying)
    del dying
    gc.collect()
    run(X, kind())


@counts(eager=1)
def break_under_fullgraph():
    with contextlib.suppress(torch._dynamo.exc.Unsupported):
        compiled(broken, fullgraph=True)(X)


@counts(eager=1)
def break_where_breaks_are_errors():
    def f(x):
        with torch._dynamo.error_on_graph_break(True):
            torch._dynamo.graph_break()
        return x.sin()

    with contextlib.suppress(torch._dynamo.exc.Unsupported):
        compiled(f)(X)


@counts(backend=1, eager=1)
def backend_raises():
    with contextlib.suppress(torch._dynamo.exc.BackendCompilerFailed):
        compiled(lambda x: x.sin(), backend=boom)(X)


@counts(backend=1, eager=1, config={"suppress_errors": True})
def backend_raises_and_is_suppressed():
    compiled(lambda x: x.sin(), backend=boom)(X)


@counts(graphs=2, backend=2, first=2, resume=1, events=1, sites=1, breaks=("torch.compiler.disable",))
def disabled_helper():
    @torch.compiler.disable
    def helper(x):
        return x * 2

    def f(x):
        return helper(x.sin()).cos()

    compiled(f)(X)


@counts(eager=1)
def no_ops():
    compiled(lambda x: x)(X)


@counts(graphs=2, backend=2, first=2)
def compile_inside_compile():
    def inner(x):
        return x.cos()

    run_inner = compiled(inner)

    def outer(x):
        return run_inner(x.sin())

    compiled(outer)(X)
    run_inner(X)


@counts(graphs=2, backend=2, first=2)
def a_backend_that_compiles():
    def backend(module, _inputs):
        compiled(lambda x: x.cos())(X)
        return module.forward

    compiled(lambda x: x.sin(), backend=backend)(X)


@counts(graphs=2, backend=2, first=2, resume=1, events=1, sites=1, executed=6)
def training_with_a_break():
    run = compiled(broken, backend="aot_eager")
    for _ in range(3):
        run(torch.ones(3, requires_grad=True)).sum().backward()


# The backend asks Dynamo to start again; torch 2.15 then logs the break a second time. The float is free from then on.
@counts(graphs=3, backend=3, first=2, resume=1, recompiles=1, kinds=("dynamic",), events=2, sites=1)
def restart_with_a_break():
    def f(x, a):
        y = x * a
        if y.sum() > 0:
            return y + 1
        return y - 1

    run = compiled(f, backend="aot_eager")
    for a in (1.5, 2.5, 3.5):
        run(X, a)


@counts(graphs=3, backend=3, first=1, recompiles=2, kinds=("guard", "guard"), first_reasons=("k == 'a'", "k == 'b'"))
def closures_share_code():
    def made(k):
        def f(x):
            return x * len(k + "z")

        return f

    for k in ("a", "b", "c"):
        compiled(made(k))(X)


@counts(graphs=2, backend=2, first=2)
def reset_between():
    def f(x):
        return x.sin()

    run = compiled(f)
    run(X)
    torch._dynamo.reset()
    run(torch.ones(4))


@counts(graphs=2, backend=2, first=2, executed=2)
def two_threads():
    def f(x):
        return x.sin()

    def g(x):
        return x.cos()

    threads = [threading.Thread(target=compiled(each), args=(X,)) for each in (f, g)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


@counts()
def forced_eager():
    with torch.compiler.set_stance("force_eager"):
        compiled(lambda x: x.sin())(X)


# Counted by torch although no frame is compiled.
@counts(graphs=1, backend=1)
def strict_export():
    class Sine(torch.nn.Module):
        def forward(self, x):
            return x.sin()

    torch.export.export(Sine(), (X,), strict=True)


@counts(graphs=1, backend=1, first=1)
def both_branches_in_one_graph():
    def f(x):
        return torch.cond(x.sum() > 0, lambda x: x.sin(), lambda x: x.cos(), (x,))

    compiled(f)(X)
