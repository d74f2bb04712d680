"""Lanes: one exact way to compile and run a contract. What a lane is, not how it runs: no torch here."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Literal

from pytest_compilecontract.errors import UsageError
from pytest_compilecontract.wording import meant

from .measurement import NO_DYNAMO

ALL = "all"
DTYPES = ("bfloat16", "float16", "float32", "float64")
# torch.autocast warns and switches itself off for any other dtype: such a lane would not be what it says.
AUTOCAST_DTYPES = ("bfloat16", "float16")
# torch.set_float32_matmul_precision's: "highest" is float32 throughout, "high" allows TF32 on CUDA.
MATMUL_PRECISIONS = ("highest", "high", "medium")
CACHES = ("lane", "shared")
# Process groups of torch.distributed: "fake" moves nothing, and is any number of ranks in one process.
FAKE = "fake"
PROCESS_GROUPS = ("gloo", "nccl", FAKE)
MOST_RANKS = 1024
# Backends that torch.compile and Dynamo have no part in: XLA compiles the whole target, on the CPU plugin of PJRT.
TORCHAX = "torchax"
TORCH_XLA = ("torch_xla", "openxla")
XLA = (TORCHAX, *TORCH_XLA)

_LANE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
_DEVICE = re.compile(r"[a-z][a-z0-9_]*(:[0-9]+)?")


@dataclass(frozen=True, kw_only=True, slots=True)
class Lane:
    """One exact way to run a contract; None means torch's own default.

    `name` is the lane's name; torch.compile's parameter `name` is `compile_name` here and `name` in the project's
    table. `device` None is cuda if available, else cpu. `dtype` and `autocast` are names of torch dtypes.
    `matmul_precision` is what torch.set_float32_matmul_precision is given, for eager and compiled alike.
    `in_place` compiles a module with module.compile(), which leaves its type and its state_dict keys alone, instead of
    torch.compile(module).
    `cache` "lane" gives the lane empty compile caches of its own, "shared" those of the process. `dynamo` and
    `inductor` are settings of torch._dynamo.config and torch._inductor.config by dotted name. `requires` are packages.
    `ranks` is how many processes run the contract in one process group, which `process_group` names; without a name it
    is nccl where the device is cuda, else gloo.
    """

    name: str
    backend: str = "inductor"
    mode: str | None = None
    dynamic: bool | None = None
    fullgraph: bool | None = None
    options: Mapping[str, object] | None = field(default=None, hash=False)
    disable: bool | None = None
    compile_name: str | None = None
    recompile_limit: int | None = None
    isolate_recompiles: bool | None = None
    device: str | None = None
    dtype: str | None = None
    autocast: str | None = None
    matmul_precision: str | None = None
    in_place: bool = False
    cache: Literal["lane", "shared"] = "lane"
    dynamo: Mapping[str, object] = field(default_factory=dict, hash=False)
    inductor: Mapping[str, object] = field(default_factory=dict, hash=False)
    requires: tuple[str, ...] = ()
    ranks: int | None = None
    process_group: str | None = None
    # The fields that the project's table gave, whatever their value; what a lane is does not depend on it.
    given: frozenset[str] = field(default=frozenset(), compare=False, repr=False)

    @property
    def reference(self) -> bool:
        """True for the eager lane: what the others are compared with, and never judged."""
        return self.name == "eager"

    @property
    def is_xla(self) -> bool:
        """True if XLA compiles it instead of torch.compile: then nothing of Dynamo's is measured."""
        return self.backend in XLA

    @property
    def is_launched(self) -> bool:
        """True if several processes run it, so that what one of them calls must be called by all."""
        return self.ranks is not None and self.process_group != FAKE

    @property
    def needs_cuda(self) -> bool:
        """True if the lane means nothing on another device: on a CPU, CUDA graphs are silently ignored."""
        if self.device is None:
            return self.mode == "reduce-overhead" or self.process_group == "nccl"
        return self.device.split(":")[0] == "cuda"

    @property
    def asks_for_cuda_graphs(self) -> bool:
        """True where Inductor is to record CUDA graphs, by mode, option or setting, or where that is the backend."""
        if self.backend == "cudagraphs":
            return True
        asked = self.mode in ("reduce-overhead", "max-autotune")
        return bool({**self.inductor, **(self.options or {})}.get("triton.cudagraphs", asked))

    def compile_options(self) -> dict[str, object]:
        """The keywords for torch.compile: only those that the lane sets, since an older torch knows fewer of them."""
        values: dict[str, object] = {"backend": self.backend}
        for parameter, name in _COMPILE_FIELDS.items():
            value = getattr(self, name)
            if value is not None:
                values[parameter] = dict(value) if isinstance(value, Mapping) else value
        return values

    def to_dict(self) -> dict[str, object]:
        """The lane as plain data: its backend and what it sets, by the keys of the project's table."""
        bare = Lane(name=self.name)
        plain: dict[str, object] = {"backend": self.backend}
        for key, name in FIELD_OF.items():
            value = getattr(self, name)
            if value != getattr(bare, name):
                plain[key] = _plain(value)
        return plain


def not_run_again(settings: Mapping[str, object]) -> str:
    """Why a lane with these settings is run for its verdict alone, and nothing is looked for in more runs.

    Empty if it can be: then its process is the session's own.
    """
    if settings.get("backend") in XLA:
        return NO_DYNAMO
    launched = settings.get("ranks") is not None and settings.get("process_group") != FAKE
    return "a lane with ranks is not run again" if launched else ""


# Names that mean something else where a lane is named: every lane, and a ladder of them.
_RESERVED = (ALL, "frontier")
_COMPILE_FIELDS = {
    "mode": "mode",
    "dynamic": "dynamic",
    "fullgraph": "fullgraph",
    "options": "options",
    "disable": "disable",
    "name": "compile_name",
    "recompile_limit": "recompile_limit",
    "isolate_recompiles": "isolate_recompiles",
}
# The fields of a lane by the keys of the project's table.
FIELD_OF = {
    {"compile_name": "name"}.get(each.name, each.name): each.name
    for each in fields(Lane)
    if each.name not in ("name", "given")
}

BUILT_IN: dict[str, Lane] = {
    lane.name: lane
    for lane in (
        Lane(name="eager", backend="eager", disable=True),
        Lane(name="capture", backend="eager"),
        Lane(name="aot", backend="aot_eager"),
        Lane(name="inductor"),
        Lane(name="dynamic", dynamic=True),
        Lane(name="cudagraphs", mode="reduce-overhead", device="cuda"),
        Lane(name="autotune", mode="max-autotune-no-cudagraphs", device="cuda"),
        Lane(name="xla-torchax", backend=TORCHAX, device="cpu"),
        Lane(name="xla-lazy", backend="torch_xla", device="cpu"),
        Lane(name="xla-openxla", backend="openxla", device="cpu"),
    )
}


def lanes_from_table(table: Mapping[str, object], *, where: str) -> dict[str, Lane]:
    """The project's own lanes, by name; `where` is the file that the table is in.

    Raises:
        UsageError: the name, a key or a value of a lane is not valid, or it has both mode and options.
    """
    return {name: _lane(name, keys, where=f"{where}: lane {name!r}") for name, keys in table.items()}


def chosen(names: Sequence[str], known: Mapping[str, Lane]) -> tuple[Lane, ...]:
    """The lanes of these names, in that order and each once; "all" is every known lane but eager and those of XLA.

    Those have packages and an environment of their own, so they are run where somebody names them.

    Raises:
        UsageError: an unknown name, or none at all.
    """
    lanes: dict[str, Lane] = {}
    for name in names:
        if name == ALL:
            for lane in known.values():
                if not (lane.reference or lane.is_xla):
                    lanes.setdefault(lane.name, lane)
        elif name in known:
            lanes.setdefault(name, known[name])
        else:
            raise UsageError(f"unknown lane {name!r}{meant(name, known)} (known lanes: {', '.join(sorted(known))})")
    if not lanes:
        raise UsageError(f"no lane given (known lanes: {', '.join(sorted(known))})")
    return tuple(lanes.values())


def narrowed(lanes: Sequence[Lane], names: Sequence[str] | None) -> tuple[Lane, ...]:
    """Those of `lanes` that a contract names; None or "all" names them all. Never a lane that was not chosen.

    A name without a lane is not an error here, since that lane may exist without being chosen: `chosen` checks names.
    """
    if names is None or ALL in names:
        return tuple(lanes)
    return tuple(lane for lane in lanes if lane.name in names)


def _lane(name: str, keys: object, *, where: str) -> Lane:
    if name in BUILT_IN or name in _RESERVED:
        names = ", ".join(sorted([*BUILT_IN, *_RESERVED]))
        raise UsageError(f"{where}: this name is built in (built-in names: {names})")
    if not _LANE_NAME.fullmatch(name):
        raise UsageError(f"{where}: expected a name of letters, digits, '_', '.' and '-'")
    if not isinstance(keys, Mapping):
        raise UsageError(f"{where}: expected a table, got {keys!r}")
    values: dict[str, Any] = {}
    for key, value in keys.items():
        if key not in _KEYS:
            raise UsageError(f"{where}: unknown key {key!r} (known keys: {', '.join(sorted(_KEYS))})")
        expected, accept = _KEYS[key]
        if not accept(value):
            raise UsageError(f"{where}: {key}: expected {expected}, got {value!r}")
        values[FIELD_OF[key]] = _frozen(value)
    if "mode" in values and "options" in values:
        raise UsageError(f"{where}: mode and options: torch.compile takes one of them, got both")
    if "process_group" in values and "ranks" not in values:
        raise UsageError(f"{where}: process_group: needs ranks")
    return Lane(name=name, given=frozenset(values), **values)


def _frozen(value: object) -> object:
    if isinstance(value, Mapping):
        return _dotted(value)
    return tuple(value) if isinstance(value, list) else value


def _plain(value: object) -> object:
    if isinstance(value, Mapping):
        return dict(value)
    return list(value) if isinstance(value, tuple) else value


def _dotted(table: Mapping[str, object], prefix: str = "") -> dict[str, object]:
    # TOML reads an unquoted `triton.cudagraphs = true` as a table in a table; torch's name for it is dotted.
    flat: dict[str, object] = {}
    for key, value in table.items():
        if isinstance(value, Mapping) and value:
            flat.update(_dotted(value, f"{prefix}{key}."))
        else:
            flat[prefix + key] = value
    return flat


def _is_text(value: object) -> bool:
    return isinstance(value, str) and bool(value.strip())


def _is_flag(value: object) -> bool:
    return isinstance(value, bool)


def _is_table(value: object) -> bool:
    return isinstance(value, Mapping)


def _is_positive(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def is_ranks(value: object) -> bool:
    """Whether a value is a number of ranks: one rank alone has no other to agree with."""
    return isinstance(value, int) and not isinstance(value, bool) and 2 <= value <= MOST_RANKS


def _is_device(value: object) -> bool:
    return isinstance(value, str) and _DEVICE.fullmatch(value) is not None


def _are_texts(value: object) -> bool:
    return isinstance(value, (list, tuple)) and all(_is_text(each) for each in value)


def _one_of(names: tuple[str, ...]) -> tuple[str, Callable[[object], bool]]:
    return f"one of {', '.join(names)}", lambda value: isinstance(value, str) and value in names


_TEXT = ("a name", _is_text)
_FLAG = ("true or false", _is_flag)
_TABLE = ("a table", _is_table)
_KEYS: dict[str, tuple[str, Callable[[object], bool]]] = {
    "backend": _TEXT,
    "mode": _TEXT,
    "dynamic": _FLAG,
    "fullgraph": _FLAG,
    "options": _TABLE,
    "disable": _FLAG,
    "name": _TEXT,
    "recompile_limit": ("a whole number of at least 1", _is_positive),
    "isolate_recompiles": _FLAG,
    "device": ("a device such as 'cpu' or 'cuda:0'", _is_device),
    "dtype": _one_of(DTYPES),
    "autocast": _one_of(AUTOCAST_DTYPES),
    "matmul_precision": _one_of(MATMUL_PRECISIONS),
    "in_place": _FLAG,
    "cache": _one_of(CACHES),
    "dynamo": _TABLE,
    "inductor": _TABLE,
    "requires": ("a list of package names", _are_texts),
    "ranks": (f"a whole number from 2 to {MOST_RANKS}", is_ranks),
    "process_group": _one_of(PROCESS_GROUPS),
}
