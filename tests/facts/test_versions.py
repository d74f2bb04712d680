"""Versions: pre-releases lie below their release, and ranges hold what they say."""

from __future__ import annotations

import itertools

import pytest

from pytest_compilecontract.errors import UsageError
from pytest_compilecontract.facts.versions import version_key, version_range

IN_ORDER = [
    "2.9.1",
    "2.10.0",
    "2.11.0+cu130",
    "2.12.0.dev20260101",
    "2.12.0.dev20260301+cu130",
    "2.12.0a0.dev1",
    "2.12.0a0+gitabc",
    "2.12.0b1",
    "2.12.0rc1",
    "2.12.0rc10",
    "2.12.0",
    "2.12.0.post1",
    "2.12.1",
    "2.12.10",
]


@pytest.mark.parametrize(("lower", "higher"), [*itertools.pairwise(IN_ORDER)])
def test_versions_are_in_order(lower: str, higher: str) -> None:
    keys = version_key(lower), version_key(higher)

    assert keys[0] is not None
    assert keys[1] is not None
    assert keys[0] < keys[1]


@pytest.mark.parametrize("text", ["2.12.0", "2.12", "v2.12.0+cu130"])
def test_these_are_the_same(text: str) -> None:
    assert version_key(text) == version_key("2.12.0")


@pytest.mark.parametrize("text", ["", "torch", "2.", "2.12.x", "2..1", "1" * 5000])
def test_these_are_no_versions(text: str) -> None:
    assert version_key(text) is None


@pytest.mark.parametrize(
    ("text", "inside", "outside"),
    [
        (">=2.12,<2.14", ["2.12.0", "2.13.1+cu130", "2.14.0rc1"], ["2.12.0a0", "2.12.0.dev1", "2.14.0", "2.11.9"]),
        ("==2.12.*", ["2.12.0", "2.12.1", "2.12.0a0"], ["2.13.0", "2.1.2"]),
        ("==2.10.*", ["2.10.0", "2.10.4"], ["2.1.0", "2.11.0"]),
        ("!=2.13.*, >2.11", ["2.12.0", "2.14.0"], ["2.13.1", "2.11.0", "nothing"]),
        ("==2.12.1", ["2.12.1+cpu"], ["2.12.0"]),
        ("<=2.12", ["2.12.0", "2.12.0rc1"], ["2.12.1"]),
    ],
)
def test_a_range_holds_what_it_says(text: str, inside: list[str], outside: list[str]) -> None:
    found = version_range(text, where="torch")

    assert [version for version in inside + outside if version in found] == inside


@pytest.mark.parametrize("text", ["", "2.12", ">=", ">=2.x", "~=2.12", ">=2.12.*", ">=2.12,", "== 2.12 2.13"])
def test_what_is_no_range_is_refused(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        version_range(text, where="waivers.toml:1: torch")

    assert str(caught.value) == (
        f"waivers.toml:1: torch: expected a version range such as '>=2.12,<2.14' or '==2.13.*', got {text!r}"
    )
