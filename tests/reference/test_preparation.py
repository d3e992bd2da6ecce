"""What the device does before a step: copies behind hits that end within a block, and zeroes; and the watermark at admission."""

from __future__ import annotations

from dataclasses import replace

import pytest

from settled.model.disciplines import NO_FENCE
from settled.model.events import Allocate, Computed, Copy, Drop, Event, Hold, Release, Schedule, Touch, Zero
from settled.model.specs import FullAttentionSpec, KVCacheSpec, MambaSpec, SlidingWindowSpec
from settled.reference.config import ConfigError, EngineConfig
from settled.reference.engine import Engine
from settled.reference.plan import PlanError

CONFIG = EngineConfig(
    groups=(FullAttentionSpec(block_size=8),),
    num_blocks=40,
    max_in_flight_steps=2,
    max_num_batched_tokens=64,
    max_model_len=64,
    enable_prefix_caching=True,
    hash_block_size=2,
)
PROMPT = tuple(range(1, 22))  # ends within block 2; the last hash that leaves a token to compute ends at 20


def second_starts(config: EngineConfig, shared: int = 21) -> tuple[Engine, list[Event]]:
    """A request computes PROMPT and still runs; a second one that shares its first tokens has been scheduled."""
    events: list[Event] = []
    engine = Engine(config, events.append)
    engine.add_request("first", PROMPT, max_tokens=20)
    engine.schedule()
    engine.add_request("second", (*PROMPT[:shared], *range(500, 510)), max_tokens=20)
    events.clear()
    engine.schedule()
    return engine, events


def test_a_hit_within_a_block_is_copied_into_a_fresh_one_before_the_step() -> None:
    engine, events = second_starts(CONFIG)
    source, target = engine.inspect("first").table[0][2], engine.inspect("second").table[0][2]
    assert engine.inspect("second").table[0][:2] == engine.inspect("first").table[0][:2]
    assert source != target
    mine = (Touch, Hold, Allocate, Computed, Copy, Schedule)
    assert [type(event) for event in events if getattr(event, "request", "second") == "second" and isinstance(event, mine)] == list(mine)
    (hold,) = [event for event in events if isinstance(event, Hold)]
    (copy,) = [event for event in events if isinstance(event, Copy)]
    (computed,) = [event for event in events if isinstance(event, Computed)]
    assert (hold.kind, hold.blocks) == ("copy", (source,))
    assert (copy.step, copy.group, copy.source, copy.target) == (1, 0, source, target)
    assert computed.computed == 20


def test_the_source_stays_until_the_step_is_processed() -> None:
    for discipline in (CONFIG.discipline, NO_FENCE):
        engine, events = second_starts(replace(CONFIG, discipline=discipline))
        (copy,) = [event for event in events if isinstance(event, Copy)]
        engine.process()
        engine.abort("first")
        assert engine.pool_snapshot()[copy.source] >= 1
        events.clear()
        engine.process()
        (drop,) = [event for event in events if isinstance(event, Drop)]
        assert drop.blocks == (copy.source,)
        released = [event for event in events if isinstance(event, Release) and copy.source in event.blocks]
        assert drop.freed == (() if released else (copy.source,))
        assert engine.pool_snapshot()[copy.source] == 0


def test_a_shorter_shared_prefix_hits_full_blocks_and_the_one_hash_of_a_prompt_s_end_alone() -> None:
    def hit(shared: int) -> list[int]:
        return [event.computed for event in second_starts(CONFIG, shared)[1] if isinstance(event, Computed)]

    assert hit(21) == [20]
    assert hit(19) == [16]  # hashes within a block are kept for the end of a prompt only
    assert hit(7) == []


def test_groups_end_a_partial_hit_together() -> None:
    """Blocks of 8 and of 4: position 20 is within a block of the first and between blocks of the second."""
    engine, events = second_starts(replace(CONFIG, groups=(FullAttentionSpec(block_size=8), FullAttentionSpec(block_size=4))))
    assert [event.computed for event in events if isinstance(event, Computed)] == [20]
    assert [(event.group, event.source) for event in events if isinstance(event, Copy)] == [(0, engine.inspect("first").table[0][2])]


@pytest.mark.parametrize("groups", [(FullAttentionSpec(block_size=8), SlidingWindowSpec(block_size=8, window=9))])
def test_a_window_among_the_groups_keeps_hits_at_whole_blocks(groups: tuple[KVCacheSpec, ...]) -> None:
    _, events = second_starts(replace(CONFIG, groups=groups))
    assert [event.computed for event in events if isinstance(event, Computed)] == [16]
    assert not [event for event in events if isinstance(event, Copy | Hold)]


def test_a_plan_that_fails_forgets_its_copies() -> None:
    events: list[Event] = []
    engine = Engine(replace(CONFIG, num_blocks=10), events.append)
    engine.add_request("first", PROMPT, max_tokens=20)
    engine.schedule()
    for name in ("second", "third"):
        engine.add_request(name, (*PROMPT, *range(500, 520)), max_tokens=20)
    before = engine.pool_snapshot()
    with pytest.raises(PlanError, match="third"):
        engine.schedule({"second": (21, 0), "third": (21, 0)})
    assert engine.pool_snapshot() == before
    events.clear()
    engine.schedule({"second": (21, 0)})
    assert sum(isinstance(event, Copy) for event in events) == 1


# ---- zeroes ----------------------------------------------------------------------------------------------------------


def zeroed(groups: tuple[KVCacheSpec, ...], **changes: object) -> tuple[list[tuple[int, ...]], Engine]:
    events: list[Event] = []
    config = replace(CONFIG, groups=groups, hash_block_size=None, enable_prefix_caching=False, **changes)  # type: ignore[arg-type]
    engine = Engine(config, events.append)
    engine.add_request("r", 10, max_tokens=20)
    engine.schedule()
    engine.schedule()
    assert [event.step for event in events if isinstance(event, Zero)] in ([], [0])
    return [event.blocks for event in events if isinstance(event, Zero)], engine


def test_keys_are_zeroed_beside_states_and_states_are_not() -> None:
    keys, states = FullAttentionSpec(block_size=8), MambaSpec(block_size=8, mode="align")
    assert zeroed((keys,))[0] == []
    blocks, engine = zeroed((keys, states))
    assert blocks == [engine.inspect("r").table[0]]
    assert zeroed((keys, states), zero_fresh_blocks=False)[0] == []
    blocks, engine = zeroed((keys, states), zero_fresh_blocks=True)
    assert set(blocks[0]) == {*engine.inspect("r").table[0], *engine.inspect("r").table[1]} - {0}


def test_a_block_that_is_copied_into_is_not_zeroed() -> None:
    engine, events = second_starts(replace(CONFIG, zero_fresh_blocks=True))
    (copy,) = [event for event in events if isinstance(event, Copy)]
    (zero,) = [event for event in events if isinstance(event, Zero)]
    assert copy.target not in zero.blocks
    assert set(zero.blocks) == set(engine.inspect("second").table[0][3:])


# ---- the watermark ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("watermark", "admitted"), [(0.0, 2), (0.15, 2), (0.2, 1)])
def test_an_admission_beside_running_requests_leaves_the_watermark_free(watermark: float, admitted: int) -> None:
    """Two requests of 8 blocks, 20 blocks, 19 of them to own: 11 are left for the second, which leaves 3 or 4."""
    config = replace(CONFIG, num_blocks=20, watermark=watermark, enable_prefix_caching=False, hash_block_size=None)
    engine = Engine(replace(config, max_num_batched_tokens=128))
    for name in ("a", "b"):
        engine.add_request(name, 60, max_tokens=2)
    step = engine.schedule()
    assert step is not None
    assert len(step.entries) == admitted


def test_the_first_request_is_admitted_whatever_the_watermark() -> None:
    engine = Engine(replace(CONFIG, num_blocks=9, watermark=0.9))
    engine.add_request("a", 60, max_tokens=2)
    assert engine.schedule() is not None


@pytest.mark.parametrize(("changes", "message"), [({"watermark": 1.0}, "watermark"), ({"hash_block_size": 3}, "hash_block_size")])
def test_impossible_numbers_are_said_early(changes: dict[str, float], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        replace(CONFIG, **changes)  # type: ignore[arg-type]
