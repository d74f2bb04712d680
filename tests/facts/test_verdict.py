"""What a lane is held to, and a violation of it: each part by itself, and the texts that are made of them."""

from __future__ import annotations

import pytest

from pytest_compilecontract.facts.verdict import NO_EXCEPTION, Bound, Violation, violated


@pytest.mark.parametrize(
    ("bound", "text"),
    [
        pytest.param(Bound(name="max_graph_breaks", allows=0), "max_graph_breaks=0", id="a-number"),
        pytest.param(Bound(name="min_speedup", allows=1.5), "min_speedup=1.5", id="a-ratio"),
        pytest.param(
            Bound(name="numerics", allows="fp64", also={"rtol": 0.1}, given=False),
            "numerics='fp64', rtol=0.1 (default)",
            id="a-rule-with-what-belongs-to-it",
        ),
        pytest.param(Bound(name=NO_EXCEPTION, allows=None, given=False), "no exception (default)", id="a-name-alone"),
    ],
)
def test_a_bound_is_told_as_an_author_writes_it(bound: Bound[object], text: str) -> None:
    assert str(bound) == text
    assert violated(bound, 1).limit == text
    assert violated(bound, 1).name == bound.name


@pytest.mark.parametrize(
    ("allows", "number"), [(3, 3), (0.5, 0.5), (True, None), ("fp64", None), (None, None)], ids=repr
)
def test_only_a_number_is_a_bound_to_compare_with(allows: object, number: float | None) -> None:
    assert violated(Bound(name="a", allows=allows), 1).bound == number


def test_what_belongs_to_a_fact_is_indented_in_details() -> None:
    found = violated(Bound(name="a", allows=0), 2, [("model.py:1 in f", "a reason", "  code"), ("model.py:2 in f",)])

    assert found.details == ("model.py:1 in f", "  a reason", "    code", "model.py:2 in f")


@pytest.mark.parametrize(
    "made",
    [
        violated(Bound(name="max_graph_breaks", allows=0), 2, [("model.py:1 in f", "a reason", "  code"), ("b",)]),
        violated(Bound(name="max_eager_frames", allows=0, given=False), 1),
        violated(Bound(name="max_kernels_ratio", allows=1.25), "1.30 (13 compiled, 10 eager)"),
        violated(Bound(name=NO_EXCEPTION, allows=None, given=False), "raised ValueError", [("ValueError: x",)]),
        violated(Bound(name="fullgraph", allows=True), "1 graph break"),
        violated(Bound(name="numerics", allows="fp64", also={"rtol": 0.1}), "1 difference"),
    ],
    ids=lambda each: each.name,
)
def test_what_an_older_version_wrote_is_read_as_the_same(made: Violation) -> None:
    assert Violation(limit=made.limit, measured=made.measured, details=made.details) == made
