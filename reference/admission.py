"""Admission: how many blocks a request can hold at most, and whether the pool has them.

Start-up sizing and the run-time gate count with the same caps, so that what the first accepts the second can admit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import gcd

from settled.model.specs import (
    ChunkedLocalAttentionSpec,
    CustomSpec,
    FullAttentionSpec,
    KVCacheSpec,
    MambaSpec,
    RSWASpec,
    SinkWindowSpec,
    SlidingWindowSpec,
)
from settled.reference.config import ConfigError, EngineConfig
from settled.reference.free_queue import KVCacheBlock
from settled.reference.managers import SingleTypeKVCacheManager, cdiv


def max_admission_blocks_per_request(
    spec: KVCacheSpec,
    *,
    max_in_flight_tokens: int,
    max_model_len: int,
    num_lookahead_tokens: int = 0,
    max_in_flight_steps: int = 1,
) -> int:
    """The cap: blocks of this group that one request holds at most. Tokens count slots; M, those in flight.

    Where vLLM publishes a formula (`max_admission_blocks_per_request` of its specs), the cap is that one wherever it is sound, and
    otherwise the exact maximum. It leaves lookahead slots out, which are held as well: they are counted in flight here. Raises
    TypeError for a kind that has no manager.
    """
    size = spec.block_size
    in_flight = max_in_flight_tokens + num_lookahead_tokens
    match spec:
        case SlidingWindowSpec():
            # The window, what is in flight, and one block more, for neither end need fall on a block boundary.
            return cdiv(min(spec.window - 1 + spec.extra_retained + in_flight, max_model_len), size) + 1
        case ChunkedLocalAttentionSpec():
            # A chunk may start anywhere that is a multiple of gcd in its block: up to size - gcd tokens of the chunk before stay with it.
            before_chunk = max(0, size - gcd(size, spec.chunk) - 1)
            return cdiv(min(spec.chunk + in_flight + before_chunk, max_model_len), size)
        case SinkWindowSpec():
            behind_sink = cdiv(spec.window - 2 + in_flight, size) + 1
            return min(cdiv(spec.sink, size) + behind_sink, cdiv(max_model_len, size))
        case MambaSpec(mode="none"):
            return 1 + spec.num_speculative_blocks
        case MambaSpec(mode="align"):
            # The last settled state, and a running slot for each step in flight. vLLM publishes 2 + the draft slots: one step in flight.
            return 1 + max_in_flight_steps + spec.num_speculative_blocks
        case FullAttentionSpec() | RSWASpec() | CustomSpec():
            return cdiv(max_model_len, size)
        case _:
            raise TypeError(f"no cap for kind {spec.kind!r}")


def with_caps(config: EngineConfig) -> EngineConfig:
    """The same configuration with the cap of every group filled in, where it is not given."""
    in_flight = config.max_in_flight_tokens if config.discipline.cap_counts_in_flight else 0
    groups = tuple(
        spec
        if spec.cap is not None
        else replace(
            spec,
            cap=max_admission_blocks_per_request(
                spec,
                max_in_flight_tokens=in_flight,
                max_model_len=config.max_model_len,
                num_lookahead_tokens=config.num_lookahead_tokens,
                max_in_flight_steps=config.max_in_flight_steps if config.discipline.cap_counts_in_flight else 1,
            ),
        )
        for spec in config.groups
    )
    return replace(config, groups=groups)


def blocks_for_one_request(config: EngineConfig) -> int:
    """Blocks that one request of maximum length can hold, over all groups; the null block is not counted."""
    caps = [spec.cap for spec in with_caps(config).groups]
    return sum(cap for cap in caps if cap is not None)


def check_pool_size(config: EngineConfig) -> None:
    """Raises ConfigError when the pool cannot hold one request of maximum length: it could wait for ever."""
    needed, owned = blocks_for_one_request(config), config.num_blocks - 1
    if needed > owned:
        raise ConfigError(
            f"num_blocks: one request of {config.max_model_len} tokens can hold {needed} blocks, the pool has {owned} (and the null block)"
        )


def full_sequence_fits(
    managers: Sequence[SingleTypeKVCacheManager],
    num_tokens: int,
    kept: Sequence[Sequence[KVCacheBlock]],
    num_free_blocks: int,
) -> bool:
    """The gate: whether the pool can hold a waiting request of `num_tokens` tokens to the end of its prefill.

    Without it, chunked prefill admits on the first chunk alone, and long prompts preempt each other. A group takes from the
    pool what the hit leaves to compute and the blocks kept of it that are free now, but never more than its cap at a time.
    """
    needed = 0
    for manager, blocks in zip(managers, kept, strict=True):
        taken = manager.blocks_for_sequence(num_tokens, blocks)
        needed += taken if manager.cap is None else min(taken, manager.cap)
    return needed <= num_free_blocks
