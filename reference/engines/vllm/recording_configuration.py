"""The first line of a trace of vLLM: what the scheduler was built with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from settled.model.events import SCHEMA_VERSION, Config
from settled.model.specs import (
    ChunkedLocalAttentionSpec,
    CrossAttentionSpec,
    CustomSpec,
    FullAttentionSpec,
    KVCacheSpec,
    MambaSpec,
    RSWASpec,
    SlidingWindowSpec,
)
from settled.reference.engines.vllm.recording_releases import Features

_Reader = Callable[[Any, Any, int | None, bool], KVCacheSpec]


def config_of(scheduler: Any, vllm_config: Any, features: Features, *, engine: str, max_in_flight_steps: int) -> Config:
    """What the scheduler itself counts with; sizes in tokens, pool in blocks with the null block."""
    manager = scheduler.kv_cache_manager
    transfer = vllm_config.kv_transfer_config
    caches = bool(manager.enable_caching)
    return Config(
        schema=SCHEMA_VERSION,
        engine=engine,
        num_blocks=len(manager.block_pool.blocks),
        max_in_flight_steps=max_in_flight_steps,
        max_batched_tokens=vllm_config.scheduler_config.max_num_batched_tokens,
        num_draft_tokens=scheduler.num_spec_tokens,
        prefix_caching=caches,
        kv_consumer=bool(transfer is not None and transfer.is_kv_consumer),
        groups=tuple([spec_of(single, caches=caches) for single in manager.coordinator.single_type_managers]),
        num_lookahead_tokens=scheduler.num_lookahead_tokens,
        max_model_len=scheduler.max_model_len,
        records=_records(features, caches=caches),
    )


def _records(features: Features, *, caches: bool) -> tuple[str, ...]:
    families = ["holds", "copies", "zero"]
    if features.counts_stale:
        families.append("counters")
    if caches:
        families.append("content")
    return tuple(families)


def spec_of(manager: Any, *, caches: bool) -> KVCacheSpec:
    """A group's kind, by the live manager that serves it. A kind that is not known is `custom`, under its class's name.

    `caches`: the engine has a prefix cache.
    """
    spec = manager.kv_cache_spec
    cap = getattr(manager, "max_admission_blocks_per_request", getattr(manager, "_max_admission_blocks_per_request", None))
    for kind in type(spec).__mro__:
        if kind.__name__ in _READERS:
            return _READERS[kind.__name__](spec, manager, cap, caches)
    return CustomSpec(block_size=manager.block_size, cap=cap, name=type(spec).__name__)


def _sliding_window(spec: Any, manager: Any, cap: int | None, caches: bool) -> KVCacheSpec:
    extra = getattr(spec, "extra_retained_tokens", 0) or 0
    return SlidingWindowSpec(block_size=manager.block_size, cap=cap, window=spec.sliding_window, extra_retained=extra)


def _mamba(spec: Any, manager: Any, cap: int | None, caches: bool) -> KVCacheSpec:
    # Releases before there was a mode keep all states with a prefix cache, and one without.
    mode: Any = getattr(spec, "mamba_cache_mode", "all" if caches else "none")
    return MambaSpec(block_size=manager.block_size, cap=cap, mode=mode, num_speculative_blocks=spec.num_speculative_blocks)


_READERS: dict[str, _Reader] = {  # by the class of vLLM's spec, or one that it is derived from
    "FullAttentionSpec": lambda spec, manager, cap, _: FullAttentionSpec(block_size=manager.block_size, cap=cap),
    "SlidingWindowSpec": _sliding_window,
    "ChunkedLocalAttentionSpec": lambda spec, manager, cap, _: ChunkedLocalAttentionSpec(
        block_size=manager.block_size, cap=cap, chunk=spec.attention_chunk_size
    ),
    "MambaSpec": _mamba,
    "RSWASpec": lambda spec, manager, cap, _: RSWASpec(block_size=manager.block_size, cap=cap, window=spec.rswa_window),
    "CrossAttentionSpec": lambda spec, manager, cap, _: CrossAttentionSpec(block_size=manager.block_size, cap=cap),
}
