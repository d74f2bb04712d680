"""Kernels by name: whose they are, what they are called for short, and which attention they are. No GPU is needed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pytest_compilecontract.measure.probes.kernels import Row, attention_of, classify, read_profile, short_name

ELEMENTWISE = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::sin_kernel_cuda(at::TensorIteratorBase&)::"
    "{lambda()#2}::operator()() const::{lambda()#2}::operator()() const::{lambda(float)#1}, std::array<char*, 2ul> >"
    "(int, at::native::sin_kernel_cuda(at::TensorIteratorBase&), std::array<char*, 2ul>)"
)
LAYER_NORM = (
    "void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<float, float, false>(int, float, "
    "float const*, float const*, float const*, float*, float*, float*)"
)
FLASH = (
    "void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<64, 128, 128, 4, false, false, "
    "cutlass::bfloat16_t, Flash_kernel_traits<64, 128, 128, 4, cutlass::bfloat16_t> >, false, false, false, false, "
    "false, true, false, false>(pytorch_flash::Flash_fwd_params)"
)
EFFICIENT = "fmha_cutlassF_bf16_aligned_64x128_rf_sm80(PyTorchMemEffAttention::AttentionKernel<cutlass::bfloat16_t>)"
CUDNN = "cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7_64x128x64_4x1x1_kernel0_0"


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        pytest.param("triton_poi_fused_add_relu_sin_0", "triton", id="made by Inductor"),
        pytest.param("triton_tem_fused_mm_0", "triton", id="a template of Inductor's"),
        pytest.param("_rms_norm_fwd", "triton", id="a Triton kernel of the user's"),
        pytest.param(ELEMENTWISE, "torch", id="elementwise of torch"),
        pytest.param(LAYER_NORM, "torch", id="in a nameless namespace"),
        pytest.param("sm90_xmma_gemm_f32f32_tf32f32_f32_tn_n_tilesize64x64x32", "library", id="cuBLAS"),
        pytest.param("nvjet_tst_128x64_64x8_2x1_v_bz_coopA_NNT", "library", id="newer cuBLAS"),
        pytest.param("void cutlass::Kernel2<cutlass_80_tensorop_s1688gemm>(int)", "library", id="CUTLASS"),
        pytest.param("void cudnn::ops::nchwToNhwcKernel<float, float>(int)", "library", id="cuDNN"),
        pytest.param(FLASH, "library", id="flash attention"),
        pytest.param(CUDNN, "library", id="cuDNN's attention"),
        pytest.param("Memcpy DtoD (Device -> Device)", "copy", id="a copy"),
        pytest.param("Memset (Device)", "fill", id="a fill"),
    ],
)
def test_whose_a_kernel_is(name: str, kind: str) -> None:
    assert classify(name) == kind


@pytest.mark.parametrize(
    ("name", "short"),
    [
        pytest.param(ELEMENTWISE, "at::native::vectorized_elementwise_kernel", id="template arguments and parameters"),
        pytest.param(LAYER_NORM, "at::native::vectorized_layer_norm_kernel", id="a nameless namespace"),
        pytest.param("triton_red_fused_sum_1", "triton_red_fused_sum_1", id="bare"),
        pytest.param("x" * 100, "x" * 77 + "...", id="too long"),
        pytest.param("<odd>", "<odd>", id="nothing left"),
    ],
)
def test_a_short_name(name: str, short: str) -> None:
    assert short_name(name) == short


@pytest.mark.parametrize(
    ("name", "backend"),
    [
        pytest.param(FLASH, "flash", id="flash"),
        pytest.param(EFFICIENT, "efficient", id="efficient"),
        pytest.param(CUDNN, "cudnn", id="cudnn, whose name says flash too"),
        pytest.param("triton_tem_fused_flex_attention_0", "flex", id="flex"),
        pytest.param(LAYER_NORM, None, id="no attention"),
    ],
)
def test_which_attention_a_kernel_is(name: str, backend: str | None) -> None:
    assert attention_of(name) == backend


def device(name: str) -> Row:
    return Row(name=name, device=True)


def test_a_profile_is_kernels_copies_fills_and_launches_of_graphs() -> None:
    rows = [
        Row(name="cudaGraphLaunch", device=False),
        Row(name="cudaLaunchKernel", device=False),
        Row(name="Torch-Compiled Region: 0/0", device=True, range=True),
        Row(name="## Call CompiledFxGraph f3 ##", device=True),
        device("triton_poi_fused_sin_0"),
        device("triton_poi_fused_sin_0"),
        device("nvjet_tst_128x64"),
        device(ELEMENTWISE),
        device("Memcpy HtoD (Pageable -> Device)"),
        device("Memset (Device)"),
    ]

    profile = read_profile(rows)

    found = profile.kernels
    assert profile.launches == 1
    assert (found.total, found.triton, found.library, found.copies, found.fills) == (4, 2, 1, 1, 1)
    assert found.names == {
        "at::native::vectorized_elementwise_kernel": 1,
        "nvjet_tst_128x64": 1,
        "triton_poi_fused_sin_0": 2,
    }
    assert found.attention == ()


@pytest.mark.parametrize(
    ("rows", "backends"),
    [
        pytest.param([Row(name="aten::_scaled_dot_product_attention_math", device=False)], ("math",), id="math"),
        pytest.param(
            [Row(name="aten::_scaled_dot_product_flash_attention_backward", device=False), device(FLASH)],
            ("flash",),
            id="by operator and by kernel",
        ),
        pytest.param([device(CUDNN)], ("cudnn",), id="by kernel alone, as a replayed graph shows it"),
        pytest.param([device(ELEMENTWISE)], (), id="none"),
    ],
)
def test_the_attention_that_ran_is_named(rows: list[Row], backends: tuple[str, ...]) -> None:
    assert read_profile(rows).kernels.attention == backends


# Steps as torch 2.11.0 profiled them on an H100: [name, is on the device, is a range]. The CPU's rows are those that
# tell of attention and of CUDA graphs.
PROFILED = json.loads(Path(__file__).with_name("profiled_rows.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    ("step", "counts", "attention", "launches"),
    [
        pytest.param("pointwise eager", (4, 0, 0, 0, 0), (), 0, id="pointwise-eager"),
        pytest.param("pointwise inductor", (1, 1, 0, 0, 0), (), 0, id="pointwise-compiled"),
        # The input is copied into the graph's own buffer first.
        pytest.param("pointwise cudagraphs", (2, 1, 0, 0, 0), (), 1, id="pointwise-replayed"),
        pytest.param("mlp train eager", (29, 0, 8, 1, 0), (), 0, id="training-eager"),
        pytest.param("mlp train inductor", (31, 9, 8, 1, 0), (), 0, id="training-compiled"),
        pytest.param("mlp train cudagraphs", (33, 9, 8, 1, 0), (), 2, id="training-replayed"),
        pytest.param("conv bfloat16", (5, 0, 4, 0, 0), (), 0, id="convolution"),
        pytest.param("attention FLASH_ATTENTION", (11, 0, 4, 0, 0), ("flash",), 0, id="flash"),
        pytest.param("attention EFFICIENT_ATTENTION", (9, 0, 2, 0, 0), ("efficient",), 0, id="efficient"),
        pytest.param("attention CUDNN_ATTENTION", (10, 0, 4, 0, 2), ("cudnn",), 0, id="cudnn"),
        pytest.param("attention MATH", (31, 0, 6, 0, 0), ("math",), 0, id="math"),
        pytest.param("sort", (3, 0, 0, 2, 0), (), 0, id="sort"),
        pytest.param("fft", (2, 0, 1, 0, 0), (), 0, id="fft"),
    ],
)
def test_a_recorded_step(step: str, counts: tuple[int, ...], attention: tuple[str, ...], launches: int) -> None:
    profile = read_profile(Row(name=name, device=device, range=marks) for name, device, marks in PROFILED[step])

    found = profile.kernels
    assert (found.total, found.triton, found.library, found.copies, found.fills) == counts
    assert found.attention == attention
    assert profile.launches == launches
    assert sum(found.names.values()) == found.total
