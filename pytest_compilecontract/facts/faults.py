"""Faults: one small class each, with what it does to a compiled program and what should fail because of it.

A fault of an output or a gradient changes a tensor that it is given. The others are only named here: `planting`
carries them out, where the program runs. No torch here: tensors bring their own methods.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, ClassVar, Literal, Protocol, Self, TypeVar

from pytest_compilecontract.errors import UsageError

from .verdict import NO_EXCEPTION, STEADY

# Which calls of the program are wrong.
Calls = Literal["every", "third", "last"]
NUMERICS = "numerics"
RAISES = NO_EXCEPTION
# What differs where a compiled program returns other numbers.
VALUES = frozenset(("value", "nan"))
# And where it writes to what it should not: only one of the runs has changed it then.
WRITTEN = VALUES | {"input changed", "structure"}


class _Device(Protocol):
    @property
    def type(self) -> str: ...


class Tensor(Protocol):
    """The methods of a tensor that faults use. `Any` stands for arguments for which torch takes several types."""

    @property
    def dtype(self) -> object: ...
    @property
    def device(self) -> _Device: ...
    @property
    def shape(self) -> Sequence[int]: ...
    @property
    def requires_grad(self) -> bool: ...

    def dim(self) -> int: ...
    def element_size(self) -> int: ...
    def is_complex(self) -> bool: ...
    def is_floating_point(self) -> bool: ...
    def item(self) -> float: ...
    def numel(self) -> int: ...

    def __getitem__(self, index: Any) -> Self: ...
    def __setitem__(self, index: Any, value: Any) -> None: ...
    def __add__(self, other: Any) -> Self: ...
    def __mul__(self, other: Any) -> Self: ...
    def clone(self) -> Self: ...
    def copy_(self, source: Any) -> Self: ...
    def detach(self) -> Self: ...
    def double(self) -> Self: ...
    def fill_(self, value: Any) -> Self: ...
    def float(self) -> Self: ...
    def half(self) -> Self: ...
    def mean(self) -> Self: ...
    def narrow(self, dim: int, start: int, length: int) -> Self: ...
    def repeat(self, *sizes: int) -> Self: ...
    def reshape(self, size: int) -> Self: ...
    def roll(self, shifts: Any, dims: Any) -> Self: ...
    def select(self, dim: int, index: int) -> Self: ...
    def sqrt(self) -> Self: ...
    def square(self) -> Self: ...
    def to(self, target: Any) -> Self: ...
    def unsqueeze(self, dim: int) -> Self: ...
    def zero_(self) -> Self: ...


T = TypeVar("T", bound=Tensor)


class Fault:
    """A fault that can be planted.

    `kinds`, `limits` and `metrics` are the right reasons to fail: differences from eager, limits, and metrics that
    drift from a baseline. `calls` are the calls that it makes wrong.
    """

    name: ClassVar[str]
    what: ClassVar[str]
    kinds: ClassVar[frozenset[str]] = frozenset()
    limits: ClassVar[tuple[str, ...]] = ()
    metrics: ClassVar[tuple[str, ...]] = ("numerics", "errors")
    raised: ClassVar[tuple[str, ...]] = ()
    calls: ClassVar[Calls] = "every"

    def __repr__(self) -> str:
        return f"<fault {self.name}>"


# Outputs


class OutputFault(Fault):
    """Replaces the first output that it fits by another tensor."""

    kinds = VALUES
    # Other numbers may make the program raise, where it looks at them: eager does not.
    limits = (RAISES,)
    # Whether the gradient stays what it was: the new tensor is no function of the old one then.
    keeps_gradient: ClassVar[bool] = True

    def fits(self, tensor: Tensor) -> bool:
        """Whether the fault can be put into such a tensor."""
        return bool(tensor.numel()) and _is_number(tensor)

    def change(self, tensor: T) -> T:
        """The tensor with the fault in it: a new tensor, since the given one may be in use elsewhere."""
        raise NotImplementedError


class NanElement(OutputFault):
    name = "nan-element"
    what = "NaN in one element of an output"

    def change(self, tensor: T) -> T:
        return _with_first(tensor, float("nan"))


class NanAll(OutputFault):
    name = "nan-all"
    what = "NaN in all of an output"

    def change(self, tensor: T) -> T:
        return tensor.clone().fill_(float("nan"))


class NanLast(NanElement):
    name = "nan-last"
    what = "NaN in one element, in the last call alone"
    calls = "last"


class Inf(OutputFault):
    name = "inf"
    what = "inf in one element of an output"

    def change(self, tensor: T) -> T:
        return _with_first(tensor, float("inf"))


class Factor(OutputFault):
    name = "factor"
    what = "an output times 1.01"

    def change(self, tensor: T) -> T:
        return (tensor * 1.01).to(tensor.dtype)


class ElementOff(OutputFault):
    name = "element-off"
    what = "one element of an output off by the size of the others"

    def fits(self, tensor: Tensor) -> bool:
        return bool(tensor.numel()) and not _is_bool(tensor)

    def change(self, tensor: T) -> T:
        first = tensor.reshape(-1)[0]
        by = 1 if not _is_number(tensor) else tensor.detach().double().square().mean().sqrt().item() or 1.0
        return _with_first(tensor, first + by)


class Zeros(OutputFault):
    name = "zeros"
    what = "zeros in place of an output"

    def fits(self, tensor: Tensor) -> bool:
        return bool(tensor.numel())

    def change(self, tensor: T) -> T:
        return tensor.clone().zero_()


class RowsRolled(OutputFault):
    name = "rows-rolled"
    what = "the rows of an output, rolled by one"

    def fits(self, tensor: Tensor) -> bool:
        return bool(tensor.numel()) and _longest(tensor) is not None

    def change(self, tensor: T) -> T:
        return tensor.clone().copy_(tensor.roll(1, _longest(tensor)))


class HalfInside(OutputFault):
    name = "float16-inside"
    what = "an output rounded to float16 on its way"

    def fits(self, tensor: Tensor) -> bool:
        return bool(tensor.numel()) and bool(tensor.is_floating_point())

    def change(self, tensor: T) -> T:
        return tensor.clone().copy_(tensor.half())


class ThirdCall(Factor):
    name = "third-call"
    what = "an output times 2, in the third call alone"
    calls = "third"

    def change(self, tensor: T) -> T:
        return tensor * 2


class FactFault(OutputFault):
    """An output with the right numbers and another property, such as dtype or stride."""

    keeps_gradient = False


class OtherDtype(FactFault):
    name = "dtype"
    what = "an output of another dtype"
    kinds = frozenset(("dtype", "type"))

    def fits(self, tensor: Tensor) -> bool:
        return bool(tensor.numel()) and bool(tensor.is_floating_point())

    def change(self, tensor: T) -> T:
        return tensor.double() if tensor.element_size() == 4 else tensor.float()


class OtherStride(FactFault):
    name = "stride"
    what = "an output with another stride"
    kinds = frozenset(("stride",))

    def fits(self, tensor: Tensor) -> bool:
        # The strides of a dimension of size 1 say nothing.
        return bool(tensor.numel() > 1)

    def change(self, tensor: T) -> T:
        return tensor.unsqueeze(-1).repeat(*[1] * tensor.dim(), 2).select(-1, 0)


class OtherShape(FactFault):
    name = "shape"
    what = "an output without its last row"
    kinds = VALUES | {"shape", "structure"}

    def fits(self, tensor: Tensor) -> bool:
        return _longest(tensor) is not None

    def change(self, tensor: T) -> T:
        at = _longest(tensor)
        assert at is not None, "it does not fit"
        return tensor.narrow(at, 0, tensor.shape[at] - 1).clone()


class OtherRank(FactFault):
    name = "rank"
    what = "an output with one more dimension"
    kinds = VALUES | {"shape", "structure"}

    def fits(self, tensor: Tensor) -> bool:
        return bool(tensor.numel())

    def change(self, tensor: T) -> T:
        return tensor.unsqueeze(0).clone()


class OtherDevice(FactFault):
    name = "device"
    what = "an output on another device"
    kinds = frozenset(("device",))

    def change(self, tensor: T) -> T:
        # A processor has no other than the one that holds no numbers.
        return tensor.to("meta" if tensor.device.type == "cpu" else "cpu")


class Detached(FactFault):
    name = "detached"
    what = "an output detached from its gradient"
    kinds = VALUES | {"requires_grad", "grad_fn", "structure"}

    def fits(self, tensor: Tensor) -> bool:
        return bool(tensor.requires_grad)

    def change(self, tensor: T) -> T:
        return tensor.detach()


class Stale(OutputFault):
    name = "stale-constant"
    what = "an output of the first call, returned again by every later one"

    def fits(self, tensor: Tensor) -> bool:
        return bool(tensor.numel())

    def change(self, tensor: T) -> T:
        # What the first call gave, nobody but who plants it knows.
        return tensor.clone()


# What runs around an output


class Around(Fault):
    """A fault in what a compiled graph does besides computing its outputs."""


class InputWritten(Around):
    name = "input-written"
    what = "an input of a graph written to"
    kinds = WRITTEN
    limits = (RAISES,)


class ParameterWritten(Around):
    name = "parameter-written"
    what = "a parameter written to"
    kinds = WRITTEN
    limits = (RAISES,)


class AliasesInput(Around):
    name = "alias"
    what = "an output that shares the memory of an input"
    kinds = WRITTEN | {"alias"}
    limits = (RAISES,)


class AliasLost(Around):
    name = "alias-lost"
    what = "a copy in place of an output that shares an input's memory"
    kinds = WRITTEN | {"alias"}


class NotUpdated(Around):
    name = "not-updated"
    what = "a buffer, or another input, that a graph writes to, left unchanged"
    kinds = WRITTEN


class RandomDrawn(Around):
    name = "random-drawn"
    what = "one more random number drawn"
    kinds = VALUES | {"random numbers"}


class Raises(Around):
    name = "raises"
    what = "a compiled call that raises"
    limits = (RAISES,)
    raised = ("PlantedError",)


# Gradients


class GradientFault(Fault):
    """Replaces the gradient that arrives at an output by another one."""

    kinds = VALUES | {"structure"}
    limits = (RAISES,)

    def gradient(self, grad: T) -> T | None:
        """The gradient with the fault in it."""
        raise NotImplementedError


class GradDoubled(GradientFault):
    name = "grad-doubled"
    what = "a gradient doubled"

    def gradient(self, grad: T) -> T | None:
        return grad * 2


class GradOff(GradientFault):
    name = "grad-off"
    what = "a gradient times 1.01"

    def gradient(self, grad: T) -> T | None:
        return (grad * 1.01).to(grad.dtype)


class GradNan(GradientFault):
    name = "grad-nan"
    what = "NaN in one element of a gradient"

    def gradient(self, grad: T) -> T | None:
        return _with_first(grad, float("nan"))


class GradMissing(GradientFault):
    name = "grad-missing"
    what = "no gradient"
    kinds = VALUES | {"structure", "type"}

    def gradient(self, grad: T) -> T | None:
        return None


# Dynamo

# What torch raises under fullgraph=True, and where it was told to refuse another compile.
UNSUPPORTED = ("Unsupported",)
REFUSED = ("RecompileError", "FailOnRecompileLimitHit", "RecompileLimitExceeded", "RuntimeError")


class FrameFault(Fault):
    """A fault in how Dynamo compiles what is given to torch.compile."""


class GraphBreakMore(FrameFault):
    name = "graph-break"
    what = "one more graph break"
    limits = ("max_graph_breaks", "fullgraph", RAISES)
    raised = UNSUPPORTED
    metrics = ("graph_breaks",)


class FrameGivenBack(FrameFault):
    name = "eager-frame"
    what = "a frame that falls back to eager"
    limits = ("max_eager_frames", "max_eager_ops", "fullgraph", RAISES)
    raised = UNSUPPORTED
    metrics = ("eager_frames",)


class RecompileMore(FrameFault):
    name = "recompile"
    what = "one more recompile"
    # Of each recompile there is a graph.
    limits = ("max_recompiles", "max_graphs", RAISES)
    raised = REFUSED
    metrics = ("recompiles",)


class LimitReached(FrameFault):
    name = "recompile-limit"
    what = "the recompile limit reached"
    limits = ("allow_recompile_limit", STEADY, RAISES)
    raised = (*REFUSED, *UNSUPPORTED)
    metrics = ("limit_hits", "eager_frames")


# A CUDA device


class DeviceFault(Fault):
    """A fault that only a CUDA device shows."""


class HostSync(DeviceFault):
    name = "host-sync"
    what = "a host sync in each call"
    limits = ("max_host_syncs",)
    metrics = ("host_syncs",)


class KernelMore(DeviceFault):
    name = "kernel"
    what = "one more kernel in each call"
    limits = ("max_kernels", "max_kernels_ratio")
    metrics = ("kernels_a_step",)


class MemoryKept(DeviceFault):
    name = "memory-kept"
    what = "one MiB leaked by each call"
    limits = ("max_memory_growth", "max_memory_ratio")
    metrics = ("peak_bytes",)


class GraphSkipped(DeviceFault):
    name = "cuda-graph-skipped"
    what = "CUDA graphs that are not recorded"
    limits = ("cudagraphs",)
    metrics = ("cuda_graphs",)


FAULTS: tuple[Fault, ...] = tuple(
    fault()
    for fault in (
        NanElement,
        NanAll,
        NanLast,
        Inf,
        Factor,
        ElementOff,
        Zeros,
        RowsRolled,
        HalfInside,
        OtherDtype,
        OtherStride,
        OtherShape,
        OtherRank,
        OtherDevice,
        InputWritten,
        ParameterWritten,
        AliasesInput,
        AliasLost,
        Detached,
        GradDoubled,
        GradOff,
        GradNan,
        GradMissing,
        RandomDrawn,
        NotUpdated,
        Raises,
        ThirdCall,
        Stale,
        GraphBreakMore,
        FrameGivenBack,
        RecompileMore,
        LimitReached,
        HostSync,
        KernelMore,
        MemoryKept,
        GraphSkipped,
    )
)
KNOWN: dict[str, Fault] = {each.name: each for each in FAULTS}


def chosen(names: Sequence[str]) -> tuple[Fault, ...]:
    """The faults with these names, in the order of `KNOWN`; without names, all of them.

    Raises:
        UsageError: an unknown name.
    """
    for name in names:
        if name not in KNOWN:
            raise UsageError(f"unknown fault {name!r} (known faults: {', '.join(KNOWN)})")
    return tuple(each for each in FAULTS if not names or each.name in names)


def listed(faults: Iterable[Fault]) -> str:
    return ", ".join(each.name for each in faults)


def _is_number(tensor: Tensor) -> bool:
    return bool(tensor.is_floating_point() or tensor.is_complex())


def _is_bool(tensor: Tensor) -> bool:
    return str(tensor.dtype) == "torch.bool"


def _longest(tensor: Tensor) -> int | None:
    """The first dimension of more than one row; None where there is none."""
    return next((at for at, size in enumerate(tensor.shape) if size > 1), None)


def _with_first(tensor: T, value: T | float) -> T:
    """A copy with another first element; where elements share their memory, in a tensor of its own."""
    copy = tensor.detach().clone()
    copy[(0,) * copy.dim()] = value
    return copy
