"""Admission: how many blocks a request can hold at most, and whether the pool has them.

Start-up sizing and the run-time gate count with the same caps, so that what the first accepts the second can admit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from settled.model.specs import FullAttentionSpec, KVCacheSpec, SlidingWindowSpec
from settled.reference.config import ConfigError, EngineConfig
from settled.reference.free_queue import KVCacheBlock
from settled.reference.managers import SingleTypeKVCacheManager, cdiv, count_free


def max_admission_blocks_per_request(
    spec: KVCacheSpec, *, max_in_flight_tokens: int, max_model_len: int, num_lookahead_tokens: int = 0
) -> int:
    """The cap: blocks of this group that one request holds at most.

    Full attention holds every block to the end. A window holds what its oldest unprocessed step reads (window - 1 tokens
    and the retained ones), what is in flight, and one block more, for neither end need fall on a block boundary. This is
    vLLM's published formula; it leaves lookahead slots out, which are held as well, so they are counted in flight here.
    """
    if isinstance(spec, FullAttentionSpec):
        return cdiv(max_model_len, spec.block_size)
    if isinstance(spec, SlidingWindowSpec):
        in_reach = spec.window - 1 + spec.extra_retained + max_in_flight_tokens + num_lookahead_tokens
        return cdiv(min(in_reach, max_model_len), spec.block_size) + 1
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
    hit: Sequence[Sequence[KVCacheBlock]],
    num_free_blocks: int,
) -> bool:
    """The gate: whether the pool can hold a waiting request of `num_tokens` tokens to the end of its prefill.

    Without it, chunked prefill admits on the first chunk alone, and long prompts preempt each other. A group takes from the
    pool what the hit leaves to compute and the hit blocks that are free now, but never more than its cap at a time.
    """
    needed = 0
    for manager, blocks in zip(managers, hit, strict=True):
        taken = max(0, cdiv(num_tokens, manager.block_size) - len(blocks)) + count_free(blocks)
        needed += taken if manager.cap is None else min(taken, manager.cap)
    return needed <= num_free_blocks
