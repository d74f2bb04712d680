"""What a project wants installed beside torch: read from its own files, less what was asked for by itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_compilecontract.errors import UsageError
from pytest_compilecontract.upgrade.requirements import exact, locked, name_of, pinned, specs_from, wanted

PYPROJECT = """
[build-system]
requires = ["hatchling"]

[project]
name = "My_Router"
dependencies = ["torch==2.11.0", "einops>=0.8", "torchvision"]

[project.optional-dependencies]
vision = ["pillow"]

[dependency-groups]
lint = ["ruff"]
test = [{include-group = "base"}, "my-router[vision]", "Torch>=2"]
base = ["pytest>=8", "hypothesis"]
"""


def a_project(folder: Path, text: str = PYPROJECT) -> Path:
    (folder / "pyproject.toml").write_text(text, encoding="utf-8")
    return folder


def test_the_torch_that_is_asked_for_replaces_every_other_pin(tmp_path: Path) -> None:
    found = wanted(a_project(tmp_path), asked={"torch"})

    assert found.lines == ("einops>=0.8", "torchvision", "pytest>=8", "hypothesis", "pillow")
    assert found.editable == (tmp_path,)
    assert found.told == ("My_Router (editable)", "group test")


def test_groups_extras_files_and_single_requirements_add_up(tmp_path: Path) -> None:
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "base.txt").write_text(
        "torch==2.11.0 --hash=sha256:0\nnumpy==2.3.5 \\\n  ; python_version>'3'\n"
    )
    (tmp_path / "more" / "all.txt").write_text("# all\n-r base.txt\n-e ../lib  # ours\n--pre\n")

    found = wanted(
        a_project(tmp_path),
        asked={"torch"},
        groups=["lint"],
        extras=["vision"],
        files=[tmp_path / "more" / "all.txt"],
        others=["timm==1.0.31"],
    )

    assert found.lines == (
        "einops>=0.8",
        "torchvision",
        "ruff",
        "pillow",
        "numpy==2.3.5    ; python_version>'3'",
        f"-e {tmp_path / 'lib'}",
        "--pre",
        "timm==1.0.31",
    )


def test_a_project_that_only_its_build_backend_knows_is_installed_with_what_it_needs(tmp_path: Path) -> None:
    (tmp_path / "setup.py").write_text("")

    found = wanted(tmp_path, asked={"torch"}, extras=["test"])

    assert found.lines == (f"-e {tmp_path}[test]",)
    assert found.editable == ()


def test_a_project_without_a_build_backend_has_dependencies_all_the_same(tmp_path: Path) -> None:
    found = wanted(a_project(tmp_path, '[project]\nname = "x"\ndependencies = ["numpy"]\n'), asked={"torch"})

    assert (found.lines, found.editable) == (("numpy",), ())
    assert found.told == ("no project (nothing here can be installed)",)


def test_without_the_project_only_the_rest_is_installed(tmp_path: Path) -> None:
    found = wanted(a_project(tmp_path), asked={"torch"}, groups=["lint"], without_project=True)

    assert (found.lines, found.editable) == (("ruff",), ())


def test_sources_of_uv_are_followed(tmp_path: Path) -> None:
    sources = """
[tool.uv.sources]
torch = [{index = "cpu", marker = "sys_platform == 'linux'"}]
einops = {git = "https://example.org/einops", rev = "abc"}
pillow = {path = "pillow", editable = true}
hypothesis = {index = "own"}

[[tool.uv.index]]
name = "cpu"
url = "https://download.pytorch.org/whl/cpu"

[[tool.uv.index]]
name = "own"
url = "https://example.org/simple"
"""

    found = wanted(a_project(tmp_path, PYPROJECT + sources), asked={"torch"})

    assert f"-e {tmp_path / 'pillow'}" in found.lines
    assert "einops @ git+https://example.org/einops@abc" in found.lines
    assert found.options == (
        *("--torch-backend", "cpu"),
        *("--index", "https://example.org/simple"),
        *("--index-strategy", "unsafe-best-match"),
    )


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"groups": ["tests"]}, "--group tests: not in {}/pyproject.toml (known: base, lint, test)"),
        ({"extras": ["docs"]}, "--extra docs: not in {}/pyproject.toml (known: vision)"),
        ({"files": [Path("/nowhere.txt")]}, "/nowhere.txt: cannot be read (No such file or directory)"),
    ],
    ids=["a group", "an extra", "a file"],
)
def test_what_is_not_there_is_one_line(tmp_path: Path, how: dict[str, list[str]], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        wanted(a_project(tmp_path), asked={"torch"}, **how)  # type: ignore[arg-type]

    assert str(caught.value) == message.format(tmp_path)


def test_a_group_that_includes_itself_is_one_line(tmp_path: Path) -> None:
    project = a_project(tmp_path, '[dependency-groups]\ntest = [{include-group = "test"}]\n')

    with pytest.raises(UsageError) as caught:
        wanted(project, asked={"torch"})

    assert str(caught.value) == "pyproject.toml: dependency-groups: test includes itself"


def test_a_file_that_reads_itself_is_one_line(tmp_path: Path) -> None:
    file = tmp_path / "r.txt"
    file.write_text("-r r.txt\n")

    with pytest.raises(UsageError) as caught:
        wanted(tmp_path, asked={"torch"}, files=[file])

    assert str(caught.value) == f"{file}: includes itself"


@pytest.mark.parametrize(
    ("word", "version"),
    [
        ("torch==2.12.1", "2.12.1"),
        ("torch == 2.12.1+cu130", "2.12.1+cu130"),
        ("torch==2.16.0.dev20261101", "2.16.0.dev20261101"),
        ("torch==2.12.*", None),
        ("torch>=2.12,<2.13", None),
        ("torch @ https://example.org/torch-2.12.1-cp311.whl", None),
        ("torch", None),
    ],
    ids=["a release", "a build", "a nightly", "any patch", "a range", "a file", "any"],
)
def test_what_may_be_asked_for(word: str, version: str | None) -> None:
    specs = specs_from([word], where="bump")

    assert (specs, exact(word)) == ({"torch": word}, version)


@pytest.mark.parametrize(
    "word", ["torch=2.12.1", "2.12.1", "torch==", "torch 2.12.1", "", "==2", "--x", "torch==2.12.1 extra"]
)
def test_what_is_no_requirement_is_one_line(word: str) -> None:
    with pytest.raises(UsageError) as caught:
        specs_from([word], where="bump")

    assert str(caught.value) == f"bump: expected a requirement such as torch==2.12.1, got {word!r}"


def test_a_package_twice_is_one_line() -> None:
    with pytest.raises(UsageError) as caught:
        specs_from(["torch==2.11.0", "Torch==2.12.1"], where="--from")

    assert str(caught.value) == "--from: torch twice ('torch==2.11.0' and 'Torch==2.12.1')"


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("Torch_Vision[x] >=1 ; os_name == 'nt'", "torch-vision"),
        ("torch", "torch"),
        ("-e ./torch", None),
        ("./torch", None),
        ("https://example.org/torch.whl", None),
    ],
)
def test_the_package_that_a_line_names(line: str, name: str | None) -> None:
    assert name_of(line) == name


def test_the_pin_of_pyproject_comes_before_the_lock(tmp_path: Path) -> None:
    (tmp_path / "uv.lock").write_text('[[package]]\nname = "torch"\nversion = "2.13.0"\n')

    from_lock = pinned(tmp_path, "torch")
    from_pyproject = pinned(a_project(tmp_path), "torch")

    assert (from_lock, from_pyproject) == ("2.13.0", "2.11.0")


def test_a_lock_with_several_versions_of_a_package_says_nothing_of_it(tmp_path: Path) -> None:
    packages = (("torch", "2.13.0"), ("NumPy", "2.3.5"), ("torch", "2.13.0+cpu"), ("router", None))
    lines = [f'[[package]]\nname = "{name}"\n' + (f'version = "{each}"\n' if each else "") for name, each in packages]
    (tmp_path / "uv.lock").write_text("".join(lines))

    assert locked(tmp_path) == {"numpy": "2.3.5"}
