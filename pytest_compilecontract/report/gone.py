"""Text about baselines of contracts that no longer exist."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_compilecontract.escaping import plain
from pytest_compilecontract.facts.rerun import Command
from pytest_compilecontract.wording import counted

from .baselines import MOST, SESSION
from .comparison import cut
from .terminal import Line


def gone_lines(
    contracts: Sequence[str],
    folder: str,
    *,
    removed: bool,
    session: Command = SESSION,
) -> list[Line]:
    """Text about contracts that no longer exist, and how to remove their baselines."""
    if not contracts:
        return []
    found = counted(len(contracts), "contract")
    exist = f"that no longer {'exists' if len(contracts) == 1 else 'exist'}"
    head = f"removed from {folder}: {found} {exist}" if removed else f"{folder} holds {found} {exist}"
    lines: list[Line] = [(head, {"yellow": True})]
    lines += [(cut(f"  {plain(contract)}"), {}) for contract in contracts[:MOST]]
    if len(contracts) > MOST:
        lines.append((f"  ... and {len(contracts) - MOST} more", {}))
    if not removed:
        lines.append((f"  to remove them: {session.recording('all')} (with all tests and lanes)", {}))
    return lines
