"""Whole models of transformers and timm, with what users vary varied: lengths, batches, trained and inferred.

    ci/sweep --record docs/models 2.11.0 2.12.1 2.13.0 2.14.1 2.15.0 -- benchmarks/whole_models.py

Too slow for every run: docs/drift-log.md tells what five releases of torch make of it. The limits ask for nothing, so
that a lane is red for wrong numbers alone, and what differs between two releases is drift.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from contracts.models.routing import decide
from contracts.test_timm import CLASSES, convnext, resnet, swin, vit
from contracts.test_timm import made as made_of_timm
from contracts.test_transformers import DECODER, WIDTH, WORDS, bamba, bert, llama, mamba2, qwen3_moe, t5
from contracts.test_transformers import made as made_of_transformers
from pytest_compilecontract import call, compile_contract
from pytest_compilecontract.measure.compile_lane import CompileLane

MANY = 1000
ASKS_NOTHING: dict[str, Any] = {"max_eager_frames": MANY, "min_ops_captured": 0, "allow_recompile_limit": True}
Made = Callable[[Any], nn.Module]


def gpt2(of: Any) -> nn.Module:
    """Positions that are learned, and convolutions that are products."""
    still = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    sizes = {"n_embd": WIDTH, "n_layer": 1, "n_head": 4, "n_positions": 64}
    return of.GPT2LMHeadModel(of.GPT2Config(vocab_size=WORDS, use_cache=False, **sizes, **still))


def gemma3(of: Any) -> nn.Module:
    """A layer whose attention sees a window, and one that sees all."""
    sizes = DECODER | {"num_hidden_layers": 2, "head_dim": 8, "sliding_window": 8}
    kinds = ["sliding_attention", "full_attention"]
    return of.Gemma3ForCausalLM(of.Gemma3TextConfig(**sizes, layer_types=kinds))


def deepseek_v3(of: Any) -> nn.Module:
    """Attention over a latent, and a layer of experts after a dense one."""
    attention = {"q_lora_rank": 16, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 8}
    experts = {"n_routed_experts": 4, "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1, "n_shared_experts": 1}
    sizes = DECODER | {"num_hidden_layers": 2, "num_key_value_heads": 4, "moe_intermediate_size": 32}
    config = of.DeepseekV3Config(
        **sizes, **attention, **experts, first_k_dense_replace=1, experts_implementation="batched_mm"
    )
    model = of.DeepseekV3ForCausalLM(config)
    decide(model.model.layers[1].mlp.gate.weight, model.model.embed_tokens.weight, times=4)
    return model


def efficientnet(of: Any) -> nn.Module:
    """Depthwise convolutions, each channel weighed by a squeeze."""
    return of.efficientnet.EfficientNet(
        of._efficientnet_builder.decode_arch_def([["ds_r1_k3_s1_e1_c8_se0.25"], ["ir_r1_k3_s2_e4_c16_se0.25"]]),
        num_classes=CLASSES,
        stem_size=8,
        num_features=32,
    )


def mixer(of: Any) -> nn.Module:
    """Products over patches, then over channels."""
    return of.MlpMixer(img_size=64, patch_size=16, num_classes=CLASSES, embed_dim=32, num_blocks=1)


def each_of(*families: Made) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("family", families, ids=[family.__name__ for family in families])


each_of_text = each_of(llama, gpt2, gemma3, qwen3_moe, deepseek_v3, mamba2, bamba, t5, bert)
each_of_images = each_of(vit, swin, resnet, convnext, efficientnet, mixer)

# Rows and length of each text; rows of images.
LENGTHS = ((2, 16), (2, 24), (2, 9), (2, 33))
ROWS = ((2, 16), (3, 16), (1, 16), (5, 16))
BOTH = ((2, 16), (2, 24), (3, 24))
BATCHES = (4, 3, 1, 6)

traced = compile_contract(**ASKS_NOTHING, lanes=["capture", "aot"])
lowered = compile_contract(**ASKS_NOTHING, lanes=["inductor", "dynamic"])


def texts(sizes: tuple[tuple[int, int], ...]) -> list[call]:
    words = [torch.randint(WORDS, size) for size in sizes]
    return [call(input_ids=each, labels=each) for each in words]


def images(batches: tuple[int, ...]) -> list[tuple[Tensor, Tensor]]:
    return [(torch.randn(rows, 3, 64, 64), torch.randint(CLASSES, (rows,))) for rows in batches]


@traced
@each_of_text
def test_text_of_several_lengths_is_inferred(compile_lane: CompileLane, family: Made) -> None:
    """One model, texts of four lengths."""
    compile_lane.run(made_of_transformers(family).eval(), *texts(LENGTHS))


@traced
@each_of_text
def test_text_in_several_batches_is_inferred(compile_lane: CompileLane, family: Made) -> None:
    """One model, four batch sizes, one of them a single text."""
    compile_lane.run(made_of_transformers(family).eval(), *texts(ROWS))


@traced
@each_of_text
def test_text_of_several_lengths_is_trained(compile_lane: CompileLane, family: Made) -> None:
    """Four steps, each of another length."""
    compile_lane.train(made_of_transformers(family), texts(LENGTHS))


@traced
@each_of_text
def test_text_in_several_batches_is_trained(compile_lane: CompileLane, family: Made) -> None:
    """Four steps, each of another batch size."""
    compile_lane.train(made_of_transformers(family), texts(ROWS))


@lowered
@each_of_text
def test_text_is_inferred_by_inductor(compile_lane: CompileLane, family: Made) -> None:
    """Another length, then another batch size."""
    compile_lane.run(made_of_transformers(family).eval(), *texts(BOTH))


@lowered
@each_of_text
def test_text_is_trained_by_inductor(compile_lane: CompileLane, family: Made) -> None:
    """Another length, then another batch size, each a step."""
    compile_lane.train(made_of_transformers(family), texts(BOTH))


@traced
@each_of_images
def test_images_are_inferred(compile_lane: CompileLane, family: Made) -> None:
    """One model, four batch sizes, one of them a single image."""
    compile_lane.run(made_of_timm(family).eval(), *((image,) for image, _ in images(BATCHES)))


@traced
@each_of_images
def test_images_are_trained(compile_lane: CompileLane, family: Made) -> None:
    """Three steps, each of another batch size."""
    compile_lane.train(made_of_timm(family), images((4, 3, 6)), loss=F.cross_entropy)


@lowered
@each_of_images
def test_images_are_inferred_by_inductor(compile_lane: CompileLane, family: Made) -> None:
    """Two batch sizes."""
    compile_lane.run(made_of_timm(family).eval(), *((image,) for image, _ in images((4, 3))))


@lowered
@each_of_images
def test_images_are_trained_by_inductor(compile_lane: CompileLane, family: Made) -> None:
    """Two steps of two batch sizes."""
    compile_lane.train(made_of_timm(family), images((4, 3)), loss=F.cross_entropy)
