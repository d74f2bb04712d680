"""Safe compile: a model is compiled, tried and compared before it is used; if that fails, the eager model is used.

model = maybe_compile(model, CompileConfig(enabled=True), (batch,), loss=loss)
"""

from __future__ import annotations

import copy
import fnmatch
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

logger = logging.getLogger(__name__)
FailPolicy = Literal["eager", "raise"]
Batch = tuple[Any, ...] | dict[str, Any]
# What each tensor of tokens is padded with, by its name in transformers' batches: labels of -100 count in no loss.
PADDING = {"input_ids": 0, "attention_mask": 0, "token_type_ids": 0, "position_ids": 0, "labels": -100}


class CompileError(RuntimeError):
    """A model could not be compiled, tried or trusted; the message says which of these, and why."""


@dataclass(frozen=True, kw_only=True)
class CompileConfig:
    """Every flag of the policy. It is opt-in: nothing is compiled unless `enabled` says so.

    `backend`, `mode`, `options`, `fullgraph` and `dynamic` are those of torch.compile, which takes a mode or options.
    `allow` and `block` are patterns of module names ("blocks.*"): without `allow` the whole model is compiled, with it
    the modules that it names; modules that `block` names run in eager. `steps` (1 to 3) are the steps of the trial,
    `train` makes them training steps. `rtol` and `atol` are tolerances for compiled outputs, gradients and buffers
    against eager; `numerics=False` compares nothing. `pad_to_multiple_of` pads the tokens of the trial's batch, as
    `pad_tokens` does for the batches after it.

    Inductor draws other random numbers than eager, so a model with dropout can only be trusted with `train=False` in
    eval mode, with `numerics=False`, or with the Inductor setting `fallback_random` on.

    Raises:
        ValueError: a value that is not valid, or two that contradict one another.
    """

    enabled: bool = False
    backend: str | Callable[..., Any] = "inductor"
    mode: str | None = None
    options: Mapping[str, Any] | None = None
    fullgraph: bool = False
    dynamic: bool | None = None
    allow: tuple[str, ...] = ()
    block: tuple[str, ...] = ()
    steps: int = 2
    train: bool = True
    numerics: bool = True
    rtol: float = 1e-3
    atol: float = 1e-4
    fail_policy: FailPolicy = "eager"
    pad_to_multiple_of: int | None = None

    def __post_init__(self) -> None:
        if self.fail_policy not in ("eager", "raise"):
            raise ValueError(f"fail_policy is 'eager' or 'raise', got {self.fail_policy!r}")
        if not 1 <= self.steps <= 3:
            raise ValueError(f"steps is 1 to 3, got {self.steps}")
        if self.mode is not None and self.backend != "inductor":
            raise ValueError(f"mode={self.mode!r} is Inductor's, and backend={self.backend!r} knows none")
        if self.mode is not None and self.options is not None:
            raise ValueError("torch.compile takes a mode or options, not both")
        if self.pad_to_multiple_of is not None and self.pad_to_multiple_of < 1:
            raise ValueError(f"pad_to_multiple_of is at least 1, got {self.pad_to_multiple_of}")
        if self.fullgraph and self.block:
            raise ValueError("fullgraph=True allows no graph break, and block makes one")
        if self.rtol < 0 or self.atol < 0:
            raise ValueError(f"rtol and atol are at least 0, got {self.rtol} and {self.atol}")
        if both := set(self.allow) & set(self.block):
            raise ValueError(f"{sorted(both)[0]!r} is in allow and in block")
        if not self.enabled and (self.allow or self.block or self.fail_policy == "raise"):
            raise ValueError("enabled=False compiles nothing: allow, block and fail_policy='raise' say otherwise")


def maybe_compile(
    model: nn.Module,
    config: CompileConfig,
    sample_batch: Batch,
    *,
    loss: Callable[[Any], Tensor] = lambda output: output.float().square().mean(),
) -> nn.Module:
    """The model, compiled in place if that can be trusted; else unchanged, with a logged warning that says why.

    A tuple is the model's positional arguments, a dict its keyword arguments. The log says at INFO how long the trial
    of a model that is compiled took, and at WARNING with the exception's stack why another is not.

    The trial is made on copies, so that parameters, buffers, gradients, hooks and mode of the model and the tensors of
    the batch are never touched; torch's random streams are put back. It is `config.steps` steps of forward, loss,
    backward, optimizer step and `zero_grad` (without `config.train`: of forward) of a compiled copy, compared with
    those of an eager one: every tensor of the output, every gradient, every buffer. Hooks also fire in the trial, on
    the copies: one with an effect outside of the model has it there, too.

    It does not check that anything was compiled: a frame that Dynamo skips is trusted, since it runs in eager.

    Raises:
        CompileError: it failed, and `config.fail_policy` is "raise".
    """
    if not config.enabled:
        return model
    name, started = type(model).__name__, time.perf_counter()
    if config.pad_to_multiple_of is not None and isinstance(sample_batch, dict):
        sample_batch = pad_tokens(sample_batch, config.pad_to_multiple_of)
    try:
        _try(model, config, sample_batch, loss)
    except Exception as error:
        # Whatever goes wrong with a compiler, training goes on.
        failure = error if isinstance(error, CompileError) else CompileError(f"compile: {_told(error)}")
        if config.fail_policy == "raise":
            raise failure from error
        logger.warning("%s stays eager: %s", name, failure, exc_info=error)
        return model
    _compile(model, config)
    how = f"mode={config.mode!r}" if config.mode is not None else f"backend={config.backend!r}"
    seconds = time.perf_counter() - started
    logger.info("%s is compiled (%s): a trial of %d steps took %.1f s", name, how, config.steps, seconds)
    return model


def pad_tokens(batch: Mapping[str, Any], multiple_of: int) -> dict[str, Any]:
    """A batch whose tensors of tokens, (batch, length), are padded on the right to a multiple of a length.

    So a compiled model sees few lengths. Which are padded, and with what, is in `PADDING`; the rest stays as it is.
    """
    padded = dict(batch)
    for name in PADDING.keys() & batch.keys():
        missing = -batch[name].shape[1] % multiple_of
        padded[name] = nn.functional.pad(batch[name], (0, missing), value=PADDING[name])
    return padded


def _try(model: nn.Module, config: CompileConfig, batch: Batch, loss: Callable[[Any], Tensor]) -> None:
    eager, compiled = copy.deepcopy(model), copy.deepcopy(model)
    _compile(compiled, config)
    # Each from the same random streams, those of every device, which are put back after it.
    with torch.random.fork_rng():
        expected = list(_steps(eager, config, _fresh(batch), loss, stage="eager"))
    with torch.random.fork_rng():
        made = list(_steps(compiled, config, _fresh(batch), loss, stage="trial"))
    if not config.numerics:
        return
    for number, (got, wanted) in enumerate(zip(made, expected, strict=True), start=1):
        if differ := sorted(got.keys() ^ wanted.keys()):
            name = differ[0]
            where = "eager" if name in wanted else "compiled"
            raise CompileError(f"numerics: step {number}: {name} is there only when {where}")
        for name, value in got.items():
            _compare(value, wanted[name], config, where=f"step {number}: {name}")


def _compare(got: Tensor, wanted: Tensor, config: CompileConfig, *, where: str) -> None:
    if (got.shape, got.dtype) != (wanted.shape, wanted.dtype):
        told = f"{tuple(got.shape)} {got.dtype}, eager {tuple(wanted.shape)} {wanted.dtype}"
        raise CompileError(f"numerics: {where} is {told}")
    if torch.allclose(got, wanted, rtol=config.rtol, atol=config.atol, equal_nan=True):
        return
    worst = (got.double() - wanted.double()).abs().max().item()
    raise CompileError(f"numerics: {where} is off by {worst:.2g}")


def _steps(
    model: nn.Module, config: CompileConfig, batch: Batch, loss: Callable[[Any], Tensor], *, stage: str
) -> Iterator[dict[str, Tensor]]:
    """Make the steps; return the outputs, gradients and buffers of each, by name."""
    # What the model had gathered when it was copied is no part of the trial.
    model.zero_grad()
    trained = [each for each in model.parameters() if each.requires_grad] if config.train else []
    optimizer = torch.optim.SGD(trained, lr=1e-3) if trained else None
    for number in range(1, config.steps + 1):
        part = "forward"
        try:
            output = model(**batch) if isinstance(batch, dict) else model(*batch)
            seen = {name: each.detach().clone() for name, each in _tensors(output, "output")}
            if optimizer is not None:
                part = "backward"
                loss(output).backward()
                seen |= {
                    f"gradient of {name}": each.grad.clone()
                    for name, each in model.named_parameters()
                    if each.grad is not None
                }
                part = "optimizer step"
                optimizer.step()
                optimizer.zero_grad()
            seen |= {f"buffer {name}": each.clone() for name, each in model.named_buffers()}
        except Exception as error:
            raise CompileError(f"{stage}: step {number}, {part}: {_told(error)}") from error
        yield seen


def _compile(model: nn.Module, config: CompileConfig) -> None:
    options = {
        "backend": config.backend, "mode": config.mode, "fullgraph": config.fullgraph, "dynamic": config.dynamic,
        "options": None if config.options is None else dict(config.options),
    }  # fmt: skip
    names, left = dict(model.named_modules()), False
    for pattern in (*config.allow, *config.block):
        if not fnmatch.filter(names, pattern):
            raise CompileError(f"compile: no module is named {pattern!r}")
    for name, each in names.items():
        if _matches(name, config.block):
            each.forward = torch.compiler.disable(each.forward)  # type: ignore[method-assign]
        elif _matches(name, config.allow) if config.allow else each is model:
            each.compile(**options)
            left = True
    if not left:
        raise CompileError("compile: block leaves nothing to compile")


def _matches(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatch.fnmatchcase(name, each) for each in patterns)


def _tensors(value: Any, name: str) -> Iterator[tuple[str, Tensor]]:
    """The tensors in tuples, lists and dicts, each with its path."""
    if isinstance(value, Tensor):
        yield name, value
    elif isinstance(value, dict):
        for key, each in value.items():
            yield from _tensors(each, f"{name}[{key!r}]")
    elif isinstance(value, (tuple, list)):
        for index, each in enumerate(value):
            yield from _tensors(each, f"{name}[{index}]")


def _fresh(value: Any) -> Any:
    """A copy of a batch: writes to it and its gradients do not reach the caller's tensors."""
    if isinstance(value, Tensor):
        return value.detach().clone().requires_grad_(value.requires_grad)
    if isinstance(value, dict):
        return {key: _fresh(each) for key, each in value.items()}
    if type(value) in (tuple, list):
        return type(value)(map(_fresh, value))
    return copy.deepcopy(value)


def _told(error: BaseException) -> str:
    return f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else 'no message'}"
