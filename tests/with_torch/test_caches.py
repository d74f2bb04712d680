"""Counts are the same cold and warm; the caches' own state is what differs, and is recorded."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch._inductor.cpu_vec_isa
from torch import nn

from pytest_compilecontract.facts.lanes import Lane
from pytest_compilecontract.facts.limits import Limits
from pytest_compilecontract.facts.measurement import Measurement
from pytest_compilecontract.measure.compile_lane import CompileLane
from pytest_compilecontract.measure.isolation import isolated
from pytest_compilecontract.measure.probes import caches
from pytest_compilecontract.measure.probes.caches import check_processor

pytestmark = pytest.mark.torch

# What a warm cache may change: where time went, and torch's own record of the caches.
OF_THE_CACHE = (
    "calls",
    "caches",
    "stage_seconds",
    "counters",
    "cold_seconds",
    "warmup_seconds",
    "steady_seconds",
    "overhead_seconds",
    "numerics",
)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 8)
        self.second = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.first(x).relu()
        torch._dynamo.graph_break()
        return self.second(y)


def trained(lane: Lane) -> Measurement:
    with isolated(lane):
        compile_lane = CompileLane(lane, Limits(), Path(__file__).parent)
        return compile_lane.train(Net(), [(torch.ones(n, 8),) for n in (2, 3, 4)])


def ran(lane: Lane) -> Measurement:
    with isolated(lane):
        return CompileLane(lane, Limits(), Path(__file__).parent).run(torch.sin, (torch.ones(4),))


def counts(measurement: Measurement) -> Measurement:
    return replace(measurement, **dict.fromkeys(OF_THE_CACHE))


def test_counts_are_the_same_cold_and_warm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    lane = Lane(name="shared", backend="inductor", cache="shared")

    cold = trained(lane)
    warm = trained(lane)

    assert counts(cold) == counts(warm)
    assert cold.backward_graphs == warm.backward_graphs == 4
    assert cold.caches["aot_autograd_hit"] == 0
    assert warm.caches["aot_autograd_hit"] > 0
    assert warm.caches["fx_graph_miss"] == 0


def test_a_lane_has_caches_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    lane = Lane(name="own", backend="inductor")

    measured = [ran(lane) for _ in range(2)]

    assert [(each.caches["fx_graph_hit"], each.caches["fx_graph_miss"]) for each in measured] == [(0, 1), (0, 1)]
    assert not {"fxgraph", "aotautograd"} & {each.name for each in tmp_path.iterdir()}


@pytest.fixture
def checked_in(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The cache folders in which Inductor is asked what vector instructions the processor has."""
    folders: list[str] = []
    monkeypatch.setattr(
        torch._inductor.cpu_vec_isa,
        "valid_vec_isa_list",
        lambda: folders.append(torch._inductor.runtime.runtime_utils.cache_dir()) or [],
    )
    return folders


@pytest.mark.parametrize(
    ("lane", "asked"),
    [
        (Lane(name="inductor", device="cpu"), True),
        (Lane(name="aot", backend="aot_eager", device="cpu"), False),
        (Lane(name="believes", device="cpu", inductor={"cpp.vec_isa_ok": True}), False),
    ],
    ids=["inductor", "compiles no kernels", "says so itself"],
)
def test_what_inductor_builds_to_know_the_processor_is_kept_for_the_next_process(
    lane: Lane, asked: bool, checked_in: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))

    with isolated(lane):
        assert checked_in == [str(tmp_path)] * asked


def test_a_torch_that_asks_otherwise_is_left_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch._inductor.cpu_vec_isa, "valid_vec_isa_list")

    check_processor()


def test_what_is_known_of_the_processor_is_not_found_out_again(monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[str] = []

    class Instructions:
        def build_arch_flags(self) -> str:
            return "-mwide"

        def check_build(self, code: str) -> bool:
            built.append(code)
            return True

    def searched() -> list[bool]:
        return [Instructions().check_build(code) for code in ("known", "new", "new")]

    monkeypatch.setattr(caches, "_KNOWN", {})
    monkeypatch.setattr(torch._inductor.cpu_vec_isa, "VecISA", Instructions)
    monkeypatch.setattr(torch._inductor.cpu_vec_isa, "valid_vec_isa_list", searched)
    asked = f"-mwide {hashlib.sha256(b'known').hexdigest()}"

    caches.know_processor({asked: False})
    check_processor()

    assert built == ["new"]
    assert caches.processor_known() == {asked: False, f"-mwide {hashlib.sha256(b'new').hexdigest()}": True}


def test_without_a_compiler_the_processor_is_not_known_and_nothing_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    def searched() -> None:
        raise RuntimeError("No working C++ compiler found in torch._inductor.config.cpp.cxx: (None, 'g++')")

    monkeypatch.setattr(torch._inductor.cpu_vec_isa, "valid_vec_isa_list", searched)

    check_processor()
