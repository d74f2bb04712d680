"""The runs that a command reads, and the policy and waivers that it applies."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pytest_compilecontract.baselines.environments import by_age, device_in, environments_in, older, several
from pytest_compilecontract.baselines.store import read_folder
from pytest_compilecontract.compare.policy import DEFAULT_POLICY, Policy, read_policy
from pytest_compilecontract.compare.waivers import FILE, Waiver, read_waivers
from pytest_compilecontract.errors import ReceiptError
from pytest_compilecontract.escaping import typed
from pytest_compilecontract.facts.receipt import RECEIPT, Receipt, environment_key
from pytest_compilecontract.facts.versions import version_key
from pytest_compilecontract.files import journal as journals
from pytest_compilecontract.files.project import read_project
from pytest_compilecontract.files.receipt import read_receipt
from pytest_compilecontract.measure.environment import version_of
from pytest_compilecontract.shell import PROGRAM, in_shell


def add_judging(parser: argparse.ArgumentParser) -> None:
    """Add the options for what gates and what is tolerated."""
    parser.add_argument(
        "--policy", metavar="FILE", type=Path, help="the policy: what gates and what may stay open, in TOML"
    )
    parser.add_argument(
        "--waivers",
        metavar="FILE",
        type=Path,
        help=f"drift that is known and tolerated, in TOML (default: {FILE.as_posix()}, if it exists)",
    )


def add_across_devices(parser: argparse.ArgumentParser) -> None:
    """Add the option to compare a lane on a CPU with the same lane on a GPU."""
    parser.add_argument(
        "--across-devices",
        action="store_true",
        help="also compare lanes that ran on different types of devices, without what depends on the device "
        "(seconds, memory, kernels, CUDA graphs, host syncs)",
    )


def policy_of(chosen: argparse.Namespace) -> Policy:
    """The policy from the command line, else the project's if this is its folder, else the default."""
    file = chosen.policy or read_project(Path()).policy
    policy = read_policy(file) if file else DEFAULT_POLICY
    return replace(policy, across_devices=getattr(chosen, "across_devices", False))


def waivers_of(chosen: argparse.Namespace) -> tuple[Waiver, ...]:
    """The waivers from the command line, else the project's if this is its folder."""
    file = chosen.waivers or read_project(Path()).waivers or (FILE if FILE.is_file() else None)
    return read_waivers(file) if file else ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Two:
    """The older and the newer run, where each was read, and which baselines were chosen, as a line, if any were."""

    old: Receipt
    new: Receipt
    paths: tuple[Path, Path]
    chosen: str = ""


def read_two(old: Path, new: Path, command: str) -> Two:
    """Read both runs of this command. Of baselines of several environments, those that fit the other run are read.

    They are those of its own environment. As the older side, they may be those of the newest older torch on its device
    type, as in pytest.

    Raises:
        ReceiptError: one cannot be read, or no baselines fit.
    """
    if _of_several(old) == _of_several(new):
        return Two(old=read_run(old), new=read_run(new), paths=(old, new))
    if _of_several(old):
        after = read_run(new)
        name, why = _fitting(old, new, after, command)
        return Two(old=read_run(old / name), new=after, paths=(old / name, new), chosen=why)
    before = read_run(old)
    name, why = _fitting(old, new, before, command)
    return Two(old=before, new=read_run(new / name), paths=(old, new / name), chosen=why)


def _of_several(path: Path) -> bool:
    """Whether it is a folder of baselines of several environments."""
    return path.is_dir() and not receipt_file(path).exists() and len(environments_in(path)) > 1


def _fitting(old: Path, new: Path, run: Receipt, command: str) -> tuple[str, str]:
    """The environment whose baselines fit the run, of the side that has several, and a line that says so."""
    folder, other = (old, new) if _of_several(old) else (new, old)
    names = environments_in(folder)
    keys = sorted({environment_key(each) for each in run.environments.values()})
    own = [key for key in keys if key in names]
    if len(keys) == 1 and own:
        return own[0], f"{folder}: chose {own[0]}, the environment of {other}"
    before = older(keys[0], names) if len(keys) == 1 and folder == old else ()
    if before:
        return before[0], f"{folder}: chose {before[0]}, of the newest torch before that of {other} ({keys[0]})"
    named = folder / (own or names)[-1]
    both = (str(named if each == folder else each) for each in (old, new))
    choose = typed(in_shell([PROGRAM, command, *both], Path.cwd()))
    of = f"{other} is of {', '.join(keys) or 'none'}"
    raise ReceiptError(f"{several(names)}, and {of}: choose one, as in {choose}", at=str(folder))


def read_each(path: Path) -> list[tuple[Path, Receipt]]:
    """The run at a path; of baselines of several environments all, each with its folder, the oldest torch first."""
    return [(each, read_run(each)) for each in _folders(path)]


def read_columns(paths: Sequence[Path], *, across_devices: bool) -> tuple[list[tuple[Path, Receipt]], str]:
    """The runs at these paths, each with its path, and which baselines were chosen, as a line, if any were.

    Of a folder of baselines of several environments each is a run. Those of other devices than the other runs are left
    out, because lanes of different devices are compared only if that is asked for.

    Raises:
        ReceiptError: one cannot be read, or the baselines are of several devices and nothing says which are meant.
    """
    runs = [found for path in paths for found in read_each(path)]
    wide = [path for path in paths if _of_several(path)]
    if not wide or across_devices:
        return runs, ""
    of_several = {folder for path in wide for folder in _folders(path)}
    named = {_device(receipt) for path, receipt in runs if path not in of_several}
    devices = {device_in(folder.name) for folder in of_several}
    meant = devices & named if named else devices
    if len(meant) != 1:
        raise ReceiptError(_which_device(paths, of_several, named), at=str(wide[0]))
    kept = [(path, receipt) for path, receipt in runs if path not in of_several or device_in(path.name) in meant]
    if len(kept) == len(runs):
        return runs, ""
    chosen = ", ".join(path.name for path, _ in kept if path in of_several)
    others = ", ".join(str(path) for path in paths if path not in wide)
    return kept, f"{wide[0]}: chose {chosen}, of the device of {others}"


def _which_device(paths: Sequence[Path], folders: Iterable[Path], named: Iterable[str]) -> str:
    """What to name in place of baselines of several devices."""
    by_device: dict[str, list[Path]] = {}
    for folder in sorted(folders):
        by_device.setdefault(device_in(folder.name), []).append(folder)
    most = max(by_device.values(), key=len)
    in_place = [str(each) for path in paths for each in (most if _of_several(path) else [path])]
    choose = typed(in_shell([PROGRAM, "matrix", *dict.fromkeys(in_place)], Path.cwd()))
    # Of one run alone nothing is compared.
    name = f"name those of one, as in {choose}, or " if len(in_place) > 1 else ""
    told = "; ".join(f"{device}: {', '.join(each.name for each in found)}" for device, found in by_device.items())
    beside = f", and the other runs are of {', '.join(sorted(named))}" if named else ""
    return f"baselines of several devices ({told}){beside}: {name}add --across-devices"


def _device(receipt: Receipt) -> str:
    """The devices of a run, as the names of environments have them."""
    return ", ".join(sorted({device_in(environment_key(each)) for each in receipt.environments.values()}))


def _folders(path: Path) -> list[Path]:
    return [path / name for name in by_age(environments_in(path))] if _of_several(path) else [path]


def read_run(path: Path) -> Receipt:
    """Read a receipt, the receipt in a folder, or the baselines in a folder.

    Raises:
        ReceiptError: it cannot be read, or its run did not end.
    """
    file = receipt_file(path)
    return read_receipt(file) if file == path or file.exists() else read_folder(path)


def start_here(start: Sequence[str], torches: Iterable[str | None]) -> tuple[str, ...]:
    """The words that start pytest on this interpreter, if it has the torch of the run; else as they are kept.

    Lanes measured with another torch are rerun on another interpreter, and which it is only the user knows.
    """
    ours = version_key(version_of("torch") or "")
    same = ours is not None and {version_key(each or "") for each in torches} == {ours}
    return in_shell(start, Path.cwd()) if same else tuple(start)


def receipt_file(path: Path) -> Path:
    """The receipt file for a path to it, or to its folder.

    Raises:
        ReceiptError: the folder's run did not end.
    """
    if not path.is_dir():
        return path
    if (path / journals.NAME).exists():
        # Beside it may lie the receipt of an earlier run, which would pass for this one's.
        recover = typed(in_shell([PROGRAM, "recover", str(path)], Path.cwd()))
        raise ReceiptError(f"{path}: its run did not end (`{recover}` writes the receipt)")
    return path / RECEIPT
