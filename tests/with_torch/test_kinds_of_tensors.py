"""State of every kind of tensor: saved, compared, put back; what cannot be is said, and never held silently."""

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from holding import hold, lane_of, measured
from torch import nn
from torch._subclasses import FakeTensorMode
from torch.func import functional_call, vjp

from pytest_compilecontract.errors import UsageError
from pytest_compilecontract.facts.lanes import Lane
from pytest_compilecontract.measure.numerics import Copies, wide
from pytest_compilecontract.measure.probes.targets import made_by
from pytest_compilecontract.measure.state import NotWide, State

pytestmark = [pytest.mark.insides, pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")]
X = torch.ones(3)


class Pair(torch.Tensor):
    """A wrapper of two tensors, as torch's tests have it."""

    @staticmethod
    def __new__(cls, a: torch.Tensor, b: torch.Tensor) -> Pair:
        made: Pair = torch.Tensor._make_wrapper_subclass(cls, a.size(), dtype=a.dtype)  # type: ignore[attr-defined]
        return made

    def __init__(self, a: torch.Tensor, b: torch.Tensor) -> None:
        self.a, self.b = a, b

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return ["a", "b"], None

    @staticmethod
    def __tensor_unflatten__(inner: Any, *_: Any) -> Pair:
        return Pair(inner["a"], inner["b"])

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        from torch.utils._pytree import tree_map

        def of(part: str) -> Any:
            inner = tree_map(lambda x: getattr(x, part) if isinstance(x, Pair) else x, args)
            return function(*inner, **(kwargs or {}))

        a, b = of("a"), of("b")
        return Pair(a, b) if isinstance(a, torch.Tensor) else a


class Refusing(torch.Tensor):
    """A wrapper that does nothing that it is asked to."""

    @staticmethod
    def __new__(cls) -> Refusing:
        made: Refusing = torch.Tensor._make_wrapper_subclass(cls, (3,), dtype=torch.float32)  # type: ignore[attr-defined]
        return made

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise NotImplementedError("refused")


def coo() -> torch.Tensor:
    return torch.sparse_coo_tensor(torch.tensor([[0, 1, 2], [1, 2, 0]]), torch.ones(3), (3, 3)).coalesce()


def kept_by_vjp() -> torch.Tensor:
    kept: list[torch.Tensor] = []
    vjp(lambda x: (kept.append(x), x * 2)[1], torch.ones(3))
    return kept[0]


def from_vmap() -> torch.Tensor:
    kept: list[torch.Tensor] = []
    torch.func.vmap(lambda x: (kept.append(x), x * 2)[1])(torch.ones(3, 2))
    return kept[0]


def inferred() -> torch.Tensor:
    with torch.inference_mode():
        return torch.ones(3)


def read_only() -> torch.Tensor:
    data = np.frombuffer(bytes(12), dtype=np.float32)  # to write there ends the process
    return torch.from_numpy(data)


def add(tensor: torch.Tensor) -> None:
    tensor.add_(1)


def add_to_values(tensor: torch.Tensor) -> None:
    tensor.values().add_(1)


# Each kind, and how a run would write to it.
KINDS: dict[str, tuple[Callable[[], torch.Tensor], Callable[[torch.Tensor], object] | None]] = {
    "COO": (coo, lambda held: held._values().add_(1)),
    "COO, not coalesced": (
        lambda: torch.sparse_coo_tensor([[0, 0], [1, 1]], torch.ones(2), (3, 3)),
        lambda held: held._values().add_(1),
    ),
    "COO, more elements": (coo, lambda held: held.add_(torch.eye(3).to_sparse())),
    "CSR": (lambda: coo().to_sparse_csr(), add_to_values),
    "CSC": (lambda: coo().to_sparse_csc(), add_to_values),
    "BSR": (lambda: torch.eye(4).to_sparse_bsr((2, 2)), add_to_values),
    "BSC": (lambda: torch.eye(4).to_sparse_bsc((2, 2)), add_to_values),
    "nested": (lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]), lambda held: held.add_(held)),
    "jagged": (
        lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged),
        lambda held: held._values.add_(1),
    ),
    "quantized": (
        lambda: torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8),
        lambda held: held.copy_(torch.quantize_per_tensor(torch.zeros(3), 0.1, 0, torch.qint8)),
    ),
    "meta": (lambda: torch.empty(3, device="meta"), None),
    "fake": (lambda: FakeTensorMode().from_tensor(torch.ones(3)), None),
    "mkldnn": (lambda: torch.ones(3, 3).to_mkldnn(), None),
    "wrapper": (lambda: Pair(torch.ones(3), torch.zeros(3)), lambda held: held.b.add_(1)),
    "refusing": (Refusing, None),
    "of vjp": (kept_by_vjp, None),
    "of vmap": (from_vmap, None),
    "conjugate": (lambda: torch.ones(3, dtype=torch.complex64).conj(), add),
    "negative": (lambda: torch.full((3,), 1j, dtype=torch.complex64).conj().imag, add),
    "read only": (read_only, None),
    "expanded": (lambda: torch.ones(1, 3).expand(4, 3), lambda held: held[0].add_(1)),
    "expanded far": (lambda: torch.ones(1).expand(10**12), lambda held: held[0].add_(1)),
    "overlapping": (lambda: torch.arange(12.0).as_strided((3, 3), (1, 2), 2), lambda held: held[0].add_(1)),
    "inference": (inferred, lambda held: torch.inference_mode()(held.add_)(1)),
    "float8": (lambda: torch.ones(3).to(torch.float8_e4m3fn), lambda held: held.copy_(torch.zeros(3))),
    "float4": (lambda: torch.zeros(3, dtype=torch.uint8).view(torch.float4_e2m1fn_x2),
               lambda held: held.view(torch.uint8).add_(1)),
    "half complex": (lambda: torch.ones(3, dtype=torch.complex32), lambda held: torch.view_as_real(held).add_(1)),
    "bits": (lambda: torch.zeros(3, dtype=torch.uint8).view(torch.bits8), lambda held: held.view(torch.uint8).add_(1)),
    "uint16": (lambda: torch.ones(3, dtype=torch.uint16), lambda held: held.copy_(torch.zeros(3))),
    "NaN": (lambda: torch.tensor([math.nan, 1.0]), add),
    "empty": (lambda: torch.ones(0, 3), None),
    "0-d": (lambda: torch.ones(()), add),
    "in a graph": (lambda: torch.ones(3, requires_grad=True) * 2, lambda held: torch.no_grad()(held.add_)(1)),
    "another shape": (lambda: torch.ones(3), lambda held: setattr(held, "data", torch.ones(4))),
    "another dtype": (lambda: torch.ones(3), lambda held: setattr(held, "data", torch.ones(3).half())),
}  # fmt: skip


def reading(held: dict[str, torch.Tensor]) -> Callable[[], Any]:
    def target() -> Any:
        return held

    return target


@pytest.mark.parametrize("name", KINDS)
def test_a_tensor_of_any_kind_is_saved_and_put_back(name: str) -> None:
    make, write = KINDS[name]
    held = {"x": make()}
    state = State(reading(held))

    assert state.changed() == {}
    state.restore()
    assert state.changed() == {}
    if write is None:
        return
    write(held["x"])
    assert [*state.changed()] == ["held.x"]
    state.restore()
    assert state.changed() == {}
    assert state.unreached == ""


@pytest.mark.parametrize("name", KINDS)
def test_a_tensor_of_any_kind_is_wide_for_a_while_or_says_why_not(name: str) -> None:
    held = {"x": KINDS[name][0]()}
    state, dtype = State(reading(held)), held["x"].dtype

    if name in ("refusing", "of vjp", "of vmap", "mkldnn", "CSR", "CSC", "BSR", "BSC"):
        with pytest.raises(NotWide, match=r"^'held.x' .*cannot be cast to float64"), state.in_wide():
            pass
    else:
        with state.in_wide():
            assert held["x"].dtype == wide(dtype)

    assert held["x"].dtype == dtype
    assert state.changed() == {}


@pytest.mark.parametrize("name", KINDS)
def test_an_argument_of_any_kind_is_copied_or_shared(name: str) -> None:
    given = KINDS[name][0]()

    (copy,) = Copies().of([given])

    assert type(copy) is type(given)
    assert copy.dtype == given.dtype
    assert name in ("refusing", "of vmap") or copy is not given


def test_what_cannot_be_saved_is_told_and_a_write_to_it_is_no_held_lane() -> None:
    kept = Refusing()
    state = State(reading({"x": kept}))

    assert state.unreached == "state not compared: 'held.x' (a Refusing that cannot be saved: refused)"
    assert state.changed() == {}
    torch._C._autograd._unsafe_set_version_counter((kept,), (kept._version + 1,))
    assert [*state.changed()] == ["held.x"]


def test_a_lazy_module_beside_the_target_is_left_alone() -> None:
    """Its parameters have no values yet, and refuse to be asked anything."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.unused = nn.Linear(3, 3), [nn.LazyLinear(3)]

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            result: torch.Tensor = self.first(x)
            return result

    assert hold(lambda lane: lane.run(Model(), (X,), (X,)), lane="capture").verdict == "held"


def test_state_that_changed_and_cannot_be_read_is_a_doubt() -> None:
    kept = Refusing()

    @torch.compiler.disable
    def writes() -> None:
        torch._C._autograd._unsafe_set_version_counter((kept,), (kept._version + 1,))

    def target(x: torch.Tensor) -> torch.Tensor:
        writes()
        return x * 2

    entry = hold(lambda lane: lane.run(target, (X,)), lane="capture", max_graph_breaks=9, max_eager_frames=9)

    assert entry.verdict == "unverified"
    assert "not compared with eager: afterwards['kept'] cannot be read (refused)" in entry.reason


class Graph(nn.Module):
    def __init__(self, adjacency: torch.Tensor) -> None:
        super().__init__()
        self.w = nn.Linear(4, 4)
        self.register_buffer("adjacency", adjacency)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.w(x).relu(), self.mix(x)

    @torch.compiler.disable
    def mix(self, x: torch.Tensor) -> torch.Tensor:
        return self.adjacency @ x


class Bias(nn.Module):
    def __init__(self, bias: torch.Tensor) -> None:
        super().__init__()
        self.bias = bias

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (self.bias * x).values()


def jagged() -> torch.Tensor:
    return torch.nested.nested_tensor([torch.randn(2, 4), torch.randn(3, 4)], layout=torch.jagged)


@pytest.mark.parametrize("lane", ["capture", "aot"])
@pytest.mark.parametrize(
    ("make", "x"),
    [
        (lambda: Graph(coo()), torch.randn(3, 4)),
        (lambda: Graph(coo().to_sparse_csr()), torch.randn(3, 4)),
        (lambda: Bias(jagged()), torch.randn(4)),
    ],
    ids=["COO", "CSR", "jagged"],
)
def test_a_module_with_such_a_buffer_is_held(make: Callable[[], nn.Module], x: torch.Tensor, lane: str) -> None:
    entry = hold(lambda it: it.run(make(), (x,), (x,)), lane=lane, max_graph_breaks=1)

    assert (entry.verdict, entry.reason) == ("held", "")
    numerics = measured(entry).numerics
    assert numerics is not None
    if numerics.method == "allclose":
        assert numerics.note == "no float64 reference: 'adjacency' is sparse_csr, and cannot be cast to float64"


@pytest.mark.parametrize("make", [coo, lambda: coo().to_sparse_csr()], ids=["COO", "CSR"])
def test_a_sparse_buffer_that_compiled_writes_to_is_a_difference(make: Callable[[], torch.Tensor]) -> None:
    model = Graph(make())

    def wrong(model: Any) -> Any:
        compiled = torch.compile(model, backend="eager")

        def writing(x: torch.Tensor) -> Any:
            y = compiled(x)
            model.adjacency.values().mul_(2)
            return y

        return writing

    entry = hold(
        lambda lane: lane.run(model, (torch.randn(3, 4),), compile_with=wrong), lane="capture", max_graph_breaks=1
    )

    assert entry.verdict == "violated"
    assert model.adjacency.values().tolist() == [1, 1, 1]


@pytest.mark.usefixtures("with_reference")
def test_a_function_of_vjp_is_judged_by_allclose_and_says_why() -> None:
    model, x = nn.Sequential(nn.Linear(3, 2), nn.Tanh()), torch.randn(5, 3)
    parameters = {name: each.detach() for name, each in model.named_parameters()}
    y, pull = vjp(lambda p: functional_call(model, p, x), parameters)

    entry = hold(
        lambda lane: lane.run(pull, *[(torch.ones_like(y),)] * 2),
        lane="capture",
        max_graph_breaks=9,
        max_eager_frames=9,
        min_ops_captured=0,
    )

    numerics = measured(entry).numerics
    assert numerics is not None
    assert (numerics.method, numerics.differences) == ("allclose", ())
    assert "is inside a transform of torch.func, and cannot be cast to float64" in numerics.note
    # The graph behind it is whole.
    assert pull(torch.ones_like(y))[0]["0.weight"].abs().sum() > 0


def scripted_function() -> Any:
    return torch.jit.trace(lambda x: x + 1, (X,))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: torch.jit.script(nn.Linear(3, 3)), "a RecursiveScriptModule made by torch.jit.script or "),
        (lambda: torch.jit.trace(nn.Linear(3, 3), (X,)), "a TopLevelTracedModule made by torch.jit.script or "),
        (lambda: torch.jit.script(nn.Linear(3, 3)).forward, "a ScriptMethod made by torch.jit.script or "),
        (scripted_function, "a ScriptFunction made by torch.jit.script or torch.jit.trace"),
        (lambda: torch.export.export(nn.Linear(3, 3), (X,)), "a ExportedProgram made by torch.export"),
    ],
    ids=["scripted", "traced", "a method", "a function", "an exported program"],
)  # fmt: skip
def test_what_torch_compile_does_not_take_is_refused_in_a_sentence(make: Callable[[], Any], message: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        target = make()

    with lane_of("capture") as lane, pytest.raises(UsageError) as caught:
        lane.run(target, (X,))

    assert str(caught.value).startswith(message)
    assert str(caught.value).endswith(
        "is not a target of torch.compile: give compile_lane the module or function that it was made from"
    )


def test_a_partial_that_leads_back_to_itself_is_made_by_nothing() -> None:
    circle = functools.partial(torch.sin)
    state: Any = (circle, (), {}, {})
    circle.__setstate__(state)

    assert made_by(circle) == ""


def test_the_module_of_an_exported_program_is_a_target() -> None:
    exported = torch.export.export(nn.Linear(3, 3), (X,)).module()

    entry = hold(lambda lane: lane.run(exported, (X,), (X,)), lane="capture")

    assert entry.verdict == "held"


class Around(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.inner = nn.Linear(3, 3), torch.jit.script(nn.BatchNorm1d(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.inner(self.first(x))
        return y


def test_a_scripted_part_of_a_module_has_its_tensors_put_back() -> None:
    model = Around()

    entry = hold(
        lambda lane: lane.run(model, *[(torch.randn(4, 3),)] * 2),
        lane="capture",
        max_graph_breaks=9,
        max_eager_frames=9,
        min_ops_captured=0,
    )

    assert (entry.verdict, entry.reason) == ("held", "")
    assert int(model.inner.num_batches_tracked) == 0


@pytest.mark.parametrize("how", ["run", "train"])
def test_a_tensor_is_the_one_argument(how: str) -> None:
    x = torch.randn(4, 16)

    def body(lane: Any) -> None:
        if how == "run":
            lane.run(nn.Linear(16, 4), x, x)
        else:
            lane.train(nn.Linear(16, 4), [x] * 3, loss=lambda y: y.pow(2).mean())

    assert hold(body).verdict == "held"


def test_a_tensor_is_no_list_of_batches() -> None:
    with lane_of() as lane, pytest.raises(UsageError) as caught:
        lane.train(nn.Linear(16, 4), torch.randn(3, 4, 16))

    assert str(caught.value) == "compile_lane.train takes a list of batches, got 'Tensor'"


@pytest.mark.parametrize("layout", ["to_sparse_csr", "to_sparse_csc"])
def test_a_compressed_buffer_gets_the_dtype_of_the_lane_and_is_put_back(layout: str) -> None:
    class Mixes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(3, 3)
            self.register_buffer("adjacency", getattr(torch.eye(3), layout)())

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.linear(x).relu(), self.mix(x)

        @torch.compiler.disable
        def mix(self, x: torch.Tensor) -> torch.Tensor:
            assert self.adjacency.values().dtype == torch.float64
            return (self.adjacency.to_dense() @ x).sin()

    model = Mixes()
    before = model.adjacency

    entry = hold(
        lambda it: it.run(model, *[(torch.ones(3, 3),)] * 2),
        lane=Lane(name="double", backend="aot_eager", dtype="float64"),
        max_graph_breaks=1,
    )

    assert entry.verdict == "held", entry.reason
    assert model.adjacency is before
    assert before.values().dtype == torch.float32
