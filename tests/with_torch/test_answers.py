"""What a process of a lane answers, read by its parent: an answer that is not one costs the lane, and nothing else."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from support.answers import AGAIN, LANE, a_line, a_report, lines, that_answers
from support.receipts import HOLDING

from pytest_compilecontract.facts.limits import Limits
from pytest_compilecontract.files.codec import record
from pytest_compilecontract.measure.probes.xla_packages import PYTHON_OF_TORCH_XLA
from pytest_compilecontract.plugin import answer, in_xla, launch
from pytest_compilecontract.plugin.answer import Report, tail_of
from pytest_compilecontract.plugin.judged import Judged, Subject
from pytest_compilecontract.plugin.launch import launched_in_xla

pytestmark = pytest.mark.sessions

UNREADABLE = "its report cannot be read: "


def with_measured(**changes: object) -> dict[str, Any]:
    return a_report(measurements=[{**record(HOLDING), **changes}])


def without(data: dict[str, Any], key: str) -> dict[str, Any]:
    return {name: each for name, each in data.items() if name != key}


class Parent:
    """The parent of such a process: what it makes of the answer."""

    def __init__(self, request: pytest.FixtureRequest, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._item = request.node
        self._folder = folder
        monkeypatch.setenv(PYTHON_OF_TORCH_XLA, str(folder / "python"))
        monkeypatch.setattr(launch, "GRACE_SECONDS", 0.3)
        monkeypatch.setattr(launch, "STACK_SECONDS", 0.1)

    def judged(self, answers: str, then: str = "write()") -> Judged:
        that_answers(self._folder, answers, then)
        run = launched_in_xla(self._item, LANE, None, 1.0)
        subject = Subject(
            contract="it", lane=LANE, test=self._item.nodeid, limits=Limits(), environment="here", worker=""
        )
        return in_xla._judged(subject, run, run.measurements, None, "2.9.0")

    def said(self, answers: str, then: str = "write()") -> str:
        """The reason of a lane that is broken."""
        entry = self.judged(answers, then).entry
        assert (entry.verdict, entry.measurement if UNREADABLE in entry.reason else None) == ("broken", None)
        assert entry.reason.isprintable()
        return entry.reason.removeprefix(f"in the process of lane {LANE.name}: the test failed in call: ")


@pytest.fixture
def parent(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Parent:
    return Parent(request, tmp_path, monkeypatch)


def test_a_whole_answer_is_held(parent: Parent) -> None:
    found = parent.judged(lines(a_report()))

    assert (found.entry.verdict, found.entry.reason, found.entry.measurement) == ("held", "", HOLDING)
    assert 0 < found.entry.seconds < 60


@pytest.mark.parametrize(
    ("answers", "said"),
    [
        pytest.param("", "ended with code 0 without a report", id="nothing"),
        pytest.param(lines(), "left without a report", id="no report"),
        pytest.param(lines(a_report())[:-40], f"{UNREADABLE}its last line has no end", id="cut off in the last line"),
        pytest.param(
            lines(a_report(), more='{"event": "torn", "rep'), f"{UNREADABLE}line 3: not JSON (", id="a damaged line"
        ),
        pytest.param("\x00\x1b[31m{{\n", f"{UNREADABLE}line 1: not JSON (", id="not JSON"),
        pytest.param("[1, 2]\n", f"{UNREADABLE}line 1: expected an object, got array", id="an array"),
        pytest.param("[" * 5000 + "\n", f"{UNREADABLE}line 1: ", id="deep"),
        pytest.param('{"format": 1, "format": 1}\n', f"{UNREADABLE}line 1: key 'format' twice", id="a key twice"),
        pytest.param(lines({}), f"{UNREADABLE}line 2: report.test: missing", id="an empty report"),
        pytest.param(
            lines(a_report(outcome="great")), f"{UNREADABLE}line 2: report.outcome: unknown value 'great'", id="outcome"
        ),
        pytest.param(
            lines(a_report(measurements="none")),
            f"{UNREADABLE}line 2: report.measurements: expected array, got str",
            id="another type",
        ),
        pytest.param(
            lines(with_measured(graphs=-1)),
            f"{UNREADABLE}line 2: report.measurements[0].graphs: expected at least 0, got -1",
            id="a negative count",
        ),
        pytest.param(
            lines(with_measured(graphs=float("nan"))), f"{UNREADABLE}line 2: not JSON (", id="NaN, which JSON has not"
        ),
        pytest.param(
            lines(with_measured(graphs="nan")),
            f"{UNREADABLE}line 2: report.measurements[0].graphs: expected int | null, got str",
            id="NaN as we write it",
        ),
        pytest.param(
            lines(with_measured(graphs=True)),
            f"{UNREADABLE}line 2: report.measurements[0].graphs: expected int | null, got bool",
            id="a bool",
        ),
        pytest.param(
            lines(with_measured(cold_seconds="inf")),
            f"{UNREADABLE}line 2: report.measurements[0].cold_seconds: expected a number, got 'inf'",
            id="infinite seconds",
        ),
        pytest.param(
            lines(with_measured(first_compiles=1, continuations=5)),
            f"{UNREADABLE}line 2: report.measurements[0].continuations: expected at most first_compiles (1), got 5",
            id="a part that is more than the whole",
        ),
        pytest.param(
            lines(a_report(measurements=[without(record(HOLDING), "eager_frames")])),
            f"{UNREADABLE}line 2: report.measurements[0].eager_frames: missing",
            id="a field missing",
        ),
        pytest.param(
            lines(without(a_report(), "notes")), f"{UNREADABLE}line 2: report.notes: missing", id="one with a default"
        ),
        pytest.param(
            lines(with_measured(more=1)),
            f"{UNREADABLE}line 2: report.measurements[0]: unknown key 'more' (known keys: ",
            id="a field more",
        ),
        pytest.param(
            a_line("begins", format=2) + "\n", f"{UNREADABLE}line 1: format 2 is newer than this version", id="newer"
        ),
        pytest.param(
            json.dumps({"event": "begins"}) + "\n", f"{UNREADABLE}line 1: format: missing", id="another version"
        ),
        pytest.param(
            lines(a_report(test="tests/other.py::test_it")),
            f"{UNREADABLE}line 2: it is of 'tests/other.py::test_it', expected '",
            id="another test",
        ),
        pytest.param(
            lines(a_report(lane="xla-openxla")),
            f"{UNREADABLE}line 2: it is of 'xla-openxla', expected 'xla-lazy'",
            id="another lane",
        ),
        pytest.param(
            lines(a_report(), a_report()), f"{UNREADABLE}line 3: 'measured' for the second time", id="two reports"
        ),
        pytest.param(
            lines(a_report()) + a_line("torn", a_report(phase="teardown")) + "\n",
            f"{UNREADABLE}line 4: 'torn' after 'left'",
            id="more after the end",
        ),
        pytest.param(
            lines(a_report(), more=a_line("torn")), f"{UNREADABLE}line 3: 'torn' without a report", id="torn, but how"
        ),
        pytest.param(
            lines(a_report(phase="teardown")),
            f"{UNREADABLE}line 2: 'measured' with a report on teardown",
            id="another phase",
        ),
        pytest.param(
            lines(a_report()).replace("NOW", "-5.0"),
            f"{UNREADABLE}line 1: at_seconds: expected at least 0, got -5.0",
            id="before all time",
        ),
        pytest.param(
            lines(a_report()).replace("NOW", "1e15"),
            f"{UNREADABLE}line 1: 'begins' is not of the time in which the process ran",
            id="in the future",
        ),
        pytest.param(lines(a_report(outcome="failed", said="so\nit is")), "so", id="a failure of many lines"),
    ],
)
def test_an_answer_that_is_none_is_said(parent: Parent, answers: str, said: str) -> None:
    reason = parent.said(answers)

    assert reason.startswith(said)


WRITE = "write()\n"
DIES = "os.kill(os.getpid(), signal.SIGSEGV)"


@pytest.mark.parametrize(
    ("then", "said"),
    [
        pytest.param("path.mkdir()", f"{UNREADABLE}Is a directory", id="a folder"),
        pytest.param("os.mkfifo(path)", f"{UNREADABLE}not a regular file", id="a pipe"),
        pytest.param(
            "path = folder / 'elsewhere'; write(); (folder / 'rank0.jsonl').symlink_to(path)",
            f"{UNREADABLE}it is a symbolic link",
            id="a link",
        ),
        pytest.param(
            "(folder / 'rank0.jsonl').symlink_to('/dev/zero')",
            f"{UNREADABLE}it is a symbolic link",
            id="an endless file",
        ),
        pytest.param(
            "path.touch(); os.truncate(path, 2 ** 40)", f"{UNREADABLE}it is larger than 256 MiB", id="a huge file"
        ),
        pytest.param(WRITE + DIES, "", id="it has left, and then dies"),
    ],
)
def test_a_file_that_is_no_report_is_said(parent: Parent, then: str, said: str) -> None:
    began = time.monotonic()

    if said:
        assert parent.said(lines(a_report()), then) == said
    else:
        assert parent.judged(lines(a_report()), then).entry.verdict == "held"
    assert time.monotonic() - began < 30


NOT_LEFT = lines(a_report()).rpartition(a_line("left"))[0]
SKIPPED = lines(a_report(outcome="skipped", said="not here", measurements=[])).rpartition(a_line("left"))[0]
HANGS = WRITE + "signal.signal(signal.SIGUSR1, signal.SIG_IGN); time.sleep(600)"


@pytest.mark.parametrize(
    ("answers", "then", "said"),
    [
        pytest.param(NOT_LEFT, WRITE, "ended with code 0 after it measured", id="exit 0"),
        pytest.param(NOT_LEFT, WRITE + "sys.exit(3)", "ended with code 3 after it measured", id="exit 3"),
        pytest.param(NOT_LEFT, WRITE + DIES, "died (SIGSEGV) after it measured", id="a signal"),
        pytest.param(
            SKIPPED,
            WRITE + DIES,
            "died (SIGSEGV) after it skipped its test",
            id="skip",
        ),
        pytest.param(NOT_LEFT, HANGS, "measured, but did not end in time", id="a hang"),
        pytest.param(SKIPPED, HANGS, "skipped its test, but did not end in time", id="a hang of one that skipped"),
        pytest.param(
            NOT_LEFT + a_line("waits") + "\n", HANGS, "measured, but did not end in time", id="it waits for nobody"
        ),
        pytest.param(a_line("begins") + "\n", HANGS, "did not end in time", id="a hang before"),
    ],
)
def test_a_process_that_ends_otherwise_after_its_report_is_said(
    parent: Parent, answers: str, then: str, said: str
) -> None:
    assert parent.said(answers, then) == said


def test_a_process_that_it_started_keeps_nobody_waiting(parent: Parent) -> None:
    began = time.monotonic()

    found = parent.judged(lines(a_report()), WRITE + "subprocess.Popen(['sleep', '600'])")

    assert found.entry.verdict == "held"
    assert time.monotonic() - began < 30


def test_what_it_prints_is_no_answer(parent: Parent) -> None:
    found = parent.judged(lines(a_report()), WRITE + "os.write(1, os.urandom(10 ** 6) + b'\\n{}\\n'); print(text)")

    assert found.entry.verdict == "held"


@pytest.mark.parametrize("made", ["mkfifo", "mkdir"])
def test_an_output_that_is_no_file_any_more_is_none(parent: Parent, made: str) -> None:
    then = f"output = folder / 'output0'; output.unlink(); os.{made}(output)"

    assert parent.said("", then) == "ended with code 0 without a report"


def test_of_a_huge_output_the_end_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "output"
    file.write_bytes(b"a" * 100 + b"end")
    monkeypatch.setattr(answer, "TAIL_BYTES", 5)

    assert tail_of(file) == "aaend"


def test_what_no_file_can_hold_is_told_escaped(parent: Parent) -> None:
    told = Report(test=AGAIN, lane=LANE.name, outcome="failed", phase="call", said="\udce9 in a name")

    assert parent.said(lines(record(told))) == "\\udce9 in a name"
