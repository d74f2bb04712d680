"""The canary: a function whose exact counts are known, measured once a process before any other number is believed."""

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
    """The canary is not counted as it must be."""


def canary() -> str | None:
    """Why no count of this process can be trusted, or None when the counts are as they must be.

    That it sings is remembered, that it does not is not: what was in the way of it may be one test's own.
    """
    try:
        sings()
    except Silent as why:
        return str(why)
    return None


@functools.cache
def sings() -> None:
    """Have a function compiled whose counts are known, with torch's own settings, whatever a test has set.

    A function with a break, called with the sizes 3, 4 and 5: the frame and its continuation compile, then each once
    more with a dynamic size.

    Raises:
        Silent: it is not counted as it must be.
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
    """Every setting as torch has it, whatever a project, a lane or a test has made of it."""
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
