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


def canonical(value: object, names: Names) -> Hashable:
    """A value with its blocks renamed: tuples, lists and sets of anything."""
    if isinstance(value, KVCacheBlock):
        return names((value,))
    if isinstance(value, tuple | list | set | frozenset):
        ordered = sorted(value) if isinstance(value, set | frozenset) else value
        return tuple([canonical(item, names) for item in ordered])
    assert isinstance(value, Hashable), f"a {type(value).__name__} cannot be a part of a state"
    return value


def _request(engine: Engine, request: Request, names: Names) -> Hashable:
    scheduler = engine.scheduler
    steps_left = max(0, request.last_step_sequence - scheduler.num_steps_processed)
    return (
        (request.request_id, request.status, request.num_tokens, request.counters, request.num_output_placeholders),
        (request.num_draft_tokens, request.is_prefill_chunk, request.drop_stale_output, steps_left),
        (_job(engine, request.pending_load), request.num_stored_tokens),
        tuple([canonical(manager.save(request.request_id), names) for manager in scheduler.kv_cache_manager.managers]),
        tuple([(entry.start, entry.tokens, entry.drafts, entry.samples, entry.stale) for entry in request.unprocessed]),
    )


def _job(engine: Engine, job: int | None) -> int | None:
    """A transfer by its place among those under way."""
    under_way = list(engine.scheduler.remote.transfers.under_way)
    return under_way.index(job) if job in under_way else None


def _requests(engine: Engine, names: Names) -> Hashable:
    scheduler = engine.scheduler
    unfinished = tuple([_request(engine, request, names) for request in scheduler.requests.values()])
    return unfinished, tuple([_request(engine, request, names) for request in scheduler.draining.values()])


def _queues(engine: Engine, _names: Names) -> Hashable:
    scheduler = engine.scheduler
    queues = (scheduler.running, scheduler.waiting, scheduler.loading)
    return tuple([tuple([request.request_id for request in queue]) for queue in queues])


def _steps(engine: Engine, _names: Names) -> Hashable:
    return tuple([tuple([entry.request.request_id for entry in step.entries]) for step in engine.unprocessed])


def _fence(engine: Engine, names: Names) -> Hashable:
    processed = engine.scheduler.num_steps_processed
    return tuple(
        [
            (
                free.request_id,
                max(0, free.sequence - processed),
                tuple([_job(engine, job) for job in sorted(free.jobs)]),
                canonical(free.tables, names),
            )
            for free in engine.scheduler.fence
        ]
    )


def _transfers(engine: Engine, names: Names) -> Hashable:
    return tuple(
        [
            (
                (transfer.request.request_id, transfer.is_load, transfer.handles, transfer.start_token, transfer.pins, transfer.cancelled),
                None if transfer.step is None else transfer.step - engine.scheduler.next_step,
                canonical((transfer.over, transfer.num_over, transfer.failed, transfer.where), names),
            )
            for transfer in engine.scheduler.remote.transfers.under_way.values()
        ]
    )


def _copies(engine: Engine, names: Names) -> Hashable:
    """Blocks that copies of unprocessed steps hold."""
    return names(engine.scheduler.kv_cache_manager.preparation.held_blocks())


def _pool(engine: Engine, names: Names) -> Hashable:
    """Which blocks are kept aside and for how long, how many are free; with a prefix cache, in which order, and which hash each has."""
    pool = engine.scheduler.kv_cache_manager.block_pool
    processed = engine.scheduler.num_steps_processed
    aside = tuple([(sequence - processed, names(blocks)) for sequence, blocks in sorted(pool.save().aside.items())])
    if not pool.enable_caching:
        return aside, pool.get_num_free_blocks()
    free = names(pool.free_block_queue)
    cached = [(names((block,)), block.block_hash, block.partial_hash) for block in pool.cached_blocks()]
    return aside, free, tuple(sorted(cached, key=repr))


# Whatever else decides an engine's future is one more part.
PARTS: dict[str, Callable[[Engine, Names], Hashable]] = {
    "requests": _requests,
    "queues": _queues,
    "steps": _steps,
    "fence": _fence,
    "transfers": _transfers,
    "copies": _copies,
    "pool": _pool,
}
