"""Identity: what torch renames is the same fact, what the user wrote differently is another."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.receipts import BREAK, CALLER, COPY, EAGER, FORWARD, ITEM, RECOMPILE, SKIPPED

from pytest_compilecontract.compare.identity import (
    Key,
    break_keys,
    comparable,
    eager_key,
    eager_ops_key,
    normalised_function,
    normalised_guard,
    recompile_key,
)
from pytest_compilecontract.facts.measurement import Location


@pytest.mark.parametrize(
    ("one", "other"),
    [
        pytest.param(
            "tensor 'x' size mismatch at index 0. expected 3, actual 4",
            "0/1: tensor 'L['x']' size mismatch at index 0. expected 16, actual 32",
            id="sizes-compile-id-and-the-local's-spelling",
        ),
        pytest.param("L['x'].size()[0] == 4", "L['x'].size()[0] == 1024", id="a-size-in-an-expression"),
        pytest.param(
            "___check_obj_id(L['self'], 140234567890123)", "___check_obj_id(L['self'], ...)", id="the-id-of-an-object"
        ),
        pytest.param("fn is 0x7f0012345678", "fn is 0x...", id="an-address"),
        pytest.param(
            "___check_obj_id(self.state[0], ...), type=tensor([[0., 0.],",
            "___check_obj_id(self.state[0], ...), type=<class 'torch.Tensor'>",
            id="an-object-by-its-value-or-its-type",
        ),
        pytest.param(
            "expected type of 'params[0].grad' to be a tensor type, ' but found <class 'NoneType'>",
            "expected type of 'params[0].grad' to be <class 'torch.Tensor'>, but found <class 'NoneType'>",
            id="a-type-in-other-words",
        ),
        pytest.param(
            "len(xs) == 3  # for x in xs:  # model.py:30 in forward",
            "len(xs) == 4  # for x in xs:  # model.py:31 in forward",
            id="torch's-comment",
        ),
        pytest.param("Ne(s77, 4)", "Ne(s0, 8)", id="symbols"),
        pytest.param(
            "___as_tensor(___stack0).item() == 3.0",
            "___stack0 == 0.10000000149011612",
            id="a-number-by-way-of-a-tensor",
        ),
        pytest.param(
            "G['torch_dynamo_resume_in_f_at_12'].x == 1",
            "G['torch_dynamo_resume_in_f_at_14'].x == 1",
            id="a-resume-function",
        ),
        pytest.param("tensor '___stack0' rank mismatch", "tensor '___stack1' rank mismatch", id="a-stack-slot"),
        pytest.param(
            "___as_tensor(self.param_groups[0]['lr']).item() == 0.05",
            "self.param_groups[0]['lr'] == 0.1",
            id="a-float-read-as-a-tensor",
        ),
        pytest.param(
            "(((-0.1) / (1.0 + ((-1)*0.9 ** ___stack0)))) == (-0.5263157894736844)",
            "___stack0 == 2.0",
            id="a-formula-of-what-is-guarded-solved",
        ),
        pytest.param(
            "tensor 'x' dispatch key set mismatch. expected DispatchKeySet(CPU), actual DispatchKeySet(CPU, Python)",
            "tensor 'x' dispatch key set mismatch. expected DispatchKeySet(CUDA), actual DispatchKeySet(CPU)",
            id="a-property-of-several-words",
        ),
        pytest.param(
            "BACKEND_MATCH failure: torch.compile detected different backend callables. If this is unexpected, wrap it",
            "BACKEND_MATCH failure: torch.compile detected different backend callables. Cached backend: W (id=...).",
            id="another-backend-as-2.11-and-2.15-say-it",
        ),
    ],
)
def test_these_guards_are_the_same(one: str, other: str) -> None:
    assert normalised_guard(one) == normalised_guard(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        pytest.param("tensor 'x' size mismatch at index 0", "tensor 'y' size mismatch at index 0", id="tensors"),
        pytest.param("tensor 'x' size mismatch at index 0", "tensor 'x' size mismatch at index 1", id="dimensions"),
        pytest.param("tensor 'x' size mismatch at index 0", "tensor 'x' stride mismatch at index 0", id="properties"),
        pytest.param("self.layers[3].scale == 1", "self.layers[4].scale == 1", id="items-of-a-list"),
        pytest.param("k == 'a'", "k == 'b'", id="texts"),
        pytest.param("2*n + m == 4", "2*n == 4", id="a-formula-of-two-sources"),
        pytest.param("cfg['a-1'] == 1", "cfg['b-1'] == 1", id="operators-in-a-text"),
        pytest.param("kwargs['size_4'] == 1", "kwargs['size_8'] == 1", id="keys"),
    ],
)
def test_these_guards_are_not_the_same(one: str, other: str) -> None:
    assert normalised_guard(one) != normalised_guard(other)


def test_a_guard_keeps_the_words_that_tell_it() -> None:
    guard = "2/1: tensor 'kwargs['input_ids']' size mismatch at index 1. expected 3, actual 4"

    assert normalised_guard(guard) == "kwargs['input_ids'] size at index 1"


def in_class(scope: str) -> list[Key]:
    """A break and a recompile in a method of a class."""
    place = replace(ITEM, scope=scope)
    stacks = tuple((*stack[:-1], place) for stack in BREAK.stacks)
    return [*break_keys(replace(BREAK, location=place, stacks=stacks)), recompile_key(replace(RECOMPILE, frame=place))]


def test_a_method_of_another_class_is_another_place() -> None:
    ours, theirs = in_class("Attention"), in_class("Mlp")

    assert comparable(ours, theirs) == (ours, theirs)
    assert not set(ours) & set(theirs)


def test_a_receipt_without_classes_is_compared_without_them() -> None:
    before, after = comparable(in_class(""), in_class("Attention"))

    assert before == after == in_class("")


def test_an_eager_frame_is_the_same_before_and_after_a_break_in_it() -> None:
    assert eager_key(EAGER) == eager_key(replace(EAGER, continuation=True))
    assert eager_key(EAGER) != eager_key(replace(EAGER, cause="error"))


def test_a_continuation_of_a_continuation_is_the_user_s_function() -> None:
    name = "torch_dynamo_resume_in_torch_dynamo_resume_in_forward_at_3_at_12"

    assert normalised_function(name) == "forward"


def test_a_stack_that_ends_a_longer_one_is_no_fact_of_its_own() -> None:
    alone = replace(BREAK, stacks=((CALLER, COPY),))

    assert break_keys(BREAK) == break_keys(alone)
    assert len(break_keys(BREAK)) == 1


def test_a_break_met_from_two_callers_is_two_facts() -> None:
    elsewhere = replace(CALLER, function="evaluate")

    assert len(break_keys(replace(BREAK, stacks=((CALLER, COPY), (elsewhere, COPY))))) == 2


def test_torch_s_own_frames_are_torch_s_to_change() -> None:
    inner = Location(
        file="torch/nn/modules/module.py", line=1784, function="_call_impl", source="return forward_call()"
    )

    assert break_keys(replace(BREAK, stacks=((CALLER, inner, COPY),))) == break_keys(BREAK)


def test_what_torch_went_through_below_the_line_is_torch_s_to_change() -> None:
    dispatch = Location(file="functools.py", line=837, function="dispatch", source="impl = _find_impl(cls, registry)")
    filled = Location(file="torch/_dynamo/polyfills/__init__.py", line=424, function="set_update", source="for x in s:")

    assert break_keys(replace(BREAK, stacks=((CALLER, COPY, dispatch, filled),))) == break_keys(BREAK)


def test_where_torch_breaks_inside_a_wrapper_of_python_s_is_torch_s_affair() -> None:
    helper = Location(file="contextlib.py", line=301, function="helper", source="return _GeneratorContextManager(func)")
    made = Location(file="contextlib.py", line=105, function="__init__", source="self.gen = func(*args, **kwds)")
    filled = Location(file="torch/_dynamo/polyfills/__init__.py", line=424, function="instantiate", source="obj()")
    older = replace(BREAK, location=made, stacks=((helper, made), (made,)))
    newer = replace(BREAK, location=filled, stacks=((helper, filled),))

    assert break_keys(older) == break_keys(newer) == (("wrapper", "contextlib.py"),)


def test_a_wrapper_that_the_user_s_code_calls_is_known_by_that_code() -> None:
    made = Location(file="contextlib.py", line=105, function="__init__", source="self.gen = func(*args, **kwds)")
    found = replace(BREAK, location=made, stacks=((CALLER, made),))

    assert break_keys(found)[0][0] != "wrapper"


def test_a_line_without_its_text_is_known_by_its_number() -> None:
    unseen = replace(BREAK, location=replace(COPY, source=""), stacks=())

    assert break_keys(unseen) != break_keys(replace(unseen, location=replace(COPY, source="", line=99)))


def test_a_line_that_moved_and_was_indented_is_the_same() -> None:
    moved = replace(COPY, line=99, source="mask  = copy.deepcopy(self.mask)")

    assert break_keys(replace(BREAK, location=moved, stacks=())) == break_keys(replace(BREAK, stacks=()))
    assert break_keys(replace(BREAK, location=ITEM, stacks=())) != break_keys(replace(BREAK, stacks=()))


def test_a_recompile_of_a_resume_function_is_one_of_the_user_s_function() -> None:
    renamed = replace(RECOMPILE.frame, function="torch_dynamo_resume_in_forward_at_41", line=41)

    assert recompile_key(replace(RECOMPILE, frame=renamed, kind="guard")) == recompile_key(RECOMPILE)


def test_operators_in_eager_are_known_by_the_line_that_leads_there_then_by_frame_then_by_name() -> None:
    without_line = replace(SKIPPED, location=None)
    named = replace(without_line, frame=None)

    keys = [eager_ops_key(each) for each in (SKIPPED, without_line, named)]

    assert len({*keys}) == 3
    assert eager_ops_key(replace(SKIPPED, frame=FORWARD, name="forward")) == keys[0]
    assert eager_ops_key(replace(SKIPPED, location=ITEM)) != keys[0]
    assert eager_ops_key(replace(without_line, name="forward")) == keys[1]
    assert eager_ops_key(replace(without_line, frame=FORWARD)) != keys[1]
    assert keys[2] == ("Sequential.forward",)
