"""How pytest was started: command, options and folder, so that printed commands work in the same way."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from pytest_compilecontract.escaping import typed

# Options by which a session finds its tests, settings and plugins, or measures otherwise; with a value, and without.
_VALUED = (
    *("-c", "--config-file", "--rootdir", "-o", "--override-ini", "-p", "--confcutdir", "--import-mode"),
    *("--contract-baselines", "--contract-timeout"),
)
_FLAGS = ("--noconftest", "--contract-speed")
# Options that choose tests and lanes.
_CHOICE = ("--contract-lanes", "-k", "-m")
# With the folder that it is started in on the path.
AS_MODULE = ("python", "-m", "pytest")
# What says nothing of a result.
_LEFT_OUT = ("no:cacheprovider",)


def as_started(config: pytest.Config, command: str) -> str:
    """A command `pytest ... -- TEST`, as this session was started, from the folder that it was started in."""
    argv = _argv(config)
    words = shlex.split(command)
    if words[:1] != ["pytest"] or "--" not in words:
        return command
    at = words.index("--")
    options = [each for each in kept_options(argv[1:]) if each not in words]
    here = config.invocation_params.dir
    tests = [_from(here, config.rootpath, each) for each in words[at + 1 :]]
    return typed([*start(argv), *options, *words[1 : at + 1], *tests])


def session_words(config: pytest.Config, *, choice: bool = False) -> list[str]:
    """The words that start a session as this one, without its paths; `choice` adds what chose its tests and lanes."""
    argv = _argv(config)
    chosen = [f"{name}={value}" for name in _CHOICE if (value := config.getoption(name))] if choice else []
    return [*start(argv), *kept_options(argv[1:]), "--compile-contracts", *chosen]


def start(argv: Sequence[str]) -> list[str]:
    """The words that pytest was started with: as a module it has the folder on its path, and by itself it may not."""
    module = bool(argv) and Path(argv[0]).name == "__main__.py"
    return [*AS_MODULE] if module else ["pytest"]


def kept_options(arguments: Sequence[str]) -> Iterator[str]:
    """The options of a session that one of its tests needs as well, each as one word."""
    words = iter(arguments)
    for word in words:
        if word == "--":
            return
        name, equals, value = word.partition("=")
        short = next((each for each in ("-c", "-o", "-p") if word.startswith(each) and not word.startswith("--")), "")
        if short and word != short:
            name, value, equals = short, word[2:], "="
        if name in _VALUED:
            value = value if equals else next(words, "")
            if value and value not in _LEFT_OUT:
                yield f"{name}={value}" if name.startswith("--") else f"{name}{value}"
        elif word in _FLAGS:
            yield word


def _argv(config: pytest.Config) -> list[str]:
    """The words of the session; a worker of pytest-xdist has those of its controller."""
    given = getattr(config, "workerinput", {}).get("mainargv")
    return [*given] if given else [*sys.argv[:1], *map(str, config.invocation_params.args)]


def _from(here: Path, root: Path, test: str) -> str:
    """A test's name, which is from the project's root, from the folder that somebody is in."""
    if here == root:
        return test
    file, colons, rest = test.partition("::")
    found = os.path.relpath(root / file, here)
    return f"{f'./{found}' if found.startswith(('-', '@')) else found}{colons}{rest}"
