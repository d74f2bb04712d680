"""A bag of words over texts of any length: what each new shape costs, counted."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from contracts.devices import ANYWHERE
from contracts.models.bag import BagOfWords
from pytest_compilecontract import compile_contract
from pytest_compilecontract.lane import CompileLane

pytestmark = pytest.mark.compile_contract(lanes=ANYWHERE)

OTHER_LENGTHS = ((3, 5), (4, 9), (1, 2), (20, 3))
OTHER_NUMBERS = ((3, 5), (4, 9), (1, 2, 9), (2, 6, 3), (7, 7, 7, 7))


def texts(*lengths: int) -> tuple[Tensor, Tensor]:
    """Texts of so many words each, as the arguments of a call."""
    sizes = torch.tensor(lengths)
    return torch.randint(100, (sum(lengths),)), sizes.cumsum(0) - sizes


@compile_contract(fullgraph=True, max_graphs=1, max_recompiles=0)
def test_moved_borders(compile_lane: CompileLane) -> None:
    """Where only the border between two texts moves, and the words are as many, one graph serves all."""
    compile_lane.run(BagOfWords(), texts(3, 5), texts(6, 2), texts(1, 7), texts(4, 4))


@compile_contract(fullgraph=True, max_graphs=2, max_recompiles=1)
def test_another_length(compile_lane: CompileLane) -> None:
    """The second number of words compiles once more, and that graph serves every later number of words.

    The same in every lane that starts with static shapes: capture, aot, inductor.
    """
    compile_lane.run(BagOfWords(), *(texts(*lengths) for lengths in OTHER_LENGTHS))


@compile_contract(fullgraph=True, max_graphs=3, max_recompiles=2)
def test_another_number_of_texts(compile_lane: CompileLane) -> None:
    """Words and texts are freed one at a time: one recompile where the words first change, one where the texts do."""
    compile_lane.run(BagOfWords(), *(texts(*lengths) for lengths in OTHER_NUMBERS))


@compile_contract(fullgraph=True, max_graphs=1, max_recompiles=0, lanes=["dynamic"])
def test_free_lengths(compile_lane: CompileLane) -> None:
    """With dynamic=True one graph serves every number of words and of texts, from the first call on."""
    compile_lane.run(BagOfWords(), *(texts(*lengths) for lengths in OTHER_NUMBERS))


@compile_contract(fullgraph=True, max_graphs=2, max_recompiles=1)
def test_trains_at_other_lengths(compile_lane: CompileLane) -> None:
    """Training pays the same one recompile, and each of the two graphs has a backward.

    Lane dynamic has one of each, and lane capture compiles no backward.
    """
    seen = compile_lane.train(BagOfWords(), [texts(*lengths) for lengths in OTHER_LENGTHS])

    assert seen.backward_graphs == {"capture": None, "dynamic": 1}.get(compile_lane.name, 2)
