"""What the site of docs/ adds to the pages: links into the repository, and reference pages generated from the code.

A hook of mkdocs (named in mkdocs.yml): `mkdocs build --strict` fails if a page or the target of a link is missing.
"""

from __future__ import annotations

import argparse
import inspect
import posixpath
import re
import tomllib
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parent.parent
LINK = re.compile(r"\]\((?!https?:|#)([^)\s#]+)(#[^)\s]*)?\)")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Read the address of the repository from pyproject.toml, its only place."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    config.repo_url = project["urls"]["Source"]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are generated from the code."""
    for name, make in PAGES.items():
        text = "".join(f"{line}\n" for line in make())
        files.append(File.generated(config, f"generated/{name}.md", content=text))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Make links out of docs/ point into the repository."""
    home = posixpath.dirname(page.file.src_uri)

    def led(link: re.Match[str]) -> str:
        place = posixpath.normpath(posixpath.join("docs", home, link[1]))
        known = files.get_file_from_path(place.removeprefix("docs/")) if place.startswith("docs/") else None
        if (known is not None and known.inclusion.is_included()) or not (ROOT / place).exists():
            return link[0]
        kind = "tree" if (ROOT / place).is_dir() else "blob"
        return f"]({config.repo_url}/{kind}/main/{place}{link[2] or ''})"

    return LINK.sub(led, markdown)


# Pages


def limits() -> Iterator[str]:
    from pytest_compilecontract import compile_contract
    from pytest_compilecontract.facts.limits import LIMITS, Limits

    yield from ("# Limits by name", "")
    yield from ("```text", inspect.getdoc(compile_contract) or "", "```", "")
    yield from ("| limit | type | default | metric |", "| --- | --- | --- | --- |")
    unsaid = Limits()
    for each in fields(Limits):
        default = getattr(unsaid, each.name)
        yield _row(each.name, f"`{each.type}`", f"`{default!r}`", LIMITS[each.name].metric or "")


def lanes() -> Iterator[str]:
    from pytest_compilecontract.facts.lanes import BUILT_IN, FIELD_OF, Lane

    yield from ("# Keys of a lane", "", "In `[tool.compilecontract.lanes.NAME]` of pyproject.toml.", "")
    yield from ("```text", inspect.getdoc(Lane) or "", "```", "", "| key | type |", "| --- | --- |")
    types = {each.name: each.type for each in fields(Lane)}
    for key, name in FIELD_OF.items():
        yield _row(f"`{key}`", f"`{types[name]}`")
    yield from ("", "## Built in", "", "| lane | sets |", "| --- | --- |")
    for lane in BUILT_IN.values():
        yield _row(f"`{lane.name}`", ", ".join(f"`{key} = {value!r}`" for key, value in lane.to_dict().items()))


def metrics() -> Iterator[str]:
    from pytest_compilecontract.facts.measurement import Measurement
    from pytest_compilecontract.facts.metrics import METRICS

    yield from ("# Metrics", "", "What is measured in a lane, by the names that a policy or a waiver uses.", "")
    yield from ("| metric | label in reports | gates by default |", "| --- | --- | --- |")
    for metric in METRICS.values():
        if metric.better:
            yield _row(f"`{metric.name}`", metric.label, "yes" if metric.gates else "")
    yield from ("", "## A measurement", "", "```text", inspect.getdoc(Measurement) or "", "```")


def commands() -> Iterator[str]:
    from pytest_compilecontract.cli.main import parser

    yield from ("# Options and exit codes", "", "## pytest", "")
    yield from ("| option | description |", "| --- | --- |")
    for names, told in _pytest_options():
        yield _row(f"`{names}`", told)
    made = parser()
    (inner,) = (each for each in made._actions if isinstance(each, argparse._SubParsersAction))
    for name, command in inner.choices.items():
        yield from ("", f"## compilecontract {name}", "", "```text", _help(command), "```")


def receipt() -> Iterator[str]:
    from pytest_compilecontract.files.receipt import schema

    made: Any = schema()
    yield from ("# The receipt, field by field", "", str(made["description"]), "")
    yield "`compilecontract schema receipt` prints all of it, as JSON Schema."
    for name, each in sorted(made["$defs"].items(), key=lambda pair: (pair[0] != "Receipt", pair[0])):
        yield from ("", f"## {name}", "", "```text", each.get("description", ""), "```")
        if properties := each.get("properties"):
            yield from ("", "| field | type |", "| --- | --- |")
            for field, node in properties.items():
                yield _row(f"`{field}`", f"`{_type(node)}`")


PAGES = {"limits": limits, "lanes": lanes, "metrics": metrics, "commands": commands, "receipt": receipt}


def _row(*cells: str) -> str:
    return f"| {' | '.join(' '.join(cell.split()).replace('|', chr(92) + '|') for cell in cells)} |"


def _help(command: argparse.ArgumentParser) -> str:
    command.formatter_class = lambda prog: argparse.HelpFormatter(prog, width=100)
    return command.format_help().rstrip()


def _pytest_options() -> Iterator[tuple[str, str]]:
    """The options of the plugin, each as typed, with its help."""
    from pytest_compilecontract.plugin import options

    found: list[tuple[str, str]] = []

    class Parser:
        def getgroup(self, *_: str) -> Parser:
            return self

        def addoption(self, name: str, **told: Any) -> None:
            if told.get("help") != argparse.SUPPRESS:
                found.append((f"{name}={told['metavar']}" if "metavar" in told else name, told["help"]))

        def addini(self, name: str, told: str, **_: Any) -> None:
            found.append((f"{name} (an ini option)", told))

    options.pytest_addoption(Parser())  # type: ignore[arg-type]
    yield from found


def _type(node: Any) -> str:
    if "$ref" in node:
        return str(node["$ref"].rpartition("/")[2])
    if "anyOf" in node:
        return " or ".join(map(_type, node["anyOf"]))
    if "enum" in node:
        return " or ".join(repr(each) for each in node["enum"])
    if node.get("type") == "array":
        return f"array of {_type(node.get('items') or {})}"
    return str(node.get("type") or node.get("const") or "anything")
