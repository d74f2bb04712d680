"""Lay out a project whose contracts are corpus cases: its lanes in pyproject.toml, and one test a case. No torch here.

A case is a file with `build()`, which gives a target and the arguments of its calls. `drive(run, target, calls)`, where
it has one, makes the calls and gives what is to be compared. `KW` goes to torch.compile, `CFG` to Dynamo's settings,
and `contract(compile_lane)` is a contract of its own words.
"""

from __future__ import annotations

import ast
import json
import shutil
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
CASES = HERE / "cases"
EXPECTATIONS = HERE / "expectations.toml"
RELEASES = ("2.11.0", "2.12.1", "2.13.0", "2.14.1", "2.15.0")
BACKENDS = {"capture": "eager", "aot": "aot_eager", "inductor": "inductor"}
TESTS = "test_corpus.py"


@dataclass(frozen=True, kw_only=True, slots=True)
class Lane:
    """What one lane is to show, a value a release: verdicts, counts, and what changes from one release to the next."""

    verdicts: tuple[str, ...]
    counts: Mapping[str, tuple[int | None, ...]]
    drifts: tuple[Mapping[str, Any], ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """One case: its contract, and what is to be seen of it.

    `judged` is the lane that tools are compared in, `right` the counts of the right outcome there. `alone` cases may
    take their process with them. `options` are KW and CFG as the file has them.
    """

    name: str
    path: Path
    limits: Mapping[str, Any] = field(default_factory=dict)
    lanes: tuple[str, ...] = ("capture", "aot")
    judged: str = "aot"
    right: Mapping[str, int] = field(default_factory=dict)
    raises: str = ""
    alone: bool = False
    options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    expected: Mapping[str, Lane] = field(default_factory=dict)

    def lane(self, base: str, *, shared: bool = False) -> str:
        """The name of the project's lane that compiles as `base` does, with the case's own options."""
        words = [base, "shared"] if shared else [base]
        for name, value in {**self.options.get("KW", {}), **self.options.get("CFG", {})}.items():
            words += [name] if value is True else [name, str(value).lower()]
        return "-".join(words)


def read_cases(folder: Path = CASES, expectations: Path | None = EXPECTATIONS) -> dict[str, Case]:
    """The cases of a folder by name, with what is expected of them where the file says it."""
    known = tomllib.loads(expectations.read_text(encoding="utf-8")) if expectations else {}
    cases = {}
    for path in sorted(folder.glob("*.py")):
        about = known.get(path.stem, {})
        lanes = {
            name: Lane(
                verdicts=tuple(each["verdicts"]),
                counts={key: tuple(value) for key, value in each.get("counts", {}).items()},
                drifts=tuple(each.get("drifts", ())),
            )
            for name, each in about.get("lanes", {}).items()
        }
        cases[path.stem] = Case(
            name=path.stem,
            path=path,
            limits=about.get("limits", {}),
            lanes=tuple(lanes) or ("capture", "aot"),
            judged=about.get("judged", "aot"),
            right=about.get("right", {}),
            raises=about.get("raises", ""),
            alone=about.get("alone", False),
            options=_options(path),
            expected=lanes,
        )
    return cases


def lay_out(folder: Path, cases: Sequence[Case], *, shared: bool = False) -> None:
    """Write the project: the cases, what loads them, their tests, and pyproject.toml.

    `shared` gives its lanes the compile caches of the process, which stay warm from one run to the next.
    """
    (folder / "cases").mkdir(parents=True, exist_ok=True)
    for case in cases:
        shutil.copyfile(case.path, folder / "cases" / f"{case.name}.py")
    shutil.copyfile(HERE / "one_case.py", folder / "one_case.py")
    (folder / TESTS).write_text(_tests(cases, shared), encoding="utf-8")
    (folder / "pyproject.toml").write_text(_pyproject(cases, shared), encoding="utf-8")


def _options(path: Path) -> dict[str, dict[str, Any]]:
    """KW and CFG of a case, read without running it: what cannot be imported has lanes as well."""
    found: dict[str, dict[str, Any]] = {}
    try:
        tree = ast.parse(path.read_text(encoding="utf-8"))
    except (SyntaxError, ValueError):
        return found
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            name = node.targets[0].id
            if name in ("KW", "CFG"):
                found[name] = ast.literal_eval(node.value)
    return found


def _tests(cases: Sequence[Case], shared: bool) -> str:
    lines = [
        '"""One contract a case."""',
        "",
        "from one_case import hold",
        "",
        "from pytest_compilecontract import compile_contract",
        "",
    ]
    for case in cases:
        given = {"lanes": [case.lane(base, shared=shared) for base in case.lanes], **case.limits}
        limits = ", ".join(f"{name}={value!r}" for name, value in given.items())
        raises = f", raises={case.raises!r}" if case.raises else ""
        lines += [
            "",
            f"@compile_contract({limits})",
            f"def test_{case.name}(compile_lane):",
            f"    hold(compile_lane, {case.name!r}{raises})",
            "",
        ]
    return "\n".join(lines)


def _pyproject(cases: Sequence[Case], shared: bool) -> str:
    lanes = {case.lane(base, shared=shared): (base, case.options) for case in cases for base in case.lanes}
    chosen = ", ".join(json.dumps(name) for name in lanes)
    lines = ["[tool.pytest.ini_options]", 'addopts = ["-p", "no:cacheprovider"]', f"contract_lanes = [{chosen}]"]
    for name, (base, options) in lanes.items():
        if not shared and not any(options.values()):
            continue
        lines += ["", f"[tool.compilecontract.lanes.{name}]", f"backend = {json.dumps(BACKENDS[base])}"]
        lines += ['cache = "shared"'] if shared else []
        lines += [f"{key} = {json.dumps(value)}" for key, value in options.get("KW", {}).items()]
        if config := options.get("CFG"):
            inside = ", ".join(f"{json.dumps(key)} = {json.dumps(value)}" for key, value in config.items())
            lines += [f"dynamo = {{ {inside} }}"]
    return "\n".join(lines) + "\n"
