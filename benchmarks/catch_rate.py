"""The catch rate: of the drifts in tests/corpus, how many does the plugin see, with the right reason, and what else?

    python benchmarks/catch_rate.py                            five releases, in uv environments that it makes
    python benchmarks/catch_rate.py --python 2.11.0=PATH ...   with interpreters that are there already
    python benchmarks/catch_rate.py --cases DIR                cases of one's own: what is seen of them is shown
    python benchmarks/catch_rate.py --noise 20 --python ...    all cases again and again, in one process and with -n 2
    python benchmarks/catch_rate.py --record docs/catch-rate.md

Every case is a contract, held by a pytest of its own on each release, and the receipts of neighbouring releases are
compared. What was done stays in --out, and is not done again unless the case, its limits or the plugin have changed.
"""

from __future__ import annotations

import argparse
import ast
import dataclasses
import datetime
import hashlib
import importlib.machinery
import importlib.util
import itertools
import json
import os
import platform
import random
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "corpus"), str(ROOT / "ci")]

from corpus import BACKENDS, CASES, EXPECTATIONS, RELEASES, TESTS, Case, Lane, lay_out, read_cases  # noqa: E402
from packed import pack  # noqa: E402

from pytest_compilecontract.compare.comparison import compare  # noqa: E402
from pytest_compilecontract.compare.drift import LaneComparison  # noqa: E402
from pytest_compilecontract.errors import ReceiptError  # noqa: E402
from pytest_compilecontract.facts.receipt import Entry, Receipt  # noqa: E402
from pytest_compilecontract.files.receipt import read_receipt  # noqa: E402

PYTEST_TORCH = "pytest-torch==1.1.1"
# Inductor compiles shifted windows in a minute on a free core, and in several on a busy one.
SECONDS = 1200
NOISE = "noise.txt"
OURS = "pytest-compilecontract"
GREEN, RED, OPEN = "green", "red", "not used"
COUNTS = ("graphs", "graph_breaks", "recompiles", "lost_frames", "limit_hits", "graphs_executed")
# What `compare` is to say of each effect. Where a lane captures nothing before as after, it says that it cannot tell.
SAYS = {"harm": ("worse",), "help": ("better",), "neither": ("changed", "same"), "": ("same", "open")}
# What cannot be measured here says nothing of the case.
COLOURS = {"held": GREEN, "reference": GREEN, "unmeasured": OPEN}


@dataclass(frozen=True, kw_only=True, slots=True)
class Seen:
    """What one case showed on one release: its entries by lane, or why there are none; the other tools' outcomes."""

    entries: Mapping[str, Entry]
    receipt: Receipt | None
    ended: str
    others: Mapping[str, str]

    def verdict(self, lane: str) -> str:
        entry = self.entries.get(lane)
        return entry.verdict if entry is not None else "broken"

    def reason(self, lane: str) -> str:
        entry = self.entries.get(lane)
        return entry.reason if entry is not None else self.ended

    def counts(self, lane: str) -> dict[str, int | None]:
        entry = self.entries.get(lane)
        found = entry.measurement if entry is not None else None
        values = {name: getattr(found, name) if found is not None else None for name in COUNTS}
        return {name: len(value) if isinstance(value, tuple) else value for name, value in values.items()}


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """One lane of one case from one release to the next: what was expected, and what `compare` said."""

    case: str
    lane: str
    before: str
    after: str
    effect: str
    said: str
    because: tuple[str, ...]
    reasons: tuple[str, ...]
    metrics: tuple[str, ...]

    @property
    def right(self) -> bool:
        return self.said in SAYS[self.effect]

    @property
    def missing_reasons(self) -> tuple[str, ...]:
        told = "\n".join(self.reasons)
        return tuple(text for text in self.because if text not in told)


# Running


class Bench:
    """The folder of results, and what runs into it."""

    def __init__(self, out: Path, pythons: Mapping[str, str], cases: Mapping[str, Case]) -> None:
        self.out, self.pythons, self.cases = out, pythons, cases

    def folder(self, release: str, case: str) -> Path:
        return self.out / release / case

    def collect(self, kinds: Sequence[str]) -> None:
        """Run what is not done yet, release by release, and say how far it is."""
        todo = {release: self._jobs(release, kinds) for release in self.pythons}
        left = sum(map(len, todo.values()))
        for release, jobs in todo.items():
            say(f"torch {release}: {len(jobs)} to run, {left} left in all")
            if jobs:
                self._run(release, jobs, left)
            left -= len(jobs)

    def _jobs(self, release: str, kinds: Sequence[str]) -> list[dict[str, Any]]:
        jobs = []
        for case in self.cases.values():
            folder = self.folder(release, case.name)
            for kind in kinds:
                if kind == "others" and not case.right:
                    continue
                if done(folder / f"{kind}.done") == key(case, kind):
                    continue
                folder.mkdir(parents=True, exist_ok=True)
                (folder / f"{kind}.done").unlink(missing_ok=True)
                job = {"name": f"{case.name} ({kind})", "kind": kind, "folder": str(folder), "seconds": SECONDS}
                if kind == "pytest":
                    shutil.rmtree(folder / "project", ignore_errors=True)
                    lay_out(folder / "project", [case])
                    options = ["-n", "1"] if case.alone else []
                    job["arguments"] = ["-q", "--compile-contracts", "--contract-report=report", *options, TESTS]
                else:
                    job |= {"case": str(case.path), "right": right(case), "pytest_torch": str(self._pytest_torch())}
                jobs.append(job | {"key": key(case, kind), "inductor": "inductor" in (case.judged, *case.lanes)})
        # What Inductor compiles takes longest: the others are told first.
        return sorted(jobs, key=lambda job: bool(job["inductor"]))

    def _pytest_torch(self) -> Path:
        folder = self.out / "pytest-torch"
        if not folder.is_dir():
            # A folder, not an environment: as an installed plugin it would be loaded into every pytest below.
            command = [
                sys.executable,
                "-m",
                "pip",
                "install",
                "--quiet",
                "--no-deps",
                "--target",
                str(folder),
                PYTEST_TORCH,
            ]
            if subprocess.run(command).returncode:
                say(f"{PYTEST_TORCH} could not be installed, so its rows are empty")
                folder.mkdir()
        return folder

    def _run(self, release: str, jobs: Sequence[dict[str, Any]], left: int) -> None:
        waiting = {job["name"]: job for job in jobs}
        listed = self.out / release / "jobs.json"
        listed.write_text(json.dumps(jobs), encoding="utf-8")
        command = [self.pythons[release], str(Path(__file__).with_name("each_case.py")), str(listed)]
        with subprocess.Popen(command, env=surroundings(), stdout=subprocess.PIPE, text=True) as child:
            assert child.stdout is not None
            for line in child.stdout:
                ended = json.loads(line)
                job = waiting.pop(ended["job"])
                mark(Path(job["folder"]) / f"{job['kind']}.done", job["key"], ended["ended"])
                left -= 1
                how = f"ended with {ended['ended']} after {ended['seconds']:.0f} s"
                say(f"torch {release}: {job['name']} {how}, {left} left")
        if child.returncode:
            raise SystemExit(f"torch {release}: {' '.join(command)} ended with {child.returncode}")

    def seen(self, release: str, case: Case) -> Seen | None:
        """What a case showed; None if it did not run there."""
        folder = self.folder(release, case.name)
        if not (folder / "pytest.done").is_file():
            return None
        ended = json.loads((folder / "pytest.done").read_text(encoding="utf-8"))["ended"]
        try:
            receipt = read_receipt(folder / "project" / "report" / "receipt.json")
        except ReceiptError:
            receipt = None
        bases = {case.lane(base): base for base in case.lanes}
        entries = {bases.get(each.lane, each.lane): each for each in (receipt.entries if receipt else ())}
        why = f"no end after {SECONDS} s" if ended == -9 else f"pytest ended with {ended} and no receipt"
        others = folder / "other_tools.json"
        found = json.loads(others.read_text(encoding="utf-8")) if others.is_file() else {}
        return Seen(entries=entries, receipt=receipt, ended=why, others=found)


def surroundings() -> dict[str, str]:
    path = os.pathsep.join(each for each in (str(ROOT), os.environ.get("PYTHONPATH", "")) if each)
    fixed = {"PYTHONPATH": path, "PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1", "TORCHINDUCTOR_COMPILE_THREADS": "1"}
    return {**os.environ, **fixed}


def key(case: Case, kind: str) -> str:
    """What a result came from: the case, its contract, and the code that judged it."""
    sources = [case.path]
    if kind == "pytest":
        sources += [*sorted((ROOT / "pytest_compilecontract").rglob("*.py")), CASES.parent / "one_case.py"]
        contract: object = [sorted(case.limits.items()), case.lanes, case.raises]
    else:
        sources += [Path(__file__).with_name("other_tools.py")]
        contract = right(case)
    digest = hashlib.sha256(json.dumps(contract, sort_keys=True).encode())
    for path in sources:
        digest.update(path.read_bytes())
    return digest.hexdigest()


def done(path: Path) -> str:
    try:
        return str(json.loads(path.read_text(encoding="utf-8"))["key"])
    except (OSError, ValueError, KeyError):
        return ""


def mark(path: Path, made_from: str, ended: int) -> None:
    write(path, json.dumps({"key": made_from, "ended": ended}))


def right(case: Case) -> dict[str, Any]:
    return {"backend": BACKENDS[case.judged], "raises": case.raises, **case.right}


# Judging


def steps(bench: Bench) -> Iterator[Step]:
    """Every lane of every case, from each release to the next that ran."""
    releases = list(bench.pythons)
    for case in bench.cases.values():
        for before, after in itertools.pairwise(releases):
            was, now = bench.seen(before, case), bench.seen(after, case)
            if was is None or now is None:
                continue
            compared = lanes_of(was, now)
            for base in case.lanes:
                yield step(case, base, before, after, was, now, compared.get(case.lane(base)))


def lanes_of(was: Seen, now: Seen) -> dict[str, LaneComparison]:
    if was.receipt is None or now.receipt is None:
        return {}
    return {each.lane: each for each in compare(was.receipt, now.receipt).lanes}


def step(case: Case, base: str, before: str, after: str, was: Seen, now: Seen, found: LaneComparison | None) -> Step:
    lane = case.expected.get(base)
    expected = next((each for each in lane.drifts if each["to"] == after), {}) if lane else {}
    drifts = found.drifts if found else ()
    facts = [fact for drift in drifts for fact in (*drift.came, *drift.went)]
    reasons = [" ".join((fact.where, fact.source, fact.said)) for fact in facts]
    return Step(
        case=case.name,
        lane=base,
        before=before,
        after=after,
        effect=expected.get("effect", ""),
        said=said_by(found, was.verdict(base), now.verdict(base)),
        because=tuple(expected.get("because", ())),
        reasons=(*reasons, now.reason(base)),
        metrics=tuple(f"{drift.metric} {drift.before} -> {drift.after}" for drift in drifts),
    )


def said_by(found: LaneComparison | None, was: str, now: str) -> str:
    """One word for what `compare` says of a lane; where a receipt is missing, what the verdicts say."""
    if found is None:
        return {(GREEN, RED): "worse", (RED, GREEN): "better"}.get((colour(was), colour(now)), "same")
    if found.verdict == "drifted" or found.newly_broken:
        return "worse"
    if found.verdict == "improved":
        return "better"
    if found.verdict in ("held", "broken"):
        return "changed" if found.drifts else "same"
    return "open"


def colour(verdict: str) -> str:
    return COLOURS.get(verdict, RED)


@dataclass(kw_only=True, slots=True)
class Tally:
    """How one tool did: over releases where the outcome is wrong or right, and over the steps that do harm."""

    wrong: int = 0
    caught: int = 0
    right: int = 0
    alarms: list[str] = field(default_factory=list)
    missed: list[str] = field(default_factory=list)
    harms: int = 0
    turned: int = 0
    unused: int = 0

    def row(self, tool: str) -> str:
        caught, turned = f"{self.caught} of {self.wrong}", f"{self.turned} of {self.harms}"
        return f"| {tool} | {caught} | {turned} | {len(self.alarms)} of {self.right} | {self.unused} |"


def tallies(bench: Bench) -> dict[str, Tally]:
    """Every tool in the lane that a case is judged in, by the same rule."""
    found: dict[str, Tally] = {}
    for case in bench.cases.values():
        lane = case.expected.get(case.judged)
        if lane is None:
            continue
        pins = pinned(bench, case, lane)
        colours = {release: colours_of(bench.seen(release, case), case, pins) for release in bench.pythons}
        for tool in dict.fromkeys(name for each in colours.values() for name in each):
            tally = found.setdefault(tool, Tally())
            for index, release in enumerate(RELEASES):
                if release not in colours or tool not in colours[release]:
                    continue
                count(tally, f"{case.name} on {release}", lane.verdicts[index] == "held", colours[release][tool])
            for drift in lane.drifts:
                earlier = RELEASES[RELEASES.index(drift["to"]) - 1]
                if drift["effect"] == "harm" and earlier in colours and drift["to"] in colours:
                    tally.harms += 1
                    was, now = (colours[each].get(tool) for each in (earlier, drift["to"]))
                    tally.turned += (was, now) == (GREEN, RED)
    return found


def pinned(bench: Bench, case: Case, lane: Lane) -> dict[str, str]:
    """The numbers that tests with the counting tools pin: what they give on the first release where all is right.

    Where none is, whoever knows what is right writes that.
    """
    for index, release in enumerate(RELEASES):
        if lane.verdicts[index] == "held" and release in bench.pythons and (seen := bench.seen(release, case)):
            return {tool: said for tool, said in seen.others.items() if said.startswith("count ")}
    known = {"CompileCounter.frame_count": "backend_calls", "explain().graph_break_count": "breaks"}
    return {tool: f"count {case.right[name]}" for tool, name in known.items() if name in case.right}


def colours_of(seen: Seen | None, case: Case, pins: Mapping[str, str]) -> dict[str, str]:
    if seen is None:
        return {}
    others = {}
    for tool, said in seen.others.items():
        others[tool] = said.partition(":")[0]
        if said.startswith("count "):
            others[tool] = GREEN if said == pins.get(tool, said) else RED
    return {OURS: colour(seen.verdict(case.judged)), **others}


def count(tally: Tally, where: str, is_right: bool, shown: str) -> None:
    tally.unused += shown == OPEN
    if is_right:
        tally.right += 1
        if shown == RED:
            tally.alarms.append(where)
    else:
        tally.wrong += 1
        tally.caught += shown == RED
        if shown != RED:
            tally.missed.append(where)


def surprises(bench: Bench) -> list[str]:
    """Every verdict and count that is not as expected."""
    found = []
    for case in bench.cases.values():
        for base, lane in case.expected.items():
            for index, release in enumerate(RELEASES):
                seen = bench.seen(release, case) if release in bench.pythons else None
                if seen is None:
                    continue
                where = f"{case.name} [{base}] on {release}"
                if lane.verdicts and seen.verdict(base) != lane.verdicts[index]:
                    found.append(
                        f"{where}: {seen.verdict(base)}, expected {lane.verdicts[index]}: {seen.reason(base)[:200]}"
                    )
                counts = seen.counts(base)
                for name, values in lane.counts.items():
                    if counts[name] != values[index]:
                        found.append(f"{where}: {name} {counts[name]}, expected {values[index]}")
    return found


# Telling


def tables(bench: Bench, found: Sequence[Step]) -> str:
    expected = [each for each in found if each.effect]
    harms = [each for each in expected if each.effect == "harm"]
    helps = [each for each in expected if each.effect == "help"]
    neither = [each for each in expected if each.effect == "neither"]
    quiet = [each for each in found if not each.effect]
    named = [each for each in expected if each.because]
    lines = [
        f"{len(bench.cases)} cases, {len(found)} lanes of them from one release to the next.\n",
        f"| what `compare` says between neighbouring releases ({OURS}) | right |",
        "| --- | --- |",
        f"| harm is called worse | {sum(each.right for each in harms)} of {len(harms)} |",
        f"| help is called better | {sum(each.right for each in helps)} of {len(helps)} |",
        f"| a change that is neither is called neither | {sum(each.right for each in neither)} of {len(neither)} |",
        f"| nothing changed, and nothing is said | {sum(each.right for each in quiet)} of {len(quiet)} |",
        f"| the line, guard or tensor that is named is the true one | "
        f"{sum(not each.missing_reasons for each in named)} of {len(named)} |",
        "",
        "| tool, in one lane a case | red where it is wrong | turns red at a harm | red where it is right | not used |",
        "| --- | --- | --- | --- | --- |",
        *(tally.row(tool) for tool, tally in tallies(bench).items()),
    ]
    return "\n".join(lines)


def what_is_wrong(bench: Bench, found: Sequence[Step]) -> list[str]:
    lines = surprises(bench)
    for each in found:
        where = f"{each.case} [{each.lane}] {each.before} -> {each.after}"
        if not each.right:
            lines.append(f"{where}: {each.said}, expected {each.effect or 'nothing'}: {'; '.join(each.metrics)}")
        elif each.missing_reasons:
            lines.append(f"{where}: does not name {', '.join(each.missing_reasons)}: {' / '.join(each.reasons)[:300]}")
    return lines


def record(path: Path, bench: Bench, found: Sequence[Step], text: str, noise: str) -> None:
    """The tables in Markdown, and all that they come from packed in docs/receipts."""
    raw = {
        "created": datetime.date.today().isoformat(),
        "releases": list(bench.pythons),
        "cases": {
            case.name: {
                release: {
                    "lanes": {
                        base: {"verdict": seen.verdict(base), **seen.counts(base), "reason": seen.reason(base)[:300]}
                        for base in case.lanes
                    },
                    "others": dict(seen.others),
                }
                for release in bench.pythons
                if (seen := bench.seen(release, case)) is not None
            }
            for case in bench.cases.values()
        },
        "steps": [dataclasses.asdict(each) for each in found if each.effect or each.said != "same"],
    }
    pack(path.with_suffix(".json").name, (anywhere(json.dumps(raw, indent=1)) + "\n").encode())
    where = f"Python {platform.python_version()}, {platform.system()} {platform.machine()}, CPU, one thread"
    head = f"`benchmarks/catch_rate.py` on {raw['created']}: torch {', '.join(bench.pythons)}; {where}."
    put(path, "\n\n".join(each for each in (head, text, noise) if each))


def anywhere(text: str) -> str:
    """Without the folders of this machine."""
    return re.sub(r"(?<![\w.])/(?:[\w.+-]+/)+", ".../", text)


def put(path: Path, figures: str) -> None:
    """Replace what stands between the page's two marks; what people wrote around it stays."""
    old = path.read_text(encoding="utf-8") if path.is_file() else "<!-- figures -->\n<!-- end -->\n"
    before, _, rest = old.partition("<!-- figures -->")
    _, _, after = rest.partition("<!-- end -->")
    write(path, f"{before}<!-- figures -->\n\n{figures}\n\n<!-- end -->{after}")


def log(bench: Bench, found: Sequence[Step]) -> str:
    """Every drift from one release to the next, in Markdown: what it is of, what it does to users, what was seen."""
    lines = ["| release | program | effect | seen | reported in |", "| --- | --- | --- | --- | --- |"]
    drifts = [each for each in found if each.effect]
    for after in bench.pythons:
        for case in bench.cases.values():
            steps = [each for each in drifts if (each.case, each.after) == (case.name, after)]
            if not steps:
                continue
            title, source = about(case)
            seen = dict.fromkeys(metric for each in steps for metric in each.metrics)
            effects = ", ".join(dict.fromkeys(each.effect for each in steps))
            lines.append(
                f"| {after} | {title} (`{case.name}`) | {effects} | {'; '.join(seen) or steps[0].reasons[-1][:80]} "
                f"| {source} |"
            )
    return "\n".join(lines)


def about(case: Case) -> tuple[str, str]:
    """What a case is, and whose report; from the first and the last line of its docstring."""
    text = ast.get_docstring(ast.parse(case.path.read_text(encoding="utf-8"))) or case.name
    first, source = text.splitlines()[0].rstrip("."), text.partition("Source: ")[2].splitlines()
    return first, source[0].rstrip(".") if source else ""


def write(path: Path, text: str) -> None:
    partial = path.with_name(path.name + ".partial")
    partial.write_text(text, encoding="utf-8")
    os.replace(partial, path)


def say(text: str) -> None:
    print(f"catch-rate: {text}", flush=True)


# Noise


def noise(bench: Bench, rounds: int) -> str:
    """All cases again and again in random order, in one process and with -n 2, from cold and warm caches.

    Without the lanes of Inductor, which would be most of the time and share all counts but their numbers with `aot`.
    """
    cases = [case for case in in_lanes(bench.cases, ("capture", "aot")).values() if not case.alone]
    sentences = []
    for release, python in bench.pythons.items():
        shutil.rmtree(bench.out / f"noise-{release}", ignore_errors=True)
        first: dict[tuple[str, str], tuple[object, ...]] = {}
        changed, compared = [], 0
        for number in range(rounds):
            spread = number % 2 == 1
            shown = noise_round(bench.out / f"noise-{release}", python, cases, spread=spread)
            for place, facts in shown.items():
                compared += place in first
                if facts != first.setdefault(place, facts):
                    changed.append(f"{place[0]} [{place[1]}]: {facts}, first {first[place]}")
            missing = set(first) - set(shown)
            changed += [f"{case} [{lane}]: nothing, first {first[case, lane]}" for case, lane in missing]
            say(f"torch {release}: round {number + 1} of {rounds}, {len(changed)} changed so far")
        for each in changed:
            print(f"  {each}")
        sentences.append(f"torch {release}: {len(changed)} of {compared} changed")
    return (
        f"Noise: {len(cases)} cases {rounds} times over in random order, in turn in one process and with `-n 2`, the "
        f"first of each from empty caches, the others from theirs; verdicts and exact counts: {'; '.join(sentences)}."
    )


def read_noise(path: Path) -> str:
    """What the last rounds in this folder came to; "" where there were none."""
    return path.read_text(encoding="utf-8").strip() if path.is_file() else ""


def noise_round(
    folder: Path, python: str, cases: Sequence[Case], *, spread: bool
) -> dict[tuple[str, str], tuple[object, ...]]:
    project = folder / "project"
    shutil.rmtree(project, ignore_errors=True)
    lay_out(project, random.sample(cases, len(cases)), shared=True)
    options = ["-n", "2"] if spread else []
    command = [python, "-m", "pytest", "-q", "--compile-contracts", "--contract-report=report", *options, TESTS]
    caches = {"TORCHINDUCTOR_CACHE_DIR": str(folder / ("caches-2" if spread else "caches-1"))}
    subprocess.run(command, cwd=project, env=surroundings() | caches, capture_output=True, timeout=3600)
    entries = read_receipt(project / "report" / "receipt.json").entries
    return {(each.contract, each.lane): facts_of(each) for each in entries}


def facts_of(entry: Entry) -> tuple[object, ...]:
    seen = Seen(entries={"": entry}, receipt=None, ended="", others={})
    return (entry.verdict, *seen.counts("").values())


# The command


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", action="append", default=[], metavar="RELEASE=PATH")
    parser.add_argument("--out", type=Path, default=ROOT / "report" / "catch-rate", metavar="DIR")
    parser.add_argument("--cases", type=Path, metavar="DIR")
    parser.add_argument(
        "--only", action="append", default=[], metavar="NAME", help="only cases with this in their name"
    )
    parser.add_argument("--lanes", metavar="A,B", help=f"only these of {', '.join(BACKENDS)}")
    parser.add_argument("--without-others", action="store_true", help="the plugin alone")
    parser.add_argument("--others-alone", action="store_true", help="the other tools alone")
    parser.add_argument("--judge-only", action="store_true", help="run nothing: judge the results that are there")
    parser.add_argument("--noise", type=int, default=0, metavar="ROUNDS")
    parser.add_argument("--record", type=Path, metavar="FILE")
    parser.add_argument("--log", type=Path, metavar="FILE", help="put the table of all drifts into this page")
    arguments = parser.parse_args()
    pythons = interpreters(arguments.python, parser.error)
    cases = read_cases(arguments.cases, None) if arguments.cases else read_cases(CASES, EXPECTATIONS)
    if arguments.only:
        cases = {name: case for name, case in cases.items() if any(each in name for each in arguments.only)}
    if arguments.lanes:
        cases = in_lanes(cases, arguments.lanes.split(","))
    if not cases:
        parser.error("no case there")
    arguments.out.mkdir(parents=True, exist_ok=True)
    bench = Bench(arguments.out.resolve(), pythons, cases)
    if arguments.noise:
        write(bench.out / NOISE, noise(bench, arguments.noise))
    said = read_noise(bench.out / NOISE)
    if arguments.noise and not arguments.record:
        print(said)
        return 0
    if not arguments.judge_only:
        left_out = {"pytest": arguments.others_alone, "others": arguments.without_others}
        bench.collect([kind for kind, is_out in left_out.items() if not is_out])
    found = list(steps(bench))
    if arguments.cases:
        show(bench, found)
        return 0
    text = tables(bench, found)
    wrong = what_is_wrong(bench, found)
    print("\n".join(["", text, *(f"WRONG {each}" for each in wrong)]))
    for tool, tally in tallies(bench).items():
        if tool == OURS:
            print(
                "\n".join([*(f"missed {each}" for each in tally.missed), *(f"alarm {each}" for each in tally.alarms)])
            )
    if arguments.log:
        put(arguments.log, log(bench, found))
    if arguments.record:
        record(arguments.record, bench, found, text, said)
    return 1 if wrong else 0


def in_lanes(cases: Mapping[str, Case], names: Sequence[str]) -> dict[str, Case]:
    """The cases in these lanes alone, with what is expected of them there."""
    kept = {}
    for case in cases.values():
        if lanes := tuple(lane for lane in case.lanes if lane in names):
            expected = {name: lane for name, lane in case.expected.items() if name in names}
            kept[case.name] = dataclasses.replace(case, lanes=lanes, expected=expected)
    return kept


def show(bench: Bench, found: Sequence[Step]) -> None:
    for case in bench.cases.values():
        for release in bench.pythons:
            if (seen := bench.seen(release, case)) is not None:
                for base in case.lanes:
                    what = f"{seen.verdict(base)} {seen.counts(base)} {seen.reason(base)[:160]}"
                    print(f"{case.name} [{base}] {release}: {what}")
    for each in found:
        if each.said != "same":
            print(f"{each.case} [{each.lane}] {each.before} -> {each.after}: {each.said}: {'; '.join(each.metrics)}")


def interpreters(given: Sequence[str], refuse: Callable[[str], Any]) -> dict[str, str]:
    """The interpreter of each release, in order: those given, else of environments as ci/torch-matrix makes them."""
    named = {}
    for each in given:
        release, _, path = each.partition("=")
        if release not in RELEASES or not Path(path).is_file():
            refuse(f"--python: expected RELEASE=PATH with a release of {', '.join(RELEASES)}, got {each!r}")
        named[release] = path
    if named:
        return {release: named[release] for release in RELEASES if release in named}
    loader = importlib.machinery.SourceFileLoader("torch_matrix", str(ROOT / "ci" / "torch-matrix"))
    spec = importlib.util.spec_from_loader("torch_matrix", loader)
    assert spec is not None
    maker = importlib.util.module_from_spec(spec)
    loader.exec_module(maker)
    for release in RELEASES:
        folder = maker.HOME / f"torch-{release}"
        maker.made(folder, folder / "bin" / "python", release)
        named[release] = str(folder / "bin" / "python")
    return named


if __name__ == "__main__":
    raise SystemExit(main())
