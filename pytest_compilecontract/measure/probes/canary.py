"""The canary: a function with known counts, measured once in each process before any other number is trusted."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from pathlib import Path

from ..isolation import EXACT
from .dynamo import Ledger
from .settings import CAPTURING, DYNAMO, config_module, has_settings, settings_of
from .source import Paths
from .stance import switched_off_for_good
from .trace import Trace

EXPECTED = {"graphs": 4, "graph breaks": 2, "break sites": 1, "recompiles": 2, "graphs executed": 6}


class Silent(Exception):  # noqa: N818 - no fault of a program: the canary does not sing
    """The canary's counts are not the expected ones."""


def canary() -> str | None:
    """Why no count of this process can be trusted, or None if the canary's counts are the expected ones.

    Success is cached and failure is not: the cause may be specific to one test.
    """
    try:
        sings()
    except Silent as why:
        return str(why)
    return None


@functools.cache
def sings() -> None:
    """Compile a function with known counts, with torch's default settings, whatever a test has set.

    The function has a graph break and is called with the sizes 3, 4 and 5: the frame and its resume function compile,
    then each is recompiled once with a dynamic size.

    Raises:
        Silent: its counts are not the expected ones.
    """
    import torch
    import torch._dynamo

    def sings(x: torch.Tensor) -> torch.Tensor:
        x = x.sin()
        torch._dynamo.graph_break()
        return x.cos()

    if reason := switched_off_for_good():
        raise Silent(reason)
    torch.compiler.reset()
    try:
        with (
            _torchs_settings(),
            torch.compiler.set_stance("default"),
            Ledger(Paths(Path())) as ledger,
            Trace(),
        ):
            compiled = torch.compile(sings, backend="eager")
            for size in (3, 4, 5):
                compiled(torch.ones(size))
        if ledger.missing:
            return  # each metric that cannot be measured says so itself
        breaks = ledger.told.graph_breaks()
        found = {
            "graphs": sum(1 for graph in ledger.graphs if graph.kept),
            "graph breaks": sum(each.events for each in breaks),
            "break sites": len(breaks),
            "recompiles": len(ledger.told.recompiles()),
            "graphs executed": ledger.runs.executed,
        }
    except Exception as error:  # whatever torch raises here, the counts are not known
        raise Silent(f"the canary raised {type(error).__name__}: {error}".splitlines()[0]) from error
    finally:
        torch.compiler.reset()
    wrong = [f"{name} {found[name]} instead of {value}" for name, value in EXPECTED.items() if found[name] != value]
    if wrong:
        raise Silent(f"the canary counted {', '.join(wrong)}")


@contextlib.contextmanager
def _torchs_settings() -> Iterator[None]:
    """Every setting at torch's default, whatever a project, a lane or a test has set."""
    with contextlib.ExitStack() as stack:
        for name in CAPTURING:
            module = config_module(name)
            if module is None or not has_settings(module):
                continue
            now, exact = module.get_config_copy(), EXACT.get(name, {})
            own = {each.name: each.default for each in settings_of(module)}
            wanted: dict[str, object] = {"disable": False} | exact if name == DYNAMO else exact
            wanted = {**own, **{key: value for key, value in wanted.items() if key in own}}
            changed = {key: value for key, value in wanted.items() if key in now and now[key] != value}
            if changed:
                stack.enter_context(module.patch(changed))
        yield
