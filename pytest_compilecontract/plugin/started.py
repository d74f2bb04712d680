"""How pytest was started: command, options and folder, so that printed commands work in the same way."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from pytest_compilecontract.facts.rerun import AS_MODULE, PYTEST, Command
from pytest_compilecontract.shell import in_shell

# Options by which a session finds its tests, settings and plugins, or measures otherwise; with a value, and without.
_VALUED = (
    *("-c", "--config-file", "--rootdir", "-o", "--override-ini", "-p", "--confcutdir", "--import-mode"),
    *("--contract-baselines", "--contract-timeout"),
)
_FLAGS = ("--noconftest", "--contract-speed", "--contract-warm")
# Options that choose tests and lanes.
_CHOICE = ("--contract-lanes", "-k", "-m")
# The option by which tests that are not contracts have lanes, too.
_OBSERVING = "--contract-observe"
# What says nothing of a result.
_LEFT_OUT = ("no:cacheprovider",)
# What a pytest-xdist worker is told: the folder that its session was started in, from the project's root, and what
# starts pytest there, which for a worker on another machine is another interpreter.
FOLDER = "compile_contract_folder"
START = "compile_contract_start"
# What starts pytest in the shell, by the environment that the session began with: a test may change it.
_STARTED = pytest.StashKey[tuple[str, ...]]()


def as_started(config: pytest.Config, command: Command) -> Command:
    """A command that starts pytest like this session, from the same folder."""
    argv, here = _argv(config), _folder(config)
    options = [each for each in kept_options(argv[1:]) if each not in command.options]
    tests = tuple(_from(here, config.rootpath, each) for each in command.tests)
    return replace(command, start=start_in_shell(config), options=(*options, *command.options), tests=tests)


def started_as_module(config: pytest.Config, command: Command) -> Command:
    """The same command, with the folder that it is started in on the path."""
    return replace(command, start=in_shell(AS_MODULE, _folder(config), config.rootpath))


def keep_start(config: pytest.Config) -> None:
    """Keep what starts pytest in the shell, before any test runs."""
    config.stash[_STARTED] = in_shell(start(_argv(config)), config.invocation_params.dir, config.rootpath)


def start_in_shell(config: pytest.Config) -> tuple[str, ...]:
    """The words that start pytest in the shell that the session was started in."""
    told = getattr(config, "workerinput", {}).get(START)
    return tuple(told) if told else config.stash[_STARTED]


def session_command(config: pytest.Config, paths: Sequence[str] = (), *, choice: bool = False) -> Command:
    """The command of a session like this one, with these paths; `choice` adds the selection of tests and lanes."""
    # Without it, the lanes that were observed would be neither recorded nor known to exist.
    observing = [_OBSERVING] if config.getoption(_OBSERVING) else []
    chosen = [f"{name}={value}" for name in _CHOICE if (value := config.getoption(name))] if choice else []
    options = (*kept_options(_argv(config)[1:]), "--compile-contracts", *observing, *chosen)
    return Command(start=start_in_shell(config), options=options, tests=tuple(paths))


def set_options(config: pytest.Config) -> tuple[str, ...]:
    """The options `--contract-set` of this session."""
    return tuple(f"--contract-set={text}" for text in config.getoption("--contract-set") or ())


def start(argv: Sequence[str]) -> tuple[str, ...]:
    """The words that started pytest, for any interpreter: `python -m pytest` has the current folder on its path."""
    module = bool(argv) and Path(argv[0]).name == "__main__.py"
    return AS_MODULE if module else PYTEST


def kept_options(arguments: Sequence[str]) -> Iterator[str]:
    """The options of a session that a rerun of one of its tests needs, too, each as one word."""
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


def tell_worker(config: pytest.Config, workerinput: dict[str, object]) -> None:
    """Tell a worker of pytest-xdist where and how its session was started: it may run in a copy of the project."""
    workerinput[FOLDER] = os.path.relpath(config.invocation_params.dir, config.rootpath)
    workerinput[START] = [*start_in_shell(config)]


def _folder(config: pytest.Config) -> Path:
    """The folder that the session was started in, which for a worker may be that of a copy of the project."""
    told = getattr(config, "workerinput", {}).get(FOLDER)
    return config.invocation_params.dir if told is None else Path(os.path.normpath(config.rootpath / told))


def _argv(config: pytest.Config) -> list[str]:
    """The command line of the session; a pytest-xdist worker has that of its controller."""
    given = getattr(config, "workerinput", {}).get("mainargv")
    return [*given] if given else [*sys.argv[:1], *map(str, config.invocation_params.args)]


def _from(here: Path, root: Path, test: str) -> str:
    """A test's name, which is relative to the project's root, relative to the current folder."""
    if here == root:
        return test
    file, colons, rest = test.partition("::")
    found = os.path.relpath(root / file, here)
    return f"{f'./{found}' if found.startswith(('-', '@')) else found}{colons}{rest}"
