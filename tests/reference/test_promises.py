"""Blocks that a request hits while a step of another still computes them: who may read them when. Hits that end within a block."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from settled.model.events import After, Config, Event, Load, Process, Schedule, Store
from settled.model.specs import FullAttentionSpec
from settled.reference.config import EngineConfig
from settled.reference.connector import LastTableConnector
from settled.reference.decided_connector import DecidedConnector, Ending, Offer
from settled.reference.engine import Engine
from settled.reference.plan import PlanError, PlannedStep
from settled.reference.remote_kv import RemoteKV
from settled.reference.workload import random_workload, run_workload

CONFIG = EngineConfig(
    groups=(FullAttentionSpec(block_size=4),),
    num_blocks=40,
    max_in_flight_steps=3,
    max_num_batched_tokens=64,
    max_model_len=64,
    enable_prefix_caching=True,
    kv_consumer=True,
    connector=True,
)
PROMPT = tuple(range(1, 13))
SEEDS_WITH_STORED_PROMISES = (251, 441, 532)


def started(config: EngineConfig = CONFIG) -> tuple[Engine, DecidedConnector, list[Event]]:
    """An engine on which request a computes its whole prompt in step 0."""
    events: list[Event] = []
    connector = DecidedConnector()
    engine = Engine(config, events.append, connector=connector)
    engine.add_request("a", PROMPT, max_tokens=4)
    engine.schedule()
    return engine, connector, events


def stores(events: list[Event]) -> list[Store]:
    return [event for event in events if isinstance(event, Store)]


# ---- stores ------------------------------------------------------------------------------------------------------------


def test_a_store_of_promised_blocks_waits_for_the_step_that_writes_them() -> None:
    engine, connector, events = started()
    engine.add_request("b", PROMPT, max_tokens=4)
    engine.schedule({"b": (4, 0)})
    connector.stores_next = True
    engine.schedule({"b": (1, 0)})
    assert stores(events) == [Store(job=0, request="b", blocks=((1, 2),), after=(After(step=1),))]


def test_what_the_same_step_computes_is_not_stored_in_it() -> None:
    engine, connector, events = started(replace(CONFIG, max_in_flight_steps=1))
    engine.process()
    engine.add_request("b", tuple(range(20, 32)), max_tokens=4)
    engine.add_request("c", tuple(range(20, 32)), max_tokens=4)
    step = engine.schedule()
    assert step is not None
    assert [(entry.request.request_id, entry.start) for entry in step.entries] == [("a", 12), ("b", 0), ("c", 8)]
    assert not stores(events)
    engine.process()
    connector.stores_next = True
    engine.schedule({"c": (1, 0)})
    (store,) = stores(events)
    assert (store.request, len(store.blocks[0]), store.after) == ("c", 3, ())


def test_the_store_of_a_request_that_was_loaded_and_never_ran_waits_for_what_it_hit() -> None:
    engine, connector, events = started()
    engine.add_request("b", PROMPT, max_tokens=4)
    connector.offer = Offer(4)
    engine.schedule()
    (load,) = connector.reportable()
    engine.scheduler.update_from_workers((connector.report(load, Ending.GOOD),))
    connector.stores_finished = True
    engine.abort("b")
    (store,) = stores(events)
    assert (store.blocks[0][:2], store.after) == ((1, 2), (After(step=engine.scheduler.next_step - 1),))


def unordered(events: list[Event]) -> Iterator[tuple[Store | Load, int]]:
    """Transfers that start beside a step in flight that writes one of their blocks, and do not wait for it."""
    sizes: list[int] = []
    rows: dict[str, list[tuple[int, ...]]] = {}
    writes: dict[int, set[int]] = {}
    for event in events:
        if isinstance(event, Config):
            sizes = [spec.block_size for spec in event.groups]
        elif isinstance(event, Schedule):
            written = writes[event.step] = set()
            for entry in event.requests:
                row = rows.get(entry.request)
                grown = [() for _ in sizes] if row is None or entry.resumed else row
                rows[entry.request] = [before + new for before, new in zip(grown, entry.new_blocks, strict=True)]
                for size, ids in zip(sizes, rows[entry.request], strict=True):
                    written.update(ids[entry.start // size : -(-(entry.start + entry.tokens) // size)])
        elif isinstance(event, Process):
            del writes[event.step]
        elif isinstance(event, Load | Store) and event.step is None:
            waits_for = max((after.step for after in event.after or () if after.step is not None), default=-1)
            moved = {block for ids in event.blocks for block in ids} - {0}
            yield from ((event, step) for step, written in writes.items() if step > waits_for and written & moved)


def unordered_in_runs() -> list[tuple[int, Store | Load, int]]:
    found = []
    for seed in (*range(20), *SEEDS_WITH_STORED_PROMISES):
        events: list[Event] = []
        run_workload(random_workload(seed, kinds=("full", "sliding_window", "chunked_local")), steps=100, sink=events.append)
        found += [(seed, event, step) for event, step in unordered(events)]
    return found


def test_no_transfer_runs_beside_a_step_that_writes_its_blocks() -> None:
    assert not unordered_in_runs()


def test_stores_that_wait_for_nothing_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RemoteKV, "_after_promises", lambda self, request: ())
    assert unordered_in_runs()


# ---- hits that end within a block --------------------------------------------------------------------------------------


def test_a_pool_without_a_block_for_the_copy_serves_the_whole_blocks_of_the_hit() -> None:
    """Four blocks hold one request of maximum length. The copied block beside its copy would be a fifth, for ever."""
    config = replace(CONFIG, num_blocks=5, max_model_len=16, hash_block_size=2)
    engine = Engine(config, connector=LastTableConnector())
    for name in ("a", "b"):
        engine.add_request(name, range(1, 16), max_tokens=1)
        engine.schedule()
        assert engine.unprocessed, name
        start = engine.unprocessed[0].entries[0].start
        engine.run_to_idle()
    assert start == 12


def test_a_script_cannot_load_behind_a_hit_that_ends_within_a_block() -> None:
    """The load would meet the copy."""
    engine, _, _ = started(replace(CONFIG, hash_block_size=2))
    engine.run_to_idle()
    engine.add_request("b", (*PROMPT[:10], *range(50, 60)), max_tokens=4)
    with pytest.raises(PlanError, match="a load follows a hit of whole blocks, not one of 10 tokens"):
        engine.schedule({"b": PlannedStep(4, 0, external=4)})
    with pytest.raises(PlanError, match="a load follows a hit of whole blocks, not one of 10 tokens"):
        engine.scheduler.scripted.load("b", 4)
