"""torch's minifier: a failing lane is run with torch's backend debugging on, which writes a program that minifies the
failing graph; that program is run in a process of its own."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

from pytest_compilecontract.processes import watched

SECONDS = 120.0
# Of the inputs that go with a minified program, in all.
LARGEST_INPUTS = 4 * 1024**2
_LAUNCHER, _REPRO, _CHECKPOINTS, _STORAGES = "minifier_launcher.py", "repro.py", "checkpoints", "storages"
_CACHES = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")
# torch/_dynamo/config.py: after a backend raised, and where its numbers are others than those of float64 allow.
_RAISED, _NUMBERS = 2, 4


def settings(scratch: Path, *, numbers: bool) -> dict[str, object]:
    """Dynamo settings with which a failing run leaves a program in `scratch` that minifies its graph."""
    level = _NUMBERS if numbers else _RAISED
    return {"repro_after": "dynamo", "repro_level": level, "debug_dir_root": str(scratch)}


def minified(scratch: Path, seconds: float = SECONDS) -> tuple[str, dict[str, bytes], str]:
    """The minified program, the inputs that it reads, and why there is none, or why it needs changes.

    The inputs are keyed by their names in `storages`, next to the program; without them torch uses random ones.
    """
    launchers = sorted(scratch.rglob(_LAUNCHER))
    if not launchers:
        return "", {}, "torch's minifier: no graph fails by itself"
    log, launcher = scratch / "log", launchers[0]
    command = [sys.executable, str(launcher.resolve())]
    variables = {**os.environ, **{name: str(scratch / "caches") for name in _CACHES}}
    try:
        launcher.write_text(_anywhere(launcher.read_text(errors="replace")))
        code = watched(command, log=log, cwd=scratch, variables=variables, meanwhile=lambda: None, seconds=seconds)
    except OSError as error:
        return "", {}, f"torch's minifier could not be started ({error.strerror})"
    repro = scratch / _REPRO
    if not repro.is_file():
        said = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
        ended = f"did not end within {seconds:g} s" if code is None else f"ended with {code}: {(said or [''])[-1]}"
        return "", {}, f"torch's minifier {ended}"
    # From the program's own folder the inputs are found.
    text = re.sub(r"save_dir=(None|'[^'\n]*'|\"[^\"\n]*\")", "save_dir='.'", repro.read_text(errors="replace"))
    text = _anywhere(text)
    inputs, why = _inputs(scratch / _CHECKPOINTS / _STORAGES, text)
    late = f"torch's minifier did not end within {seconds:g} s: the program is as small as it was by then"
    return text, inputs, "; ".join(filter(None, (late if code is None else "", why)))


def _anywhere(program: str) -> str:
    """A program of torch's without the folders of the run that wrote it."""
    caches = rf"os\.environ\['(?:{'|'.join(_CACHES)})'\]"
    return re.sub(rf"(?m)^(?:{caches}|torch\._dynamo\.config\.debug_dir_root) = .*\n", "", program)


def _inputs(folder: Path, text: str) -> tuple[dict[str, bytes], str]:
    wanted = [folder / name for name in dict.fromkeys(re.findall(r"reader\.storage\('(\w+)'", text))]
    there = [each for each in wanted if each.is_file()]
    if sum(each.stat().st_size for each in there) > LARGEST_INPUTS:
        larger = f"larger than {LARGEST_INPUTS // 1024**2} MiB: torch takes random ones"
        return {}, f"the minified program's inputs: {larger}"
    return {each.name: each.read_bytes() for each in there}, ""
