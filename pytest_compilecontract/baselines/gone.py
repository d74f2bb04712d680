"""Trimming: contracts in a baseline that the project no longer has, reported by any run that would collect them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from .store import Baselines


@dataclass(frozen=True, kw_only=True, slots=True)
class Collected:
    """What a session collected before any of it was deselected.

    `names` are tests and contracts by module, `places` the requested paths below the root. `whole`: no test was
    selected by name, so that all tests of each module are included.
    """

    names: Mapping[str, frozenset[str]]
    places: tuple[PurePosixPath, ...]
    whole: bool


def collected_from(names: Iterable[str], arguments: Sequence[str], *, root: Path, invocation: Path) -> Collected:
    """Make a `Collected` from the names of all tests and contracts and pytest's arguments."""
    by_module: dict[str, set[str]] = {}
    for name in names:
        by_module.setdefault(name.partition("::")[0], set()).add(name)
    places = []
    for argument in arguments:
        place = (invocation / argument.partition("::")[0]).resolve()
        if place.is_relative_to(root.resolve()):
            places.append(PurePosixPath(place.relative_to(root.resolve()).as_posix()))
        elif root.resolve().is_relative_to(place):
            places.append(PurePosixPath("."))
    return Collected(
        names={module: frozenset(found) for module, found in by_module.items()},
        places=tuple(places),
        whole=not any("::" in argument for argument in arguments),
    )


def gone(baselines: Baselines, key: str, collected: Collected, root: Path) -> tuple[str, ...]:
    """The contracts with a baseline in this environment that the project no longer has, as far as this run can tell.

    A module without any test may have been skipped as a whole: its contracts are gone only if its file is gone.

    Raises:
        ReceiptError: a baseline cannot be read.
    """
    if not collected.whole:
        return ()
    found = []
    for contract in baselines.contracts(key):
        module = contract.partition("::")[0]
        if module in collected.names:
            is_gone = contract not in collected.names[module]
        else:
            asked = any(PurePosixPath(module).is_relative_to(place) for place in collected.places)
            is_gone = asked and not (root / module).exists()
        if is_gone:
            found.append(contract)
    return tuple(sorted(found))
