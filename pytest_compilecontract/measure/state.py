"""State: what running a target may change, saved before a run and put back in place after it.

In place, because a model, its optimizer and the test hold references to one another that no copy would keep.
"""

from __future__ import annotations

import array
import contextlib
import copy
import enum
import functools
import inspect
import itertools
import random
import warnings
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import BuiltinMethodType, CellType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import torch

from pytest_compilecontract.wording import first_said

from . import numerics, tensors
from .numerics import HOLDERS, is_projects, is_pythons, is_users, own_dict
from .probes.randomness import mark
from .probes.targets import is_scripted

# How far values are followed: those of the project and Python's containers; those of installed packages, which lead to
# caches, loggers and handles; and how many in all.
DEPTH = 32
DEPTH_INSTALLED = 4
REACHED = 100_000
PIECES = 400_000
# Entries up to which a dict is kept one by one; a larger one is as a whole.
ENTRIES = 10_000
MISSING = object()
PLAIN = (int, float, complex, bool, str, bytes, type(None))
CONTAINERS = (dict, list, set, deque, bytearray, array.array)
# Attributes of every nn.Module that hold no state of the user's.
MODULE_OWN = frozenset(vars(torch.nn.Module())) | {"_compiled_call_impl"}
HOOKS = tuple(name for name in sorted(MODULE_OWN) if "_hooks" in name and "state_dict" not in name)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Kept:
    """One piece of state: how to read it now, whether it is as it was saved, and how to put it back.

    `learned` are the parameters and buffers of modules, and a `gradient` is a leaf's; training compares both by itself.
    """

    name: str
    read: Callable[[], Any]
    is_as_saved: Callable[[Any], bool]
    put_back: Callable[[], None]
    learned: bool = False
    gradient: bool = False


class _Saved:
    """A value as it was `found`, and as it is `wanted`: what was made on purpose takes its place for a while."""

    __slots__ = ("found", "wanted")

    def __init__(self, found: Any) -> None:
        self.found = self.wanted = found


class NotWide(Exception):  # noqa: N818 - no error of anybody's: the reason why there is no float64 run
    """A tensor that cannot be had in float64."""


class State:
    """The modules, tensors, optimizers, generators and plain values that a target reaches, as they are now.

    Reached are a module itself with its hooks, a bound method's owner, a function's closure, defaults, attributes and
    the globals it names, and what an object of the project's classes has in common with the others: the attributes of
    the class, and what its methods reach. Classes of installed packages keep their own affairs, and of their objects
    only those are followed that hold tensors, modules or plain values (`numerics.kind_of`).

    `unreached` says what is not kept: what is too far, too much, or cannot be saved.

    `beside` are functions that are none of the target, as one that compiles it. Of what they reach beyond it only the
    places are kept in which something to be called stands: what such a function replaces is put back and not compared.
    """

    def __init__(self, *targets: Any, beside: Iterable[Any] = ()) -> None:
        self._kept: list[_Kept] = []
        self._made: list[tuple[str, Callable[[], dict[Any, Any]]]] = []
        self._releases: list[Callable[[], None]] = []
        self._accepts: list[tuple[_Saved, Callable[[], Any]]] = []
        self._names: Counter[str] = Counter()
        self._seen: dict[int, Any] = {}
        self._shared: dict[tuple[type, ...], list[tuple[str, Any]]] = {}
        self._pending: deque[tuple[Any, str, int]] = deque()
        self.modules: list[torch.nn.Module] = []
        self.tensors: dict[str, torch.Tensor] = {}
        self._left_out: dict[str, None] = {}
        self._beside = False
        for target in targets:
            self._reach(target, "", depth=0)
        self._follow()
        self._beside = True
        for function in beside:
            self._reach(function, "", depth=0)
        self._follow()

    def _follow(self) -> None:
        # The nearest first: where there is too much, what is left out is the farthest.
        while self._pending:
            if len(self._seen) > REACHED or len(self._kept) > PIECES:
                self._leave_out(f"what is farther than {len(self._seen)} objects, as {self._pending[0][1]!r}")
                self._pending.clear()
                break
            value, name, depth = self._pending.popleft()
            self._save(value, name, depth=depth)

    @property
    def unreached(self) -> str:
        """What of the state is not compared, in a sentence; empty where all is."""
        more = f" and {len(self._left_out) - 3} more" if len(self._left_out) > 3 else ""
        return f"state not compared: {', '.join([*self._left_out][:3])}{more}" if self._left_out else ""

    def _leave_out(self, what: str) -> None:
        if not self._beside:
            self._left_out[what] = None

    def reached(self) -> Iterable[object]:
        """The objects whose state this is, each once."""
        return self._seen.values()

    def restore(self, *, accepted: bool = True) -> None:
        """Put everything back as it was when this object was made, but for what was `accepted` since.

        May be called again and again.
        """
        wanted = [saved.wanted for saved, _ in self._accepts]
        if not accepted:
            self.forget()
        with torch.no_grad():
            for each in self._kept:
                each.put_back()
        for (saved, _), was in zip(self._accepts, wanted, strict=True):
            saved.wanted = was

    def accept(self) -> None:
        """From now on what is otherwise is wanted so: `restore` puts it there, and it is no change."""
        for saved, now in self._accepts:
            try:
                saved.wanted = now()
            except Exception as error:  # noqa: BLE001 - what was made may be of a kind that cannot be saved
                self._left_out[f"what was made of the target (cannot be saved: {first_said(str(error))})"] = None

    def forget(self) -> None:
        """What was accepted is not wanted any more: `restore` puts back what was found."""
        for saved, _ in self._accepts:
            saved.wanted = saved.found

    def _wanted(self, found: Any, now: Callable[[], Any]) -> _Saved:
        """A value as it was found; `now` reads it again for `accept`."""
        saved = _Saved(found)
        self._accepts.append((saved, now))
        return saved

    def release(self) -> None:
        """After the last `restore`: the user's own iterators are back in the places of their copies."""
        for put_back in self._releases:
            put_back()

    def changed(
        self, names: frozenset[str] = frozenset(), *, learned: bool = True, gradients: bool = False
    ) -> dict[str, Any]:
        """What is not as it was saved, and what is named anyway, by name; `gradients` are those that a run has left."""
        found = {}
        for each in self._kept:
            if (each.learned and not learned) or (each.gradient and not gradients):
                continue
            value = each.read()
            if each.name in names or not each.is_as_saved(value):
                found[each.name] = value
        return found

    def made(self) -> dict[str, Any]:
        """The attributes that objects have now and had not, by name, as far as nothing else tells of them."""
        return {
            f"{name}.{key}" if name else key: value
            for name, new in self._made
            for key, value in new().items()
            if isinstance(key, str) and not is_pythons(key)
        }

    @contextlib.contextmanager
    def in_float64(self) -> Iterator[None]:
        """Every floating tensor reached has float64 data, and complex ones complex128, while the `with` lasts.

        Raises:
            NotWide: one cannot have, such as a tensor inside of a transform of torch.func.
        """
        before: list[tuple[torch.Tensor, Any, torch.Tensor | None]] = []
        try:
            for name, tensor in self.tensors.items():
                dtype = numerics.wide(tensor.dtype)
                if dtype != tensor.dtype and (reason := tensors.why_not_wide(tensor)):
                    raise NotWide(f"{name!r} {reason}, and cannot be cast to float64")
                grad = tensor.grad if tensor.is_leaf else None
                try:
                    data = tensor.data
                    before.append((tensor, data, grad))
                    if tensor.is_leaf:
                        tensor.grad = None
                    if dtype != tensor.dtype:
                        tensor.data = tensors.wide(data)
                except (RuntimeError, NotImplementedError, TypeError) as error:
                    raise NotWide(f"{name!r} cannot be cast to float64: {first_said(str(error))}") from error
            yield
        finally:
            for tensor, data, grad in before:
                if tensor.is_leaf:
                    tensor.grad = None
                if tensor.dtype != data.dtype:
                    tensor.data = data
                if tensor.is_leaf:
                    tensor.grad = grad

    def _reach(self, value: Any, name: str, *, depth: int) -> None:
        if isinstance(value, PLAIN) or id(value) in self._seen or depth > DEPTH:
            return
        self._pending.append((value, name, depth))

    def _save(self, value: Any, name: str, *, depth: int) -> None:
        if id(value) in self._seen:
            return
        try:
            self._save_one(value, name, depth=depth)
        except (RuntimeError, NotImplementedError, TypeError, AttributeError, OSError) as error:
            # An object of any kind may refuse to be read, even to tell its class.
            self._leave_out(f"{name!r} (cannot be read: {first_said(str(error))})")

    def _save_one(self, value: Any, name: str, *, depth: int) -> None:
        if isinstance(value, functools.partial):
            for each in (value.func, *value.args, *value.keywords.values()):
                self._reach(each, name, depth=depth + 1)
        elif isinstance(value, (MethodType, BuiltinMethodType)):
            self._reach(value.__self__, name, depth=depth + 1)
            self._reach(getattr(value, "__func__", None), name, depth=depth + 1)
        elif isinstance(value, tuple):
            for index, each in enumerate(value):
                self._reach(each, f"{name}[{index}]", depth=depth + 1)
        elif (save := self._saver(value, depth)) is not None:
            self._seen[id(value)] = value
            save(value, name, depth=depth)
            if isinstance(value, CONTAINERS) and _is_user_object(value):
                self._save_object(value, name, depth=depth)

    def _saver(self, value: Any, depth: int) -> Callable[..., None] | None:
        if (
            self._beside
            and not isinstance(value, (FunctionType, dict, type))
            and not is_projects(type(value).__module__)
        ):
            return None
        if self._beside and isinstance(value, (torch.Tensor, torch.nn.Module, torch.optim.Optimizer)):
            return None
        if isinstance(value, torch.Tensor):
            return self._save_tensor
        if isinstance(value, torch.nn.Module):
            return self._save_module
        if isinstance(value, FunctionType):
            return self._save_function
        if isinstance(value, dict):
            return functools.partial(self._save_mapping, new_counts=True)
        if isinstance(value, CONTAINERS):
            return self._save_container
        if (stream := _stream_of(value)) is not None:
            return functools.partial(self._save_stream, stream)
        if numerics.is_numpy(value) and hasattr(value, "flags"):
            return self._save_array
        if isinstance(value, type):
            return self._save_class if is_projects(value.__module__) else None
        if all(callable(inspect.getattr_static(type(value), each, None)) for each in ("state_dict", "load_state_dict")):
            return self._save_state_dict
        if not _is_user_object(value) or (depth > DEPTH_INSTALLED and not is_projects(type(value).__module__)):
            return None
        if not numerics.is_followed(value) and (kind := numerics.kind_of(value)) in ("code", "large"):
            return functools.partial(self._leave_alone, large=kind == "large")
        return self._save_object

    def _leave_alone(self, value: Any, name: str, *, depth: int, large: bool) -> None:
        """An object of an installed package that is code, or too large to tell what it is."""
        if large:
            self._leave_out(f"{name!r} (a {type(value).__module__}.{type(value).__qualname__} of many values)")

    def _keep(self, name: str, read: Any, is_as_saved: Any, put_back: Any, **more: bool) -> None:
        if self._beside:
            return
        # One name, one piece: a helper's closure may have a variable of the same name as the target's.
        self._names[name] += 1
        unique = name if self._names[name] == 1 else f"{name} ({self._names[name]})"
        self._kept.append(_Kept(name=unique, read=read, is_as_saved=is_as_saved, put_back=put_back, **more))

    def _note_made(self, name: str, new: Callable[[], dict[Any, Any]]) -> None:
        if not self._beside:
            self._made.append((name, new))

    def _keep_place(self, name: str, read: Any, write: Any, value: Any, *, learned: bool = False) -> None:
        """What stands in a place, as an attribute or an entry of a dict. Runs are given copies of an iterator."""
        if self._beside:
            self._keep_beside(read, write, value)
            return
        if (at := position(value)) is not None:
            self._keep(name, lambda: position(read()), lambda now: now == at, lambda: write(again(value)))
            self._releases.append(lambda: write(value))
            return

        saved = self._wanted(value, read)

        def put_back() -> None:
            if read() is not saved.wanted:
                write(saved.wanted)

        def now() -> Any:
            return None if (found := read()) is MISSING else found

        self._keep(_label(name, value), now, lambda now: _is_same_value(now, saved.wanted), put_back, learned=learned)

    def _keep_beside(self, read: Any, write: Any, value: Any) -> None:
        if not callable(value):
            return
        saved = self._wanted(value, read)

        def put_back() -> None:
            if read() is not saved.wanted:
                write(saved.wanted)

        self._kept.append(_Kept(name="", read=read, is_as_saved=lambda _: True, put_back=put_back))

    def _save_tensor(self, tensor: torch.Tensor, name: str, *, depth: int, learned: bool = False) -> None:
        name = name or f"tensor {len(self.tensors)}"
        self.tensors[name if name not in self.tensors else f"{name} ({len(self.tensors)})"] = tensor
        grad = tensor.grad.detach().clone() if tensor.is_leaf and tensor.grad is not None else None
        requires_grad = tensor.requires_grad
        try:
            found = tensors.Saved(tensor)
        except Exception as error:  # noqa: BLE001 - a subclass refuses in its own way
            # Whether it was written to is known even so.
            self._leave_out(f"{name!r} (a {type(tensor).__name__} that cannot be saved: {first_said(str(error))})")
            version = tensor._version
            self._keep(name, lambda: tensor, lambda now: now._version == version, lambda: None, learned=learned)
            return
        saved = self._wanted(found, lambda: saved.wanted if saved.wanted.is_in(tensor) else tensors.Saved(tensor))

        def put_back() -> None:
            try:
                saved.wanted.put_in(tensor)
            except Exception as error:  # noqa: BLE001 - as above
                self._leave_out(f"{name!r} (cannot be put back: {first_said(str(error))})")
            if tensor.is_leaf:
                tensor.grad = None if grad is None else grad.clone()
            if tensor.is_leaf and tensor.requires_grad != requires_grad:
                tensor.requires_grad_(requires_grad)

        def is_as_saved(now: torch.Tensor) -> bool:
            return now.requires_grad == requires_grad and bool(saved.wanted.has_values_of(now))

        def has_same_grad(now: torch.Tensor | None) -> bool:
            return (now is None) == (grad is None) and (now is None or grad is None or tensors.same(now, grad))

        self._keep(name, lambda: tensor, is_as_saved, put_back, learned=learned)
        if tensor.is_leaf:
            self._keep(f"{name}.grad", lambda: tensor.grad, has_same_grad, lambda: None, gradient=True)
        for hooks in (tensor._backward_hooks, getattr(tensor, "_post_accumulate_grad_hooks", None)):
            for hook in list((hooks or {}).values()):
                self._reach(hook, f"{name} hook", depth=depth + 1)

    def _save_module(self, root: torch.nn.Module, name: str, *, depth: int) -> None:
        self.modules.append(root)
        prefix = name or (str(len(self.modules)) if len(self.modules) > 1 else "")
        for path, module in root.named_modules(prefix=prefix):
            self._seen[id(module)] = module
            if is_scripted(module):
                self._save_scripted(module, path, depth=depth)
                continue
            for entries in (vars(module)["_parameters"], vars(module)["_buffers"]):
                self._save_mapping(entries, path, depth=depth, learned=True)
            self._save_keys(module, path)
            self._save_mapping(vars(module), path, depth=depth, without=MODULE_OWN - {"training"})
            for hooks in HOOKS:
                if isinstance(entries := vars(module).get(hooks), dict) and entries:
                    self._save_mapping(entries, f"{path} hooks".strip(), depth=depth)
            self._save_inherited(module, path)
            self._reach_classes(module, depth=depth)

    def _save_scripted(self, module: torch.nn.Module, name: str, *, depth: int) -> None:
        """A scripted part of a module: it keeps its tensors where Python sees them by name alone, and no attributes."""
        for key, tensor in (*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)):
            if id(tensor) not in self._seen:
                self._seen[id(tensor)] = tensor
                self._save_tensor(tensor, f"{name}.{key}" if name else key, depth=depth, learned=True)

    def _save_keys(self, module: torch.nn.Module, name: str) -> None:
        """Which keys a module has in a state dict: one that a run adds is seen, whatever its value."""

        def keys() -> set[str]:
            own = vars(module)
            return {*own["_parameters"], *own["_buffers"]}.difference(own["_non_persistent_buffers_set"])

        def apart() -> set[str]:
            return set(vars(module)["_non_persistent_buffers_set"])

        saved, non_persistent = self._wanted(keys(), keys), self._wanted(apart(), apart)

        def put_back() -> None:
            vars(module)["_non_persistent_buffers_set"] = set(non_persistent.wanted)

        def added() -> dict[str, str]:
            return dict.fromkeys(sorted(keys() - saved.wanted), "added")

        self._keep(f"{name}, state_dict".removeprefix(", "), added, lambda now: not now, put_back)

    def _save_object(self, value: Any, name: str, *, depth: int) -> None:
        if (own := own_dict(value)) is not None:
            self._save_mapping(own, name, depth=depth)
        for slot in numerics.slots_of(value):
            self._save_slot(value, slot, f"{name}.{slot}" if name else slot)
            self._reach(getattr(value, slot, None), f"{name}.{slot}" if name else slot, depth=depth + 1)
        self._save_inherited(value, name)
        self._reach_classes(value, depth=depth)

    def _save_inherited(self, value: Any, name: str) -> None:
        """What an object, or a class, has from a class of the project's till it is given one of its own.

        `self.calls += 1` makes an attribute, but changes what was there to be read.
        """
        if (own := vars(value) if isinstance(value, type) else own_dict(value)) is None:
            return
        for key, saved in self._inherited(value.__mro__[1:] if isinstance(value, type) else type(value).__mro__):
            if key not in own:
                self._keep_inherited(own, key, saved, f"{name}.{key}" if name else key)

    def _inherited(self, bases: tuple[type, ...]) -> list[tuple[str, Any]]:
        """The values that these classes of the project's have in common with their objects, the nearest first."""
        if (known := self._shared.get(bases)) is None:
            found: dict[str, Any] = {}
            for base in bases:
                if is_projects(base.__module__):
                    for key, value in vars(base).items():
                        if not is_pythons(key) and not hasattr(type(value), "__get__"):
                            found.setdefault(key, value)
            known = self._shared[bases] = list(found.items())
        return known

    def _keep_inherited(self, own: Mapping[str, Any], key: str, value: Any, name: str) -> None:
        def read() -> Any:
            return own.get(key, value)

        saved = self._wanted(value, read)
        # Put back with all that is new.
        self._keep(_label(name, value), read, lambda now: _is_same_value(now, saved.wanted), lambda: None)

    def _reach_classes(self, value: Any, *, depth: int) -> None:
        for each in type(value).__mro__:
            if is_projects(each.__module__):
                self._reach(each, each.__qualname__, depth=depth + 1)

    def _save_class(self, kind: type, name: str, *, depth: int) -> None:
        """The attributes that all objects of a class share, and what its methods reach."""
        if issubclass(kind, enum.Enum):
            return
        saved = {key: value for key, value in vars(kind).items() if not is_pythons(key)}
        for key, value in saved.items():
            inner = getattr(value, "__func__", getattr(value, "fget", value))
            if isinstance(inner, FunctionType):
                self._keep_method(kind, key, value)
                self._reach(inner, f"{kind.__qualname__}.{key}", depth=depth + 1)
            elif not hasattr(type(value), "__get__"):
                self._save_slot(kind, key, f"{kind.__qualname__}.{key}")
                self._reach(value, f"{kind.__qualname__}.{key}", depth=depth + 1)

        self._save_inherited(kind, kind.__qualname__)

        def added() -> dict[str, Any]:
            return {key: value for key, value in vars(kind).items() if key not in saved and not is_pythons(key)}

        wanted = self._wanted({}, added)

        def new() -> dict[str, Any]:
            return {key: value for key, value in added().items() if key not in wanted.wanted}

        def put_away_new() -> None:
            for key in new():
                delattr(kind, key)
            for key, value in wanted.wanted.items():
                if vars(kind).get(key) is not value:
                    setattr(kind, key, value)

        self._note_made(kind.__qualname__, new)
        self._keep(f"{kind.__qualname__}, new attributes", dict, lambda now: True, put_away_new)

    def _keep_method(self, kind: type, key: str, value: Any) -> None:
        """Which function a class has for a method: a run may put another in its place."""

        def read() -> Any:
            return vars(kind).get(key, MISSING)

        def write(put: Any) -> None:
            setattr(kind, key, put)

        self._keep_place(f"{kind.__qualname__}.{key}", read, write, value)

    def _save_slot(self, owner: Any, attribute: str, name: str) -> None:
        value = getattr(owner, attribute, MISSING)

        def write(put: Any) -> None:
            # A frozen dataclass refuses setattr, and nothing could have written to it.
            with contextlib.suppress(AttributeError, TypeError):
                delattr(owner, attribute) if put is MISSING else setattr(owner, attribute, put)

        def read() -> Any:
            return getattr(owner, attribute, MISSING)

        if value is not MISSING:
            self._keep_place(name, read, write, value)
            return
        saved = self._wanted(MISSING, read)

        def put_back() -> None:
            if read() is not saved.wanted:
                write(saved.wanted)

        self._keep(name, dict, lambda now: True, put_back)
        self._note_made("", lambda: {} if read() is saved.wanted else {name: read()})

    def _save_mapping(
        self,
        mapping: dict[Any, Any],
        name: str,
        *,
        depth: int,
        without: frozenset[str] = frozenset(),
        stays: Callable[[Any], bool] = lambda _: False,
        new_counts: bool = False,
        learned: bool = False,
    ) -> None:
        if len(mapping) > ENTRIES:
            self._save_large(mapping, name)
            return
        # Not more than it says it has: what a class of the user's gives out may have no end.
        entries = itertools.islice(mapping.items(), len(mapping))
        saved = {key: value for key, value in entries if key not in without}
        known = saved.keys() | without

        def added() -> dict[Any, Any]:
            return {key: value for key, value in mapping.items() if key not in known and not stays(key)}

        wanted = self._wanted({}, added)

        def new() -> dict[Any, Any]:
            return {key: value for key, value in added().items() if key not in wanted.wanted}

        def put_away_new() -> None:
            for key in new():
                del mapping[key]
            for key, value in wanted.wanted.items():
                if mapping.get(key, MISSING) is not value:
                    mapping[key] = value

        self._keep(f"{name}, new keys", new if new_counts else dict, lambda now: not now, put_away_new)
        if not new_counts and not learned:
            self._note_made(name, new)
        for key, value in saved.items():
            self._save_entry(mapping, key, value, f"{name}.{key}" if name else str(key), learned=learned)
        if new_counts:
            self._save_order(mapping, list(saved), name)
        for key, value in saved.items():
            inner = f"{name}.{key}" if name else str(key)
            if learned and isinstance(value, torch.Tensor) and id(value) not in self._seen:
                self._seen[id(value)] = value
                self._save_tensor(value, inner, depth=depth, learned=True)
            else:
                self._reach(value, inner, depth=depth + 1)

    def _save_large(self, mapping: dict[Any, Any], name: str) -> None:
        """A dict of very many entries: which they are, and not what they hold."""
        self._leave_out(f"what is in the {len(mapping)} entries of {name!r}")
        saved = self._wanted(dict(mapping), lambda: dict(mapping))

        def is_as_saved() -> bool:
            was = saved.wanted
            return len(was) == len(mapping) and all(_is_same_value(mapping.get(key), was[key]) for key in was)

        def put_back() -> None:
            if not is_as_saved():
                mapping.clear()
                mapping.update(saved.wanted)

        self._keep(name, lambda: mapping, lambda now: is_as_saved(), put_back)

    def _save_order(self, mapping: dict[Any, Any], saved: list[Any], name: str) -> None:
        """The order of the keys that were there: what comes first is taken first."""

        def order() -> list[str]:
            return [str(key) if isinstance(key, PLAIN) else type(key).__name__ for key in mapping if key in known]

        def put_back() -> None:
            # After the entries, and so with the same keys.
            if any(now is not was for now, was in zip(mapping, saved, strict=False)):
                for key in saved:
                    mapping[key] = mapping.pop(key)

        known = dict.fromkeys(saved)
        before = order()
        self._keep(f"{name}, order of keys", order, lambda now: now == before or len(now) < len(before), put_back)

    def _save_entry(self, mapping: dict[Any, Any], key: Any, value: Any, name: str, *, learned: bool = False) -> None:
        def write(put: Any) -> None:
            mapping[key] = put

        self._keep_place(name, lambda: mapping.get(key, MISSING), write, value, learned=learned)

    def _save_function(self, function: FunctionType, name: str, *, depth: int) -> None:
        # torch's wrapper of a compiled function leads to the user's; its own variables and globals are torch's state,
        # the stance among them, and not to be put back.
        own = is_users(function.__globals__.get("__name__"))
        for variable, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=False):
            with contextlib.suppress(ValueError):  # a cell that is empty yet
                if own:
                    self._save_cell(cell, variable)
                self._reach(cell.cell_contents, variable, depth=depth + 1)
        for value in (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()):
            self._reach(value, "default", depth=depth + 1)
        if not own:
            return
        for attribute in ("__defaults__", "__kwdefaults__"):
            self._save_slot(function, attribute, f"{function.__name__}.{attribute}")
        self._save_mapping(vars(function), function.__name__, depth=depth, stays=_is_torchs)
        names = _names_in(function.__code__)
        for variable in sorted(names & set(function.__globals__)):
            value = function.__globals__[variable]
            if inspect.ismodule(value):
                self._reach_names(value, names, depth=depth)
                continue
            if not inspect.isclass(value):
                self._save_entry(function.__globals__, variable, value, variable)
            self._reach(value, value.__qualname__ if inspect.isclass(value) else variable, depth=depth + 1)

    def _reach_names(self, module: Any, names: set[str], *, depth: int) -> None:
        """What a function may mean by `module.name`, of a module of the project's."""
        if not is_projects(module.__name__):
            return
        for key in sorted(names & set(vars(module))):
            value = vars(module)[key]
            if not inspect.ismodule(value) and not is_pythons(key):
                name = f"{module.__name__}.{key}"
                if not inspect.isclass(value):
                    self._save_entry(vars(module), key, value, name)
                self._reach(value, name, depth=depth + 1)

    def _save_cell(self, cell: CellType, name: str) -> None:
        def read() -> Any:
            try:
                return cell.cell_contents
            except ValueError:  # the variable was deleted
                return MISSING

        def write(put: Any) -> None:
            cell.cell_contents = put

        self._keep_place(name, read, write, cell.cell_contents)

    def _save_container(self, container: Any, name: str, *, depth: int) -> None:
        found = _copy(container)
        saved = self._wanted(found, lambda: _copy(container))

        def fill(values: Any) -> None:
            if isinstance(container, set):
                container.clear()
                container.update(values)
            elif isinstance(container, deque):
                container.clear()
                container.extend(values)
            else:
                container[:] = values

        iterators = isinstance(container, (list, deque)) and any(position(each) is not None for each in found)
        if iterators:
            self._releases.append(lambda: fill(found))

        def put_back() -> None:
            fill([again(each) for each in saved.wanted] if iterators else saved.wanted)

        def is_as_saved(now: Any) -> bool:
            return len(now) == len(saved.wanted) and all(map(_is_same_value, now, saved.wanted))

        self._keep(name, lambda: _copy(container), is_as_saved, put_back)
        for index, value in enumerate(itertools.islice(found, REACHED)):
            self._reach(value, f"{name}[{index}]", depth=depth + 1)

    def _save_stream(self, stream: _Stream, value: Any, name: str, *, depth: int) -> None:
        saved = stream.read()
        at = mark(saved)
        self._keep(name, lambda: mark(stream.read()), lambda now: now == at, lambda: stream.write(saved))

    def _save_array(self, value: Any, name: str, *, depth: int) -> None:
        saved = value.copy()

        def put_back() -> None:
            if value.flags.writeable:
                value[...] = saved

        self._keep(name, lambda: value, lambda now: now.tobytes() == saved.tobytes(), put_back)

    def _save_state_dict(self, value: Any, name: str, *, depth: int) -> None:
        saved = copy.deepcopy(value.state_dict())
        self._keep(
            name, lambda: value.state_dict(), lambda now: False, lambda: value.load_state_dict(copy.deepcopy(saved))
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class _Stream:
    """Where an object that draws random numbers is, and how to put it there."""

    read: Callable[[], Any]
    write: Callable[[Any], object]


def _stream_of(value: Any) -> _Stream | None:
    if isinstance(value, torch.Generator):
        return _Stream(read=value.get_state, write=value.set_state)
    if isinstance(value, random.Random):
        return _Stream(read=value.getstate, write=value.setstate)
    if type(value).__module__.startswith("numpy.random"):
        if (bits := getattr(value, "bit_generator", None)) is not None:
            return _Stream(read=lambda: bits.state, write=functools.partial(setattr, bits, "state"))
        if hasattr(value, "set_state"):  # numpy.random.RandomState
            return _Stream(read=value.get_state, write=value.set_state)
    return None


def _names_in(code: CodeType) -> set[str]:
    """The global and attribute names in a function and in those defined inside it."""
    inner = (each for each in code.co_consts if isinstance(each, CodeType))
    return set(code.co_names).union(*(_names_in(each) for each in inner))


def _is_torchs(name: str) -> bool:
    """Whether an attribute that a function has got may be a note of torch's on it, which stays."""
    return name.startswith("_") or "dynamo" in name or name == "get_compiler_config"


def _copy(container: Any) -> Any:
    """A copy of what a container holds; of a list, whatever its class gives out."""
    return list.copy(container) if isinstance(container, list) else copy.copy(container)


def _label(name: str, value: Any) -> str:
    """What to call the piece that keeps which object a name stands for; what the object holds goes by the name."""
    return name if isinstance(value, PLAIN) else f"{name} (reassigned)"


def _is_same_value(now: Any, saved: Any) -> bool:
    """Whether a name still stands for what it did; what an object holds is kept by pieces of its own."""
    if now is saved or type(now) is not type(saved):
        return now is saved
    if isinstance(saved, (float, complex)) and now != now:
        return bool(saved != saved)  # NaN is as NaN
    return now == saved if isinstance(saved, PLAIN) else (at := position(saved)) is not None and position(now) == at


def position(value: Any) -> tuple[Any, ...] | None:
    """Where one of Python's own iterators is, in plain values; None for all else, and where it does not tell."""
    if (parts := _reduced(value)) is None:
        return None
    _, arguments, *rest = parts
    return tuple(_plainly(each) for each in (*arguments, *rest))


def again(value: Any) -> Any:
    """Another iterator that is where this one is, over the same values; what is no iterator stays itself."""
    if isinstance(value, tuple):
        return tuple(map(again, value))
    if (parts := _reduced(value)) is None:
        return value
    make, arguments, *rest = parts
    made = make(*map(again, arguments))
    for state in rest:
        if state is not None:
            made.__setstate__(again(state))
    return made


def _plainly(value: Any) -> Any:
    if isinstance(value, PLAIN):
        return value
    if isinstance(value, tuple):
        return tuple(map(_plainly, value))
    return position(value) or (len(value) if isinstance(value, (list, range)) else type(value).__name__)


def _reduced(value: Any) -> tuple[Any, ...] | None:
    """What one of Python's own iterators could be made of anew. A generator's place is in its frame, so it has none."""
    if type(value).__module__ not in ("builtins", "itertools") or not isinstance(value, Iterator):
        return None
    try:
        with warnings.catch_warnings():
            # Those of itertools do not tell from Python 3.14 on, and warn of it before.
            warnings.simplefilter("ignore", DeprecationWarning)
            parts = value.__reduce__()
    except TypeError:
        return None
    return parts if isinstance(parts, tuple) else None


def _is_user_object(value: Any) -> bool:
    """An object of a class of the user's, or one of Python's that holds what its user puts there; none of torch's."""
    if isinstance(value, (type, ModuleType)):
        return False
    if own_dict(value) is None and not numerics.slots_of(value):
        return False
    module = type(value).__module__
    return module in HOLDERS or is_users(module)
