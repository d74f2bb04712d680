"""torch's message about a graph break: parsed into its kind, reason, hints and registry id."""

from __future__ import annotations

import functools
import importlib
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

# Taken now, for a test may have its own in place of `json.loads`.
_decoded = json.JSONDecoder().decode


@dataclass(frozen=True, kw_only=True, slots=True)
class Message:
    """The parts of a graph break's message."""

    kind: str
    reason: str
    explanation: str
    hints: tuple[str, ...]
    registry_id: str | None


NEXT_BREAK = "*** While handling this graph break, another graph break occurred: ***"


def parse_message(text: str) -> Message:
    """Parse torch's message (torch/_dynamo/exc.py, `format_graph_break_message`).

    If one break led to another (a break in a loop), torch puts the cause first, and so does this.
    """
    parts = [part.strip() for part in text.split(NEXT_BREAK)]
    cause, last = parts[0], parts[-1]
    head = cause.split("\n\n  Developer debug context:")[0]
    kind = head.split("\n", 1)[0].strip()
    reason = kind if last is cause else f"{kind} ({last.splitlines()[0].strip()})"
    explanation = re.search(r"^\s*Explanation: (.*?)(?=^\s*Hint: |\Z)", head, re.MULTILINE | re.DOTALL)
    hints = re.findall(r"^\s*Hint: (.*?)(?=^\s*Hint: |\Z)", head, re.MULTILINE | re.DOTALL)
    number = re.search(r"/gb(\d+)\.html", cause)
    return Message(
        kind=kind,
        reason=reason,
        explanation=flat(explanation.group(1)) if explanation else "",
        hints=tuple(flat(hint) for hint in hints),
        registry_id=f"GB{number.group(1)}" if number else None,
    )


def registry_id(kind: str) -> str | None:
    """The id of this kind in torch's registry of graph breaks, if it has one."""
    return _registry().get(kind)


@functools.cache
def _registry() -> dict[str, str]:
    return dict(_read_registry())


def _read_registry() -> Iterator[tuple[str, str]]:
    folder = Path(importlib.import_module("torch._dynamo").__file__ or "").parent
    try:
        registry = _decoded((folder / "graph_break_registry.json").read_text(encoding="utf-8"))
        for number, versions in registry.items():
            yield str(versions[0]["Gb_type"]), str(number)
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return


def flat(text: str) -> str:
    return " ".join(text.split())
