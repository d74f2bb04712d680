"""torch's settings: their modules, their defaults, and whether a value may differ from the default.

Every list of these modules is here, with the reason for its contents.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

DYNAMO = "torch._dynamo.config"
INDUCTOR = "torch._inductor.config"
COMPILER = "torch.compiler.config"
_FUNCTORCH = "torch._functorch.config"
_SYMBOLIC_SHAPES = "torch.fx.experimental._config"
# Kept as they were around a test, and set by name; where torch's defaults are read.
MODULES = (DYNAMO, INDUCTOR, _FUNCTORCH, COMPILER, _SYMBOLIC_SHAPES)
# What is not torch's default in them is a fact of the environment.
RECORDED = (DYNAMO, INDUCTOR, _FUNCTORCH, COMPILER)
# What changes what Dynamo makes of a function; Inductor has no part in it.
CAPTURING = (DYNAMO, _FUNCTORCH, _SYMBOLIC_SHAPES, COMPILER)


class ConfigModule(Protocol):
    """A config module of torch."""

    def get_config_copy(self) -> dict[str, object]: ...
    def patch(self, changes: Mapping[str, object]) -> AbstractContextManager[object]: ...


def config_module(name: str) -> ConfigModule | None:
    """The config module of that name, if torch has it; Inductor's is cheap to import, unlike Inductor."""
    try:
        module: object = importlib.import_module(name)
    except ImportError:
        return None
    return module if hasattr(module, "patch") and hasattr(module, "get_config_copy") else None


@dataclass(frozen=True, kw_only=True, slots=True)
class Setting:
    """One setting of a config module, by its name in it, with torch's own default."""

    name: str
    default: object


def has_settings(module: object) -> bool:
    """Whether this is a config module whose settings can be read."""
    return hasattr(module, "_config")


def settings_of(module: Any) -> Iterator[Setting]:
    """The settings of a config module, sorted by name, without aliases.

    Raises:
        AttributeError: this torch stores them differently.
    """
    for name, entry in sorted(module._config.items()):
        if entry.alias is None:
            yield Setting(name=name, default=entry.default)


def default_of(module: object, name: str) -> Setting | None:
    """The setting of that name; None if this torch does not have it."""
    entry = getattr(module, "_config", {}).get(name)
    return None if entry is None or entry.alias is not None else Setting(name=name, default=entry.default)


def may_differ(module: Any, name: str) -> bool:
    """Whether a setting may differ from its default: a cheap check before the value is read."""
    # `_is_default` alone is not enough, both ways: a value that was set to the default, or restored by a patch, is not
    # default to it; and one that another setting implies (torch 2.15: numerics="strict") is.
    return not module._is_default(name) or name in getattr(module, "_implications", {})


def value_of(module: Any, name: str) -> object:
    """The value of a setting."""
    entry = module._config[name]
    warned = getattr(entry, "_deprecation_warned", None)
    value: object = getattr(module, name)
    if warned is False:
        # Reading a deprecated setting uses up the one warning that its user is to see.
        entry._deprecation_warned = False
    return value
