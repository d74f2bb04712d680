"""One receipt for all ranks of a launch by torchrun, or by processes that a script started.

Each rank is a session that ends on its own: it writes its receipt, and then one of all receipts that exist by then.
No rank waits for another, and a receipt is only replaced by one that includes it. No pytest here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from pytest_compilecontract.errors import ReceiptError
from pytest_compilecontract.facts.ranks import RankMeasured
from pytest_compilecontract.facts.receipt import RECEIPT, Entry, Receipt
from pytest_compilecontract.files.receipt import read_receipt, write_receipt
from pytest_compilecontract.files.run_log import alone
from pytest_compilecontract.judge.ranks import is_of_a_neighbour

from .judged import Judged
from .over_ranks import of_all

_OF_RANK = re.compile(r"rank(?P<rank>[0-9]+)")
LOCK = ".ranks.lock"


def gathered(folder: Path, rank: int, own: Receipt) -> Receipt:
    """Write this rank's receipt to a folder of its own, and that of all ranks so far to the one they share.

    Raises:
        ReceiptError: a folder or file cannot be written.
    """
    write_receipt(folder / f"rank{rank}" / RECEIPT, own)
    with alone(folder / LOCK):
        found = {rank: own, **_others(folder, own.launch, rank)}
        made = of_ranks(dict(sorted(found.items())))
        write_receipt(folder / RECEIPT, made)
    return made


def _others(folder: Path, launch: str, rank: int) -> dict[int, Receipt]:
    """The receipts that other ranks of the launch have written."""
    found: dict[int, Receipt] = {}
    for each in folder.iterdir():
        named = _OF_RANK.fullmatch(each.name)
        if named is None or int(named["rank"]) == rank or not (each / RECEIPT).is_file():
            continue
        try:
            receipt = read_receipt(each / RECEIPT)
        except ReceiptError:
            continue  # of whoever wrote it, not of this launch
        if receipt.launch == launch:
            found[int(named["rank"])] = receipt
    return found


def of_ranks(receipts: Mapping[int, Receipt]) -> Receipt:
    """One receipt of several ranks: an entry for each lane, with what each of them measured."""
    first = next(iter(receipts.values()))
    lanes: dict[tuple[str, str, str], dict[int, Entry]] = {}
    for rank, receipt in receipts.items():
        for entry in receipt.entries:
            lanes.setdefault((entry.contract, entry.lane, entry.worker), {})[rank] = entry
    return replace(
        first,
        created=max(each.created for each in receipts.values()),
        environments={key: found for each in receipts.values() for key, found in each.environments.items()},
        defaults={key: table for each in receipts.values() for key, table in each.defaults.items()},
        entries=tuple(map(_of_lane, lanes.values())),
    )


def _of_lane(entries: Mapping[int, Entry]) -> Entry:
    """The entry of a lane: that of the rank with the worst verdict, after comparing all ranks."""
    broken = {rank: each for rank, each in entries.items() if each.verdict == "broken"}
    unmeasured = {rank: each for rank, each in entries.items() if each.verdict == "unmeasured"}
    if broken:
        rank = min(broken, key=lambda each: (_saw_a_neighbour(broken[each]), each))
        found = replace(broken[rank], reason=f"rank {rank}: {broken[rank].reason}")
    elif unmeasured:
        rank = min(unmeasured)
        found = unmeasured[rank]
        if len(unmeasured) < len(entries):
            found = replace(found, reason=f"rank {rank}: {found.reason}")
    else:
        agree = next(iter(entries.values())).limits.get("ranks_agree") is not False
        found = of_all({rank: Judged(entry=each) for rank, each in entries.items()}, agree=agree).entry
    ranks = (
        RankMeasured(rank=rank, measurement=each.measurement, reason=each.reason) for rank, each in entries.items()
    )
    return replace(found, ranks=tuple(ranks))


def _saw_a_neighbour(entry: Entry) -> bool:
    own = entry.own_failure
    return own is not None and is_of_a_neighbour(own.exception, own.said)
