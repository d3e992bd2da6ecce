"""Inspects a live vLLM scheduler: its objects must agree with each other, and with the steps that are unprocessed.

A trace tells what an engine did; this tells what it then believes. No release's files are changed: one method of each live manager and
the gate are wrapped on the instances, to hear what the gate counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import chain
from typing import Any

from settled.reference.engines.protocol import Anomaly
from settled.reference.engines.vllm import inspection_bounds, inspection_counters, inspection_holders, inspection_pool
from settled.reference.engines.vllm.inspection_bounds import Gate
from settled.reference.engines.vllm.inspection_counters import Steps
from settled.reference.engines.vllm.inspection_view import View


def no_pins() -> tuple[int, ...]:
    """For connectors that keep no references of their own."""
    return ()


class Inspector:
    """Inspects one scheduler of any release from 0.13 on, between calls to it.

    `pins`: ids of the blocks on which a connector holds references of its own, once for each; those of vLLM's simple offloading
    connector are known here. Build it before the first request comes.
    """

    def __init__(self, scheduler: Any, pins: Callable[[], Iterable[int]] = no_pins) -> None:
        self._view = View(scheduler)
        self._pins = pins
        self._gate = Gate(self._view)
        self._request_ids: set[str] = set()
        self._listen_to_requests(scheduler)

    def _listen_to_requests(self, scheduler: Any) -> None:
        original = scheduler.add_request

        def add_request(request: Any, *args: Any, **keywords: Any) -> Any:
            self._request_ids.add(request.request_id)
            return original(request, *args, **keywords)

        scheduler.add_request = add_request

    def inspect(self, steps: Steps) -> list[Anomaly]:
        """All that is wrong now. `steps`: tokens of each request of each unprocessed step, the oldest first. A few passes over the pool."""
        view = self._view
        found = chain(
            inspection_pool.free_queue(view),
            inspection_pool.prefix_cache(view),
            inspection_pool.hashes_of_tables(view),
            inspection_holders.references(view, self._pins()),
            inspection_holders.tables(view),
            inspection_holders.queues(view),
            inspection_holders.fences(view),
            inspection_counters.counters(view, steps),
            inspection_counters.sequence(view, steps),
            inspection_bounds.caps(view),
            self._gate.inspect(),
        )
        return list(found)

    def at_idle(self) -> list[Anomaly]:
        """What is wrong once all requests are finished, all steps processed and all transfers over: nothing may be left of them.

        The scheduler must have been asked for one more step since, whose message tells the workers who finished.
        """
        left = inspection_holders.left_at_idle(self._view, frozenset(self._request_ids), self._pins())
        return [*self.inspect(()), *left]
