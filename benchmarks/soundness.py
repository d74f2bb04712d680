"""Every contract of the suite, and every corpus case, by every fault that can be planted in it: docs/soundness.md.

    nice python benchmarks/soundness.py run STATE [FILE ...] [--lanes capture,aot] [--seconds 3600] [--at-once 2]
    nice python benchmarks/soundness.py run STATE --suite corpus
    python benchmarks/soundness.py write STATE

`run` holds one file or case after the other with `--contract-plant`, in a process each, and keeps a receipt of each in
the folder STATE; what has one is left out, so that a run that was ended goes on. `write` makes the page of them all.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import textwrap
import time
import tomllib
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from pytest_compilecontract.facts.faults import FAULTS, KNOWN
from pytest_compilecontract.facts.planted import Planted
from pytest_compilecontract.facts.receipt import Entry, Receipt
from pytest_compilecontract.files.receipt import read_receipt
from pytest_compilecontract.wording import counted

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests" / "corpus"))
from corpus import TESTS, lay_out, read_cases  # noqa: E402

PAGE = ROOT / "docs" / "soundness.md"
EXPLAINED = ROOT / "docs" / "soundness.toml"
LANES = "capture,aot"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    run = commands.add_parser("run")
    run.add_argument("state", type=Path)
    run.add_argument("files", nargs="*", type=Path)
    run.add_argument("--lanes", default=LANES)
    run.add_argument("--suite", choices=("contracts", "corpus"), default="contracts")
    run.add_argument("--plant", default="all", help="the faults, as `--contract-plant` takes them")
    run.add_argument("--at-once", type=int, default=1, help="files beside one another")
    run.add_argument("--workers", type=int, default=0, help="of pytest-xdist, for each file")
    run.add_argument("--seconds", type=float, default=3600.0, help="after which no further file is begun")
    run.add_argument("--each", type=float, default=1800.0, help="seconds that one file may take")
    run.set_defaults(command=_run)
    write = commands.add_parser("write")
    write.add_argument("state", type=Path)
    write.set_defaults(command=_write)
    chosen = parser.parse_args()
    code: int = chosen.command(chosen)
    return code


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """A process of pytest: what it is called, where it runs, and which tests and lanes it is given."""

    name: str
    where: Path
    arguments: tuple[str, ...]


def _run(chosen: argparse.Namespace) -> int:
    ends = time.monotonic() + chosen.seconds
    with tempfile.TemporaryDirectory() as scratch, ThreadPoolExecutor(chosen.at_once) as pool:
        jobs = _corpus_jobs(Path(scratch)) if chosen.suite == "corpus" else _contract_jobs(chosen)
        for said in pool.map(lambda job: _planted(chosen, job, ends), jobs):
            print(said, flush=True)
    return 0


def _contract_jobs(chosen: argparse.Namespace) -> list[Job]:
    files = [path.resolve() for path in chosen.files] or sorted(ROOT.glob("contracts/test_*.py"))
    lanes = f"--contract-lanes={chosen.lanes}"
    return [Job(name=file.stem, where=ROOT, arguments=(lanes, str(file))) for file in files]


def _corpus_jobs(scratch: Path) -> list[Job]:
    """A job a case, each in the lanes that it names; a case that may take its process with it is left out."""
    cases = [case for case in read_cases().values() if not case.alone]
    lay_out(scratch, cases)
    # Its name is that of a contract of the project that it is laid out in.
    return [Job(name=f"corpus-{case.name}", where=scratch, arguments=(f"{TESTS}::test_{case.name}",)) for case in cases]


def _planted(chosen: argparse.Namespace, job: Job, ends: float) -> str:
    """Run it, and say how that ended."""
    folder = chosen.state.resolve() / job.name
    if (folder / "receipt.json").is_file():
        return f"{job.name}: there already"
    if time.monotonic() > ends:
        return f"{job.name}: not begun, the time is over"
    started = time.monotonic()
    many = ["-n", str(chosen.workers), "--dist", "worksteal"] if chosen.workers else []
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--compile-contracts"]
    command += [f"--contract-plant={chosen.plant}", f"--contract-report={folder}", *many, *job.arguments]
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH", ""))))
    environment = {**os.environ, "PYTHONPATH": path}
    try:
        ran = subprocess.run(
            command,
            cwd=job.where,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=chosen.each,
        )
    except subprocess.TimeoutExpired:
        return f"{job.name}: not done in {chosen.each:.0f} s"
    last = next(iter(ran.stdout.strip().splitlines()[-1:]), "")
    return f"{job.name}: exit code {ran.returncode} in {time.monotonic() - started:.0f} s: {last}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Survivor:
    """A fault that a lane let by, and why that is so; empty where nobody has said."""

    entry: Entry
    planted: Planted
    why: str = ""


def _write(chosen: argparse.Namespace) -> int:
    receipts = [read_receipt(path) for path in sorted(chosen.state.glob("*/receipt.json"))]
    text = page(receipts)
    PAGE.write_text(text, encoding="utf-8")
    print(text.partition("\n\n## ")[0])
    return 0


def page(receipts: Sequence[Receipt]) -> str:
    """The page, of all receipts there are."""
    entries = [entry for receipt in receipts for entry in receipt.entries]
    releases = sorted({each.torch or "?" for receipt in receipts for each in receipt.environments.values()})
    planted = [each for entry in entries for each in entry.planted]
    tried = [each for each in planted if each.outcome != "not applicable"]
    left = [Survivor(entry=entry, planted=each, why=why) for entry, each, why in _survivors(entries)]
    open_ = [each for each in left if not each.why]
    sown = [entry for entry in entries if entry.planted]
    lanes = sorted({entry.lane for entry in sown})
    contracts = {entry.contract for entry in sown}
    # A lane may be in several receipts, each with some of the faults.
    places = {(entry.contract, entry.lane) for entry in sown}
    cases = {name for name in contracts if name.startswith(f"{TESTS}::")}
    ran = {entry.contract.partition("::")[0] for entry in entries}
    missing = [
        name for path in sorted(ROOT.glob("contracts/test_*.py")) if (name := f"contracts/{path.name}") not in ran
    ]
    run = "nice python benchmarks/soundness.py run STATE"
    paragraphs = [
        "Every contract of [contracts/](../contracts), and every case of the [corpus](../tests/corpus/cases), that "
        "holds here is rerun with one fault planted at a time, as `pytest --compile-contracts --contract-plant` does: "
        "the lane has to fail, and for the right reason. Generated by",
        f"```console\n{run}\n{run} --suite corpus\npython benchmarks/soundness.py write STATE\n```",
        f"torch {', '.join(releases)}, lanes {', '.join(lanes)}, on a CPU: {len(tried)} faults planted in "
        f"{len(places)} lanes of {len(contracts)} contracts, {len(contracts & cases)} of them corpus cases, "
        f"{len(tried) - len(left)} noticed for the right reason, {len(left)} not: {len(left) - len(open_)} of them "
        f"explained below, {len(open_)} unexplained.",
        f"{len(planted) - len(tried)} more could not be planted where they were tried: there is no CUDA device, no "
        "gradient, or no second call. "
        f"{counted(sum(entry.verdict == 'unmeasured' for entry in entries), 'lane')} cannot run here.",
    ]
    paragraphs.append(
        "The four faults that only a CUDA device has (`host-sync`, `kernel`, `memory-kept`, `cuda-graph-skipped`) are "
        "planted by `compilecontract selftest`, and by `ci/gpu-tests`; docs/gpu-runs.md says where."
    )
    if missing:
        told = ", ".join(f"`{name}`" for name in missing)
        paragraphs.append(f"Not run yet, or with no contract in these lanes: {told}.")
    lines = [
        "# Soundness",
        "",
        *(line for each in paragraphs for line in (*_wrapped(each), "")),
        "## Fault by fault",
        "",
        "| fault | what | planted | noticed | by what, most often | not noticed |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    lines += list(_fault_rows(planted))
    lines += ["", "## Not noticed", ""]
    if not left:
        lines.append("None.")
    for why, group in _grouped(left).items():
        lines += [f"**{len(group)}: {why or 'unexplained'}**", ""]
        for each in group if not why else group[:8]:
            said = each.planted.why or f"failed for another reason: {each.planted.by}"
            lines.append(f"- `{each.entry.contract}` in {each.entry.lane}: {each.planted.fault}: {said}")
        if why and len(group) > 8:
            lines.append(f"- and {len(group) - 8} more of the same kind")
        lines.append("")
    return "\n".join(lines).rstrip() + "\n"


def _wrapped(text: str) -> list[str]:
    return text.splitlines() if text.startswith("```") else textwrap.wrap(text, 120, break_on_hyphens=False)


def _fault_rows(planted: Sequence[Planted]) -> Iterator[str]:
    for fault in FAULTS:
        mine = [each for each in planted if each.fault == fault.name and each.outcome != "not applicable"]
        noticed = [each for each in mine if each.outcome == "noticed"]
        by = Counter(name for each in noticed for name in {part.partition("=")[0] for part in each.by.split(", ")})
        most = ", ".join(name for name, _ in by.most_common(2))
        yield f"| {fault.name} | {fault.what} | {len(mine)} | {len(noticed)} | {most} | {len(mine) - len(noticed)} |"


def _survivors(entries: Sequence[Entry]) -> Iterator[tuple[Entry, Planted, str]]:
    known = tomllib.loads(EXPLAINED.read_text(encoding="utf-8")).get("explained", []) if EXPLAINED.exists() else []
    for entry in entries:
        for each in entry.planted:
            if each.survived:
                yield entry, each, next((rule["why"] for rule in known if _is_meant(rule, entry, each)), "")


def _is_meant(rule: dict[str, object], entry: Entry, planted: Planted) -> bool:
    """Whether a rule of the table explains a survivor: by its faults, its contracts, and what was advised."""
    faults, contracts, said = rule.get("faults"), rule.get("contracts"), rule.get("said")
    assert isinstance(faults, list)
    assert set(faults) <= set(KNOWN)
    assert contracts is not None or said is not None, "a rule names contracts, or what was said of the fault"
    if planted.fault not in faults:
        return False
    if isinstance(contracts, list) and not any(entry.contract.endswith(str(each)) for each in contracts):
        return False
    return said is None or str(said) in (planted.why or planted.by)


def _grouped(left: Sequence[Survivor]) -> dict[str, list[Survivor]]:
    groups: dict[str, list[Survivor]] = {}
    for each in sorted(left, key=lambda each: bool(each.why)):
        groups.setdefault(each.why, []).append(each)
    return groups


if __name__ == "__main__":
    sys.exit(main())
