"""The bounded search must not overlook what an engine can do: the explicit system follows random runs of one request.

Each event of a run becomes a choice; its guard must hold, and the state after it must be the engine's: counters, queue, table entry.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace

import pytest

from settled.model import events as ev
from settled.model import explicit
from settled.model.algebra import BoolTerm, as_int, constant_value
from settled.model.counters import Counters
from settled.model.disciplines import (
    CALLBACK,
    CEIL,
    LOCAL_SUBTRACTION,
    NULL_AT_ALLOCATION,
    OPTIMISTIC,
    POOL_FENCE,
    RAW_FINISH,
    RIGHT,
    VLLM,
    Discipline,
    FreeBasis,
    Rounding,
)
from settled.model.explicit import Choice, Explicit, Move, Setting, after, guard, initial
from settled.model.kinds import SlidingWindow
from settled.model.specs import SlidingWindowSpec
from settled.model.values import leaves, rebuild
from settled.reference.config import EngineConfig, StaleOutputMode
from settled.reference.engine import Engine, Outcome

pytestmark = pytest.mark.slow

SLOTS = 6


def holds_what_no_prune_passed(discipline: Discipline) -> bool:
    """Whether the lowest block that is held is the one that the last skipped token but one lies in."""
    return discipline.rounding is Rounding.FLOOR and not discipline.nulls_at_allocation


class Follower:
    """The explicit system beside an engine, for one request and one block of its table."""

    def __init__(self, engine: Engine, spec: SlidingWindowSpec, prompt: int, index: int) -> None:
        first = index * spec.block_size
        self.engine, self.index, self.prompt, self.size = engine, index, prompt, spec.block_size
        self.setting = Setting(
            SlidingWindow(spec.window),
            engine.config.discipline,
            connector=True,
            prompt=as_int(prompt),
            token=as_int(first),
            first=as_int(first),
            last=as_int(first + spec.block_size - 1),
            drafts_max=as_int(engine.config.num_speculative_tokens),
            in_flight_max=as_int(engine.config.max_in_flight_tokens),
        )
        for name, assumption in self.setting.assumptions().items():
            assert constant_value(assumption) is True, f"the run does not satisfy {name!r}, which the search assumes"
        self.state = initial(SLOTS)
        self.hit = 0
        self.followed = self.lowest = 0
        self.last_was_a_schedule = False

    def take(self, event: ev.Event) -> None:
        match event:
            case ev.Computed():
                self.hit = event.computed
            case ev.Schedule():
                (entry,) = event.requests
                self._choose(Choice(Move.SCHEDULE, entry.tokens, entry.drafts, self.hit, 0, self._slots(entry)), entry.counters)
                self.hit = 0
            case ev.Process():
                (output,) = event.requests
                self._choose(Choice(Move.PROCESS, 0, 0, 0, output.rejected), output.counters)
            case ev.Preempt():
                self._choose(Choice(Move.PREEMPT, 0, 0, 0, 0), None)
            case ev.Finish():
                self._choose(Choice(Move.FINISH, 0, 0, 0, 0), None)

    def _slots(self, entry: ev.ScheduledRequest) -> int:
        """What the table has slots for: whole blocks, as the engine's own table says."""
        (table,) = self.engine.inspect("A").table
        return len(table) * self.size

    def _choose(self, choice: Choice, counters: tuple[int, int, int] | None) -> None:
        assert constant_value(guard(self.state, choice, self.setting)) is True, (choice, self.state)
        self.last_was_a_schedule = choice.move == Move.SCHEDULE
        following = after(self.state, choice, self.setting)
        self.state = rebuild(following, (_value(leaf) for leaf in leaves(following)))
        self.followed += 1
        if counters is not None and not self.state.finished:
            assert tuple(self.state.counters) == counters, (choice, self.state)
            self._compare_with_engine()

    def _compare_with_engine(self) -> None:
        seen = self.engine.inspect("A")
        (table,) = seen.table
        held = self.index < len(table) and table[self.index] != 0
        assert self.state.entry.held == held
        assert self.state.slots == len(table) * self.size
        held_blocks = [index for index, block in enumerate(table) if block]
        if (
            held_blocks
            and self.last_was_a_schedule
            and held_blocks[0] == self.index
            and holds_what_no_prune_passed(self.setting.discipline)
        ):
            assert self.index * self.size <= self.state.skipped < (self.index + 1) * self.size
            self.lowest += 1
        queue = [slot.step for slot in self.state.queue if slot.step.unprocessed]
        assert [(step.tokens, step.drafts, bool(step.stale)) for step in queue] == [(s.tokens, s.drafts, s.stale) for s in seen.unprocessed]


def _value(leaf: object) -> int | bool:
    value = leaf if isinstance(leaf, int) else constant_value(leaf)  # type: ignore[arg-type]
    assert value is not None
    return value


def follow(seed: int, discipline: Discipline) -> Follower | None:
    """One random run; None if its pool was refused."""
    rng = random.Random(seed)
    size = rng.choice((1, 2, 3, 4))
    spec = SlidingWindowSpec(block_size=size, window=rng.randint(1, 3 * size + 2))
    drafts = rng.choice((0, 1, 2, 3)) if discipline is not LOCAL_SUBTRACTION else rng.randint(1, 3)
    prompt = rng.randint(1, 14)
    config = EngineConfig(
        groups=(spec,),
        num_blocks=64,
        max_in_flight_steps=SLOTS - 1,
        max_num_batched_tokens=rng.randint(1 + drafts, 16),
        num_speculative_tokens=drafts,
        max_model_len=40,
        enable_prefix_caching=rng.random() < 0.7,
        kv_consumer=True,
        connector=True,
        stale_output_mode=StaleOutputMode.DROP,
        discipline=discipline,
    )
    events: list[ev.Event] = []
    engine = Engine(config, events.append)
    engine.add_request("A", prompt)
    follower = Follower(engine, spec, prompt, rng.randrange(0, prompt // size + 3))
    done = 0
    for _ in _moves(engine, rng, prompt):
        for event in events[done:]:
            follower.take(event)
        done = len(events)
    return follower


def _moves(engine: Engine, rng: random.Random, prompt: int) -> Iterator[None]:
    """Random moves, until the request is over or would compute its outputs again in a chunk, which the explicit system leaves out."""
    for _ in range(40):
        yield
        if "A" not in engine.scheduler.requests:
            return
        request = engine.inspect("A")
        if request.computed == 0 and request.num_tokens > prompt:
            return
        what = rng.random()
        if what < 0.06:
            engine.abort("A")
        elif what < 0.16 and request.status == "running":
            engine.preempt("A")
        elif engine.unprocessed and (what < 0.5 or not engine.can_schedule):
            engine.process(lambda entry: Outcome(rng.randint(0, entry.drafts)))
        elif engine.can_schedule:
            engine.schedule()


@pytest.mark.parametrize(
    "discipline",
    [RIGHT, VLLM, OPTIMISTIC, CEIL, RAW_FINISH, POOL_FENCE, CALLBACK, LOCAL_SUBTRACTION, NULL_AT_ALLOCATION],
    ids=lambda discipline: discipline.name,
)
def test_the_explicit_system_follows_the_reference(discipline: Discipline) -> None:
    seeds = 150 if discipline is RIGHT else 60
    followers = [follower for seed in range(seeds) if (follower := follow(seed, discipline)) is not None]
    assert sum(follower.followed for follower in followers) > 5 * seeds
    if holds_what_no_prune_passed(discipline):
        assert sum(follower.lowest for follower in followers) > seeds / 10, "the tracked block must be the lowest one held now and then"
    states: list[Explicit] = [follower.state for follower in followers]
    assert any(state.finished for state in states)
    assert any(slot.step.stale and slot.step.unprocessed for state in states for slot in state.queue)


@pytest.mark.parametrize("discipline", [OPTIMISTIC, CEIL, LOCAL_SUBTRACTION, NULL_AT_ALLOCATION], ids=lambda discipline: discipline.name)
def test_the_system_of_the_right_discipline_does_not_follow_another_engine(discipline: Discipline, monkeypatch: pytest.MonkeyPatch) -> None:
    """The comparison can fail: the engine is broken, the system is told that it is right."""
    monkeypatch.setattr(Setting, "frees", lambda self, counters, basis: _frees(replace(self, discipline=RIGHT), counters))
    monkeypatch.setattr(
        "settled.model.explicit._allocate", lambda state, choice, setting: _allocate(state, choice, replace(setting, discipline=RIGHT))
    )

    def follow_many() -> None:
        for seed in range(60):
            follow(seed, discipline)

    with pytest.raises(AssertionError):
        follow_many()


_frees_as_defined, _allocate = Setting.frees, explicit._allocate


def _frees(setting: Setting, counters: Counters) -> BoolTerm:
    return _frees_as_defined(setting, counters, FreeBasis.SETTLED)
