"""State: what running a target may change, saved before a run and put back in place after it.

In place, because a model, its optimizer and the test hold references to one another, which a copy would break.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator

import torch

from pytest_compilecontract.errors import message_of
from pytest_compilecontract.wording import first_said

from .. import numerics, tensors
from .walk import Walk

__all__ = ["NotWide", "State"]


class NotWide(Exception):  # noqa: N818 - no error of anybody's: the reason why there is no wider run
    """A tensor that cannot be given a wider dtype."""


class State:
    """The modules, tensors, optimizers, generators and plain values that a target reaches, as they are now.

    Reached are a module itself with its hooks, a bound method's owner, a function's closure, defaults, attributes and
    the globals that it uses, and what objects of the project's classes share: the attributes of the class, and what its
    methods reach. Classes of installed packages are not followed, and of their objects only those that contain
    tensors, modules or plain values (`numerics.kind_of`).

    `unreached` says what is not saved: too deep, too large, or impossible to save.

    `beside` are functions that are not part of the target, such as `compile_with`. Of what only they reach, only
    references to callables are saved: what such a function replaces is restored and not compared.
    """

    def __init__(self, *targets: object, beside: Iterable[object] = ()) -> None:
        self._walk = walk = Walk()
        self._pieces = walk.pieces
        for target in targets:
            walk.reach(target, "", depth=0)
        walk.follow()
        walk.pieces.beside = True
        for function in beside:
            walk.reach(function, "", depth=0)
        walk.follow()

    @property
    def modules(self) -> list[torch.nn.Module]:
        """The modules that were reached, without their submodules."""
        return self._walk.modules

    @property
    def tensors(self) -> dict[str, torch.Tensor]:
        """The tensors, by name."""
        return self._walk.tensors

    @property
    def unreached(self) -> str:
        """Which part of the state is not compared, in a sentence; empty if all of it is."""
        return self._pieces.unreached

    def reached(self) -> Iterable[object]:
        """The objects whose state this is, each once."""
        return self._walk.reached()

    def restore(self, *, accepted: bool = True) -> None:
        """Restore everything to when this object was made, except for what was accepted since.

        May be called repeatedly.
        """
        self._pieces.restore(accepted=accepted)

    def accept(self) -> None:
        """Accept the current differences: from now on `restore` restores them, and they are not changes."""
        self._pieces.accept()

    def forget(self) -> None:
        """Undo `accept`: `restore` restores the original state."""
        self._pieces.forget()

    def release(self) -> None:
        """To be called after the last `restore`: puts the user's own iterators back in place of their copies."""
        self._pieces.release()

    def changed(
        self, names: frozenset[str] = frozenset(), *, learned: bool = True, gradients: bool = False
    ) -> dict[str, object]:
        """What has changed, and what is always named, by name; `gradients` are those that a run has left."""
        return self._pieces.changed(names, learned=learned, gradients=gradients)

    def made(self) -> dict[str, object]:
        """The attributes that objects have gained, by name, unless something else reports them."""
        return self._pieces.made()

    @contextlib.contextmanager
    def in_wide(self, to: Callable[[torch.dtype], torch.dtype] = numerics.wide) -> Iterator[None]:
        """Inside, every tensor reached has data of the dtype that `to` gives for its own dtype.

        Raises:
            NotWide: a tensor cannot be cast, such as one inside a transform of torch.func.
        """
        before: list[tuple[torch.Tensor, tensors.Data, torch.Tensor | None]] = []
        try:
            for name, tensor in self.tensors.items():
                dtype = to(tensor.dtype)
                if dtype != tensor.dtype and (reason := tensors.why_not_wide(tensor)):
                    raise NotWide(f"{name!r} {reason}, and cannot be cast to {numerics.short(dtype)}")
                grad = tensor.grad if tensor.is_leaf else None
                try:
                    data = tensors.Data(tensor)
                    before.append((tensor, data, grad))
                    if tensor.is_leaf:
                        tensor.grad = None
                    if dtype != tensor.dtype:
                        data.give(tensors.wide(data.own, dtype))
                except (RuntimeError, NotImplementedError, TypeError) as error:
                    wanted = numerics.short(dtype)
                    raise NotWide(f"{name!r} cannot be cast to {wanted}: {first_said(message_of(error))}") from error
            yield
        finally:
            for tensor, data, grad in before:
                if tensor.is_leaf:
                    tensor.grad = None
                if tensor.dtype != data.own.dtype:
                    data.give_back()
                if tensor.is_leaf:
                    tensor.grad = grad
