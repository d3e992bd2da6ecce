"""Random runs: what must hold inside the engine after every move, under right disciplines; broken ones run on without a crash."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from settled.model.disciplines import DISCIPLINES, RIGHT, VLLM, Discipline
from settled.model.events import Add, Config, End, Event, Finish, Load, Loaded, Preempt, Process, Release, Schedule, Store, Stored
from settled.model.monitor import Monitor, Verdict
from settled.model.properties import Contract, Property
from settled.reference.engine import Engine
from settled.reference.workload import ALL_KINDS, random_workload, run_workload

RIGHT_DISCIPLINES = [RIGHT, VLLM]


def check_pool(engine: Engine) -> None:
    """Reference counts are table entries plus what the fences keep; the free queue holds exactly the blocks without any."""
    manager = engine.scheduler.kv_cache_manager
    pool = manager.block_pool
    references: Counter[int] = Counter()
    for group in manager.managers:
        for table in group.req_to_blocks.values():
            references.update(block.block_id for block in table if not block.is_null)
    references.update(block.block_id for block in pool.blocks_aside())
    references.update(block.block_id for block in manager.preparation.held_blocks())
    references.update(block.block_id for block in engine.scheduler.remote.transfers.pinned_blocks())
    for free in engine.scheduler.fence:
        references.update(block.block_id for table in free.tables for block in table.blocks)
    assert list(engine.pool_snapshot()) == [references[block_id] for block_id in range(pool.num_blocks)]
    queue = [block.block_id for block in pool.free_block_queue]
    assert len(queue) == len(set(queue)) == pool.get_num_free_blocks()
    assert set(queue) == {block_id for block_id in range(1, pool.num_blocks) if references[block_id] == 0}
    for block in pool.cached_blocks():
        hashes = [block_hash for block_hash in (block.block_hash, block.partial_hash) if block_hash is not None]
        assert hashes
        assert all(pool.get_cached_block(block_hash) is not None for block_hash in hashes)


def check_counters(engine: Engine) -> None:
    """F is the sum over unprocessed steps, the stale part those of earlier generations, and C - (F - stale) never negative."""
    scheduler = engine.scheduler
    for request in [*scheduler.requests.values(), *scheduler.draining.values()]:
        assert request.num_in_flight_tokens == sum(entry.tokens for entry in request.unprocessed)
        if not request.is_finished:
            stale = [entry for entry in request.unprocessed if entry.generation < request.generation]
            assert request.num_stale_output_tokens == sum(entry.tokens for entry in stale)
            assert all(entry.stale for entry in stale)
            live = [entry for entry in request.unprocessed if not entry.stale]
            assert request.num_output_placeholders == sum(1 + entry.drafts for entry in live if entry.samples)
        computed, in_flight, stale_tokens = request.counters
        assert computed - (in_flight - stale_tokens) >= 0
        assert computed < engine.config.max_model_len
    for request in scheduler.running:
        assert request.num_unscheduled_tokens >= 1


def check_caps(engine: Engine) -> None:
    """No table owns more than the cap of its group."""
    for manager in engine.scheduler.kv_cache_manager.managers:
        for table in manager.req_to_blocks.values():
            assert manager.cap is not None
            assert sum(not block.is_null for block in table) <= manager.cap


def check_everything(engine: Engine) -> None:
    check_pool(engine)
    check_counters(engine)
    check_caps(engine)


@pytest.mark.parametrize("discipline", RIGHT_DISCIPLINES, ids=lambda discipline: discipline.name)
def test_random_runs_keep_the_engine_consistent(discipline: Discipline) -> None:
    preempted = aborted = 0
    for seed in range(40):
        summary = run_workload(random_workload(seed), discipline=discipline, steps=100, check=check_everything)
        assert summary.given_up == 0, f"seed {seed}: nothing moved"
        preempted += summary.preempted
        aborted += summary.aborted
    assert preempted > 100
    assert aborted > 50


def test_without_the_fence_nothing_else_changes() -> None:
    for seed in range(20):
        summary = run_workload(random_workload(seed), fence=False, steps=100, check=check_everything)
        assert summary.given_up == 0


def test_a_request_that_is_not_disturbed_runs_to_its_end() -> None:
    """No aborts, no scripted preemption: every request added before the end finishes by itself."""
    for seed in range(20):
        workload = replace(random_workload(seed), chance_abort=0.0, chance_preempt=0.0)
        events: list[Event] = []
        summary = run_workload(workload, steps=200, sink=events.append)
        assert summary.given_up == 0
        assert summary.added > workload.requests_max


@pytest.mark.parametrize("contract", [Contract.SETTLED, Contract.STREAM_ORDER], ids=lambda contract: contract.value)
@pytest.mark.parametrize("kinds", [*((kind,) for kind in ALL_KINDS), ALL_KINDS], ids=lambda kinds: kinds[0] if len(kinds) == 1 else "all")
def test_the_monitor_finds_nothing_in_runs_of_any_kind(kinds: tuple[str, ...], contract: Contract) -> None:
    """With the fence under the contract that demands it, and without."""
    for seed in range(6):
        events: list[Event] = []
        workload = random_workload(seed, kinds=kinds)
        run_workload(workload, fence=contract is Contract.SETTLED, steps=80, sink=events.append)
        config = events[0]
        assert isinstance(config, Config)
        monitor = Monitor(config, contract)
        for line, event in enumerate(events, start=1):
            monitor.feed(line, event)
        report = monitor.finish()
        assert [violation for result in report.properties for violation in result.violations] == [], f"seed {seed}"
        assert report.unknown == ()
        verdicts = {result.property: result.verdict for result in report.properties}
        assert {name for name, verdict in verdicts.items() if verdict is Verdict.HOLDS} >= set(Property)


@pytest.mark.parametrize("discipline", [each for each in DISCIPLINES.values() if not each.is_right], ids=lambda discipline: discipline.name)
def test_broken_disciplines_run_and_keep_references_right(discipline: Discipline) -> None:
    for seed in range(12):
        run_workload(random_workload(seed), discipline=discipline, steps=100, check=check_pool)


def test_a_seed_is_a_run() -> None:
    traces = []
    for _ in range(2):
        events: list[Event] = []
        run_workload(random_workload(7), steps=200, sink=events.append)
        traces.append(events)
    assert traces[0] == traces[1]
    other: list[Event] = []
    run_workload(random_workload(8), steps=200, sink=other.append)
    assert other != traces[0]


def test_a_recorded_run_starts_with_its_config_and_ends_idle() -> None:
    events: list[Event] = []
    run_workload(random_workload(3), steps=50, sink=events.append)
    assert isinstance(events[0], Config)
    assert all(spec.cap is not None for spec in events[0].groups)
    assert events[-1] == End(idle=True)
    assert sum(isinstance(event, Config | End) for event in events) == 2


def test_operations_are_the_parts_of_steps_and_the_control_events() -> None:
    """No event of blocks counts, and none of a request is left out."""
    seen = set()
    for seed in range(30):
        events: list[Event] = []
        summary = run_workload(random_workload(seed), steps=60, sink=events.append)
        parts = sum(len(event.requests) for event in events if isinstance(event, Schedule | Process))
        control = [event for event in events if isinstance(event, Add | Preempt | Finish | Load | Loaded | Store | Stored)]
        assert summary.operations == parts + len(control)
        seen |= {type(event) for event in control}
    assert seen == {Add, Preempt, Finish, Load, Loaded, Store, Stored}


def test_recording_changes_nothing() -> None:
    assert run_workload(random_workload(5), steps=200) == run_workload(random_workload(5), steps=200, sink=lambda event: None)


def test_the_boundaries_are_reached() -> None:
    causes: Counter[str] = Counter()
    for seed in range(30):
        events: list[Event] = []
        run_workload(random_workload(seed), steps=100, sink=events.append)
        causes.update(event.cause for event in events if isinstance(event, Release))
        causes.update(f"output {event.output}" for event in events if isinstance(event, Preempt))
    expected = {"window", "finish", "abort", "preempt", "connector_finish", "deferred", "output deliver", "output drop"}
    assert set(causes) == expected
