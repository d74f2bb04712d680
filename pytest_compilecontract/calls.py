"""Calls: the arguments that a contract passes to its target. No torch here."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_compilecontract.errors import UsageError


class call:  # noqa: N801 - reads as the call that it stands for: call(x, mask=None)
    """The arguments of one call, for when a tuple is not enough: `call(x, attention_mask=mask)`."""

    __slots__ = ("args", "kwargs")

    def __init__(self, *args: object, **kwargs: object) -> None:
        self.args = args
        self.kwargs = kwargs

    def __repr__(self) -> str:
        return f"call({len(self.args)} arguments{''.join(f', {name}=' for name in self.kwargs)})"


def as_calls(values: Sequence[object], *, where: str) -> tuple[call, ...]:
    """Convert tuples of arguments and `call(...)` to calls. A single tensor is left to the caller, which knows torch.

    Raises:
        UsageError: there is no call, or one is neither a tuple nor a `call(...)`.
    """
    if not values:
        raise UsageError(f"{where} needs at least one call: a tuple of arguments, or call(...)")
    return tuple(_as_call(value, where, index) for index, value in enumerate(values))


def _as_call(value: object, where: str, index: int) -> call:
    if isinstance(value, call):
        return value
    if type(value) is tuple:
        return call(*value)
    raise UsageError(
        f"{where}: call {index} is {type(value).__name__!r} "
        "(expected a tuple of arguments such as `(x,)`, or call(...))"
    )
