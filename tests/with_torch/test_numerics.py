"""Numerics: what is a difference, and what is rounding."""

from __future__ import annotations

import copy
import math
import threading
from collections import OrderedDict, namedtuple
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from pytest_compilecontract.facts.measurement import Difference, Numerics
from pytest_compilecontract.measure.numerics import (
    Apart,
    Branch,
    Copies,
    Opaque,
    Run,
    ScalarLeaf,
    Snapshot,
    TensorLeaf,
    aliases,
    joined,
    judge,
    leaves_of,
    moved,
    renamed,
    snapshot,
    wide,
)

pytestmark = pytest.mark.insides

Pair = namedtuple("Pair", ["left", "right"])


@dataclass
class Scored:
    logits: torch.Tensor
    best: int


class Cache:
    def __init__(self) -> None:
        self.keys = [torch.zeros(2), torch.ones(2)]
        self.name = "cache"
        self.owner = self


class Slotted:
    __slots__ = ("state",)

    def __init__(self) -> None:
        self.state = torch.ones(3)


class Hostile:
    def __getattribute__(self, name: str) -> Any:
        raise OSError(f"no {name} today")


def copied(value: Any) -> Any:
    return Copies().of(value)


def to_float64(value: Any) -> Any:
    return Copies(to=wide).of(value)


def a_run(value: object, group: str = "output", **more: Any) -> Run:
    return Run(groups={group: snapshot(value, at=group)}, **more)


def judged(compiled: object, eager: object, gold: object = None, group: str = "output", **more: Any) -> Numerics:
    reference = to_float64(eager) if gold is None else gold
    return judge(eager=a_run(eager, group), compiled=a_run(compiled, group), gold=a_run(reference, group), **more)


def kinds(numerics: Numerics) -> list[tuple[str, str]]:
    return [(each.at, each.kind) for each in numerics.differences]


def noisy(gold: torch.Tensor, seed: int, share: float = 1e-7) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (gold + share * gold.abs() * torch.randn(gold.shape, generator=generator, dtype=gold.dtype)).float()


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


# Snapshots


def test_walks_what_a_model_returns() -> None:
    value = {
        "pair": Pair(torch.ones(1), (torch.ones(2), None)),
        "scored": Scored(logits=torch.ones(3), best=1),
        "cache": Cache(),
        "slotted": Slotted(),
        3: OrderedDict(a=1.5),
    }

    taken = snapshot(value, at="output")

    leaves = {at: node for at, node in taken.nodes.items() if not isinstance(node, Branch)}
    assert {at: type(node).__name__ for at, node in leaves.items()} == {
        "output['pair'].left": "TensorLeaf",
        "output['pair'].right[0]": "TensorLeaf",
        "output['pair'].right[1]": "ScalarLeaf",
        "output['scored'].logits": "TensorLeaf",
        "output['scored'].best": "ScalarLeaf",
        "output['cache'].keys[0]": "TensorLeaf",
        "output['cache'].keys[1]": "TensorLeaf",
        "output['cache'].name": "ScalarLeaf",
        "output['slotted'].state": "TensorLeaf",
        "output[3]['a']": "ScalarLeaf",
    }
    assert taken.nodes["output"] == Branch(
        type="dict", parts=("['pair']", "['scored']", "['cache']", "['slotted']", "[3]")
    )


def test_keeps_a_copy_without_a_graph() -> None:
    tensor = (torch.ones(2, 3, requires_grad=True) * 2).t()

    leaf = snapshot(tensor, at="x").nodes["x"]
    with torch.no_grad():
        tensor.zero_()

    assert isinstance(leaf, TensorLeaf)
    assert leaf.data is not None
    assert leaf.data.tolist() == [[2.0, 2.0]] * 3
    assert leaf.data.grad_fn is None
    assert (leaf.shape, leaf.stride, leaf.requires_grad, leaf.layout) == ((3, 2), (1, 3), True, "strided")


def test_keeps_one_element_of_an_expanded_tensor() -> None:
    tensor = torch.ones(1, 3).expand(1_000_000_000, 3)

    leaf = snapshot(tensor, at="x").nodes["x"]

    assert isinstance(leaf, TensorLeaf)
    assert leaf.data is not None
    assert leaf.data.shape == (1, 3)
    assert leaf.stride == (0, 1)


ODD: dict[str, Callable[[], object]] = {
    "object-that-raises": Hostile,
    "lock": threading.Lock,
    "module": lambda: nn.Linear(2, 2),
    "function": lambda: len,
    "class": lambda: dict,
    "generator": lambda: iter(range(3)),
    "meta-tensor": lambda: torch.empty(3, device="meta"),
    "sparse-tensor": lambda: torch.eye(3).to_sparse(),
    "compressed-tensor": lambda: torch.eye(3).to_sparse_csr(),
    "jagged-tensor": lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged),
    "nested-tensor": lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
    "quantised-tensor": lambda: torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8),
    "float8-tensor": lambda: torch.ones(3).to(torch.float8_e4m3fn),
    "complex-tensor": lambda: torch.ones(3, dtype=torch.complex64).conj(),
    "unsigned-tensor": lambda: torch.ones(3, dtype=torch.uint16),
    "boolean-tensor": lambda: torch.ones(3, dtype=torch.bool),
    "empty-tensor": lambda: torch.ones(0, 3),
    "number-of-numpy": lambda: torch.ones(()).numpy(),
    "set": lambda: {1, 2},
    "infinite-number": lambda: math.inf,
    "not-a-number": lambda: math.nan,
    "complex-number": lambda: 1j,
}


@pytest.mark.parametrize("method", ["fp64", "bitwise"])
@pytest.mark.parametrize("make", ODD.values(), ids=ODD.keys())
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_an_odd_object_is_as_itself(make: Callable[[], object], method: Any) -> None:
    value = make()

    found = judged([value], [value], [value], method=method)

    assert found.differences == ()


def test_a_list_in_itself_ends() -> None:
    value: list[object] = [torch.ones(1)]
    value.append(value)

    taken = snapshot(value, at="x")

    assert taken.nodes["x[1]"] == Opaque(type="list")


def test_says_what_it_could_not_compare() -> None:
    value = torch.empty(3, device="meta")

    found = judged(value, value, value)

    assert found.note == "not compared: output has no values"
    assert found.compared == 0


@pytest.mark.parametrize(
    ("groups", "said"),
    [
        pytest.param({"output": None}, ("nothing is returned, and nothing changes",), id="nothing"),
        pytest.param({"output": None, "state": {}}, ("nothing is returned, and nothing changes",), id="as was"),
        pytest.param({"output": (None, None)}, ("nothing is returned, and nothing changes",), id="twice"),
        pytest.param({"output": None, "state": {"steps": 1}}, (), id="state"),
        pytest.param({"output": None, "grad": {"weight": torch.ones(2)}}, (), id="a gradient"),
        pytest.param({"output": 0}, (), id="a number"),
        pytest.param({"output": {}}, ("nothing is returned, and nothing changes",), id="an empty dict"),
    ],
)
def test_says_where_there_is_nothing_to_compare(groups: dict[str, object], said: tuple[str, ...]) -> None:
    run = Run(groups={name: snapshot(value, at=name) for name, value in groups.items()})

    assert judge(eager=run, compiled=run).uncompared == said


@pytest.mark.parametrize(("after", "said"), [(1.0, 1), (2.0, 0)], ids=["unchanged", "written to"])
def test_an_argument_that_is_written_to_is_a_result(after: float, said: int) -> None:
    groups = {"output": snapshot(None, at="output"), "input": snapshot({0: torch.full((2,), after)}, at="input")}
    run = Run(groups=groups, before=snapshot({0: torch.ones(2)}, at="input"))

    assert len(judge(eager=run, compiled=run).uncompared) == said


def test_a_function_and_a_class_are_compared_by_their_names() -> None:
    same = judged((torch.sin, nn.ReLU), (torch.sin, nn.ReLU))
    other = judged((torch.sin, nn.ReLU), (torch.tanh, nn.Tanh))

    assert same.differences == ()
    assert [each.at for each in other.differences] == ["output[0]", "output[1]"]


def test_places_can_be_renamed() -> None:
    taken = joined([snapshot({"w": 1}, at="start"), snapshot(2, at="other")])

    moved = renamed(taken, "start", "step 1 parameter")

    assert moved.nodes["step 1 parameter['w']"] == ScalarLeaf(type="int", value=1)
    assert len(moved.nodes) == 2


# Aliases


def test_finds_outputs_that_share_memory() -> None:
    x = torch.zeros(4, 4)
    left, right = (x + 1).chunk(2, dim=1)
    outputs = snapshot((x[1:], left, right, left.t(), torch.zeros(0)), at="out")

    found = aliases(outputs, snapshot([x, torch.ones(4, 4)], at="in"))

    assert found == {("out[0]", "in[0] from byte 16"), ("out[1]", "out[3]")}


def test_a_view_that_begins_elsewhere_shares_other_memory() -> None:
    x = torch.zeros(6)
    inputs, outputs = [x], [[x[:3]], [x[1:4]], [x[2:5]]]
    given = snapshot(inputs, at="in")

    found = [aliases(snapshot(output, at="out"), given) for output in outputs]

    assert found == [{("out[0]", f"in[0]{place}")} for place in ("", " from byte 4", " from byte 8")]
    base = [x[1:]]
    assert aliases(given, snapshot(base, at="base")) == {("in[0]", "base[0] from byte -4")}


def test_an_alias_lost_or_made_is_a_difference() -> None:
    pair = frozenset({("output", "input[0]")})

    lost = judge(eager=a_run(1, aliases=pair), compiled=a_run(1))
    made = judge(eager=a_run(1), compiled=a_run(1, aliases=pair))

    assert lost.differences == (
        Difference(at="output", kind="alias", detail="shares memory with input[0] in eager, not in compiled"),
    )
    assert made.differences == (
        Difference(at="output", kind="alias", detail="shares memory with input[0] in compiled, not in eager"),
    )


# Copies


def test_a_copy_is_laid_out_as_the_original() -> None:
    base = torch.arange(12.0).requires_grad_()
    wide = torch.ones(1, 3).expand(4, 3)
    args = ([base.view(3, 4).t()[1:], base.detach()[2:]], {"wide": wide})

    copy_of = copied(args)

    (view, part), more = copy_of
    assert view.tolist() == base.view(3, 4).t()[1:].tolist()
    assert (view.stride(), view.storage_offset(), view.is_leaf, view.requires_grad) == ((1, 4), 1, False, True)
    assert part.untyped_storage().data_ptr() == view.untyped_storage().data_ptr() != base.untyped_storage().data_ptr()
    assert more["wide"].stride() == (0, 1)
    assert not part.requires_grad


def whole() -> torch.Tensor:
    return torch.arange(12.0)


def leaf() -> torch.Tensor:
    return whole().requires_grad_()


def without_grad(make: Callable[[], torch.Tensor]) -> torch.Tensor:
    with torch.no_grad():
        return make()


def inferred() -> torch.Tensor:
    with torch.inference_mode():
        return whole()


WRITTEN = whole()
VIEWS: dict[str, Callable[[], list[torch.Tensor]]] = {
    "plain": lambda: [whole(), leaf(), nn.Parameter(whole()), leaf() * 2],
    "overlapping": lambda: [(base := whole())[:8], base[4:], base.view(3, 4).t()],
    "with-the-base": lambda: [base := whole(), base[2:], base.flip(0), base[::2]],
    "base-last": lambda: [(base := whole())[2:], base],
    "of-a-leaf": lambda: [(base := leaf())[:8], base[4:], base],
    "of-a-parameter": lambda: [(base := nn.Parameter(whole()))[:8], base],
    "of-one-in-a-graph": lambda: [(base := leaf() * 2)[:8], base[4:], base],
    "a-leaf-of-its-own": lambda: [(base := whole())[:8].requires_grad_(), base],
    "without-gradients": lambda: [without_grad(lambda: leaf()[:8]), without_grad(lambda: leaf().view(3, 4))],
    "detached": lambda: [(base := leaf()), base.detach(), base[1:].detach()[1:]],
    "unbound": lambda: list(whole().view(3, 4).unbind()),
    "chunked": lambda: [*whole().chunk(3)],
    "other-dtype": lambda: [(base := whole()), base.view(torch.int32)[1:]],
    "complex": lambda: [(base := torch.ones(3, dtype=torch.complex64)), base.conj(), base.imag, base.conj().imag],
    "expanded": lambda: [torch.ones(1, 3).expand(4, 3)],
    "as-strided": lambda: [whole().as_strided((3, 3), (1, 2), 2)],
    "turned-in-place": lambda: [(base := whole().view(3, 4)[:, 1:]).t_(), base],
    "inference": lambda: [inferred(), inferred()[1:]],
    "view-for-inference": lambda: [torch.inference_mode()(lambda: WRITTEN[1:])(), WRITTEN],
    "empty": lambda: [torch.ones(0, 3), torch.ones(0)],
    "sparse": lambda: [torch.eye(3).to_sparse()],
}


def told(tensors: list[torch.Tensor], *, layout: bool = True) -> list[object]:
    """All that a program can see of tensors but values: each one's own facts, whose views they are, what is shared."""
    bases = [tensor._base for tensor in tensors]
    return [
        (
            type(tensor),
            tuple(tensor.shape),
            (tensor.stride(), tensor.storage_offset()) if layout and tensor.layout == torch.strided else None,
            tensor.requires_grad,
            tensor.is_leaf,
            tensor.is_inference(),
            tensor.is_conj(),
            tensor._is_view(),
            [other is tensor._base for other in tensors],
            [base is not None and base is tensor._base for base in bases],
            tensor._base is not None and (tensor._base.requires_grad, tensor._base.is_leaf, type(tensor._base)),
            [tensor.layout == torch.strided and _shares(tensor, other) for other in tensors],
        )
        for tensor in tensors
    ]


def _shares(one: torch.Tensor, other: torch.Tensor) -> bool:
    return (
        other.layout == torch.strided
        and one.data_ptr() != 0
        and (one.untyped_storage().data_ptr() == other.untyped_storage().data_ptr())
    )


@pytest.mark.parametrize("mode", [torch.enable_grad, torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("make", VIEWS.values(), ids=VIEWS.keys())
def test_copies_are_views_of_one_another_as_the_originals_are(make: Callable[[], Any], mode: Callable[[], Any]) -> None:
    originals = make()

    with mode():
        copies = copied(originals)

    assert told(copies) == told(originals)
    for one, other in zip(copies, originals, strict=True):
        assert torch.equal(one.detach().to_dense(), other.detach().to_dense())
        assert one is not other
        assert not _shares(one, other) if one.layout == torch.strided else True


@pytest.mark.parametrize("make", [VIEWS[each] for each in VIEWS if each not in ("other-dtype", "inference")])
def test_doubles_are_views_of_one_another_as_the_originals_are(make: Callable[[], Any]) -> None:
    originals = make()

    doubles = to_float64(originals)

    assert told(doubles) == told(originals)


def test_what_is_noted_on_a_tensor_is_copied() -> None:
    x = torch.ones(4, 2)
    torch._dynamo.mark_dynamic(x, 0)
    x.owner = [x]  # type: ignore[attr-defined]

    copy_of = copied(x)

    assert copy_of._dynamo_dynamic_indices == {0}
    assert copy_of._dynamo_dynamic_indices is not x._dynamo_dynamic_indices
    assert copy_of.owner[0] is copy_of


def test_moving_keeps_what_copying_keeps_and_modules_stay_the_same() -> None:
    base = torch.arange(12.0)
    torch._dynamo.mark_dynamic(base, 0)
    module = nn.Linear(2, 2)

    module_now, whole_now, part, box = moved(
        (module, base, base[2:], {"box": Scored(logits=base[1:], best=1)}), device=None, dtype=torch.bfloat16
    )

    assert module_now is module
    assert module.weight.dtype == whole_now.dtype == part.dtype == torch.bfloat16
    assert part._base is whole_now is box["box"].logits._base
    assert whole_now._dynamo_dynamic_indices == {0}
    assert base.dtype == torch.float32


def test_the_gradient_of_a_tensor_in_a_graph_is_that_of_a_leaf() -> None:
    base = torch.arange(3.0).requires_grad_()
    view, middle, plain = copied((base[1:], base * 2, torch.ones(3)))

    leaves = [leaves_of(each) for each in (view, middle, plain)]
    (view.sum() * 2 + middle.sum() * 3).backward()

    assert [[None if each.grad is None else each.grad.tolist() for each in found] for found in leaves] == [
        [[0, 2, 2]], [[3, 3, 3]], [],
    ]  # fmt: skip
    assert base.grad is None


def test_what_cannot_be_copied_is_shared() -> None:
    lock = threading.Lock()
    x = torch.ones(2)

    copy_of = copied((lock, [x, lock], {"x": x}))

    assert copy_of[0] is lock
    assert copy_of[1][0] is copy_of[2]["x"]
    assert copy_of[1][0] is not x


def test_copies_tensors_within_objects_and_modules() -> None:
    module = nn.BatchNorm1d(3)
    cache = Cache()

    new_module, new_cache = to_float64((module, cache))

    assert [each.dtype for each in new_module.state_dict().values()] == [torch.float64] * 4 + [torch.int64]
    assert isinstance(new_module.weight, nn.Parameter)
    assert [each.dtype for each in new_cache.keys] == [torch.float64] * 2
    assert new_cache.owner is new_cache
    assert cache.keys[0].dtype == torch.float32


def test_doubles_keep_their_values_and_share_memory() -> None:
    x = torch.arange(6.0)
    args = (x[1:4], x[2:], torch.arange(3), torch.ones(2, dtype=torch.complex64))

    first, second, whole, turned = to_float64(args)

    assert (first.tolist(), second.tolist()) == ([1.0, 2.0, 3.0], [2.0, 3.0, 4.0, 5.0])
    first[1] = 9
    assert second[0] == 9
    assert (first.dtype, whole.dtype, turned.dtype) == (torch.float64, torch.int64, torch.complex128)


# Facts other than values

FACTS: dict[str, tuple[object, object, str, str]] = {
    "dtype": (torch.ones(2, dtype=torch.float64), torch.ones(2), "dtype", "compiled float64, eager float32"),
    "shape": (torch.ones(2, 1), torch.ones(2), "shape", "compiled [2, 1], eager [2]"),
    "stride": (torch.ones(3, 2).t(), torch.ones(2, 3), "stride", "compiled [1, 2], eager [3, 1]"),
    "requires-grad": (
        torch.ones(2, requires_grad=True), torch.ones(2), "requires_grad", "compiled True, eager False",
    ),
    "type": (
        nn.Parameter(torch.ones(2), requires_grad=False), torch.ones(2), "type", "compiled Parameter, eager Tensor",
    ),
    "number-for-tensor": (1.0, torch.ones(()), "type", "compiled float, eager Tensor"),
    "true-for-one": (True, 1, "type", "compiled bool, eager int"),
    "list-for-tuple": ([1], (1,), "type", "compiled list, eager tuple"),
    "shorter": ((1,), (1, 2), "structure", "only eager has [1] (1 part, eager 2)"),
    "another-key": (
        {"b": 1}, {"a": 1}, "structure", "only compiled has ['b'] and only eager has ['a'] (1 part, eager 1)",
    ),
    "another-order": (
        {"b": 1, "a": 2}, {"a": 2, "b": 1}, "structure", "compiled has the same parts in another order",
    ),
    "string": ("relu", "gelu", "value", "compiled 'relu', eager 'gelu'"),
    "integer": (3, 4, "value", "compiled 3, eager 4"),
    "integers": (
        torch.tensor([[1, 2], [3, 5]]), torch.tensor([[1, 2], [3, 4]]), "value",
        "1 of 4 elements differ, first at [1, 1]: compiled 5, eager 4, float64 4",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("compiled", "eager", "kind", "detail"), FACTS.values(), ids=FACTS.keys())
def test_a_fact_that_differs(compiled: object, eager: object, kind: str, detail: str) -> None:
    found = judged(compiled, eager)

    assert found.differences == (Difference(at="output", kind=kind, detail=detail),)


def test_layout_and_device_differ() -> None:
    sparse = judged(torch.eye(2).to_sparse(), torch.eye(2))
    meta = judged(torch.eye(2, device="meta"), torch.eye(2))

    assert [(each.kind, each.detail) for each in sparse.differences] == [
        ("layout", "compiled sparse_coo, eager strided")
    ]
    assert [(each.kind, each.detail) for each in meta.differences] == [("device", "compiled meta, eager cpu")]


def test_strides_that_place_no_element_are_not_compared() -> None:
    single = torch.ones(4, 1)

    found = judged(
        [single.as_strided((4, 1), (1, 7)), torch.ones(0, 5)], [single, torch.ones(0, 5).as_strided((0, 5), (1, 1))]
    )

    assert found.differences == ()


def test_a_gradient_that_only_one_has() -> None:
    eager = {"a": torch.ones(1), "b": None}
    compiled = {"a": None, "b": None}

    found = judged(compiled, eager, group="grad")

    assert found.differences == (Difference(at="grad['a']", kind="type", detail="compiled NoneType, eager Tensor"),)


def test_a_group_that_only_one_has() -> None:
    eager = Run(groups={"output": snapshot(1, at="call 0 output"), "loss": snapshot(1.0, at="step 0 loss")})
    compiled = Run(groups={"output": snapshot(1, at="call 0 output"), "grad": snapshot({}, at="step 0 grad")})

    found = judge(eager=eager, compiled=compiled)

    assert found.differences == (
        Difference(at="step 0 loss", kind="structure", detail="present in eager, missing in compiled"),
        Difference(at="step 0 grad", kind="structure", detail="present in compiled, missing in eager"),
    )


# Values: faults


def test_one_wrong_element_in_a_million_is_found() -> None:
    gold = normal(1000, 1000)
    compiled = noisy(gold, 2)
    compiled[3, 17] += 0.01

    found = judged(compiled, noisy(gold, 1), gold)

    assert kinds(found) == [("output", "value")]
    detail = found.differences[0].detail
    assert detail.startswith("worst at [3, 17]: compiled ")
    assert "; 1 of 1000000 elements beyond; few but far off: " in detail
    assert found.worst_error == pytest.approx(0.01, rel=1e-3)
    assert found.eager_error is not None
    assert found.eager_error < 1e-5


@pytest.mark.parametrize("size", [1e6, 1.0, 1e-6, 1e-20], ids=["huge", "one", "tiny", "tiniest"])
def test_gradients_twice_as_large_are_found_at_any_size(size: float) -> None:
    gold = size * normal(64, 64)

    found = judged(2 * noisy(gold, 2), noisy(gold, 1), gold, group="grad")

    assert kinds(found) == [("grad", "value")]


def test_a_small_gradient_beside_a_large_one_is_found() -> None:
    gold = {"large": normal(64, 64), "small": 1e-6 * normal(64)}
    eager, compiled = ({key: noisy(value, seed) for key, value in gold.items()} for seed in (1, 2))
    compiled["small"] *= 2

    found = judged(compiled, eager, gold, group="grad")

    assert kinds(found) == [("grad['small']", "value")]


@pytest.mark.parametrize("method", ["fp64", "allclose"])
def test_one_percent_off_is_found(method: Any) -> None:
    gold = normal(64, 64)

    found = judged(1.01 * noisy(gold, 2), noisy(gold, 1), gold, method=method)

    assert kinds(found) == [("output", "value")]


def test_a_factor_below_every_elements_floor_is_found_by_the_mean() -> None:
    gold = normal(64, 64)

    found = judged((1 + 1e-4) * noisy(gold, 2), noisy(gold, 1), gold)

    assert kinds(found) == [("output", "value")]
    assert " is allowed, but the RMS error " in found.differences[0].detail


def test_a_wrong_value_beside_a_mask_is_found() -> None:
    gold = normal(64, 64)
    gold[:, 32:] = -1e9
    compiled = noisy(gold, 2, share=0)
    compiled[5, 5] += 0.1

    found = judged(compiled, noisy(gold, 1, share=0), gold)

    assert kinds(found) == [("output", "value")]


def test_the_worst_element_is_named_whole() -> None:
    gold = torch.tensor([1.0, 2.0, 4.0], dtype=torch.float64)
    eager = torch.tensor([1.0, 2.0, 4.0])
    compiled = torch.tensor([1.0, 2.5, 4.0])

    found = judged(compiled, eager, gold)

    assert [each.detail for each in found.differences] == [
        "worst at [1]: compiled 2.5, eager 2, float64 2; error 5.0e-01 > allowed 5.3e-04 (eager's own 0.0e+00); "
        "1 of 3 elements beyond; few but far off: a discrete choice may have flipped"
    ]
    assert (found.method, found.compared, found.worst_at, found.worst_error) == ("fp64", 1, "output", 0.5)


def test_every_leaf_is_compared() -> None:
    eager = [torch.ones(2), torch.ones(2), 1, torch.ones(2)]
    compiled = [torch.zeros(2), torch.ones(2).double(), 2, torch.ones(2)]

    found = judged(compiled, eager)

    assert kinds(found) == [("output[0]", "value"), ("output[1]", "dtype"), ("output[2]", "value")]
    assert found.compared == 4


MOVED: dict[str, tuple[list[float], list[float], str]] = {
    "nan-elsewhere": (
        [math.nan, 1.0], [1.0, math.nan],
        "compiled nan, eager 1.0 at [0]; 2 of 2 elements; float64 has 1.0 there",
    ),
    "inf-of-another-sign": (
        [1.0, math.inf], [1.0, -math.inf],
        "compiled inf, eager -inf at [1]; 1 of 2 elements; float64 has -inf there",
    ),
    "finite": (
        [1.0, 2.0], [1.0, math.inf],
        "compiled 2.0, eager inf at [1]; 1 of 2 elements; float64 has inf there",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("compiled", "eager", "detail"), MOVED.values(), ids=MOVED.keys())
def test_nan_and_inf_must_be_where_eagers_are(compiled: list[float], eager: list[float], detail: str) -> None:
    found = judged(torch.tensor(compiled), torch.tensor(eager))

    assert found.differences == (Difference(at="output", kind="nan", detail=detail),)


@pytest.mark.parametrize("method", ["fp64", "allclose", "bitwise"])
def test_nan_where_eager_has_it_is_the_same(method: Any) -> None:
    eager = torch.tensor([math.nan, math.inf, -math.inf, 1.0])

    found = judged(eager.clone(), eager, method=method)

    assert found.differences == ()


def test_floats_are_judged_by_the_rule() -> None:
    near = judged(0.1 + 1e-7, 0.1)
    far = judged(0.101, 0.1)
    neither = judged(math.nan, math.nan)

    assert kinds(near) == kinds(neither) == []
    assert kinds(far) == [("output", "value")]


def test_complex_numbers_are_compared() -> None:
    gold = torch.complex(normal(8, seed=1), normal(8, seed=2))
    eager = gold.to(torch.complex64)

    same = judged(eager.clone(), eager, gold)
    turned = judged(eager.conj().resolve_conj(), eager, gold)

    assert kinds(same) == []
    assert kinds(turned) == [("output", "value")]


def test_numpy_arrays_are_compared() -> None:
    eager = torch.ones(3).numpy()

    found = judged(eager + 1, eager, eager)

    assert kinds(found) == [("output", "value")]


# Values: rules


def test_without_float64_the_rule_is_allclose() -> None:
    eager = a_run(torch.ones(3))

    found = judge(eager=eager, compiled=eager, gold_absent="the kernel takes float16 alone")

    assert (found.method, found.note) == ("allclose", "no float64 reference: the kernel takes float16 alone")
    assert found.eager_error is None


def test_given_tolerances_replace_the_floor() -> None:
    gold = torch.tensor([1.0, 100.0], dtype=torch.float64)
    compiled = torch.tensor([1.05, 105.0])

    def found(**tolerances: Any) -> list[tuple[str, str]]:
        return kinds(judged(compiled, gold.float(), gold, **tolerances))

    assert found(rtol=0.06) == []
    assert found(rtol=0.04) == [("output", "value")]
    assert found(atol=0.06) == [("output", "value")]
    assert found(atol=6.0) == []
    assert found(rtol=0.06, method="allclose") == []
    assert found(rtol=0.04, method="allclose") == [("output", "value")]


def test_bitwise_tells_the_zeros_apart() -> None:
    eager, compiled = torch.tensor([0.0, 1.0]), torch.tensor([-0.0, 1.0])

    strict = judged(compiled, eager, method="bitwise")
    rounded = judged(compiled, eager)

    assert strict.differences == (
        Difference(at="output", kind="value", detail="1 of 2 elements differ, first at [0]: compiled -0.0, eager 0.0"),
    )
    assert rounded.differences == ()


def test_bitwise_finds_the_last_bit() -> None:
    eager = normal(100).float()
    compiled = eager.clone()
    compiled[7] = torch.nextafter(compiled[7], torch.tensor(9.0))

    found = judged(compiled, eager, method="bitwise")

    assert kinds(found) == [("output", "value")]


def test_bitwise_takes_any_nan() -> None:
    eager = torch.tensor([0x7FC00000], dtype=torch.int32).view(torch.float32)
    compiled = torch.tensor([0x7FC00001], dtype=torch.int32).view(torch.float32)

    found = judged(compiled, eager, method="bitwise")

    assert found.differences == ()


def test_the_lanes_precision_counts_where_the_output_hides_it() -> None:
    gold = normal(64, 64)
    eager = gold.float()
    compiled = gold.bfloat16().float()

    as_float32 = judged(compiled, eager, gold)
    as_bfloat16 = judged(compiled, eager, gold, precision=torch.bfloat16)

    assert kinds(as_float32) == [("output", "value")]
    assert kinds(as_bfloat16) == []


def test_tf32_has_the_digits_of_float16_and_the_range_of_float32() -> None:
    gold = torch.tensor(2.3, dtype=torch.float64)
    loss, off = gold.float(), gold.float() * (1 + 4e-4)
    tiny = 1e-8 * normal(64)

    as_float32 = judged(off, loss, gold)
    as_tf32 = judged(off, loss, gold, tf32=True)
    doubled = judged(2 * tiny.float(), tiny.float(), tiny, tf32=True)

    assert kinds(as_float32) == [("output", "value")]
    assert kinds(as_tf32) == []
    assert kinds(doubled) == [("output", "value")]


def test_a_gradient_that_cancels_is_noise() -> None:
    gold = {"weight": normal(64, 64), "bias": 1e-17 * normal(64)}
    eager = {"weight": gold["weight"].float(), "bias": 1e-8 * normal(64, seed=1).float()}
    compiled = {"weight": gold["weight"].float(), "bias": 1e-7 * normal(64, seed=2).float()}
    wrong = {**compiled, "bias": 1e-3 * normal(64, seed=2).float()}

    noise = judged(compiled, eager, gold, group="grad")
    fault = judged(wrong, eager, gold, group="grad")

    assert kinds(noise) == []
    assert kinds(fault) == [("grad['bias']", "value")]


@pytest.mark.parametrize(("off", "found"), [(0.025, []), (0.002, [("grad['scale']", "value")])], ids=["noise", "fault"])
def test_what_eager_has_with_a_hundredth_of_error_in_float32_is_noise(off: float, found: list[tuple[str, str]]) -> None:
    gold = {"weight": normal(64, 64), "scale": 1e-7 * normal(64)}
    weight = gold["weight"].float()
    eager = {"weight": weight, "scale": (gold["scale"] + off * 1e-7 * normal(64, seed=1)).float()}
    compiled = {"weight": weight, "scale": (gold["scale"] + 0.2 * 1e-7 * normal(64, seed=2)).float()}

    assert kinds(judged(compiled, eager, gold, group="grad")) == found


def test_zero_is_judged_by_the_size_of_what_went_in() -> None:
    x = normal(64).float()
    before = snapshot([x], at="input")

    def found(off: float) -> list[tuple[str, str]]:
        zero, compiled = torch.zeros(64), torch.full((64,), off)
        return kinds(judge(eager=a_run(zero, before=before), compiled=a_run(compiled), gold=a_run(zero.double())))

    assert found(1e-7) == []
    assert found(1e-3) == [("output", "value")]


def test_a_reference_that_computed_something_else_is_not_used() -> None:
    eager = normal(64, 64, seed=1)

    found = judged(1.01 * eager.float(), eager.float(), normal(64, 64, seed=2))

    assert kinds(found) == [("output", "value")]
    assert found.note == "judged by allclose, because float64 took another path than eager: output"


def test_where_eager_flipped_too_the_others_are_still_held() -> None:
    gold = normal(1000)
    eager, compiled = gold.float(), gold.float()
    eager[3] = compiled[3] = 5.0
    wrong = compiled.clone()
    wrong[9] += 0.5

    same = judged(compiled, eager, gold)
    fault = judged(wrong, eager, gold)

    assert kinds(same) == []
    assert kinds(fault) == [("output", "value")]
    assert fault.differences[0].detail.startswith("worst at [9]: ")


# Determinism


def test_a_model_that_differs_from_itself_is_not_blamed_on_compiling() -> None:
    eager = a_run([torch.tensor([1.0]), torch.tensor([1.0]), 3])
    again = a_run([torch.tensor([1.5]), torch.tensor([1.0]), 4])
    compiled = a_run([torch.tensor([2.0]), torch.tensor([2.0]), 5])
    gold = a_run(to_float64([torch.tensor([1.0]), torch.tensor([1.0]), 3]))

    found = judge(eager=eager, again=again, compiled=compiled, gold=gold)

    assert kinds(found) == [("output[1]", "value")]
    assert found.note == (
        "this model is not deterministic: eager differs from eager at output[0] by 5.0e-01, output[2] by its value"
    )
    assert found.method == "fp64"


def test_a_little_noise_widens_the_tolerance() -> None:
    gold = normal(64)
    eager, compiled = gold.float(), (gold + 4e-4).float()
    again = a_run((gold + 1.5e-4).float())

    strict = judge(eager=a_run(eager), compiled=a_run(compiled), gold=a_run(gold), atol=2e-4)
    wide = judge(eager=a_run(eager), again=again, compiled=a_run(compiled), gold=a_run(gold), atol=2e-4)

    assert kinds(strict) == [("output", "value")]
    assert (kinds(wide), wide.note) == ([], "")


def test_a_shape_that_eager_varies_itself_is_not_compared() -> None:
    found = judge(
        eager=a_run(torch.ones(2)), again=a_run(torch.ones(3)), compiled=a_run(torch.ones(4)), gold=a_run(torch.ones(2))
    )

    assert found.differences == ()
    assert found.note.startswith("this model is not deterministic: ")


# Inputs and parameters


@pytest.mark.parametrize(
    ("eager", "compiled", "kind"),
    [(2.0, 1.0, "input changed"), (1.0, 2.0, "input changed"), (2.0, 3.0, "value")],
    ids=["only-eager", "only-compiled", "both"],
)
def test_an_input_written_to(eager: float, compiled: float, kind: str) -> None:
    before = snapshot([torch.ones(3)], at="input")

    found = judge(
        eager=a_run([torch.full((3,), eager)], "input", before=before),
        compiled=a_run([torch.full((3,), compiled)], "input"),
        gold=a_run([torch.full((3,), eager).double()], "input"),
    )

    assert kinds(found) == [("input[0]", kind)]


def a_step(weight: torch.Tensor, moved: torch.Tensor, gradient: torch.Tensor) -> Run:
    return Run(
        groups={
            "grad": snapshot({"w": gradient}, at="step 0 grad", step="step 0"),
            "parameter": snapshot({"w": weight + moved}, at="step 0 parameter", step="step 0"),
        },
        before=snapshot({"w": weight}, at="step 0 parameter"),
    )


def test_a_step_in_the_sign_of_noise_is_not_a_difference() -> None:
    weight, gradient = normal(100), normal(100)
    gradient[7] = 1e-9
    flipped = gradient.clone()
    flipped[7] *= -1
    wrong = gradient.sign()
    wrong[8] *= -1

    gold = a_step(weight, 1e-3 * gradient.sign(), gradient)
    eager = a_step(weight.float(), 1e-3 * gradient.sign().float(), gradient.float())
    noise = a_step(weight.float(), 1e-3 * flipped.sign().float(), flipped.float())
    fault = a_step(weight.float(), 1e-3 * wrong.float(), gradient.float())
    still = a_step(weight.float(), torch.zeros(100), gradient.float())

    assert kinds(judge(eager=eager, compiled=noise, gold=gold)) == []
    assert kinds(judge(eager=eager, compiled=fault, gold=gold)) == [("step 0 parameter['w']", "value")]
    assert kinds(judge(eager=eager, compiled=still, gold=gold)) == [("step 0 parameter['w']", "value")]


# Real models


class Attention(nn.Module):
    """The gradient of the key's bias is zero but for rounding."""

    def __init__(self, size: int = 32) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(size)
        self.query, self.key, self.value = (nn.Linear(size, size) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.norm(x)
        q, k, v = (each(x).unflatten(-1, (4, -1)).transpose(1, 2) for each in (self.query, self.key, self.value))
        y: torch.Tensor = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return y.transpose(1, 2).flatten(2)


class Stem(nn.Module):
    """The gradient of the convolution's bias is zero but for rounding."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.layers(x)
        return y.mean((2, 3))


class Gated(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(32))
        self.up, self.gate, self.down = nn.Linear(32, 64), nn.Linear(32, 64), nn.Linear(64, 32, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * self.scale
        out: torch.Tensor = x + self.down(functional.silu(self.gate(y)) * self.up(y))
        return out


class Reductions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2048))

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        y = x * self.weight
        return {"sum": y.sum(-1), "var": y.var(-1), "softmax": y.softmax(-1), "lse": y.logsumexp(-1)}


class Zeros(nn.Module):
    """Two of its outputs are zero but for rounding."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(32, 32)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        y = self.layer(x)
        return y, y - y * 3 / 3, (y - y.mean(-1, keepdim=True)).sum(-1)


class Words(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(50, 16), nn.Linear(16, 50)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(self.head(self.embedding(ids)).flatten(0, 1), ids.flatten())


def deep() -> nn.Module:
    return nn.Sequential(*[layer for _ in range(8) for layer in (nn.Linear(32, 32), nn.GELU())])


def grouped() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.GroupNorm(2, 8), nn.Tanh(), nn.Conv2d(8, 4, 1))


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "deep-mlp": (deep, (8, 32)),
    "attention": (Attention, (2, 16, 32)),
    "convolution-batchnorm": (Stem, (4, 3, 12, 12)),
    "convolution-groupnorm": (grouped, (2, 3, 10, 10)),
    "gated": (Gated, (8, 32)),
    "reductions": (Reductions, (4, 2048)),
    "zeros": (Zeros, (8, 32)),
    "cross-entropy": (Words, (4, 9)),
    "layernorm": (lambda: nn.LayerNorm(64), (16, 64)),
    "gru-cell": (lambda: nn.GRUCell(32, 32), (4, 32)),
    "linear": (lambda: nn.Linear(64, 1), (8, 64)),
    "batchnorm": (lambda: nn.BatchNorm1d(16), (32, 16)),
}


def trained(module: nn.Module, x: torch.Tensor, autocast: torch.dtype | None = None) -> Run:
    """Two steps of Adam, as the runner would keep them."""
    groups: dict[str, list[Snapshot]] = {name: [] for name in ("output", "input", "grad", "parameter", "buffer")}
    start = snapshot(dict(module.named_parameters()), at="start")
    before: list[Snapshot] = []
    shared: set[tuple[str, str]] = set()
    optimizer = torch.optim.Adam(module.parameters(), lr=1e-3)
    for step in range(2):
        (given,) = copied((x,))
        before += [snapshot(given, at=f"call {step} input"), renamed(start, "start", f"step {step} parameter")]
        with torch.autocast("cpu", autocast or torch.bfloat16, enabled=autocast is not None):
            output = module(given)
        parts = output.values() if isinstance(output, dict) else output if isinstance(output, tuple) else [output]
        outputs, inputs = snapshot(output, at=f"call {step} output"), snapshot(given, at=f"call {step} input")
        shared |= aliases(outputs, inputs)
        sum(part.to(torch.promote_types(part.dtype, torch.float32)).square().mean() for part in parts).backward()
        groups["output"].append(outputs)
        groups["input"].append(inputs)
        at, weights = f"step {step}", dict(module.named_parameters())
        groups["grad"].append(snapshot({k: p.grad for k, p in weights.items()}, at=f"{at} grad", step=at))
        optimizer.step()
        optimizer.zero_grad()
        groups["parameter"].append(snapshot(weights, at=f"{at} parameter", step=at))
        groups["buffer"].append(snapshot(dict(module.named_buffers()), at=f"{at} buffer", step=at))
    return Run(
        groups={name: joined(each) for name, each in groups.items()}, before=joined(before), aliases=frozenset(shared)
    )


@pytest.fixture
def clean_dynamo(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TORCHINDUCTOR_COMPILE_THREADS", "1")
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


CASES = [
    *[pytest.param(name, "aot_eager", None, id=f"{name}-aot") for name in MODELS],
    *[pytest.param(name, "aot_eager", torch.bfloat16, id=f"{name}-aot-bfloat16") for name in ("attention", "gated")],
    *[
        pytest.param(name, "inductor", None, id=f"{name}-inductor")
        for name in ("convolution-batchnorm", "attention", "zeros")
    ],
    pytest.param("attention", "inductor", torch.bfloat16, id="attention-inductor-bfloat16"),
]


@pytest.mark.usefixtures("clean_dynamo")
@pytest.mark.parametrize(("name", "backend", "autocast"), CASES)
def test_a_right_model_gives_no_alarm_and_a_wrong_one_does(
    name: str, backend: str, autocast: torch.dtype | None
) -> None:
    make, shape = MODELS[name]
    torch.manual_seed(7)
    module = make()
    x = torch.randint(0, 50, shape) if name == "cross-entropy" else torch.randn(*shape)
    lane = copy.deepcopy(module)
    lane.compile(backend=backend)

    eager, again = (trained(copy.deepcopy(module), x, autocast) for _ in range(2))
    gold = trained(to_float64(module), to_float64(x))
    compiled = trained(lane, x, autocast)
    right = judge(eager=eager, again=again, compiled=compiled, gold=gold, precision=autocast)
    without = judge(eager=eager, again=again, compiled=compiled, precision=autocast)
    doubled = judge(eager=eager, compiled=with_doubled_gradients(compiled), gold=gold, precision=autocast)

    assert right.differences == ()
    assert right.note == ""
    assert without.differences == ()
    assert {each.kind for each in doubled.differences} == {"value"}
    assert {each.at.partition("[")[0] for each in doubled.differences} == {"step 0 grad", "step 1 grad"}


def with_doubled_gradients(run: Run) -> Run:
    nodes = {
        at: replace(node, kept=Apart(2 * node.data)) if isinstance(node, TensorLeaf) and node.data is not None else node
        for at, node in run.groups["grad"].nodes.items()
    }
    return replace(run, groups={**run.groups, "grad": Snapshot(nodes=nodes)})


class SaysYes:
    """Put before one of Python's types, it calls any two values the same."""

    __hash__ = object.__hash__

    def __eq__(self, other: object) -> bool:
        return True


class AnInt(SaysYes, int):
    __hash__ = int.__hash__


class AFloat(SaysYes, float):
    __hash__ = float.__hash__


class AText(SaysYes, str):
    __hash__ = str.__hash__


class SomeBytes(SaysYes, bytes):
    __hash__ = bytes.__hash__


@pytest.mark.parametrize(
    ("eager", "compiled"),
    [
        pytest.param(AnInt(1), AnInt(2), id="int"),
        pytest.param(AFloat(1), AFloat(2), id="float"),
        pytest.param(AText("a"), AText("b"), id="str"),
        pytest.param(SomeBytes(b"a"), SomeBytes(b"b"), id="bytes"),
        pytest.param(frozenset([AnInt(1)]), frozenset([AnInt(2)]), id="in a set"),
    ],
)
def test_values_of_a_class_that_calls_any_two_the_same(eager: object, compiled: object) -> None:
    runs = [Run(groups={"output": snapshot(each, at="output")}) for each in (eager, compiled)]

    found = judge(eager=runs[0], compiled=runs[1])

    assert [each.kind for each in found.differences] == ["value"]


@pytest.mark.parametrize("key", [lambda x: x, lambda x: ("a", x)], ids=["a tensor", "in a tuple"])
def test_a_tensor_in_the_key_of_a_dict_is_compared(key: Callable[[torch.Tensor], object]) -> None:
    runs = [Run(groups={"output": snapshot({key(torch.ones(2) * by): 1}, at="output")}) for by in (1, 2)]

    found = judge(eager=runs[0], compiled=runs[1])

    assert [each.kind for each in found.differences] == ["value"]
