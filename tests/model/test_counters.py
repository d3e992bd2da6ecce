"""The counters against an explicit queue of steps, event by event on random integers.

The queue knows each step's generation and true start; the counters only ever see three numbers.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from itertools import pairwise

import pytest

from settled.model import counters as count
from settled.model.algebra import constant_value
from settled.model.counters import Counters
from settled.model.disciplines import DISCARD_FLAG, RIGHT, STALE_APPLIED, STALE_UNMARKED, UNDRAINED, VLLM, Discipline, FreeBasis

RUNS, EVENTS = 60, 60


@dataclass
class NaiveStep:
    generation: int
    start: int
    tokens: int
    drafts: int


@dataclass
class Naive:
    """A request and the queue of its steps, oldest first."""

    position: int = 0  # where the next step starts
    generation: int = 0
    queue: list[NaiveStep] = field(default_factory=list)

    def live(self) -> list[NaiveStep]:
        return [step for step in self.queue if step.generation == self.generation]

    def schedule(self, tokens: int, drafts: int) -> None:
        self.queue.append(NaiveStep(self.generation, self.position, tokens, drafts))
        self.position += tokens

    def process(self, rejected: int) -> None:
        step = self.queue.pop(0)
        if step.generation == self.generation:
            for later in self.live():
                later.start -= rejected
            self.position -= rejected

    def preempt(self) -> None:
        self.generation += 1
        self.position = 0

    def counters(self) -> tuple[int, int, int]:
        """Computed, in flight and stale, by adding up."""
        in_flight = sum(step.tokens for step in self.queue)
        return self.position, in_flight, in_flight - sum(step.tokens for step in self.live())

    def settled(self) -> int:
        """The true start of the oldest live step, of the next step if there is none."""
        live = self.live()
        return live[0].start if live else self.position


def numbers(counters: Counters) -> tuple[int, ...]:
    """Terms of integers fold to constants."""
    return tuple(value if isinstance(value, int) else int(constant_value(value)) for value in counters)  # type: ignore[arg-type]


@dataclass(frozen=True)
class Moment:
    """What the counters say and what the queue says, after an event."""

    event: str
    counters: tuple[int, ...]
    settled: int
    naive: tuple[int, int, int]
    naive_settled: int


def run(seed: int, discipline: Discipline) -> list[Moment]:
    """Random events, the same ones for every discipline."""
    rng = random.Random(seed)
    naive, counters = Naive(), Counters(0, 0, 0)
    moments = []
    for _ in range(EVENTS):
        events = ["schedule", "schedule", "preempt"] + 2 * ["process"] * bool(naive.queue)
        if not naive.live() and naive.position == 0:
            events.append("resume")
        event = rng.choice(events)
        match event:
            case "schedule":
                tokens = rng.randint(1, 6)
                drafts = rng.choice([0, tokens - 1])
                naive.schedule(tokens, drafts)
                counters = count.schedule(counters, tokens)
            case "process":
                oldest = naive.queue[0]
                rejected = rng.randint(0, oldest.drafts)
                naive.process(rejected)
                counters = count.process(counters, oldest.tokens, rejected, discipline)
            case "preempt":
                naive.preempt()
                counters = count.preempt(counters, discipline)
            case "resume":
                naive.position = rng.randint(0, 9)
                counters = count.resume(counters, naive.position)
        counters = Counters(*numbers(counters))
        settled = constant_value(count.settled(counters))
        assert settled is not None
        moments.append(Moment(event, numbers(counters), settled, naive.counters(), naive.settled()))
    return moments


@pytest.mark.parametrize("discipline", [RIGHT, VLLM], ids=lambda discipline: discipline.name)
def test_the_counters_are_the_sums_over_the_queue(discipline: Discipline) -> None:
    for seed in range(RUNS):
        for moment in run(seed, discipline):
            assert moment.counters == moment.naive, (seed, moment)


def test_settled_is_the_true_start_of_the_oldest_live_step() -> None:
    for seed in range(RUNS):
        for moment in run(seed, RIGHT):
            assert moment.settled == moment.naive_settled, (seed, moment)


def test_settled_never_falls_within_a_generation() -> None:
    for seed in range(RUNS):
        moments = run(seed, RIGHT)
        for before, moment in pairwise(moments):
            if moment.event != "preempt":
                assert moment.settled >= before.settled, (seed, before, moment)


def test_processed_is_a_lower_bound_of_settled_and_differs_only_while_something_is_stale() -> None:
    differs = 0
    for seed in range(RUNS):
        for moment in run(seed, RIGHT):
            counters = Counters(*moment.counters)
            processed = constant_value(count.processed(counters))
            assert processed is not None
            assert processed <= moment.settled
            if processed != moment.settled:
                assert moment.counters[2] > 0
                differs += 1
    assert differs > 0


def test_the_random_runs_have_what_they_need() -> None:
    """Every event, rejections that move a later step, and stale steps before live ones."""
    moments = [moment for seed in range(RUNS) for moment in run(seed, RIGHT)]
    assert {moment.event for moment in moments} == {"schedule", "process", "preempt", "resume"}
    assert sum(0 < moment.naive[2] < moment.naive[1] for moment in moments) > 50
    pairs = pairwise(moments)
    assert sum(later.event == "process" and later.naive[0] < earlier.naive[0] for earlier, later in pairs) > 50


@pytest.mark.parametrize(
    ("broken", "wrong"),
    [(STALE_APPLIED, {"computed"}), (UNDRAINED, {"in_flight", "stale"}), (STALE_UNMARKED, {"stale"}), (DISCARD_FLAG, {"stale"})],
    ids=lambda value: value.name if isinstance(value, Discipline) else "",
)
def test_a_broken_discipline_disagrees_first_at_its_own_counters(broken: Discipline, wrong: set[str]) -> None:
    found: set[str] = set()
    for seed in range(RUNS):
        first = next((moment for moment in run(seed, broken) if moment.counters != moment.naive), None)
        if first is not None:
            found |= {name for name, x, y in zip(Counters._fields, first.counters, first.naive, strict=True) if x != y}
    assert found == wrong


def test_47728_in_flight_tokens_of_a_prompt_of_100() -> None:
    """vLLM pull request #47728, its test with a prompt of 100 tokens: two schedules, then two outputs, give 100, 101, 1, 0."""
    counters, in_flight = Counters(0, 0, 0), []
    for tokens, is_schedule in ((100, True), (1, True), (100, False), (1, False)):
        counters = count.schedule(counters, tokens) if is_schedule else count.process(counters, tokens, 0, RIGHT)
        in_flight.append(numbers(counters)[1])
    assert in_flight == [100, 101, 1, 0]


@pytest.mark.parametrize(
    ("basis", "tokens"),
    [(FreeBasis.SETTLED, 5), (FreeBasis.PROCESSED, 3), (FreeBasis.COMPUTED, 9), (FreeBasis.LESS_DRAFTS, 7)],
    ids=lambda value: str(value),
)
def test_the_free_basis_of_each_choice(basis: FreeBasis, tokens: int) -> None:
    """9 tokens computed, 6 in flight of which 2 are stale, 2 drafts a step: 9 - (6 - 2), 9 - 6, 9 and 9 - 2."""
    assert constant_value(count.free_basis(Counters(9, 6, 2), basis, 2)) == tokens


def test_the_drafts_to_take_off_must_be_said() -> None:
    with pytest.raises(ValueError, match="less_drafts"):
        count.free_basis(Counters(9, 6, 2), FreeBasis.LESS_DRAFTS)


def test_processed_is_not_negative() -> None:
    assert constant_value(count.processed(Counters(2, 6, 6))) == 0
