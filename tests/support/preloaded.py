"""The package's modules, imported once by the process that forks sessions, and given to each session that imports them.

A session imports as a fresh one does: nothing of the package is in `sys.modules` before it asks for it, and a module
that it asks for imports in turn what it does in a fresh process. But its body has run already.
"""

from __future__ import annotations

import builtins
import contextlib
import importlib
import pkgutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

PACKAGE = "pytest_compilecontract"


@dataclass(frozen=True, kw_only=True, slots=True)
class Kept:
    """A module whose body has run: what it had imported of the package by then, and what its names stood for."""

    module: ModuleType
    spec: ModuleSpec
    imports: tuple[tuple[str, tuple[str, ...], int], ...]
    names: Mapping[str, object]


class Preloaded(MetaPathFinder, Loader):
    """Gives each module once. Who asks again wants it anew, and from then on all are imported from their files."""

    def __init__(self, kept: Mapping[str, Kept]) -> None:
        self._kept = kept
        self._given: set[str] = set()
        self._over = False

    def install(self) -> None:
        """Have this process import what is kept, if it would import the same file."""
        found = PathFinder.find_spec(PACKAGE)
        if PACKAGE in self._kept and found is not None and found.origin == self._kept[PACKAGE].spec.origin:
            sys.meta_path.insert(0, self)
            self._go_before_pytest()

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        if not self.has(name):
            return None
        kept = self._kept[name]
        return ModuleSpec(name, self, origin=kept.spec.origin, is_package=hasattr(kept.module, "__path__"))

    def has(self, name: str) -> bool:
        if name in self._given:
            self._over = True
        return name in self._kept and not self._over

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        self._given.add(spec.name)
        return self._kept[spec.name].module

    def exec_module(self, module: ModuleType) -> None:
        kept = self._kept[module.__name__]
        module.__spec__ = kept.spec
        for name, wanted, level in kept.imports:
            builtins.__import__(name, vars(module), None, wanted, level)
        # A module that it imports becomes an attribute of its package, over a function of that name.
        vars(module).update(kept.names)

    def _go_before_pytest(self) -> None:
        """pytest rewrites the assertions of a plugin's modules as they are imported, and puts its own finder first."""
        rewriting: Any = importlib.import_module("_pytest.assertion.rewrite").AssertionRewritingHook
        find_spec = rewriting.find_spec
        rewriting.find_spec = lambda hook, name, *more: None if self.has(name) else find_spec(hook, name, *more)


def preload(folder: Path) -> Preloaded:
    """Import all of the package that is in this folder, and take it out of `sys.modules` again."""
    imports: dict[str, dict[tuple[str, tuple[str, ...], int], None]] = {}
    sys.path.insert(0, str(folder))
    try:
        with _recorded(imports):
            package = importlib.import_module(PACKAGE)
            for found in pkgutil.walk_packages(package.__path__, f"{PACKAGE}."):
                if found.name != f"{PACKAGE}.__main__":
                    with contextlib.suppress(ImportError):  # of what is optional
                        importlib.import_module(found.name)
    finally:
        sys.path.remove(str(folder))
    modules = {name: sys.modules.pop(name) for name in [*sys.modules] if name.partition(".")[0] == PACKAGE}
    for name, module in modules.items():
        parent, _, child = name.rpartition(".")
        if parent and vars(modules[parent]).get(child) is module:
            delattr(modules[parent], child)
    return Preloaded(
        {
            name: Kept(module=module, spec=spec, imports=tuple(imports.get(name, ())), names=dict(vars(module)))
            for name, module in modules.items()
            if (spec := module.__spec__) is not None
        }
    )


@contextlib.contextmanager
def _recorded(imports: dict[str, dict[tuple[str, tuple[str, ...], int], None]]) -> Iterator[None]:
    """Note what the body of each module of the package imports of the package, in order."""
    start = builtins.__import__

    def note(
        name: str,
        globals: Mapping[str, object] | None = None,
        locals: Mapping[str, object] | None = None,
        fromlist: Sequence[str] | None = (),
        level: int = 0,
    ) -> ModuleType:
        of, spec = (globals or {}).get("__name__"), (globals or {}).get("__spec__")
        running = isinstance(of, str) and getattr(spec, "_initializing", False)
        if running and (level or name.partition(".")[0] == PACKAGE):
            imports.setdefault(str(of), {})[name, tuple(fromlist or ()), level] = None
        return start(name, globals, locals, fromlist, level)

    builtins.__import__ = note
    try:
        yield
    finally:
        builtins.__import__ = start
