"""How many noise runs are made: as many as may change the result. A user who waits is told how far they are."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from holding import hold, measured
from planting import spoiled

from pytest_compilecontract.facts.lanes import Lane
from pytest_compilecontract.measure import noise_runs
from pytest_compilecontract.measure.noise_runs import FAR, FEW, LAST, MANY, Kept, keeping, telling
from pytest_compilecontract.measure.numerics.noise import Noise, Sides, held_to_noise
from pytest_compilecontract.measure.passes import Passes
from pytest_compilecontract.measure.probes import rounding
from pytest_compilecontract.measure.probes.rounding import Choices, Rounding
from pytest_compilecontract.measure.probes.source import Paths

pytestmark = pytest.mark.torch

HERE = Path(__file__).parent
X = torch.linspace(-3, 3, 1024).reshape(16, 64)
# So near to one another that rounding decides which is the largest.
NEAR = 1 + torch.arange(64.0) * 1e-7
Change = Callable[[torch.Tensor], torch.Tensor]


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The steps of each noise run that is made."""
    found: list[int] = []
    real = Passes.rounded

    def rounded(self: Passes, job: object, eager: object, mode: Rounding, *given: object) -> object:
        found.append(mode._steps)
        return real(self, job, eager, mode, *given)  # type: ignore[arg-type]

    monkeypatch.setattr(Passes, "rounded", rounded)
    return found


def at(place: tuple[object, ...], change: Change) -> Change:
    def changed(out: torch.Tensor) -> torch.Tensor:
        out[place] = change(out[place])
        return out

    return changed


def softmax(x: torch.Tensor) -> torch.Tensor:
    return (x.sin() * 3).softmax(-1)


def by_a_clear_choice(x: torch.Tensor) -> torch.Tensor:
    return torch.where(x > 0.01, (x * 1.7).sin(), (x * 2.3).cos())


def by_a_close_choice(x: torch.Tensor) -> torch.Tensor:
    return softmax(x) * (1 + (NEAR * 1.1).argmax() * 1e-9)


def doubled(out: torch.Tensor) -> torch.Tensor:
    return out * 2


def nan(out: torch.Tensor) -> torch.Tensor:
    return out * torch.nan


def with_another(target: Change) -> Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor]]:
    """A second output, at which more runs might explain what `both` does to it."""
    return lambda x: (target(x), (x * 1.1).cos())


def both(wrong: Change) -> Lane:
    """A lane in which the first output is wrong, and the second a little."""
    return spoiled(wrong, lambda out: out * 1.001)


RUNS: dict[str, tuple[Change, Change, int]] = {
    "much is far off": (softmax, doubled, FAR),
    "it is not a number": (softmax, nan, FAR),
    "one element is far off": (softmax, at((0, 0), doubled), LAST),
    "one element is not a number": (softmax, at((0, 0), nan), LAST),
    "a twentieth is far off": (softmax, at((0,), doubled), LAST),
    "much is a little off": (softmax, lambda out: out * 1.001, LAST),
    "a clear choice": (by_a_clear_choice, doubled, MANY),
    "a close choice": (by_a_close_choice, doubled, LAST),
}


@pytest.mark.parametrize("case", RUNS.values(), ids=RUNS.keys())
def test_so_many_are_made_as_may_change_the_result(case: tuple[Change, Change, int], made: list[int]) -> None:
    target, wrong, runs = case

    entry = hold(lambda lane: lane.run(with_another(target), (X,)), lane=both(wrong))

    assert entry.verdict == "violated"
    assert len(made) == runs


def test_a_few_are_enough_where_no_more_would_explain_it(made: list[int]) -> None:
    assert hold(lambda lane: lane.run(softmax, (X,)), lane=spoiled(doubled)).verdict == "violated"

    assert len(made) == FEW


def test_what_moves_as_far_in_a_far_run_is_not_hopeless() -> None:
    eager, moved = torch.ones(16, 64), [torch.ones(16, 64)] * FEW
    wrong = eager + 1.0

    def noise(far: list[torch.Tensor]) -> Noise:
        slack = torch.zeros(1)
        sides = Sides(compiled=wrong, eager=eager, reference=eager, slack=slack, moved=moved, steps=[1] * FEW, far=far)
        return held_to_noise(sides, lambda e, g: torch.full_like(g, 1e-3), 1e-3)

    assert noise([eager]).hopeless
    assert noise([eager + 0.5 * (torch.arange(64) > 6)]).hopeless
    assert not noise([eager + 0.5 * (torch.arange(64) > 5)]).hopeless
    assert not noise([]).hopeless


def test_the_far_runs_are_the_second_stage(made: list[int]) -> None:
    hold(lambda lane: lane.run(by_a_close_choice, (X,)), lane=spoiled(doubled))

    far = [number for number, steps in enumerate(made) if steps == noise_runs.FAR_STEPS]
    assert far == [*range(FEW, FAR)]


def test_which_choices_flipped_is_known_of_runs_that_were_kept(made: list[int]) -> None:
    other_choice = spoiled(lambda x: x, lambda choice: choice - 1)

    def notes() -> str:
        entry = hold(lambda lane: lane.run(lambda x: (x.sin(), (NEAR * 1.1).argmax()), (X,)), lane=other_choice)
        return measured(entry).numerics.note

    alone, runs = notes(), len(made)
    made.clear()
    with keeping(Kept()):
        first, again = notes(), notes()

    assert "a discrete choice flips" in alone
    assert alone == first == again
    assert len(made) == runs + 1


def test_a_choice_that_flipped_in_a_kept_run_still_asks_for_all(made: list[int]) -> None:
    def violated() -> None:
        assert hold(lambda lane: lane.run(by_a_close_choice, (X,)), lane=spoiled(doubled)).verdict == "violated"

    with keeping(Kept()):
        violated()
        made.clear()
        violated()

    # All others were kept. Without what is known of their choices, it would end at MANY.
    assert len(made) == 1


# Which choices flipped


def of(*runs: Callable[[], object]) -> Choices:
    """The choices of these runs, in order; nothing rounds differently."""
    choices = Choices(Paths(HERE))
    for run in runs:
        choices.start()
        with Rounding(0, choices, tf32=False, steps=0):
            run()
    return choices


def largest() -> None:
    torch.tensor([1.0, 2.0]).argmax()


def smallest() -> None:
    torch.tensor([1.0, 2.0]).argmin()


FLIPPED: dict[str, tuple[list[Callable[[], object]], bool]] = {
    "the same": ([largest, largest], False),
    "none": ([lambda: None, lambda: None], False),
    "another result": ([largest, lambda: torch.tensor([3.0, 2.0]).argmax()], True),
    "another operator": ([largest, smallest], True),
    "another shape": ([largest, lambda: torch.tensor([[1.0, 2.0]]).argmax(-1)], True),
    "one more": ([largest, lambda: (largest(), largest())], True),
    "one less": ([largest, lambda: None], True),
    "one less, and then the same": ([largest, lambda: None, largest], True),
    "one where there was none": ([lambda: None, largest], True),
}


@pytest.mark.parametrize(("runs", "flipped"), FLIPPED.values(), ids=FLIPPED.keys())
def test_a_choice_flipped_unless_all_were_compared_and_the_same(
    runs: list[Callable[[], object]], flipped: bool
) -> None:
    choices = of(*runs)

    assert choices.flipped == flipped
    assert choices.any == (largest in runs)


def test_of_more_choices_than_can_be_kept_some_may_have_flipped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rounding, "KEPT", 0)

    choices = of(largest, largest)

    assert choices.any
    assert choices.flipped


# What a user who waits is told


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    monkeypatch.setattr(noise_runs, "TELL_SECONDS", 0.0)
    lines: list[str] = []
    with telling(lines.append):
        yield lines


def test_progress_is_told_while_the_numbers_differ(told: list[str]) -> None:
    hold(lambda lane: lane.run(softmax, (X,)), lane=spoiled(doubled))

    assert told == [f"the numbers differ: noise run {number} of at most {LAST}, 0 s" for number in range(1, FEW + 1)]


def test_nothing_is_told_where_numbers_agree(told: list[str]) -> None:
    assert hold(lambda lane: lane.run(softmax, (X,))).verdict == "held"

    assert told == []


def test_nothing_is_told_where_it_takes_no_time(told: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(noise_runs, "TELL_SECONDS", 60.0)

    hold(lambda lane: lane.run(softmax, (X,)), lane=spoiled(doubled))

    assert told == []
