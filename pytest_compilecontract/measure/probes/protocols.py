"""Protocols: the parts that we use of torch's objects without a public type. Does not import torch."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import torch


class Node(Protocol):
    """A node of a Dynamo graph. `meta` is torch's: each of its keys has a type of its own."""

    name: str
    op: str
    target: object
    args: Sequence[object]
    meta: dict[str, Any]


class Nodes(Protocol):
    """A graph of nodes."""

    @property
    def nodes(self) -> Iterable[Node]: ...


class GraphModule(Protocol):
    """A graph as Dynamo hands it to a backend."""

    @property
    def graph(self) -> Nodes: ...


class Named(Protocol):
    """A member of one of torch's enumerations."""

    @property
    def name(self) -> str: ...


class Event(Protocol):
    """A span of the profiler's tree. `typed` is its tag, and fields that each tag has of its own."""

    name: str
    start_tid: int
    start_time_ns: int
    end_time_ns: int

    @property
    def typed(self) -> tuple[Named, Any]: ...

    @property
    def children(self) -> list[Event]: ...


class Aliasing(Protocol):
    """Whether an argument or result of an operator is an alias, and written to."""

    is_write: bool


class Argument(Protocol):
    """An argument, or a result, of an operator's schema."""

    @property
    def name(self) -> str: ...

    @property
    def alias_info(self) -> Aliasing | None: ...


class Schema(Protocol):
    """The schema of an operator."""

    @property
    def arguments(self) -> Sequence[Argument]: ...

    @property
    def returns(self) -> Sequence[Argument]: ...


class Packet(Protocol):
    """The overloads of an operator."""

    __name__: str


class Operator(Protocol):
    """An operator, as a dispatch mode is given it."""

    namespace: str

    def __hash__(self) -> int: ...

    @property
    def tags(self) -> Collection[torch.Tag]: ...

    @property
    def overloadpacket(self) -> Packet: ...

    @property
    def _schema(self) -> Schema: ...

    def __call__(self, *args: object, **kwargs: object) -> object: ...
