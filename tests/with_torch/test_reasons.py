"""Why code was compiled again: the guard of the entry that could have served, the user's line, and the kind it is of.

The right answers are derived by hand from what each program does, not read off the probe.
"""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from holding import hold, measured
from torch._subclasses.fake_tensor import UnsupportedOperatorException

from pytest_compilecontract.facts.measurement import Measurement
from pytest_compilecontract.measure.compile_lane import CompileLane
from pytest_compilecontract.measure.isolation import isolated
from pytest_compilecontract.measure.probes import dispatch_keys
from pytest_compilecontract.measure.probes.source import Paths
from pytest_compilecontract.measure.recorder import Measuring

pytestmark = pytest.mark.insides

Why = tuple[str, str, str]
PROGRAMS: dict[str, tuple[Callable[[], object], tuple[Why, ...]]] = {}
ON_A_SIZE = "return x * 2 if x.shape[0] % 8 else x + 1"
IN_BOTH = "return x * 2 if x.shape[0] % 8 or x.shape[1] % 8 else x + 1"
UP_TO_TEN = "return x * n if n < 10 else x + n"


def why(*recompiles: Why) -> Callable[[Callable[[], object]], Callable[[], object]]:
    """Register a program with what its recompiles must be: kind, how the guard begins, the user's line or nothing."""

    def register(run: Callable[[], object]) -> Callable[[], object]:
        PROGRAMS[run.__name__] = (run, recompiles)
        return run

    return register


def compiled(function: Any, **options: Any) -> Any:
    return torch.compile(function, **{"backend": "eager", **options})


def called(function: Any, *sizes: int | tuple[int, ...], **options: Any) -> None:
    run = compiled(function, **options)
    for size in sizes:
        run(torch.ones(size))


def branching(x):
    return x * 2 if x.shape[0] % 8 else x + 1


def branching_on_both(x):
    return x * 2 if x.shape[0] % 8 or x.shape[1] % 8 else x + 1


def plain(x):
    return x.sin() + 1


def scaled(x, n):
    return x * n


def scaled_up_to_ten(x, n):
    return x * n if n < 10 else x + n


class Scale(torch.nn.Module):
    def __init__(self, scale: float = 1) -> None:
        super().__init__()
        self.scale = scale

    def forward(self, x):
        return x * self.scale


SCALE = "return x * self.scale"
X = torch.ones(3)


def size(index: int, expected: int, actual: int, name: str = "x") -> str:
    return f"tensor '{name}' size mismatch at index {index}. expected {expected}, actual {actual}"


DTYPE = "tensor 'x' dtype mismatch. expected Float, actual Double"
FREED = ("dynamic", size(0, 16, 24), "")


# sizes


@why(FREED, ("guard", "(x.size()[0] % 8) == 0", ON_A_SIZE))
def a_branch_after_automatic_dynamic():
    called(branching, 16, 24, 32, 20)


@why(("guard", "(x.size()[0] % 8) == 0", ON_A_SIZE))
def a_branch_under_dynamic():
    called(branching, 16, 24, 20, dynamic=True)


@why(("guard", "(x.size()[0] % 8) == 0", ON_A_SIZE))
def a_branch_on_a_marked_size():
    x = torch.ones(16)
    torch._dynamo.mark_dynamic(x, 0)
    run = compiled(branching)
    for each in (x, torch.ones(24), torch.ones(20)):
        run(each)


@why(
    ("dynamic", size(0, 16, 24), ""),
    ("guard", "(x.size()[0] % 8) == 0", IN_BOTH),
    ("guard", "(x.size()[0] % 8) != 0", IN_BOTH),
)
def branches_on_two_sizes():
    called(branching_on_both, (16, 16), (24, 24), (20, 20), (16, 20))


# Of two entries with a size each, neither has it free: the newer tells.
@why(("guard", size(0, 3, 4), ""), ("guard", size(0, 4, 5), ""))
def static_sizes():
    called(plain, 3, 4, 5, dynamic=False)


@why(("dynamic", size(0, 3, 5), ""), ("dynamic", size(1, 4, 7), ""))
def one_size_after_the_other():
    called(plain, (3, 4), (5, 4), (6, 7), (6, 8))


@why(("guard", size(0, 3, 1), ""), ("dynamic", size(0, 1, 5), ""), ("guard", "2 <= x.size()[0]", ""))
def sizes_of_one_and_none():
    called(plain, 3, 1, 5, 1, 0)


# The branch pins the size down: it is free in none of the first two.
@why(("guard", size(0, 16, 24), ""), ("dynamic", size(0, 24, 32), ""))
def a_size_that_a_branch_pins_down():
    called(lambda x: x * 2 if x.shape[0] == 24 else x + 1, 16, 24, 32, 40)


@why(("dynamic", size(0, 3, 4), ""))
def a_mark_after_the_first_call():
    run = compiled(plain)
    run(torch.ones(3))
    x = torch.ones(4)
    torch._dynamo.mark_dynamic(x, 0)
    run(x)


@why(("dynamic", size(0, 3, 4), ""))
def an_unbacked_size():
    run = compiled(plain)
    run(torch.ones(3))
    x = torch.ones(4)
    torch._dynamo.decorators.mark_unbacked(x, 0)
    run(x)


@why(("guard", "tensor 'x' rank mismatch. expected 1, actual 2", ""))
def a_rank_under_dynamic():
    called(plain, 3, (3, 3), dynamic=True)


@why(("guard", "tensor 'x' stride mismatch at index 0. expected 4, actual 1", ""))
def strides():
    run = compiled(plain)
    run(torch.ones(3, 4))
    run(torch.ones(4, 3).t())


@why(("dynamic", size(0, 3, 4), ""), ("guard", "y.size()[0] == x.size()[0]", ""))
def two_sizes_taken_for_one():
    run = compiled(lambda x, y: x + 1 if x.shape[0] == y.shape[0] else x - 1)
    for sizes in ((3, 3), (4, 4), (5, 6)):
        run(*map(torch.ones, sizes))


def broken(x):
    x = x.sin()
    torch._dynamo.graph_break()
    return x * 2 if x.shape[0] % 8 else x + 1


@why(FREED, FREED, ("guard", "(x.size()[0] % 8) == 0", ON_A_SIZE))
def a_branch_after_a_graph_break():
    called(broken, 16, 24, 20)


# numbers and other values


@why(("dynamic", "n == 2", "return x * n"))
def an_int():
    run = compiled(scaled)
    for n in (2, 3, 5):
        run(X, n)


@why(("dynamic", "n == 2", UP_TO_TEN), ("guard", "n <= 9", UP_TO_TEN))
def a_branch_on_an_int():
    run = compiled(scaled_up_to_ten)
    for n in (2, 3, 5, 17):
        run(X, n)


@why(("dynamic", "n == 2.5", "return x * n"))
def a_float():
    run = compiled(scaled)
    for n in (2.5, 3.5, 4.5):
        run(X, n)


@why(("dynamic", "n == 2", "return x * n"), ("guard", "___check_type_id(n, ", "return x * n"))
def a_float_after_ints():
    run = compiled(scaled)
    for n in (2, 3, 2.5):
        run(X, n)


@why(("guard", "y is None", "return x + 1 if y is None else x + y"))
def what_was_none_under_dynamic():
    def f(x, y):
        return x + 1 if y is None else x + y

    run = compiled(f, dynamic=True)
    run(torch.ones(3), None)
    run(torch.ones(3), torch.ones(3))


@why(("guard", "len(d) != 1", ""), ("guard", "len(d) != 2", ""))
def keys_of_a_dict():
    run = compiled(lambda d: sum(each * 2 for each in d.values()))
    for keys in ("a", "ab", "b"):
        run(dict.fromkeys(keys, X))


@why(("dynamic", "k == 1", "return x * k"))
def closures():
    def made(k):
        def f(x):
            return x * k

        return f

    for k in (1, 2, 3):
        compiled(made(k))(X)


# modules


@why(("guard", "self.scale == 1", SCALE), ("guard", "self.scale == 2", SCALE))
def an_attribute():
    module = Scale()
    run = compiled(module)
    for module.scale in (1, 2, 3):
        run(X)


@why(("dynamic", size(0, 3, 4), ""), ("guard", "self.scale == 1", SCALE))
def an_attribute_after_a_size():
    module = Scale()
    run = compiled(module)
    run(torch.ones(3))
    run(torch.ones(4))
    module.scale = 2
    run(torch.ones(4))


# The newest entry's size is of its own; the first two are of another mode.
@why(
    ("guard", "self._modules['inner'].training == True", "return self.inner(x) + 1"),
    ("dynamic", size(0, 3, 4), ""),
    ("guard", "self._modules['inner'].training == False", "return self.inner(x) + 1"),
)
def training_and_sizes():
    class Dropping(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = torch.nn.Dropout()

        def forward(self, x):
            return self.inner(x) + 1

    module = Dropping()
    run = compiled(module)
    for n, training in ((3, True), (3, False), (4, False), (5, True)):
        module.train(training)
        run(torch.ones(n))


@why(("instance", "self.scale == 1", SCALE), ("guard", DTYPE, ""))
def instances_and_a_dtype():
    modules = [Scale(1), Scale(2)]
    for each in modules:
        each.compile(backend="eager")
        each(X)
    modules[0](X.double())


@why(("dynamic", size(0, 3, 4), ""))
def another_instance_with_another_size():
    for each, n in zip([Scale(), Scale()], (3, 4), strict=True):
        each.compile(backend="eager")
        each(torch.ones(n))


@why(("guard", DTYPE.replace("'x'", "'args[0]'"), ""))
def a_dtype_of_a_library_module():
    run = compiled(torch.nn.ReLU())
    run(X)
    run(X.double())


# The entry of the other module holds a size as well, and says nothing of this one.
@why(
    ("wrapper", size(1, 3, 4, "args[0]"), ""),
    ("dynamic", size(0, 2, 5, "args[0]"), ""),
    ("dynamic", size(0, 2, 6, "args[0]"), ""),
)
def two_library_modules():
    runs = [compiled(torch.nn.Linear(n, n)) for n in (3, 4)]
    for at, rows, width in ((0, 2, 3), (1, 2, 4), (0, 5, 3), (1, 6, 4)):
        runs[at](torch.ones(rows, width))


# what an entry was made under


@why(("guard", DTYPE, ""))
def a_dtype_under_dynamic():
    run = compiled(plain, dynamic=True)
    run(X)
    run(X.double())


@why(("guard", "GLOBAL_STATE changed: grad_mode", ""))
def a_grad_mode_under_dynamic():
    run = compiled(plain, dynamic=True)
    run(X)
    with torch.no_grad():
        run(X)


@why(("guard", "GLOBAL_STATE changed: grad_mode", ""), ("guard", DTYPE, ""))
def a_dtype_after_no_grad():
    run = compiled(plain)
    run(X)
    with torch.no_grad():
        run(X)
    run(X.double())


# For grad mode there is one entry, and its size is not free.
@why(
    ("guard", "GLOBAL_STATE changed: grad_mode", ""),
    ("dynamic", size(0, 3, 4), ""),
    ("dynamic", size(0, 3, 5), ""),
)
def a_size_that_is_free_in_another_grad_mode():
    run = compiled(plain)
    run(torch.ones(3))
    with torch.no_grad():
        run(torch.ones(3))
        run(torch.ones(4))
    run(torch.ones(5))


@why(FREED, ("guard", "GLOBAL_STATE changed: grad_mode", ""), ("guard", "(x.size()[0] % 8) == 0", ON_A_SIZE))
def a_branch_after_no_grad():
    run = compiled(branching)
    with torch.no_grad():
        run(torch.ones(16))
        run(torch.ones(24))
    run(torch.ones(16))
    run(torch.ones(20))


# The newest entry is of another dtype, which the one before it has.
@why(("guard", DTYPE, ""), ("dynamic", size(0, 3, 5), ""), ("guard", DTYPE, ""))
def dtypes_and_sizes():
    run = compiled(plain)
    for n, dtype in ((3, torch.float), (3, torch.double), (5, torch.float), (6, torch.double)):
        run(torch.ones(n, dtype=dtype))


@why(
    ("guard", "tensor 'x' requires_grad mismatch. expected requires_grad=0", ""),
    ("dynamic", size(0, 3, 4), ""),
    ("guard", "tensor 'x' requires_grad mismatch. expected requires_grad=0", ""),
)
def gradients_and_sizes():
    run = compiled(plain)
    for n, grad in ((3, False), (3, True), (4, False), (4, True)):
        run(torch.ones(n, requires_grad=grad))


@why(("backend", "BACKEND_MATCH failure", ""), ("guard", DTYPE, ""))
def backends_and_a_dtype():
    def other(graph, _inputs):
        return graph.forward

    runs = [compiled(plain), compiled(plain, backend=other)]
    for run in runs:
        run(X)
    runs[1](X.double())


@why(("invalidated", "Cache line invalidated because L['kind'] got deallocated", ""), ("guard", DTYPE, ""))
def what_died_and_a_dtype():
    def f(x, kind):
        return x * kind.value

    def kind():
        return type("Kind", (), {"value": 2})

    run = compiled(f)
    dying = kind()
    run(X, dying)
    del dying
    gc.collect()
    living = kind()
    run(X, living)
    run(X.double(), living)


def seen_in(run: Callable[[], object]) -> Measurement:
    with isolated(None):
        measuring = Measuring(Paths(Path(__file__).parent))
        with measuring:
            run()
        return measuring.measurement()


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_entry_that_could_have_served_tells_why(name: str) -> None:
    run, expected = PROGRAMS[name]

    seen = seen_in(run)

    assert seen.disagreements == ()
    assert seen.recompiles is not None
    given = [(each.kind, each.guard, each.location.source if each.location else "") for each in seen.recompiles]
    assert len(given) == len(expected), given
    for (kind, guard, source), (expected_kind, begins, line) in zip(given, expected, strict=True):
        assert (kind, source) == (expected_kind, line), given
        assert guard.startswith(begins), given
        assert guard == begins or begins.endswith((", ", "failure")), given


# what is refused


def test_a_recompile_that_torch_refuses_is_nothing_compiled_and_nothing_eager() -> None:
    def body(compile_lane: CompileLane) -> None:
        with compile_lane.observe():
            run = compile_lane.compile(plain)
            run(torch.ones(3))
            with torch._dynamo.config.patch(error_on_recompile=True), pytest.raises(torch._dynamo.exc.RecompileError):
                run(torch.ones(4))
            run(torch.ones(3))

    entry = hold(body, lane="capture", max_recompiles=0)

    assert (entry.verdict, entry.reason) == ("held", "")


def test_a_refused_recompile_that_goes_on_eager_is_an_eager_frame() -> None:
    def body(compile_lane: CompileLane) -> None:
        with compile_lane.observe(), torch._dynamo.config.patch(error_on_recompile=True, suppress_errors=True):
            run = compile_lane.compile(plain)
            run(torch.ones(3))
            run(torch.ones(4))

    entry = hold(body, lane="capture")

    assert entry.verdict == "violated"
    assert [each.cause for each in measured(entry).eager_frames or ()] == ["suppressed error"]


def test_a_refused_recompile_that_nobody_expects_is_what_broke_the_lane() -> None:
    def body(compile_lane: CompileLane) -> None:
        with torch._dynamo.config.patch(error_on_recompile=True):
            compile_lane.run(plain, (torch.ones(3),), (torch.ones(4),))

    entry = hold(body, lane="capture")

    assert entry.verdict == "broken"
    raised = measured(entry).raised
    assert raised is not None
    assert raised.type == "RecompileError"
    assert raised.message == (
        f"Recompiling function plain in test_reasons.py:{plain.__code__.co_firstlineno}: {size(0, 3, 4)} "
        "(in call 1; eager does not raise)"
    )


# what raises


class Refusing(torch.fx.Interpreter):
    error: Callable[[], Exception]

    def call_method(self, target: Any, args: Any, kwargs: Any) -> Any:
        raise type(self).error()


def refusing(made: Callable[[], Exception]) -> Callable[..., Any]:
    class Backend(Refusing):
        error = staticmethod(made)

    def backend(graph: Any, inputs: Any) -> Any:
        Backend(graph).run(*inputs)

    return backend


def test_what_a_backend_raised_is_told_with_operator_and_line() -> None:
    def run() -> None:
        with contextlib.suppress(torch._dynamo.exc.BackendCompilerFailed):
            compiled(plain, backend=refusing(lambda: RuntimeError("no sine")))(X)

    seen = seen_in(run)

    at = seen.backend_failures
    assert at is not None
    line = plain.__code__.co_firstlineno + 1
    told = f"while executing %sin = call_method[target=sin] at test_reasons.py:{line} in plain: return x.sin() + 1"
    assert [(each.type, each.message.replace("%x", "%sin")) for each in at] == [("RuntimeError", f"no sine ({told})")]
    assert seen.eager_frames is not None
    assert seen.eager_frames[0].reason.endswith(f"({told})")


def test_a_break_for_a_backend_that_cannot_says_which_operator() -> None:
    sine = torch.ops.aten.sin.default

    seen = seen_in(lambda: compiled(plain, backend=refusing(lambda: UnsupportedOperatorException(sine)))(X))

    assert seen.graph_breaks is not None
    (found,) = seen.graph_breaks
    assert (found.kind, found.reason) == (
        "Backend compiler exception",
        "Backend compiler exception: UnsupportedOperatorException: aten.sin.default",
    )
    assert found.hints[0].startswith("while executing %sin = call_method[target=sin] at test_reasons.py:")


def refuses_four(x):
    y = x.sin()
    if x.shape[0] == 4:
        raise ValueError("four is refused")
    return y + 1


def no_such_product(x):
    return x.sin() @ torch.ones(3)


class Checked(torch.nn.Module):
    def check(self, x):
        if x.shape[0] == 4:
            raise ValueError("four is refused")

    def forward(self, x):
        self.check(x)
        return x.sin()


def sizes_of(*sizes: int) -> list[tuple[torch.Tensor]]:
    return [(torch.ones(n),) for n in sizes]


def expecting(target: Any, *sizes: int) -> Callable[[CompileLane], None]:
    def body(compile_lane: CompileLane) -> None:
        with pytest.raises((ValueError, RuntimeError)):
            compile_lane.run(target, *sizes_of(*sizes))

    return body


@pytest.mark.parametrize("target", [refuses_four, no_such_product, Checked()], ids=["raise", "operator", "callee"])
def test_a_frame_that_eager_raises_in_too_is_no_eager_frame_of_the_authors(target: Any) -> None:
    entry = hold(expecting(target, 3, 4, 3, 3), lane="capture")

    assert entry.verdict == "held"
    assert entry.reason.startswith("eager raises in call 1, as compiled does: ")
    assert entry.reason.endswith("; the 2 calls after it never ran")
    assert {each.cause for each in measured(entry).eager_frames or ()} == {"raises in eager too"}


def test_what_ran_eager_before_eager_raised_stays_a_violation_and_that_it_raised_is_said_first() -> None:
    def f(x):
        if x.shape[0] == 4:
            raise ValueError("four is refused")
        for _ in range(2):
            x = x.sin()
            torch._dynamo.graph_break()
        return x

    entry = hold(expecting(f, 3, 4, 3), lane="capture")

    first = entry.violations[0]
    assert (first.limit, first.measured) == ("max_eager_frames=0 (default)", 1)
    told = "eager raises in call 1, as compiled does: ValueError: four is refused; the 1 call after it never ran"
    assert first.details[0] == told
    assert entry.reason.startswith(told)


def test_another_line_that_is_given_up_in_the_call_that_raises_is_a_violation() -> None:
    def f(x):
        for _ in range(2):
            x = x.sin()
            torch._dynamo.graph_break()
        if x.shape[0] == 4:
            raise ValueError("four is refused")
        return x

    entry = hold(expecting(f, 4), lane="capture", min_ops_captured=0)

    assert {each.limit: each.measured for each in entry.violations} == {"max_eager_frames=0 (default)": 1}


# dispatch keys


def inference() -> torch.Tensor:
    with torch.inference_mode():
        return torch.ones(3)


COMPLEX = torch.ones(3, dtype=torch.complex64)
LACKS = "AutogradCPU (missing only in tensors made under torch.inference_mode())"


@pytest.mark.parametrize(
    ("calls", "meaning"),
    [
        pytest.param((X, inference()), f"dispatch keys removed: {LACKS}", id="inference"),
        pytest.param((inference(), X), f"dispatch keys added: {LACKS}", id="and-back"),
        pytest.param(
            (COMPLEX, COMPLEX.conj()),
            "dispatch keys added: Conjugate (a lazy conjugate (torch.conj), which resolve_conj() makes a plain tensor)",
            id="conjugate",
        ),
        pytest.param(
            (X, torch.ones(3, device="meta")),
            "dispatch keys added: Meta (on device Meta); dispatch keys removed: CPU (on device CPU)",
            id="device",
        ),
    ],
)
def test_a_guard_on_dispatch_keys_says_what_came_and_what_went(calls: tuple[torch.Tensor, ...], meaning: str) -> None:
    def run() -> None:
        function = compiled(plain)
        for each in calls:
            function(each)

    (found,) = seen_in(run).recompiles or ()

    assert (found.kind, found.meaning) == ("guard", meaning)


def test_keys_that_mean_the_same_are_told_together_and_unknown_ones_by_name() -> None:
    guard = "expected DispatchKeySet(CPU, FuncTorchDynamicLayerBackMode), actual DispatchKeySet(CPU, {})"

    assert dispatch_keys.meaning_of(guard.format("FuncTorchDynamicLayerBackMode")) == ""
    assert dispatch_keys.meaning_of("tensor 'x' dtype mismatch") == ""
    assert dispatch_keys.meaning_of(
        "expected DispatchKeySet(CPU), actual DispatchKeySet(CPU, FuncTorchDynamicLayerBackMode, New, FuncTorchBatched,"
        " FuncTorchDynamicLayerFrontMode)"
    ) == (
        "dispatch keys added: FuncTorchDynamicLayerBackMode, FuncTorchDynamicLayerFrontMode (inside a transform "
        "of torch.func), New, FuncTorchBatched (batched by torch.vmap)"
    )


# other processes


def forked() -> None:
    if not (child := os.fork()):
        os._exit(0)
    os.waitpid(child, 0)


def by_multiprocessing(method: str) -> Callable[[], None]:
    def start() -> None:
        process = multiprocessing.get_context(method).Process(target=os.getpid)
        process.start()
        process.join()

    return start


class Ones(torch.utils.data.Dataset):
    def __len__(self) -> int:
        return 2

    def __getitem__(self, _index: int) -> torch.Tensor:
        return torch.ones(3)


def loaded() -> None:
    assert len(list(torch.utils.data.DataLoader(Ones(), num_workers=1, multiprocessing_context="fork"))) == 2


def run_python() -> None:
    subprocess.run([sys.executable, "-c", ""], check=True)


def spawned() -> None:
    os.waitpid(os.posix_spawn(sys.executable, [sys.executable, "-c", ""], os.environ), 0)


STARTED = {
    "os.fork": forked,
    "multiprocessing (fork)": by_multiprocessing("fork"),
    "multiprocessing (spawn)": by_multiprocessing("spawn"),
    "multiprocessing (forkserver)": by_multiprocessing("forkserver"),
    f"subprocess ({Path(sys.executable).name})": run_python,
    "os.posix_spawn": spawned,
}


@pytest.mark.parametrize("how", STARTED)
def test_nothing_compiled_here_where_a_process_was_started_says_so(how: str) -> None:
    def body(compile_lane: CompileLane) -> None:
        with compile_lane.observe():
            STARTED[how]()

    entry = hold(body)

    assert entry.verdict == "violated"
    assert entry.violations[0].details == (
        f"nothing was compiled in this process; processes were started (1 by {how}), and what they compile is not "
        "counted here",
    )


def test_workers_of_a_data_loader_are_a_note_beside_the_verdict() -> None:
    def body(compile_lane: CompileLane) -> None:
        with compile_lane.observe():
            loaded()
            compile_lane.compile(plain)(X)

    entry = hold(body)

    assert entry.verdict == "held"
    assert entry.reason == (
        "processes were started (1 by multiprocessing (fork)), and what they compile is not counted here"
    )


def test_what_inductor_starts_to_compile_is_not_the_tests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))

    entry = hold(lambda compile_lane: compile_lane.run(plain, (X,)), lane="inductor")

    assert (entry.verdict, measured(entry).processes) == ("held", ())
