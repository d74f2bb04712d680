"""Errors that people can act on: each is one line that says where, what was found, what would do."""


class ContractError(Exception):
    """Anything this package refuses. The message is one line, ready to print."""


class UsageError(ContractError):
    """A marker, option or setting that cannot mean anything."""


class ReceiptError(ContractError):
    """A receipt that cannot be read.

    `at` is the place inside the document, as `entries[0].lane`.
    """

    def __init__(self, message: str, *, at: str | None = None) -> None:
        super().__init__(f"{at}: {message}" if at else message)
        self.at = at


class InstallError(ContractError):
    """An environment that cannot be made, or that does not hold what it has to. The message is the reason alone.

    `step` is how far it came: "interpreter", "resolved", "installed" or "imported" is what could not be done.
    """

    def __init__(self, message: str, *, step: str = "installed") -> None:
        super().__init__(message)
        self.step = step
