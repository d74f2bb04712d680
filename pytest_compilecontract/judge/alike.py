"""Facts that must be the same in several measurements of one contract: of its ranks, or of two of its lanes."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from pytest_compilecontract.facts.collectives import told
from pytest_compilecontract.facts.measurement import NO_DYNAMO, Measurement
from pytest_compilecontract.facts.verdict import Facts
from pytest_compilecontract.wording import counted

from .tell import told_state

# Told of each where they differ, and no more.
_TOLD = 8
Read = Callable[[Measurement], str]


def differing(seen: Mapping[str, Measurement], facts: Mapping[str, Read]) -> dict[str, Facts]:
    """The facts in which the measurements differ, by name, each with what every measurement has, by its label."""
    found: dict[str, Facts] = {}
    for name, read in facts.items():
        told_by = {label: read(each) for label, each in seen.items()}
        if len(set(told_by.values())) > 1:
            lines = [f"{label}: {text}" for label, text in [*told_by.items()][:_TOLD]]
            found[name] = ((f"{name} differ", *lines),)
    return found


def _graphs(seen: Measurement) -> str:
    if seen.graphs is None:
        return "not measured"
    split = f", handed to a backend {seen.backend_calls} times" if seen.backend_calls not in (None, seen.graphs) else ""
    return f"{counted(seen.graphs, 'graph')}{split}"


def _breaks(seen: Measurement) -> str:
    if seen.graph_breaks is None:
        return "not measured"
    return "; ".join(f"{each.location}: {each.kind}" for each in seen.graph_breaks) or "none"


def _recompiles(seen: Measurement) -> str:
    if seen.compiled_again is None:
        return "not measured"
    return "; ".join(f"{each.location or each.frame}: {each.kind}" for each in seen.compiled_again) or "none"


def _eager(seen: Measurement) -> str:
    if seen.frames_run_eager is None:
        return "not measured"
    return "; ".join(f"{each.location or each.frame}: {each.cause}" for each in seen.frames_run_eager) or "none"


def _collectives(seen: Measurement) -> str:
    return "not measured" if seen.collectives is None else told(seen.collectives.compiled)


def _placements(seen: Measurement) -> str:
    if seen.placements is None:
        return "not measured"
    return "; ".join(f"{name}: {at}" for name, at in seen.placements.compiled.items()) or "none"


def _state(seen: Measurement) -> str:
    if seen.state_change is None:
        return "not measured"
    return "; ".join(line for fact in told_state(seen.state_change) for line in fact) or "unchanged"


OF_RANKS: dict[str, Read] = {
    "graphs": _graphs,
    "graph breaks": _breaks,
    "recompiles": _recompiles,
    "eager frames": _eager,
    "collectives": _collectives,
    "placements": _placements,
}
# The limit that each of them has for a lane by itself.
BY_LIMIT = {
    "max_graphs": "graphs",
    "max_graph_breaks": "graph breaks",
    "max_recompiles": "recompiles",
    "max_eager_frames": "eager frames",
    "check_state_dict": "state dicts",
}
# Lanes that split a frame alike capture the same graphs, whatever their backends make of them.
OF_LANES: dict[str, Read] = {
    "graphs": lambda seen: "not measured" if seen.graphs is None else counted(seen.graphs, "graph"),
    **{name: OF_RANKS[name] for name in ("graph breaks", "recompiles", "eager frames")},
    "state dicts": _state,
}


def _keys(seen: Measurement) -> str:
    """The keys of a state dict, without the prefix of torch.compile's wrapper, which a checkpoint does not keep."""
    change = seen.state_change
    if change is None:
        return "not measured"
    added = {key.removeprefix("_orig_mod.") for key in change.keys_added}
    removed = set(change.keys_removed)
    told = [*(f"key added: {key}" for key in sorted(added - removed))]
    return "; ".join([*told, *(f"key removed: {key}" for key in sorted(removed - added))]) or "the same keys"


# XLA makes other programs than Dynamo does, of a module that is the same.
OF_DEVICES: dict[str, Read] = {"state dict keys": _keys}


def is_xla(seen: Measurement) -> bool:
    """Whether it is of a lane that XLA compiles, in which Dynamo has no part."""
    return seen.unmeasured.get("eager_frames") == NO_DYNAMO
