"""Attribution: what differs between the two environments of a lane, by kind of cause."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace

from pytest_compilecontract.facts.receipt import PJRT, Entry, Environment, Receipt

from .side import Side

# Which fields of an environment are whose; a release of torch brings its own triton and is built for one CUDA.
_FIELDS_OF: dict[str, tuple[str, ...]] = {
    "torch": ("torch", "triton", "cuda"),
    "library": ("cudnn", "nccl", "python", "pytest", "plugin"),
    "hardware": ("device", "capability", "device_count", "processor", "driver", "platform"),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Attribution:
    """What differs between the two environments, each as "torch 2.11.0 -> 2.15.0".

    An empty field did not change. `settings` are those of Dynamo and Inductor, and the environment variables that torch
    reads; `project` is the commit, the lane's definition and the contract's limits. `defaults` are the settings that
    both releases of torch have with different defaults: they come with torch, and are not a suspect of their own.
    """

    torch: tuple[str, ...] = ()
    library: tuple[str, ...] = ()
    hardware: tuple[str, ...] = ()
    settings: tuple[str, ...] = ()
    project: tuple[str, ...] = ()
    defaults: tuple[str, ...] = ()

    def suspects(self) -> tuple[str, ...]:
        """The kinds of differences, one of which caused the drift."""
        return tuple(each.name for each in fields(self) if each.name != "defaults" and getattr(self, each.name))


def torch_of(receipt: Receipt) -> str:
    """The torch that a receipt was measured with, as text; several if its environments differ."""
    names = sorted({_torch_in(each) for each in receipt.environments.values()})
    return ", ".join(names) or (receipt.setup.asked if receipt.setup is not None else "no torch")


def _torch_in(environment: Environment) -> str:
    """The torch of an environment, and with what XLA compiles there."""
    libraries = environment.libraries
    packages = [f"{name} {libraries[name]}" for name in ("torchax", "torch_xla") if name in libraries]
    pjrt = [f"{PJRT}={libraries[PJRT]}"] if PJRT in libraries else []
    return " ".join([f"torch {environment.torch}" if environment.torch else "no torch", *packages, *pjrt])


def device_of(env: Environment, lane_settings: Mapping[str, object]) -> str:
    """The device type that a lane ran on: "cpu", or CUDA with its compute capability."""
    named = lane_settings.get("device")
    if not env.capability or (isinstance(named, str) and named.startswith("cpu")):
        return "cpu"
    return f"cuda sm{env.capability.replace('.', '')}"


def attribution_of(before: Side, after: Side) -> Attribution:
    """What differs between the two sides, including the lane and its limits."""
    return with_lane(between_environments(before, after), before.entry, after.entry)


def between_environments(before: Side, after: Side) -> Attribution:
    """What differs between the environments of the two sides, for any lane."""
    told = tuple(_change(*each) for each in changed_defaults(before.defaults, after.defaults))
    return replace(_attribution(before.environment, after.environment), defaults=told)


def with_lane(found: Attribution, old: Entry, new: Entry) -> Attribution:
    """The same, with what differs in the lane's definition and in its limits."""
    if old.lane_settings == new.lane_settings and old.limits == new.limits:
        return found
    changed = (
        *(f"lane: {each}" for each in _differing(old.lane_settings, new.lane_settings)),
        *(f"limit: {each}" for each in _differing(old.limits, new.limits)),
    )
    return replace(found, project=(*found.project, *changed))


def changed_defaults(before: Mapping[str, str], after: Mapping[str, str]) -> tuple[tuple[str, str, str], ...]:
    """The settings that both torch releases have with different defaults, each with both."""
    both = sorted(before.keys() & after.keys())
    return tuple((name, before[name], after[name]) for name in both if before[name] != after[name])


def _attribution(before: Environment, after: Environment) -> Attribution:
    def differing(names: Iterable[str]) -> tuple[str, ...]:
        return tuple(
            _change(name.replace("_", " "), getattr(before, name), getattr(after, name))
            for name in names
            if getattr(before, name) != getattr(after, name)
        )

    project: tuple[str, ...] = ()
    if before.commit != after.commit:
        project = (_change("commit", _commit(before), _commit(after)),)
    elif before.dirty or after.dirty:
        project = ("uncommitted changes",)
    elif before.commit is None:
        project = ("commit not known",)
    return Attribution(
        torch=differing(_FIELDS_OF["torch"]),
        library=(*differing(_FIELDS_OF["library"]), *_differing(before.libraries, after.libraries)),
        hardware=differing(_FIELDS_OF["hardware"]),
        settings=(
            *_differing(before.settings or {}, after.settings or {}, unset="torch's default"),
            *_differing(before.variables, after.variables, unset="not set"),
            *_differing(before.overrides, after.overrides, unset="torch's default"),
        ),
        project=project,
    )


def _commit(environment: Environment) -> str | None:
    """A commit as it is shown, with whether the files were as they are in it."""
    changes = " with uncommitted changes" if environment.dirty else ""
    return environment.commit and f"{environment.commit[:12]}{changes}"


def _differing(before: Mapping[str, object], after: Mapping[str, object], unset: str = "none") -> tuple[str, ...]:
    names = sorted({*before, *after})
    return tuple(
        _change(name, before.get(name, unset), after.get(name, unset))
        for name in names
        if (name in before) != (name in after) or before.get(name) != after.get(name)
    )


def _change(name: str, before: object, after: object) -> str:
    shown = ["none" if value is None else str(value) for value in (before, after)]
    return f"{name} {shown[0]} -> {shown[1]}"
