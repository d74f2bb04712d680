"""Requirements: what a project needs besides torch, read from its own files. Nothing is installed here.

Lines for a package that was requested explicitly (usually torch) are left out: a project that pins today's torch is
exactly the one that asks about the next.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from pytest_compilecontract.errors import UsageError

# Where no group or extra is named: the first of these that the project has.
USUAL = ("test", "tests", "dev")
# What a line begins with, whatever follows: hashes and ${VARIABLES} are pip's, and no requirement to packaging.
_NAME = re.compile(r"\s*(?P<name>[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)\s*(?:\[(?P<extras>[^\]]*)\])?")
_TORCH_INDEX = re.compile(r"https://download\.pytorch\.org/whl/(?P<backend>cpu|cu\d+|xpu|rocm[\d.]+)/?")


@dataclass(frozen=True, kw_only=True, slots=True)
class Wanted:
    """The contents of an environment besides the requested packages: requirement lines, and options of uv.

    `editable` are folders to install without their dependencies, which are among the lines. `told` describes all of it.
    """

    lines: tuple[str, ...] = ()
    editable: tuple[Path, ...] = ()
    options: tuple[str, ...] = ()
    told: tuple[str, ...] = ()


def specs_from(words: Sequence[str], *, where: str) -> dict[str, str]:
    """The requested packages, as {"torch": "torch==2.12.1"}; `where` is the option for messages.

    Raises:
        UsageError: a word is not a requirement, or a package is named twice.
    """
    specs: dict[str, str] = {}
    for word in words:
        found = _parsed(word)
        # "2.12.1" alone is a name to packaging, and a version to whoever typed it.
        if found is None or found.marker is not None or word[:1].isdigit():
            option = "--from-python" if where == "--from" else "--python"
            path = f" (an interpreter is named with {option})" if "/" in word or "\\" in word else ""
            raise UsageError(f"{where}: expected a requirement such as torch==2.12.1, got {word!r}{path}")
        name = canonicalize_name(found.name)
        if name in specs:
            raise UsageError(f"{where}: {name} twice ({specs[name]!r} and {word!r})")
        specs[name] = word.strip()
    return specs


def exact(spec: str) -> str | None:
    """The only version that a requirement allows, such as "2.12.1" for "torch==2.12.1"."""
    found = _parsed(spec)
    bounds = list(found.specifier) if found is not None else []
    if len(bounds) != 1 or bounds[0].operator not in ("==", "===") or "*" in bounds[0].version:
        return None
    return bounds[0].version


def _parsed(requirement: str) -> Requirement | None:
    try:
        return Requirement(requirement)
    except InvalidRequirement:
        return None


def name_of(requirement: str) -> str | None:
    """The package that a line names; None for an option or a path."""
    found = _NAME.match(requirement)
    if found is None:
        return None
    ahead = requirement[found.end() :].lstrip()[:1]
    return canonicalize_name(found["name"]) if ahead in ("", "=", "~", "!", "<", ">", "@", ";", ",", "(") else None


def wanted(
    project: Path,
    *,
    asked: Collection[str],
    groups: Sequence[str] = (),
    extras: Sequence[str] = (),
    files: Sequence[Path] = (),
    others: Sequence[str] = (),
    without_project: bool = False,
) -> Wanted:
    """What the project in this folder requires, without the packages in `asked`.

    Raises:
        UsageError: a file cannot be read, or there is no such group or extra.
    """
    document = _document(project)
    lines: list[str] = []
    editable: list[Path] = []
    told: list[str] = []
    own = _Project(document, project)
    if not without_project:
        installed = own.installable
        if installed and own.dependencies_are_known:
            editable.append(project)
            lines += own.dependencies
        elif installed:
            # What it depends on is known to its build backend alone.
            known = [each for each in extras if each]
            lines.append(f"-e {project}" + (f"[{','.join(known)}]" if known else ""))
        else:
            lines += own.dependencies
        told.append(
            f"{own.name or project.name} (editable)" if installed else "no project (nothing here can be installed)"
        )
    groups, extras = own.chosen(groups, extras)
    for group in groups:
        lines += own.group(group)
        told.append(f"group {group}")
    for extra in extras:
        lines += own.extra(extra)
        told.append(f"extra {extra}")
    for file in files:
        lines += list(_lines_of(file, asked))
        told.append(str(file))
    lines += others
    told += others
    kept = [line for line in dict.fromkeys(lines) if name_of(line) not in asked]
    sourced, options = _sourced(kept, own.sources, own.indexes, project, asked)
    return Wanted(lines=tuple(sourced), editable=tuple(editable), options=tuple(options), told=tuple(told))


def pinned(project: Path, name: str) -> str | None:
    """The one version of a package that the project's own files allow: pyproject.toml, then uv.lock.

    Raises:
        UsageError: a file cannot be read.
    """
    own = _Project(_document(project), project)
    for line in (*own.dependencies, *(each for group in own.groups for each in own.group(group))):
        if name_of(line) == name and (version := exact(line)):
            return version
    return locked(project).get(name)


def locked(project: Path) -> dict[str, str]:
    """The versions in the project's uv.lock; a package with several versions, for several platforms, is left out.

    Raises:
        UsageError: the file cannot be read.
    """
    found: dict[str, set[str]] = {}
    for package in _array(_read(project / "uv.lock").get("package")):
        name, version = package.get("name"), package.get("version")
        if isinstance(name, str) and isinstance(version, str):
            found.setdefault(canonicalize_name(name), set()).add(version)
    return {name: next(iter(versions)) for name, versions in found.items() if len(versions) == 1}


class _Project:
    """The tables of a pyproject.toml that say what to install; empty for a file without them."""

    def __init__(self, document: Mapping[str, object], folder: Path) -> None:
        self._folder = folder
        self._project = _table(document.get("project"))
        self.groups = _table(document.get("dependency-groups"))
        self.extras = _table(self._project.get("optional-dependencies"))
        uv = _table(_table(document.get("tool")).get("uv"))
        self.sources: dict[str, object] = {
            canonicalize_name(name): source for name, source in _table(uv.get("sources")).items()
        }
        self.indexes = {str(each.get("name")): str(each.get("url")) for each in _array(uv.get("index"))}
        self.name = str(self._project.get("name", ""))
        # As uv has it: a project that names no build backend is not installed, its dependencies are.
        self.installable = "build-system" in document or (folder / "setup.py").is_file()

    @property
    def dependencies_are_known(self) -> bool:
        """Whether the dependencies are in pyproject.toml, rather than determined by the build."""
        return bool(self._project) and "dependencies" not in _strings(self._project.get("dynamic"))

    @property
    def dependencies(self) -> list[str]:
        return self._own(_strings(self._project.get("dependencies")))

    def chosen(self, groups: Sequence[str], extras: Sequence[str]) -> tuple[Sequence[str], Sequence[str]]:
        """The groups and extras to install: those requested, or else the first of the common names."""
        for name in groups:
            if _under(self.groups, name) is None:
                raise UsageError(f"--group {name}: {self._none_such('dependency-groups', self.groups)}")
        for name in extras:
            hidden = self.installable and not self.dependencies_are_known
            if not hidden and _under(self.extras, name) is None:
                raise UsageError(f"--extra {name}: {self._none_such('project.optional-dependencies', self.extras)}")
        if groups or extras:
            return groups, [each for each in extras if _under(self.extras, each) is not None]
        for name in USUAL:
            if _under(self.groups, name) is not None:
                return (name,), ()
        return (), next(((name,) for name in USUAL if _under(self.extras, name) is not None), ())

    def group(self, name: str) -> list[str]:
        """The requirements of a dependency group and of the groups that it includes (PEP 735)."""
        return self._own(self._group(name, ()))

    def extra(self, name: str) -> list[str]:
        """The requirements of an extra."""
        return self._own(_strings(_under(self.extras, name)))

    def _group(self, name: str, seen: tuple[str, ...]) -> list[str]:
        if canonicalize_name(name) in seen:
            raise UsageError(f"pyproject.toml: dependency-groups: {name} includes itself")
        items = _under(self.groups, name)
        if not isinstance(items, list):
            raise UsageError(f"pyproject.toml: dependency-groups: no group {name!r}")
        lines: list[str] = []
        for item in items:
            if isinstance(item, dict) and isinstance(item.get("include-group"), str):
                lines += self._group(item["include-group"], (*seen, canonicalize_name(name)))
            elif isinstance(item, str):
                lines.append(item)
        return lines

    def _own(self, lines: Iterable[str]) -> list[str]:
        """The lines, with the project's own extras ("mine[test]") replaced by their requirements."""
        expanded: list[str] = []
        for line in lines:
            found = _NAME.match(line)
            if self.name and found and name_of(line) == canonicalize_name(self.name) and found["extras"]:
                for each in found["extras"].split(","):
                    expanded += self.extra(each.strip())
            else:
                expanded.append(line)
        return expanded

    def _none_such(self, where: str, known: Mapping[str, object]) -> str:
        there = f"known: {', '.join(sorted(known))}" if known else f"there is no {where} table"
        return f"not in {self._folder / 'pyproject.toml'} ({there})"


def _sourced(
    lines: Sequence[str],
    sources: Mapping[str, object],
    indexes: Mapping[str, str],
    project: Path,
    asked: Collection[str],
) -> tuple[list[str], list[str]]:
    """The lines with `tool.uv.sources` applied, and the uv options that some sources require."""
    sourced: list[str] = []
    urls: dict[str, None] = {}
    for line in lines:
        source = _first(sources.get(name_of(line) or ""))
        bare = re.split(r"[=~!<>;@ ]", line, maxsplit=1)[0]
        if "path" in source:
            place = project / str(source["path"])
            sourced.append(f"-e {place}" if source.get("editable") else f"{bare} @ {place.resolve().as_uri()}")
        elif "git" in source:
            at = next((f"@{source[key]}" for key in ("rev", "tag", "branch") if key in source), "")
            sourced.append(f"{bare} @ git+{source['git']}{at}")
        elif "url" in source:
            sourced.append(f"{bare} @ {source['url']}")
        else:
            sourced.append(line)
    for name in (*asked, *(name_of(line) or "" for line in lines)):
        url = indexes.get(str(_first(sources.get(name)).get("index")))
        if url:
            urls[url] = None
    options: list[str] = []
    for url in urls:
        backend = _TORCH_INDEX.fullmatch(url)
        options += ["--torch-backend", backend["backend"]] if backend else ["--index", url]
    if "--index" in options:
        # An index of a few packages has old releases of others, which are not to hide the newer ones elsewhere.
        options += ["--index-strategy", "unsafe-best-match"]
    return sourced, options


def _first(source: object) -> dict[str, object]:
    return _table(source[0] if isinstance(source, list) and source else source)


def _lines_of(file: Path, asked: Collection[str], depth: int = 0) -> Iterator[str]:
    """The lines of a requirements file and of those that it reads, paths made absolute."""
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{file}: cannot be read ({getattr(error, 'strerror', None) or error})") from error
    if depth > 8:
        raise UsageError(f"{file}: includes itself")
    for whole in re.sub(r"\\\r?\n", " ", text).splitlines():
        line = re.sub(r"(^|\s)#.*$", "", whole).strip()
        found = re.fullmatch(r"(?P<option>-r|--requirement|-c|--constraint|-e|--editable)(?:\s+|=)(?P<path>.+)", line)
        if not line:
            continue
        if found is None:
            yield line
        elif found["option"] in ("-r", "--requirement"):
            yield from _lines_of(file.parent / found["path"], asked, depth + 1)
        elif "://" in found["path"]:
            yield line
        else:
            yield f"{found['option']} {(file.parent / found['path']).resolve()}"


def _document(project: Path) -> dict[str, object]:
    return _read(project / "pyproject.toml")


def _read(file: Path) -> dict[str, object]:
    if not file.is_file():
        return {}
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise UsageError(f"{file}: {error}") from error


def _under(table: Mapping[str, object], name: str) -> object:
    """The value under a name in a table, however the name is spelled there; None if there is none."""
    return next((value for key, value in table.items() if canonicalize_name(key) == canonicalize_name(name)), None)


def _table(value: object) -> dict[str, object]:
    return value if isinstance(value, dict) else {}


def _array(value: object) -> list[dict[str, object]]:
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def _strings(value: object) -> list[str]:
    return [each for each in value if isinstance(each, str)] if isinstance(value, list) else []
