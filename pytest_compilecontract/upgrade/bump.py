"""`compilecontract bump`: may we upgrade? Both environments made, the suite run in each, the matrix and the answer."""

# ruff: noqa: T201 - what this module prints is what it is for

from __future__ import annotations

import argparse
import contextlib
import datetime
import html
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import metadata
from pathlib import Path

from packaging.version import Version

from pytest_compilecontract.baselines.store import FOLDER, read_folder
from pytest_compilecontract.compare.gate import Answer, answer
from pytest_compilecontract.compare.matrix import Matrix, matrix
from pytest_compilecontract.compare.policy import DEFAULT_POLICY, Policy, read_policy
from pytest_compilecontract.compare.versions import version_key
from pytest_compilecontract.compare.waivers import FILE as WAIVERS
from pytest_compilecontract.compare.waivers import Waiver, read_waivers, rotten
from pytest_compilecontract.errors import InstallError, ReceiptError, UsageError
from pytest_compilecontract.escaping import markdown as in_markdown
from pytest_compilecontract.escaping import markdown_paragraph, printed, typed
from pytest_compilecontract.facts.receipt import Receipt, Setup
from pytest_compilecontract.files.receipt import write_receipt
from pytest_compilecontract.processes import ended_by_sigterm
from pytest_compilecontract.report.comparison import answer_lines
from pytest_compilecontract.report.matrix import markdown, terminal_lines
from pytest_compilecontract.wording import counted

from .checkout import Checkout, checkout_of
from .environments import Probe, Uv, differing, preferences, probe, uv_program, variables_of
from .progress import Progress, duration
from .requirements import Wanted, exact, locked, pinned, specs_from, wanted
from .suite import RECEIPT, Suite, not_started, refused

KEPT = ".compilecontract"
# pytest's options that say where a run goes, which is decided here, or that write what a comparison must not.
OURS = ("--contract-report", "--contract-record", "--contract-baselines", "--contract-accept-reason")
MOST_DIFFERING = 12


@dataclass(frozen=True, kw_only=True, slots=True)
class Side:
    """One of the environments: what is asked for in it, and its interpreter where that is there already."""

    specs: Mapping[str, str]
    python: Path | None = None

    @property
    def name(self) -> str:
        """What it is called, as "torch 2.12.1"."""
        if not self.specs:
            return str(self.python)
        return ", ".join(f"{name} {exact(spec)}" if exact(spec) else spec for name, spec in self.specs.items())


@dataclass(frozen=True, kw_only=True, slots=True)
class Ready:
    """A side before the suite runs: where its receipt goes, and its interpreter; None where there is none that works.

    `setup` has its name, and what stopped it.
    """

    side: Side
    folder: Path
    setup: Setup
    found: Probe | None = None
    python: Path | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Measured:
    """What came of one side: its receipt, the file of it, and what was found in its interpreter."""

    side: Side
    receipt: Receipt
    file: Path
    found: Probe | None = None


@dataclass(kw_only=True, slots=True)
class Bench:
    """Where sides are measured: one project at one commit, with the same tests and the same requirements."""

    project: Path
    wanted: Wanted
    receipts: Path
    arguments: Sequence[str]
    seconds: float | None
    progress: Progress
    uv: Uv | None
    _names: set[str] = field(default_factory=set)
    _packages: Mapping[str, str] = field(default_factory=dict)

    def measure(self, side: Side) -> Measured:
        """Make the side's environment if there is none, and run the suite in it.

        Raises:
            UsageError: an interpreter cannot be used, or pytest does not take its arguments.
            ReceiptError: the receipt cannot be written.
        """
        return self.run(self.prepare(side))

    def prepare(self, side: Side) -> Ready:
        """Make the side's environment if there is none, and see what is in it.

        Raises:
            UsageError: an interpreter cannot be used.
        """
        if side.python is None:
            folder = self._folder("-".join(f"{name}-{exact(spec) or 'asked'}" for name, spec in side.specs.items()))
            try:
                python = self._made(side, folder)
            except InstallError as error:
                self.progress.stage(f"{side.name}: could not be installed: {error}")
                return Ready(side=side, folder=folder, setup=Setup(asked=side.name, not_installed=str(error)))
            found = probe(python, self.project, variables_of(python))
        else:
            python = side.python
            found = probe(python, self.project, variables_of(python))
            if found.plugin:
                raise UsageError(f"{python}: pytest-compilecontract cannot be loaded there ({found.plugin})")
            folder = self._folder(f"torch-{found.torch}" if found.torch else f"python-{found.python}")
        name = f"torch {found.torch or found.packages.get('torch', '(none)')}"
        if found.torch is None or found.plugin:
            why = found.plugin or found.failed
            self.progress.stage(f"{name}: could not be imported: {why}")
            return Ready(side=side, folder=folder, found=found, setup=Setup(asked=name, not_imported=why))
        if (other := _not_as_asked(side, found)) and side.python is not None:
            raise UsageError(f"{python}: has {other}, and {' '.join(side.specs.values())} was asked for")
        self._packages = self._packages or found.packages
        _write_packages(folder / "packages.txt", found)
        return Ready(side=side, folder=folder, found=found, python=python, setup=Setup(asked=name))

    def run(self, ready: Ready) -> Measured:
        """Run the suite where it can be run.

        Raises:
            ReceiptError: the receipt cannot be written.
        """
        if ready.python is None or ready.found is None or ready.found.torch is None:
            return self.leave(ready)
        suite = Suite(
            torch=ready.found.torch,
            python=ready.python,
            project=self.project,
            folder=ready.folder,
            arguments=self.arguments,
            seconds=self.seconds,
            progress=self.progress,
        )
        receipt = suite.run()
        self._tell(suite, receipt)
        return Measured(side=ready.side, receipt=receipt, file=ready.folder / RECEIPT, found=ready.found)

    def leave(self, ready: Ready) -> Measured:
        """What comes of a side without running anything: how far it came.

        Raises:
            ReceiptError: the receipt cannot be written.
        """
        receipt = not_started(ready.setup)
        write_receipt(ready.folder / RECEIPT, receipt)
        return Measured(side=ready.side, receipt=receipt, file=ready.folder / RECEIPT, found=ready.found)

    def _made(self, side: Side, folder: Path) -> Path:
        if self.uv is None:
            raise AssertionError("a side without an interpreter needs uv")
        log = folder / "uv.log"
        log.unlink(missing_ok=True)
        # The first one keeps to what the project has locked, if it has.
        known = self._packages or locked(self.project)
        return self.uv.environment(side.name, side.specs, self.wanted, preferences(known, side.specs), log)

    def _folder(self, name: str) -> Path:
        while name in self._names:
            name += "-again"
        self._names.add(name)
        folder = self.receipts / name
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def _tell(self, suite: Suite, receipt: Receipt) -> None:
        verdicts = [entry.verdict for entry in receipt.entries if entry.verdict != "reference"]
        lanes = ", ".join(f"{verdicts.count(each)} {each}" for each in dict.fromkeys(sorted(verdicts)))
        took = duration(suite.took)
        self.progress.stage(f"{suite.name}: {counted(suite.course.done, 'test')} in {took}, lanes: {lanes or 'none'}")
        if receipt.setup is not None and receipt.setup.not_finished:
            self.progress.stage(f"{suite.name}: the tests did not run to their end: {receipt.setup.not_finished}")


# The command


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `compilecontract bump`."""
    parser.add_argument("specs", metavar="SPEC", nargs="*", help="what to upgrade to, as torch==2.12.1")
    parser.add_argument(
        "--from",
        dest="before",
        metavar="SPEC",
        nargs="+",
        action="extend",
        default=[],
        help="what to upgrade from, as torch==2.11.0 (default: the Python that runs this, if it has torch; else the "
        "version that pyproject.toml or uv.lock pins, else that of the newest baseline)",
    )
    there = parser.add_argument_group("environments that are there already")
    there.add_argument("--python", metavar="PATH", type=Path, help="the interpreter with what to upgrade to")
    there.add_argument("--from-python", metavar="PATH", type=Path, help="the interpreter with what to upgrade from")
    made = parser.add_argument_group("environments that are made, with uv")
    made.add_argument("--group", metavar="NAME", action="append", default=[], help="a dependency group of the project")
    made.add_argument(
        "--extra",
        metavar="NAME",
        action="append",
        default=[],
        help="an extra of the project (default: test, tests, dev)",
    )
    made.add_argument(
        "--requirements", metavar="FILE", type=Path, action="append", default=[], help="a requirements file"
    )
    made.add_argument(
        "--with",
        dest="others",
        metavar="REQ",
        action="append",
        default=[],
        help="one more requirement, as timm==1.0.31",
    )
    made.add_argument("--no-project", action="store_true", help="do not install the project itself")
    made.add_argument("--python-version", metavar="X.Y", help="the Python to make them with (default: this one)")
    made.add_argument("--index-url", metavar="URL", help="where uv finds packages; UV_* variables work too")
    made.add_argument(
        "--extra-index-url", metavar="URL", action="append", default=[], help="another place, asked first"
    )
    made.add_argument("--torch-backend", metavar="NAME", help="uv's choice of torch's builds: cpu, cu130, auto, ...")
    run = parser.add_argument_group("the run")
    run.add_argument("--project", metavar="DIR", type=Path, default=Path(), help="the project (default: this folder)")
    run.add_argument(
        "--timeout", metavar="SECONDS", type=_seconds, help="the most that the tests may take on each side"
    )
    run.add_argument("--keep", metavar="DIR", type=Path, help=f"keeps environments and receipts (default: {KEPT})")
    run.add_argument("--receipts", metavar="DIR", type=Path, help="where the receipts go instead of DIR/receipts")
    run.add_argument("--summary", metavar="FILE", type=Path, help="add the matrix and the answer to FILE, as Markdown")
    run.add_argument("--policy", metavar="FILE", type=Path, help="what gates and what may be open, in TOML")
    run.add_argument("--waivers", metavar="FILE", type=Path, help=f"drift that is tolerated (default: {WAIVERS})")
    run.add_argument("-v", "--verbose", action="store_true", help="also the lanes that held")


def bump(chosen: argparse.Namespace, arguments: Sequence[str]) -> Answer:
    """Do the whole job; `arguments` are pytest's.

    Raises:
        ContractError: something that was given cannot be used.
    """
    project = chosen.project.resolve()
    if not project.is_dir():
        raise UsageError(f"--project {chosen.project}: no such folder")
    _refuse_ours(arguments)
    policy = read_policy(chosen.policy) if chosen.policy else DEFAULT_POLICY
    waivers = _waivers(chosen.waivers, project)
    sides = sides_from(chosen, project)
    progress = Progress(stream=sys.stderr, prefix="bump", live=sys.stderr.isatty())
    kept = (chosen.keep or project / KEPT).absolute()
    with ended_by_sigterm(), claimed(kept):
        bench = bench_from(chosen, project, kept, sides, arguments, progress)
        at_first = _told_checkout(project, progress)
        measured = _measured(bench, sides)
        changed = at_first is not None and checkout_of(project) != at_first
    return _concluded(measured, bench, policy, waivers, chosen, changed=changed)


def _measured(bench: Bench, sides: tuple[Side, Side]) -> list[Measured]:
    # An environment that is there already says which versions one that is made is to keep to.
    ready = {id(side): bench.prepare(side) for side in sorted(sides, key=lambda side: side.python is None)}
    pair = [ready[id(side)] for side in sides]
    if any(each.python is None for each in pair):
        # One side alone answers nothing, and takes its time.
        return [bench.leave(each) for each in pair]
    old = bench.run(pair[0])
    if (error := refused(old.receipt)) is not None:
        raise error
    return [old, bench.run(pair[1])]


def sides_from(chosen: argparse.Namespace, project: Path) -> tuple[Side, Side]:
    """The environment before and after, as the command line and the project name them.

    Raises:
        UsageError: one of them is not named, or both are the same.
    """
    new_specs = specs_from(chosen.specs, where="bump")
    if not new_specs and chosen.python is None:
        raise UsageError("nothing to upgrade to: name it before all options, as: compilecontract bump torch==2.12.1")
    old = _side_before(specs_from(chosen.before, where="--from"), chosen.from_python, new_specs, project)
    # What is named on the old side alone stays as it is.
    specs = new_specs if chosen.python is not None else {**old.specs, **new_specs}
    new = Side(specs=specs, python=_interpreter(chosen.python, "--python"))
    if old.python is None and new.python is None and dict(old.specs) == dict(new.specs):
        raise UsageError(f"both sides are {old.name}: nothing is upgraded")
    return old, new


def bench_from(
    chosen: argparse.Namespace,
    project: Path,
    kept: Path,
    sides: Sequence[Side],
    arguments: Sequence[str],
    progress: Progress,
) -> Bench:
    """Where these sides are measured.

    Raises:
        UsageError: an environment is to be made and there is no uv, or the project's requirements cannot be read.
    """
    asked = {name for side in sides for name in side.specs}
    makes = any(side.python is None for side in sides)
    uv, contents = None, Wanted()
    if makes:
        contents = wanted(
            project,
            asked=asked,
            groups=chosen.group,
            extras=chosen.extra,
            files=[file.absolute() for file in chosen.requirements],
            others=chosen.others,
            without_project=chosen.no_project,
        )
        environments = kept / "environments"
        environments.mkdir(exist_ok=True)
        uv = Uv(
            program=uv_program(),
            folder=environments,
            options=_uv_options(chosen),
            python=chosen.python_version or sys.executable,
            progress=progress,
        )
        progress.stage(f"installing beside torch: {', '.join(contents.told)}")
    receipts = chosen.receipts.absolute() if chosen.receipts else kept / "receipts"
    return Bench(
        project=project,
        wanted=contents,
        receipts=receipts,
        arguments=arguments,
        seconds=chosen.timeout,
        progress=progress,
        uv=uv,
    )


@contextlib.contextmanager
def claimed(folder: Path) -> Iterator[None]:
    """The folder that keeps environments and receipts, made where it is missing, and nobody else's till the end.

    Raises:
        UsageError: it cannot be written, or another run has it.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        ignored = folder / ".gitignore"
        if not ignored.exists():
            ignored.write_text("*\n", encoding="utf-8")
        lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise UsageError(f"{folder}: cannot be written ({error.strerror})") from error
    try:
        with contextlib.suppress(ImportError):  # Windows has no fcntl
            import fcntl

            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise UsageError(f"{folder}: another run has it (--keep DIR names another folder)") from None
        yield
    finally:
        os.close(lock)


def _side_before(specs: Mapping[str, str], python: Path | None, new_specs: Mapping[str, str], project: Path) -> Side:
    if python is not None:
        return Side(specs=specs, python=_interpreter(python, "--from-python"))
    if specs:
        return Side(specs=specs)
    here = _version_here("torch")
    if here is not None:
        installed = {name: version for name in {"torch", *new_specs} if (version := _version_here(name))}
        specs = {name: f"{name}=={version}" for name, version in sorted(installed.items())}
        return Side(specs=specs, python=Path(sys.executable))
    names = ["torch", *(name for name in new_specs if name != "torch")]
    known = {name: f"{name}=={version}" for name in names if (version := pinned(project, name))}
    if "torch" not in known and (version := _newest_baseline(project)):
        known["torch"] = f"torch=={version}"
    if "torch" not in known:
        raise UsageError(
            "nothing to upgrade from: this Python has no torch, the project pins none, and there is no baseline; "
            "name it, as: --from torch==2.11.0"
        )
    return Side(specs=known)


def _version_here(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _newest_baseline(project: Path) -> str | None:
    folder = project / FOLDER
    newest: tuple[Version, str] | None = None
    for inner in sorted(folder.iterdir()) if folder.is_dir() else ():
        try:
            environments = read_folder(inner).environments.values() if inner.is_dir() else ()
        except ReceiptError:
            continue
        for each in environments:
            key = version_key(each.torch or "")
            if key is not None and (newest is None or key > newest[0]):
                newest = (key, (each.torch or "").partition("+")[0])
    return newest[1] if newest else None


def _interpreter(path: Path | None, option: str) -> Path | None:
    if path is None:
        return None
    if not path.is_file():
        raise UsageError(f"{option} {path}: no such file; it names an interpreter, as .venv/bin/python")
    # Not resolved: the link in an environment is what makes it one.
    return path.absolute()


def _not_as_asked(side: Side, found: Probe) -> str:
    for name, spec in side.specs.items():
        version, there = exact(spec), found.packages.get(name)
        if version and (there or "none").partition("+")[0] != version.partition("+")[0]:
            return f"{name} {there}" if there else f"no {name}"
    return ""


def _uv_options(chosen: argparse.Namespace) -> list[str]:
    options = ["--default-index", chosen.index_url] if chosen.index_url else []
    for url in chosen.extra_index_url:
        options += ["--index", url]
    if chosen.extra_index_url:
        # An index of a few packages has old releases of others, which are not to hide the newer ones elsewhere.
        options += ["--index-strategy", "unsafe-best-match"]
    return [*options, *(["--torch-backend", chosen.torch_backend] if chosen.torch_backend else [])]


def _refuse_ours(arguments: Sequence[str]) -> None:
    for word in arguments:
        if word.partition("=")[0] in OURS:
            raise UsageError(f"{word}: not with bump, which runs the tests twice to compare, and records nothing")


def _waivers(given: Path | None, project: Path) -> tuple[Waiver, ...]:
    file = given or project / WAIVERS
    return read_waivers(file) if given or file.exists() else ()


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise argparse.ArgumentTypeError(f"expected seconds as 600, got {text!r}")
    return seconds


def _told_checkout(project: Path, progress: Progress) -> Checkout | None:
    found = checkout_of(project)
    if found is None:
        progress.stage("the project is in no git checkout: whether it stays as it is is not watched")
    elif found.dirty:
        progress.stage(f"commit {found.commit[:12]} with uncommitted changes: both sides run the files as they are now")
    else:
        progress.stage(f"commit {found.commit[:12]}")
    return found


def _write_packages(file: Path, found: Probe) -> None:
    text = "".join(f"{name}=={version}\n" for name, version in sorted(found.packages.items()))
    file.write_text(text, encoding="utf-8")


# The answer


def _concluded(
    measured: Sequence[Measured],
    bench: Bench,
    policy: Policy,
    waivers: Sequence[Waiver],
    chosen: argparse.Namespace,
    *,
    changed: bool,
) -> Answer:
    old, new = measured
    today = datetime.date.today()
    table = matrix([old.receipt, new.receipt], policy, waivers, today)
    comparison = table.comparisons[-1]
    # pytest's arguments may leave tests out, and a run that did not come to its end did.
    whole = not bench.arguments and not comparison.stopped
    found = answer(comparison, policy, rotten(comparison, waivers, today, whole=whole))
    if changed:
        note = "the project's files changed while it was measured, so the two sides ran different code"
        found = replace(found, outcome="not known", note=note)
    notes = list(_notes(old, new))
    answered = answer_lines(comparison, found, policy)
    for line in (*notes, *terminal_lines(table, everything=chosen.verbose), "", *answered):
        print(printed(line))
    if chosen.summary:
        _add_summary(chosen.summary, table, notes, answered)
    return found


def _notes(old: Measured, new: Measured) -> Iterator[str]:
    if old.found is not None and new.found is not None:
        asked = {**old.side.specs, **new.side.specs}
        if old.found.torch == new.found.torch and not differing(old.found.packages, new.found.packages, {}):
            yield f"both sides have torch {old.found.torch} and the same packages: nothing was upgraded"
        if changes := differing(old.found.packages, new.found.packages, asked):
            more = f", and {len(changes) - MOST_DIFFERING} more" if len(changes) > MOST_DIFFERING else ""
            yield f"beside what was asked for, these differ: {', '.join(changes[:MOST_DIFFERING])}{more}"
        if old.found.python != new.found.python:
            yield f"the two run on different Pythons: {old.found.python} and {new.found.python}"
    yield f"receipts: {_shown(old.file)} {_shown(new.file)}"
    yield ""


def _shown(file: Path) -> str:
    with contextlib.suppress(ValueError):
        return typed([str(file.relative_to(Path.cwd()))])
    return typed([str(file)])


def _add_summary(file: Path, table: Matrix, notes: Sequence[str], answered: Sequence[str]) -> None:
    shown = html.escape("\n".join(map(printed, answered)))
    parts = [
        f"### {in_markdown(answered[-1])}\n",
        markdown(table),
        f"<details><summary>Every lane that is not as it was</summary>\n\n<pre>{shown}</pre>\n\n</details>\n",
        *(f"{markdown_paragraph(note)}\n" for note in notes if note and not note.startswith("receipts")),
    ]
    try:
        with file.open("a", encoding="utf-8") as out:
            out.write("\n".join(parts))
    except OSError as error:
        raise ReceiptError(f"{file}: cannot be written ({error.strerror})") from error
