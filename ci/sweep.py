"""Run the contract suite on several torch releases, the oldest first, and write the matrix.

    ci/sweep 2.11.0 2.12.1 2.13.0                  each in its own uv environment
    ci/sweep --record docs/sweep 2.11.0 2.15.0     keep the matrix there, and the receipts in docs/receipts
    ci/sweep 2.15.0 -- -k router                   arguments after -- are passed to pytest

It is `compilecontract bump` with more columns: the same kind of environments, on one commit, that only differ in torch.
They are kept in .compilecontract/ until you remove it; a CUDA build of torch takes about 5 GB.
"""

from __future__ import annotations

import argparse
import datetime
import platform
import sys
from dataclasses import replace
from pathlib import Path

from packed import pack

from pytest_compilecontract.baselines.kept import kept_entry
from pytest_compilecontract.compare.matrix import matrix
from pytest_compilecontract.errors import ContractError
from pytest_compilecontract.facts.receipt import Receipt
from pytest_compilecontract.files.receipt import to_json
from pytest_compilecontract.processes import ended_by_sigterm
from pytest_compilecontract.report.matrix import markdown, terminal_lines
from pytest_compilecontract.upgrade.bench import Bench, claimed
from pytest_compilecontract.upgrade.bump import KEPT
from pytest_compilecontract.upgrade.checkout import checkout_of
from pytest_compilecontract.upgrade.environments import Uv, uv_program
from pytest_compilecontract.upgrade.progress import Progress
from pytest_compilecontract.upgrade.requirements import specs_from, wanted
from pytest_compilecontract.upgrade.sides import Side

ROOT = Path(__file__).resolve().parent.parent
GROUPS = ("test", "models")


def main() -> int:
    words = sys.argv[1:]
    at = words.index("--") if "--" in words else len(words)
    chosen = parsed(words[:at])
    try:
        return swept(chosen, words[at + 1 :] or ["contracts"])
    except ContractError as error:
        print(f"sweep: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130


def parsed(words: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("versions", nargs="+", metavar="VERSION", help="a release of torch, as 2.13.0")
    parser.add_argument("--record", metavar="DIR", type=Path, help="keep the matrix in DIR, and pack the receipts")
    parser.add_argument("--keep", metavar="DIR", type=Path, default=ROOT / KEPT, help=f"(default: {KEPT})")
    return parser.parse_args(words)


def swept(chosen: argparse.Namespace, arguments: list[str]) -> int:
    sides = [Side(specs=specs_from([f"torch=={version}"], where="sweep")) for version in chosen.versions]
    progress = Progress(stream=sys.stderr, prefix="sweep", live=sys.stderr.isatty())
    kept = chosen.keep.absolute()
    with ended_by_sigterm(), claimed(kept):
        (kept / "environments").mkdir(exist_ok=True)
        uv = Uv(
            program=uv_program(),
            folder=kept / "environments",
            options=(),
            python=sys.executable,
            progress=progress,
        )
        bench = Bench(
            project=ROOT,
            wanted=wanted(ROOT, asked={"torch"}, groups=GROUPS),
            receipts=kept / "receipts",
            arguments=arguments,
            seconds=None,
            progress=progress,
            uv=uv,
        )
        before = checkout_of(ROOT)
        measured = [bench.measure(side) for side in sides]
    if checkout_of(ROOT) != before:
        print("sweep: the project's files changed while it was measured", file=sys.stderr)
        return 3
    receipts = [each.receipt for each in measured]
    table = matrix(receipts)
    print("\n".join(terminal_lines(table)))
    if chosen.record:
        chosen.record.mkdir(parents=True, exist_ok=True)
        for version, receipt in zip(chosen.versions, receipts, strict=True):
            pack(f"{chosen.record.name}/torch-{version}.json", to_json(compact(receipt)))
        (chosen.record / "matrix.md").write_text(heading() + markdown(table), encoding="utf-8")
    return 0


def compact(receipt: Receipt) -> Receipt:
    """The receipt with everything that is compared, and the calls; without raw counters, which are most of its size."""
    entries = []
    for entry in receipt.entries:
        kept = kept_entry(entry)
        if kept.measurement is not None and entry.measurement is not None:
            kept = replace(kept, measurement=replace(kept.measurement, calls=entry.measurement.calls))
        entries.append(kept)
    return replace(receipt, entries=tuple(entries))


def heading() -> str:
    today = datetime.date.today().isoformat()
    where = f"Python {platform.python_version()}, {platform.system()} {platform.machine()}, CPU"
    return f"# The contract suite on each torch release\n\n`ci/sweep` on {today}: {where}.\n\n"


if __name__ == "__main__":
    raise SystemExit(main())
