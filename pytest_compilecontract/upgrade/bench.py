"""The bench: where one side of an upgrade is measured, in an existing environment or one that is created for it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from pytest_compilecontract.errors import InstallError, UsageError
from pytest_compilecontract.escaping import as_tests
from pytest_compilecontract.facts.receipt import Receipt, Setup
from pytest_compilecontract.facts.versions import version_key
from pytest_compilecontract.files.evidence import clear
from pytest_compilecontract.files.receipt import write_receipt
from pytest_compilecontract.wording import counted

from .environments import Probe, Uv, preferences, probe, variables_of
from .progress import Progress, duration
from .requirements import Wanted, exact, locked
from .sides import Side
from .suite import RECEIPT, Suite, not_started

# Below a side's receipt: what its lanes left when they were run once more.
AGAIN, EVIDENCE = "again", "evidence"
# What a project without it installed loads the plugin by, and where it says so.
PLUGIN_MODULE = "pytest_compilecontract"
SETTINGS_OF_PYTEST = ("pytest.ini", ".pytest.ini", "pyproject.toml", "tox.ini", "setup.cfg", "conftest.py")


@dataclass(frozen=True, kw_only=True, slots=True)
class Ready:
    """A side before the suite runs: the folder for its receipt, and its interpreter; None if there is none that works.

    `setup` has its name, and what stopped it, if anything.
    """

    side: Side
    folder: Path
    setup: Setup
    found: Probe | None = None
    python: Path | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Measured:
    """The result of one side: its receipt, the receipt's file, and what its interpreter has installed.

    `usage_error` is why pytest refused its arguments; empty if it did not.
    """

    side: Side
    receipt: Receipt
    file: Path
    found: Probe | None = None
    usage_error: str = ""
    python: Path | None = None


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
        """Create the side's environment if there is none, and run the suite in it.

        Raises:
            UsageError: an interpreter cannot be used, or pytest refuses its arguments.
            ReceiptError: the receipt cannot be written.
        """
        return self.run(self.prepare(side))

    def prepare(self, side: Side) -> Ready:
        """Create the side's environment if there is none, and check what is installed in it.

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
            if not found.entered and not self._loads_it:
                raise UsageError(f"{python}: pytest does not load pytest-compilecontract there: install it with pip")
            folder = self._folder(f"torch-{found.torch}" if found.torch else f"python-{found.python}")
        name = f"torch {found.torch or found.packages.get('torch', '(none)')}"
        if found.torch is None or found.plugin:
            why = found.plugin or found.failed
            self.progress.stage(f"{name}: could not be imported: {why}")
            return Ready(side=side, folder=folder, found=found, setup=Setup(asked=name, not_imported=why))
        if (other := _not_as_asked(side, found)) and side.python is not None:
            raise UsageError(f"{python}: has {other}, but {' '.join(side.specs.values())} was requested")
        self._packages = self._packages or found.packages
        _write_packages(folder / "packages.txt", found)
        return Ready(side=side, folder=folder, found=found, python=python, setup=Setup(asked=name))

    def run(self, ready: Ready) -> Measured:
        """Run the suite if it can run.

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
        return Measured(
            side=ready.side,
            receipt=receipt,
            file=ready.folder / RECEIPT,
            found=ready.found,
            usage_error=suite.usage_error,
            python=ready.python,
        )

    def again(self, measured: Measured, tests: Sequence[str]) -> Measured:
        """Run these tests of a side once more for their evidence, and add it to the side's receipt.

        Raises:
            ReceiptError: the receipt cannot be written.
        """
        if measured.python is None or measured.found is None or measured.found.torch is None:
            return measured
        folder = measured.file.parent / AGAIN
        evidence = folder / EVIDENCE
        evidence.mkdir(parents=True, exist_ok=True)
        for each in evidence.iterdir():
            clear(each)
        suite = Suite(
            torch=measured.found.torch,
            python=measured.python,
            project=self.project,
            folder=folder,
            arguments=[
                *self._options(),
                f"--contract-evidence={evidence}",
                "--contract-evidence-all",
                *as_tests(*tests),
            ],
            seconds=self.seconds,
            progress=self.progress,
        )
        left = {(each.contract, each.lane): each.evidence for each in suite.run().entries if each.evidence is not None}
        self.progress.stage(f"{suite.name}: evidence of {counted(len(left), 'lane')} in {duration(suite.took)}")
        entries = (
            replace(each, evidence=replace(found, folder=f"{AGAIN}/{found.folder}"))
            if (found := left.get((each.contract, each.lane))) is not None
            else each
            for each in measured.receipt.entries
        )
        receipt = replace(measured.receipt, entries=tuple(entries))
        write_receipt(measured.file, receipt)
        return replace(measured, receipt=receipt)

    def _options(self) -> Iterator[str]:
        """pytest's arguments without the paths among them: the tests are named instead."""
        for before, word in zip(("", *self.arguments), self.arguments, strict=False):
            if word == "--":
                return
            is_value = before.startswith("-") and "=" not in before
            if is_value or not (self.project / word.partition("::")[0]).exists():
                yield word

    def leave(self, ready: Ready) -> Measured:
        """The result of a side without running anything: how far it got.

        Raises:
            ReceiptError: the receipt cannot be written.
        """
        receipt = not_started(ready.setup)
        write_receipt(ready.folder / RECEIPT, receipt)
        return Measured(side=ready.side, receipt=receipt, file=ready.folder / RECEIPT, found=ready.found)

    @property
    def _loads_it(self) -> bool:
        """Whether pytest may be told to load the plugin, by its arguments or by the project's settings."""
        module = PLUGIN_MODULE.encode()
        files = (self.project / name for name in SETTINGS_OF_PYTEST)
        return any(PLUGIN_MODULE in each for each in self.arguments) or any(
            module in file.read_bytes() for file in files if file.is_file()
        )

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


@contextlib.contextmanager
def claimed(folder: Path) -> Iterator[None]:
    """The folder for environments and receipts, created if missing and locked until the end.

    Raises:
        UsageError: it cannot be written, or another run uses it.
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
                raise UsageError(f"{folder}: in use by another run (--keep DIR chooses another folder)") from None
        yield
    finally:
        os.close(lock)


def _not_as_asked(side: Side, found: Probe) -> str:
    for name, spec in side.specs.items():
        version, there = exact(spec), found.packages.get(name)
        if version and version_key(there or "") != version_key(version):
            return f"{name} {there}" if there else f"no {name}"
    return ""


def _write_packages(file: Path, found: Probe) -> None:
    text = "".join(f"{name}=={version}\n" for name, version in sorted(found.packages.items()))
    file.write_text(text, encoding="utf-8")
