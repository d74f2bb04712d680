"""The layers: who may import what, and that loading the plugin imports neither torch nor anything slow."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

PACKAGE = "pytest_compilecontract"
FOLDER = Path(__file__).parent.parent / PACKAGE
# The lowest first: a module imports from its own layer and from those before it.
LAYERS: dict[str, tuple[str, ...]] = {
    "core": (
        "errors",
        "escaping",
        "wording",
        "calls",
        "measurement",
        "lanes",
        "frontier",
        "contract",
        "receipt",
        "journal",
        "identity",
        "policy",
        "drift",
        "gate",
        "baseline",
        "versions",
        "waivers",
        "matrix",
        "plant",
        "proposal",
        "report",
    ),
    "torch rim": (
        "probes",
        "environment",
        "isolation",
        "lane",
        "measuring",
        "numerics",
        "placement",
        "planting",
        "programs",
        "runner",
        "state",
        "steady",
        "tensors",
        "watching",
    ),
    "top": (
        "__init__",
        "__main__",
        "bisecting",
        "bump",
        "checking",
        "checkout",
        "children",
        "cli",
        "course",
        "environments",
        "events",
        "history",
        "hooks",
        "observer",
        "plugin",
        "progress",
        "repeating",
        "replacing",
        "requirements",
        "running",
        "sample",
        "selftest",
        "session",
        "settings",
        "sowing",
        "suite",
        "timeout",
        "trimming",
        "trying",
        "walking",
    ),
}
# What knows pytest, and what knows torch. All other modules of the two layers do without.
KNOW_PYTEST = (
    "__init__",
    "bisecting",
    "events",
    "hooks",
    "observer",
    "plugin",
    "repeating",
    "replacing",
    "running",
    "sowing",
    "walking",
)
KNOW_TORCH = (*LAYERS["torch rim"], "hooks", "observer", "sowing")
THIRD_PARTIES = {
    "core": {"msgspec", "jinja2", "markupsafe"},
    "torch rim": {"torch", "numpy"},
    "top": {"torch", "pytest", "_pytest", "jsonschema", "msgspec"},
}
SLOW = ("torch", "numpy", "msgspec", "jsonschema", "jinja2", "markupsafe", "triton", "hypothesis", "asyncio")


@dataclass(frozen=True, kw_only=True, slots=True)
class Import:
    """One import: the module that does it, what it imports (a dotted name), whether that happens on loading."""

    module: str
    name: str
    line: int
    eager: bool

    @property
    def part(self) -> str:
        """Of our own package: the first name below it."""
        return self.name.split(".")[1] if "." in self.name else "__init__"

    def __str__(self) -> str:
        return f"{self.module}.py:{self.line} imports {self.name}"


def module_names() -> list[str]:
    return sorted(".".join(path.relative_to(FOLDER).with_suffix("").parts) for path in FOLDER.rglob("*.py"))


def layer_of(part: str) -> str:
    return next(layer for layer, parts in LAYERS.items() if part.split(".")[0] in parts)


def imports() -> list[Import]:
    return [found for module in module_names() for found in imports_of(module)]


def imports_of(module: str) -> Iterator[Import]:
    tree = ast.parse((FOLDER / f"{module.replace('.', '/')}.py").read_text(encoding="utf-8"))
    late = {id(inner) for node in ast.walk(tree) if _is_late(node) for inner in ast.walk(node)}
    for node in ast.walk(tree):
        for name in _imported(node, module):
            yield Import(module=module, name=name, line=getattr(node, "lineno", 0), eager=id(node) not in late)


def _is_late(node: ast.AST) -> bool:
    if isinstance(node, ast.If):
        return isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
    return isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))


def _imported(node: ast.AST, module: str) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (each.name for each in node.names)
    elif isinstance(node, ast.ImportFrom):
        here = [PACKAGE, *module.split(".")]
        base = ".".join(here[: len(here) - node.level]) if node.level else ""
        source = ".".join(part for part in (base, node.module) if part)
        # `from . import numerics` imports a module, `from .calls import call` what is in one.
        yield from (f"{source}.{each.name}" if source == PACKAGE else source for each in node.names)
    elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
        argument = node.args[0]
        if isinstance(argument, ast.Constant):
            yield str(argument.value)


def ours() -> list[Import]:
    return [each for each in imports() if each.name.split(".")[0] == PACKAGE]


def others() -> list[Import]:
    outside = [each for each in imports() if each.name.split(".")[0] != PACKAGE]
    return [each for each in outside if each.name.split(".")[0] not in sys.stdlib_module_names]


def is_a_module(part: str) -> bool:
    return (FOLDER / f"{part}.py").is_file() or (FOLDER / part).is_dir()


def test_every_module_has_a_layer() -> None:
    placed = [part for parts in LAYERS.values() for part in parts]

    assert sorted({module.split(".")[0] for module in module_names()}) == sorted(placed)


def test_imports_go_downward() -> None:
    order = list(LAYERS)

    upward = [
        str(each)
        for each in ours()
        if is_a_module(each.part) and order.index(layer_of(each.part)) > order.index(layer_of(each.module))
    ]

    assert upward == []


@pytest.mark.parametrize("layer", LAYERS)
def test_a_layer_knows_no_other_packages_than_its_own(layer: str) -> None:
    allowed = THIRD_PARTIES[layer]

    found = [
        str(each) for each in others() if layer_of(each.module) == layer and each.name.split(".")[0] not in allowed
    ]

    assert found == []


def test_pytest_is_known_to_the_hooks_alone() -> None:
    found = [str(each) for each in others() if each.name.startswith(("pytest", "_pytest"))]

    assert [each for each in found if each.split(".py")[0] not in KNOW_PYTEST] == []


def test_torch_is_known_to_the_rim_and_to_the_hooks_that_run_a_contract() -> None:
    found = [each for each in others() if each.name.split(".")[0] == "torch"]

    assert [str(each) for each in found if each.module.split(".")[0] not in KNOW_TORCH] == []


def test_the_top_loads_neither_torch_nor_the_rim() -> None:
    eager = [each for each in imports() if each.eager and layer_of(each.module) == "top"]

    rim = [each for each in eager if each.name.startswith(PACKAGE) and is_a_module(each.part)]
    loaded = [str(each) for each in rim if layer_of(each.part) == "torch rim" and each.part != "environment"]
    assert loaded == []
    assert [str(each) for each in eager if each.name.split(".")[0] in SLOW] == []


def test_nothing_is_shared_by_name_only() -> None:
    vague = {"utils", "helpers", "common", "manager", "info", "misc"}

    assert [module for module in module_names() if vague & set(module.split("."))] == []


@pytest.mark.parametrize(
    "module",
    [
        PACKAGE,
        f"{PACKAGE}.plugin",
        f"{PACKAGE}.hooks",
        f"{PACKAGE}.cli",
        f"{PACKAGE}.session",
        f"{PACKAGE}.receipt",
        f"{PACKAGE}.report.terminal",
    ],
)
def test_loading_imports_nothing_slow(module: str) -> None:
    # pytest itself is there when it loads the plugin.
    program = f"import sys, json, pytest, {module}; print(json.dumps([*sys.modules]))"

    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=FOLDER.parent)

    assert [name for name in json.loads(ran.stdout) if name in SLOW] == []


def test_importing_the_package_does_not_import_pytest() -> None:
    program = f"import sys, {PACKAGE}; print('pytest' in sys.modules, {PACKAGE}.__version__)"

    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=FOLDER.parent)

    assert ran.stdout.split()[0] == "False"
