"""Instrumentation belongs around a compiled region. The classes that have it inside show what that costs."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

LOG = logging.getLogger(__name__)


class Layer(nn.Module):
    """Two linear layers with an instrument between them: how not to do it. `x` is (batch, width)."""

    def __init__(self, instrument: Callable[[Tensor], Tensor], width: int = 8) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(width, width), nn.Linear(width, width)
        self.instrument = instrument

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.instrument(torch.relu(self.first(x))))


def logs(x: Tensor) -> Tensor:
    """A log message from inside the region: a graph break."""
    LOG.info("activations of %s", tuple(x.shape))
    return x


class Reads:
    """A number read with `.item()`: a graph break, and a host sync in each step.

    In one expression with the `append`, it is also a recompile per step: the length of the list becomes a guard.
    """

    def __init__(self) -> None:
        self.readings: list[float] = []

    def __call__(self, x: Tensor) -> Tensor:
        reading = x.detach().abs().mean().item()
        self.readings.append(reading)
        return x


class Counts:
    """Progress reported to a callback inside the region: the step is a constant of the code, so each recompiles."""

    def __init__(self, tell: Callable[[int], None]) -> None:
        self.tell = tell
        self.step = 0

    def __call__(self, x: Tensor) -> Tensor:
        self.step += 1
        self.tell(self.step)
        return x


class Draws:
    """Noise from a separate generator, drawn inside the region: a graph break."""

    def __init__(self, generator: torch.Generator) -> None:
        self.generator = generator

    def __call__(self, x: Tensor) -> Tensor:
        return x + torch.randn(x.shape, generator=self.generator, device=x.device, dtype=x.dtype)


def waits(x: Tensor) -> Tensor:
    """An event recorded inside the region and waited for there: the CPU is idle until the device is done."""
    done = torch.cuda.Event()
    done.record()
    done.synchronize()
    return x


class Region(nn.Module):
    """The policy's region: random numbers come in as a tensor, and readings go out as one, without being read."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """The output (batch, width), and the mean activation as a 0-dimensional tensor."""
        x = torch.relu(self.first(x))
        return self.second(x + noise), x.detach().abs().mean()


class Watched(nn.Module):
    """The policy: a region with its instruments around it.

    Noise is drawn before the region, by any generator. Each reading is kept as a tensor, and every `every` steps they
    are read together, with one host sync; log and progress get numbers that are already on the CPU. Only compile
    `region`.
    """

    def __init__(
        self,
        region: nn.Module,
        *,
        every: int,
        tell: Callable[[int, Sequence[float]], None],
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        if every < 1:
            raise ValueError(f"readings are told of every 1 step or more, not every {every}")
        self.region = region
        self.every, self.tell, self.generator = every, tell, generator
        self.step = 0
        self._unread: list[Tensor] = []

    def forward(self, x: Tensor) -> Tensor:
        noise = torch.randn(x.shape, generator=self.generator, device=x.device, dtype=x.dtype)
        y, reading = self.region(x, noise)
        self.step += 1
        self._unread.append(reading)
        if len(self._unread) == self.every:
            readings = torch.stack(self._unread).tolist()
            self._unread.clear()
            LOG.info("step %d: activations of %.3f", self.step, readings[-1])
            self.tell(self.step, readings)
        return y


class Timed(nn.Module):
    """A region timed by two CUDA events, on the stream that it runs on. CUDA only.

    The events are recorded around the region and read by `milliseconds`, when the CPU waits anyway.
    """

    def __init__(self, region: nn.Module) -> None:
        super().__init__()
        self.region = region
        self._between: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []

    def forward(self, *inputs: Tensor) -> object:
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        output = self.region(*inputs)
        end.record()
        self._between.append((start, end))
        return output

    def milliseconds(self) -> list[float]:
        """The milliseconds of each step so far, in order. Waits for the last step."""
        if self._between:
            self._between[-1][1].synchronize()
        taken = [start.elapsed_time(end) for start, end in self._between]
        self._between.clear()
        return taken


def compile_region(watched: Watched | Timed, compile_model: Callable[[nn.Module], object]) -> nn.Module:
    """Compile the region in place, without its instruments."""
    compile_model(watched.region)
    return watched
