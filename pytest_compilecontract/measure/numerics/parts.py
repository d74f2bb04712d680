"""Parts: the components of a value, read without running code of its class, and how far they are followed.

Every walk over the user's values follows these rules: objects of installed packages are entered if they hold results or
plain values, and a walk visits a limited number of values.
"""

from __future__ import annotations

import dataclasses
import datetime
import enum
import functools
import inspect
import itertools
import sys
import types
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, ValuesView
from decimal import Decimal
from fractions import Fraction
from pathlib import Path, PurePath
from typing import Any, Literal
from unittest import mock
from uuid import UUID

import torch

DEPTH = 32
# Values that one walk looks at; of one object of an installed package; and to tell what such an object is.
VALUES = 100_000
VALUES_INSTALLED = 20_000
VALUES_NEAR = 2_000
# Of Python's own modules, those whose objects are containers too.
HOLDERS = ("types", "argparse", "collections", "queue", "weakref")
# Packages whose objects are code and caches of code, whatever is found in them.
CODE = ("triton",)

# A module's state is compared as parameters and buffers; the others hold code, not results.
NOT_WALKED = (
    type,
    torch.nn.Module,
    torch.Generator,
    torch.autograd.graph.Node,
    types.ModuleType,
    types.FunctionType,
    types.MethodType,
    types.BuiltinFunctionType,
    types.GeneratorType,
)

SCALARS = (
    bool, int, float, complex, str, bytes, type(None), type(Ellipsis), range, slice, enum.Enum, Decimal, Fraction,
    datetime.date, datetime.time, datetime.timedelta, PurePath, UUID,
    torch.dtype, torch.device, torch.layout, torch.memory_format, torch.qscheme,
)  # fmt: skip

# Python's containers, of which a class of the project's may give out what it likes.
_PYTHONS = (list, tuple, set, frozenset, deque, OrderedDict, dict)

# How to have a value of a class derived from one of Python's as that has it.
_EXACT: tuple[tuple[type, Callable[[Any], object]], ...] = (
    (int, int.__pos__),
    (float, float.__pos__),
    (complex, complex.__pos__),
    (str, str.__str__),
    (bytes, lambda value: bytes.__getitem__(value, slice(None))),
)

# What an object of an installed package is: one that has tensors, or modules, or things of the project's near; plain
# values and nothing else; neither; or too large to tell.
Kind = Literal["results", "plain", "code", "large"]


class Bound:
    """The number of values that a walk may still visit; `met` once it needed more."""

    def __init__(self, values: int | None = None) -> None:
        self.values = self.left = VALUES if values is None else values
        self.met = False

    def take(self) -> bool:
        """Whether one more value may be visited."""
        if self.left <= 0:
            self.met = True
            return False
        self.left -= 1
        return True


def parts_of(value: object) -> tuple[Iterable[tuple[str, object]] | None, bool]:
    """The parts of a container, each with its accessor as text, and whether the container is an object of unknown kind.

    A container may be infinite: callers need a bound.
    """
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return zip((f".{name}" for name in value._fields), elements(value), strict=True), False
    if isinstance(value, (tuple, list, deque, ValuesView)):
        return ((f"[{index}]", part) for index, part in enumerate(elements(value))), False
    if isinstance(value, Mapping):
        return _entries(value), False
    if isinstance(value, NOT_WALKED):
        return None, False
    if dataclasses.is_dataclass(value):
        names = [each.name for each in dataclasses.fields(value)]
        return ((f".{name}", getattr(value, name)) for name in names if hasattr(value, name)), False
    attributes = {name: part for name, part in attributes_of(value).items() if not _is_cached(value, name)}
    return ([(f".{name}", part) for name, part in attributes.items()] if attributes else None), True


def _entries(mapping: Mapping[object, object]) -> Iterator[tuple[str, object]]:
    seen: set[str] = set()
    for index, (key, part) in enumerate(entries(mapping)):
        label = _key(key, index)
        if label in seen:
            # As two keys that are NaN.
            label = f"{label} {index}"
        seen.add(label)
        yield f"[{label}]", part
        if isinstance(key, torch.Tensor) or (isinstance(key, tuple) and not _is_plain_key(key)):
            # Its label says nothing of what is in it.
            yield f"[{label}].key", key


def attributes_beside(value: object) -> Iterable[tuple[str, object]]:
    """The attributes of a container or dataclass of the project's that are none of its elements or fields."""
    if not is_projects(type(value).__module__):
        return ()
    if dataclasses.is_dataclass(value):
        known = {each.name for each in dataclasses.fields(value)}
    elif _pythons(value) is not None:
        known = set()
    else:
        return ()
    found = attributes_of(value).items()
    return ((f".{name}", part) for name, part in found if name not in known and not _is_cached(value, name))


def elements(value: Any) -> Iterator[object]:
    """The elements of a built-in container, whatever `__iter__` of its class yields, which may be infinite."""
    kind = _pythons(value)
    given: Iterator[object] = iter(value) if kind is None else kind.__iter__(value)
    return given


def entries(mapping: Any) -> Iterable[tuple[object, object]]:
    """The items of a dict, likewise; of another mapping, what `items` yields."""
    kind = _pythons(mapping)
    given: Iterable[tuple[object, object]] = mapping.items() if kind is None else kind.items(mapping)
    return given


def gives_out_more(value: Any) -> bool:
    """Whether a container subclass yields more than it holds: copying it might never end."""
    kind = _pythons(value)
    if kind is None or kind is type(value):
        return False
    held: int = kind.__len__(value)
    given: Iterable[object] = value.items() if isinstance(value, dict) else value
    return len([*itertools.islice(given, held + 1)]) > held


def _pythons(value: object) -> Any:
    """The built-in container type of a value, or None."""
    return next((each for each in _PYTHONS if isinstance(value, each)), None)


def attributes_of(value: object) -> dict[str, object]:
    """The attributes stored in an object, without calling properties or `__getattr__`."""
    found = dict(own_dict(value) or {})
    for name in slots_of(value):
        if (slot := inspect.getattr_static(type(value), name, None)) is not None:
            try:
                found[name] = slot.__get__(value, type(value))
            except (AttributeError, TypeError):  # empty, or hidden by another attribute of the class
                continue
    return found


def own_dict(value: object) -> dict[str, object] | None:
    """The `__dict__` of an object, even if its class overrides `__dict__`."""
    for base in type(value).__mro__:
        found = base.__dict__.get("__dict__")
        if isinstance(found, (types.GetSetDescriptorType, types.MemberDescriptorType)):
            own = found.__get__(value, type(value))
            return own if isinstance(own, dict) else None
    return None


def slots_of(value: object) -> tuple[str, ...]:
    """The attributes of an object in `__slots__` of its classes, by the names to read them under."""
    found: list[str] = []
    for base in type(value).__mro__:
        slots = base.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if name in ("__dict__", "__weakref__"):
                continue
            private = name.startswith("__") and not name.endswith("__")
            found.append(f"_{base.__name__.lstrip('_')}{name}" if private else name)
    return tuple(dict.fromkeys(found))


def _is_cached(value: object, name: str) -> bool:
    """Whether an attribute exists only because it was accessed."""
    made_once = isinstance(inspect.getattr_static(type(value), name, None), functools.cached_property)
    return made_once or _is_mocked(value, name)


def _is_mocked(value: object, name: str) -> bool:
    """The same for a mock, which creates a child for each attribute that is accessed, also by Dynamo."""
    return (name == "_mock_children" or is_pythons(name)) and issubclass(type(value), mock.NonCallableMock)


def is_scalar(value: object) -> bool:
    if isinstance(value, (set, frozenset)):
        return all(map(_is_plain_key, elements(value)))
    return isinstance(value, SCALARS)


def exact(value: object) -> Any:
    """A plain value converted to Python's own type: a subclass may define equality in any way."""
    if isinstance(value, enum.Enum):
        return value
    for kind, of in _EXACT:
        if isinstance(value, kind):
            return value if type(value) in (kind, bool) else of(value)
    for pythons in (set, frozenset):
        if isinstance(value, pythons):
            return pythons(map(_exact_key, elements(value)))
    return value


def _exact_key(value: object) -> object:
    return tuple(map(_exact_key, elements(value))) if isinstance(value, tuple) else exact(value)


def is_numpy(value: object) -> bool:
    if type(value).__module__ != "numpy":
        return False
    kind = getattr(getattr(value, "dtype", None), "kind", "")
    return isinstance(kind, str) and kind in tuple("biufc")


def _key(key: object, index: int) -> str:
    return repr(key) if _is_plain_key(key) else f"<{type(key).__name__} {index}>"


def _is_plain_key(key: object) -> bool:
    return isinstance(key, SCALARS) or (isinstance(key, tuple) and all(map(_is_plain_key, elements(key))))


def kind_of(value: object) -> Kind:
    """The kind of an object whose class is not the project's, judged by what it holds."""
    if _package(type(value)) in CODE:
        return "code"
    try:
        return _kind_of(value)
    except Exception:  # noqa: BLE001 - what is near may refuse even to tell its class
        return "code"


def _kind_of(value: object) -> Kind:
    bound = Bound(VALUES_NEAR)
    kind: Kind = "plain"
    pending, seen = deque([value]), {id(value)}
    while pending:
        if (found := _kind_near(pending.popleft(), pending, seen, bound)) == "results":
            return "results"
        kind = "code" if found == "code" else kind
        if bound.met:
            return "large"
    return kind


def _kind_near(value: object, pending: deque[object], seen: set[int], bound: Bound) -> Kind:
    """What one value tells about the object that holds it; its own parts are then queued."""
    if isinstance(value, dict):
        parts: Iterable[object] = (part for _, part in entries(value))
    elif isinstance(value, (list, tuple, deque)):
        parts = elements(value)
    else:
        found = attributes_of(value).items()
        parts = (part for name, part in found if not is_pythons(name) and not _is_mocked(value, name))
    kind: Kind = "plain"
    for part in parts:
        if not bound.take():
            break
        if isinstance(part, (torch.Tensor, torch.nn.Module)) or is_numpy(part):
            return "results"
        if isinstance(part, type) or is_scalar(part) or id(part) in seen:
            continue
        if is_projects(type(part).__module__):
            return "results"
        seen.add(id(part))
        if isinstance(part, (*NOT_WALKED, functools.partial)) or _package(type(part)) in CODE:
            kind = "code"
        elif isinstance(part, (dict, list, tuple, deque)) or own_dict(part) is not None or slots_of(part):
            pending.append(part)
        else:
            # A lock, a weak reference, a handle: what it holds nobody can say.
            kind = "code"
    return kind


def is_followed(value: object) -> bool:
    """Whether an object's class is the project's, or a standard one that holds what its user stores."""
    module = type(value).__module__
    return module in HOLDERS or is_projects(module)


def is_pythons(name: str) -> bool:
    """Whether an attribute is Python's own, or bookkeeping of an abstract base class."""
    return isinstance(name, str) and (name.startswith("__") or name.startswith("_abc_"))


def is_users(module: str | None) -> bool:
    """Whether a module is neither Python's nor torch's nor this package's."""
    package = (module or "").partition(".")[0]
    return package not in sys.stdlib_module_names and package not in ("torch", "_pytest", "pytest_compilecontract")


@functools.cache
def is_projects(module: str | None) -> bool:
    """Whether a module is the project's own code, not an installed package's."""
    if module == "__main__":
        return True
    if not isinstance(module, str) or not is_users(module) or module.partition(".")[0] in CODE:
        return False
    file = getattr(sys.modules.get(module), "__file__", None) or ""
    return not _is_installed(module, Path(file.replace("\\", "/")))


def _is_installed(module: str, file: Path) -> bool:
    """Whether an installer put a module there: in site-packages, or next to a record that lists it.

    `pip install --target DIR` makes a folder of any name, in which each distribution has its `.dist-info`. That of an
    editable install names none of the project's files.
    """
    if {"site-packages", "dist-packages"} & set(file.parts):
        return True
    depth = module.count(".") + (file.stem == "__init__")
    if not file.is_absolute() or len(file.parents) <= depth:
        return False
    home = file.parents[depth]
    own = file.relative_to(home).as_posix()
    return any(_names(record, own) for record in home.glob("*.dist-info/RECORD") if record.is_file())


def _names(record: Path, file: str) -> bool:
    """Whether a distribution's record lists the file; a name with a comma is quoted in it."""
    try:
        with record.open(encoding="utf-8", errors="replace") as lines:
            return any(line.startswith((f"{file},", f'"{file}",')) for line in lines)
    except OSError:
        return False


def _package(kind: type) -> str:
    return str(kind.__module__).partition(".")[0]


def firsts(values: Iterable[object], bound: Bound) -> Iterator[object]:
    """The values, up to the bound; `bound.met` is set if there are more."""
    return itertools.takewhile(lambda _: bound.take(), values)
