"""Progress of long work, on standard error: one line that changes in a terminal, one line per stage elsewhere."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from shutil import get_terminal_size
from typing import TextIO

from pytest_compilecontract.escaping import plain, printed

# What a terminal is told is worth a look so often.
EVERY_SECONDS = 0.2


@dataclass(kw_only=True, slots=True)
class Progress:
    """Says what is being done. `live` lines replace one another in a terminal, and are not said anywhere else."""

    stream: TextIO
    prefix: str
    live: bool = False
    _shown: bool = field(default=False, init=False)
    _last: float = field(default=0.0, init=False)

    def stage(self, text: str) -> None:
        """A line that stays."""
        self.clear()
        self.stream.write(f"{printed(f'{self.prefix}: {plain(text)}')}\n")
        self.stream.flush()

    def now(self, text: str) -> None:
        """What is going on at this moment; as often as the caller likes."""
        if not self.live or time.monotonic() - self._last < EVERY_SECONDS:
            return
        self._last = time.monotonic()
        line = plain(text)
        width = max(20, get_terminal_size().columns - 1)
        # The end of a test's name says more than its folder.
        shown = line if len(line) <= width else f"{line[: width // 2 - 2]}...{line[-(width - width // 2 - 1) :]}"
        self.stream.write(f"\r\x1b[K{shown}")
        self.stream.flush()
        self._shown = True

    def clear(self) -> None:
        """Remove what `now` has shown."""
        if self._shown:
            self.stream.write("\r\x1b[K")
            self.stream.flush()
            self._shown = False


def duration(seconds: float) -> str:
    """Seconds as people say them: "48 s", "3 min 5 s"."""
    whole = round(seconds)
    return f"{whole} s" if whole < 100 else f"{whole // 60} min {whole % 60} s"
