"""The canary: a function whose exact counts are known, measured once a process before any other number is believed."""

from __future__ import annotations

import functools
from pathlib import Path

from .dynamo import Ledger
from .source import Paths
from .stance import switched_off
from .trace import Trace

EXPECTED = {"graphs": 4, "graph breaks": 2, "break sites": 1, "recompiles": 2, "graphs executed": 6}


@functools.cache
def canary() -> str | None:
    """Why no count of this process can be trusted, or None when the counts are as they must be.

    A function with a break, called with the sizes 3, 4 and 5: the frame and its continuation compile, then each once
    more with a dynamic size.
    """
    import torch
    import torch._dynamo

    def sings(x: torch.Tensor) -> torch.Tensor:
        x = x.sin()
        torch._dynamo.graph_break()
        return x.cos()

    if reason := switched_off():
        return reason
    torch.compiler.reset()
    # Settings that a project may have changed, and that would change these counts by right.
    settings = {
        "assume_static_by_default": True,
        "automatic_dynamic_shapes": True,
        "nested_graph_breaks": False,
        "recompile_limit": 8,
        "error_on_recompile": False,
    }
    known = {name: value for name, value in settings.items() if hasattr(torch._dynamo.config, name)}
    try:
        with (
            torch._dynamo.config.patch(known),
            torch.compiler.set_stance("default"),
            Ledger(Paths(Path())) as ledger,
            Trace(),
        ):
            compiled = torch.compile(sings, backend="eager")
            for size in (3, 4, 5):
                compiled(torch.ones(size))
        if ledger.missing:
            return None  # each metric that cannot be measured says so itself
        breaks = ledger.graph_breaks()
        found = {
            "graphs": sum(1 for graph in ledger.graphs if graph.kept),
            "graph breaks": sum(each.events for each in breaks),
            "break sites": len(breaks),
            "recompiles": len(ledger.recompiles()),
            "graphs executed": ledger.executed,
        }
    except Exception as error:  # noqa: BLE001 - whatever torch raises here, the counts are not known
        return f"the canary raised {type(error).__name__}: {error}".splitlines()[0]
    finally:
        torch.compiler.reset()
    wrong = [f"{name} {found[name]} instead of {value}" for name, value in EXPECTED.items() if found[name] != value]
    return f"the canary counted {', '.join(wrong)}" if wrong else None
