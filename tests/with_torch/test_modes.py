"""Modes and hooks that code leaves on: each is told with its class, and taken off, so that the next is not in it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from holding import hold, lane_of, measured
from torch import nn
from torch._subclasses import FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from pytest_compilecontract.facts.lanes import BUILT_IN
from pytest_compilecontract.measure.isolation import isolated
from pytest_compilecontract.measure.probes.modes import Modes, autocast_nesting

pytestmark = pytest.mark.insides

X = torch.ones(3)
KEPT: list[Any] = []


class Dispatch(TorchDispatchMode):
    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return function(*args, **(kwargs or {}))

    def __exit__(self, *exc: Any) -> None:
        raise AssertionError("its own __exit__ is not called")


class Function(TorchFunctionMode):
    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return function(*args, **(kwargs or {}))


def packed(x: torch.Tensor) -> torch.Tensor:
    return x


def hooked(*_: Any) -> None: ...


def entered(*managers: Any) -> None:
    for manager in managers:
        KEPT.append(manager)  # or a generator's `with` would be left when it is collected
        manager.__enter__()


HERE = f"{__name__}."
LEAVES: dict[str, tuple[Callable[[], object], list[str]]] = {
    "a dispatch mode": (lambda: entered(Dispatch()), [f"the dispatch mode {HERE}Dispatch"]),
    "two of them": (lambda: entered(Dispatch(), Dispatch()), [f"the dispatch mode {HERE}Dispatch"] * 2),
    "torch's own": (
        lambda: entered(FakeTensorMode()),
        ["the dispatch mode torch._subclasses.fake_tensor.FakeTensorMode"],
    ),
    "a function mode": (lambda: entered(Function()), [f"the function mode {HERE}Function"]),
    "a device": (lambda: entered(torch.device("meta")), ["the function mode torch.utils._device.DeviceContext"]),
    "both": (
        lambda: entered(Dispatch(), Function()),
        [f"the dispatch mode {HERE}Dispatch", f"the function mode {HERE}Function"],
    ),
    "a transform": (lambda: torch._C._functorch._grad_increment_nesting(), ["a transform of torch.func"]),
    "two transforms": (
        lambda: [torch._C._functorch._vmap_increment_nesting(3, "error") for _ in range(2)],
        ["a transform of torch.func"] * 2,
    ),
    "forward AD": (lambda: torch.autograd.forward_ad.enter_dual_level(), ["a level of forward AD"]),
    "saved tensors": (
        lambda: entered(*[torch.autograd.graph.saved_tensors_hooks(packed, packed)] * 2),
        ["hooks for saved tensors (packed)"] * 2,
    ),
    "a hook of modules": (
        lambda: nn.modules.module.register_module_forward_hook(hooked, always_call=True),
        ["a hook of every module (hooked)"],
    ),
}


def is_clean() -> bool:
    x = torch.ones(3, requires_grad=True)
    (x * x).sum().backward()
    vjp = torch.func.vjp(lambda x: x * 2, torch.ones(3))[1](torch.ones(3))[0]
    compiled = torch.compile(lambda x: x + 1, backend="eager", fullgraph=True)(torch.ones(2))
    assert x.grad is not None
    nn.Linear(2, 2)(torch.ones(1, 2))
    return [type(each) for each in (x.grad, vjp, compiled)] == [torch.Tensor] * 3 and x.grad.tolist() == [2, 2, 2]


def test_this_torch_tells_of_every_kind() -> None:
    modes = Modes()

    assert modes.missing == {}
    assert (modes.left(), modes.take_off()) == ([], [])


@pytest.mark.parametrize("name", LEAVES)
def test_what_is_left_on_is_told_and_taken_off(name: str) -> None:
    leave, expected = LEAVES[name]
    modes = Modes()

    leave()
    said, taken = modes.left(), modes.take_off()

    assert set(said) == set(expected)
    assert taken == expected
    assert modes.left() == []
    assert is_clean()


def test_what_was_on_before_stays() -> None:
    outer = Function()
    with outer, torch.device("cpu"):
        modes = Modes()
        entered(Function())

        assert modes.take_off() == [f"the function mode {HERE}Function"]
        assert outer in torch.overrides._get_current_function_mode_stack()
    assert torch.overrides._get_current_function_mode_stack() == []


def test_a_kind_that_torch_does_not_tell_of_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr("torch.utils._python_dispatch._get_current_dispatch_mode_stack")

    modes = Modes()

    assert list(modes.missing) == ["dispatch modes"]
    assert modes.take_off() == []


@pytest.mark.parametrize("name", ["a dispatch mode", "a function mode", "saved tensors", "a hook of modules"])
def test_a_run_that_leaves_a_mode_on_says_so_and_the_next_is_not_in_it(name: str) -> None:
    leave, expected = LEAVES[name]

    def target(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        torch._dynamo.disable(leave)()
        return y

    entry = hold(lambda lane: lane.run(target, (X,)), lane="capture", max_eager_frames=9)
    after = hold(lambda lane: lane.run(lambda x: x * 2, (X,), (X,)), lane="capture", max_graph_breaks=0)

    said = f"left {expected[0]} on; it was turned off"
    assert entry.verdict == "unverified"
    assert f"the eager run {said}" in entry.reason
    assert f"the compiled run {said}" in entry.reason
    assert (after.verdict, after.reason) == ("held", "")
    assert is_clean()


def test_a_mode_that_compiled_alone_leaves_on_is_a_difference() -> None:
    def target(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    def compiled(target: Any) -> Any:
        made = torch.compile(target, backend="eager")

        def leaving(x: torch.Tensor) -> torch.Tensor:
            entered(Function())
            y: torch.Tensor = made(x)
            return y

        return leaving

    entry = hold(lambda lane: lane.run(target, (X,), compile_with=compiled), lane="capture", max_eager_frames=9)

    assert entry.verdict == "violated"
    numerics = measured(entry).numerics
    assert numerics is not None
    assert [(each.at, each.kind) for each in numerics.differences] == [
        (f"the function mode {HERE}Function", "mode left on")
    ]


def test_an_exception_that_leaves_a_mode_on_has_a_note_of_it() -> None:
    def target(x: torch.Tensor) -> torch.Tensor:
        entered(Dispatch())
        raise ValueError("left behind")

    with lane_of("capture") as lane, pytest.raises(ValueError, match="left behind") as caught:
        lane.run(target, (X,))

    assert f"the eager run left the dispatch mode {HERE}Dispatch on; it was turned off" in caught.value.__notes__[0]
    assert is_clean()


def test_what_the_body_of_a_test_leaves_on_is_told_and_gone_afterwards() -> None:
    def body(lane: Any) -> None:
        with lane.body():
            lane.run(lambda x: x * 2, (X,))
            entered(Function())

    entry = hold(body, lane="capture")

    assert (entry.verdict, entry.reason) == ("unverified", f"the test left the function mode {HERE}Function on")
    assert is_clean()


def test_what_a_body_enters_without_end_is_put_back() -> None:
    with isolated(BUILT_IN["capture"]):
        entered(torch.inference_mode(), torch.autocast("cpu", dtype=torch.float16))
        torch.set_default_device("meta")
        torch.use_deterministic_algorithms(True)

    assert not torch.is_inference_mode_enabled()
    assert torch.is_grad_enabled()
    assert (torch.is_autocast_enabled("cpu"), autocast_nesting()) == (False, 0)
    assert torch.get_autocast_dtype("cpu") == torch.bfloat16
    assert torch.get_default_device() == torch.device("cpu")
    assert not torch.are_deterministic_algorithms_enabled()
    assert is_clean()


def test_inference_mode_that_compiled_alone_leaves_on_is_a_difference() -> None:
    def target(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    def compiled(target: Any) -> Any:
        made = torch.compile(target, backend="eager")

        def leaving(x: torch.Tensor) -> torch.Tensor:
            y: torch.Tensor = made(x)
            entered(torch.inference_mode())
            return y

        return leaving

    entry = hold(lambda lane: lane.run(target, (X,), compile_with=compiled), lane="capture", max_eager_frames=9)

    numerics = measured(entry).numerics
    assert numerics is not None
    assert ("torch.is_inference_mode_enabled()", "setting left") in [
        (each.at, each.kind) for each in numerics.differences
    ]
    assert not torch.is_inference_mode_enabled()
    assert is_clean()
