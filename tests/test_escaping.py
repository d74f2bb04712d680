"""Escaping: what text from elsewhere may not do where it is shown or run."""

from __future__ import annotations

import json
import re
import shlex
import unicodedata
from xml.etree import ElementTree

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pytest_compilecontract.escaping import (
    as_tests,
    leads_out,
    markdown,
    markdown_paragraph,
    one_line,
    plain,
    printed,
    printed_json,
    printed_xml,
    typed,
)

# Of what texts are made that somebody obeys.
PARTS = (
    "::",
    "##[",
    "##vso[",
    "#",
    "[",
    ":",
    "error",
    " ",
    "\n",
    "\r",
    "\x1b[",
    "\x1b]",
    "\x9b",
    "\x07",
    "m",
    "'",
    '"',
    ";",
)
TEXTS = st.lists(st.sampled_from(PARTS) | st.characters(exclude_categories=["Cs"]), max_size=12).map("".join)


def obeyed(line: str) -> bool:
    """Whether GitHub's runner, or one like it, would take the line for a command."""
    return line.lstrip().startswith("::") or re.search(r"##\w*\[", line) is not None


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("::error::no", "\\::error::no"),
        ("   ::add-mask::x", "   \\::add-mask::x"),
        ("##[error]no", "#\\#[error]no"),
        ("held ##vso[task.setvariable]x", "held #\\#vso[task.setvariable]x"),
        ("tests/test_a.py::test_b", "tests/test_a.py::test_b"),
        ("## a heading", "## a heading"),
    ],
)
def test_a_line_that_a_workflow_would_obey(line: str, shown: str) -> None:
    assert printed(line) == shown


@given(text=TEXTS)
@example(text="##[##[")
@example(text="###[")
def test_no_line_is_obeyed(text: str) -> None:
    line = printed(plain(text))

    assert not obeyed(line)
    assert not [char for char in line if unicodedata.category(char) in ("Cc", "Cf", "Cs", "Zl", "Zp")]


@given(text=TEXTS)
def test_json_says_the_same(text: str) -> None:
    document = json.dumps({text: [text]}, ensure_ascii=False, indent=2)

    safe = printed_json(document)

    assert json.loads(safe) == {text: [text]}
    assert not [line for line in safe.split("\n") if obeyed(line) or not line.isprintable()]


@given(text=TEXTS)
def test_xml_says_the_same(text: str) -> None:
    shown = one_line(text)
    element = ElementTree.Element("a", b=shown)
    element.text = f"\n{shown}\n{shown}"

    safe = printed_xml(ElementTree.tostring(element, encoding="unicode"))

    again = ElementTree.fromstring(safe)
    assert (again.get("b"), again.text) == (shown, f"\n{shown}\n{shown}")
    assert not [line for line in safe.split("\n") if obeyed(line)]


@given(words=st.lists(TEXTS, min_size=1, max_size=3))
@example(words=["--contract-lanes=a\x1b[", "x'; rm -rf x; '"])
def test_a_shell_reads_a_command_as_its_words(words: list[str]) -> None:
    line = typed(words)

    assert shlex.split(line) == [plain(word) for word in words]
    assert plain(line) == line


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("tests/test_a.py::test_b[1]", ["--", "tests/test_a.py::test_b[1]"]),
        ("--junitxml=keep.txt", ["--", "./--junitxml=keep.txt"]),
        ("-p", ["--", "./-p"]),
        ("@options.txt", ["--", "./@options.txt"]),
    ],
    ids=["a test", "an option", "a short option", "a file of options"],
)
def test_a_name_is_no_option_of_pytest(name: str, arguments: list[str]) -> None:
    assert as_tests(name) == arguments


def test_pytest_takes_a_name_for_a_file(pytester: pytest.Pytester) -> None:
    pytester.path.joinpath("keep.txt").write_text("mine", encoding="utf-8")
    pytester.path.joinpath("@options.txt").write_text("--junitxml=keep.txt", encoding="utf-8")
    pytester.path.joinpath("@test_it.py").write_text("def test_it(): pass", encoding="utf-8")

    # Given here, or it is added after the names, where it is one more of them.
    temp = f"--basetemp={pytester.path / 'temp'}"

    refused = [pytester.runpytest(temp, *as_tests(name)) for name in ("--junitxml=keep.txt", "@options.txt", "-h")]
    ran = pytester.runpytest(temp, *as_tests("@test_it.py::test_it"))

    assert [each.ret for each in refused[::2]] == [pytest.ExitCode.USAGE_ERROR] * 2
    assert pytester.path.joinpath("keep.txt").read_text(encoding="utf-8") == "mine"
    ran.assert_outcomes(passed=1)


@pytest.mark.parametrize(
    ("name", "out"),
    [
        ("tests/test_a.py::test_b[../x]", False),
        ("test_a.py", False),
        ("..test_a.py", False),
        ("/tmp/test_a.py::test_b", True),
        ("../test_a.py::test_b", True),
        ("a/../../test_a.py", True),
        ("a\\..\\..\\test_a.py", True),
        ("C:/test_a.py", True),
        ("C:test_a.py", True),
        ("\\\\host\\share\\test_a.py", True),
        ("test_a.py::test\0b", True),
    ],
)
def test_a_name_that_leads_out_of_the_folder(name: str, out: bool) -> None:
    assert leads_out(name) is out


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("[a](http://b) **c** `d`", r"\[a\](http://b) \*\*c\*\* \`d\`"),
        ("<img> @all #1 a|b $x$", r"&lt;img&gt; &#64;all &#35;1 a&#124;b \$x\$"),
        ("a\n# b\x1b[31m\u202e", "a &#35; b"),
    ],
)
def test_markdown_shows_a_text_as_it_is(text: str, shown: str) -> None:
    assert markdown(text) == shown


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("- a", r"\- a"),
        ("12. a", r"12\. a"),
        ("=== a", r"\=== a"),
        ("::error::a", r"\::error::a"),
        ("torch 2", "torch 2"),
    ],
)
def test_a_paragraph_begins_nothing_else(text: str, shown: str) -> None:
    assert markdown_paragraph(text) == shown
