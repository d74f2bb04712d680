"""What probes read of tensors by torch's private attributes, and of Inductor's random numbers: on small functions."""

from __future__ import annotations

import pytest
import torch
from torch._subclasses import FakeTensorMode

from pytest_compilecontract.measure.probes import modules, settings, tensors
from pytest_compilecontract.measure.probes.fallback_random import drawn_as_eager

pytestmark = pytest.mark.insides


def test_a_version_rises_with_each_write() -> None:
    data = torch.zeros(2)
    before = tensors.version(data)

    data.add_(1)

    assert tensors.version(data) == before + 1


def test_a_tensor_of_inference_mode_counts_no_writes() -> None:
    with torch.inference_mode():
        data = torch.zeros(2)
        data.add_(1)

    assert tensors.version(data) == 0


def test_a_view_has_a_base_and_is_made_again_of_another() -> None:
    base, other = torch.arange(6.0).view(2, 3), torch.arange(6.0, 12.0).view(2, 3)
    view = base[1]

    assert tensors.base_of(base.clone()) is None
    assert tensors.base_of(view) is not None
    assert tensors.viewed_again(base.t(), other).tolist() == other.t().tolist()


def test_hooks_on_a_gradient_are_found() -> None:
    leaf = torch.zeros(1, requires_grad=True)
    leaf.register_hook(print)
    leaf.register_post_accumulate_grad_hook(len)

    found = [(table, [*hooks.values()]) for table, hooks in tensors.backward_hooks(leaf)]
    assert found == [("_backward_hooks", [print]), ("_post_accumulate_grad_hooks", [len])]
    assert [*tensors.backward_hooks(torch.zeros(1))] == []


def test_the_parts_of_a_sparse_tensor_are_those_it_was_made_of() -> None:
    indices, values = torch.tensor([[0, 0]]), torch.tensor([1.0, 2.0])

    found = tensors.coo_parts(torch.sparse_coo_tensor(indices, values, (2,)))

    assert [each.tolist() for each in found] == [[[0, 0]], [1.0, 2.0]]


def test_a_tensor_without_values_is_told() -> None:
    with FakeTensorMode() as mode:
        fake = mode.from_tensor(torch.zeros(1))

    assert tensors.is_fake(fake)
    assert tensors.is_fake(torch.zeros(1, device="meta"))
    assert not tensors.is_fake(torch.zeros(1))


def test_a_negated_view_has_the_other_sign() -> None:
    assert tensors.negated(torch.tensor([1.0, -2.0])).tolist() == [-1.0, 2.0]


def test_a_subclass_is_not_asked() -> None:
    class Loud(torch.Tensor):
        @classmethod
        def __torch_function__(cls, *_args: object, **_kwargs: object) -> None:
            raise AssertionError("asked")

    with tensors.without_torch_function():
        assert torch.zeros(2).as_subclass(Loud).add(1).sum().item() == 2.0


def test_the_tensors_and_keys_of_a_module_are_the_ones_it_has() -> None:
    norm = torch.nn.BatchNorm1d(2)
    norm.register_buffer("scratch", torch.zeros(1), persistent=False)
    norm.register_forward_hook(print)

    assert modules.parameters_of(norm)["weight"] is norm.weight
    assert modules.buffers_of(norm)["scratch"] is norm.scratch
    assert modules.state_dict_keys(norm) == set(norm.state_dict())
    assert modules.non_persistent_buffers(norm) == {"scratch"}
    assert [(table, [*hooks.values()]) for table, hooks in modules.hooks_of(norm)] == [("_forward_hooks", [print])]


def test_a_buffer_can_be_kept_in_the_state_dict_again() -> None:
    norm = torch.nn.BatchNorm1d(2)
    norm.register_buffer("scratch", torch.zeros(1), persistent=False)

    modules.set_non_persistent_buffers(norm, set())

    assert "scratch" in norm.state_dict()


def test_inductor_draws_as_eager_where_it_is_asked_to() -> None:
    def draw(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.dropout(x, 0.5)

    torch.manual_seed(0)
    eager = draw(torch.ones(64))
    torch.manual_seed(0)
    with drawn_as_eager():
        compiled = torch.compile(draw, backend="inductor")(torch.ones(64))

    assert torch.equal(eager, compiled)


def test_the_settings_of_a_module_are_told_with_their_defaults() -> None:
    from torch._dynamo import config

    limit = settings.default_of(config, "recompile_limit")

    assert limit is not None
    assert limit.default == config.recompile_limit
    assert limit in list(settings.settings_of(config))
    assert settings.default_of(config, "cache_size_limit") is None  # an alias of it
    assert settings.default_of(torch, "recompile_limit") is None


def test_a_setting_that_was_set_may_differ_and_is_read() -> None:
    from torch._dynamo import config

    with config.patch(recompile_limit=3):
        assert settings.may_differ(config, "recompile_limit")
        assert settings.value_of(config, "recompile_limit") == 3
