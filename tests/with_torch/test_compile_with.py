"""`compile_with=`: a target compiled as its project does, held to eager like any other, and put back."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from holding import hold, lane_of, measured
from torch import Tensor, nn

from pytest_compilecontract.errors import UsageError
from pytest_compilecontract.facts.verdict import NO_EXCEPTION, STEADY
from pytest_compilecontract.measure.compile_lane import CompileLane

pytestmark = pytest.mark.torch

X = torch.linspace(-1, 1, 12).reshape(3, 4)


class Region(nn.Module):
    """A class of the project's: torch 2.11 to 2.13 compile nothing of a bare `nn.Linear` in place."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x)


class Pair(nn.Module):
    """Two regions with a line between them that does not compile."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = Region(), Region()
        self.dropout = nn.Dropout(0.5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        if x.sum().item() > 1e9:
            raise ValueError("too large")
        return self.dropout(self.second(x))


def regions(lane: CompileLane, *, in_place: bool) -> Any:
    def compile_pair(pair: Pair) -> Pair:
        pair.first = lane.compile(pair.first, in_place=in_place)
        pair.second = lane.compile(pair.second, in_place=in_place)
        return pair

    return compile_pair


@pytest.mark.parametrize("in_place", [True, False], ids=["in place", "wrapped"])
def test_regions_are_compiled_and_the_code_between_them_is_not(in_place: bool) -> None:
    pair = Pair().eval()
    first = pair.first

    entry = hold(lambda lane: lane.run(pair, (X,), (X,), compile_with=regions(lane, in_place=in_place)))

    seen = measured(entry)
    assert (entry.verdict, seen.graph_breaks, seen.graphs_executed) == ("held", (), 4)
    # The second region alone is given a tensor that requires a gradient.
    assert (seen.graphs, [each.kind for each in seen.recompiles or ()]) == (2, ["instance"])
    assert pair.first is first
    assert not hasattr(pair.first, "_orig_mod")
    assert pair.first._compiled_call_impl is None


def test_keys_that_wrapped_regions_change_are_seen() -> None:
    entry = hold(
        lambda lane: lane.run(Pair().eval(), (X,), compile_with=regions(lane, in_place=False)), check_state_dict=True
    )

    assert [each.limit for each in entry.violations] == ["check_state_dict=True"]


def test_a_second_pass_starts_from_the_target_as_it_was() -> None:
    entry = hold(lambda lane: lane.run(Pair(), (X,), (X,), compile_with=regions(lane, in_place=False)), lane="inductor")

    assert entry.verdict == "held"
    assert "fallback_random" in (measured(entry).numerics or pytest.fail("not compared")).note


def test_what_it_makes_of_the_target_is_held_to_eager() -> None:
    def wrong(pair: Pair) -> Any:
        compiled = torch.compile(pair, backend="aot_eager")
        return lambda x: compiled(x) * 1.01

    entry = hold(lambda lane: lane.run(Pair().eval(), (X,), compile_with=wrong))

    assert entry.verdict == "violated"
    assert [each.limit for each in entry.violations] == ["numerics='fp64' (default)"]


def test_regions_train() -> None:
    entry = hold(lambda lane: lane.train(Pair().eval(), [(X,), (X,)], compile_with=regions(lane, in_place=True)))

    assert (entry.verdict, measured(entry).backward_graphs) == ("held", 2)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("inductor", "compile_with= is a function of the target, got 'str'"),
        (lambda _: None, "compile_with= returned 'NoneType': it returns what is to be called"),
    ],
    ids=["no function", "returns nothing"],
)
def test_what_cannot_compile_a_target_is_refused(given: Any, message: str) -> None:
    with lane_of() as lane, pytest.raises(UsageError) as caught:
        lane.run(nn.Linear(4, 4), (X,), compile_with=given)

    assert str(caught.value) == message


class Block(nn.Module):
    """A class whose parts are replaced in many ways. `ACTIVATIONS` is the project's table."""

    scale = 2

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.table = {"relu": activate}
        self.steps = [activate]
        self.activate = activate

    def forward(self, x: Tensor) -> Tensor:
        return self.body(self.linear(x))

    def body(self, x: Tensor) -> Tensor:
        y = ACTIVATIONS["relu"](x) + self.table["relu"](x) + self.steps[0](x) + self.activate(x) + in_global(x)
        return y * self.scale


class Nested(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.block = Block()

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.block(x)
        return y


def activate(x: Tensor) -> Tensor:
    return x.relu()


def in_global(x: Tensor) -> Tensor:
    return x.sigmoid()


ACTIVATIONS = {"relu": activate}


def replace_forward(lane: CompileLane, block: Block) -> None:
    block.forward = lane.compile(block.forward)  # type: ignore[method-assign]


def replace_method(lane: CompileLane, block: Block) -> None:
    block.body = lane.compile(block.body)  # type: ignore[method-assign]


def replace_attribute(lane: CompileLane, block: Block) -> None:
    block.activate = lane.compile(block.activate)


def replace_in_dict(lane: CompileLane, block: Block) -> None:
    block.table["relu"] = lane.compile(block.table["relu"])


def replace_in_list(lane: CompileLane, block: Block) -> None:
    block.steps[0] = lane.compile(block.steps[0])


def replace_in_table(lane: CompileLane, block: Block) -> None:
    ACTIVATIONS["relu"] = lane.compile(ACTIVATIONS["relu"])


def replace_global(lane: CompileLane, block: Block) -> None:
    globals()["in_global"] = lane.compile(in_global)


def replace_in_class(lane: CompileLane, block: Block) -> None:
    Block.body = lane.compile(Block.body)  # type: ignore[method-assign]


def replace_submodule(lane: CompileLane, block: Block) -> None:
    block.linear = lane.compile(block.linear)


REPLACE = [
    replace_forward, replace_method, replace_attribute, replace_in_dict, replace_in_list, replace_in_table,
    replace_global, replace_in_class, replace_submodule,
]  # fmt: skip


def state_of(block: Block) -> tuple[Any, ...]:
    own = {name: value for name, value in vars(block).items() if name != "training"}
    places = (block.table["relu"], block.steps[0], block.activate, ACTIVATIONS["relu"], in_global, Block.body)
    return (*places, block.linear, sorted(own), type(block.linear))


@pytest.mark.parametrize("how", ["run", "train"])
@pytest.mark.parametrize("nested", [False, True], ids=["the target", "nested"])
@pytest.mark.parametrize("replace", REPLACE, ids=lambda each: each.__name__)
def test_what_compile_with_replaces_is_in_force_and_gone_afterwards(replace: Any, nested: bool, how: str) -> None:
    outer = Nested()
    target, block = (outer, outer.block) if nested else (outer.block, outer.block)
    before = state_of(block)

    def body(lane: CompileLane) -> None:
        def put(model: nn.Module) -> nn.Module:
            replace(lane, block)
            return model

        if how == "run":
            lane.run(target, *[(X,)] * 3, compile_with=put)
        else:
            lane.train(target, [(X,)] * 3, compile_with=put)

    entry = hold(body, lane="capture", max_eager_frames=9)

    seen = measured(entry)
    assert (entry.verdict, entry.reason) == ("held", "")
    assert (seen.graphs, seen.recompiles, seen.graphs_executed) == (1, (), 3)
    assert state_of(block) == before


def test_a_value_that_compile_with_sets_is_no_change_of_the_run() -> None:
    block = Block()

    def body(lane: CompileLane) -> None:
        def put(model: Any) -> Any:
            model.scale = 2
            model.noted = "compiled"
            model.linear.weight.data.mul_(1)
            return lane.compile(model)

        lane.run(block, (X,), (X,), compile_with=put)

    entry = hold(body, lane="capture")

    assert (entry.verdict, entry.reason) == ("held", "")
    assert (Block.scale, "scale" in vars(block), hasattr(block, "noted")) == (2, False, False)


def test_a_wrong_thing_that_compile_with_puts_in_place_is_a_violation() -> None:
    block = Block()

    def body(lane: CompileLane) -> None:
        def put(model: Any) -> Any:
            model.table["relu"] = lane.compile(lambda x: x.relu() * 1.01)
            return model

        lane.run(block, (X,), (X,), compile_with=put)

    entry = hold(body, lane="capture", max_eager_frames=9)

    assert entry.verdict == "violated"
    assert block.table["relu"] is activate


def test_what_compile_with_notes_for_itself_stays() -> None:
    seen: list[Any] = []

    def body(lane: CompileLane) -> None:
        def put(model: Any) -> Any:
            seen.append(model)
            return lane.compile(model)

        lane.run(Block(), (X,), compile_with=put)

    entry = hold(body, lane="capture")

    assert (entry.verdict, len(seen)) == ("held", 1)


def gives_back(lane: CompileLane) -> Any:
    def compile_on_trial(model: nn.Module) -> nn.Module:
        lane.compile(model)(X)
        return model

    return compile_on_trial


class Late(nn.Module):
    """Compiles what it is around in its call `at`, counted from 0, and runs it eager in the calls before."""

    def __init__(self, model: nn.Module, lane: CompileLane, *, at: int) -> None:
        super().__init__()
        self.model, self.lane, self.at, self.calls = model, lane, at, 0

    def forward(self, x: Tensor) -> Tensor:
        if self.calls == self.at:
            self.compiled = self.lane.compile(self.model)
        self.calls += 1
        return self.compiled(x) if self.calls > self.at else self.model(x)


def compiled_late(lane: CompileLane, *, at: int) -> Any:
    return lambda model: Late(model, lane, at=at)


STEPS = [
    pytest.param(lambda lane, how: lane.run(Region(), *[X] * 3, compile_with=how), id="run"),
    pytest.param(
        lambda lane, how: lane.train(
            Region(), [X] * 3, compile_with=how, optimizer=lambda each: torch.optim.SGD(each, lr=0.1)
        ),
        id="train",
    ),
]


@pytest.mark.parametrize("make", STEPS)
def test_a_trial_that_gives_back_the_eager_model_is_not_held(make: Any) -> None:
    entry = hold(lambda lane: make(lane, gives_back(lane)), max_graphs=1, max_recompiles=0)

    (violation,) = entry.violations
    assert violation.name == STEADY
    assert violation.details == tuple(
        f"call {each}: ran no compiled graph, 1 graph ran outside the calls" for each in range(3)
    )


@pytest.mark.parametrize("at", [1, 2])
@pytest.mark.parametrize("make", STEPS)
def test_calls_before_a_late_compile_ran_eager(make: Any, at: int) -> None:
    entry = hold(lambda lane: make(lane, compiled_late(lane, at=at)), max_graphs=1, max_recompiles=0)

    (violation,) = entry.violations
    assert violation.name == STEADY
    assert violation.measured == f"{at} of 3 calls ran none"


def test_a_trial_whose_compiled_model_is_used_is_held() -> None:
    def compile_on_trial(lane: CompileLane) -> Any:
        def compiled(model: nn.Module) -> object:
            kept = lane.compile(model)
            kept(X)
            return kept

        return compiled

    entry = hold(lambda lane: lane.run(Region(), X, X, compile_with=compile_on_trial(lane)), max_graphs=1)

    assert entry.verdict == "held"
    assert [call.graphs_executed for call in measured(entry).calls or ()] == [1, 1]


def test_calls_that_compile_a_trifle_and_run_eager_are_not_held() -> None:
    class Trifling(nn.Module):
        def __init__(self, model: nn.Module, lane: CompileLane) -> None:
            super().__init__()
            self.model, self.lane = model, lane
            self.first = lane.compile(model)
            self.calls = 0

        def forward(self, x: Tensor) -> Tensor:
            self.calls += 1
            if self.calls == 1:
                return self.first(x)
            self.lane.compile(lambda size: size + 1)(x.shape[0])
            return self.model(x)

    entry = hold(lambda lane: lane.run(Region(), X, X, X, compile_with=lambda model: Trifling(model, lane)))

    (violation,) = entry.violations
    assert violation.name == STEADY
    assert violation.measured == "2 of 3 calls ran none"


def test_a_call_that_raises_needs_no_compiled_graph() -> None:
    class Refuses(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.region = Region()

        def forward(self, x: Tensor) -> Tensor:
            if len(x) == 1:
                raise ValueError("too few")
            return self.region(x)

    def regional(lane: CompileLane) -> Any:
        def compile_region(model: Refuses) -> Refuses:
            model.region = lane.compile(model.region)
            return model

        return compile_region

    def body(lane: CompileLane) -> None:
        with pytest.raises(ValueError, match="too few"):
            lane.run(Refuses(), X, X[:1], compile_with=regional(lane))

    assert hold(body).verdict == "held"


class Mute(Exception):  # noqa: N818 - what it is called does not matter
    def __str__(self) -> str:
        raise RuntimeError("no text")


@pytest.mark.parametrize("make", [lambda: Mute(), lambda: in_a_circle()], ids=["without text", "in a circle"])
def test_an_exception_of_compiled_code_is_told_whatever_it_is(make: Any) -> None:
    class Raises(nn.Module):
        def forward(self, _x: Tensor) -> Tensor:
            raise make()

    entry = hold(lambda lane: lane.run(Region(), X, compile_with=lambda _model: Raises()))

    assert entry.violations[0].name == NO_EXCEPTION
    assert entry.violations[0].measured == f"raised {type(make()).__name__}"


def in_a_circle() -> Exception:
    """An exception whose causes lead back to it."""
    kept, other = ValueError("kept"), TypeError("other")
    kept.__cause__, other.__cause__ = other, kept
    return kept


def test_a_target_of_aot_compile_is_not_called_eager() -> None:
    """Its graph is seen where it is captured, and not where it runs."""

    def ahead(function: Any) -> Any:
        compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
        if not hasattr(compiled, "aot_compile"):
            pytest.skip("this torch has no aot_compile")
        return compiled.aot_compile(((X,), {}))

    entry = hold(lambda lane: lane.run(lambda x: x * 2 + 1, X, X, compile_with=ahead))

    assert (entry.verdict, entry.violations) == ("unverified", ())
    assert "not compiled as the lane says" in entry.reason
