"""Where Dynamo is entered, and where its settings are changed: taps that stay set, and are free until then."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Iterable
from typing import Any

from .settings import ConfigModule
from .taps import Taps

# Until it is imported, nothing can be compiled.
DYNAMO = "torch._dynamo"


class Entrances(Taps):
    """Notify whenever Dynamo is about to compile, and keep the values of settings before they are changed.

    `told` is called first, in the thread that compiles; if it returns True, taps that it has set see this attempt as
    well. `asked` is called by torch.compile, with any backend. `configs` are the modules of settings that matter.
    """

    def __init__(self, *, told: Callable[[], bool], asked: Callable[[], None], configs: Iterable[str]) -> None:
        super().__init__()
        self._told = told
        self._asked = asked
        self._configs = frozenset(configs)
        self._were: dict[str, tuple[ConfigModule, dict[str, object]]] | None = None
        # A frame comes by the first; export, and a graph that is specialised later, only by the second.
        self._at("convert_frame", _attribute(f"{DYNAMO}.convert_frame", "ConvertFrameAssert"), "__call__")
        self._at("call_user_compiler", _attribute(f"{DYNAMO}.output_graph", "OutputGraph"), "call_user_compiler")
        self.set("optimize", importlib.import_module(DYNAMO), "optimize", self._on_optimize)
        for name, kind in _kinds_of_settings():
            self.set(f"settings of {name}", kind, "__setattr__", self._on_setting)

    def note_settings(self) -> None:
        """From here on, keep the values of settings before they are changed."""
        self._were = {}

    def settings(self) -> list[tuple[ConfigModule, dict[str, object]]]:
        """Each module that had a setting written since `note_settings`, and all its settings before; stops noting."""
        were, self._were = self._were or {}, None
        return list(were.values())

    def _at(self, tap: str, owner: object, attribute: str) -> None:
        self.set(tap, owner, attribute, functools.partial(self._entered, owner, attribute))

    def _entered(
        self, owner: object, attribute: str, original: Callable[..., object], *args: object, **kwargs: object
    ) -> object:
        if self._told():
            return getattr(owner, attribute)(*args, **kwargs)
        return original(*args, **kwargs)

    def _on_optimize(self, original: Callable[..., object], *args: object, **kwargs: object) -> object:
        self._asked()
        return original(*args, **kwargs)

    def _on_setting(self, original: Callable[..., None], config: Any, name: str, value: object) -> None:
        were = self._were
        if were is not None:
            module = getattr(config, "__name__", "")
            # torch 2.15 sets what is no setting, too, while it makes the module: then there is nothing to copy yet.
            if module in self._configs and module not in were and name in vars(config).get("_config", ()):
                were[module] = (config, config.get_config_copy())
        original(config, name, value)


def anything_compiled() -> bool:
    """Whether Dynamo has compiled any frame since it was last reset."""
    frames = importlib.import_module("torch._dynamo.convert_frame")
    codes = [getattr(getattr(frames, name, None), "seen", None) for name in ("input_codes", "output_codes")]
    return any(each is None or len(each) > 0 for each in codes)


def _kinds_of_settings() -> list[tuple[str, type]]:
    """torch's classes of config modules that define `__setattr__`."""
    module = importlib.import_module("torch.utils._config_module")
    base = getattr(module, "ConfigModule", type(None))
    kinds = [(name, kind) for name, kind in vars(module).items() if isinstance(kind, type)]
    return [(name, kind) for name, kind in kinds if issubclass(kind, base) and "__setattr__" in vars(kind)]


def _attribute(module: str, name: str) -> object:
    try:
        return getattr(importlib.import_module(module), name, None)
    except ImportError:
        return None
