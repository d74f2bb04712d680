"""Refusals: an operator that does not support the precision of the reference runs in another, with casts around it.

`torch._grouped_mm` does not support float64, and an attention kernel may only support half precision. The rest of the
reference still runs in float64.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch.utils._pytree import tree_iter, tree_map_only

from .memory import is_out_of_memory
from .schemas import TorchDispatchMode, written

# What is tried in the place of a dtype that an operator refuses, the widest first.
NARROWER = (torch.float32, torch.bfloat16, torch.float16)


class Refusals(TorchDispatchMode):  # type: ignore[misc]
    """While entered, operators without `wide` run in the widest dtype that they support; `ran_in` records them.

    An operator with arguments in several precisions, as after a cast of the program, is first tried with all in `wide`.
    """

    supports_higher_order_operators = True

    def __init__(self, wide: torch.dtype) -> None:
        super().__init__()
        self.ran_in: dict[str, torch.dtype] = {}
        self._wide = wide

    def __torch_dispatch__(
        self,
        func: Callable[..., object],
        types: object,
        args: tuple[object, ...] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        kwargs = kwargs or {}
        try:
            return func(*args, **kwargs)
        except Exception as refusal:
            tensors = (each for each in tree_iter((args, kwargs)) if isinstance(each, torch.Tensor))
            given = {each.dtype for each in tensors if each.is_floating_point()}
            if not given or is_out_of_memory(refusal):
                raise
            for dtype in (self._wide, *NARROWER):
                if given == {dtype} or dtype.itemsize > self._wide.itemsize:
                    continue
                try:
                    result = _run_in(dtype, func, args, kwargs)
                except Exception:  # noqa: BLE001 - each operator refuses in its own way
                    continue
                if dtype != self._wide:
                    self.ran_in[str(func)] = dtype
                return tree_map_only(torch.Tensor, self._widened, result)
            raise

    def _widened(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to(self._wide) if tensor.is_floating_point() else tensor


def _run_in(
    dtype: torch.dtype, func: Callable[..., object], args: tuple[object, ...], kwargs: Mapping[str, object]
) -> object:
    """Run an operator on copies in a dtype; writes to the copies are copied back to its arguments."""

    def narrowed(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to(dtype) if tensor.is_floating_point() else tensor

    new_args, new_kwargs = tree_map_only(torch.Tensor, narrowed, (args, dict(kwargs)))
    result = func(*new_args, **new_kwargs)
    for tensor, copy in zip(written(func, args, kwargs), written(func, new_args, new_kwargs), strict=True):
        if copy is not tensor:
            tensor.copy_(copy)
    return result
