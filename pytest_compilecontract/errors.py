"""Errors that people can act on: each is one line that says where, what was found and what was expected."""


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
