"""A training loop around a compiled model: the forward is in the region, and everything that belongs to the run is not.

    loop = Loop(model, optimizer, compile_model=torch.compile, scaler=torch.amp.GradScaler("cuda"))
    loop.train_step(micro_batches)
    loop.evaluate(batches)
    torch.save(loop.state_dict(), path)

Only the forward is compiled. Backward, scaling, clipping and the optimizer read values or change state that Dynamo
breaks at. The loop keeps the original model next to the compiled one, so that a checkpoint has plain keys.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

Batch = tuple[Tensor, Tensor]


class OwnedRandom:
    """Separate random state for a region: drawing outside does not change it, and it changes nothing outside.

    It is saved in a checkpoint, so that a resumed run draws the masks that the first would have drawn.
    """

    def __init__(self, seed: int) -> None:
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            self._state = self._now()

    @staticmethod
    def _now() -> list[Tensor]:
        return [torch.get_rng_state(), *(torch.cuda.get_rng_state_all() if torch.cuda.is_available() else ())]

    @contextlib.contextmanager
    def drawing(self) -> Iterator[None]:
        """Inside, random numbers are drawn from this state."""
        with torch.random.fork_rng():
            torch.set_rng_state(self._state[0])
            if len(self._state) > 1:
                torch.cuda.set_rng_state_all(self._state[1:])
            yield
            self._state = self._now()

    def state_dict(self) -> dict[str, list[Tensor]]:
        """The state, for a checkpoint."""
        return {"state": [each.clone() for each in self._state]}

    def load_state_dict(self, saved: dict[str, list[Tensor]]) -> None:
        """Continue from a checkpoint's state."""
        self._state = [each.clone() for each in saved["state"]]


class Loop:
    """Steps of gradient accumulation under autocast, evaluation between them, and the whole state of the run.

    Args:
        model: in eager form; (rows, ...) in, the prediction out.
        optimizer: of the model's parameters.
        compile_model: returns the compiled model; called once.
        scaler: scales the loss; with `enabled=False` if float16 is not used.
        autocast: the precision of the forward, float32 for none.
        seed: of the dropout masks.
        max_norm: of the gradients, after unscaling.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        compile_model: Callable[[nn.Module], Any],
        scaler: torch.amp.GradScaler,
        autocast: torch.dtype = torch.bfloat16,
        seed: int = 0,
        max_norm: float = 1.0,
    ) -> None:
        self.model, self.run = model, compile_model(model)
        self.optimizer, self.scaler = optimizer, scaler
        self.random = OwnedRandom(seed)
        self.max_norm = max_norm
        device = next(model.parameters()).device.type
        self._autocast = functools.partial(torch.autocast, device, autocast, enabled=autocast != torch.float32)

    def _loss(self, batch: Batch) -> Tensor:
        x, target = batch
        with self._autocast():
            predicted = self.run(x)
        return nn.functional.mse_loss(predicted.float(), target)

    def train_step(self, batches: Sequence[Batch]) -> Tensor:
        """One optimizer step over micro-batches of equal size; the mean loss, not read on the host."""
        losses = []
        for batch in batches:
            with self.random.drawing():
                loss = self._loss(batch) / len(batches)
            self.scaler.scale(loss).backward()
            losses.append(loss.detach())
        self.scaler.unscale_(self.optimizer)
        nn.utils.clip_grad_norm_(self.model.parameters(), self.max_norm)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad()
        return torch.stack(losses).sum()

    def evaluate(self, batches: Sequence[Batch]) -> Tensor:
        """The mean loss without gradients and dropout; the mode of the model is restored."""
        training = self.model.training
        self.model.eval()
        try:
            with torch.no_grad():
                return torch.stack([self._loss(batch) for batch in batches]).mean()
        finally:
            self.model.train(training)

    def state_dict(self) -> dict[str, Any]:
        """Everything that a resumed run needs, by name."""
        return {name: getattr(self, name).state_dict() for name in ("model", "optimizer", "scaler", "random")}

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        """Resume. The parameters keep their memory, which the compiled model and the optimizer refer to."""
        for name, state in saved.items():
            getattr(self, name).load_state_dict(state)


SAVED = (torch.ops.aten.mm.default, torch.ops.aten.addmm.default)


def _save_products(_context: Any, operation: Any, *_args: Any, **_kwargs: Any) -> CheckpointPolicy:
    return CheckpointPolicy.MUST_SAVE if operation in SAVED else CheckpointPolicy.PREFER_RECOMPUTE


class Recomputed(nn.Module):
    """A block whose activations are recomputed in the backward: all, or (`save_products`) all except matrix products.

    It belongs inside of the compiled region. Around a compiled block it reruns the whole block, and does not see its
    products: torch then ignores the save policy without a warning.
    """

    def __init__(self, block: nn.Module, *, save_products: bool = False) -> None:
        super().__init__()
        self.block = block
        self.save_products = save_products

    def forward(self, x: Tensor) -> Tensor:
        if self.save_products:
            contexts = functools.partial(create_selective_checkpoint_contexts, _save_products)
            return checkpoint(self.block, x, use_reentrant=False, context_fn=contexts)
        return checkpoint(self.block, x, use_reentrant=False)
