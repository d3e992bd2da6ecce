"""Faults planted into the installed release, inside a test only: the monitor or the inspector finds each, and nothing without it.

Releases from 0.26 on free on the settled basis; with the optimistic one put back, what 0.25.1 violates is violated again.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from driving import at_least
from live import HYBRID, B, Live, accept_none, setup_of

from settled.model import events as ev
from settled.model.monitor import Monitor
from settled.model.properties import Contract
from settled.model.specs import SlidingWindowSpec
from settled.reference.engines.setup import ConnectorSetup, EngineSetup

WINDOW = SlidingWindowSpec(block_size=B, window=2 * B)
Plant = Callable[[pytest.MonkeyPatch], None]
IS_SETTLED = at_least("0.26.0")


class Watched(Live):
    """A live engine whose events are kept, and which is inspected after each turn."""

    def __init__(self, setup: EngineSetup) -> None:
        self.events: list[ev.Event] = []
        super().__init__(setup, self.events.append)
        self.anomalies: set[str] = set()

    def schedule(self) -> bool:
        done = super().schedule()
        self.anomalies |= self.causes()
        return done

    def found(self, contract: Contract | None = None) -> dict[str, set[str]]:
        """Causes by property, of the trace under a contract (its own by default), and of the inspections."""
        config = self.events[0]
        assert isinstance(config, ev.Config)
        monitor = Monitor(config, contract)
        for line, event in enumerate(self.events, start=1):
            monitor.feed(line, event)
        found = {str(result.property): set(result.causes) for result in monitor.finish().properties if result.causes}
        # The gate of unmodified releases leaves out the slots of drafts.
        inspected = {cause for cause in self.anomalies if not cause.endswith(", lookahead]")}
        return {**found, "inspected": inspected} if inspected else found


def _consumer(*groups: Any, **keys: Any) -> EngineSetup:
    """With a connector that may load into pool blocks, the contract is `settled`."""
    return setup_of(*groups, connector=ConnectorSetup(), **keys)


def _prefill(live: Watched) -> None:
    """A's prompt takes several steps, two of them in flight; it ends by itself."""
    live.add("A", 200, 4)
    assert live.drain(100)


def _rejected(live: Watched) -> None:
    """Every draft of A and B is rejected."""
    live.add("A", 60, 60)
    live.add("B", 45, 60)
    assert live.drain(300, accept_none)


def _aborted(live: Watched) -> None:
    """A is aborted with steps in flight, and B takes its blocks."""
    live.add("A", 150, 30)
    for _ in range(2):
        live.turn()
    while live.schedule():
        pass
    live.engine.abort("A")
    live.add("B", 200, 4)
    assert live.drain(100)


def _preempted(live: Watched) -> None:
    """Four requests in a pool that holds hardly more than one."""
    for number in range(4):
        live.add(f"r{number}", 40 + number, 60)
    preempted = False
    for _ in range(600):
        preempted |= any(request.num_preemptions for request in live.scheduler.requests.values())
        if live.engine.is_idle:
            break
        live.turn()
    assert live.engine.is_idle
    assert preempted


def _shared(live: Watched) -> None:
    """Prompts that are equal and others: the pool is small, so that cached blocks are taken for other tokens."""
    for name, prompt, shared in (("A", 70, 64), ("B", 70, 64), ("C", 200, 0), ("D", 150, 0), ("E", 70, 64)):
        live.add(name, prompt, 4, shared=shared)
        for _ in range(3):
            live.turn()
    assert live.drain(100)


def _ran(run: Callable[[Watched], None], setup: EngineSetup) -> Watched:
    live = Watched(setup)
    run(live)
    return live


# ---- the optimistic basis ------------------------------------------------------------------------------------------


def optimistic_basis(patch: pytest.MonkeyPatch) -> None:
    """The prune of an allocation takes computed tokens for processed ones."""
    from vllm.v1.core.kv_cache_manager import KVCacheManager

    right = KVCacheManager.allocate_slots

    def allocate_slots(self: Any, request: Any, *args: Any, **keywords: Any) -> Any:
        in_flight, request.num_in_flight_tokens = request.num_in_flight_tokens, 0
        try:
            return right(self, request, *args, **keywords)
        finally:
            request.num_in_flight_tokens = in_flight

    patch.setattr(KVCacheManager, "allocate_slots", allocate_slots)


@pytest.mark.parametrize("groups", [(WINDOW,), HYBRID])
def test_the_optimistic_basis_violates_what_older_releases_violate(groups: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with_drafts, consumer = setup_of(*groups, num_speculative_tokens=4), _consumer(*groups)
    if IS_SETTLED:
        assert _ran(_rejected, with_drafts).found() == _ran(_prefill, consumer).found() == {}
        optimistic_basis(monkeypatch)
    assert "rollback_resident" in _ran(_rejected, with_drafts).found(Contract.STREAM_ORDER)
    prefill = _ran(_prefill, consumer)
    assert "freed[window]" in prefill.found(Contract.SETTLED)["read_resident"]
    assert prefill.found(Contract.STREAM_ORDER) == {}


# ---- other faults --------------------------------------------------------------------------------------------------


def no_fence(patch: pytest.MonkeyPatch) -> None:
    """A whole request's blocks go back under its steps in flight."""
    from vllm.v1.core.sched.scheduler import Scheduler

    patch.setattr(Scheduler, "defer_block_free", property(lambda self: False, lambda self, value: None), raising=False)


def raw_count_at_finish(patch: pytest.MonkeyPatch) -> None:
    """The prune before a connector's finish takes computed tokens for processed ones."""
    from vllm.v1.core.kv_cache_manager import KVCacheManager
    from vllm.v1.core.sched.scheduler import Scheduler

    finished, prune = Scheduler._connector_finished, KVCacheManager.remove_skipped_blocks

    def connector_finished(self: Any, request: Any) -> Any:
        def remove_skipped_blocks(request_id: str, processed_computed_tokens: int, num_prompt_tokens: Any = None) -> None:
            prune(self.kv_cache_manager, request_id, request.num_computed_tokens, num_prompt_tokens)

        self.kv_cache_manager.remove_skipped_blocks = remove_skipped_blocks
        try:
            return finished(self, request)
        finally:
            del self.kv_cache_manager.remove_skipped_blocks

    patch.setattr(Scheduler, "_connector_finished", connector_finished)


def _after_preemption(patch: pytest.MonkeyPatch, change: Callable[[Any], None]) -> None:
    from vllm.v1.core.sched.scheduler import Scheduler

    right = Scheduler._preempt_request

    def preempt(self: Any, request: Any, *args: Any, **keywords: Any) -> None:
        right(self, request, *args, **keywords)
        change(request)

    patch.setattr(Scheduler, "_preempt_request", preempt)


def in_flight_cleared_at_preemption(patch: pytest.MonkeyPatch) -> None:
    def clear(request: Any) -> None:
        request.num_in_flight_tokens = request.num_stale_output_tokens = 0

    _after_preemption(patch, clear)


def in_flight_kept_for_ever_at_preemption(patch: pytest.MonkeyPatch) -> None:
    def double(request: Any) -> None:
        request.num_in_flight_tokens *= 2

    _after_preemption(patch, double)


def stale_counted_beyond_steps(patch: pytest.MonkeyPatch) -> None:
    def count_more(request: Any) -> None:
        request.num_stale_output_tokens += 1

    _after_preemption(patch, count_more)


def double_free(patch: pytest.MonkeyPatch) -> None:
    """The first block of each batch loses two references."""
    from vllm.v1.core.block_pool import BlockPool

    right = BlockPool.free_blocks

    def free_blocks(self: Any, blocks: Any) -> None:
        listed = list(blocks)
        right(self, listed)
        for block in [block for block in listed if not block.is_null][:1]:
            block.ref_cnt -= 1

    patch.setattr(BlockPool, "free_blocks", free_blocks)


def cap_of_half(patch: pytest.MonkeyPatch) -> None:
    """The cap of half the tokens in flight, which up to 0.25 are one step's."""
    from vllm.v1.kv_cache_interface import SlidingWindowSpec as Spec

    right = Spec.max_admission_blocks_per_request

    def of_half(self: Any, *, max_model_len: int, **in_flight: int) -> int:
        halves = {name: tokens // 2 for name, tokens in in_flight.items()}
        return int(right(self, max_model_len=max_model_len, **halves))

    patch.setattr(Spec, "max_admission_blocks_per_request", of_half)


def hit_without_reference(patch: pytest.MonkeyPatch) -> None:
    from vllm.v1.core.block_pool import BlockPool

    right = BlockPool.touch

    def touch(self: Any, blocks: Any) -> None:
        right(self, blocks)
        for block in [block for block in blocks if block.ref_cnt > 1][:1]:
            block.ref_cnt -= 1

    patch.setattr(BlockPool, "touch", touch)


def table_kept_at_finish(patch: pytest.MonkeyPatch) -> None:
    """Freeing a request forgets its last group."""
    from vllm.v1.core.kv_cache_manager import KVCacheManager

    def free(self: Any, request: Any) -> None:
        for manager in self.coordinator.single_type_managers[:-1]:
            manager.free(request.request_id)

    patch.setattr(KVCacheManager, "free", free)


def entry_kept_at_reuse(patch: pytest.MonkeyPatch) -> None:
    """A block that is taken for other tokens keeps its entry in the prefix cache."""
    from vllm.v1.core.block_pool import BlockPool

    def forget(self: Any, block: Any) -> bool:
        is_cached = block.block_hash is not None
        block.reset_hash()
        return is_cached

    patch.setattr(BlockPool, "_maybe_evict_cached_block", forget)


CACHED = {"enable_prefix_caching": True, "num_blocks": 40}
TINY = {"num_blocks": 26, "max_model_len": 128}
PLANTED: dict[str, tuple[Plant, Callable[[Watched], None], EngineSetup, dict[str, str]]] = {
    "no fence": (no_fence, _aborted, _consumer(), {"read_resident": "freed[abort]", "write_owned": "reallocated[abort]"}),
    "raw count": (raw_count_at_finish, _aborted, _consumer(), {"read_resident": "freed[connector_finish]"}),
    "in flight cleared": (in_flight_cleared_at_preemption, _preempted, setup_of(**TINY), {"inspected": "in_flight"}),
    "in flight kept": (in_flight_kept_for_ever_at_preemption, _preempted, setup_of(**TINY), {"inspected": "in_flight"}),
    "stale": (stale_counted_beyond_steps, _preempted, setup_of(**TINY), {"inspected": "stale"}),
    "double free": (double_free, _prefill, setup_of(), {"single_owner": "not_freed"}),
    "cap": (cap_of_half, _prefill, setup_of(), {"held_bounded": "above_cap", "inspected": "above_cap[sliding_window]"}),
    "hit": (hit_without_reference, _shared, setup_of(**CACHED), {"inspected": "references_below_holders"}),
    "table kept": (table_kept_at_finish, _prefill, setup_of(), {"inspected": "table_without_request"}),
    "entry kept": (entry_kept_at_reuse, _shared, setup_of(**CACHED), {"inspected": "entry_without_hash"}),
}

SINCE = {"raw count": "0.26.0", "in flight cleared": "0.26.0", "in flight kept": "0.26.0", "stale": "0.29.0"}


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_fault_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if not at_least(SINCE.get(name, "0")):
        pytest.skip(f"what this breaks came with {SINCE[name]}")
    plant, run, setup, expected = PLANTED[name]
    before = _ran(run, setup).found()
    assert before == {} or not IS_SETTLED
    assert not {name for name, cause in expected.items() if cause in before.get(name, ())}
    plant(monkeypatch)
    live = Watched(setup)
    with suppress(AssertionError, ValueError):  # the engine may stop at it, or never come to its end; what it did is kept
        run(live)
    found = live.found()
    assert {name for name, cause in expected.items() if cause in found.get(name, ())} == set(expected), found
