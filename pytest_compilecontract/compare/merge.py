"""Merging: the receipts of all shards of one suite as one receipt. Anything else is refused with a reason."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace

from pytest_compilecontract.errors import UsageError
from pytest_compilecontract.escaping import one_line, typed
from pytest_compilecontract.facts.receipt import Environment, Receipt, Setup
from pytest_compilecontract.facts.shards import MOST_SHARDS, Shard, plan_of
from pytest_compilecontract.wording import counted

# What has to be the same on every machine, as a message says it. A processor, a driver and a device's name need not.
_SAME = {
    "commit": "commit",
    "dirty": "uncommitted changes",
    "torch": "torch",
    "triton": "triton",
    "cuda": "cuda",
    "capability": "compute capability",
    "python": "python",
    "pytest": "pytest",
    "plugin": "plugin",
    "libraries": "library",
    "overrides": "setting",
    "settings": "setting",
    "defaults": "torch's defaults",
    "variables": "variable",
}
# Which GPU a process was given is its place.
_PLACE = ("CUDA_VISIBLE_DEVICES",)
# The options of a command that say which shard it ran and where to; each has a value.
_OF_A_SHARD = ("--contract-shard", "--contract-report", "--contract-times")
_NOWHERE = Environment()


def merged(receipts: Mapping[str, Receipt]) -> Receipt:
    """The receipt of the whole suite; `receipts` are those of its shards, by what messages call them.

    Raises:
        UsageError: they are not the shards of one suite, each of them once, run in the same way.
    """
    shards = _each_once(receipts)
    _refuse_other_plan(shards)
    _refuse_mixed(receipts)
    ordered = [receipts[name] for name, _ in shards]
    environments: dict[str, Environment] = {}
    for name, receipt in receipts.items():
        for key, environment in receipt.environments.items():
            if environments.setdefault(key, environment) != environment:
                raise UsageError(f"{name}: environment {key!r} is not the same as in the other shards")
    return Receipt(
        plugin=ordered[0].plugin,
        created=max(each.created for each in ordered),
        environments=environments,
        defaults={key: table for each in ordered for key, table in each.defaults.items()},
        entries=tuple(entry for each in ordered for entry in each.entries),
        setup=_setup(shards, ordered),
        command=_of_the_whole(ordered[0].command),
    )


def _each_once(receipts: Mapping[str, Receipt]) -> list[tuple[str, Shard]]:
    """The shards in order, each with the name of its receipt."""
    found: dict[int, tuple[str, Shard]] = {}
    first: tuple[str, Shard] | None = None
    for name, receipt in receipts.items():
        shard = receipt.shard
        if shard is None:
            raise UsageError(f"{name}: is the receipt of a whole run (only receipts of --contract-shard can be merged)")
        if not 1 <= shard.index <= shard.of <= MOST_SHARDS:
            raise UsageError(f"{name}: there is no {shard}")
        first = first or (name, shard)
        if shard.of != first[1].of:
            raise UsageError(f"{name}: is {shard}, and {first[0]} is {first[1]}")
        if shard.index in found:
            raise UsageError(f"{shard} was given twice: {found[shard.index][0]} and {name}")
        found[shard.index] = (name, shard)
    assert first is not None
    of = first[1].of
    if missing := [str(index) for index in range(1, of + 1) if index not in found]:
        shown = ", ".join(missing[:20]) + (", ..." if len(missing) > 20 else "")
        raise UsageError(f"{counted(len(missing), 'shard')} of {of} missing: {shown}")
    return [found[index] for index in sorted(found)]


def _refuse_other_plan(shards: Sequence[tuple[str, Shard]]) -> None:
    """Refuse shards of suites that were split differently, and entries of tests that are not in their shard."""
    first_name, first = shards[0]
    for name, shard in shards:
        if shard.plan != first.plan:
            raise UsageError(
                f"{name}: its suite was split differently from that of {first_name}: different tests or times "
                "(--contract-times names the receipt that has them)"
            )
    if plan_of([shard.tests for _, shard in shards]) != first.plan:
        raise UsageError(f"the tests of {counted(len(shards), 'shard')} are not the ones that the suite was split into")


def _refuse_mixed(receipts: Mapping[str, Receipt]) -> None:
    """Refuse a different commit, torch or setting, and a test of another shard."""
    first: tuple[str, dict[str, object]] | None = None
    command: tuple[str, str] | None = None
    lanes: dict[str, tuple[str, object]] = {}
    for name, receipt in receipts.items():
        assert receipt.shard is not None
        given = set(receipt.shard.tests)
        if strange := next((entry.test for entry in receipt.entries if entry.test not in given), ""):
            raise UsageError(f"{name}: {one_line(strange)} is not a test of {receipt.shard}")
        for environment in _with_checkout(receipt.environments.values()):
            kept = _of_settings(environment)
            first = first or (name, kept)
            if differing := next(_differing(first[1], kept), ""):
                them = f"{name}: its workers" if name == first[0] else f"{name} and {first[0]}"
                raise UsageError(f"{them} were not run in the same way: {differing}")
        if receipt.command:
            words = _of_the_whole(receipt.command)
            command = command or (name, words)
            if words != command[1]:
                raise UsageError(f"{name} and {command[0]} were not run in the same way: {words!r}, not {command[1]!r}")
        for entry in receipt.entries if receipt.setup is None else ():
            if entry.frontier is None and entry.lane_settings:
                known = lanes.setdefault(entry.lane, (name, entry.lane_settings))
                if known[1] != entry.lane_settings:
                    said = f"lane {entry.lane} has different settings"
                    raise UsageError(f"{name} and {known[0]} were not run in the same way: {said}")


def _with_checkout(environments: Iterable[Environment]) -> Iterator[Environment]:
    """The environments of one session, those that are known; what a worker has a copy of is of the session's commit."""
    known = [each for each in environments if each != _NOWHERE]
    commit, dirty = next(((each.commit, each.dirty) for each in known if each.commit), (None, None))
    for each in known:
        yield each if each.commit else replace(each, commit=commit, dirty=dirty)


def _of_the_whole(command: str) -> str:
    """A command without its shard, its output folder and its verbosity."""
    try:
        words = iter(shlex.split(command))
    except ValueError:
        return command  # no command of ours
    kept: list[str] = []
    for word in words:
        if word == "--":
            return typed([*kept, word, *words])
        name, equals, _ = word.partition("=")
        if name in _OF_A_SHARD:
            if not equals:
                next(words, None)
        elif word[:1] != "-" or not word[1:] or set(word[1:]) - {"v", "q"}:
            kept.append(word)
    return typed(kept)


def _of_settings(environment: Environment) -> dict[str, object]:
    kept = asdict(environment)
    kept["variables"] = {name: value for name, value in environment.variables.items() if name not in _PLACE}
    return kept


def _differing(one: Mapping[str, object], other: Mapping[str, object]) -> Iterator[str]:
    for key, called in _SAME.items():
        before, after = one[key], other[key]
        if before == after:
            continue
        if isinstance(before, dict) and isinstance(after, dict):
            name = next(name for name in sorted({*before, *after}) if before.get(name) != after.get(name))
            yield f"{called} {one_line(name)}: {_shown(after.get(name))}, not {_shown(before.get(name))}"
        else:
            yield f"{called} {_shown(after)}, not {_shown(before)}"


def _shown(value: object) -> str:
    return "unset" if value is None else one_line(str(value), 80)


def _setup(shards: Iterable[tuple[str, Shard]], receipts: Iterable[Receipt]) -> Setup | None:
    """The setup of the whole run, if a shard did not finish."""
    stopped = [(str(shard), each.setup) for (_, shard), each in zip(shards, receipts, strict=True) if each.setup]
    if not stopped:
        return None
    told = [replace(setup, asked=f"{shard}, {setup.asked}").failure for shard, setup in stopped]
    return Setup(asked=stopped[0][1].asked, not_finished="; ".join(told))
