"""The corpus and what is expected of it fit together. No torch here."""

from __future__ import annotations

import re

import pytest
from corpus import CASES, RELEASES, Case, read_cases

ALL = read_cases()
EXPECTED = pytest.mark.parametrize("case", ALL.values(), ids=ALL)


@EXPECTED
def test_every_case_says_what_it_is_and_what_is_right(case: Case) -> None:
    text = case.path.read_text(encoding="utf-8")

    assert re.match(r'"""[^\n]+\n\nRight: (?s:.+?)\nSource: [^\n]+\.\n"""\n', text)


@EXPECTED
def test_every_case_has_a_verdict_and_counts_for_each_release(case: Case) -> None:
    lengths = {len(lane.verdicts) for lane in case.expected.values()}
    lengths |= {len(values) for lane in case.expected.values() for values in lane.counts.values()}

    assert lengths == {len(RELEASES)}
    assert case.judged in case.expected


@EXPECTED
def test_drifts_and_verdicts_tell_one_story(case: Case) -> None:
    for lane in case.expected.values():
        effects = {drift["to"]: drift["effect"] for drift in lane.drifts}
        assert set(effects) <= set(RELEASES[1:])
        assert set(effects.values()) <= {"harm", "help", "neither"}
        for index, release in enumerate(RELEASES[1:]):
            was, now = lane.verdicts[index] == "held", lane.verdicts[index + 1] == "held"
            if was and not now:
                assert effects.get(release) == "harm", release
            if now and not was:
                assert effects.get(release) == "help", release


def test_there_is_no_expectation_without_a_case() -> None:
    assert sorted(ALL) == sorted(path.stem for path in CASES.glob("*.py"))
    assert all(case.expected for case in ALL.values())
