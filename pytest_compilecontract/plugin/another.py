"""Another lane of a contract, which ran in the same test, and that a lane is compared with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_compilecontract.judge.agreement import OtherLane

if TYPE_CHECKING:
    from pytest_compilecontract.measure.numerics import Kept


@dataclass(frozen=True, kw_only=True, slots=True)
class Another:
    """The other lane of a contract: what is judged of it, and what it kept of its results."""

    lane: OtherLane
    kept: tuple[Kept | None, ...] = ()
