"""The bound within which every request finishes, and requests of unmodified releases that never do in a pool which start-up accepts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import pytest
from live import HYBRID, B, Live, accept_all, accept_none, setup_of

from settled.model.specs import ChunkedLocalAttentionSpec, FullAttentionSpec, KVCacheSpec, MambaSpec, SlidingWindowSpec
from settled.reference.engines.setup import EngineSetup
from settled.reference.engines.vllm.adapter import VllmFactory
from settled.reference.engines.vllm.inspection_progress import steps_to_finish_max


def _finishes(live: Live, accept: Any = accept_none) -> bool:
    return live.drain(steps_to_finish_max(live.scheduler, live.engine.max_in_flight_steps), accept)


def _smallest(*groups: KVCacheSpec, **keys: Any) -> EngineSetup:
    """In the smallest pool that the release's start-up check accepts, one block more in those that forget the null block there."""
    setup = setup_of(*groups, **{"max_num_seqs": 1, **keys})
    counted = sum(Live(setup).inspector._view.sizing_cap(group) for group in range(len(groups)))
    return replace(setup, num_blocks=max(VllmFactory().min_num_blocks(setup), counted + 1))


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


ENDLESS = {
    # ceil(min(X + M, L) / B) = 2. One step of 17 tokens from 16 on: the chunk from 12 on has block 0, tokens up to 32 blocks 1 and 2.
    "chunk of 6": Endless(
        ChunkedLocalAttentionSpec(block_size=B, chunk=6),
        33,
        {"async_scheduling": False, "max_num_batched_tokens": 17, "max_model_len": 64},
    ),
    # 2 again. Two steps of 4 tokens, and a chunk from 24 on: blocks 1 to 3.
    "chunk of 24": Endless(ChunkedLocalAttentionSpec(block_size=B, chunk=24), 1, {"max_num_batched_tokens": 4, "max_model_len": 64}),
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
    group, prompt_tokens, keys, accept = ENDLESS[name]
    setup = _smallest(group, **keys)
    live = Live(setup)
    live.add("A", prompt_tokens, setup.max_model_len)
    assert not _finishes(live, accept)
    assert live.request("A").num_preemptions > 5
    roomy = Live(replace(setup, num_blocks=setup.num_blocks + 1))
    roomy.add("A", prompt_tokens, setup.max_model_len)
    assert _finishes(roomy, accept)


@pytest.mark.parametrize("batched_tokens", [B, B + 1])
def test_aligned_states_with_drafts_and_no_more_batched_tokens_than_a_block_has(batched_tokens: int) -> None:
    """Drafting takes a slot of the step's budget, so a chunk never reaches the end of a block: the request waits in an empty pool."""
    groups = FullAttentionSpec(block_size=B), MambaSpec(block_size=B, mode="align", num_speculative_blocks=1)
    live = Live(
        setup_of(*groups, num_speculative_tokens=1, enable_prefix_caching=True, max_num_batched_tokens=batched_tokens, max_num_seqs=1)
    )
    live.add("A", 40, 8)
    assert _finishes(live) == (batched_tokens > B)
