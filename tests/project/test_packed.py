"""The receipts that the pages were made of: each is there, is what its digest says, and can be unpacked."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SPEC = spec_from_file_location("packed", ROOT / "ci" / "packed.py")
assert SPEC is not None
assert SPEC.loader is not None
packed = module_from_spec(SPEC)
SPEC.loader.exec_module(packed)


def test_every_receipt_has_a_digest_and_every_digest_a_receipt() -> None:
    kept = [path.relative_to(packed.HOME).as_posix().removesuffix(".xz") for path in packed.HOME.rglob("*.xz")]

    assert sorted(kept) == sorted(packed.digests())


@pytest.mark.parametrize("name", sorted(packed.digests()))
def test_a_receipt_is_what_its_digest_says(name: str) -> None:
    assert packed.unpacked(name).startswith(b"{")


def test_another_receipt_in_its_place_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed, "HOME", tmp_path)
    monkeypatch.setattr(packed, "SUMS", tmp_path / "SHA256SUMS")
    packed.pack("a/b.json", b"{}")
    whole = packed.unpacked("a/b.json")
    (tmp_path / "a" / "other.json.xz").write_bytes((tmp_path / "a" / "b.json.xz").read_bytes())
    packed.pack("a/other.json", b"[]")
    (tmp_path / "a" / "other.json.xz").replace(tmp_path / "a" / "b.json.xz")

    with pytest.raises(ValueError, match=r"a/b\.json\.xz: not the receipt that SHA256SUMS names"):
        packed.unpacked("a/b.json")

    assert whole == b"{}"


def test_those_of_one_page_are_unpacked(tmp_path: Path) -> None:
    ran = subprocess.run(
        [sys.executable, str(ROOT / "ci" / "packed.py"), str(tmp_path), "sweep"],
        capture_output=True,
        text=True,
        check=True,
    )

    assert ran.stdout == f"5 receipts in {tmp_path}\n"
    assert sorted(path.name for path in tmp_path.rglob("*.json")) == [
        f"torch-2.{minor}.json" for minor in ("11.0", "12.1", "13.0", "14.1", "15.0")
    ]
