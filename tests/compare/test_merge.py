"""`compilecontract merge`: shards of one suite become one receipt, and nothing else does."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.receipts import NEW, OLD, a_receipt, an_entry

from pytest_compilecontract.cli.main import main
from pytest_compilecontract.compare.merge import merged
from pytest_compilecontract.errors import UsageError
from pytest_compilecontract.facts.receipt import Environment, Receipt, Setup
from pytest_compilecontract.facts.shards import planned
from pytest_compilecontract.files.receipt import read_receipt, write_receipt

LANES = ("aot", "capture", "inductor", "mine")


def entry(lane: str) -> Any:
    return an_entry(lane=lane, test=f"tests/test_block.py::test_block[{lane}]")


def shards(of: int = 3, environment: Environment = OLD) -> dict[str, Receipt]:
    entries = {each.test: each for each in map(entry, LANES)}
    cut = planned(dict.fromkeys(entries, True), {}, of)
    return {
        f"s{shard.index}": replace(
            a_receipt(*(entries[test] for test in shard.tests), environment=environment),
            shard=shard,
            command=f"pytest --compile-contracts --contract-shard={shard.index}/{of} --contract-report 's {of}'",
        )
        for shard in cut
    }


@pytest.mark.parametrize("of", [1, 2, 3, 4, 7])
def test_the_shards_of_a_suite_are_the_whole(of: int) -> None:
    made = merged(shards(of))

    assert made == replace(a_receipt(*map(entry, LANES)), command="pytest --compile-contracts", created=made.created)


@pytest.mark.parametrize(
    ("command", "whole"),
    [
        pytest.param("pytest --contract-report=a -vv -q tests", "pytest tests", id="options"),
        pytest.param("pytest --contract-times 'a b' -x 'tests/a b.py'", "pytest -x 'tests/a b.py'", id="quoted"),
        pytest.param("pytest -k 'not -v' -- -v", "pytest -k 'not -v' -- -v", id="alike by name"),
        pytest.param("pytest 'tests", "pytest 'tests", id="no command"),
    ],
)
def test_the_command_of_the_whole_names_no_shard(command: str, whole: str) -> None:
    found = {name: replace(each, command=command) for name, each in shards().items()}

    assert merged(found).command == whole


def test_machines_may_differ_in_what_is_their_own() -> None:
    found = shards()
    elsewhere = replace(OLD, processor="another", device="another", variables={"CUDA_VISIBLE_DEVICES": "3"})
    receipt = found["s2"]
    (key,) = receipt.environments
    moved = tuple(replace(each, environment="elsewhere") for each in receipt.entries)
    found["s2"] = replace(receipt, environments={"elsewhere": elsewhere}, entries=moved)

    made = merged(found)

    assert set(made.environments) == {key, "elsewhere"}
    assert len(made.entries) == len(LANES)


def with_a_worker_elsewhere(found: dict[str, Receipt], **changes: Any) -> None:
    """In the first shard, which has two tests, the second ran on a worker on another machine."""
    here, there = found["s1"].entries
    found["s1"] = replace(
        found["s1"],
        environments={"here": OLD, "there": replace(OLD, device="another", **changes)},
        entries=(here, replace(there, environment="there", worker="gw1")),
    )


def test_a_worker_that_has_a_copy_is_of_the_commit_of_its_session() -> None:
    found = shards()
    with_a_worker_elsewhere(found, commit=None, dirty=None)

    made = merged(found)

    assert {each.environment for each in made.entries} == {"here", "there"}
    # What is in the receipt is what the worker knew.
    assert (made.environments["here"].commit, made.environments["there"].commit) == (OLD.commit, None)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"torch": "2.15.0"}, "torch 2.15.0, not 2.11.0"),
        ({"commit": "b" * 40}, f"commit {'b' * 40}, not {'a' * 40}"),
        ({"commit": None, "dirty": None, "python": "3.12.1"}, "python 3.12.1, not 3.11.7"),
    ],
)
def test_workers_of_one_session_that_differ_are_named_as_such(changes: dict[str, Any], said: str) -> None:
    found = shards()
    with_a_worker_elsewhere(found, **changes)

    with pytest.raises(UsageError) as caught:
        merged(found)

    assert str(caught.value) == f"s1: its workers were not run in the same way: {said}"


def test_a_shard_that_was_cut_short_is_told_of_the_whole() -> None:
    found = shards()
    found["s2"] = replace(found["s2"], setup=Setup(asked="torch 2.11.0", not_finished="it was interrupted"))

    setup = merged(found).setup

    assert setup is not None
    assert setup.not_finished == ("shard 2 of 3, torch 2.11.0: the tests did not run to their end: it was interrupted")


def changed(name: str, **changes: Any) -> Callable[[dict[str, Receipt]], None]:
    def change(found: dict[str, Receipt]) -> None:
        found[name] = replace(found[name], **changes)

    return change


def in_environment(name: str, **changes: Any) -> Callable[[dict[str, Receipt]], None]:
    def change(found: dict[str, Receipt]) -> None:
        (key,) = found[name].environments
        environments = {f"{key}-other": replace(OLD, **changes)}
        moved = tuple(replace(each, environment=f"{key}-other") for each in found[name].entries)
        found[name] = replace(found[name], environments=environments, entries=moved)

    return change


def without(*names: str) -> Callable[[dict[str, Receipt]], None]:
    def change(found: dict[str, Receipt]) -> None:
        for name in names:
            del found[name]

    return change


def twice(found: dict[str, Receipt]) -> None:
    found["again"] = found["s2"]


def of_another_suite(found: dict[str, Receipt]) -> None:
    shard = found["s2"].shard
    assert shard is not None
    cut = planned({"test_other": True, "test_third": True, "test_fourth": True}, {}, 3)
    found["s2"] = replace(a_receipt(), shard=cut[1])


def with_fewer_tests(found: dict[str, Receipt]) -> None:
    for name, receipt in found.items():
        assert receipt.shard is not None
        found[name] = replace(receipt, entries=(), shard=replace(receipt.shard, tests=receipt.shard.tests[1:]))


def with_anothers_entry(found: dict[str, Receipt]) -> None:
    found["s3"] = replace(found["s3"], entries=(*found["s3"].entries, *found["s2"].entries))


def otherwise_run(found: dict[str, Receipt]) -> None:
    found["s3"] = replace(found["s3"], command="pytest --compile-contracts --contract-repeat=3")


def otherwise_set(found: dict[str, Receipt]) -> None:
    (first, *_) = found["s1"].entries
    (own,) = found["s3"].entries
    found["s1"] = replace(found["s1"], entries=(replace(first, lane="mine", lane_settings={"backend": "eager"}),))
    found["s3"] = replace(found["s3"], entries=(replace(own, lane="mine", lane_settings={"backend": "aot_eager"}),))


def counted_wrong(index: int, of: int) -> Callable[[dict[str, Receipt]], None]:
    def change(found: dict[str, Receipt]) -> None:
        shard = found["s2"].shard
        assert shard is not None
        found["s2"] = replace(found["s2"], shard=replace(shard, index=index, of=of))

    return change


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (without("s2"), "1 shard of 3 missing: 2"),
        (without("s1", "s3"), "2 shards of 3 missing: 1, 3"),
        (twice, "shard 2 of 3 was given twice: s2 and again"),
        (
            changed("s2", shard=None),
            "s2: is the receipt of a whole run (only receipts of --contract-shard can be merged)",
        ),
        (counted_wrong(0, 3), "s2: there is no shard 0 of 3"),
        (counted_wrong(4, 3), "s2: there is no shard 4 of 3"),
        (counted_wrong(2, 10**9), "s2: there is no shard 2 of 1000000000"),
        (counted_wrong(2, 4), "s2: is shard 2 of 4, and s1 is shard 1 of 3"),
        (
            of_another_suite,
            "s2: its suite was split differently from that of s1: different tests or times (--contract-times names the "
            "receipt that has them)",
        ),
        (with_fewer_tests, "the tests of 3 shards are not the ones that the suite was split into"),
        (with_anothers_entry, "s3: tests/test_block.py::test_block[capture] is not a test of shard 3 of 3"),
        (
            in_environment("s2", commit="b" * 40),
            f"s2 and s1 were not run in the same way: commit {'b' * 40}, not {'a' * 40}",
        ),
        (in_environment("s2", commit=None), f"s2 and s1 were not run in the same way: commit unset, not {'a' * 40}"),
        (
            in_environment("s2", dirty=True),
            "s2 and s1 were not run in the same way: uncommitted changes True, not False",
        ),
        (in_environment("s2", torch="2.15.0"), "s2 and s1 were not run in the same way: torch 2.15.0, not 2.11.0"),
        (
            in_environment("s2", settings={"torch._dynamo.config.recompile_limit": "4"}),
            "s2 and s1 were not run in the same way: setting {'torch._dynamo.config.recompile_limit': '4'}, not unset",
        ),
        (
            in_environment("s2", overrides={"torch._dynamo.config.recompile_limit": "4"}),
            "s2 and s1 were not run in the same way: setting torch._dynamo.config.recompile_limit: 4, not unset",
        ),
        (
            in_environment("s2", variables={"TORCH_LOGS": "\x1b[31mx"}),
            "s2 and s1 were not run in the same way: variable TORCH_LOGS: \\x1b[31mx, not unset",
        ),
        (
            otherwise_run,
            "s3 and s1 were not run in the same way: 'pytest --compile-contracts --contract-repeat=3', not "
            "'pytest --compile-contracts'",
        ),
        (otherwise_set, "s3 and s1 were not run in the same way: lane mine has different settings"),
    ],
    ids=[
        "missing",
        "two missing",
        "twice",
        "a whole run",
        "number 0",
        "a number too high",
        "far too many",
        "another number of shards",
        "another suite",
        "fewer tests than were cut",
        "a test of another shard",
        "another commit",
        "no commit",
        "uncommitted changes",
        "another torch",
        "another setting",
        "another override",
        "another variable",
        "another command",
        "a lane set otherwise",
    ],
)
def test_what_is_no_set_of_shards_is_refused(change: Callable[[dict[str, Receipt]], None], said: str) -> None:
    found = shards()
    change(found)

    with pytest.raises(UsageError) as caught:
        merged(found)

    assert str(caught.value) == said


def test_two_things_of_one_name_are_refused() -> None:
    found = shards()
    (key,) = found["s2"].environments
    found["s2"] = replace(found["s2"], environments={key: replace(OLD, device="another")})

    with pytest.raises(UsageError, match=r"^s2: environment '.+' is not the same as in the other shards$"):
        merged(found)


@pytest.fixture
def folders(tmp_path: Path) -> list[str]:
    for name, receipt in shards(environment=NEW).items():
        write_receipt(tmp_path / name / "receipt.json", receipt)
    return [str(tmp_path / f"s{index}") for index in (3, 1, 2)]


def test_the_command_writes_the_whole(folders: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole = tmp_path / "out" / "receipt.json"

    code = main(["merge", *folders, "-o", str(whole)])

    assert capsys.readouterr() == (f"wrote {whole}: 4 entries of 3 shards\n", "")
    assert code == 0
    assert read_receipt(whole).shard is None
    assert main(["validate", str(whole), *(f"{each}/receipt.json" for each in folders)]) == 0


def test_a_merged_receipt_is_no_shard(folders: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole = tmp_path / "whole.json"
    main(["merge", *folders, "-o", str(whole)])

    code = main(["merge", str(whole), *folders, "-o", str(tmp_path / "again.json")])

    assert "is the receipt of a whole run" in capsys.readouterr().err
    assert code == 2


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "not JSON"),
        ('{"format": 1}', "missing"),
        ("[" * 100, "not JSON"),
        ("", "not JSON"),
    ],
    ids=["half", "empty", "deep", "nothing"],
)
def test_a_file_that_is_no_receipt_is_named(
    text: str, said: str, folders: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = Path(folders[0]) / "receipt.json"
    broken.write_text(text)

    code = main(["merge", *folders, "-o", str(tmp_path / "whole.json")])

    err = capsys.readouterr().err
    assert err.startswith(f"compilecontract: {broken}: ")
    assert said in err
    assert code == 2
    assert not (tmp_path / "whole.json").exists()


def test_a_shard_with_a_key_of_its_own_is_refused(folders: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    file = Path(folders[0]) / "receipt.json"
    document = json.loads(file.read_text())
    document["shard"]["weight"] = 3
    file.write_text(json.dumps(document))

    code = main(["merge", *folders, "-o", str(file.with_name("whole.json"))])

    assert "shard: unknown key 'weight'" in capsys.readouterr().err
    assert code == 2


def test_a_receipt_is_not_written_over_its_own_shard(folders: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["merge", *folders, "-o", f"{folders[0]}/receipt.json"])

    assert "write the merged one to another file" in capsys.readouterr().err
    assert code == 2


def test_a_run_that_did_not_end_is_refused(folders: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    (Path(folders[0]) / "journal.jsonl").touch()

    code = main(["merge", *folders, "-o", f"{folders[0]}/whole.json"])

    assert "its run did not end" in capsys.readouterr().err
    assert code == 2
