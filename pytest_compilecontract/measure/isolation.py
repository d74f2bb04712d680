"""Isolation: a lane starts from a clean process state, and the state is restored however the lane ends."""

from __future__ import annotations

import contextlib
import functools
import importlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from pytest_compilecontract.errors import UsageError
from pytest_compilecontract.facts.lanes import Lane

from .probes import randomness
from .probes.caches import check_processor, own_caches
from .probes.counters import counters as dynamo_counters
from .probes.device import device_of
from .probes.modes import Modes, autocast_nesting, set_autocast_nesting, set_inference_mode
from .probes.settings import COMPILER, DYNAMO, INDUCTOR, MODULES, ConfigModule, config_module, default_of
from .probes.stance import ambient, forget_examples, stance_kept

SEED = 0
# Of Inductor: whether it believes that the processor has what it says it has.
VECTORS = "cpp.vec_isa_ok"
# Settings that would make a count depend on what ran before, in another test or another process.
EXACT: dict[str, dict[str, object]] = {
    # A warm precompile cache loads code without any attempt to compile it.
    DYNAMO: {
        "caching_precompile": False,
        "automatic_dynamic_local_pgo": False,
        "automatic_dynamic_remote_pgo": False,
    },
    # With a job id, profile-guided shapes of an earlier process make the first compile dynamic.
    COMPILER: {"job_id": None},
}


# Why each differs from the setting outside the test, if a project has set it.
WHY_EXACT = "what an earlier test or process compiled would change the counts"


@contextlib.contextmanager
def isolated(
    lane: Lane | None, defaults: Mapping[str, object] | None = None, *, again: bool = False
) -> Iterator[tuple[str, ...]]:
    """Set up and restore everything that a test body in a lane needs. None: a test that compiles by itself.

    `defaults` are settings by their full names, in place of torch's defaults; settings of the lane or the test win.
    `again`: the lane has the compile caches of the process, which are those that its first run left.
    Yields sentences on the project's settings that differ inside. A lane determines how it is compiled and run; a
    test that compiles by itself has the stance, the grad mode and the default dtype that its project has set.

    Saved and put back: random generators, grad and inference mode, default dtype and device, determinism, matmul
    precision, autocast, anomaly mode, threads, switches of torch's backends, the stance, Dynamo's counters, and every
    Dynamo, Inductor and functorch setting. Modes and hooks that the body leaves on are taken off. Dynamo's compiled
    code is dropped before and after. Not put back: functions given to `torch.compiler.allow_in_graph`, which torch
    knows by their ids alone.
    """
    replaced = _replaced(lane, defaults or {})
    with contextlib.ExitStack() as stack:
        stack.enter_context(_process_state())
        # A test that compiles by itself is started again only if Inductor compiled something of it.
        if again if lane is None else _has_kernels_for_the_cpu(lane):
            check_processor()
        stack.enter_context(_settings(lane, defaults or {}))
        if not again and (lane is None or lane.cache == "lane"):
            stack.enter_context(own_caches())
        # Left again, each puts back the stance from before, whatever the test has set.
        stack.enter_context(stance_kept() if lane is None else torch.compiler.set_stance("default"))
        _reset()
        stack.callback(_reset)
        if lane is not None:
            torch.set_grad_enabled(True)
            torch.set_default_dtype(_dtype_of(lane))
        if lane is not None and lane.matmul_precision not in (None, torch.get_float32_matmul_precision()):
            torch.set_float32_matmul_precision(lane.matmul_precision)
        randomness.seed(SEED)
        yield replaced


def _has_kernels_for_the_cpu(lane: Lane) -> bool:
    """Whether Inductor compiles the lane for this processor, with what torch itself finds out about it."""
    return lane.backend == "inductor" and VECTORS not in lane.inductor and device_of(lane).type == "cpu"


def _dtype_of(lane: Lane) -> torch.dtype:
    dtype: torch.dtype = getattr(torch, lane.dtype or "float32")
    return dtype


def _replaced(lane: Lane | None, defaults: Mapping[str, object]) -> tuple[str, ...]:
    """Settings of the project, for all of its tests or in a fixture, and the values that a measurement uses instead."""
    found: list[str] = []
    if lane is not None and not lane.reference and (stance := ambient()):
        found.append(f"the stance is {stance} outside the test and 'default' in the lane")
    if lane is not None and not torch.is_grad_enabled():
        found.append("gradients are off outside the test and on in the lane")
    if lane is not None and torch.get_default_dtype() != (dtype := _dtype_of(lane)):
        found.append(f"the default dtype is {torch.get_default_dtype()} outside the test and {dtype} in the lane")
    for name, values in EXACT.items():
        module = config_module(name)
        for key, value in values.items():
            now, known = getattr(module, key, value), default_of(module, key)
            if known is not None and now not in (value, known.default) and f"{name}.{key}" not in defaults:
                found.append(f"{name}.{key} is {now!r} outside the test and {value!r} in it: {WHY_EXACT}")
    return tuple(found)


def _reset() -> None:
    torch.compiler.reset()
    forget_examples()


def _set_default_device(device: torch.device) -> None:
    # None takes torch's function mode away, which "cpu" would leave in place, and in every guard.
    torch.set_default_device(None if device == torch.device("cpu") else device)


def _set_deterministic(enabled: bool) -> None:
    torch.use_deterministic_algorithms(enabled, warn_only=torch.is_deterministic_algorithms_warn_only_enabled())


def _set_warn_only(warn_only: bool) -> None:
    torch.use_deterministic_algorithms(torch.are_deterministic_algorithms_enabled(), warn_only=warn_only)


Setting = tuple[Callable[[], object], Callable[[Any], object]]


def _if_said(read: Callable[[], object], write: Callable[[Any], object]) -> Setting:
    """A setting that torch may refuse to tell, since it was set by backend or in a newer way: it is left alone then."""

    def told() -> object:
        try:
            return read()
        except RuntimeError:
            return None

    def put(value: object) -> None:
        if value is not None:
            write(value)

    return told, put


def _attribute(owner: object, name: str) -> Setting:
    return _if_said(functools.partial(getattr, owner, name, None), functools.partial(setattr, owner, name))


# How each is read, in torch's words, and set.
_GLOBAL: dict[str, Setting] = {
    # First, for it moves the grad mode.
    "torch.is_inference_mode_enabled()": (torch.is_inference_mode_enabled, set_inference_mode),
    "torch.is_grad_enabled()": (torch.is_grad_enabled, torch.set_grad_enabled),
    "torch.get_default_dtype()": (torch.get_default_dtype, torch.set_default_dtype),
    **{
        f"torch.is_autocast_enabled({device!r})": (
            functools.partial(torch.is_autocast_enabled, device),
            functools.partial(torch.set_autocast_enabled, device),
        )
        for device in ("cpu", "cuda")
    },
    **{
        f"torch.get_autocast_dtype({device!r})": (
            functools.partial(torch.get_autocast_dtype, device),
            functools.partial(torch.set_autocast_dtype, device),
        )
        for device in ("cpu", "cuda")
    },
    "torch.autocast, how often entered": (autocast_nesting, set_autocast_nesting),
    "torch.get_num_threads()": (torch.get_num_threads, torch.set_num_threads),
    "torch.is_anomaly_enabled()": (torch.is_anomaly_enabled, torch.set_anomaly_enabled),
    "torch.get_default_device()": (torch.get_default_device, _set_default_device),
    "torch.get_float32_matmul_precision()": _if_said(
        torch.get_float32_matmul_precision, torch.set_float32_matmul_precision
    ),
    "torch.are_deterministic_algorithms_enabled()": (torch.are_deterministic_algorithms_enabled, _set_deterministic),
    "torch.is_deterministic_algorithms_warn_only_enabled()": (
        torch.is_deterministic_algorithms_warn_only_enabled,
        _set_warn_only,
    ),
    # Which kernels run.
    "torch.backends.mha.get_fastpath_enabled()": (
        torch.backends.mha.get_fastpath_enabled,
        torch.backends.mha.set_fastpath_enabled,
    ),
    **{
        f"torch.backends.cuda.{name}_sdp_enabled()": (
            getattr(torch.backends.cuda, f"{name}_sdp_enabled"),
            getattr(torch.backends.cuda, f"enable_{name}_sdp"),
        )
        for name in ("flash", "mem_efficient", "math", "cudnn")
    },
    **{
        f"torch.backends.{backend}.{name}": _attribute(getattr(torch.backends, backend), name)
        for backend, names in (
            ("cudnn", ("enabled", "benchmark", "deterministic", "allow_tf32")),
            ("mkldnn", ("enabled", "deterministic")),
        )
        for name in names
    },
    **{
        f"torch.backends.cuda.matmul.{name}": _attribute(torch.backends.cuda.matmul, name)
        for name in ("allow_fp16_reduced_precision_reduction", "allow_bf16_reduced_precision_reduction")
    },
}


class GlobalSettings:
    """A snapshot of torch's process-wide and thread-wide settings that code may change."""

    def __init__(self) -> None:
        self._saved = {name: read() for name, (read, _) in _GLOBAL.items()}

    def left(self) -> dict[tuple[str, str], str]:
        """What differs now, with values in a form that can be compared."""
        return {("setting left", name): str(now) for name, now in self._changed()}

    def put_back(self) -> None:
        """Restore what differs now.

        What is unchanged is not set again: setting one precision changes others, and with them the keys of torch's
        caches.
        """
        for name, _ in self._changed():
            _, write = _GLOBAL[name]
            write(self._saved[name])

    def _changed(self) -> Iterator[tuple[str, object]]:
        for name, (read, _) in _GLOBAL.items():
            if (now := read()) != self._saved[name]:
                yield name, now


@contextlib.contextmanager
def _process_state() -> Iterator[None]:
    generators = randomness.generators()
    modes, settings = Modes(), GlobalSettings()
    counters = dynamo_counters()
    saved = {group: dict(values) for group, values in counters.items()}
    gpu = torch.cuda.current_device() if torch.cuda.is_initialized() else None  # type: ignore[no-untyped-call]
    counters.clear()
    try:
        yield
    finally:
        modes.take_off()
        counters.clear()
        for group, values in saved.items():
            counters[group].update(values)
        settings.put_back()
        if gpu is not None and torch.cuda.current_device() != gpu:
            torch.cuda.set_device(gpu)
        randomness.put_back(generators)


@contextlib.contextmanager
def _settings(lane: Lane | None, defaults: Mapping[str, object]) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        for name in MODULES:
            if (module := config_module(name)) is not None:
                stack.enter_context(_kept(module))
        stack.enter_context(given(defaults))
        stack.enter_context(exact())
        if lane is not None:
            for name, values in overrides(lane).items():
                stack.enter_context(importlib.import_module(name).patch(dict(values)))
        yield


@contextlib.contextmanager
def given(defaults: Mapping[str, object]) -> Iterator[None]:
    """Settings in place of torch's own defaults, by their full names.

    Raises:
        UsageError: this torch has no such setting.
    """
    with contextlib.ExitStack() as stack:
        for full_name, value in defaults.items():
            name = next(name for name in MODULES if full_name.startswith(f"{name}."))
            _give(stack, name, full_name.removeprefix(f"{name}."), value)
        yield


def _give(stack: contextlib.ExitStack, name: str, key: str, value: object) -> None:
    module = importlib.import_module(name)
    if key not in module.get_config_copy():
        raise UsageError(f"torch {torch.__version__} has no setting {name}.{key}")
    # A tuple or a set is written as a list in what is recorded.
    now = module.get_config_copy()[key]
    fitted = (
        type(now)(value) if isinstance(now, (list, tuple, set)) and isinstance(value, (list, tuple, set)) else value
    )
    stack.enter_context(module.patch({key: fitted}))


@contextlib.contextmanager
def exact() -> Iterator[None]:
    """The settings that exact counts require."""
    with contextlib.ExitStack() as stack:
        for name, values in EXACT.items():
            if (module := config_module(name)) is not None:
                known = {key: value for key, value in values.items() if hasattr(module, key)}
                stack.enter_context(module.patch(known))
        yield


def overrides(lane: Lane) -> dict[str, Mapping[str, object]]:
    """The settings that a lane overrides, by the module that holds them."""
    tables = {DYNAMO: lane.dynamo, INDUCTOR: lane.inductor}
    return {name: values for name, values in tables.items() if values}


def missing_setting(lane: Lane) -> str | None:
    """The setting that the lane overrides and this torch does not have, or None."""
    for name, values in overrides(lane).items():
        known = importlib.import_module(name).get_config_copy()
        for key in values:
            if key not in known:
                return f"torch {torch.__version__} has no setting {name}.{key}"
    return None


@contextlib.contextmanager
def _kept(module: ConfigModule) -> Iterator[None]:
    """Put back every setting that was changed inside."""
    before = module.get_config_copy()
    try:
        yield
    finally:
        put_settings_back(module, before)


def put_settings_back(module: ConfigModule, before: Mapping[str, object]) -> None:
    """Restore a config module to the copy that was taken of it."""
    after = module.get_config_copy()
    for key, value in before.items():
        if key in after and after[key] != value:
            setattr(module, key, value)
