"""The device of a lane; and the CUDA device of this process: which GPU it takes, and whether an error has lost it."""

from __future__ import annotations

import re

import torch

from pytest_compilecontract.errors import chain, message_of
from pytest_compilecontract.facts.lanes import Lane

# What CUDA says of an error after which no call of the process works.
_STICKY = re.compile(
    r"illegal memory access|device-side assert|misaligned address|illegal instruction|illegal address|"
    r"unspecified launch failure|launch timed out|hardware stack error|invalid program counter|"
    r"uncorrectable ECC|CUDA error",
    re.IGNORECASE,
)


def has_cuda() -> bool:
    """Whether a CUDA device can be used here."""
    return torch.cuda.is_available()


def device_of(lane: Lane) -> torch.device:
    """The lane's device; without one, cuda where there is one, else cpu."""
    if lane.device is not None:
        return torch.device(lane.device)
    return torch.device("cuda" if has_cuda() else "cpu")


def lost(error: BaseException | None) -> str:
    """The error that made CUDA refuse every further call of this process, or empty.

    The text of an error alone does not tell: a launch with wrong arguments also says "CUDA error", and is harmless.
    """
    lines = (line for each in chain(error, contexts=True) for line in message_of(each).splitlines())
    text = next((line.strip() for line in lines if _STICKY.search(line)), "")
    if not text or not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return ""
    try:
        torch.cuda.synchronize()
        torch.zeros(1, device="cuda").add_(1).cpu()
    except RuntimeError:
        return text
    return ""


def used() -> tuple[int, ...]:
    """The CUDA devices, by index, that this process has a context on; the current one if torch does not say.

    To wait for another device would make a context there, which takes memory of whoever uses it.
    """
    if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return ()
    if (has_context := getattr(torch._C, "_cuda_hasPrimaryContext", None)) is None:
        return (torch.cuda.current_device(),)
    return tuple(index for index in range(torch.cuda.device_count()) if has_context(index))


def take_gpu(worker: str) -> None:
    """Give each worker of pytest-xdist its own GPU, gw0 the first of those that are visible.

    Does nothing if the process has at most one GPU, or uses CUDA already.
    """
    number = re.fullmatch(r"gw(\d+)", worker)
    if number is None or torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return
    count = torch.cuda.device_count()
    if count > 1:
        torch.cuda.set_device(int(number[1]) % count)


def gpu(device: torch.device) -> str:
    """The GPU behind a device by its index and uuid, as "0 GPU-5d3c..."; empty where it is none."""
    if device.type != "cuda":
        return ""
    index = torch.cuda.current_device() if device.index is None else device.index
    uuid = getattr(torch.cuda.get_device_properties(index), "uuid", None)
    return f"{index} GPU-{uuid}" if uuid else str(index)
