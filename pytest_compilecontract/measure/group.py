"""The process group that a lane of several ranks runs in, and what its ranks decide together.

A collective that one rank calls alone blocks the others: anything beyond the test's own calls has to be done by every
rank, or by none.
"""

from __future__ import annotations

import contextlib
import datetime
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import torch
import torch.distributed as dist

from pytest_compilecontract import clock
from pytest_compilecontract.facts.lanes import FAKE, Lane

from .probes.collectives import Recorded, recorded
from .probes.device import device_of
from .probes.fake_group import no_fake_group

# Why a lane of several ranks does not make the calls that a lane of one process makes besides.
ALIKE = "ranks make only the calls that all of them make"
LEFT = "compilecontract/left"
POLL_SECONDS = 0.02


class Store(Protocol):
    """The store that the ranks of a group share (torch.distributed.Store, which torch does not export as a type)."""

    def add(self, key: str, amount: int, /) -> int: ...


def group_of(lane: Lane) -> str:
    """The process group of a lane by its backend: nccl where the lane is on CUDA, unless it says otherwise."""
    return lane.process_group or ("nccl" if device_of(lane).type == "cuda" else "gloo")


def no_group(lane: Lane) -> str | None:
    """Why the ranks of a lane can have no process group here, or None."""
    if lane.ranks is None:
        return None
    if not dist.is_available():
        return "this torch has no torch.distributed"
    if dist.is_initialized():
        return "a process group already exists that is not the lane's"
    group = group_of(lane)
    if group == FAKE:
        return no_fake_group()
    if not dist.is_backend_available(group):
        return f"this torch has no process group {group!r}"
    if group == "nccl" and torch.cuda.device_count() < lane.ranks:
        return f"{lane.ranks} ranks need as many CUDA devices (found {torch.cuda.device_count()})"
    return None


def join(lane: Lane, rank: int, store: Path, seconds: float) -> Store:
    """Join the process group of the lane. The ranks meet in a file, not at a port; a call waits for `seconds`."""
    assert lane.ranks is not None
    if sys.platform == "linux":
        # Or gloo looks for this machine's name, which not every machine knows.
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    group = group_of(lane)
    if group == "nccl":
        torch.cuda.set_device(rank)
    made = dist.FileStore(str(store), lane.ranks)  # type: ignore[attr-defined]
    dist.init_process_group(
        group, store=made, rank=rank, world_size=lane.ranks, timeout=datetime.timedelta(seconds=seconds)
    )
    shared: Store = made
    return shared


def leave_together(store: Store, ranks: int, seconds: float) -> None:
    """Wait until every rank is here: one that exits earlier closes a connection that another may still use.

    The group is not destroyed: gloo may abort there, or never return.
    """
    deadline = clock.seconds() + seconds
    store.add(LEFT, 1)
    while store.add(LEFT, 0) < ranks and clock.seconds() < deadline:
        time.sleep(POLL_SECONDS)


@contextlib.contextmanager
def faked(lane: Lane) -> Iterator[None]:
    """A fake group with the lane's number of ranks, of which this process is the first; it transfers no data."""
    dist.init_process_group(FAKE, store=dist.HashStore(), rank=0, world_size=lane.ranks or 1)  # type: ignore[attr-defined]
    try:
        yield
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()


@contextlib.contextmanager
def in_ranks(lane: Lane) -> Iterator[Recorded | None]:
    """Record the collectives of a pass, where there are ranks."""
    if lane.ranks is None and not is_shared(lane):
        yield None
        return
    with recorded() as found:
        yield found


def is_shared(lane: Lane) -> bool:
    """Whether other processes make the same calls: ranks of the lane, or of the job that runs this session."""
    if lane.is_launched:
        return True
    if not dist.is_available() or not dist.is_initialized():
        return False
    return dist.get_world_size() > 1 and dist.get_backend() != FAKE


def barred(lane: Lane) -> str:
    """Why no call beyond those of the test may be made; empty if one may."""
    return ALIKE if is_shared(lane) else ""


def any_rank(lane: Lane, here: bool) -> bool:
    """Whether the value is true on any rank. A collective: every rank has to call it."""
    if not is_shared(lane) or not dist.is_initialized():
        return here
    told = torch.tensor(int(here), device="cuda" if dist.get_backend() == "nccl" else "cpu")
    dist.all_reduce(told, op=dist.ReduceOp.MAX)
    return bool(told.item())
