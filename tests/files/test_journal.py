"""Journals: what a run that was killed had measured, and which lane it was in."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.receipts import an_entry

from pytest_compilecontract.cli.main import main
from pytest_compilecontract.errors import ReceiptError
from pytest_compilecontract.facts.receipt import Entry, Environment
from pytest_compilecontract.files.journal import ENDED, NAME, Journal, name_of, recovered
from pytest_compilecontract.files.receipt import entry_to_data, environment_to_data, read_receipt
from pytest_compilecontract.files.run_log import Followed

HERE = Environment(torch="2.13.0+cpu")
CREATED = "2026-01-31T12:00:00Z"
HEAD = '{"event": "session", "plugin": "0.1.0", "created": "2026-01-31T12:00:00Z"}'


def a_journal(folder: Path) -> Journal:
    return Journal(folder / NAME, plugin="0.1.0", created="2026-01-31T12:00:00Z")


def sent(entry: Entry) -> dict[str, object]:
    return {"entry": entry_to_data(entry), "environment": environment_to_data(HERE)}


def named(test: str, **facts: object) -> Entry:
    return replace(an_entry(**facts), test=test, contract=test, environment="here")


def killed(folder: Path) -> None:
    """What a run leaves that measured one test, ran another to no end, and was killed in a third."""
    journal = a_journal(folder)
    for test in ("test_a", "test_b", "test_c"):
        journal.begin(test, named(test, verdict="broken", reason="the process ended while this lane ran"))
        if test == "test_a":
            journal.keep(sent(named(test)))
        if test != "test_c":
            journal.end(test)
    journal.close()


def test_a_run_that_ends_leaves_no_journal(tmp_path: Path) -> None:
    journal = a_journal(tmp_path / "report")
    journal.keep(sent(named("test_a")))

    journal.leave()

    assert list((tmp_path / "report").iterdir()) == []


def test_what_was_measured_and_what_was_running_are_recovered(tmp_path: Path) -> None:
    killed(tmp_path)

    found = recovered(tmp_path / NAME)
    receipt = found.receipt

    assert (found.running, found.torn) == (("test_c",), ())
    assert [(each.test, each.verdict, each.reason) for each in receipt.entries] == [
        ("test_a", "held", ""),
        ("test_c", "broken", "the process ended while this lane ran"),
    ]
    assert receipt.environments["here"] == HERE


@pytest.mark.parametrize("cut", range(1, 60, 7))
def test_a_last_line_that_is_not_whole_is_left_out(tmp_path: Path, cut: int) -> None:
    killed(tmp_path)
    file = tmp_path / NAME
    file.write_bytes(file.read_bytes()[:-cut])

    receipt = recovered(file).receipt

    assert receipt.entries[0].test == "test_a"


def test_of_a_line_that_is_torn_the_others_are_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    killed(tmp_path)
    head, first, *rest = (tmp_path / NAME).read_text(encoding="utf-8").splitlines()
    (tmp_path / NAME).write_text("\n".join([head, first, "{torn", *rest]) + "\n", encoding="utf-8")

    code = main(["recover", str(tmp_path)])

    assert capsys.readouterr().out.splitlines()[-1] == f"left out: {tmp_path / NAME}: line 3 is not JSON"
    assert (code, len(read_receipt(tmp_path / "receipt.json").entries)) == (0, 2)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param("", "not a journal (its first line names no plugin and time)", id="empty"),
        pytest.param("[]\n", "not a journal (its first line names no plugin and time)", id="list"),
        pytest.param("{}\n", "not a journal (its first line names no plugin and time)", id="other-object"),
        pytest.param(
            '{"event": "session", "plugin": "1", "created": "2026"}\n',
            "created: expected a time such as 2026-01-31T12:00:00Z, got '2026'",
            id="no-time",
        ),
    ],
)
def test_what_is_no_journal_is_refused(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / NAME
    file.write_text(text, encoding="utf-8")

    with pytest.raises(ReceiptError) as caught:
        recovered(file)

    assert str(caught.value) == f"{file}: {message}"


def test_the_command_writes_the_receipt(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    killed(tmp_path)

    code = main(["recover", str(tmp_path)])

    assert capsys.readouterr() == (
        f"{tmp_path / 'receipt.json'}: written (2 entries)\nthe process ended while this lane ran: test_c\n",
        "",
    )
    assert code == 0
    assert len(read_receipt(tmp_path / "receipt.json").entries) == 2
    assert not (tmp_path / NAME).exists()


def test_the_journal_of_a_session_that_goes_on_is_left_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    journal = a_journal(tmp_path)

    code = main(["recover", str(tmp_path)])

    assert capsys.readouterr().err == f"compilecontract: {tmp_path}: a running session is writing there\n"
    assert code == 2
    assert journal.path.is_file()


def test_a_run_that_did_not_end_is_not_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    killed(tmp_path)

    code = main(["gate", str(tmp_path), str(tmp_path)])

    assert capsys.readouterr().err == (
        f"compilecontract: {tmp_path}: its run did not end (`compilecontract recover {tmp_path}` writes the receipt)\n"
    )
    assert code == 2


def test_where_it_cannot_be_written_nothing_is(tmp_path: Path) -> None:
    (tmp_path / "report").write_text("a file", encoding="utf-8")

    journal = a_journal(tmp_path / "report")
    journal.keep(sent(named("test_a")))

    assert journal.problem.endswith("cannot be written (File exists)")


def test_a_recovered_run_is_one_that_was_cut_off(tmp_path: Path) -> None:
    journal = tmp_path / "journal.jsonl"
    journal.write_text(f"{HEAD}\n" + "[" * 100_000)

    receipt = recovered(journal).receipt

    assert receipt.setup is not None
    assert receipt.setup.failure == "the run: the tests did not run to their end: the process ended, and left a journal"


def test_a_worker_s_journal_says_what_it_ran_and_what_had_not_arrived(tmp_path: Path) -> None:
    controller, worker = a_journal(tmp_path), Journal(tmp_path / name_of("gw0"), plugin="0.1.0", created=CREATED)
    for test in ("test_a", "test_b"):
        worker.begin(test, named(test, verdict="broken", reason=ENDED))
        worker.keep(sent(named(test)))
        worker.end(test)
    worker.begin("test_c", named("test_c", verdict="broken", reason=ENDED))
    controller.keep(sent(named("test_a")))

    found = recovered(tmp_path / NAME)

    assert [(each.test, each.verdict) for each in found.receipt.entries] == [
        ("test_a", "held"),
        ("test_b", "held"),
        ("test_c", "broken"),
    ]
    assert (found.running, found.torn) == (("test_c",), ())


def test_the_journals_of_workers_go_with_the_session_s(tmp_path: Path) -> None:
    for name in ("journal.gw0.jsonl", "journal.gw12.jsonl", "journal.mine.jsonl", "journal.gwx.jsonl"):
        (tmp_path / name).write_text("{}\n", encoding="utf-8")

    first = a_journal(tmp_path)
    at_first = sorted(path.name for path in tmp_path.iterdir())
    Journal(tmp_path / name_of("gw1"), plugin="0.1.0", created=CREATED).close()
    first.leave()

    assert at_first == ["journal.gwx.jsonl", "journal.jsonl", "journal.mine.jsonl"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["journal.gwx.jsonl", "journal.mine.jsonl"]


def test_a_worker_that_wrote_nothing_is_no_matter(tmp_path: Path) -> None:
    killed(tmp_path)
    (tmp_path / "journal.gw0.jsonl").write_bytes(b"")
    (tmp_path / "journal.gw1.jsonl").write_bytes(b"\xff\xfe\n")

    found = recovered(tmp_path / NAME)

    assert len(found.receipt.entries) == 2
    assert found.torn == (f"{tmp_path / 'journal.gw1.jsonl'}: line 1 is not JSON",)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        pytest.param('{"event": "entry", "entry": {"test": "\\ud800"}}', "line 2: ", id="half-an-entry"),
        pytest.param('{"event": "start", "test": 1}', "line 2: test: expected a str, got int", id="of-another-type"),
        pytest.param('{"event": "start", "test": "a", "entry": [{}]}', "line 2: ", id="no-entry"),
        pytest.param('{"event": "entry", "entry": null}', "line 2: ", id="null"),
        pytest.param('{"event": "finish"}', "line 2: test: missing", id="nothing-in-it"),
        pytest.param('{"event": "collected", "count": "3"}', "line 2: count: expected an int, got '3'", id="text"),
        pytest.param("[" * 5000, "line 2 is not JSON", id="nested"),
        pytest.param('{"event": "finish", "test": ' + "[" * 400 + "]" * 400 + "}", "line 2", id="nested-less"),
        pytest.param("1" * 5000, "line 2 is not JSON", id="number"),
        pytest.param("NaN", "line 2 is not an event", id="nan"),
        pytest.param('{"entry": {}}', "line 2 is not an event", id="no-kind"),
    ],
)
def test_a_line_that_says_nothing_is_left_out(tmp_path: Path, line: str, said: str) -> None:
    killed(tmp_path)
    file = tmp_path / NAME
    head, *rest = file.read_text(encoding="utf-8").splitlines()
    file.write_text("\n".join([head, line, *rest]) + "\n", encoding="utf-8")

    found = recovered(file)

    assert len(found.receipt.entries) == 2
    assert len(found.torn) == 1
    assert found.torn[0].startswith(f"{file}: {said}")


def test_a_lone_surrogate_is_written_as_it_can_be(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    killed(tmp_path)
    file = tmp_path / NAME
    text = file.read_text(encoding="utf-8").replace('"test_c"', '"test_c\\ud800"').replace('"0.1.0"', '"\\udfff"')
    file.write_text(text, encoding="utf-8")

    code = main(["recover", str(tmp_path)])

    assert code == 0
    assert capsys.readouterr().out.endswith("the process ended while this lane ran: test_c\\ud800\n")
    assert read_receipt(tmp_path / "receipt.json").plugin == "\\udfff"


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(at=st.integers(0, 10_000), cut=st.integers(0, 40), put=st.binary(max_size=6) | st.just(b"\\ud800"))
def test_any_bytes_give_a_receipt_or_one_error(tmp_path: Path, at: int, cut: int, put: bytes) -> None:
    killed(tmp_path)
    file = tmp_path / NAME
    data = file.read_bytes()
    at %= len(data)
    file.write_bytes(data[:at] + put + data[at + cut :])

    said = "recovered"
    try:
        recovered(file)
    except ReceiptError as error:
        said = str(error)

    assert said.isprintable()


def test_who_follows_a_log_is_told_each_event_once_and_a_line_when_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / NAME
    followed = Followed(path=path)
    told = [[*followed.news()]]
    for written in (HEAD + "\n" + '{"event": "sta', 'rt"}\nnot an event\n', ""):
        with path.open("a") as file:
            file.write(written)
        told.append([each["event"] for each in followed.news()])

    assert told == [[], ["session"], ["start"], []]


def test_where_no_run_was_killed_there_is_nothing_to_recover(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    codes = [main(["recover", str(tmp_path)])]
    (tmp_path / "receipt.json").write_text("{}", encoding="utf-8")
    codes.append(main(["recover", str(tmp_path)]))

    assert codes == [2, 2]
    assert capsys.readouterr().err == (
        f"compilecontract: {tmp_path}: nothing to recover: no run was killed there\n"
        f"compilecontract: {tmp_path}: nothing to recover: its run ended, and its receipt is there\n"
    )
