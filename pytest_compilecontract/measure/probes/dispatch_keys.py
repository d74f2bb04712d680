"""Dispatch keys: what it means that a tensor has a key, or no longer has it.

torch guards the set of keys of each tensor, including those that the thread adds (`LocalState::apply` in
torch/csrc/dynamo/guards.cpp), and reports both sets in full. c10/core/DispatchKey.h documents each key.
"""

from __future__ import annotations

import re

_SETS = re.compile(r"expected DispatchKeySet\((?P<expected>[^()]*)\), actual DispatchKeySet\((?P<actual>[^()]*)\)")
_DEVICES = (
    "CPU|CUDA|HIP|XLA|MPS|IPU|XPU|HPU|VE|Lazy|MTIA|MAIA|PrivateUse1|PrivateUse2|PrivateUse3|Meta|FPGA|Vulkan|Metal"
)
# What a tensor with the key is, and where torch says so. The first match is used.
_MEANINGS: tuple[tuple[str, str], ...] = (
    # c10/core/InferenceMode.h
    (r"Autograd\w+", "missing only in tensors made under torch.inference_mode()"),
    (r"ADInplaceOrView", "missing only under torch.inference_mode(), and in tensors made there"),
    # aten/src/ATen/autocast_mode.h
    (r"Autocast\w+", "used under torch.autocast"),
    # aten/src/ATen/functorch/Interpreter.h, and the keys' own notes in DispatchKey.h
    (r"FuncTorchBatched|BatchedNestedTensor|Batched|FuncTorchVmapMode|VmapMode", "batched by torch.vmap"),
    (r"FuncTorchGradWrapper", "inside torch.func.grad, vjp or jvp"),
    (r"FuncTorchDynamicLayer(?:Front|Back)Mode", "inside a transform of torch.func"),
    (r"Functionalize", "functionalized (torch.func.functionalize, or torch's own tracing)"),
    # aten/src/ATen/ConjugateFallback.cpp, NegateFallback.cpp, ZeroTensorFallback.cpp
    (r"Conjugate", "a lazy conjugate (torch.conj), which resolve_conj() makes a plain tensor"),
    (r"Negative", "a lazy negative (.imag of a conjugate), which resolve_neg() makes a plain tensor"),
    (r"ZeroTensor", "zeros without memory, as forward-mode autograd makes them"),
    # c10/core/TensorImpl.h (`set_python_dispatch`) and torch/csrc/utils/python_dispatch.cpp
    (r"Python|PythonTLSSnapshot", "a subclass with __torch_dispatch__, or used under a TorchDispatchMode"),
    (r"PythonDispatcher|PreDispatch", "used under a Python dispatcher (torch's own tracing)"),
    (r"Fake|DeferredInit", "a tensor without data"),
    (r"Tracer", "used under torch.jit.trace"),
    # c10/core/TensorOptions.h (`computeDispatchKey`): from layout, dtype and device
    (r"SparseCsr\w*", "compressed sparse (layout torch.sparse_csr or a similar one)"),
    (r"Sparse\w*", "sparse (layout torch.sparse_coo)"),
    (r"NestedTensor\w*", "a nested tensor"),
    (r"Quantized\w*", "quantized"),
    (r"Mkldnn\w*", "in a oneDNN layout"),
    (rf"(?:{_DEVICES})", "on device {key}"),
)


def meaning_of(guard: str) -> str:
    """What differs between the two sets of a dispatch-key guard, in plain words; empty for another guard."""
    found = _SETS.search(guard)
    if found is None:
        return ""
    expected, actual = (_keys(found[side]) for side in ("expected", "actual"))
    came = [key for key in actual if key not in expected]
    went = [key for key in expected if key not in actual]
    if any(key.startswith("Autograd") for key in came) and any(key.startswith("Autograd") for key in went):
        # The autograd of another device or layout: that one has a key of its own.
        came, went = ([key for key in keys if not key.startswith("Autograd")] for keys in (came, went))
    said = (f"dispatch keys {how}: {_meant(keys)}" for how, keys in (("added", came), ("removed", went)) if keys)
    return "; ".join(said)


def _keys(listed: str) -> list[str]:
    return [key.strip() for key in listed.split(",") if key.strip()]


def _meant(keys: list[str]) -> str:
    """The keys with their meanings, grouped by meaning."""
    by_meaning: dict[str, list[str]] = {}
    for key in keys:
        meant = next((text for pattern, text in _MEANINGS if re.fullmatch(pattern, key)), "")
        by_meaning.setdefault(meant.format(key=key), []).append(key)
    return ", ".join(f"{', '.join(alike)}{f' ({meant})' if meant else ''}" for meant, alike in by_meaning.items())
