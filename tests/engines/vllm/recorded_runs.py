"""Seeded random runs of the installed vLLM, recorded and judged, with the recorder's books compared with the live pool at every step."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from random import Random
from typing import Any

os.environ.setdefault("VLLM_LOGGING_LEVEL", "CRITICAL")

from settled.model.events import Config, Event
from settled.model.monitor.monitor import Monitor
from settled.model.monitor.violation import Violation
from settled.model.properties import Contract
from settled.model.specs import ChunkedLocalAttentionSpec, FullAttentionSpec, KVCacheSpec, MambaSpec, SlidingWindowSpec
from settled.reference.engines.operations import Abort, Add, Operation, Process, Report, Schedule, play
from settled.reference.engines.protocol import Ending, Offer
from settled.reference.engines.setup import ConnectorSetup, EngineSetup, SetupError
from settled.reference.engines.vllm.adapter import VllmFactory

B = 4  # tokens of a block
LENGTH = 64  # tokens of a request at most

FULL = FullAttentionSpec(block_size=B)
WINDOW = SlidingWindowSpec(block_size=B, window=2 * B + 1)
CHUNK = ChunkedLocalAttentionSpec(block_size=B, chunk=3 * B)


def _align(drafts: int) -> KVCacheSpec:
    return MambaSpec(block_size=B, mode="align", num_speculative_blocks=drafts)


@dataclass(frozen=True)
class Shape:
    """What of a setup the tests vary."""

    groups: tuple[KVCacheSpec, ...]
    drafts: int = 0
    caches: bool = False
    asynchronous: bool = True
    connector: bool = False
    hash_block: int | None = None  # tokens; below a block, hits end within blocks, which are copied

    @property
    def setup(self) -> EngineSetup:
        return EngineSetup(
            groups=self.groups,
            num_blocks=30 * len(self.groups),
            max_num_batched_tokens=24,
            max_num_seqs=6,
            max_model_len=LENGTH,
            async_scheduling=self.asynchronous,
            num_speculative_tokens=self.drafts,
            enable_prefix_caching=self.caches,
            hash_block_size=self.hash_block,
            connector=ConnectorSetup() if self.connector else None,
        )


SHAPES: dict[str, Shape] = {
    "full": Shape((FULL,), caches=True),
    "window": Shape((WINDOW,)),
    "window-drafts": Shape((WINDOW,), drafts=2, caches=True),
    "hybrid": Shape((FULL, WINDOW), caches=True),
    "hybrid-drafts": Shape((FULL, WINDOW), drafts=3),
    "hybrid-synchronous": Shape((FULL, WINDOW), caches=True, asynchronous=False),
    "chunked": Shape((FULL, CHUNK), caches=True),
    "mamba-none": Shape((MambaSpec(block_size=LENGTH, mode="none"),)),
    "mamba-align": Shape((FULL, _align(0)), caches=True),
    "mamba-align-drafts": Shape((FULL, _align(2)), drafts=2, caches=True),
    "copies": Shape((FULL, _align(0)), caches=True, hash_block=2),
    "copies-connector": Shape((FULL, _align(2)), drafts=2, caches=True, connector=True, hash_block=2),
    "connector": Shape((FULL,), caches=True, connector=True),
    "connector-window": Shape((FULL, WINDOW), caches=True, connector=True),
}


def operations(rng: Random, *, with_offers: bool) -> Iterator[Operation]:
    """Requests that share prefixes, aborted and reported at any time, with rejections of none, some and all."""
    for number in range(40):
        draw = rng.random()
        if draw < 0.25:
            offer = Offer(rng.randrange(1, 48), is_async=rng.random() < 0.8) if with_offers and rng.random() < 0.6 else None
            yield Add(
                f"r{number}",
                rng.randrange(1, 44),
                rng.randrange(1, 16),
                family=rng.randrange(2),
                shared_tokens=rng.randrange(0, 40),
                offer=offer,
                is_stored=with_offers and rng.random() < 0.3,
            )
        elif draw < 0.3:
            yield Abort(f"r{rng.randrange(number + 1)}")
        elif draw < 0.4:
            yield Report(rng.randrange(4), rng.choice((Ending.GOOD, Ending.GOOD, Ending.ALL_FAILED)))
        elif draw < 0.75:
            yield Schedule()
        else:
            yield Process(tuple([rng.randrange(4) for _ in range(3)]), (rng.randrange(20),))


@dataclass
class Run:
    """A run under way. `violations` are those of each contract; `sets_out` is called before each operation."""

    engine: Any
    events: list[Event] = field(default_factory=list)
    monitors: dict[Contract, Monitor] = field(default_factory=dict)
    violations: dict[Contract, list[Violation]] = field(default_factory=lambda: {contract: [] for contract in Contract})

    def take(self, event: Event) -> None:
        self.events.append(event)
        if isinstance(event, Config) and not self.monitors:
            self.monitors = {contract: Monitor(event, contract) for contract in (Contract.STREAM_ORDER, Contract.SETTLED)}
            return
        for contract, monitor in self.monitors.items():
            self.violations[contract] += monitor.feed(len(self.events), event)

    def mismatches(self) -> list[str]:
        """Reference counts of the pool that the events do not make."""
        references = self.engine.recorder.references()
        blocks = self.engine.scheduler.kv_cache_manager.block_pool.blocks
        return [
            f"block {block.block_id}: {block.ref_cnt} references, {references[block.block_id]} by the events"
            for block in blocks
            if not block.is_null and block.ref_cnt != references[block.block_id]
        ]

    def wrong_counters(self) -> list[str]:
        """Unfinished requests whose counters are not the monitor's: computed, and what else the release counts."""
        monitor = self.monitors[Contract.STREAM_ORDER]
        wrong = []
        for request in self.engine.scheduler.requests.values():
            if request.is_finished():
                continue
            own = monitor.counters(request.request_id)
            live = [request.num_computed_tokens]
            for name in ("num_in_flight_tokens", "num_stale_output_tokens"):
                if hasattr(request, name):
                    live.append(getattr(request, name))
            if own is None or list(own)[: len(live)] != live:
                wrong.append(f"{request.request_id}: {live}, {own} by the monitor")
        return wrong


def create(shape: Shape) -> Run | None:
    """An engine for a shape; None if the release does not accept it."""
    run = Run(None)
    try:
        run.engine = VllmFactory().create(shape.setup, run.take)
    except SetupError:
        return None
    return run


def play_all(run: Run, shape: Shape, seed: int, after: Callable[[], None]) -> None:
    """A whole run; `after` is called after each operation."""
    rng = Random(f"{shape}/{seed}")
    for operation in operations(rng, with_offers=shape.connector):
        play(run.engine, operation)
        after()
    for _ in range(300):
        if run.engine.is_idle:
            break
        play(run.engine, Report())
        if not play(run.engine, Schedule()):
            play(run.engine, Process(rejected=(rng.randrange(4),)))
        after()
    run.engine.end()
