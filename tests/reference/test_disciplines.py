"""The weighed alternatives on the engine: what each choice does to blocks, in the smallest runs that show it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from settled.model.disciplines import (
    CALLBACK,
    CAP_WITHOUT_IN_FLIGHT,
    NULL_AT_ALLOCATION,
    OPTIMISTIC,
    POOL_FENCE,
    RIGHT,
    Discipline,
)
from settled.model.events import Allocate, Config, Drop, Event, Hold, Release
from settled.model.monitor import Monitor
from settled.model.properties import Contract, Property
from settled.model.specs import SlidingWindowSpec
from settled.reference.admission import with_caps
from settled.reference.config import EngineConfig
from settled.reference.engine import Engine, Outcome

WINDOW = EngineConfig(
    groups=(SlidingWindowSpec(block_size=4, window=4),),
    num_blocks=40,
    max_in_flight_steps=3,
    max_num_batched_tokens=16,
    num_speculative_tokens=3,
    max_model_len=64,
    kv_consumer=True,
)


def judge(events: list[Event]) -> dict[Property, int]:
    """What the monitor finds under the settled contract, by property."""
    config = events[0]
    assert isinstance(config, Config)
    monitor = Monitor(config, Contract.SETTLED)
    for line, event in enumerate(events, start=1):
        monitor.feed(line, event)
    return {result.property: result.count for result in monitor.finish().properties if result.count}


# ---- fences behind a prune ---------------------------------------------------------------------------------------------


def prune_under_a_step_in_flight(config: EngineConfig) -> list[Event]:
    """A prefill of 8 in flight when the next chunk prunes block 0; another request's step follows; both are processed."""
    events: list[Event] = []
    engine = Engine(config, events.append)
    engine.add_request("r", 12, max_tokens=1)
    engine.add_request("other", 8, max_tokens=1)
    engine.schedule({"r": (8, 0)})
    engine.schedule({"other": (8, 0)})
    engine.schedule({"r": (4, 0)})
    engine.process()
    engine.process()
    engine.process()
    engine.end_recording()
    return events


def place(events: list[Event], kind: type[Event]) -> list[int]:
    return [index for index, event in enumerate(events) if isinstance(event, kind)]


def test_a_pruned_block_is_kept_aside_until_the_steps_before_it_are_processed() -> None:
    """The table entry is null at once; the block goes back after the request's own step, or after all of them."""
    drops = {}
    for discipline in (CALLBACK, POOL_FENCE):
        events = prune_under_a_step_in_flight(replace(WINDOW, discipline=discipline))
        (hold,) = [event for event in events if isinstance(event, Hold)]
        (drop,) = [event for event in events if isinstance(event, Drop)]
        release = next(event for event in events if isinstance(event, Release))
        assert (hold.holder, hold.kind, hold.blocks) == ("prune fence", "pin", (1,))
        assert (release.indices, release.blocks, release.cause, release.freed) == ((0,), (1,), "window", ())
        assert (drop.holder, drop.blocks, drop.freed) == ("prune fence", (1,), (1,))
        assert judge(events) == {}
        drops[discipline.name] = sum(index < place(events, Drop)[0] for index in place_processed(events))
    assert drops == {"callback": 1, "pool-fence": 2}


def place_processed(events: list[Event]) -> list[int]:
    return [index for index, event in enumerate(events) if event.name == "process"]


def test_without_that_fence_the_step_in_flight_loses_its_block() -> None:
    events = prune_under_a_step_in_flight(replace(WINDOW, discipline=OPTIMISTIC))
    assert judge(events)[Property.READ_RESIDENT] > 0
    assert not place(events, Hold)


@pytest.mark.parametrize("discipline", [POOL_FENCE, CALLBACK], ids=lambda discipline: discipline.name)
def test_no_fence_behind_a_prune_helps_a_rollback(discipline: Discipline) -> None:
    """Rejected drafts take the count back below blocks whose entries are null already."""
    events: list[Event] = []
    engine = Engine(replace(WINDOW, discipline=discipline), events.append)
    engine.add_request("r", 8)
    engine.schedule()
    engine.process()
    engine.schedule()  # 8 to 11, three of them drafts
    engine.schedule()  # prunes on 12: block 1 (4 to 7) is null
    engine.process(lambda entry: Outcome(0))  # the second of them starts at 9 in truth, and reads down to 6
    engine.process()
    assert judge(events)[Property.ROLLBACK_RESIDENT] > 0
    assert Property.READ_RESIDENT not in judge(events)


# ---- caps and tables without the tokens in flight ----------------------------------------------------------------------


def test_the_cap_without_the_tokens_in_flight() -> None:
    """vLLM's own numbers: a window of 1024 tokens, blocks of 16, 1024 and 2048 tokens in flight."""

    def cap(config: EngineConfig) -> int | None:
        return with_caps(config).groups[0].cap

    config = EngineConfig(
        groups=(SlidingWindowSpec(block_size=16, window=1024),), num_blocks=2, max_num_batched_tokens=1024, max_model_len=100_000
    )
    assert cap(config) == 129
    assert cap(replace(config, max_in_flight_steps=2)) == 193
    assert cap(replace(config, max_in_flight_steps=2, discipline=CAP_WITHOUT_IN_FLIGHT)) == 65


def test_null_at_allocation_leaves_most_of_a_prefill_without_blocks() -> None:
    """100 tokens, a window of 16, blocks of 16: the last query, at 99, needs 84 and later; 0 to 79 are never stored."""
    config = EngineConfig(
        groups=(SlidingWindowSpec(block_size=16, window=16),), num_blocks=40, max_num_batched_tokens=100, max_model_len=200
    )
    tables = {}
    for discipline in (RIGHT, NULL_AT_ALLOCATION):
        events: list[Event] = []
        engine = Engine(replace(config, discipline=discipline), events.append)
        engine.add_request("r", 100, max_tokens=2)
        engine.schedule()
        tables[discipline.name] = [block == 0 for block in engine.inspect("r").table[0]].count(True)
        (allocated,) = [event for event in events if isinstance(event, Allocate)]
        assert allocated.first_index == tables[discipline.name]
        assert (Property.WRITE_OWNED in judge(events)) == (discipline is NULL_AT_ALLOCATION)
        engine.run_to_idle()
        assert sum(engine.pool_snapshot()) == 0
    assert tables == {"settled": 0, "null-at-allocation": 5}
