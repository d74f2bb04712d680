"""`--contract-shard`: which tests a session runs, and what its receipt says of it. Nothing is measured here."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.receipts import a_receipt, an_entry
from support.sessions import UNUSED, runpytest_session

from pytest_compilecontract.files.receipt import read_receipt, write_receipt

SUITE = """
    import pytest

    @pytest.mark.parametrize("number", range(6))
    def test_block(compile_lane, number):
        pytest.skip("not here")

    def test_plain():
        pass
"""
LANES = "--contract-lanes=capture,aot"


@pytest.fixture(autouse=True)
def _suite(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTEST_ADDOPTS", UNUSED)
    pytester.makepyfile(test_block=SUITE)


def collected(pytester: pytest.Pytester, *options: str) -> set[str]:
    ran = pytester.runpytest("--compile-contracts", LANES, "--co", "-q", *options)
    return {line for line in ran.outlines if "::" in line}


def test_the_shards_are_the_suite(pytester: pytest.Pytester) -> None:
    parts = [collected(pytester, f"--contract-shard={index}/3") for index in (1, 2, 3)]

    assert sorted(test for part in parts for test in part) == sorted(collected(pytester))
    assert [len(part) for part in parts] == [5, 4, 4]


def test_a_shard_is_of_what_is_chosen(pytester: pytest.Pytester) -> None:
    parts = [collected(pytester, f"--contract-shard={index}/2", "-k", "aot") for index in (1, 2)]

    assert [len(part) for part in parts] == [3, 3]
    assert all("aot" in test for part in parts for test in part)


def test_times_of_an_earlier_run_cut_it(pytester: pytest.Pytester) -> None:
    entries = [
        an_entry(lane=lane, test=f"test_block.py::test_block[{lane}-{number}]", seconds=50.0 if number == 3 else 1.0)
        for lane in ("capture", "aot")
        for number in range(6)
    ]
    write_receipt(pytester.path / "earlier.json", a_receipt(*entries))

    first = collected(pytester, "--contract-shard=1/3", "--contract-times=earlier.json")
    second = collected(pytester, "--contract-shard=2/3", "--contract-times=earlier.json")

    assert first == {"test_block.py::test_block[aot-3]"}
    assert second == {"test_block.py::test_block[capture-3]"}


@pytest.mark.parametrize("workers", [(), ("-n2",)], ids=["alone", "with xdist"])
def test_the_receipt_says_which_shard_it_is(pytester: pytest.Pytester, workers: tuple[str, ...]) -> None:
    wanted = collected(pytester, "--contract-shard=2/3")

    options = ("--compile-contracts", LANES, "--contract-shard=2/3", "--contract-report=out", *workers)
    ran = runpytest_session(pytester, *options)

    ran.stdout.fnmatch_lines(["shard 2 of 3: 4 tests"])
    shard = read_receipt(pytester.path / "out" / "receipt.json").shard
    assert shard is not None
    assert (shard.index, shard.of, set(shard.tests)) == (2, 3, wanted)


def test_more_shards_than_tests_leave_empty_ones_that_say_so(pytester: pytest.Pytester) -> None:
    report = pytester.path / "out"
    write_receipt(report / "receipt.json", a_receipt(an_entry()))

    ran = pytester.runpytest("--compile-contracts", LANES, "--contract-shard=20/20", f"--contract-report={report}")

    assert ran.ret == pytest.ExitCode.OK
    kept = read_receipt(report / "receipt.json")
    assert kept.entries == ()
    assert kept.shard is not None
    assert kept.shard.tests == ()


@pytest.mark.parametrize(
    "text", ["0/3", "4/3", "3", "a/b", "1/", "/2", "1/2/3", "1/1001", "-1/2", "\u0661/2", "1/99999999"]
)
def test_what_is_no_shard_is_refused(pytester: pytest.Pytester, text: str) -> None:
    ran = pytester.runpytest("--compile-contracts", f"--contract-shard={text}")

    ran.stderr.fnmatch_lines(
        [f"*--contract-shard: expected I/N such as 2/8, with I from 1 to N and N at most 1000, got '{text}'"]
    )
    assert ran.ret == pytest.ExitCode.USAGE_ERROR


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--contract-shard=1/2", "--contract-record"], "*--contract-record writes the baselines of a whole run*"),
        (["--contract-times=a.json"], "*--contract-times does nothing without --contract-shard"),
        (["--contract-shard=1/2", "--contract-times=a.json"], "*the times of an earlier run: *a.json: *"),
    ],
    ids=["recording", "times alone", "no such receipt"],
)
def test_what_goes_with_no_shard_is_refused(pytester: pytest.Pytester, options: list[str], said: str) -> None:
    ran = pytester.runpytest("--compile-contracts", *options)

    ran.stderr.fnmatch_lines([said])
    assert ran.ret == pytest.ExitCode.USAGE_ERROR


def test_a_shard_s_own_receipt_has_no_times(pytester: pytest.Pytester) -> None:
    options = ("--contract-shard=2/3", "--contract-report=out")
    before = collected(pytester, *options)
    pytester.runpytest("--compile-contracts", LANES, *options)

    assert collected(pytester, *options) == before


def test_a_folder_of_the_whole_run_gives_its_times(pytester: pytest.Pytester) -> None:
    entries = [
        an_entry(lane="aot", test=f"test_block.py::test_block[aot-{number}]", seconds=90.0 if number == 5 else 1.0)
        for number in range(6)
    ]
    write_receipt(Path(pytester.path, "out", "receipt.json"), a_receipt(*entries))

    assert collected(pytester, "--contract-shard=1/3", "--contract-report=out") == {"test_block.py::test_block[aot-5]"}


def test_collecting_alone_leaves_no_journal(pytester: pytest.Pytester) -> None:
    collected(pytester, "--contract-report=out")

    assert not (pytester.path / "out").exists()
