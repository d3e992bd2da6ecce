"""A live vLLM engine in mid-run, with what its driver knows of it, for tests that look into it or break it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from settled.model.specs import FullAttentionSpec, KVCacheSpec, SlidingWindowSpec
from settled.reference.engines.operations import Add, play
from settled.reference.engines.protocol import Offer, Outcome, StepRequest
from settled.reference.engines.setup import ConnectorSetup, EngineSetup
from settled.reference.engines.vllm.adapter import VllmFactory
from settled.reference.engines.vllm.inspection import Inspector
from settled.reference.engines.vllm.inspection_view import View

B = 16  # tokens of a block, throughout
HYBRID = (FullAttentionSpec(block_size=B), SlidingWindowSpec(block_size=B, window=2 * B))


def setup_of(*groups: KVCacheSpec, **keys: Any) -> EngineSetup:
    defaults: dict[str, Any] = {"num_blocks": 64, "max_num_batched_tokens": 64, "max_num_seqs": 8, "max_model_len": 256}
    return EngineSetup(groups=groups or HYBRID, **{**defaults, **keys})


def smallest_pool(setup: EngineSetup) -> int:
    """Blocks of the smallest pool that start-up accepts, and the null block, which older releases forget there."""
    factory = VllmFactory()
    scheduler: Any = factory.create(replace(setup, num_blocks=200), None).scheduler
    counted = sum(View(scheduler).sizing_cap(group) for group in range(len(setup.groups)))
    return max(factory.min_num_blocks(setup), counted + 1)


def accept_none(request: StepRequest) -> Outcome:
    return Outcome(0)


def accept_all(request: StepRequest) -> Outcome:
    return Outcome(request.drafts)


class Live:
    """An engine of the installed release, its scheduler, an inspector, and the unprocessed steps as the scheduler's caller sees them."""

    def __init__(self, setup: EngineSetup, sink: Any = None, before: Callable[[Any], None] | None = None, **keys: Any) -> None:
        self.engine = VllmFactory().create(setup, sink)
        self.scheduler: Any = self.engine.scheduler
        if before is not None:
            before(self.scheduler)
        self.inspector = Inspector(self.scheduler, **keys)
        self.steps: list[Mapping[str, int]] = []
        self._listen()
        self._names = 0

    def _listen(self) -> None:
        scheduler, schedule, update = self.scheduler, self.scheduler.schedule, self.scheduler.update_from_output

        def scheduled(*args: Any, **keywords: Any) -> Any:
            output = schedule(*args, **keywords)
            self.steps.append(dict(output.num_scheduled_tokens))
            return output

        def updated(*args: Any, **keywords: Any) -> Any:
            del self.steps[0]
            return update(*args, **keywords)

        scheduler.schedule, scheduler.update_from_output = scheduled, updated

    @property
    def pool(self) -> Any:
        return self.scheduler.kv_cache_manager.block_pool

    @property
    def managers(self) -> Any:
        return self.scheduler.kv_cache_manager.coordinator.single_type_managers

    def request(self, request_id: str) -> Any:
        return self.scheduler.requests[request_id]

    def table(self, request_id: str, group: int = 0) -> Any:
        return self.managers[group].req_to_blocks[request_id]

    def add(self, request_id: str, prompt_tokens: int, max_tokens: int = 64, shared: int = 0, offer: Offer | None = None) -> None:
        assert play(self.engine, Add(request_id, prompt_tokens, max_tokens, shared_tokens=shared, offer=offer))

    def schedule(self) -> bool:
        return self.engine.num_unprocessed_steps < self.engine.max_in_flight_steps and self.engine.schedule()

    def turn(self, accept: Callable[[StepRequest], Outcome] = accept_none) -> None:
        """Fills the pipeline, then takes in the oldest step."""
        while self.schedule():
            pass
        if self.engine.num_unprocessed_steps:
            self.engine.process(accept)

    def drain(self, turns: int, accept: Callable[[StepRequest], Outcome] = accept_none) -> bool:
        """Serves what is left; whether that ended within so many turns."""
        for _ in range(turns):
            if self.engine.is_idle:
                break
            self.turn(accept)
        return self.engine.is_idle

    def causes(self) -> set[str]:
        return {anomaly.cause for anomaly in self.inspector.inspect(self.steps)}


def mid_run(**keys: Any) -> Live:
    """A and B share a prefix of four blocks and decode, with steps of theirs in flight; what `gone` left is cached in the pool."""
    consumer = {"connector": ConnectorSetup()} if keys.pop("consumer", False) else {}
    live = Live(setup_of(enable_prefix_caching=True, **consumer), **keys)
    live.add("gone", 3 * B, 1)
    assert live.drain(10)
    for name in ("A", "B"):
        live.add(name, 4 * B + 3, shared=4 * B)
        live.turn()
    for _ in range(3):
        live.turn()
    assert live.schedule() or live.steps
    return live
