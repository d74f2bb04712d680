"""The facts of a ledger, with the user's lines and torch's messages."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial

from pytest_compilecontract.facts.lanes import Lane
from pytest_compilecontract.facts.measurement import (
    Compiled,
    CompileFailure,
    EagerFrame,
    FrameGuards,
    GraphBreak,
    LimitHit,
    Location,
    Recompile,
    RecompileKind,
    merge_breaks,
)

from .attempts import (
    Attempt,
    Graph,
    first_line_of,
    user_function,
)
from .backend_errors import backend_error
from .backends import Compiles, shown_name
from .hints import hint_of
from .messages import parse_message, registry_id
from .reasons import Entry, Inputs, Reason, became_free, branches, guard_text, leading, meaning_of
from .source import Paths, file_of
from .stance import Lost, Stances

DROPPED = "torch._dynamo.reset() dropped the code that was compiled"


def frame_of(attempt: Attempt, paths: Paths) -> Location:
    """The user's function that an attempt was about."""
    return paths.location(attempt.code.co_filename, attempt.code.co_firstlineno, user_function(attempt.name))


def guards_of(attempts: Iterable[Attempt], paths: Paths) -> tuple[FrameGuards, ...] | None:
    """The guards of each cache entry, in the order compiled; None if those of one cannot be read."""
    found: list[FrameGuards] = []
    for each in attempts:
        if each.guards is None:
            return None
        found.append(FrameGuards(frame=frame_of(each, paths), kinds=each.guards, continuation=each.continuation))
    return tuple(found)


def cached(graphs: Iterable[Graph]) -> tuple[list[dict[str, int]], list[dict[str, int]]]:
    """How each graph raised the counters of torch's caches: those of Inductor, and those of other backends."""
    inductor, others = list[dict[str, int]](), list[dict[str, int]]()
    for graph in graphs:
        if graph.kept and graph.operations:
            backend = shown_name(graph.handed.backend) if graph.handed is not None else ""
            (inductor if backend == "inductor" else others).append(graph.rises)
    return inductor, others


class Told:
    """The facts of a ledger, read at any time."""

    def __init__(
        self, attempts: list[Attempt], loose: list[Graph], *, stances: Stances, compiles: Compiles, paths: Paths
    ) -> None:
        self._attempts = attempts
        self._loose = loose
        self._stances = stances
        self._compiles = compiles
        self._paths = paths
        self._frame = partial(frame_of, paths=paths)

    @property
    def graphs(self) -> list[Graph]:
        """All graphs; those without a known attempt come last."""
        return [graph for attempt in self._attempts for graph in attempt.graphs] + self._loose

    def compiles(self, lane: Lane | None) -> tuple[Compiled, ...]:
        """The arguments of each torch.compile that passed graphs to a backend, in the order of their first graphs."""
        found: dict[tuple[int, bool], tuple[Attempt | None, list[Graph]]] = {}
        pairs = [(attempt, graph) for attempt in self._attempts for graph in attempt.graphs]
        for attempt, graph in (*pairs, *((None, graph) for graph in self._loose)):
            if graph.handed is not None:
                key = (id(graph.handed.backend), attempt is not None and attempt.fullgraph)
                found.setdefault(key, (attempt, []))[1].append(graph)
        told: list[Compiled] = []
        for (_, fullgraph), (attempt, graphs) in found.items():
            assert graphs[0].handed is not None
            frame = self._frame(attempt) if attempt is not None else None
            handed = next((each.handed for each in graphs if each.handed and each.handed.instead), graphs[0].handed)
            told.append(self._compiles.told(handed, lane, fullgraph=fullgraph, graphs=len(graphs), frame=frame))
        return tuple(told)

    def classes(self) -> frozenset[str]:
        """The module classes whose operations the graphs contain; known if `watches_classes` was set."""
        found = {name for graph in self.graphs if graph.kept for name in graph.classes}
        # A frame's own module is in no operation's stack: nothing called it.
        found |= {
            each.owner for each in self._attempts if each.owner and any(graph.operations for graph in each.graphs)
        }
        return frozenset(found)

    def recompiles(self) -> tuple[Recompile, ...]:
        return tuple(self._recompile(each) for each in self._attempts if each.installed and each.recompiles)

    def dropped(self) -> tuple[Recompile, ...]:
        """What was compiled again for the same compiled callable after a reset dropped its code."""
        return tuple(self._recompile(each) for each in self._attempts if each.after_reset)

    def graph_breaks(self) -> tuple[GraphBreak, ...]:
        return merge_breaks([self.break_of(each) for each in self.broken()])

    def broken(self) -> list[Attempt]:
        """Attempts that ended with a graph break; a break under fullgraph is an error instead."""
        return [each for each in self._attempts if each.broke is not None and not each.refused and not each.fullgraph]

    def eager_frames(self) -> tuple[EagerFrame, ...]:
        return tuple(
            self._eager_frame(each)
            for each in self._attempts
            if not each.installed and not each.refused and not each.forbidden
        )

    def eager_by_request(self) -> tuple[EagerFrame, ...]:
        """Frames that ran in eager, or partly, because of a stance or a setting."""
        return tuple(map(self._eager_by_request, self._stances.lost()))

    def _eager_by_request(self, lost: Lost) -> EagerFrame:
        code = lost.code
        line = (code.co_filename, code.co_firstlineno, code.co_name) if code is not None else ("", 0, lost.name)
        return EagerFrame(frame=self._paths.location(*line), cause="by request", reason=lost.reason)

    def limit_hits(self) -> tuple[LimitHit, ...]:
        return tuple(self._limit_hit(each) for each in self._attempts if each.refused)

    def failures(self) -> tuple[CompileFailure, ...]:
        """Backends that raised."""
        return tuple(
            self._failure(each)
            for each in self._attempts
            if each.error is not None and any(not graph.kept and not graph.restarted for graph in each.graphs)
        )

    def suppressed(self) -> tuple[CompileFailure, ...]:
        return tuple(self._failure(each) for each in self._attempts if each.suppressed)

    def _recompile(self, attempt: Attempt) -> Recompile:
        lead = self._lead(attempt)
        kind = "reset" if attempt.after_reset else self._recompile_kind(attempt, lead)
        return Recompile(
            frame=self._frame(attempt),
            kind=kind,
            guard=DROPPED if attempt.after_reset else self._guard(lead),
            guards=tuple(self._paths.text(guard_text(reason)) for reason in attempt.reasons),
            location=self._guard_location(attempt, lead),
            meaning="" if attempt.after_reset or lead is None else self._paths.text(meaning_of(lead.text)),
            continuation=attempt.continuation,
            module=attempt.wrapped,
            entries=None if attempt.after_reset else attempt.entries + 1,
            limit=None if attempt.after_reset else attempt.limit,
            hint=""
            if attempt.after_reset or lead is None
            else hint_of(kind, lead.text, dynamic=self._compiles.dynamic([each.handed for each in attempt.graphs])),
        )

    def _lead(self, attempt: Attempt) -> Reason | None:
        """The reason that explains why no older entry of the frame matched."""
        return leading(attempt.reasons, lambda entry: self._entry(attempt, entry), attempt.first)

    def _entry(self, attempt: Attempt, id: str) -> Entry:
        made = self._made(attempt, id)
        return Entry() if made is None else Entry(inputs=made.inputs, same_owner=attempt.made_as(made))

    def _made(self, attempt: Attempt, id: str | None) -> Attempt | None:
        """The attempt that made an older entry of the same frame; ids start anew after a reset."""
        for each in self._attempts:
            if each.id == id and each.resets == attempt.resets and each.code is attempt.code and each.installed:
                return each
        return None

    def _guard(self, lead: Reason | None) -> str:
        return self._paths.text(lead.guard) if lead is not None else ""

    def _recompile_kind(self, attempt: Attempt, lead: Reason | None) -> RecompileKind:
        if lead is None:
            return "wrapper" if attempt.wrapped is not None else "instance" if attempt.new_instance else "guard"
        if "Cache line invalidated" in lead.text:
            return "invalidated"
        if "BACKEND_MATCH" in lead.text:
            return "backend"
        made = self._made(attempt, lead.entry)
        if attempt.wrapped is not None and (made is None or not attempt.made_as(made)):
            return "wrapper"
        if became_free(lead, attempt.inputs, made.inputs if made is not None else Inputs()):
            return "dynamic"
        if attempt.new_instance:
            return "instance"
        return "guard"

    def _guard_location(self, attempt: Attempt, lead: Reason | None) -> Location | None:
        if lead is None:
            return None
        traces = re.findall(r'^\s*File "(.+?)", line (\d+), in (\S+)', lead.text, re.MULTILINE)
        if traces:
            file, line, function = traces[self._innermost([each[0] for each in traces])]
            return self._paths.location(file, int(line), user_function(function))
        for shortened, line, function, source in reversed(branches(lead.text)):
            if found := file_of(shortened, line, source, (attempt.code.co_filename,)):
                return self._paths.location(found, line, user_function(function), source)
        return None

    def _innermost(self, files: list[str]) -> int:
        """The index of the innermost frame of the project in a stack; the last if there is none."""
        return max((at for at, file in enumerate(files) if not self._paths.is_out_of_reach(file)), default=-1)

    def break_of(self, attempt: Attempt) -> GraphBreak:
        """The graph break that an attempt ended with."""
        assert attempt.broke is not None
        if attempt.caller is not None:
            return replace(self.break_of(attempt.caller), whole_frame=not attempt.installed)
        message = parse_message(self._paths.text(attempt.broke.message))
        frames = list(attempt.broke.stack)
        place = self._innermost([file for file, *_ in frames])
        # What torch called of its own below the place tells what was meant there; what it called of Python's does not.
        if not all(self._paths.is_pythons(file) for file, *_ in frames):
            while self._paths.is_pythons(frames[-1][0]):
                frames.pop()
        stack = tuple(
            self._paths.location(file, line, user_function(function), source) for file, line, function, source in frames
        )
        backend = backend_error(attempt.error, self._paths) if attempt.error is not None else None
        return GraphBreak(
            location=stack[place] if stack else self._frame(attempt),
            kind=message.kind,
            reason=f"{message.reason}: {backend.raised}" if backend is not None else message.reason,
            explanation=message.explanation,
            hints=(*((backend.at,) if backend and backend.at else ()), *self._earlier(attempt), *message.hints),
            registry_id=message.registry_id or registry_id(message.kind),
            whole_frame=not attempt.installed,
            stacks=(stack,) if stack else (),
        )

    def _earlier(self, attempt: Attempt) -> Iterator[str]:
        """A hint for a break in a frame in which torch broke before."""
        if (earlier := attempt.earlier) is not None and earlier != attempt.broke:
            what = parse_message(self._paths.text(earlier.message)).reason
            where = f" at {self._paths.location(*earlier.stack[-1])}" if earlier.stack else ""
            yield f"Dynamo broke in this frame before, and this break may follow from it: {what}{where}"

    def _eager_frame(self, attempt: Attempt) -> EagerFrame:
        frame = self._frame(attempt)
        error = attempt.error
        if attempt.excused and error is not None:
            told = self.break_of(attempt).reason if attempt.broke is not None else first_line_of(error)
            return EagerFrame(
                frame=frame,
                cause="raises in eager too",
                reason=self._paths.text(told),
                continuation=attempt.continuation,
            )
        if error is None:
            reason = "Dynamo traced no tensor operation in it"
            if attempt.has_code:
                reason += " in this call, and skips it in all later calls, even if it was compiled before"
            return EagerFrame(
                frame=frame,
                cause="nothing more to compile" if attempt.has_code else "nothing to compile",
                reason=reason,
                continuation=attempt.continuation,
            )
        backend = backend_error(error, self._paths)
        at = f" ({backend.at})" if backend is not None and backend.at else ""
        broke = self.break_of(attempt) if attempt.broke is not None else None
        if broke is not None and not attempt.fullgraph:
            return EagerFrame(
                frame=frame,
                cause="graph break",
                reason=broke.reason + at,
                location=broke.location,
                continuation=attempt.continuation,
            )
        return EagerFrame(
            frame=frame,
            cause="suppressed error" if attempt.suppressed else "error",
            reason=self._paths.text(f"{type(error).__name__}: {first_line_of(error)}") + at,
            continuation=attempt.continuation,
        )

    def _limit_hit(self, attempt: Attempt) -> LimitHit:
        cause = attempt.error.__cause__ or attempt.error if attempt.error else None
        named = re.search(r"(\w*(?:recompile|cache_size)_limit)\b", str(cause))
        return LimitHit(
            frame=self._frame(attempt),
            limit=named.group(1) if named else "recompile_limit",
            reason=self._paths.text(first_line_of(cause)) if cause else "",
            guard=self._guard(self._lead(attempt)),
            continuation=attempt.continuation,
        )

    def _failure(self, attempt: Attempt) -> CompileFailure:
        assert attempt.error is not None
        error = attempt.error
        if (backend := backend_error(error, self._paths)) is not None:
            message = f"{backend.said} ({backend.at})" if backend.at else backend.said
            return CompileFailure(frame=self._frame(attempt), type=backend.exception, message=message)
        inner = error.__cause__ or error
        message = self._paths.text(first_line_of(inner))
        return CompileFailure(frame=self._frame(attempt), type=type(inner).__name__, message=message)
