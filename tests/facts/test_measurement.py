"""Measurements: what is made of several in one test, and what an older version wrote."""

from __future__ import annotations

import pytest

from pytest_compilecontract.facts.measurement import Compiled, Measurement, RaisedInBoth
from pytest_compilecontract.facts.metrics import combined
from pytest_compilecontract.facts.structure import PLAIN, Moved, Placements, SavedBytes


def handed_to(*backends: str, by_torch: str = "") -> Measurement:
    compiles = [Compiled(backend=name) for name in backends]
    if by_torch:
        compiles.append(Compiled(backend=by_torch, by_torch=True))
    return Measurement(backend=", ".join(backends) or "inductor", compiles=tuple(compiles))


@pytest.mark.parametrize(
    ("parts", "backend"),
    [
        ((handed_to("eager"), handed_to("aot_eager", "eager")), "eager, aot_eager"),
        ((handed_to(), handed_to("aot_eager", by_torch="eager")), "aot_eager"),
        ((handed_to(), handed_to()), "inductor"),
        ((Measurement(), handed_to("eager")), "eager"),
    ],
    ids=["each once", "without torch's own", "the lane's where there was no graph", "one that was not measured"],
)
def test_a_test_that_measures_twice_names_the_backends_of_both(parts: tuple[Measurement, ...], backend: str) -> None:
    assert combined(parts).backend == backend


@pytest.mark.parametrize("unit", ["step", ""], ids=["now", "as an older version wrote it"])
def test_the_calls_that_never_ran_are_called_as_they_are(unit: str) -> None:
    both = RaisedInBoth(type="ValueError", message="no", at="step 1", left=2, unit=unit)

    assert str(both) == "eager raises in step 1, as compiled does: ValueError: no; the 2 steps after it never ran"


def test_placements_of_several_parts_are_those_in_which_something_moved() -> None:
    alike = Placements(compiled={"w": "Shard(0) on 2"}, eager={"w": "Shard(0) on 2"})
    moved = Placements(compiled={"w": PLAIN}, eager={"w": "Shard(0) on 2"})

    for parts in ((moved, alike), (alike, moved)):
        found = combined(tuple(Measurement(placements=each) for each in parts)).placements
        assert found is not None
        assert found.changed == (Moved(name="w", eager="Shard(0) on 2", compiled=PLAIN),)
    assert combined((Measurement(placements=alike), Measurement())).placements is None


def test_saved_bytes_of_several_parts_are_added() -> None:
    parts = tuple(Measurement(saved_bytes=SavedBytes(compiled=number, eager=2)) for number in (1, 2))

    assert combined(parts).saved_bytes == SavedBytes(compiled=3, eager=4)
    assert combined((*parts, Measurement())).saved_bytes is None
