"""Models of `transformers`, each of one or two layers, from small configs with random weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from contracts.devices import STEADY
from contracts.models.routing import DECIDED, decide, smallest_margin
from pytest_compilecontract import call, compile_contract
from pytest_compilecontract.lane import CompileLane

WORDS = 32
WIDTH = 32
DECODER = {
    "vocab_size": WORDS,
    "hidden_size": WIDTH,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "use_cache": False,
}
MAMBA = {"expand": 2, "n_heads": 4, "d_head": 16, "n_groups": 1, "d_state": 8, "chunk_size": 8}


def llama(of: Any) -> nn.Module:
    """A decoder with grouped heads."""
    return of.LlamaForCausalLM(of.LlamaConfig(**DECODER))


def qwen3_moe(of: Any, experts: str = "batched_mm") -> nn.Module:
    """Two of four experts a token, by a router that has decided (see contracts/models/routing.py)."""
    sizes = {"head_dim": 8, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
    config = of.Qwen3MoeConfig(**DECODER, **sizes, norm_topk_prob=True, experts_implementation=experts)
    model = of.Qwen3MoeForCausalLM(config)
    decide(model.model.layers[0].mlp.gate.weight, model.model.embed_tokens.weight, times=4)
    return model


def mamba2(of: Any) -> nn.Module:
    """A state space layer, without the kernels that its authors wrote for it."""
    sizes = {"num_heads": 4, "head_dim": 16, "state_size": 8, "expand": 2, "n_groups": 1, "chunk_size": 8}
    config = of.Mamba2Config(vocab_size=WORDS, hidden_size=WIDTH, num_hidden_layers=1, use_cache=False, **sizes)
    return of.Mamba2ForCausalLM(config)


def bamba(of: Any) -> nn.Module:
    """A hybrid: a Mamba2 layer, then an attention layer."""
    sizes = {f"mamba_{name}": value for name, value in MAMBA.items()}
    config = of.BambaConfig(**DECODER | {"num_hidden_layers": 2}, attn_layer_indices=[1], attn_rotary_emb=8, **sizes)
    return of.BambaForCausalLM(config)


def t5(of: Any) -> nn.Module:
    """An encoder and a decoder that attends to it."""
    sizes = {"d_model": WIDTH, "d_kv": 8, "d_ff": 64, "num_layers": 1, "num_heads": 4, "dropout_rate": 0.0}
    return of.T5ForConditionalGeneration(
        of.T5Config(vocab_size=WORDS, use_cache=False, decoder_start_token_id=0, pad_token_id=0, **sizes)
    )


def bert(of: Any) -> nn.Module:
    """An encoder that fills in words."""
    sizes = {"num_attention_heads": 4, "num_hidden_layers": 1, "intermediate_size": 64, "max_position_embeddings": 64}
    still = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    return of.BertForMaskedLM(of.BertConfig(vocab_size=WORDS, hidden_size=WIDTH, **sizes, **still))


def each_of(*families: Callable[[Any], nn.Module]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("family", families, ids=[family.__name__ for family in families])


def made(family: Callable[[Any], nn.Module]) -> nn.Module:
    return family(pytest.importorskip("transformers"))


def texts(*lengths: int) -> list[call]:
    """Two texts of each length, which are their own labels."""
    words = [torch.randint(WORDS, (2, length)) for length in lengths]
    return [call(input_ids=each, labels=each) for each in words]


@compile_contract(
    fullgraph=True,
    max_graphs=1,
    max_recompiles=0,
    cudagraphs="required",
    lanes=["capture", "aot", "inductor", "cudagraphs"],
)
def test_llama_infers_in_one_graph(compile_lane: CompileLane) -> None:
    """Llama without a cache gives its logits in one graph."""
    with torch.no_grad():
        compile_lane.run(made(llama).eval(), *texts(16, 16, 16, 16))


@compile_contract(
    fullgraph=True,
    max_graphs=1,
    max_recompiles=0,
    lanes=["capture", "aot", "inductor", "autocast"],
)
def test_llama_trains_in_one_graph(compile_lane: CompileLane) -> None:
    """Llama trains on its own loss in one graph and one backward graph.

    Lane capture compiles no backward, so there the backward graphs are not measured.
    """
    seen = compile_lane.train(made(llama), texts(16, 16, 16, 16))

    assert seen.backward_graphs == (None if compile_lane.name == "capture" else 1)


@each_of(qwen3_moe, mamba2, bamba, t5, bert)
@compile_contract(fullgraph=True, max_graphs=1, max_recompiles=0, **STEADY, lanes=["cudagraphs"])
def test_infers_in_one_graph(compile_lane: CompileLane, family: Callable[[Any], nn.Module]) -> None:
    """Each family infers in one graph, under CUDA graphs too."""
    with torch.no_grad():
        compile_lane.run(made(family).eval(), *texts(16, 16, 16, 16))


# Not mamba2, whose layer bamba has: without its authors' kernels Inductor takes a minute for it.
@each_of(qwen3_moe, bamba, t5, bert)
@compile_contract(fullgraph=True, max_graphs=1, max_recompiles=0, lanes=["aot", "autocast"])
def test_trains_in_one_graph(compile_lane: CompileLane, family: Callable[[Any], nn.Module]) -> None:
    """Each family trains on its own loss in one graph and one backward graph."""
    seen = compile_lane.train(made(family), texts(16, 16, 16))

    assert seen.backward_graphs == 1


@each_of(t5, bert)
@compile_contract(fullgraph=True, max_graphs=2, max_recompiles=1, lanes=["float32"])
def test_another_length(compile_lane: CompileLane, family: Callable[[Any], nn.Module]) -> None:
    """The second length compiles once more, and that graph serves every later one.

    Mamba2 and Bamba are not among them: the first length that does not fill their chunks of 8 compiles once more.
    """
    with torch.no_grad():
        compile_lane.run(made(family).eval(), *texts(16, 24, 9, 33))


@compile_contract(max_graph_breaks=4, max_eager_frames=4, lanes=["aot"])
def test_t5_with_a_cache_breaks_where_it_is_made(compile_lane: CompileLane) -> None:
    """Known breaks: a cache for the decoder is made in the forward; on torch 2.11 its copy.deepcopy is one of them."""
    model = made(t5).eval()
    model.config.use_cache = model.decoder.config.use_cache = True
    words = [torch.randint(WORDS, (2, 16)) for _ in range(3)]

    compile_lane.run(model, *(call(input_ids=each, decoder_input_ids=each) for each in words))


@compile_contract(fullgraph=True, max_graphs=1, max_recompiles=0, lanes=["bf16"])
def test_experts_by_a_grouped_product(compile_lane: CompileLane) -> None:
    """torch's own grouped product, for which bfloat16 is asked, keeps the model in one graph."""
    model = qwen3_moe(pytest.importorskip("transformers"), experts="grouped_mm")

    with torch.no_grad():
        compile_lane.run(model.eval(), *texts(16, 16, 16))


def test_the_router_is_far_from_a_tie() -> None:
    """What the contracts of qwen3_moe rest on: over the steps that they train, no rounding can move a token.

    An ordinary test.
    """
    model = made(qwen3_moe)
    batches = texts(16, 16, 16, 16)

    def steps(twin: nn.Module) -> None:
        optimizer = torch.optim.SGD(twin.parameters(), lr=0.01)
        for each in batches:
            twin(**each.kwargs).loss.backward()
            optimizer.step()
            optimizer.zero_grad()

    margin = smallest_margin(model, ["model.layers.0.mlp.gate"], steps, logits_of=lambda output: output[0])

    assert margin > DECIDED
