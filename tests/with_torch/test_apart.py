"""Large copies lie in a file: they are the same bits, wherever they are, and nothing is left of them."""

from __future__ import annotations

import errno
import gc
import os
import tempfile
import warnings
from dataclasses import replace
from typing import Any

import pytest
import torch
from holding import hold, kept_limits, measured
from torch import nn

from pytest_compilecontract.measure import tensors
from pytest_compilecontract.measure.numerics import apart
from pytest_compilecontract.measure.numerics.apart import Apart
from pytest_compilecontract.measure.numerics.judging import Runs, judged
from pytest_compilecontract.measure.numerics.rule import Tolerance
from pytest_compilecontract.measure.numerics.snapshot import Run, snapshot

pytestmark = pytest.mark.insides

DTYPES = (
    torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.complex64, torch.int64,
    torch.uint8, torch.bool,
)  # fmt: skip
FILES = "/proc/self/fd"


@pytest.fixture
def all_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything that has a byte is put in a file."""
    monkeypatch.setattr(apart, "LEAST", 1)
    monkeypatch.setattr(apart, "_last", [])


def is_in_a_file(kept: Apart) -> bool:
    return kept._tensor is None


def bits(tensor: torch.Tensor) -> bytes:
    return bytes(tensor.reshape(-1).view(torch.uint8).tolist())


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(), (1,), (3, 5), (0, 4), (4097,)], ids=str)
@pytest.mark.usefixtures("all_apart")
def test_a_copy_is_given_back_bit_by_bit(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    generator = torch.Generator().manual_seed(0)
    size = torch.Size(shape).numel() * dtype.itemsize
    raw = torch.randint(0, 2 if dtype == torch.bool else 256, (size,), dtype=torch.uint8, generator=generator)
    made = raw.view(dtype).reshape(shape) if size else torch.empty(shape, dtype=dtype)
    before = bits(made)

    kept, more = Apart(made), Apart(torch.zeros(5))

    found = kept.tensor()
    assert (found.dtype, found.shape, bits(found)) == (dtype, made.shape, before)
    assert is_in_a_file(kept) == bool(size)
    assert torch.equal(more.tensor(), torch.zeros(5))


def test_a_small_copy_stays_in_memory_and_a_large_one_does_not() -> None:
    assert not is_in_a_file(Apart(torch.ones(8)))
    assert is_in_a_file(Apart(torch.ones(apart.LEAST // 4)))


@pytest.mark.parametrize("refused", [OSError(errno.ENOSPC, "No space left on device"), OSError(errno.EFBIG, "large")])
@pytest.mark.usefixtures("all_apart")
def test_without_room_for_a_file_a_copy_stays_in_memory(monkeypatch: pytest.MonkeyPatch, refused: OSError) -> None:
    def full(*_: object) -> None:
        raise refused

    monkeypatch.setattr(os, "pwrite", full)

    kept = Apart(torch.arange(6.0))

    assert not is_in_a_file(kept)
    assert torch.equal(kept.tensor(), torch.arange(6.0))


@pytest.mark.usefixtures("all_apart")
def test_a_system_that_writes_a_part_of_what_it_is_given_is_given_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda file, part, at: real(file, part[:3], at))

    kept, more = Apart(torch.arange(6.0)), Apart(torch.ones(2, 2).t())

    assert is_in_a_file(kept)
    assert is_in_a_file(more)
    assert torch.equal(kept.tensor(), torch.arange(6.0))
    assert torch.equal(more.tensor(), torch.ones(2, 2))


@pytest.mark.usefixtures("all_apart")
def test_a_disk_that_fills_midway_leaves_what_was_written_before(monkeypatch: pytest.MonkeyPatch) -> None:
    before, real = Apart(torch.arange(6.0)), os.pwrite
    left = [5]

    def fills(file: int, part: memoryview, at: int) -> int:
        if not left[0]:
            raise OSError(errno.ENOSPC, "No space left on device")
        done = real(file, part[: left[0]], at)
        left[0] -= done
        return done

    monkeypatch.setattr(os, "pwrite", fills)
    kept = Apart(torch.ones(6))
    monkeypatch.setattr(os, "pwrite", real)
    after = Apart(torch.full((6,), 2.0))

    assert not is_in_a_file(kept)
    assert torch.equal(kept.tensor(), torch.ones(6))
    assert torch.equal(before.tensor(), torch.arange(6.0))
    assert torch.equal(after.tensor(), torch.full((6,), 2.0))


@pytest.mark.usefixtures("all_apart")
@pytest.mark.filterwarnings("error")
def test_without_a_temporary_folder_a_copy_stays_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    def nowhere(**_: object) -> None:
        raise FileNotFoundError(errno.ENOENT, "No usable temporary directory found")

    monkeypatch.setattr(tempfile, "TemporaryFile", nowhere)

    kept = Apart(torch.arange(6.0))
    gc.collect()

    assert not is_in_a_file(kept)


@pytest.mark.usefixtures("all_apart")
def test_a_disk_is_not_filled(monkeypatch: pytest.MonkeyPatch) -> None:
    class Nearly:
        f_bavail, f_frsize, f_blocks = 1 << 20, 4096, 1 << 30

    monkeypatch.setattr(os, "fstatvfs", lambda _: Nearly)

    assert not is_in_a_file(Apart(torch.arange(6.0)))
    Nearly.f_bavail += 1
    assert is_in_a_file(Apart(torch.arange(6.0)))


@pytest.mark.usefixtures("all_apart")
def test_a_child_process_writes_to_a_file_of_its_own() -> None:
    ours = Apart(torch.ones(1000))
    if (child := os.fork()) == 0:
        theirs = Apart(torch.zeros(1000))
        right = is_in_a_file(theirs) and bool((theirs.tensor() == 0).all()) and bool((ours.tensor() == 1).all())
        os._exit(0 if right else 1)
    _, status = os.waitpid(child, 0)

    again = Apart(torch.full((1000,), 2.0))

    assert status == 0
    assert torch.equal(ours.tensor(), torch.ones(1000))
    assert torch.equal(again.tensor(), torch.full((1000,), 2.0))


@pytest.mark.skipif(not os.path.isdir(FILES), reason="the open files of a process are listed on Linux alone")
@pytest.mark.usefixtures("all_apart")
def test_a_file_is_closed_with_the_last_copy_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(apart, "FILE", 1)
    before = len(os.listdir(FILES))
    kept = [Apart(torch.full((100,), float(each))) for each in range(20)]
    opened = len(os.listdir(FILES))

    found = [float(each.tensor()[0]) for each in kept]
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        kept.clear()
        apart._last.clear()
        gc.collect()

    assert warned == []
    assert opened == before + 20
    assert len(os.listdir(FILES)) == before
    assert found == [float(each) for each in range(20)]


class Wrong(nn.Module):
    """Adds to its buffer, and computes, otherwise when compiled."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor
        self.linear = nn.Linear(8, 8)
        self.register_buffer("seen", torch.zeros(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        factor = self.factor if torch.compiler.is_compiling() else 1.0
        self.seen += factor
        return self.linear(x) * factor  # type: ignore[no-any-return]


@pytest.mark.parametrize("way", ["run", "train"])
@pytest.mark.parametrize("factor", [1.0, 1.5, float("nan")])
def test_verdicts_are_the_same_wherever_copies_are(monkeypatch: pytest.MonkeyPatch, way: str, factor: float) -> None:
    def entry() -> Any:
        torch.manual_seed(0)
        model, x = Wrong(factor), torch.linspace(-1, 1, 32).reshape(4, 8)

        def body(lane: Any) -> Any:
            return lane.run(model, (x,), (x,)) if way == "run" else lane.train(model, [(x,), (x,)])

        return hold(body, lane="aot")

    here = entry()
    monkeypatch.setattr(apart, "LEAST", 1)
    monkeypatch.setattr(apart, "_last", [])
    there = entry()

    assert apart._last
    assert kept_limits(there) == kept_limits(here)
    assert measured(there).numerics == measured(here).numerics
    assert (kept_limits(there)[0] == "held") == (factor == 1.0)


@pytest.mark.usefixtures("all_apart")
def test_a_tensor_that_a_run_wrote_to_is_put_back_from_a_file() -> None:
    tensor = torch.arange(10.0)
    saved = tensors.Saved(tensor)
    assert saved.is_in(tensor)

    tensor.mul_(2)
    differed = not saved.is_in(tensor)
    saved.put_in(tensor)
    tensor.add_(1)
    saved.put_in(tensor)

    assert differed
    assert torch.equal(tensor, torch.arange(10.0))


@pytest.mark.usefixtures("all_apart")
def test_a_copy_with_the_bits_of_eager_is_eagers() -> None:
    given = {"a": torch.arange(6.0), "b": torch.tensor([0.0, float("nan")]), "c": torch.zeros(3)}
    eager = snapshot(given, at="output").nodes
    given |= {"b": torch.tensor([-0.0, float("nan")]), "c": torch.zeros(3, dtype=torch.float64), "d": torch.ones(2)}

    compiled = snapshot(given, at="output", like=eager).nodes

    pairs = [(leaf_at(eager, key), leaf_at(compiled, key)) for key in "abc"]
    assert [one.kept is other.kept for one, other in pairs] == [True, False, False]
    assert torch.equal(leaf_at(compiled, "d").data, torch.ones(2))
    assert torch.signbit(leaf_at(compiled, "b").data[0])


def leaf_at(nodes: Any, key: str) -> Any:
    return nodes[f"output['{key}']"]


@pytest.mark.usefixtures("all_apart")
def test_a_copy_of_a_view_has_its_elements_in_order() -> None:
    made = torch.arange(24.0).reshape(4, 6).t()[1:]

    kept = Apart(made)

    assert is_in_a_file(kept)
    assert kept.holds(made)
    assert not kept.holds(made + 1)
    assert torch.equal(kept.tensor(), made)


@pytest.mark.usefixtures("all_apart")
def test_what_is_kept_in_memory_is_no_view_of_the_users() -> None:
    made = torch.ones(3)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(apart, "LEAST", 1 << 20)
        kept = Apart(made)
    made.zero_()

    assert torch.equal(kept.tensor(), torch.ones(3))


@pytest.mark.parametrize(
    ("eagers", "kept"),
    [
        (torch.bfloat16, torch.float32),
        (torch.float16, torch.float32),
        (torch.float32, torch.float64),
        (torch.float64, torch.float64),
    ],
    ids=str,
)
def test_a_reference_of_half_precision_is_kept_in_single(eagers: torch.dtype, kept: torch.dtype) -> None:
    eager = snapshot(torch.ones(4, dtype=eagers), at="output")
    values = torch.full((4,), 1 / 3, dtype=torch.float64)

    reference = snapshot(values, at="output", like=eager.nodes, reference=True)
    another = snapshot(values, at="output", like=eager.nodes)

    (found,), (other,) = ([leaf for _, leaf in each.tensors()] for each in (reference, another))
    assert found.data is not None
    assert other.data is not None
    assert (found.data.dtype, found.dtype) == (kept, torch.float64)
    assert torch.equal(found.data, values.to(kept))
    assert other.data.dtype == torch.float64


class Counted(apart._Desk):
    """A desk that counts what is read for it, and may refuse."""

    read = 0
    refuses = False

    def lay(self, copy: Apart) -> torch.Tensor:
        if self.refuses:
            raise torch.OutOfMemoryError
        before = len(self._laid)
        values = super().lay(copy)
        type(self).read += len(self._laid) - before
        return values


@pytest.fixture
def desk(monkeypatch: pytest.MonkeyPatch) -> type[Counted]:
    """Everything that is judged is laid on the desk first."""
    monkeypatch.setattr(apart, "LEAST_LAID", 1)
    monkeypatch.setattr(apart, "_Desk", Counted)
    monkeypatch.setattr(Counted, "read", 0)
    monkeypatch.setattr(Counted, "refuses", False)
    return Counted


def runs_of(factor: float) -> Runs:
    gold = torch.linspace(-1, 1, 1000, dtype=torch.float64)
    eager = {"output": snapshot(gold.to(torch.bfloat16), at="output")}
    compiled = {"output": snapshot((gold * factor).to(torch.bfloat16), at="output")}
    wide = {"output": snapshot(gold, at="output", like=eager["output"].nodes, reference=True)}
    return Runs(eager=Run(groups=eager), compiled=Run(groups=compiled), gold=Run(groups=wide))


BFLOAT16 = Tolerance(method="fp64", rtol=None, atol=None, precision=None)


@pytest.mark.parametrize("factor", [1.0, 1.02, 1.5])
def test_where_values_are_laid_does_not_matter(desk: type[Counted], factor: float) -> None:
    runs = runs_of(factor)

    there, here = judged(replace(runs, desk=torch.device("cpu")), BFLOAT16), judged(runs, BFLOAT16)

    assert there == here
    assert bool(here.numerics.differences) == (factor != 1.0)
    # Each copy once, though it is asked for several times.
    assert desk.read == 3


def test_a_device_without_room_leaves_the_judging_to_the_cpu(desk: type[Counted]) -> None:
    runs = runs_of(1.5)
    desk.refuses = True

    there = judged(replace(runs, desk=torch.device("cpu")), BFLOAT16)

    assert desk.read == 0
    assert there == judged(runs, BFLOAT16)
    assert there.numerics.differences


def test_what_lies_on_a_desk_is_bounded(desk: type[Counted], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(apart, "LAID", 1000)
    copies = [Apart(torch.ones(100)) for _ in range(5)]

    with apart.laid_on(torch.device("cpu")):
        for each in (*copies, *copies):
            assert torch.equal(each.tensor(), torch.ones(100))
        assert apart._desk is not None
        assert len(apart._desk._laid) == 2
    assert apart._desk is None
