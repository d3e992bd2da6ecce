"""Where releases of vLLM differ in what the recorder needs to know. Everything is asked of the live objects, never of a version number."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Features:
    """What a release has.

    `counts_stale`: requests count tokens in flight and stale ones (0.29 on), so the trace has counters. `touches_per_group`: a hit of all
    groups is one call of the pool, before the tables have it (to 0.13). `preempts_inline`: no method of its own preempts (0.11).
    """

    counts_stale: bool
    touches_per_group: bool
    preempts_inline: bool


def features_of(scheduler: Any) -> Features:
    """Asks the live scheduler, and the class of requests that it serves."""
    from vllm.v1.request import Request

    manager = scheduler.kv_cache_manager.coordinator.single_type_managers[0]
    return Features(
        counts_stale="num_stale_output_tokens" in Request.__init__.__code__.co_names,
        touches_per_group=hasattr(manager, "save_new_computed_blocks"),
        preempts_inline=not hasattr(scheduler, "_preempt_request"),
    )
