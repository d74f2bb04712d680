"""Pieces of state: how to read each, whether it has changed, and how to restore it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import torch

from pytest_compilecontract.errors import message_of
from pytest_compilecontract.wording import first_said

from ..numerics import again, is_pythons, position
from .values import MISSING, is_same_value, label

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True, slots=True)
class Kept(Generic[T]):
    """One piece of state: how to read it, whether it has changed, and how to restore it.

    `learned` are the parameters and buffers of modules, and a `gradient` is a leaf's; training compares both by itself.
    """

    name: str
    read: Callable[[], T]
    is_as_saved: Callable[[T], bool]
    put_back: Callable[[], object]
    learned: bool = False
    gradient: bool = False


class Saved(Generic[T]):
    """A value as it was `found`, and as it is `wanted` now: an accepted change replaces it for a while."""

    __slots__ = ("found", "wanted")

    def __init__(self, found: T) -> None:
        self.found = self.wanted = found


class Pieces:
    """The pieces that were saved, in the order in which they are restored.

    `beside`: from now on, what is saved does not belong to the target. Then only references to callables are saved:
    they are restored and not compared.
    """

    def __init__(self) -> None:
        self.beside = False
        self._kept: list[Kept[Any]] = []
        self._made: list[tuple[str, Callable[[], dict[Any, object]]]] = []
        self._releases: list[Callable[[], object]] = []
        self._accepts: list[tuple[Saved[Any], Callable[[], object]]] = []
        self._names: Counter[str] = Counter()
        self._left_out: dict[str, None] = {}

    def __len__(self) -> int:
        return len(self._kept)

    def at_the_end(self, put_back: Callable[[], object]) -> None:
        """Have `release` call this."""
        self._releases.append(put_back)

    @property
    def unreached(self) -> str:
        """Which part of the state is not compared, in a sentence; empty if all of it is."""
        more = f" and {len(self._left_out) - 3} more" if len(self._left_out) > 3 else ""
        return f"state not compared: {', '.join([*self._left_out][:3])}{more}" if self._left_out else ""

    def leave_out(self, what: str) -> None:
        if not self.beside:
            self._left_out[what] = None

    def restore(self, *, accepted: bool = True) -> None:
        """Restore everything to when this object was made, except for what was accepted since.

        May be called repeatedly.
        """
        wanted = [saved.wanted for saved, _ in self._accepts]
        if not accepted:
            self.forget()
        with torch.no_grad():
            for each in self._kept:
                each.put_back()
        for (saved, _), was in zip(self._accepts, wanted, strict=True):
            saved.wanted = was

    def accept(self) -> None:
        """Accept the current differences: from now on `restore` restores them, and they are not changes."""
        for saved, now in self._accepts:
            try:
                saved.wanted = now()
            except Exception as error:  # noqa: BLE001 - what was made may be of a kind that cannot be saved
                self._left_out[f"what compile_with changed (cannot be saved: {first_said(message_of(error))})"] = None

    def forget(self) -> None:
        """Undo `accept`: `restore` restores the original state."""
        for saved, _ in self._accepts:
            saved.wanted = saved.found

    def wanted(self, found: T, now: Callable[[], T]) -> Saved[T]:
        """A value as it was found; `now` reads it again for `accept`."""
        saved = Saved(found)
        self._accepts.append((saved, now))
        return saved

    def release(self) -> None:
        """To be called after the last `restore`: puts the user's own iterators back in place of their copies."""
        for put_back in self._releases:
            put_back()

    def changed(
        self, names: frozenset[str] = frozenset(), *, learned: bool = True, gradients: bool = False
    ) -> dict[str, object]:
        """What has changed, and what is always named, by name; `gradients` are those that a run has left."""
        found = {}
        for each in self._kept:
            if (each.learned and not learned) or (each.gradient and not gradients):
                continue
            value = each.read()
            if each.name in names or not each.is_as_saved(value):
                found[each.name] = value
        return found

    def made(self) -> dict[str, object]:
        """The attributes that objects have gained, by name, unless something else reports them."""
        return {
            f"{name}.{key}" if name else key: value
            for name, new in self._made
            for key, value in new().items()
            if isinstance(key, str) and not is_pythons(key)
        }

    def keep(
        self,
        name: str,
        read: Callable[[], T],
        is_as_saved: Callable[[T], bool],
        put_back: Callable[[], object],
        **more: bool,
    ) -> None:
        if self.beside:
            return
        # One name, one piece: a helper's closure may have a variable of the same name as the target's.
        self._names[name] += 1
        unique = name if self._names[name] == 1 else f"{name} ({self._names[name]})"
        self._kept.append(Kept(name=unique, read=read, is_as_saved=is_as_saved, put_back=put_back, **more))

    def note_made(self, name: str, new: Callable[[], dict[Any, object]]) -> None:
        if not self.beside:
            self._made.append((name, new))

    def keep_place(
        self,
        name: str,
        read: Callable[[], object],
        write: Callable[[object], object],
        value: object,
        *,
        learned: bool = False,
    ) -> None:
        """Save which object an attribute or dict entry refers to. Runs get copies of an iterator."""
        if self.beside:
            self.keep_beside(read, write, value)
            return
        if (at := position(value)) is not None:
            self.keep(name, lambda: position(read()), lambda now: now == at, lambda: write(again(value)))
            self.at_the_end(lambda: write(value))
            return

        saved = self.wanted(value, read)

        def put_back() -> None:
            if read() is not saved.wanted:
                write(saved.wanted)

        def now() -> object:
            return None if (found := read()) is MISSING else found

        self.keep(label(name, value), now, lambda now: is_same_value(now, saved.wanted), put_back, learned=learned)

    def keep_beside(self, read: Callable[[], object], write: Callable[[object], object], value: object) -> None:
        if not callable(value):
            return
        found: object = value
        saved = self.wanted(found, read)

        def put_back() -> None:
            if read() is not saved.wanted:
                write(saved.wanted)

        self._kept.append(Kept(name="", read=read, is_as_saved=lambda _: True, put_back=put_back))
