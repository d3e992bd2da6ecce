"""A state of the engine as a value: two engines with equal values do the same from there on.

Block ids are renamed in the order in which tables, fence and free queue show them; steps count from the oldest unprocessed one; how often a
request was preempted is left out. So a request that starts over for the tenth time is where it was the first time.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Hashable, Iterable

from settled.reference.engine import Engine
from settled.reference.free_queue import KVCacheBlock
from settled.reference.request import Request

State = tuple[Hashable, ...]


class Names:
    """New names for block ids, by first appearance; null stays 0."""

    def __init__(self) -> None:
        self.of: dict[int, int] = {0: 0}

    def __call__(self, blocks: Iterable[KVCacheBlock]) -> tuple[int, ...]:
        return tuple([self.of.setdefault(block.block_id, len(self.of)) for block in blocks])


def state_of(engine: Engine) -> State:
    """What decides the engine's future."""
    names = Names()
    return tuple(part(engine, names) for part in PARTS.values())


def freeze(engine: Engine) -> bytes:
    """The engine as bytes; it must not be recording."""
    return pickle.dumps(engine, pickle.HIGHEST_PROTOCOL)


def thaw(frozen: bytes) -> Engine:
    """An engine of its own, as it was when it was frozen."""
    engine = pickle.loads(frozen)
    assert isinstance(engine, Engine)
    return engine


def _request(engine: Engine, request: Request, names: Names) -> Hashable:
    scheduler = engine.scheduler
    managers = scheduler.kv_cache_manager.managers
    steps_left = max(0, request.last_step_sequence - scheduler.num_steps_processed)
    return (
        (request.request_id, request.status, request.num_tokens, request.counters, request.num_output_placeholders),
        (request.num_draft_tokens, request.is_prefill_chunk, request.drop_stale_output, steps_left),
        tuple([names(manager.req_to_blocks.get(request.request_id, ())) for manager in managers]),
        tuple([manager.num_cached_block.get(request.request_id) for manager in managers]),
        tuple([(entry.start, entry.tokens, entry.drafts, entry.samples, entry.stale) for entry in request.unprocessed]),
    )


def _requests(engine: Engine, names: Names) -> Hashable:
    scheduler = engine.scheduler
    unfinished = tuple([_request(engine, request, names) for request in scheduler.requests.values()])
    return unfinished, tuple([_request(engine, request, names) for request in scheduler.draining.values()])


def _queues(engine: Engine, _names: Names) -> Hashable:
    scheduler = engine.scheduler
    return tuple([tuple([request.request_id for request in queue]) for queue in (scheduler.running, scheduler.waiting)])


def _steps(engine: Engine, _names: Names) -> Hashable:
    return tuple([tuple([entry.request.request_id for entry in step.entries]) for step in engine.unprocessed])


def _fence(engine: Engine, names: Names) -> Hashable:
    return tuple(
        [(free.request_id, tuple([(table.indices, names(table.blocks)) for table in free.tables])) for free in engine.scheduler.fence]
    )


def _pool(engine: Engine, names: Names) -> Hashable:
    """How many blocks are free; with a prefix cache, in which order, and which hash each block has."""
    pool = engine.scheduler.kv_cache_manager.block_pool
    if not pool.enable_caching:
        return pool.get_num_free_blocks()
    free = names(pool.free_block_queue)
    return free, tuple(sorted((names((block,)), block.block_hash) for block in pool.cached_blocks()))


# What an engine with transfers adds is one more part.
PARTS: dict[str, Callable[[Engine, Names], Hashable]] = {
    "requests": _requests,
    "queues": _queues,
    "steps": _steps,
    "fence": _fence,
    "pool": _pool,
}
