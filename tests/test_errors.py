"""The chain of an exception: what it was raised from, and what it was raised while handling."""

from __future__ import annotations

import pytest

from pytest_compilecontract.errors import chain, message_of


def test_the_causes_of_an_exception_come_after_it() -> None:
    first, second = ValueError("first"), TypeError("second")
    second.__cause__ = first

    assert [*chain(second)] == [second, first]
    assert [*chain(None)] == []


def test_what_was_being_handled_belongs_to_it_where_it_is_asked_for() -> None:
    first, second = ValueError("first"), TypeError("second")
    second.__context__ = first

    assert [*chain(second)] == [second]
    assert [*chain(second, contexts=True)] == [second, first]


@pytest.mark.parametrize("contexts", [False, True])
def test_a_chain_that_leads_back_to_itself_ends(contexts: bool) -> None:
    kept, other = ValueError("kept"), TypeError("other")
    kept.__cause__, other.__cause__ = other, kept

    assert [*chain(kept, contexts=contexts)] == [kept, other]


def test_an_exception_that_has_no_text_says_why() -> None:
    class Mute(Exception):  # noqa: N818 - what it is called does not matter
        def __str__(self) -> str:
            raise RuntimeError("no text")

    assert message_of(Mute()) == "its __str__ raises RuntimeError"
    assert message_of(ValueError("too few")) == "too few"
