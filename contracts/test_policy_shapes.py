"""Policy: say which lengths a compiled model is to know. Fixed, in buckets, marked as free, or found out by Dynamo."""

from __future__ import annotations

import functools
import re

import pytest
import torch
from torch import Tensor

from contracts.policies.shapes import Bucketed, Guarded, Tagger, bucket_of, compile_inner, marked
from pytest_compilecontract import compile_contract
from pytest_compilecontract.lane import CompileLane
from pytest_compilecontract.shapes import sizes, tensors

BUCKETS = (8, 16)


def tokens(length: int, batch: int = 2) -> Tensor:
    """Sequences of 16 channels."""
    return torch.randn(batch, length, 16)


def whole(length: int, batch: int = 2) -> tuple[Tensor, Tensor]:
    """Sequences in which every token is valid."""
    return tokens(length, batch), torch.ones(batch, length, dtype=torch.bool)


@compile_contract(max_graphs=1, max_recompiles=0, max_graph_breaks=0, lanes=["aot"])
def test_a_fixed_length_is_one_graph(compile_lane: CompileLane) -> None:
    """One length, one graph."""
    compile_lane.run(Tagger().eval(), whole(8), whole(8), whole(8))


@compile_contract(
    # Not in lane "dynamic": a bucket is a graph of one length.
    max_graphs=2,
    max_recompiles=1,
    max_graph_breaks=0,
    lanes=["capture", "aot", "inductor", "bf16", "autocast", "cudagraphs"],
)
def test_buckets_are_as_many_graphs(compile_lane: CompileLane) -> None:
    """Six lengths, the edges of both buckets among them, are two graphs, and equal to the unpadded ones where valid."""
    compile_inner_in_place = functools.partial(
        compile_inner, compile_model=functools.partial(compile_lane.compile, in_place=True, dynamic=False)
    )
    lengths = (1, 7, 8, 9, 15, 16)

    compile_lane.run(
        Bucketed(Tagger().eval(), BUCKETS),
        *((tokens(length),) for length in lengths),
        compile_with=compile_inner_in_place,
    )


@compile_contract(max_graphs=2, max_recompiles=1, max_graph_breaks=0, lanes=["aot"])
def test_no_length_is_more_than_a_graph_of_its_bucket(compile_lane: CompileLane) -> None:
    """Whatever lengths come one after another: the two buckets are two graphs."""
    compile_lane.hunt(
        Bucketed(Tagger().eval(), BUCKETS),
        tensors(2, sizes(1, BUCKETS[-1]), 16),
        compile_with=functools.partial(
            compile_inner, compile_model=functools.partial(compile_lane.compile, in_place=True, dynamic=False)
        ),
        sequences=10,
        derandomize=True,
    )


@compile_contract(max_graphs=0, min_ops_captured=0, lanes=["aot"])
def test_padding_changes_no_valid_token(compile_lane: CompileLane) -> None:
    """Padded and cut again, every length gives what the model gives without padding."""
    model = Tagger().eval()
    bucketed = Bucketed(model, BUCKETS)

    with compile_lane.observe():
        for length in (1, 7, 8, 9, 16):
            x = tokens(length)
            torch.testing.assert_close(bucketed(x), model(x, torch.ones(2, length, dtype=torch.bool)))


@compile_contract(max_graphs=1, max_recompiles=0, max_graph_breaks=0, lanes=["aot"])
def test_a_marked_length_is_one_graph(compile_lane: CompileLane) -> None:
    """A length marked as free between 2 and 64 is one graph from the first call on."""

    def call_marked(model: Tagger) -> object:
        compiled = compile_lane.compile(model)
        return lambda x, mask: compiled(marked(x, 1, low=2, high=64), marked(mask, 1, low=2, high=64))

    compile_lane.run(Tagger().eval(), *(whole(length) for length in (8, 5, 31)), compile_with=call_marked)


@compile_contract(max_graphs=2, max_recompiles=1, max_graph_breaks=0, lanes=["aot"])
def test_dynamo_finds_out_at_the_second_length(compile_lane: CompileLane) -> None:
    """With nothing said, the second length compiles once more, and the others are served by that graph."""
    seen = compile_lane.run(Tagger().eval(), *(whole(length) for length in (8, 5, 31, 12)))

    assert [each.kind for each in seen.recompiles or ()] == ["dynamic"]


@compile_contract(max_graph_breaks=0, max_recompiles=2, lanes=["aot"])
def test_sizes_zero_and_one_are_their_own(compile_lane: CompileLane) -> None:
    """A batch of one and an empty one are no case of a free size: torch compiles 0 and 1 as constants."""
    seen = compile_lane.run(Tagger().eval(), *(whole(8, batch) for batch in (4, 5, 1)))

    assert len(seen.recompiles or ()) == 2


@compile_contract(max_graphs=2, max_recompiles=1, max_graph_breaks=0, lanes=["dynamic"])
def test_a_models_own_question_is_a_guard(compile_lane: CompileLane) -> None:
    """`if length % 2 == 0` in a model is a guard that dynamic=True does not lift: even and odd are two graphs."""
    compile_lane.run(Guarded().eval(), *((tokens(length),) for length in (8, 10, 7, 5)))


@pytest.mark.parametrize(
    ("length", "message"),
    [
        (17, "a sequence of length 17 fits in no bucket (the largest is 16)"),
        (0, "a sequence of length 0 has nothing to pad"),
    ],
    ids=["beyond the largest", "empty"],
)
def test_a_length_that_no_bucket_takes_is_refused(length: int, message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        bucket_of(length, BUCKETS)
