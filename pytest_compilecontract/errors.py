"""Errors that people can act on: each is one line that says where, what was found and what was expected."""

from __future__ import annotations

from collections.abc import Iterator


class ContractError(Exception):
    """Anything this package refuses. The message is one line, ready to print."""


class UsageError(ContractError):
    """A marker, option or setting that is not valid."""


class ReceiptError(ContractError):
    """A receipt that cannot be read.

    `at` is the place inside the document, such as `entries[0].lane`.
    """

    def __init__(self, message: str, *, at: str | None = None) -> None:
        super().__init__(f"{at}: {message}" if at else message)
        self.at = at


class InstallError(ContractError):
    """An environment that cannot be created, or that lacks something it needs. The message is only the reason.

    `step` is the step that failed: "interpreter", "resolved", "installed" or "imported".
    """

    def __init__(self, message: str, *, step: str = "installed") -> None:
        super().__init__(message)
        self.step = step


def message_of(error: object) -> str:
    """The message of an exception, or that its `__str__` raises."""
    try:
        return str(error)
    except Exception as raised:  # noqa: BLE001 - whatever a class of the user's does there
        return f"its __str__ raises {type(raised).__name__}"


def chain(error: BaseException | None, *, contexts: bool = False) -> Iterator[BaseException]:
    """An exception and its causes; with `contexts`, also what was being handled where there is no cause.

    A chain may be circular, such as when a stored exception is raised again from another.
    """
    met: set[int] = set()
    while error is not None and id(error) not in met:
        met.add(id(error))
        yield error
        error = error.__cause__ or (error.__context__ if contexts else None)
