"""Modes and hooks that code may leave on in a thread: detecting and removing them.

A context that is entered and never left (TorchDispatchMode, TorchFunctionMode, a transform of torch.func, hooks for
saved tensors), and global module hooks. They would affect everything that runs afterwards, and torch has no public API
to list them.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

# More than this one left on are left alone.
MOST = 100
_GLOBAL_HOOKS = (
    "_global_forward_pre_hooks",
    "_global_forward_hooks",
    "_global_backward_pre_hooks",
    "_global_backward_hooks",
    "_global_buffer_registration_hooks",
    "_global_module_registration_hooks",
    "_global_parameter_registration_hooks",
)
_BESIDE_HOOKS = ("_global_forward_hooks_always_called", "_global_forward_hooks_with_kwargs")


@dataclass(frozen=True, kw_only=True, slots=True)
class _Kind:
    """One kind of stack: its current entries, how to pop the last, and its `name`."""

    read: Callable[[], list[object]]
    take_off: Callable[[object], object]
    name: Callable[[object], str]


class Modes:
    """The modes and hooks that are on in this thread. `missing` says, by kind, which this torch cannot list."""

    def __init__(self) -> None:
        self.missing: dict[str, str] = {}
        self._before: dict[str, list[object]] = {}
        for kind, each in _KINDS.items():
            try:
                self._before[kind] = each.read()
            except (ImportError, AttributeError, TypeError, RuntimeError) as error:
                self.missing[kind] = f"torch does not tell which modes are on ({type(error).__name__}: {error})"

    def left(self) -> list[str]:
        """What was added since, the last first."""
        return [_KINDS[kind].name(each) for kind, each in self._left()]

    def take_off(self) -> list[str]:
        """Remove it; returns what it was."""
        found: list[str] = []
        for kind, before in self._before.items():
            for _ in range(MOST):
                now = _KINDS[kind].read()
                if _is_below(now, before):
                    break
                found.append(_KINDS[kind].name(now[-1]))
                _KINDS[kind].take_off(now[-1])
                if len(_KINDS[kind].read()) >= len(now) and kind != "saved tensors":
                    break
        return found

    def _left(self) -> Iterator[tuple[str, object]]:
        for kind, before in self._before.items():
            now = _KINDS[kind].read()
            if not _is_below(now, before):
                yield from ((kind, each) for each in reversed(now) if not any(each is other for other in before))


def _is_below(now: list[object], before: list[object]) -> bool:
    """Whether nothing was added; what other code has removed cannot be restored."""
    return all(any(each is other for other in before) for each in now)


def _class(mode: object) -> str:
    return f"{type(mode).__module__}.{type(mode).__qualname__}".removeprefix("builtins.")


# Dispatch modes, of torch's own (FakeTensorMode) too.


def _dispatch_modes() -> list[object]:
    return list(importlib.import_module("torch.utils._python_dispatch")._get_current_dispatch_mode_stack())


def _leave_dispatch_mode(mode: object) -> None:
    # Not by its own `__exit__`, which may do what it likes, as print a table.
    importlib.import_module("torch.utils._python_dispatch").TorchDispatchMode.__exit__(mode, None, None, None)


# Function modes. That of the default device is a setting, and put back as one.


def _function_modes() -> list[object]:
    default = getattr(getattr(torch, "_GLOBAL_DEVICE_CONTEXT", None), "device_context", None)
    stack = importlib.import_module("torch.overrides")._get_current_function_mode_stack()
    return [each for each in stack if each is not default]


def _leave_function_mode(mode: object) -> None:
    overrides = importlib.import_module("torch.overrides")
    stack = overrides._get_current_function_mode_stack()
    above = stack[[each is mode for each in stack].index(True) + 1 :]
    for _ in (*above, mode):
        overrides._pop_mode()
    for each in above:
        overrides._push_mode(each)
    device: Any = importlib.import_module("torch.utils._device")
    if isinstance(mode, device.DeviceContext):
        # `with torch.device(...)` puts it there without entering it.
        device.CURRENT_DEVICE = getattr(mode, "old_device", device.CURRENT_DEVICE)


# Transforms of torch.func: levels, known by number.


def _levels() -> list[object]:
    return [_Level.of(number) for number in range(torch._C._functorch.get_dynamic_layer_stack_depth())]


class _Level:
    """A level of torch.func, as the same object each time."""

    _known: dict[int, _Level] = {}  # noqa: RUF012 - one for each number, for good

    @classmethod
    def of(cls, number: int) -> _Level:
        return cls._known.setdefault(number, cls())


def _leave_level(_level: object) -> None:
    torch._C._functorch.pop_dynamic_layer_stack()


# Forward AD has one level, or none.


def _dual_levels() -> list[object]:
    return [_DUAL] if importlib.import_module("torch.autograd.forward_ad")._current_level >= 0 else []


def _leave_dual_level(_level: object) -> None:
    importlib.import_module("torch.autograd.forward_ad").exit_dual_level()


_DUAL = object()


# Hooks for saved tensors: only the last pair can be seen.


def _saved_tensors_hooks() -> list[object]:
    top = torch._C._autograd._top_saved_tensors_default_hooks(True)
    return [] if top is None else [top[0]]


def _leave_saved_tensors_hooks(_hook: object) -> None:
    torch._C._autograd._pop_saved_tensors_default_hooks()


# Hooks for every module.


def _module_hooks() -> list[object]:
    module = importlib.import_module("torch.nn.modules.module")
    return [hook for name in _GLOBAL_HOOKS for hook in getattr(module, name, {}).values()]


def _remove_module_hook(hook: object) -> None:
    module = importlib.import_module("torch.nn.modules.module")
    for name in _GLOBAL_HOOKS:
        hooks = getattr(module, name, {})
        for key in [key for key, each in hooks.items() if each is hook]:
            for beside in (hooks, *(getattr(module, each, {}) for each in _BESIDE_HOOKS)):
                beside.pop(key, None)


def _named(kind: str) -> Callable[[object], str]:
    return lambda _: kind


_KINDS = {
    "dispatch modes": _Kind(
        read=_dispatch_modes, take_off=_leave_dispatch_mode, name=lambda each: f"the dispatch mode {_class(each)}"
    ),
    "function modes": _Kind(
        read=_function_modes, take_off=_leave_function_mode, name=lambda each: f"the function mode {_class(each)}"
    ),
    "levels of torch.func": _Kind(read=_levels, take_off=_leave_level, name=_named("a transform of torch.func")),
    "forward AD": _Kind(read=_dual_levels, take_off=_leave_dual_level, name=_named("a level of forward AD")),
    "saved tensors": _Kind(
        read=_saved_tensors_hooks,
        take_off=_leave_saved_tensors_hooks,
        name=lambda each: f"hooks for saved tensors ({getattr(each, '__qualname__', _class(each))})",
    ),
    "module hooks": _Kind(
        read=_module_hooks,
        take_off=_remove_module_hook,
        name=lambda each: f"a hook of every module ({getattr(each, '__qualname__', _class(each))})",
    ),
}


# Inference mode is a guard, and cannot be asked to end: another one within it is another state.
_GUARDS: list[object] = []


def set_inference_mode(enabled: bool) -> None:
    """Turn inference mode on or off for what follows in this thread."""
    guard = torch._C._InferenceMode(enabled)
    enter = getattr(guard, "__enter__", None)
    if enter is not None:
        enter()
    _GUARDS.append(guard)


def autocast_nesting() -> int:
    """The number of autocasts that are entered, which torch only tells by changing it."""
    nesting = torch.autocast_increment_nesting() - 1
    torch.autocast_decrement_nesting()
    return int(nesting)


def set_autocast_nesting(nesting: int) -> None:
    """Leave autocasts down to this number; leaving the last clears their cache."""
    while autocast_nesting() > nesting:
        if torch.autocast_decrement_nesting() == 0:
            torch.clear_autocast_cache()
