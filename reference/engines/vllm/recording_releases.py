"""Where releases of vLLM differ in what the recorder needs to know. Everything is asked of the live objects, never of a version number."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from functools import cache
from typing import Any


@dataclass(frozen=True, slots=True)
class Features:
    """What a release has.

    `counts_stale`: requests count tokens in flight and stale ones (0.29 on), so the trace has counters. `touches_per_group`: a hit of all
    groups is one call of the pool, before the tables have it (to 0.13). `preempts_inline`: no method of its own preempts (0.11).
    `counts_when_loaded`: what a load beside the steps brings is counted when it is there, not when it starts (to 0.16).
    """

    counts_stale: bool
    touches_per_group: bool
    preempts_inline: bool
    counts_when_loaded: bool


def features_of(scheduler: Any) -> Features:
    """Asks the classes of the live scheduler, of its managers, and of the requests that it serves."""
    scheduler_class: Any = type(scheduler)
    manager_class: Any = type(scheduler.kv_cache_manager.coordinator.single_type_managers[0])
    return _features_of(scheduler_class, manager_class)


@cache  # a hunt builds thousands of schedulers
def _features_of(scheduler: Any, manager: Any) -> Features:
    from vllm.v1.request import Request

    return Features(
        counts_stale="num_stale_output_tokens" in Request.__init__.__code__.co_names,
        touches_per_group=hasattr(manager, "save_new_computed_blocks"),
        preempts_inline=not hasattr(scheduler, "_preempt_request"),
        # The same change of vLLM's took this answer away: whether the load is there.
        counts_when_loaded=inspect.signature(scheduler._update_waiting_for_remote_kv).return_annotation in (bool, "bool"),
    )
