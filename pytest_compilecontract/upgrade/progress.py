"""Progress of long work, on standard error: one updating line in a terminal, elsewhere one per stage and per minute."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from shutil import get_terminal_size
from typing import TextIO

from pytest_compilecontract.escaping import plain, printed

# What a terminal is told is worth a look so often.
EVERY_SECONDS = 0.2
# Elsewhere a line stays, so what is going on is told only after so long without one.
SILENT_SECONDS = 60.0


@dataclass(kw_only=True, slots=True)
class Progress:
    """Reports what is being done. Updating lines replace one another in a terminal, and are rare elsewhere."""

    stream: TextIO
    prefix: str
    live: bool = False
    _shown: bool = field(default=False, init=False)
    _last: float = field(default=0.0, init=False)
    _stayed: float = field(default=0.0, init=False)

    def __post_init__(self) -> None:
        self._stayed = time.monotonic()

    def stage(self, text: str) -> None:
        """A line that stays."""
        self.clear()
        self._stayed = time.monotonic()
        self.stream.write(f"{printed(f'{self.prefix}: {plain(text)}')}\n")
        self.stream.flush()

    def now(self, text: str, running: str = "") -> None:
        """Show what is going on now, called as often as you like, followed by as much of `running` as fits."""
        if not self.live:
            if time.monotonic() - self._stayed >= SILENT_SECONDS:
                self.stage(f"{text.removeprefix(f'{self.prefix}: ')}{running and f', running {running}'}")
            return
        if time.monotonic() - self._last < EVERY_SECONDS:
            return
        self._last = time.monotonic()
        self.stream.write(f"\r\x1b[K{fitted(plain(text), plain(running), get_terminal_size().columns - 1)}")
        self.stream.flush()
        self._shown = True

    def clear(self) -> None:
        """Remove what `now` has shown."""
        if self._shown:
            self.stream.write("\r\x1b[K")
            self.stream.flush()
            self._shown = False


def fitted(text: str, running: str, width: int) -> str:
    """One line: the whole text if it fits, and then the end of what is running, which says more than its folder."""
    width = max(20, width)
    if len(text) > width:
        return f"{text[: width // 2 - 2]}...{text[-(width - width // 2 - 1) :]}"
    room = width - len(text) - 2
    if not running or room < 10:
        return text
    return f"{text}  {running if len(running) <= room else f'...{running[3 - room :]}'}"


def duration(seconds: float) -> str:
    """Seconds in readable form: "48 s", "3 min 5 s"."""
    whole = round(seconds)
    return f"{whole} s" if whole < 100 else f"{whole // 60} min {whole % 60} s"
