"""Small engines whose states are all looked at: right ones, and ones in which one choice is wrong."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from settled.model.disciplines import CAP_WITHOUT_IN_FLIGHT, PREEMPT_FENCED
from settled.model.specs import FullAttentionSpec, KVCacheSpec, SlidingWindowSpec
from settled.proofs.graphs.explore import Scenario
from settled.reference.admission import blocks_for_one_request
from settled.reference.config import EngineConfig, StaleOutputMode


class Named(NamedTuple):
    """A scenario, in a sentence; `is_right`: nothing in it may be stuck or go round in a circle."""

    meaning: str
    scenario: Scenario
    is_right: bool = True


WINDOW, FULL = SlidingWindowSpec(block_size=2, window=3), FullAttentionSpec(block_size=2)
_TWO = ((5, 4), (4, 4))


def _sized(*groups: KVCacheSpec, max_num_batched_tokens: int = 4, **settings: object) -> EngineConfig:
    """An engine with exactly the pool that start-up sizing asks for."""
    config = EngineConfig(
        groups=groups,
        num_blocks=2,
        max_in_flight_steps=2,
        max_num_batched_tokens=max_num_batched_tokens,
        max_num_seqs=2,
        max_model_len=12,
        **settings,  # type: ignore[arg-type]
    )
    return replace(config, num_blocks=1 + blocks_for_one_request(config))


SCENARIOS: dict[str, Named] = {
    "window": Named("a sliding window at its start-up size, two requests, depth 2", Scenario(config=_sized(WINDOW), requests=_TWO)),
    "drafts": Named(
        "the same with a draft a step, and stale output dropped",
        Scenario(config=_sized(WINDOW, num_speculative_tokens=1, stale_output_mode=StaleOutputMode.DROP), requests=_TWO),
    ),
    "cache": Named(
        "full attention and a window over one pool, with a prefix cache",
        Scenario(config=_sized(FULL, WINDOW, enable_prefix_caching=True), requests=_TWO),
    ),
    "full-drop": Named(
        "full attention, three requests that preempt each other, stale output dropped",
        Scenario(config=_sized(FULL, num_speculative_tokens=1, stale_output_mode=StaleOutputMode.DROP), requests=((5, 5), (6, 5), (4, 5))),
    ),
    "cap-stuck": Named(
        "a cap without the tokens in flight: the gate lets a request in whose first step never fits",
        Scenario(config=_sized(WINDOW, max_num_batched_tokens=6, discipline=CAP_WITHOUT_IN_FLIGHT), requests=((6, 2), (2, 2))),
        is_right=False,
    ),
    "cap-circle": Named(
        "a cap without the tokens in flight: the second step never fits, and the request preempts itself for ever",
        Scenario(config=_sized(WINDOW, discipline=CAP_WITHOUT_IN_FLIGHT), requests=((8, 2),)),
        is_right=False,
    ),
    "preempt-fenced": Named(
        "victims whose blocks wait behind the fence are preempted: nothing is freed, so the next one goes too, and all start over",
        Scenario(
            config=EngineConfig(
                groups=(SlidingWindowSpec(block_size=4, window=14),),
                num_blocks=6,
                max_in_flight_steps=3,
                max_num_batched_tokens=6,
                max_num_seqs=2,
                num_speculative_tokens=1,
                max_model_len=14,
                long_prefill_token_threshold=4,
                stale_output_mode=StaleOutputMode.DROP,
                discipline=PREEMPT_FENCED,
            ),
            requests=((8, 6), (11, 1)),
        ),
        is_right=False,
    ),
}
