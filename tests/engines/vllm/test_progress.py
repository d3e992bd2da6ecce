"""The bound within which every request finishes, and requests of unmodified releases that never do in a pool which start-up accepts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import pytest
from live import HYBRID, B, Live, accept_all, accept_none, setup_of, smallest_pool

from settled.model.specs import ChunkedLocalAttentionSpec, FullAttentionSpec, KVCacheSpec, MambaSpec, SlidingWindowSpec
from settled.reference.engines.setup import EngineSetup
from settled.reference.engines.vllm.adapter import VllmFactory
from settled.reference.engines.vllm.inspection_progress import hindrance, steps_to_finish_max


def _finishes(live: Live, accept: Any = accept_none) -> bool:
    return live.drain(steps_to_finish_max(live.scheduler, live.engine.max_in_flight_steps), accept)


def _smallest(*groups: KVCacheSpec, **keys: Any) -> EngineSetup:
    setup = setup_of(*groups, **{"max_num_seqs": 1, **keys})
    return replace(setup, num_blocks=smallest_pool(setup))


def test_every_request_finishes_within_the_bound() -> None:
    live = Live(setup_of(*HYBRID, num_blocks=28, max_model_len=128))
    for number in range(4):
        live.add(f"r{number}", 60 + number, 128)
    assert _finishes(live)


class Endless(NamedTuple):
    """A request that is preempted and begins again for ever, and why its group needs more than start-up sizing counts."""

    group: KVCacheSpec
    prompt_tokens: int
    keys: dict[str, Any]
    accept: Any = accept_none
    since: tuple[int, ...] = (0, 20)  # the first release with the fault


ENDLESS = {
    # ceil(min(X + M, L) / B) = 2. One step of 17 tokens from 16 on: the chunk from 12 on has block 0, tokens up to 32 blocks 1 and 2.
    "chunk of 6": Endless(
        ChunkedLocalAttentionSpec(block_size=B, chunk=6),
        33,
        {"async_scheduling": False, "max_num_batched_tokens": 17, "max_model_len": 64},
    ),
    # 2 again. Two steps of 4 tokens, and a chunk from 24 on: blocks 1 to 3.
    "chunk of 24": Endless(
        ChunkedLocalAttentionSpec(block_size=B, chunk=24), 1, {"max_num_batched_tokens": 4, "max_model_len": 64}, since=(0, 26)
    ),
    # Slots past a step's tokens are not counted, even where B divides X.
    "chunk of 16, drafts": Endless(
        ChunkedLocalAttentionSpec(block_size=B, chunk=16),
        133,
        {"async_scheduling": False, "max_num_batched_tokens": 48, "max_model_len": 160, "num_speculative_tokens": 3},
    ),
    "window of 33, drafts": Endless(
        SlidingWindowSpec(block_size=B, window=33),
        140,
        {"async_scheduling": False, "max_num_batched_tokens": 48, "max_model_len": 160, "num_speculative_tokens": 4},
        accept_all,
    ),
}


@pytest.mark.parametrize("name", ENDLESS)
def test_a_request_that_begins_again_for_ever(name: str) -> None:
    group, prompt_tokens, keys, accept, since = ENDLESS[name]
    setup = _smallest(group, **keys)
    live = Live(setup)
    live.add("A", prompt_tokens, setup.max_model_len)
    finishes = _finishes(live, accept)
    assert finishes == (_release() < since)
    kind = "chunked_local" if isinstance(group, ChunkedLocalAttentionSpec) else "sliding_window"
    assert finishes or hindrance(live.scheduler).startswith(f"preempted for ever[{kind}")
    assert ("lookahead" in hindrance(live.scheduler)) == (not finishes and "num_speculative_tokens" in keys)
    roomy = Live(replace(setup, num_blocks=setup.num_blocks + 1))
    roomy.add("A", prompt_tokens, setup.max_model_len)
    assert _finishes(roomy, accept)


def _release() -> tuple[int, ...]:
    return tuple([int(part) for part in VllmFactory().release.version.split(".")])


def test_a_pool_without_room_for_the_null_block() -> None:
    """Older releases accept it, and the gate, which counts on the whole cap, never lets a long request in."""
    setup = setup_of(SlidingWindowSpec(block_size=B, window=33), max_num_batched_tokens=48, max_num_seqs=1)
    accepted, counted = VllmFactory().min_num_blocks(setup), smallest_pool(setup)
    live = Live(replace(setup, num_blocks=accepted))
    live.add("A", 150, 4)
    assert _finishes(live) == (accepted == counted or _release() < (0, 20))  # before 0.20 there is no gate
    if live.scheduler.requests:
        assert hindrance(live.scheduler) == "never admitted[sliding_window, no room for the null block]"


@pytest.mark.parametrize("batched_tokens", [B, B + 1])
def test_aligned_states_with_drafts_and_no_more_batched_tokens_than_a_block_has(batched_tokens: int) -> None:
    """Drafting takes a slot of the step's budget, so a chunk never reaches the end of a block: the request waits in an empty pool."""
    groups = FullAttentionSpec(block_size=B), MambaSpec(block_size=B, mode="align", num_speculative_blocks=1)
    live = Live(
        setup_of(*groups, num_speculative_tokens=1, enable_prefix_caching=True, max_num_batched_tokens=batched_tokens, max_num_seqs=1)
    )
    live.add("A", 40, 8)
    assert _finishes(live) == (batched_tokens > B)
    if batched_tokens == B:
        assert hindrance(live.scheduler).startswith("never admitted[full, mamba align, lookahead")
