"""What loading the plugin imports. Who may import whom is in `[tool.importlinter]` of pyproject.toml."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

PACKAGE = "pytest_compilecontract"
ROOT = Path(__file__).parents[2]
FOLDER = ROOT / PACKAGE
SLOW = ("torch", "numpy", "msgspec", "jsonschema", "jinja2", "markupsafe", "triton", "hypothesis", "asyncio")
# What is in no room: the package's face, and what all rooms may use.
FACE = {"__init__", "__main__", "lane", "shapes"}


def rooms() -> list[str]:
    """Those that the import contract puts in order."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"][
        "contracts"
    ]
    (layers,) = [each["layers"] for each in contracts if each["type"] == "layers"]
    return [room.strip() for layer in layers for room in layer.replace("|", ":").split(":")]


def module_names() -> list[str]:
    return sorted(".".join(path.relative_to(FOLDER).with_suffix("").parts) for path in FOLDER.rglob("*.py"))


def test_every_module_is_in_a_room_that_the_contract_orders() -> None:
    assert {module.split(".")[0] for module in module_names()} - FACE == set(rooms())


@pytest.mark.parametrize("room", sorted(path.parent.name for path in FOLDER.glob("*/__init__.py")))
def test_a_room_says_what_it_knows(room: str) -> None:
    said = ast.get_docstring(ast.parse((FOLDER / room / "__init__.py").read_text(encoding="utf-8")))

    assert said is not None
    assert "Imports" in said or "On top" in said or "imports" in said


def test_nothing_is_shared_by_name_only() -> None:
    vague = {"utils", "helpers", "common", "manager", "info", "misc"}

    assert [module for module in module_names() if vague & set(module.split("."))] == []


@pytest.mark.parametrize(
    "module",
    [
        PACKAGE,
        f"{PACKAGE}.plugin",
        f"{PACKAGE}.plugin.hooks",
        f"{PACKAGE}.cli",
        f"{PACKAGE}.plugin.session",
        f"{PACKAGE}.files.receipt",
        f"{PACKAGE}.report.terminal",
    ],
)
def test_loading_imports_nothing_slow(module: str) -> None:
    # pytest itself is there when it loads the plugin.
    program = f"import sys, json, pytest, {module}; print(json.dumps([*sys.modules]))"

    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=ROOT)

    assert [name for name in json.loads(ran.stdout) if name in SLOW] == []


def test_importing_the_package_does_not_import_pytest() -> None:
    program = f"import sys, {PACKAGE}; print('pytest' in sys.modules, {PACKAGE}.__version__)"

    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=ROOT)

    assert ran.stdout.split()[0] == "False"


Nodes = list[tuple[str, ast.AST]]


@pytest.fixture(scope="module")
def nodes() -> Nodes:
    """Each part of the package's source, with its file."""
    return [
        (path.relative_to(FOLDER).as_posix(), node)
        for path in sorted(FOLDER.rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
    ]


def test_a_class_is_at_most_250_lines(nodes: Nodes) -> None:
    classes = [
        (node.end_lineno - node.lineno + 1, f"{file}: {node.name}")
        for file, node in nodes
        if isinstance(node, ast.ClassDef) and node.end_lineno is not None
    ]

    assert [each for each in classes if each[0] > 250] == []


def test_one_module_owns_the_run_of_a_test(nodes: Nodes) -> None:
    owners = {
        file for file, node in nodes if isinstance(node, ast.FunctionDef) and node.name == "pytest_runtest_protocol"
    }

    assert owners == {"plugin/run.py"}


# Named tuples, Python itself, and what belongs to the class that asks for it.
OWN = {"_fields", "_make", "_getframe", "_active"}


def test_private_parts_of_torch_are_touched_in_probes_alone(nodes: Nodes) -> None:
    measuring = [each for each in nodes if each[0].startswith("measure/") and "/probes/" not in each[0]]
    attributes = {
        f"{file}:{node.lineno}: {ast.unparse(node)}"
        for file, node in measuring
        if isinstance(node, ast.Attribute) and re.match("_[a-z]", node.attr) and node.attr not in OWN
        if not (isinstance(node.value, ast.Name) and node.value.id in ("self", "cls"))
    }
    modules = {
        f"{file}:{node.lineno}: {name}"
        for file, node in measuring
        for name in (
            [each.name for each in node.names]
            if isinstance(node, ast.Import)
            else [node.module or ""]
            if isinstance(node, ast.ImportFrom)
            else [str(node.value)]
            if isinstance(node, ast.Constant)
            else []
        )
        if re.match(r"torch(\.\w+)*\._\w+(\.\w+)*$", name)
    }

    assert attributes | modules == set()
