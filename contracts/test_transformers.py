"""A model of `transformers`: Llama, one layer of it, from a small config with random weights."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from pytest_compilecontract import call, compile_contract
from pytest_compilecontract.lane import CompileLane


def llama() -> nn.Module:
    """A Llama of 64 words and 32 channels, with grouped heads."""
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
        use_cache=False,
    )
    return transformers.LlamaForCausalLM(config)


@compile_contract(fullgraph=True, max_graphs=1, max_recompiles=0)
def test_infers_in_one_graph(compile_lane: CompileLane) -> None:
    """Llama without a cache gives its logits in one graph."""
    compile_lane.run(llama().eval(), *(call(input_ids=torch.randint(64, (2, 16))) for _ in range(4)))


@compile_contract(fullgraph=True, max_graphs=1, max_recompiles=0)
def test_trains_in_one_graph(compile_lane: CompileLane) -> None:
    """Llama trains on its own loss in one graph and one backward graph.

    Lane capture compiles no backward, so there the backward graphs are not measured.
    """
    batches = [torch.randint(64, (2, 16)) for _ in range(4)]

    seen = compile_lane.train(llama(), [call(input_ids=words, labels=words) for words in batches])

    assert seen.backward_graphs == (None if compile_lane.name == "capture" else 1)
