"""The receipts behind the pages of docs/, compressed in docs/receipts/, each with its digest in SHA256SUMS.

python ci/packed.py FOLDER                     unpack all of them into FOLDER, and check their digests
python ci/packed.py FOLDER policies            those of docs/receipts/policies
"""

from __future__ import annotations

import argparse
import hashlib
import lzma
import sys
from pathlib import Path

HOME = Path(__file__).resolve().parent.parent / "docs" / "receipts"
SUMS = HOME / "SHA256SUMS"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="?", default="", help="those below a folder of docs/receipts")
    chosen = parser.parse_args()
    names = [name for name in digests() if name.startswith(chosen.names)]
    for name in names:
        path = chosen.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(unpacked(name))
    print(f"{len(names)} receipts in {chosen.folder}")
    return 0 if names else 1


def unpacked(name: str) -> bytes:
    """The receipt with that name, such as "policies/torch-2.13.0.json".

    Raises:
        ValueError: it does not have the digest that was recorded.
    """
    data = lzma.decompress((HOME / f"{name}.xz").read_bytes())
    if hashlib.sha256(data).hexdigest() != digests()[name]:
        raise ValueError(f"docs/receipts/{name}.xz: not the receipt that {SUMS.name} names")
    return data


def pack(name: str, data: bytes) -> None:
    """Pack a receipt under that name."""
    path = HOME / f"{name}.xz"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(lzma.compress(data, preset=9 | lzma.PRESET_EXTREME))
    known = {**digests(), name: hashlib.sha256(data).hexdigest()}
    SUMS.write_text("".join(f"{digest}  {each}\n" for each, digest in sorted(known.items())), encoding="utf-8")


def digests() -> dict[str, str]:
    """The SHA-256 of each receipt before it was packed, by its name."""
    if not SUMS.is_file():
        return {}
    lines = SUMS.read_text(encoding="utf-8").splitlines()
    return {name: digest for digest, _, name in (line.partition("  ") for line in lines)}


if __name__ == "__main__":
    sys.exit(main())
