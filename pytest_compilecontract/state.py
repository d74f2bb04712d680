"""State: what running a target may change, saved before a run and put back in place after it.

In place, because a model, its optimizer and the test hold references to one another that no copy would keep.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import inspect
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import CellType, FunctionType, MethodType
from typing import Any

import torch

from . import numerics

DEPTH = 4
MISSING = object()
PLAIN = (int, float, complex, bool, str, bytes, type(None))
# Attributes of every nn.Module that hold no state of the user's.
MODULE_OWN = frozenset(vars(torch.nn.Module())) | {"_compiled_call_impl"}


@dataclass(frozen=True, kw_only=True, slots=True)
class _Kept:
    """One piece of state: how to read it now, whether it is as it was saved, and how to put it back."""

    name: str
    read: Callable[[], Any]
    is_as_saved: Callable[[Any], bool]
    put_back: Callable[[], None]


class State:
    """The modules, tensors, optimizers and plain values that a target reaches, as they are now.

    Reached are a module itself, a bound method's owner, and a function's closure, defaults and the globals it names.
    """

    def __init__(self, *targets: Any) -> None:
        self._kept: list[_Kept] = []
        self._names: Counter[str] = Counter()
        self._seen: set[int] = set()
        self.modules: list[torch.nn.Module] = []
        self.tensors: dict[str, torch.Tensor] = {}
        for target in targets:
            self._reach(target, "", depth=0)

    def restore(self) -> None:
        """Put everything back as it was when this object was made; may be called again and again."""
        with torch.no_grad():
            for each in self._kept:
                each.put_back()

    def changed(self, names: frozenset[str] = frozenset()) -> dict[str, Any]:
        """What is not as it was saved, and what is named anyway, by name.

        An attribute that a run makes is put away again, and not among them: which values a model keeps for later is
        its own affair, and wrong ones show in what it computes from them.
        """
        found = {}
        for each in self._kept:
            value = each.read()
            if each.name in names or not each.is_as_saved(value):
                found[each.name] = value
        return found

    @contextlib.contextmanager
    def in_float64(self) -> Iterator[None]:
        """Every floating tensor reached has float64 data, and complex ones complex128, while the `with` lasts."""
        before = [(tensor, tensor.data, tensor.grad) for tensor in self.tensors.values()]
        try:
            for tensor in self.tensors.values():
                tensor.grad = None
                tensor.data = tensor.data.to(numerics.wide(tensor.dtype))
            yield
        finally:
            for tensor, data, grad in before:
                tensor.grad = None
                tensor.data = data
                tensor.grad = grad

    def _reach(self, value: Any, name: str, *, depth: int) -> None:
        if id(value) in self._seen or depth > DEPTH:
            return
        if isinstance(value, functools.partial):
            for each in (value.func, *value.args, *value.keywords.values()):
                self._reach(each, name, depth=depth + 1)
        elif isinstance(value, MethodType):
            self._reach(value.__self__, name, depth=depth + 1)
            self._reach(value.__func__, name, depth=depth + 1)
        elif isinstance(value, tuple):
            for index, each in enumerate(value):
                self._reach(each, f"{name}[{index}]", depth=depth + 1)
        elif (save := self._saver(value)) is not None:
            self._seen.add(id(value))
            save(value, name, depth=depth)

    def _saver(self, value: Any) -> Callable[..., None] | None:
        if isinstance(value, torch.Tensor):
            return self._save_tensor
        if isinstance(value, torch.nn.Module):
            return self._save_module
        if isinstance(value, FunctionType):
            return self._save_function
        if isinstance(value, dict):
            return functools.partial(self._save_mapping, new_counts=True)
        if isinstance(value, (list, set)):
            return self._save_container
        if isinstance(value, torch.Generator):
            return self._save_generator
        if isinstance(value, type):
            return None
        if callable(getattr(value, "state_dict", None)) and callable(getattr(value, "load_state_dict", None)):
            return self._save_state_dict
        return self._save_object if _is_user_object(value) else None

    def _keep(self, name: str, read: Any, is_as_saved: Any, put_back: Any) -> None:
        # One name, one piece: a helper's closure may have a variable of the same name as the target's.
        self._names[name] += 1
        unique = name if self._names[name] == 1 else f"{name} ({self._names[name]})"
        self._kept.append(_Kept(name=unique, read=read, is_as_saved=is_as_saved, put_back=put_back))

    def _save_tensor(self, tensor: torch.Tensor, name: str, *, depth: int) -> None:
        name = name or f"tensor {len(self.tensors)}"
        self.tensors[name if name not in self.tensors else f"{name} ({len(self.tensors)})"] = tensor
        data = tensor.detach().clone()
        grad = None if tensor.grad is None else tensor.grad.detach().clone()
        requires_grad = tensor.requires_grad

        def put_back() -> None:
            if tensor.shape == data.shape and tensor.dtype == data.dtype:
                tensor.detach().copy_(data)
            else:
                tensor.data = data.clone()
            tensor.grad = None if grad is None else grad.clone()
            if tensor.is_leaf and tensor.requires_grad != requires_grad:
                tensor.requires_grad_(requires_grad)

        def is_as_saved(now: torch.Tensor) -> bool:
            return now.requires_grad == requires_grad and _same(now.detach(), data)

        self._keep(name, lambda: tensor, is_as_saved, put_back)

    def _save_module(self, root: torch.nn.Module, name: str, *, depth: int) -> None:
        self.modules.append(root)
        prefix = name or (str(len(self.modules)) if len(self.modules) > 1 else "")
        for path, module in root.named_modules(prefix=prefix):
            self._seen.add(id(module))
            for entries in (vars(module)["_parameters"], vars(module)["_buffers"]):
                self._save_mapping(entries, path, depth=depth)
            self._save_mapping(vars(module), path, depth=depth, without=MODULE_OWN - {"training"})

    def _save_object(self, value: Any, name: str, *, depth: int) -> None:
        self._save_mapping(vars(value), name, depth=depth)

    def _save_mapping(
        self,
        mapping: dict[Any, Any],
        name: str,
        *,
        depth: int,
        without: frozenset[str] = frozenset(),
        new_counts: bool = False,
    ) -> None:
        saved = {key: value for key, value in mapping.items() if key not in without}

        def put_away_new() -> None:
            for key in [key for key in mapping if key not in saved and key not in without]:
                del mapping[key]

        def new() -> dict[Any, Any]:
            return {key: value for key, value in mapping.items() if key not in saved} if new_counts else {}

        self._keep(f"{name}, new keys", new, lambda now: not now, put_away_new)
        for key, value in saved.items():
            self._save_entry(mapping, key, value, f"{name}.{key}" if name else str(key))
        for key, value in saved.items():
            self._reach(value, f"{name}.{key}" if name else str(key), depth=depth + 1)

    def _save_entry(self, mapping: dict[Any, Any], key: Any, value: Any, name: str) -> None:
        def put_back() -> None:
            if mapping.get(key, MISSING) is not value:
                mapping[key] = value

        self._keep(_label(name, value), lambda: mapping.get(key), lambda now: _is_same_value(now, value), put_back)

    def _save_function(self, function: FunctionType, name: str, *, depth: int) -> None:
        # torch's wrapper of a compiled function leads to the user's; its own variables and globals are torch's state,
        # the stance among them, and not to be put back.
        own = _is_users(function.__globals__.get("__name__"))
        for variable, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=False):
            with contextlib.suppress(ValueError):  # a cell that is empty yet
                if own:
                    self._save_cell(cell, variable)
                self._reach(cell.cell_contents, variable, depth=depth + 1)
        for value in (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()):
            self._reach(value, "default", depth=depth + 1)
        if not own:
            return
        named = set(function.__code__.co_names) & set(function.__globals__)
        for variable in sorted(named):
            value = function.__globals__[variable]
            if inspect.ismodule(value) or inspect.isclass(value):
                continue
            self._save_entry(function.__globals__, variable, value, variable)
            self._reach(value, variable, depth=depth + 1)

    def _save_cell(self, cell: CellType, name: str) -> None:
        value = cell.cell_contents

        def put_back() -> None:
            cell.cell_contents = value

        self._keep(_label(name, value), lambda: cell.cell_contents, lambda now: _is_same_value(now, value), put_back)

    def _save_container(self, container: Any, name: str, *, depth: int) -> None:
        saved = copy.copy(container)

        def put_back() -> None:
            container.clear()
            container.extend(saved) if isinstance(container, list) else container.update(saved)

        def is_as_saved(now: Any) -> bool:
            return len(now) == len(saved) and all(map(_is_same_value, now, saved))

        self._keep(name, lambda: copy.copy(container), is_as_saved, put_back)
        for index, value in enumerate(saved):
            self._reach(value, f"{name}[{index}]", depth=depth + 1)

    def _save_generator(self, value: torch.Generator, name: str, *, depth: int) -> None:
        saved = value.get_state()
        self._keep(name, lambda: None, lambda now: True, lambda: value.set_state(saved))

    def _save_state_dict(self, value: Any, name: str, *, depth: int) -> None:
        saved = copy.deepcopy(value.state_dict())
        self._keep(
            name, lambda: value.state_dict(), lambda now: False, lambda: value.load_state_dict(copy.deepcopy(saved))
        )


def _label(name: str, value: Any) -> str:
    """What to call the piece that keeps which object a name stands for; what the object holds goes by the name."""
    return name if isinstance(value, PLAIN) else f"{name} (reassigned)"


def _is_same_value(now: Any, saved: Any) -> bool:
    """Whether a name still stands for what it did; what an object holds is kept by pieces of its own."""
    return now is saved or (isinstance(saved, PLAIN) and type(now) is type(saved) and now == saved)


def _same(tensor: torch.Tensor, saved: torch.Tensor) -> bool:
    if tensor.dtype != saved.dtype:  # in float64
        saved = saved.to(tensor.dtype)
    if tensor.shape != saved.shape or tensor.device.type == "meta":
        return tensor.shape == saved.shape
    return bool(torch.equal(tensor, saved))


def _is_user_object(value: Any) -> bool:
    """An object of a class of the user's: not torch's, not Python's own."""
    if isinstance(value, type) or not hasattr(value, "__dict__") or inspect.ismodule(value):
        return False
    return _is_users(type(value).__module__)


def _is_users(module: str | None) -> bool:
    package = (module or "").partition(".")[0]
    return package not in sys.stdlib_module_names and package not in ("torch", "_pytest", "pytest_compilecontract")
