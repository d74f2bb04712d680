"""`compilecontract check` and `init`: run a sample in the lanes, and write the contract that it would pass today.

The sample runs in a child process, as a test of its own, so that the result is the one of pytest. No torch here.
"""

# ruff: noqa: T201 - what this module prints is what it is for

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import tempfile
import time
import uuid
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from pytest_compilecontract.errors import ReceiptError, UsageError
from pytest_compilecontract.escaping import as_tests, one_line, plain, printed, typed
from pytest_compilecontract.facts.receipt import Receipt, in_order
from pytest_compilecontract.facts.rerun import AS_MODULE
from pytest_compilecontract.facts.verdict import Facts
from pytest_compilecontract.files.course import EVENTS, EVENTS_OPTION, Course
from pytest_compilecontract.files.receipt import read_receipt
from pytest_compilecontract.files.run_log import Followed
from pytest_compilecontract.files.whole import write_bytes
from pytest_compilecontract.judge.proposal import Proposal, proposed
from pytest_compilecontract.processes import GRACE_SECONDS, ended_by_sigterm, watched
from pytest_compilecontract.report.terminal import FAILURE_WIDTH, laid_out, row_of, summary_lines
from pytest_compilecontract.shell import PROGRAM, in_shell
from pytest_compilecontract.upgrade.progress import Progress, duration
from pytest_compilecontract.wording import counted, cut

from .exits import NO, YES, exit_codes
from .sample import FAULT, parted

SECONDS = 600.0
# Outside a terminal each lane is told that begins after so long.
QUIET_SECONDS = 10.0
# Somebody who chose no lanes and has waited for so long is told which are quick.
SLOW_SECONDS = 30.0
_QUICK = "lanes that compile kernels take longest; --lanes capture,aot counts graphs, breaks and recompiles alone"
LONGEST_REASON = 300
LONGEST_LIST = 20
# Comments above one limit of a written contract.
MOST_TOLERATED, COMMENT_WIDTH = 6, 112
_MEASURING = """\
import os
from pathlib import Path

from pytest_compilecontract import compile_contract
from pytest_compilecontract.processes import ends_with
from pytest_compilecontract.cli.sample import hold

# What this process starts for the same test ends with it. Windows knows no parent.
if os.getppid() == {parent} or os.name == "nt":
    ends_with({parent}, seconds=float({seconds!r}), folder=Path(__file__).parent)


@compile_contract()
def test_sample(compile_lane):
    hold({name!r}, compile_lane, train={train}, folder=Path(__file__).parent)
"""
# The factory by a name of this text's own: the user's could be any that the text uses, or one that pytest collects.
_WRITTEN = '''\
"""{title}

Written by `compilecontract init {name}` from what {torch} showed.
"""

from {module} import {factory} as _sample
from pytest_compilecontract import compile_contract


{decorator}
def test_{test}(compile_lane):
    """{promise}"""
    target, calls = _sample()

    compile_lane.{verb}
'''
# Folders in which no test of the project is.
_NOT_WALKED = ("site-packages", "node_modules", "build", "dist", "__pycache__")
_RUN, _TRAIN = "run(target, *calls)", "train(target, calls)"


ENDS = exit_codes("a contract would hold in every lane that runs here", no="in some lane no contract would hold")


def add_commands(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `check` and `init` to the command line."""
    check = commands.add_parser(
        "check", help="run a module in the lanes, and report which contract it would pass today", epilog=ENDS
    )
    add_arguments(check)
    check.set_defaults(command=_check, named="check")
    init = commands.add_parser("init", help="write that contract to a test file", epilog=ENDS)
    add_arguments(init)
    init.add_argument("--out", metavar="FILE", type=Path, required=True, help="the test to write")
    init.add_argument("--force", action="store_true", help="replace FILE if it exists")
    init.set_defaults(command=_init, named="check")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the sample, and how it is run."""
    parser.add_argument(
        "sample",
        metavar="MODULE:FACTORY",
        help="a function that returns (target, [call, ...]): what to compile, and tuples of arguments to call it with",
    )
    parser.add_argument("--train", action="store_true", help="each call is a training step, as compile_lane.train does")
    parser.add_argument("--lanes", metavar="A,B", default="all", help="lanes to run (default: all that can run here)")
    parser.add_argument(
        "--timeout", metavar="SECONDS", type=float, default=SECONDS, help=f"time limit (default: {SECONDS:.0f})"
    )


def _check(chosen: argparse.Namespace) -> int:
    receipt = measured(chosen)
    found = _proposal(receipt, chosen.sample)
    _print_measured(receipt, chosen.sample)
    _print_excused(receipt, found)
    if found.lanes:
        print(f"\nthis contract holds today in {_listed(found.lanes)}, over {counted(found.calls, 'call')}:\n")
        print(found.decorator())
        _print_no_steady(found)
        _print_allowed(found)
        print("\nto write it as a test:")
        options = [
            *(["--train"] if chosen.train else []),
            *([f"--lanes={chosen.lanes}"] if chosen.lanes != "all" else []),
        ]
        print(
            typed(
                [*in_shell([PROGRAM], Path.cwd()), "init", chosen.sample, *options, "--out", _suggested(chosen.sample)]
            )
        )
    return _print_refused(found)


def _suggested(sample: str) -> str:
    module, factory = parted(sample)
    stem = f"test_{factory.removeprefix('test_')}"
    plain_name = Path(f"contracts/{stem}.py")
    if _hides(plain_name, module) or _named_alike(plain_name) is not None or plain_name.exists():
        return f"contracts/{stem}_compile.py"
    return plain_name.as_posix()


def _init(chosen: argparse.Namespace) -> int:
    _check_out(chosen.out, parted(chosen.sample)[0])
    if chosen.out.exists() and not chosen.force:
        raise UsageError(f"{chosen.out} exists (--force replaces it)")
    receipt = measured(chosen)
    found = _proposal(receipt, chosen.sample)
    _print_measured(receipt, chosen.sample)
    if not found.lanes:
        _print_refused(found)
        print(f"\n{chosen.out}: not written, no lane would hold")
        return NO
    write_bytes(chosen.out, _test_text(chosen, receipt, found).encode())
    _print_no_steady(found)
    code = _print_refused(found)
    # The newcomer's module is importable from here: `python -m pytest` has this folder on its path, `pytest` may not.
    print(f"\nwrote {chosen.out}, hold it with:")
    lanes = f"--contract-lanes={','.join(found.lanes)}"
    print(typed([*in_shell(AS_MODULE, Path.cwd()), "--compile-contracts", lanes, *as_tests(str(chosen.out))]))
    return code


def _check_out(out: Path, module: str) -> None:
    if out.suffix != ".py" or not out.name.startswith("test_"):
        raise UsageError(f"--out: pytest collects test_NAME.py, got {out.name!r}")
    if not out.stem.isidentifier():
        raise UsageError(f"--out: expected letters, digits and _ as in test_block.py, got {out.name!r}")
    if (other := _named_alike(out)) is not None:
        raise UsageError(
            f"--out: {other} has the same name, and pytest distinguishes test files without an __init__.py only "
            f"by name (use another name, such as {out.with_name(f'{out.stem}_compile.py')})"
        )
    if _hides(out, module):
        raise UsageError(f"--out: {out.name} would hide the sample's module {module!r} (use another name)")


def _named_alike(out: Path) -> Path | None:
    """Another test file that pytest would confuse with this one, in a folder of the project that is not a package."""
    here = Path.cwd()
    if out.absolute().parent.joinpath("__init__.py").exists():
        return None
    for folder, inner, files in os.walk(here):
        inner[:] = [name for name in inner if not name.startswith(".") and name not in _NOT_WALKED]
        found = Path(folder, out.name)
        if out.name in files and found != out.absolute() and not Path(folder, "__init__.py").exists():
            return found.relative_to(here)
    return None


def _hides(out: Path, module: str) -> bool:
    """Whether importing the module would find the test instead: pytest puts the test's folder first on the path."""
    parts = module.split(".")
    return out.stem == parts[0] or out.resolve().with_suffix("").parts[-len(parts) :] == tuple(parts)


def _promise(allowed: Sequence[tuple[int | None, str]], steps: str) -> str:
    """The docstring of a contract: what it allows, without metrics that have no limit."""
    told = [
        f"at most {counted(count, noun)}" if count else f"no {noun}s" for count, noun in allowed if count is not None
    ]
    text = f"{' and '.join(told)} over {steps}."
    return f"{text[:1].upper()}{text[1:]}"


def _test_text(chosen: argparse.Namespace, receipt: Receipt, found: Proposal) -> str:
    module, factory = parted(chosen.sample)
    limits = found.limits
    allowed = ((limits.max_graph_breaks, "graph break"), (limits.max_recompiles, "recompile"))
    steps = counted(found.calls, "step" if chosen.train else "call")
    return _WRITTEN.format(
        title=f"What compiling may do to the target that `{chosen.sample}` makes.",
        name=f"{chosen.sample}{' --train' if chosen.train else ''}",
        torch=_torch(receipt),
        module=module,
        factory=factory,
        decorator=_folded(found),
        test=chosen.out.stem.removeprefix("test_"),
        promise=_promise(allowed, steps),
        verb=_TRAIN if chosen.train else _RUN,
    )


def _folded(found: Proposal) -> str:
    """The decorator, with what each limit tolerates as comments above it."""
    if len(found.decorator()) <= 100 and not any(found.tolerates.values()):
        return found.decorator()
    lines = []
    for name, each in found.arguments().items():
        said = found.tolerates.get(name, ())
        more = [f"and {len(said) - MOST_TOLERATED} more"] if len(said) > MOST_TOLERATED else []
        for number, text in enumerate((*said[:MOST_TOLERATED], *more)):
            told = one_line(f"this tolerates {text}" if not number else text, COMMENT_WIDTH)
            lines.append(f"    # {printed(plain(told))}")
        lines.append(f"    {each},")
    return "\n".join(["@compile_contract(", *lines, ")"])


def _proposal(receipt: Receipt, sample: str) -> Proposal:
    """The contract that would hold.

    Raises:
        UsageError: no lane measured anything.
    """
    ran = [entry for entry in in_order(receipt.entries) if entry.verdict not in ("unmeasured", "reference")]
    if not ran:
        reasons = dict.fromkeys(entry.reason for entry in receipt.entries if entry.reason)
        raise UsageError(f"{sample}: no lane can run here: {'; '.join(reasons) or 'no lane was chosen'}")
    if all(entry.measurement is None for entry in ran):
        reason = next((entry.reason for entry in ran if entry.reason), "it measured nothing")
        raise UsageError(f"{sample}: {reason}")
    return proposed(ran, torch_version=_torch_version(receipt) or "unknown")


def _torch(receipt: Receipt) -> str:
    version = _torch_version(receipt)
    return f"torch {version}" if version else "no torch"


def _torch_version(receipt: Receipt) -> str:
    return next((each.torch for each in receipt.environments.values() if each.torch), "")


def _print_measured(receipt: Receipt, sample: str) -> None:
    rows = [replace(row_of(entry), contract=sample) for entry in in_order(receipt.entries)]
    print(f"{_torch(receipt)}")
    for text, _ in summary_lines(rows, 1):
        print(printed(text))


def _print_excused(receipt: Receipt, found: Proposal) -> None:
    """Print why the answer may be yes although a lane above is violated."""
    violated = [
        each.lane for each in in_order(receipt.entries) if each.verdict == "violated" and each.lane in found.lanes
    ]
    if violated:
        code = "" if found.refused else ", so the exit code is 0"
        told = f"the contract below allows it{code}"
        print(f"\nviolated in {_listed(tuple(violated))} only by the default limits: {told}")


def _print_no_steady(found: Proposal) -> None:
    if not found.steady:
        made, one = ("the one call", "it") if found.calls == 1 else (f"each of the {found.calls} calls", "the last")
        again = "; if it compiles again, the guard of its recompile says why" if found.calls > 1 else ""
        print(f"\n{made} compiled: repeat {one}, to check that compiled code is reused{again}")


def _print_allowed(found: Proposal) -> None:
    """Print where each break, recompile and eager frame of the contract comes from: it may be a bug to fix."""
    if found.allowed:
        print("\nwhat it allows:")
    for (limit, facts), lanes in found.allowed.items():
        print(printed(f"  {limit}, in {_listed(lanes)}"))
        _print_facts(facts, f"a test with {limit}=0")


def _print_facts(facts: Facts, where: str) -> None:
    lines = [line for fact in facts for line in laid_out(fact)]
    for line in lines[:LONGEST_LIST]:
        print(printed(cut(f"    {line}", FAILURE_WIDTH)))
    if (more := len(lines) - LONGEST_LIST) > 0:
        print(f"    and {counted(more, 'line')} more, in the failure of {where}")


def _print_refused(found: Proposal) -> int:
    if not found.refused:
        return YES
    print("\nno contract would hold in:")
    for lane, reason in found.refused.items():
        print(printed(f"  {plain(lane)}: {one_line(reason, LONGEST_REASON)}"))
        _print_facts(found.facts.get(lane, ()), f"a test in lane {plain(lane)}")
    return NO


def measured(chosen: argparse.Namespace, *options: str) -> Receipt:
    """The receipt of the sample, run as a test in a child, with these options of pytest besides.

    Raises:
        UsageError: the name or the lanes are not valid, the sample itself fails, the child died, or it took too
            long.
    """
    parted(chosen.sample)
    if not chosen.timeout > 0:
        raise UsageError(f"--timeout: expected seconds, got {chosen.timeout:g}")
    with ended_by_sigterm(), tempfile.TemporaryDirectory(prefix="compilecontract-") as name:
        folder = Path(name)
        said = folder / "said"
        code = _run(_command(folder, chosen, options), folder, said, chosen)
        try:
            receipt = read_receipt(folder / "receipt.json")
        except ReceiptError as error:
            lines = said.read_text(encoding="utf-8", errors="replace").splitlines()
            told = [line.removeprefix("ERROR: ") for line in lines if line.startswith(("ERROR", "ImportError"))]
            raise UsageError(told[0] if told else f"{chosen.sample}: the run died with exit code {code}") from error
        if (folder / FAULT).exists() and all(entry.measurement is None for entry in receipt.entries):
            raise UsageError((folder / FAULT).read_text(encoding="utf-8"))
        return receipt


def _command(folder: Path, chosen: argparse.Namespace, options: Sequence[str]) -> list[str]:
    """The command of the session that measures; writes its test and settings to the folder.

    Files around the folder have no effect; the project's modules and its pyproject.toml do.
    """
    # A name that no module has: the test is imported by it, and would be taken for the sample's.
    test = folder / f"test_{uuid.uuid4().hex}.py"
    # The parent's deadline comes first, and says more.
    limit = str(chosen.timeout + 2 * GRACE_SECONDS)
    text = _MEASURING.format(name=chosen.sample, train=chosen.train, parent=os.getpid(), seconds=limit)
    test.write_text(text, encoding="utf-8")
    settings = folder / "pytest.ini"
    settings.write_text("[pytest]\n", encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-q", "--tb=no", "--no-header", "--no-summary"]
    # pytest's faulthandler would stop the clock of `ends_with` at the first test that fails.
    command += ["-p", "no:cacheprovider", "-p", "no:faulthandler", "-p", "pytest_compilecontract.plugin"]
    command += ["-p", "pytest_compilecontract.plugin.events", f"{EVENTS_OPTION}={folder / EVENTS}"]
    command += ["-c", str(settings), f"--rootdir={Path.cwd()}", "--noconftest", "--compile-contracts"]
    return [
        *command,
        f"--contract-lanes={chosen.lanes}",
        f"--contract-report={folder}",
        *options,
        str(test),
    ]


def _run(command: Sequence[str], folder: Path, said: Path, chosen: argparse.Namespace) -> int:
    # No other plugin of the user has a say.
    path = os.pathsep.join(filter(None, (str(Path.cwd()), os.environ.get("PYTHONPATH", ""))))
    variables = {name: value for name, value in os.environ.items() if name != "PYTEST_PLUGINS"}
    variables |= {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_ADDOPTS": "", "PYTHONPATH": path}
    variables["PYTHONUNBUFFERED"] = "1"
    live = sys.stderr is not None and sys.stderr.isatty()
    progress = Progress(stream=sys.stderr, prefix=chosen.named, live=live)
    started = time.monotonic()
    course, events = Course(), Followed(path=folder / EVENTS)

    told, hinted = "", chosen.lanes != "all"

    def meanwhile() -> None:
        nonlocal told, hinted
        _follow(events, course)
        seconds, lane = time.monotonic() - started, _running(course)
        progress.now(f"{chosen.named}: {_going_on(course, seconds)}")
        if not live and lane and lane != told and seconds > QUIET_SECONDS:
            progress.stage(_going_on(course, seconds))
            told = lane
        if not hinted and lane and seconds > SLOW_SECONDS:
            progress.stage(_QUICK)
            hinted = True

    try:
        code = watched(
            command, log=said, cwd=Path.cwd(), variables=variables, meanwhile=meanwhile, seconds=chosen.timeout
        )
    finally:
        progress.clear()
    if code is None:
        _follow(events, course)
        running = _running(course)
        where = f"it was in lane {running}" if running else "no lane had started"
        raise UsageError(
            f"{chosen.sample}: took longer than {chosen.timeout:g} s ({where}); --timeout changes the limit"
        )
    return code


def _follow(events: Followed, course: Course) -> None:
    """Take the new events of the child."""
    for event in events.news():
        with contextlib.suppress(ReceiptError):
            course.take(event)


def _running(course: Course) -> str:
    """The lane that is running, if any."""
    return next((entry.lane for entry in course.running.values() if entry is not None), "")


def _going_on(course: Course, seconds: float) -> str:
    """The lane that is running, the number of lanes, and how long the run has taken."""
    running = _running(course)
    if running:
        return f"lane {plain(running)}, {course.done + 1} of {course.count}, {duration(seconds)}"
    return f"{'ending' if course.done and course.done == course.count else 'starting'}, {duration(seconds)}"


def _listed(names: tuple[str, ...]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
