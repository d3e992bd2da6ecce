"""A scripted step that is not legal changes nothing: not the requests, not the pool, not the order of reuse, not the trace."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from settled.model.events import Event
from settled.model.specs import FullAttentionSpec, MambaSpec, SinkWindowSpec, SlidingWindowSpec
from settled.reference.config import EngineConfig
from settled.reference.engine import Engine, RequestSnapshot
from settled.reference.plan import PlanError, PlannedStep
from settled.reference.scheduler import SchedulerError

CONFIG = EngineConfig(
    groups=(FullAttentionSpec(block_size=2), SlidingWindowSpec(block_size=2, window=3)),
    num_blocks=26,
    max_in_flight_steps=2,
    max_num_batched_tokens=16,
    max_num_seqs=3,
    num_speculative_tokens=2,
    max_model_len=24,
    enable_prefix_caching=True,
)
NAMES = ("a", "b", "c", "d", "e", "nobody")


def everything(engine: Engine) -> tuple[object, ...]:
    """All that a later step could depend on."""
    scheduler = engine.scheduler
    pool = scheduler.kv_cache_manager.block_pool
    requests: dict[str, RequestSnapshot] = {name: engine.inspect(name) for name in [*scheduler.requests, *scheduler.draining]}
    managers = [[manager.save(name) for name in NAMES] for manager in scheduler.kv_cache_manager.managers]
    return (
        requests,
        engine.pool_snapshot(),
        [block.block_id for block in pool.free_block_queue],
        {block.block_id: (block.block_hash, block.partial_hash) for block in pool.cached_blocks()},
        {block.block_hash: pool.get_cached_block(block.block_hash) for block in pool.cached_blocks() if block.block_hash is not None},
        managers,
        scheduler.kv_cache_manager.preparation.save(),
        [request.request_id for request in scheduler.running],
        [request.request_id for request in scheduler.waiting],
        scheduler.next_step,
    )


@pytest.mark.parametrize("last", [("nobody", (1, 0)), ("B", (9, 0)), ("B", PlannedStep(1, 0, hit=2))])
def test_what_comes_before_the_fault_does_not_happen(last: tuple[str, tuple[int, int] | PlannedStep]) -> None:
    events: list[Event] = []
    engine = Engine(CONFIG, events.append)
    engine.add_request("A", 8)
    engine.add_request("B", 8)
    before, count = everything(engine), len(events)
    with pytest.raises(PlanError):
        engine.schedule({"A": (4, 0), last[0]: last[1]})
    assert everything(engine) == before
    assert len(events) == count
    step = engine.schedule({"A": (4, 0), "B": (4, 0)})
    assert step is not None
    assert [event.name for event in events[count:]].count("schedule") == 1


def test_a_later_request_may_still_hit_what_an_earlier_one_computes_in_the_same_step() -> None:
    engine = Engine(CONFIG)
    for name in ("A", "B"):
        engine.add_request(name, [1, 2, 3, 4, 5])
    step = engine.schedule({"A": PlannedStep(5, 0, hit=0), "B": PlannedStep(1, 0, hit=4)})
    assert step is not None
    assert [entry.start for entry in step.entries] == [0, 4]


STATES = (MambaSpec(block_size=4, mode="align", num_speculative_blocks=2), SinkWindowSpec(block_size=2, sink=3, window=3))


@pytest.mark.parametrize(
    "config",
    [
        CONFIG,
        replace(CONFIG, groups=STATES, num_blocks=34, zero_fresh_blocks=True),
        replace(CONFIG, groups=(FullAttentionSpec(block_size=4),), hash_block_size=1, zero_fresh_blocks=True),
    ],
    ids=["windows", "states", "hits within a block"],
)
def test_random_plans_happen_as_a_whole_or_not_at_all(config: EngineConfig) -> None:
    refused = accepted = moved_first = 0
    for seed in range(40):
        rng = Random(seed)
        events: list[Event] = []
        engine = Engine(replace(config, num_blocks=config.num_blocks + rng.choice((0, 2, 34))), events.append)
        for round_ in range(40):
            _disturb(engine, rng, round_)
            plan = _random_plan(engine, rng)
            before, count = everything(engine), len(events)
            try:
                engine.schedule(plan)
                accepted += 1
            except PlanError:
                assert everything(engine) == before, f"seed {seed}, round {round_}"
                assert len(events) == count
                refused += 1
                moved_first += len(plan) > 1
            except SchedulerError:
                assert not engine.can_schedule
            if engine.unprocessed and rng.random() < 0.5:
                engine.process()
    assert refused > 300
    assert accepted > 300
    assert moved_first > 100


def _disturb(engine: Engine, rng: Random, round_: int) -> None:
    requests = engine.scheduler.requests
    name = rng.choice(NAMES[:-1])
    if name not in requests and name not in engine.scheduler.draining:
        engine.add_request(name, [1, 2, 3, 4, 5, 6, 7, 8][: rng.randint(1, 8)] + [round_] * rng.randint(0, 3), max_tokens=rng.randint(1, 9))
    if engine.scheduler.running and rng.random() < 0.1:
        engine.preempt(rng.choice(engine.scheduler.running).request_id)


def _random_plan(engine: Engine, rng: Random) -> dict[str, tuple[int, int] | PlannedStep]:
    """Mostly legal steps, so that the fault often comes last; a wrong number or name now and then."""
    plan: dict[str, tuple[int, int] | PlannedStep] = {}
    for name in rng.sample(NAMES, rng.randint(1, 4)):
        request = engine.scheduler.requests.get(name)
        if request is None:
            if rng.random() < 0.1:
                plan[name] = (1, 0)
            continue
        hit = engine.scheduler.kv_cache_manager.get_computed_blocks(request).num_tokens if request in engine.scheduler.waiting else 0
        left = request.num_unscheduled_tokens - hit
        tokens = max(1, left - (rng.random() < 0.2)) + (rng.random() < 0.1)
        plan[name] = PlannedStep(min(tokens, 8), 0, hit or None)
    return plan or {"nobody": (1, 0)}
