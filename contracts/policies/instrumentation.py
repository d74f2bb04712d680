"""Instrumentation: what watches a compiled region stands around it. Inside, each instrument costs what is said here."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

LOG = logging.getLogger(__name__)


class Layer(nn.Module):
    """Two linear layers, and between them an instrument: the way not to do it. `x` is (batch, width)."""

    def __init__(self, instrument: Callable[[Tensor], Tensor], width: int = 8) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(width, width), nn.Linear(width, width)
        self.instrument = instrument

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.instrument(torch.relu(self.first(x))))


def logs(x: Tensor) -> Tensor:
    """A line of the log from inside the region: a graph break."""
    LOG.info("activations of %s", tuple(x.shape))
    return x


class Reads:
    """A number read with `.item()`: a graph break, and a wait for the device in each step.

    Written as one expression with the `append`, it is a recompile a step too: the length of the list becomes a guard.
    """

    def __init__(self) -> None:
        self.readings: list[float] = []

    def __call__(self, x: Tensor) -> Tensor:
        reading = x.detach().abs().mean().item()
        self.readings.append(reading)
        return x


class Counts:
    """Progress told to a callback from inside the region: the step is a constant of the code, so each compiles anew."""

    def __init__(self, tell: Callable[[int], None]) -> None:
        self.tell = tell
        self.step = 0

    def __call__(self, x: Tensor) -> Tensor:
        self.step += 1
        self.tell(self.step)
        return x


class Draws:
    """Noise out of a generator of one's own, drawn inside the region: a graph break."""

    def __init__(self, generator: torch.Generator) -> None:
        self.generator = generator

    def __call__(self, x: Tensor) -> Tensor:
        return x + torch.randn(x.shape, generator=self.generator, device=x.device, dtype=x.dtype)


def waits(x: Tensor) -> Tensor:
    """An event recorded inside the region and waited for there: the CPU stands still till the device is done."""
    done = torch.cuda.Event()
    done.record()
    done.synchronize()
    return x


class Region(nn.Module):
    """The policy's region: what is random comes in as a tensor, what is to be read goes out as one, unread."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """The output of (batch, width), and the mean activation as a tensor of no dimensions."""
        x = torch.relu(self.first(x))
        return self.second(x + noise), x.detach().abs().mean()


class Watched(nn.Module):
    """The policy: a region with its instruments around it.

    Noise is drawn before the region, by whichever generator; each reading is kept as the tensor that it is, and every
    `every` steps they are read together, with one wait for the device; log and progress are told of numbers that the
    CPU has. Only `region` is to be compiled.
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
    """A region between two events of the device's clock, on the stream that it runs on. CUDA only.

    The events are recorded around the region and read by `milliseconds`, once somebody waits anyway.
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
        """Of each step so far, in its order. Waits for the last of them."""
        if self._between:
            self._between[-1][1].synchronize()
        taken = [start.elapsed_time(end) for start, end in self._between]
        self._between.clear()
        return taken


def compile_region(watched: Watched | Timed, compile_model: Callable[[nn.Module], object]) -> nn.Module:
    """Compile the region in place, and nothing of what watches it."""
    compile_model(watched.region)
    return watched
