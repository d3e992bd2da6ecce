"""A scripted step happens as a whole or not at all: what a plan moved before it turned out to be illegal goes back.

Whether the last request of a plan finds its blocks or its hit depends on what the first ones allocate, prune and cache, in the order of
the free queue. So the plan is tried on the real pool rather than on a second account of it; events wait until it is through.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from settled.model.events import Event
from settled.reference.kv_cache_manager import KVCacheManager
from settled.reference.pool import PoolState
from settled.reference.request import Request


@contextmanager
def all_or_nothing(
    manager: KVCacheManager, requests: Sequence[Request], running: list[Request], loading: list[Request], waiting: deque[Request]
) -> Iterator[None]:
    """Within it, blocks and queues may move for `requests`; an exception takes it all back, events included."""
    before = _Before(manager, requests, running, loading, waiting)
    recorder = manager.recorder
    events: list[Event] = []
    emit = None if recorder is None else recorder.emit
    if recorder is not None:
        recorder.emit = events.append
    try:
        yield
    except BaseException:
        before.restore()
        events.clear()
        raise
    finally:
        if recorder is not None and emit is not None:
            recorder.emit = emit
            for event in events:
                emit(event)


class _Before:
    """The pool, the tables of the planned requests, and the queues, as they stood."""

    def __init__(
        self, manager: KVCacheManager, requests: Sequence[Request], running: list[Request], loading: list[Request], waiting: deque[Request]
    ) -> None:
        self.manager, self.running, self.loading, self.waiting = manager, running, loading, waiting
        self.pool: PoolState = manager.block_pool.save()
        self.preparation = manager.preparation.save()
        self.tables = [(group, request.request_id, group.save(request.request_id)) for group in manager.managers for request in requests]
        self.requests = [(request, request.status, request.num_computed_tokens) for request in requests]
        self.queues = (tuple(running), tuple(loading), tuple(waiting))

    def restore(self) -> None:
        self.manager.block_pool.restore(self.pool)
        self.manager.preparation.restore(self.preparation)
        for group, request_id, state in self.tables:
            group.restore(request_id, state)
        for request, status, num_computed_tokens in self.requests:
            request.status, request.num_computed_tokens = status, num_computed_tokens
        running, loading, waiting = self.queues
        self.running[:] = running
        self.loading[:] = loading
        self.waiting.clear()
        self.waiting.extend(waiting)
