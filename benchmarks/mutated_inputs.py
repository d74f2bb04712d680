"""Give the readers inputs that are wrong, and see that each gives a result or one clear error.

    python benchmarks/mutated_inputs.py --count 1000000 --seconds 3000 --seed 1
    python benchmarks/mutated_inputs.py --atheris 600

The inputs are real files (receipts of a CPU and of a GPU, baselines, a matrix, waivers, a policy, lanes, a journal)
with bytes changed, or with values of their structure replaced, and what hypothesis makes of nothing. Of each:

* the reader returns, or raises one `ContractError` whose message is one printable line; no other exception;
* within two seconds of CPU time, and 2 GiB of address space;
* both ways of reading a receipt agree;
* one of fifty that are read is written and read back the same, and every report of it is made: no line that a workflow
  obeys, no control character, XML that parses.

`--atheris` has libFuzzer choose the bytes instead, by what they reach; it needs `pip install atheris`.
"""

from __future__ import annotations

import argparse
import contextlib
import inspect
import json
import random
import re
import resource
import signal
import sys
import tempfile
import time
import tomllib
import traceback
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import Any
from xml.etree import ElementTree

from pytest_compilecontract.baselines import document as baseline
from pytest_compilecontract.cli.matrix import Made, rendered
from pytest_compilecontract.compare.comparison import compare
from pytest_compilecontract.compare.gate import answer
from pytest_compilecontract.compare.matrix import matrix
from pytest_compilecontract.compare.policy import DEFAULT_POLICY, read_policy
from pytest_compilecontract.compare.waivers import read_waivers
from pytest_compilecontract.errors import ContractError
from pytest_compilecontract.escaping import printed
from pytest_compilecontract.facts.receipt import FORMAT, Receipt
from pytest_compilecontract.files import codec, journal, receipt, sense
from pytest_compilecontract.files.project import read_project
from pytest_compilecontract.report import document
from pytest_compilecontract.report.comparison import answer_lines, comparison_lines
from pytest_compilecontract.report.terminal import row_of, summary_lines

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "ci"))
from packed import unpacked  # noqa: E402

LONGEST_SECONDS = 2.0
MOST_MEMORY = 2 * 1024**3
SHOWN_OF = 50
# Values that somebody may have put there, each wrong in its own way in most places, and texts that somebody obeys.
# fmt: off
VALUES: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 10**9, 10**9 + 1, 2**53, 2**63, 10**30, -(10**30), 0.5, -0.5, 1e308, -1e-9,
    "", " ", "-", "--junitxml=keep.txt", "@args", "nan", "inf", "-inf", "held", "broken", "unknown", "../x", "/etc/x",
    "C:\\x", "a\0b", "a\nb", "a\rb", "\u202eabc", "\x1b[31mred\x1b[0m", "\x1b]8;;http://x\x07y", "::error::no",
    "##[error]no", " ::set-output name=a::b", "</script><script>x", "|a|b|", "`rm`", "$(x)", "'; rm -rf x; '", "\ud800",
    "\ufeff", "e" * 3000, [], {}, [[]], [None], {"": None}, {"a": {"a": {}}}, [1, "a", None], ["-x"], {"-x": {}},
)
TOKENS = (
    b"{", b"}", b"[", b"]", b",", b":", b'"', b"\\", b"\\u0000", b"\\ud800", b"null", b"true", b"NaN", b"-Infinity",
    b"1e999", b"1" * 400, b"-1", b'"-x"', b'""', b"\n", b"\r\n", b"\0", b"=", b"[[waiver]]", b"#", b"1979-05-27",
    b'{"a":', b"[" * 200, b"\xef\xbb\xbf", b"\xff", b"\xc0\x80", b"\xed\xa0\x80",
)
# fmt: on
WAIVERS = """
[[waiver]]
contract = "contracts/test_decoder.py::*"
lane = "inductor"
metric = "graph_breaks"
torch = ">=2.12,<2.14"
issue = "https://github.com/pytorch/pytorch/issues/1"
owner = "someone"
expires = 2027-01-31
kind = "workaround"
note = "the router copies its mask"

[[waiver]]
contract = "contracts/test_block.py::test_block[1]"
lane = ["aot", "capture"]
metric = {recompiles = 2, fullgraph = "no"}
fact = ["net.py:* in forward: y = x [*] 2"]
torch = "==2.15.0"
issue = "https://example.org/2"
owner = "someone else"
expires = 2027-02-28
kind = "open-risk"
"""
POLICY = """
gate = ["graph_breaks", "recompiles"]
allow = ["new"]

[band]
ops_captured = 0.05
steady_seconds = 0.25
"""
LANES = """
[project]
name = "x"

[tool.compilecontract]
report = "report"
timeout = 600
repeat = 2
allow-unmeasured = false

[tool.compilecontract.lanes.bf16]
device = "cuda:0"
dtype = "bfloat16"
matmul_precision = "high"
requires = ["timm"]

[tool.compilecontract.lanes.patient]
backend = "inductor"
mode = "reduce-overhead"
dynamic = false
options = { "triton.cudagraphs" = true }
dynamo = { recompile_limit = 64 }
recompile_limit = 4
cache = "shared"
"""


class Wrong(Exception):  # noqa: N818 - an input for which what is promised does not hold
    """What is promised does not hold for an input; the message says what."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Reader:
    """What reads one kind of file: from bytes, and real files of that kind."""

    name: str
    read: Callable[[bytes], object]
    seeds: tuple[bytes, ...]
    shown: Callable[[object], None] = lambda value: None


def readers(folder: Path) -> list[Reader]:
    """All of them; what is read by path alone is put into the folder."""
    two = receipts()
    found = matrix([receipt.from_json(each, name="") for each in two])
    matrices = (document.to_json(found, outcome="not known", plugin="0.1.0"),)
    kept = sorted((ROOT / "contracts" / "baselines").rglob("test_*.json"), key=lambda path: path.stat().st_size)

    def from_file(name: str, read: Callable[[Path], object]) -> Callable[[bytes], object]:
        def reading(data: bytes) -> object:
            (folder / name).write_bytes(data)
            return read(folder / name)

        return reading

    return [
        Reader(name="receipt", read=read_receipt, seeds=two, shown=reported),
        Reader(name="baseline", read=read_baseline, seeds=tuple(path.read_bytes() for path in kept[:2])),
        Reader(name="matrix", read=read_matrix, seeds=matrices),
        Reader(name="waivers", read=from_file("waivers.toml", read_waivers), seeds=(WAIVERS.encode(),)),
        Reader(name="policy", read=from_file("policy.toml", read_policy), seeds=(POLICY.encode(),)),
        Reader(
            name="lanes",
            read=from_file("pyproject.toml", lambda path: read_project(path.parent)),
            seeds=(LANES.encode(),),
        ),
        Reader(
            name="journal",
            read=from_file(journal.NAME, lambda path: journal.recovered(path).receipt),
            seeds=(a_journal(two[0]),),
            shown=reported,
        ),
    ]


def receipts() -> tuple[bytes, bytes]:
    """Some entries of a receipt of a CPU, and of one of a GPU."""
    cut = []
    for name in ("sweep/torch-2.13.0.json", "gpu-runs/torch-2.12.1.json"):
        whole = receipt.from_json(unpacked(name), name=name)
        # That which says something of the most metrics, in the fewest words.
        entries = sorted(whole.entries, key=lambda each: (unsaid(each.measurement), len(str(each))))[:1]
        environments = {entry.environment: whole.environments[entry.environment] for entry in entries}
        tables = {name: {"a": "1"} for name in {each.defaults for each in environments.values()} if name}
        cut.append(receipt.to_json(replace(whole, entries=tuple(entries), environments=environments, defaults=tables)))
    return cut[0], cut[1]


def unsaid(measurement: Any) -> int:
    """How many metrics were not measured."""
    names = getattr(type(measurement), "__slots__", ())
    return sum(getattr(measurement, name) is None for name in names) if names else 1000


def a_journal(data: bytes) -> bytes:
    whole = receipt.from_json(data, name="")
    lines: list[dict[str, Any]] = [{"event": "session", "plugin": whole.plugin, "created": whole.created}]
    for entry in whole.entries:
        begun = receipt.entry_to_data(replace(entry, verdict="broken", measurement=None))
        lines.append({"event": "start", "test": entry.test, "entry": begun})
        environment = receipt.environment_to_data(whole.environments[entry.environment])
        lines.append({"event": "entry", "entry": receipt.entry_to_data(entry), "environment": environment})
        lines.append({"event": "finish", "test": entry.test})
    return "".join(f"{json.dumps(line)}\n" for line in [*lines, lines[1]]).encode()


# What each is held to


def read_receipt(data: bytes) -> Receipt:
    quick = codec.decoded(data, Receipt)
    slow: Receipt | ContractError
    try:
        slow = receipt.receipt_from_document(codec.document_from_json(data, name="x"), name="x")
    except ContractError as error:
        slow = error
    if quick is not None and quick.format == FORMAT and sense.is_consistent(quick):
        if isinstance(slow, ContractError):
            raise Wrong(f"the quick way reads what the slow way refuses: {slow}") from slow
        if quick != slow and "nan" not in repr(slow):
            raise Wrong("the two ways read two receipts")
    if isinstance(slow, ContractError):
        raise slow
    return slow


def read_baseline(data: bytes) -> baseline.Baseline:
    quick = codec.decoded(data, baseline.Baseline)
    slow = baseline.from_document(codec.document_from_json(data, name="x"), name="x")
    if quick is not None and baseline.from_json(data, name="x") != slow and "nan" not in repr(slow):
        raise Wrong("the two ways read two baselines")
    return slow


def read_matrix(data: bytes) -> document.MatrixDocument:
    return document.document_from_data(codec.document_from_json(data, name="x"), name="x")


def reported(value: object) -> None:
    """Every report of a receipt, as the command makes them."""
    assert isinstance(value, Receipt)
    written = receipt.to_json(value)
    if receipt.to_json(receipt.from_json(written, name="x")) != written:
        raise Wrong("what is read is not what is written")
    other = replace(value, entries=value.entries[:1])
    try:
        comparison = compare(other, value)
        table = matrix([other, value])
    except ContractError:
        return  # a lane twice
    answered = answer(comparison, DEFAULT_POLICY, ())
    lines = [
        *comparison_lines(comparison, everything=True),
        *answer_lines(comparison, answered),
        *(text for verbosity in (-1, 0, 1) for text, _ in summary_lines(list(map(row_of, value.entries)), verbosity)),
    ]
    documents = {
        kind: rendered(kind, Made(found=table, answered=answered, policy=DEFAULT_POLICY, everything=True)).decode()
        for kind in ("terminal", "markdown", "json", "junit", "html")
    }
    for kind, text in (("lines", "\n".join(map(printed, lines))), *documents.items()):
        obeyed(kind, text)
    ElementTree.fromstring(documents["junit"])
    json.loads(documents["json"])
    if len(re.findall("<script", documents["html"])) != 2:
        raise Wrong("a script of somebody else in the page")


def obeyed(kind: str, text: str) -> None:
    """Refuse a text in which a terminal or a workflow would find something to do."""
    for line in text.split("\n"):
        if line.lstrip().startswith("::") or re.search(r"##\w*\[", line):
            raise Wrong(f"{kind}: a workflow obeys {line[:200]!r}")
    if found := next((char for char in text if char != "\n" and unicodedata.category(char) in ("Cc", "Cf", "Cs")), ""):
        raise Wrong(f"{kind}: has {found!r}")


def tried(reader: Reader, data: bytes, *, shown: bool) -> str:
    """Read an input: "read" or "refused".

    Raises:
        Wrong: what is promised does not hold.
    """
    began = time.process_time()
    try:
        value = reader.read(data)
        if shown:
            reader.shown(value)
    except ContractError as error:
        message = str(error)
        if not message.strip() or "\n" in message or not message.isprintable():
            raise Wrong(f"no message of one line: {message[:200]!r}") from error
        outcome = "refused"
    except Wrong:
        raise
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        raise Wrong(f"{type(error).__name__}: {error} ({Path(where.filename).name}:{where.lineno})"[:300]) from error
    else:
        outcome = "read"
    if not shown and (took := time.process_time() - began) > LONGEST_SECONDS:
        raise Wrong(f"took {took:.1f} s")
    return outcome


# Inputs


def changed_bytes(data: bytes, chance: random.Random) -> bytes:
    """A few bytes taken out, put in, turned, doubled, or the end cut off."""
    found = bytearray(data)
    for _ in range(chance.choice((1, 1, 1, 2, 4, 8))):
        at, size = chance.randrange(len(found) + 1), chance.choice((1, 1, 2, 8, 64))
        match chance.randrange(6):
            case 0:
                found[at : at + size] = b""
            case 1:
                found[at:at] = chance.choice(TOKENS)
            case 2:
                found[at : at + size] = bytes(chance.randrange(256) for _ in range(size))
            case 3:
                found[at:at] = found[at : at + size]
            case 4:
                found[at : at + size] = chance.choice(TOKENS)
            case 5 if chance.random() < 0.2:
                del found[at:]
    return bytes(found)


def changed_values(value: Any, chance: random.Random) -> Any:
    """A copy in which one place, or a few, is another value, is gone, or is there twice."""
    copy = json.loads(json.dumps(value, default=str))
    places = list(_places(copy))
    for _ in range(chance.choice((1, 1, 1, 2, 3))):
        parent, key = chance.choice(places)
        other, its = chance.choice(places)
        # What was changed before may have taken the place along.
        with contextlib.suppress(KeyError, IndexError):
            match chance.randrange(8):
                case 0:
                    del parent[key]
                case 1 if isinstance(parent, dict):
                    parent[str(chance.choice(VALUES))] = parent.pop(key)
                case 2 if isinstance(parent, list):
                    parent.insert(key, parent[key])
                case 3:
                    parent[key] = json.loads(json.dumps(other[its]))
                case _:
                    parent[key] = chance.choice(VALUES)
    return copy


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    if isinstance(value, dict | list):
        for key in list(value) if isinstance(value, dict) else range(len(value)):
            yield value, key
            yield from _places(value[key])


def in_json(value: Any, chance: random.Random) -> bytes:
    text = json.dumps(value, ensure_ascii=chance.random() < 0.5)
    return text.encode(errors="surrogatepass")


def in_toml(value: Any) -> bytes:
    """TOML of the kind that these files have, the values as JSON writes them where TOML does not care."""

    def table(found: Any, path: str) -> Iterator[str]:
        own = {key: each for key, each in found.items() if not isinstance(each, dict) and not _tables(each)}
        yield from (f"{json.dumps(key)} = {_toml(each)}" for key, each in own.items())
        for key, each in found.items():
            name = f"{path}.{json.dumps(key)}" if path else json.dumps(key)
            if isinstance(each, dict):
                yield from (f"[{name}]", *table(each, name))
            elif _tables(each):
                for inner in each:
                    yield from (f"[[{name}]]", *table(inner, name))

    text = "\n".join(table(value, "")) if isinstance(value, dict) else _toml(value)
    return text.encode(errors="surrogatepass")


def _tables(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(each, dict) for each in value)


def _toml(value: Any) -> str:
    text = str(value)
    return text if re.fullmatch(r"\d{4}-\d\d-\d\d", text) else json.dumps(value)


def made(reader: Reader, chance: random.Random) -> bytes:
    """One input for a reader, from a file that it reads."""
    seed = chance.choice(reader.seeds)
    if chance.random() < 0.4:
        return changed_bytes(seed, chance)
    if reader.name in ("waivers", "policy", "lanes"):
        return in_toml(changed_values(tomllib.loads(seed.decode()), chance))
    if reader.name != "journal":
        return in_json(changed_values(json.loads(seed), chance), chance)
    lines = seed.split(b"\n")
    at = chance.randrange(len(lines) - 1)
    lines[at] = in_json(changed_values(json.loads(lines[at]), chance), chance)
    return b"\n".join(lines)


def from_nothing(reader: Reader, count: int, take: Callable[[Reader, bytes], None]) -> None:
    """What hypothesis makes: any bytes, any JSON."""
    from hypothesis import HealthCheck, given, settings
    from hypothesis import strategies as st

    texts = st.text(max_size=12)
    values = st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | texts,
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
        max_leaves=20,
    )
    keys = sorted({key for seed in reader.seeds for key in re.findall(r'"(\w+)":', seed.decode())} | {"format"})
    known = st.dictionaries(st.sampled_from(keys), values, max_size=6)
    encoded = known.map(lambda value: json.dumps(value).encode())

    @settings(max_examples=count, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(st.binary(max_size=200) | encoded)
    def one(data: bytes) -> None:
        take(reader, data)

    one()


def in_atheris(reader: Reader, seconds: int) -> None:
    """Have libFuzzer choose the bytes."""
    import atheris

    corpus = tempfile.mkdtemp(prefix="corpus-")
    for number, seed in enumerate(reader.seeds):
        (Path(corpus) / str(number)).write_bytes(seed)
    for name, module in list(sys.modules.items()):
        if name.startswith("pytest_compilecontract"):
            for each in vars(module).values():
                if inspect.isfunction(each) and each.__module__ == name:
                    atheris.instrument_func(each)

    def one(data: bytes) -> None:
        tried(reader, data, shown=False)

    limits = ("-timeout=20", "-rss_limit_mb=2048", "-print_final_stats=1", "-max_len=20000")
    atheris.Setup([sys.argv[0], corpus, f"-max_total_time={seconds}", *limits], one)
    atheris.Fuzz()


def main() -> int:
    parser = argparse.ArgumentParser(description="Give the readers inputs that are wrong.")
    parser.add_argument("--count", type=int, default=1_000_000, help="how many inputs at most")
    parser.add_argument("--seconds", type=float, default=3600, help="how long at most")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--hypothesis", type=int, default=2000, help="how many of them hypothesis makes for each reader"
    )
    parser.add_argument("--atheris", type=int, default=0, help="seconds of libFuzzer instead, for one reader")
    parser.add_argument("--reader", default="", help="one reader alone, by its name")
    parser.add_argument("--wrong", type=Path, default=Path("wrong-inputs"), help="where inputs go that are wrong")
    chosen = parser.parse_args()
    sys.setrecursionlimit(1000)

    def hangs(number: int, frame: FrameType | None) -> None:
        raise TimeoutError("no end after 30 s")

    if not chosen.atheris:
        # libFuzzer's own clock has the same signal.
        signal.signal(signal.SIGALRM, hangs)
    told: Counter[tuple[str, str]] = Counter()
    wrong: dict[str, bytes] = {}

    def take(reader: Reader, data: bytes) -> None:
        number = sum(told.values())
        signal.setitimer(signal.ITIMER_REAL, 30)
        try:
            told[reader.name, tried(reader, data, shown=number % SHOWN_OF == 0)] += 1
        except Wrong as error:
            told[reader.name, "WRONG"] += 1
            if str(error) not in wrong and len(wrong) < 100:
                wrong[str(error)] = data
                chosen.wrong.mkdir(exist_ok=True)
                (chosen.wrong / f"{reader.name}-{len(wrong)}").write_bytes(data)
                print(f"WRONG {reader.name}: {error}", flush=True)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)

    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as name:
        every = [each for each in readers(Path(name)) if chosen.reader in ("", each.name)]
        if chosen.atheris:
            in_atheris(every[0], chosen.atheris)
            return 0
        resource.setrlimit(resource.RLIMIT_AS, (MOST_MEMORY, MOST_MEMORY))
        began = last = time.monotonic()
        for reader in every:
            from_nothing(reader, min(chosen.hypothesis, chosen.count // 20), take)
        by_hypothesis = sum(told.values())
        chance = random.Random(chosen.seed)
        while sum(told.values()) < chosen.count and time.monotonic() - began < chosen.seconds:
            reader = chance.choice(every)
            take(reader, made(reader, chance))
            if time.monotonic() - last > 30:
                last = time.monotonic()
                print(f"{sum(told.values())} inputs in {last - began:.0f} s", flush=True)
    for reader in every:
        counts = {outcome: told[reader.name, outcome] for outcome in ("read", "refused", "WRONG")}
        print(f"{reader.name}: {counts['read']} read, {counts['refused']} refused, {counts['WRONG']} wrong")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    total = sum(told.values())
    took = time.monotonic() - began
    print(f"{total} inputs, {by_hypothesis} of them by hypothesis, in {took:.0f} s, at most {peak} MiB")
    return bool(wrong)


if __name__ == "__main__":
    raise SystemExit(main())
