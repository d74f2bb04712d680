"""Hunting: sequences of calls that hypothesis draws, each held as a contract of its own, and the shortest that fails.

Each sequence starts without compiled code and from the target's own state, as a contract does, so that none depends on
another. A limit is the bound of one sequence, whatever the number of sequences.
"""

from __future__ import annotations

import ast
import linecache
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from types import FrameType
from typing import Any

import torch

from pytest_compilecontract import clock
from pytest_compilecontract.errors import UsageError, message_of
from pytest_compilecontract.facts.limits import Limits
from pytest_compilecontract.facts.measurement import Hunted, Measurement
from pytest_compilecontract.judge.limits import judge
from pytest_compilecontract.judge.verdicts import doubts

from .counterexample import Written, test_of, written
from .endings import BrokenLane
from .runner import Held
from .shapes import Moded, as_call, strategies

Sequences = Sequence[Moded]
# Where `hypothesis.settings` notes itself on the test that it decorates; it decorates none twice.
SETTINGS = "_hypothesis_internal_use_settings"


class _Fails(Exception):  # noqa: N818 - what hypothesis is to see; nobody else does
    """A sequence that violates the contract; a subclass for each reason, so that shrinking does not mix them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Budget:
    """The limits of a hunt: sequences, calls in each, seconds in total. `derandomize` None: hypothesis' own setting.

    `seconds` limits the search, and shrinking separately.
    """

    sequences: int
    calls: int
    seconds: float
    derandomize: bool | None = None

    def __post_init__(self) -> None:
        for name in ("sequences", "calls"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise UsageError(f"compile_lane.hunt: {name}: expected an int of at least 1, got {value!r}")
        if isinstance(self.seconds, bool) or not isinstance(self.seconds, (int, float)) or not self.seconds > 0:
            raise UsageError(f"compile_lane.hunt: seconds: expected a number above 0, got {self.seconds!r}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Where:
    """The target as written in the source, and the name under which hypothesis stores examples."""

    target: str
    name: str

    @classmethod
    def of(cls, frame: FrameType, *, lane: str) -> Where:
        name = f"hunt_{lane}_{frame.f_code.co_qualname}"
        return cls(target=target_text(frame), name="".join(each if each.isalnum() else "_" for each in name))


@dataclass(kw_only=True, slots=True)
class Hunt:
    """The sequences measured so far. `why` says what a measurement violates, empty if nothing."""

    hold: Callable[[Sequences], Held]
    why: Callable[[Measurement], tuple[str, ...]]
    budget: Budget
    where: Where
    held: int = 0
    calls: int = 0
    refused: str = ""
    kept: Measurement | None = None
    failing: tuple[Held, Written] | None = None
    _ends: float = 0.0
    _known: dict[str, tuple[Held, tuple[str, ...]]] = field(default_factory=dict)
    _kinds: dict[tuple[str, ...], type[_Fails]] = field(default_factory=dict)

    def through(self, drawn: object) -> Held:
        """Search the sequences that `drawn` gives; return the measurement of the shortest one that fails, or else of
        the one that compiled most.

        Raises:
            UsageError: hypothesis is not installed, or nothing could be drawn, or be run.
        """
        st = strategies()
        from hypothesis import HealthCheck, Phase, Verbosity, errors, given, reject, settings

        if not isinstance(drawn, st.SearchStrategy):
            raise UsageError(f"compile_lane.hunt takes a strategy of hypothesis, got {type(drawn).__name__!r}")

        def look(sequence: list[object]) -> None:
            made = _sequence(sequence)
            # A strategy may draw no call at all: nothing is held, and another is drawn.
            if not made or not self._takes(made):
                reject()

        look.__name__ = look.__qualname__ = self.where.name
        chosen: dict[str, Any] = {
            "max_examples": self.budget.sequences,
            "deadline": None,
            "suppress_health_check": list(HealthCheck),
            "report_multiple_bugs": False,
            # Varies what it has made short, for a report that nobody sees.
            "phases": [each for each in settings().phases if each is not Phase.explain],
            "verbosity": Verbosity.quiet,
            "print_blob": False,
        }
        if self.budget.derandomize is not None:
            chosen["derandomize"] = self.budget.derandomize
        if self.budget.derandomize:
            chosen["database"] = None
        sequences = st.lists(drawn, min_size=1, max_size=self.budget.calls)
        self._ends = clock.seconds() + self.budget.seconds
        doubts: tuple[str, ...] = ()
        try:
            search = settings(**chosen)(given(sequences)(look))  # type: ignore[no-untyped-call]
            search()
        except _Fails:
            pass
        except errors.Unsatisfiable:
            self._refuse_nothing()
        except errors.InvalidArgument as error:
            # hypothesis adds to what it says, a line each.
            said = message_of(error).partition("\n")[0].removesuffix(".")
            raise UsageError(f"compile_lane.hunt: hypothesis could draw nothing from this strategy: {said}") from error
        except errors.Flaky:
            # What nothing is known of is not run any more once time is over.
            doubts = () if self._is_over else ("a sequence of calls that failed did not fail when repeated",)
        if self.kept is None and self.failing is None:
            self._refuse_nothing()
        return self._told(doubts)

    def _refuse_nothing(self) -> None:
        raise UsageError(f"compile_lane.hunt: nothing that was drawn could be run: {self.refused or 'nothing'}")

    def _told(self, doubts: tuple[str, ...]) -> Held:
        hunted = Hunted(sequences=self.held, calls=self.calls)
        if self.held < self.budget.sequences and self.failing is None and clock.seconds() >= self._ends:
            hunted = replace(hunted, ended=f"after {self.budget.seconds:g} s")
        if self.failing is None:
            assert self.kept is not None
            return Held(measurement=replace(self.kept, hunted=hunted))
        held, made = self.failing
        hunted = replace(hunted, counterexample=test_of(self.where.target, made))
        measured = replace(held.measurement, hunted=hunted, doubts=(*held.measurement.doubts, *doubts))
        return replace(held, measurement=measured)

    def _takes(self, sequence: Sequences) -> bool:
        """Check a sequence; return whether eager could run it.

        Raises:
            _Fails: it is not held.
        """
        # Before it is held: the calls are those that were drawn.
        made = written(sequence, beside=self.where.target)
        known = self._known.get(made.key) if made.key is not None else None
        if known is None:
            if self._is_over:
                return True
            known = self._looked_at(sequence, made.key)
        held, why = known
        if held.error is not None and not isinstance(held.error, BrokenLane):
            # Eager takes no such call, compiled or not.
            self.refused = f"{type(held.error).__name__}: {held.error}"
            return False
        if why:
            self.failing = (held, made)
            raise self._kinds.setdefault(why, type("Fails", (_Fails,), {}))(", ".join(why))
        return True

    @property
    def _is_over(self) -> bool:
        # What failed is made short for as long once more.
        extra = 0.0 if self.failing is None else self.budget.seconds
        return clock.seconds() > self._ends + extra

    def _looked_at(self, sequence: Sequences, key: str | None) -> tuple[Held, tuple[str, ...]]:
        held = self.hold(sequence)
        why = self.why(held.measurement)
        self.held += 1
        self.calls += len(sequence)
        if held.error is None and not why and _compiled(held.measurement) > _compiled(self.kept):
            self.kept = held.measurement
        if key is not None:
            self._known[key] = (held, why)
        return held, why


class NotHeld(BrokenLane):
    """An example that hypothesis drew for a test is not held; its measurement is in `examples`."""

    def __init__(self, why: str, examples: Examples) -> None:
        super().__init__(why)
        self.examples = examples


class Examples(list[Measurement]):
    """The measurements of a test that hypothesis calls once per example: each is judged by itself.

    Keeps the one that is not held, or else the one that compiled most.
    """

    def __init__(self, limits: Limits, *, reference: bool) -> None:
        super().__init__()
        self._limits = limits
        self._reference = reference
        self._made = 0
        self._calls = 0
        self._fails = False

    def append(self, measurement: Measurement) -> None:
        """Judge what an example showed.

        Raises:
            NotHeld: it is not held.
        """
        self._made += 1
        self._calls += len(measurement.calls or ())
        # What eager raises too, the test raises by itself.
        why = () if measurement.raised_in_both else not_held(self._limits, measurement, reference=self._reference)
        # What follows one that is not held is made to shorten it, or of a test that went on all the same.
        if why or not self or (not self._fails and _compiled(measurement) > _compiled(self[0])):
            self[:] = [measurement]
        self._fails |= bool(why)
        self[0] = replace(self[0], hunted=Hunted(sequences=self._made, calls=self._calls))
        if why:
            raise NotHeld(", ".join(why), self)

    def tell(self, error: BaseException) -> None:
        """Keep what hypothesis reports about the shrunk example."""
        notes = [line for note in getattr(error, "__notes__", ()) for line in str(note).splitlines()]
        # The test's own object and its lane say nothing, and are another in each run.
        # In CI it adds a blank line and how to run the example again, which is kept.
        said = tuple(line for line in notes if line and not line.strip().startswith(("self=<", "compile_lane=<")))
        if self and self[0].hunted is not None and said:
            self[0] = replace(self[0], hunted=replace(self[0].hunted, counterexample=said))


def draws_examples(test: object) -> bool:
    """Whether hypothesis calls this test once per example, with the same `compile_lane`."""
    return bool(getattr(test, "is_hypothesis_test", False))


def allow_fixture(test: object) -> None:
    """Have hypothesis accept how a contract runs: a fixture for all examples, which take time, and a run per lane.

    Its "explain" phase is turned off: the lines that it would name are this plugin's.
    """
    from hypothesis import HealthCheck, Phase, settings

    function = getattr(test, "__func__", test)
    chosen = getattr(function, SETTINGS, None) or settings()
    checks = {
        *chosen.suppress_health_check,
        HealthCheck.function_scoped_fixture,
        HealthCheck.too_slow,
        HealthCheck.differing_executors,
    }
    phases = [each for each in chosen.phases if each is not Phase.explain]
    made = settings(chosen, suppress_health_check=sorted(checks, key=str), phases=phases, deadline=None)
    setattr(function, SETTINGS, made)


def _sequence(drawn: Sequence[object]) -> Sequences:
    """The calls that were drawn, lists of calls flattened."""
    calls = [each for part in drawn for each in (part if type(part) is list else [part])]
    return [each if isinstance(each, Moded) else Moded(made=as_call(each)) for each in calls]


def _compiled(measurement: Measurement | None) -> int:
    """How much was compiled, as a sort key."""
    return -1 if measurement is None else (measurement.graphs or 0) + len(measurement.recompiles or ())


def not_held(limits: Limits, measurement: Measurement, *, reference: bool) -> tuple[str, ...]:
    """What a measurement violates: the names of the limits, or else why it is uncertain."""
    if reference:
        return ()
    violations = judge(limits, measurement, torch_version=torch.__version__)
    return tuple(each.name for each in violations) or doubts(limits, measurement)


def target_text(frame: FrameType | None) -> str:
    """The first argument of the call of `hunt` in a frame, as written in the source, or a placeholder."""
    if frame is None:
        return "target"
    source = "".join(linecache.getlines(frame.f_code.co_filename))
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return "target"
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr == "hunt"
            and node.args
            and node.lineno <= frame.f_lineno <= (node.end_lineno or node.lineno)
        ):
            return ast.unparse(node.args[0])
    return "target"
