"""Environments as rows of a table, one row per field. Nothing here writes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields

from pytest_compilecontract.facts.receipt import Environment

from .html import MOST_LINES, visible

_OF_ENVIRONMENT = tuple(each.name for each in fields(Environment))


def environment_rows(columns: Sequence[Sequence[Environment]]) -> list[dict[str, object]]:
    """Each column's environment, one row per field; `differs` if it is not the same in all."""
    rows = []
    for name in _OF_ENVIRONMENT:
        values = [list(_texts(column, name)) for column in columns]
        if any(values):
            rows.append({"name": name.replace("_", " "), "values": values, "differs": len({*map(tuple, values)}) > 1})
    return rows


def _texts(column: Sequence[Environment], name: str) -> Iterator[str]:
    texts: dict[str, None] = {}
    for environment in column:
        value = getattr(environment, name)
        if isinstance(value, Mapping):
            texts |= dict.fromkeys(f"{key} = {value[key]}" for key in sorted(value))
        elif value is not None:
            texts[str(value)] = None
    yield from map(visible, list(texts)[:MOST_LINES])
    if len(texts) > MOST_LINES:
        yield f"... and {len(texts) - MOST_LINES} more"
