"""State: what running a target may change, saved before a run and put back in place after it.

In place, because a model, its optimizer and the test hold references to one another that no copy would keep.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import inspect
import sys
from collections.abc import Callable, Iterator
from types import FunctionType, MethodType
from typing import Any

import torch

PLAIN = (int, float, complex, bool, str, bytes, type(None))
DOUBLE = {torch.complex64: torch.complex128, torch.complex32: torch.complex128}
# Attributes of every nn.Module that hold no state of the user's.
MODULE_OWN = frozenset(vars(torch.nn.Module())) | {"_compiled_call_impl"}


class State:
    """The modules, tensors, optimizers and plain values that a target reaches, as they are now.

    Reached are a module itself, a bound method's owner, and a function's closure, defaults and the globals it names.
    """

    def __init__(self, *targets: Any) -> None:
        self._undo: list[Callable[[], None]] = []
        self._seen: set[int] = set()
        self._saved: dict[str, tuple[torch.Tensor, torch.Tensor]] = {}
        self.modules: list[torch.nn.Module] = []
        self.tensors: list[torch.Tensor] = []
        for target in targets:
            self._reach(target, depth=0)

    def restore(self) -> None:
        """Put everything back as it was when this object was made; may be called again and again."""
        with torch.no_grad():
            for undo in self._undo:
                undo()

    def changed(self, names: frozenset[str] = frozenset()) -> dict[str, torch.Tensor]:
        """The tensors that are not as they were saved, and those named anyway, by name."""
        return {
            name: tensor
            for name, (tensor, saved) in self._saved.items()
            if name in names or not _same(tensor.detach(), saved)
        }

    @contextlib.contextmanager
    def in_float64(self) -> Iterator[None]:
        """Every floating tensor reached has float64 data, and complex ones complex128, while the `with` lasts."""
        before = [(tensor, tensor.data, tensor.grad) for tensor in self.tensors]
        try:
            for tensor in self.tensors:
                tensor.grad = None
                tensor.data = wide(tensor.data)
            yield
        finally:
            for tensor, data, grad in before:
                tensor.grad = None
                tensor.data = data
                tensor.grad = grad

    def _reach(self, value: Any, *, depth: int) -> None:
        if id(value) in self._seen or depth > 4:
            return
        if isinstance(value, torch.Tensor):
            self._seen.add(id(value))
            self._save_tensor(value, f"tensor {len(self.tensors)}")
        elif isinstance(value, torch.nn.Module):
            self._seen.add(id(value))
            self._save_module(value)
        elif isinstance(value, functools.partial):
            for each in (value.func, *value.args, *value.keywords.values()):
                self._reach(each, depth=depth + 1)
        elif isinstance(value, MethodType):
            self._reach(value.__self__, depth=depth + 1)
            self._reach(value.__func__, depth=depth + 1)
        elif isinstance(value, FunctionType):
            self._seen.add(id(value))
            self._save_function(value, depth=depth)
        elif isinstance(value, (list, dict, set)):
            self._seen.add(id(value))
            self._save_container(value, depth=depth)
        elif isinstance(value, tuple):
            for each in value:
                self._reach(each, depth=depth + 1)
        elif callable(getattr(value, "state_dict", None)) and callable(getattr(value, "load_state_dict", None)):
            self._seen.add(id(value))
            saved = copy.deepcopy(value.state_dict())
            self._undo.append(lambda: value.load_state_dict(copy.deepcopy(saved)))
        elif _is_user_object(value):
            self._seen.add(id(value))
            self._save_attributes(value, vars(value), depth=depth)

    def _save_tensor(self, tensor: torch.Tensor, name: str) -> None:
        self.tensors.append(tensor)
        data = tensor.detach().clone()
        self._saved[name] = (tensor, data)
        grad = None if tensor.grad is None else tensor.grad.detach().clone()
        requires_grad = tensor.requires_grad

        def undo() -> None:
            if tensor.shape == data.shape and tensor.dtype == data.dtype:
                tensor.detach().copy_(data)
            else:
                tensor.data = data.clone()
            tensor.grad = None if grad is None else grad.clone()
            if tensor.is_leaf and tensor.requires_grad != requires_grad:
                tensor.requires_grad_(requires_grad)

        self._undo.append(undo)

    def _save_module(self, root: torch.nn.Module) -> None:
        self.modules.append(root)
        number = f"{len(self.modules)}." if len(self.modules) > 1 else ""
        for path, module in root.named_modules(prefix=number.rstrip(".")):
            self._seen.add(id(module))
            for kind in ("_parameters", "_buffers"):
                for name, tensor in vars(module)[kind].items():
                    self._undo.append(functools.partial(_put_entry, vars(module)[kind], name, tensor))
                    if tensor is not None and id(tensor) not in self._seen:
                        self._seen.add(id(tensor))
                        self._save_tensor(tensor, f"{path}.{name}" if path else name)
            own = {name: value for name, value in vars(module).items() if name not in MODULE_OWN or name == "training"}
            self._save_attributes(module, own, depth=1)

    def _save_attributes(self, owner: Any, attributes: dict[str, Any], *, depth: int) -> None:
        for name, value in attributes.items():
            if isinstance(value, (*PLAIN, torch.Tensor)):
                self._undo.append(functools.partial(_put_attribute, owner, name, value))
            self._reach(value, depth=depth + 1)

    def _save_function(self, function: FunctionType, *, depth: int) -> None:
        for cell in function.__closure__ or ():
            with contextlib.suppress(ValueError):  # a cell that is empty yet
                value = cell.cell_contents
                if isinstance(value, (*PLAIN, torch.Tensor)):
                    self._undo.append(functools.partial(setattr, cell, "cell_contents", value))
                self._reach(value, depth=depth + 1)
        for value in (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()):
            self._reach(value, depth=depth + 1)
        for name in _named_globals(function):
            value = function.__globals__.get(name)
            if isinstance(value, PLAIN) and name in function.__globals__:
                self._undo.append(functools.partial(_put_entry, function.__globals__, name, value))
            elif not inspect.ismodule(value) and not inspect.isclass(value):
                self._reach(value, depth=depth + 1)

    def _save_container(self, container: Any, *, depth: int) -> None:
        saved = copy.copy(container)

        def undo() -> None:
            container.clear()
            container.extend(saved) if isinstance(container, list) else container.update(saved)

        self._undo.append(undo)
        for value in container.values() if isinstance(container, dict) else container:
            self._reach(value, depth=depth + 1)


def _same(tensor: torch.Tensor, saved: torch.Tensor) -> bool:
    if tensor.dtype != saved.dtype:  # in float64
        saved = saved.to(tensor.dtype)
    if tensor.shape != saved.shape or tensor.device.type == "meta":
        return tensor.shape == saved.shape
    return bool(torch.equal(tensor, saved))


def wide(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor in float64, a complex one in complex128, any other as it is."""
    if tensor.is_floating_point() and tensor.dtype != torch.float64:
        return tensor.double()
    return tensor.to(DOUBLE[tensor.dtype]) if tensor.dtype in DOUBLE else tensor


def _put_entry(mapping: dict[str, Any], name: str, value: Any) -> None:
    mapping[name] = value


def _put_attribute(owner: Any, name: str, value: Any) -> None:
    if vars(owner).get(name) is not value:
        vars(owner)[name] = value


def _named_globals(function: FunctionType) -> set[str]:
    return set(function.__code__.co_names) & set(function.__globals__)


def _is_user_object(value: Any) -> bool:
    """An object of a class of the user's: not torch's, not Python's own."""
    if isinstance(value, type) or not hasattr(value, "__dict__") or inspect.ismodule(value):
        return False
    module = type(value).__module__.partition(".")[0]
    return module not in sys.stdlib_module_names and module not in ("torch", "_pytest", "pytest_compilecontract")
