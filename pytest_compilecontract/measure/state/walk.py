"""The walk: from targets to everything that they reach, breadth first; each value is saved by its kind."""

from __future__ import annotations

import functools
import inspect
import io
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable
from contextvars import ContextVar
from types import BuiltinMethodType, FunctionType, MethodType
from typing import Any

import torch

from pytest_compilecontract.errors import message_of
from pytest_compilecontract.wording import first_said

from .. import numerics
from ..numerics import is_projects
from .code import save_class, save_function, save_object, save_thread_local
from .containers import (
    REACHED,
    leave_alone,
    save_array,
    save_buffer,
    save_container,
    save_context_variable,
    save_state_dict,
    save_stream,
)
from .mappings import save_mapping, save_slot
from .modules import save_module
from .reached import Reached
from .tensors_saved import save_tensor
from .values import CONTAINERS, is_user_object, stream_of

# How far values of installed packages are followed, which lead to caches, loggers and handles; and how many in all.
DEPTH_INSTALLED = 4
PIECES = 400_000

# Saves a value under a name: what it is goes to the pieces, what it leads to is reached.
Saver = Callable[..., None]


class Walk(Reached):
    """Follows everything that is reached."""

    def follow(self) -> None:
        # The nearest first: where there is too much, what is left out is the farthest.
        while self.pending:
            if len(self.seen) > REACHED or len(self.pieces) > PIECES:
                self.pieces.leave_out(f"everything beyond {len(self.seen)} objects, such as {self.pending[0][1]!r}")
                self.pending.clear()
                break
            value, name, depth = self.pending.popleft()
            self._save(value, name, depth=depth)

    def reached(self) -> Iterable[object]:
        """The objects whose state this is, each once."""
        return self.seen.values()

    def _save(self, value: object, name: str, *, depth: int) -> None:
        if id(value) in self.seen:
            return
        try:
            self._save_one(value, name, depth=depth)
        except (RuntimeError, NotImplementedError, TypeError, AttributeError, OSError) as error:
            # An object of any kind may refuse to be read, even to tell its class.
            self.pieces.leave_out(f"{name!r} (cannot be read: {first_said(message_of(error))})")

    def _save_one(self, value: object, name: str, *, depth: int) -> None:
        if isinstance(value, functools.partial):
            for each in (value.func, *value.args, *value.keywords.values()):
                self.reach(each, name, depth=depth + 1)
        elif isinstance(value, (MethodType, BuiltinMethodType)):
            self.reach(value.__self__, name, depth=depth + 1)
            self.reach(getattr(value, "__func__", None), name, depth=depth + 1)
        elif isinstance(value, tuple):
            for index, each in enumerate(numerics.elements(value)):
                self.reach(each, f"{name}[{index}]", depth=depth + 1)
        elif (save := self._saver(value, depth)) is not None:
            self.seen[id(value)] = value
            save(self, value, name, depth=depth)
            if isinstance(value, defaultdict):
                save_slot(self, value, "default_factory", f"{name}.default_factory")
            if isinstance(value, CONTAINERS) and is_user_object(value):
                save_object(self, value, name, depth=depth)

    def _saver(self, value: object, depth: int) -> Saver | None:
        """The function that saves a value of this kind; None if it has no state of the user."""
        if self.pieces.beside and not _is_followed_beside(value):
            return None
        for kind, save in _BY_TYPE:
            if isinstance(value, kind):
                return save
        if (stream := stream_of(value)) is not None:
            return functools.partial(save_stream, stream=stream)
        if numerics.is_numpy(value) and hasattr(value, "flags"):
            return save_array
        if isinstance(value, type):
            return save_class if is_projects(value.__module__) else None
        if all(callable(inspect.getattr_static(type(value), each, None)) for each in ("state_dict", "load_state_dict")):
            return save_state_dict
        return self._saver_of_object(value, depth)

    def _saver_of_object(self, value: object, depth: int) -> Saver | None:
        if not is_user_object(value) or (depth > DEPTH_INSTALLED and not is_projects(type(value).__module__)):
            return None
        if not numerics.is_followed(value) and (kind := numerics.kind_of(value)) in ("code", "large"):
            return functools.partial(leave_alone, large=kind == "large")
        return save_object


_BY_TYPE: tuple[tuple[Any, Saver], ...] = (
    (torch.Tensor, save_tensor),
    (torch.nn.Module, save_module),
    (FunctionType, save_function),
    (dict, functools.partial(save_mapping, new_counts=True)),
    (CONTAINERS, save_container),
    ((io.BytesIO, io.StringIO), save_buffer),
    (threading.local, save_thread_local),
    (ContextVar, save_context_variable),
)


def _is_followed_beside(value: object) -> bool:
    """Whether what a function beside the target reaches is followed: code, tables and the project's own objects."""
    if isinstance(value, (torch.Tensor, torch.nn.Module, torch.optim.Optimizer)):
        return False
    return isinstance(value, (FunctionType, dict, type)) or is_projects(type(value).__module__)
