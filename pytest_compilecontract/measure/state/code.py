"""Functions, classes and objects: their variables, attributes, inherited values, and the names that code uses."""

from __future__ import annotations

import contextlib
import enum
import inspect
import threading
from collections.abc import Mapping
from types import CellType, FunctionType, ModuleType

from .. import numerics
from ..numerics import is_projects, is_pythons, is_users, own_dict
from .mappings import save_entry, save_mapping, save_slot
from .reached import Reached
from .values import MISSING, is_same_value, is_torchs, label, names_in


def save_function(walk: Reached, function: FunctionType, name: str, *, depth: int) -> None:
    # torch's wrapper of a compiled function leads to the user's; its own variables and globals are torch's state,
    # the stance among them, and not to be put back.
    own = is_users(function.__globals__.get("__name__"))
    for variable, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=False):
        with contextlib.suppress(ValueError):  # a cell that is empty yet
            if own:
                save_cell(walk, cell, variable)
            walk.reach(cell.cell_contents, variable, depth=depth + 1)
    for value in (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()):
        walk.reach(value, "default", depth=depth + 1)
    if not own:
        return
    for attribute in ("__defaults__", "__kwdefaults__"):
        save_slot(walk, function, attribute, f"{function.__name__}.{attribute}")
    save_mapping(walk, vars(function), function.__name__, depth=depth, stays=is_torchs)
    names = names_in(function.__code__)
    for variable in sorted(names & set(function.__globals__)):
        value = function.__globals__[variable]
        if inspect.ismodule(value):
            reach_names(walk, value, names, depth=depth)
            continue
        if not inspect.isclass(value):
            save_entry(walk, function.__globals__, variable, value, variable)
        walk.reach(value, value.__qualname__ if inspect.isclass(value) else variable, depth=depth + 1)


def reach_names(walk: Reached, module: ModuleType, names: set[str], *, depth: int) -> None:
    """Reach what a function may refer to as `module.name`, in one of the project's modules."""
    if not is_projects(module.__name__):
        return
    for key in sorted(names & set(vars(module))):
        value = vars(module)[key]
        if not inspect.ismodule(value) and not is_pythons(key):
            name = f"{module.__name__}.{key}"
            if not inspect.isclass(value):
                save_entry(walk, vars(module), key, value, name)
            walk.reach(value, name, depth=depth + 1)


def save_cell(walk: Reached, cell: CellType, name: str) -> None:
    def read() -> object:
        try:
            return cell.cell_contents
        except ValueError:  # the variable was deleted
            return MISSING

    def write(put: object) -> None:
        cell.cell_contents = put

    walk.pieces.keep_place(name, read, write, cell.cell_contents)


def save_object(walk: Reached, value: object, name: str, *, depth: int) -> None:
    if (own := own_dict(value)) is not None:
        save_mapping(walk, own, name, depth=depth)
    for slot in numerics.slots_of(value):
        save_slot(walk, value, slot, f"{name}.{slot}" if name else slot)
        walk.reach(getattr(value, slot, None), f"{name}.{slot}" if name else slot, depth=depth + 1)
    save_class_of(walk, value, name)
    save_inherited(walk, value, name)
    reach_classes(walk, value, depth=depth)


def save_class_of(walk: Reached, value: object, name: str) -> None:
    """Of which class an object is: a run may assign another to its `__class__`."""

    def read() -> type:
        return type(value)

    def put_back() -> None:
        if type(value) is not saved.wanted:
            object.__setattr__(value, "__class__", saved.wanted)

    saved = walk.pieces.wanted(type(value), read)
    walk.pieces.keep(f"{name}.__class__".removeprefix("."), read, lambda now: now is saved.wanted, put_back)


def save_thread_local(walk: Reached, value: threading.local, name: str, *, depth: int) -> None:
    """Save the thread-local values of an object for this thread, which runs the passes."""
    save_mapping(walk, vars(value), name, depth=depth)
    reach_classes(walk, value, depth=depth)


def save_inherited(walk: Reached, value: object, name: str) -> None:
    """Save what an object or class inherits from one of the project's classes.

    `self.calls += 1` creates an attribute where an inherited value was read before.
    """
    if (own := vars(value) if isinstance(value, type) else own_dict(value)) is None:
        return
    for key, saved in inherited(walk, value.__mro__[1:] if isinstance(value, type) else type(value).__mro__):
        if key not in own:
            keep_inherited(walk, own, key, saved, f"{name}.{key}" if name else key)


def inherited(walk: Reached, bases: tuple[type, ...]) -> list[tuple[str, object]]:
    """The values that objects of these classes inherit, the nearest class first."""
    if (known := walk.shared.get(bases)) is None:
        found: dict[str, object] = {}
        for base in bases:
            if is_projects(base.__module__):
                for key, value in vars(base).items():
                    if not is_pythons(key) and not hasattr(type(value), "__get__"):
                        found.setdefault(key, value)
        known = walk.shared[bases] = list(found.items())
    return known


def keep_inherited(walk: Reached, own: Mapping[str, object], key: str, value: object, name: str) -> None:
    def read() -> object:
        return own.get(key, value)

    saved = walk.pieces.wanted(value, read)
    # Put back with all that is new.
    walk.pieces.keep(label(name, value), read, lambda now: is_same_value(now, saved.wanted), lambda: None)


def reach_classes(walk: Reached, value: object, *, depth: int) -> None:
    for each in type(value).__mro__:
        if is_projects(each.__module__):
            walk.reach(each, each.__qualname__, depth=depth + 1)


def save_class(walk: Reached, kind: type, name: str, *, depth: int) -> None:
    """Save the attributes that all objects of a class share, and what its methods reach."""
    if issubclass(kind, enum.Enum):
        return
    saved = {key: value for key, value in vars(kind).items() if not is_pythons(key)}
    for key, value in saved.items():
        inner = getattr(value, "__func__", getattr(value, "fget", value))
        if isinstance(inner, FunctionType):
            keep_method(walk, kind, key, value)
            walk.reach(inner, f"{kind.__qualname__}.{key}", depth=depth + 1)
        elif not hasattr(type(value), "__get__"):
            save_slot(walk, kind, key, f"{kind.__qualname__}.{key}")
            walk.reach(value, f"{kind.__qualname__}.{key}", depth=depth + 1)

    save_inherited(walk, kind, kind.__qualname__)

    def added() -> dict[str, object]:
        return {key: value for key, value in vars(kind).items() if key not in saved and not is_pythons(key)}

    nothing: dict[str, object] = {}
    wanted = walk.pieces.wanted(nothing, added)

    def new() -> dict[str, object]:
        return {key: value for key, value in added().items() if key not in wanted.wanted}

    def put_away_new() -> None:
        for key in new():
            delattr(kind, key)
        for key, value in wanted.wanted.items():
            if vars(kind).get(key) is not value:
                setattr(kind, key, value)

    walk.pieces.note_made(kind.__qualname__, new)
    walk.pieces.keep(f"{kind.__qualname__}, new attributes", dict, lambda now: True, put_away_new)


def keep_method(walk: Reached, kind: type, key: str, value: object) -> None:
    """Save which function is a method of a class: a run may replace it."""

    def read() -> object:
        return vars(kind).get(key, MISSING)

    def write(put: object) -> None:
        setattr(kind, key, put)

    walk.pieces.keep_place(f"{kind.__qualname__}.{key}", read, write, value)
