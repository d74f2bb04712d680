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
import random
import sys
import warnings
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from types import BuiltinMethodType, CellType, CodeType, FunctionType, MethodType
from typing import Any

import torch

from . import numerics
from .probes.randomness import mark

# How far values are followed: those of the project and Python's containers; those of installed packages, which lead to
# caches, loggers and handles; and how many in all.
DEPTH = 32
DEPTH_INSTALLED = 4
REACHED = 100_000
MISSING = object()
PLAIN = (int, float, complex, bool, str, bytes, type(None))
# Of Python's own modules, those whose objects are containers too.
HOLDERS = ("types", "argparse", "collections", "queue", "weakref")
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


class State:
    """The modules, tensors, optimizers, generators and plain values that a target reaches, as they are now.

    Reached are a module itself with its hooks, a bound method's owner, a function's closure, defaults, attributes and
    the globals it names, and what an object of the project's classes has in common with the others: the attributes of
    the class, and what its methods reach. Classes of installed packages keep their own affairs.
    """

    def __init__(self, *targets: Any) -> None:
        self._kept: list[_Kept] = []
        self._made: list[tuple[str, Callable[[], dict[Any, Any]]]] = []
        self._releases: list[Callable[[], None]] = []
        self._names: Counter[str] = Counter()
        self._seen: dict[int, Any] = {}
        self._shared: dict[tuple[type, ...], list[tuple[str, Any]]] = {}
        self._pending: deque[tuple[Any, str, int]] = deque()
        self.modules: list[torch.nn.Module] = []
        self.tensors: dict[str, torch.Tensor] = {}
        self.unreached = ""
        for target in targets:
            self._reach(target, "", depth=0)
        # The nearest first: where there is too much, what is left out is the farthest.
        while self._pending:
            if len(self._seen) > REACHED:
                self.unreached = (
                    f"state not compared: what is farther than {REACHED} objects, as {self._pending[0][1]!r}"
                )
                break
            value, name, depth = self._pending.popleft()
            self._save(value, name, depth=depth)

    def reached(self) -> Iterable[object]:
        """The objects whose state this is, each once."""
        return self._seen.values()

    def restore(self) -> None:
        """Put everything back as it was when this object was made; may be called again and again."""
        with torch.no_grad():
            for each in self._kept:
                each.put_back()

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
            if isinstance(key, str) and not _is_pythons(key)
        }

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
        if isinstance(value, PLAIN) or id(value) in self._seen or depth > DEPTH:
            return
        self._pending.append((value, name, depth))

    def _save(self, value: Any, name: str, *, depth: int) -> None:
        if id(value) in self._seen:
            return
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
        if callable(getattr(value, "state_dict", None)) and callable(getattr(value, "load_state_dict", None)):
            return self._save_state_dict
        if not _is_user_object(value) or (depth > DEPTH_INSTALLED and not is_projects(type(value).__module__)):
            return None
        return self._save_object

    def _keep(self, name: str, read: Any, is_as_saved: Any, put_back: Any, **more: bool) -> None:
        # One name, one piece: a helper's closure may have a variable of the same name as the target's.
        self._names[name] += 1
        unique = name if self._names[name] == 1 else f"{name} ({self._names[name]})"
        self._kept.append(_Kept(name=unique, read=read, is_as_saved=is_as_saved, put_back=put_back, **more))

    def _keep_place(self, name: str, read: Any, write: Any, value: Any, *, learned: bool = False) -> None:
        """What stands in a place, as an attribute or an entry of a dict. Runs are given copies of an iterator."""
        if (at := position(value)) is not None:
            self._keep(name, lambda: position(read()), lambda now: now == at, lambda: write(again(value)))
            self._releases.append(lambda: write(value))
            return

        def put_back() -> None:
            if read() is not value:
                write(value)

        def now() -> Any:
            return None if (found := read()) is MISSING else found

        self._keep(_label(name, value), now, lambda now: _is_same_value(now, value), put_back, learned=learned)

    def _save_tensor(self, tensor: torch.Tensor, name: str, *, depth: int, learned: bool = False) -> None:
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

        def has_same_grad(now: torch.Tensor | None) -> bool:
            return (now is None) == (grad is None) and (now is None or grad is None or _same(now.detach(), grad))

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
            for entries in (vars(module)["_parameters"], vars(module)["_buffers"]):
                self._save_mapping(entries, path, depth=depth, learned=True)
            self._save_keys(module, path)
            self._save_mapping(vars(module), path, depth=depth, without=MODULE_OWN - {"training"})
            for hooks in HOOKS:
                if isinstance(entries := vars(module).get(hooks), dict) and entries:
                    self._save_mapping(entries, f"{path} hooks".strip(), depth=depth)
            self._save_inherited(module, path)
            self._reach_classes(module, depth=depth)

    def _save_keys(self, module: torch.nn.Module, name: str) -> None:
        """Which keys a module has in a state dict: one that a run adds is seen, whatever its value."""

        def keys() -> set[str]:
            own = vars(module)
            return {*own["_parameters"], *own["_buffers"]}.difference(own["_non_persistent_buffers_set"])

        saved, non_persistent = keys(), set(vars(module)["_non_persistent_buffers_set"])

        def put_back() -> None:
            vars(module)["_non_persistent_buffers_set"] = set(non_persistent)

        def added() -> dict[str, str]:
            return dict.fromkeys(sorted(keys() - saved), "added")

        self._keep(f"{name}, state_dict".removeprefix(", "), added, lambda now: not now, put_back)

    def _save_object(self, value: Any, name: str, *, depth: int) -> None:
        if hasattr(value, "__dict__"):
            self._save_mapping(vars(value), name, depth=depth)
        for slot in numerics.slots_of(value):
            self._save_slot(value, slot, f"{name}.{slot}" if name else slot)
            self._reach(getattr(value, slot, None), f"{name}.{slot}" if name else slot, depth=depth + 1)
        self._save_inherited(value, name)
        self._reach_classes(value, depth=depth)

    def _save_inherited(self, value: Any, name: str) -> None:
        """What an object, or a class, has from a class of the project's till it is given one of its own.

        `self.calls += 1` makes an attribute, but changes what was there to be read.
        """
        if (own := getattr(value, "__dict__", None)) is None:
            return
        for key, saved in self._inherited(value.__mro__[1:] if isinstance(value, type) else type(value).__mro__):
            if key not in own:
                self._keep_inherited(value, key, saved, f"{name}.{key}" if name else key)

    def _inherited(self, bases: tuple[type, ...]) -> list[tuple[str, Any]]:
        """The values that these classes of the project's have in common with their objects, the nearest first."""
        if (known := self._shared.get(bases)) is None:
            found: dict[str, Any] = {}
            for base in bases:
                if is_projects(base.__module__):
                    for key, value in vars(base).items():
                        if not _is_pythons(key) and not hasattr(type(value), "__get__"):
                            found.setdefault(key, value)
            known = self._shared[bases] = list(found.items())
        return known

    def _keep_inherited(self, value: Any, key: str, saved: Any, name: str) -> None:
        # Put back with all that is new.
        self._keep(
            _label(name, saved),
            lambda: vars(value).get(key, saved),
            lambda now: _is_same_value(now, saved),
            lambda: None,
        )

    def _reach_classes(self, value: Any, *, depth: int) -> None:
        for each in type(value).__mro__:
            if is_projects(each.__module__):
                self._reach(each, each.__qualname__, depth=depth + 1)

    def _save_class(self, kind: type, name: str, *, depth: int) -> None:
        """The attributes that all objects of a class share, and what its methods reach."""
        if issubclass(kind, enum.Enum):
            return
        saved = {key: value for key, value in vars(kind).items() if not _is_pythons(key)}
        for key, value in saved.items():
            inner = getattr(value, "__func__", getattr(value, "fget", value))
            if isinstance(inner, FunctionType):
                self._reach(inner, f"{kind.__qualname__}.{key}", depth=depth + 1)
            elif not hasattr(type(value), "__get__"):
                self._save_slot(kind, key, f"{kind.__qualname__}.{key}")
                self._reach(value, f"{kind.__qualname__}.{key}", depth=depth + 1)

        self._save_inherited(kind, kind.__qualname__)

        def new() -> dict[str, Any]:
            return {key: value for key, value in vars(kind).items() if key not in saved and not _is_pythons(key)}

        def put_away_new() -> None:
            for key in new():
                delattr(kind, key)

        self._made.append((kind.__qualname__, new))
        self._keep(f"{kind.__qualname__}, new attributes", dict, lambda now: True, put_away_new)

    def _save_slot(self, owner: Any, attribute: str, name: str) -> None:
        saved = getattr(owner, attribute, MISSING)

        def write(put: Any) -> None:
            # A frozen dataclass refuses setattr, and nothing could have written to it.
            with contextlib.suppress(AttributeError, TypeError):
                delattr(owner, attribute) if put is MISSING else setattr(owner, attribute, put)

        def read() -> Any:
            return getattr(owner, attribute, MISSING)

        if saved is MISSING:
            self._keep(name, dict, lambda now: True, lambda: None if read() is MISSING else write(MISSING))
            self._made.append(("", lambda: {} if read() is MISSING else {name: read()}))
        else:
            self._keep_place(name, read, write, saved)

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
        saved = {key: value for key, value in mapping.items() if key not in without}
        known = saved.keys() | without

        def new() -> dict[Any, Any]:
            return {key: value for key, value in mapping.items() if key not in known and not stays(key)}

        def put_away_new() -> None:
            for key in new():
                del mapping[key]

        self._keep(f"{name}, new keys", new if new_counts else dict, lambda now: not now, put_away_new)
        if not new_counts and not learned:
            self._made.append((name, new))
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
            if not inspect.ismodule(value) and not _is_pythons(key):
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
        saved = copy.copy(container)

        def fill(values: Any) -> None:
            if isinstance(container, set):
                container.clear()
                container.update(values)
            elif isinstance(container, deque):
                container.clear()
                container.extend(values)
            else:
                container[:] = values

        iterators = isinstance(container, (list, deque)) and any(position(each) is not None for each in saved)
        if iterators:
            self._releases.append(lambda: fill(saved))

        def put_back() -> None:
            fill([again(each) for each in saved] if iterators else saved)

        def is_as_saved(now: Any) -> bool:
            return len(now) == len(saved) and all(map(_is_same_value, now, saved))

        self._keep(name, lambda: copy.copy(container), is_as_saved, put_back)
        for index, value in enumerate(saved):
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


def _is_pythons(name: str) -> bool:
    return name.startswith("__") or name.startswith("_abc_")


def _label(name: str, value: Any) -> str:
    """What to call the piece that keeps which object a name stands for; what the object holds goes by the name."""
    return name if isinstance(value, PLAIN) else f"{name} (reassigned)"


def _is_same_value(now: Any, saved: Any) -> bool:
    """Whether a name still stands for what it did; what an object holds is kept by pieces of its own."""
    if now is saved or type(now) is not type(saved):
        return now is saved
    return now == saved if isinstance(saved, PLAIN) else (at := position(saved)) is not None and position(now) == at


def _same(tensor: torch.Tensor, saved: torch.Tensor) -> bool:
    if tensor.dtype != saved.dtype:  # in float64
        saved = saved.to(tensor.dtype)
    if tensor.shape != saved.shape or tensor.device.type == "meta":
        return tensor.shape == saved.shape
    return bool(torch.equal(tensor, saved))


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
    if isinstance(value, type) or inspect.ismodule(value):
        return False
    if not hasattr(value, "__dict__") and not numerics.slots_of(value):
        return False
    module = type(value).__module__
    return module in HOLDERS or _is_users(module)


def _is_users(module: str | None) -> bool:
    package = (module or "").partition(".")[0]
    return package not in sys.stdlib_module_names and package not in ("torch", "_pytest", "pytest_compilecontract")


@functools.cache
def is_projects(module: str | None) -> bool:
    """Whether a module is the project's own code, not an installed package's."""
    if module == "__main__":
        return True
    if not _is_users(module):
        return False
    file = getattr(sys.modules.get(module or ""), "__file__", None) or ""
    return not {"site-packages", "dist-packages"} & set(file.replace("\\", "/").split("/"))
