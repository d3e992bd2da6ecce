"""A setup as TokenSpeed's SchedulerConfig."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from settled.model.specs import FullAttentionSpec, KVCacheSpec, SlidingWindowSpec
from settled.reference.engines.setup import EngineSetup, SetupError

_MOST_BLOCKS = 1 << 16


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise SetupError(f"TokenSpeed: {message}")


def check_setup(setup: EngineSetup) -> None:
    """Raises SetupError for what TokenSpeed has no notion of, or what this adapter cannot see through its plans."""
    _require(bool(setup.groups), "no groups")
    for spec in setup.groups:
        known = isinstance(spec, FullAttentionSpec) or (isinstance(spec, SlidingWindowSpec) and not spec.extra_retained)
        _require(known, f"no group of kind {spec.kind} with these parameters")
    sizes = {spec.block_size for spec in setup.groups}
    _require(len(sizes) == 1, "groups with blocks of different sizes share no boundaries that a hash could cover")
    _require(setup.hash_block_size in (None, *sizes), "a hash covers one block")
    _require(setup.pipeline_parallel_size == 1, "no pipeline stages")
    _require(setup.connector is None, "no connector from outside: transfers are the scheduler's own operations")
    _require(not setup.extra, "no further settings")
    _require(setup.max_num_batched_tokens >= setup.max_num_seqs * (1 + setup.num_speculative_tokens), "decode steps do not fit a batch")


def scheduler_config(setup: EngineSetup) -> Any:
    """The configuration of a device pool of `num_blocks`, null block counted, without host memory. Raises SetupError."""
    check_setup(setup)
    import tokenspeed_scheduler as classes

    config = classes.SchedulerConfig()
    config.prefix_granularity = setup.groups[0].block_size
    config.num_device_pages = setup.num_blocks
    config.num_host_pages = 0
    config.num_snapshot_pages = 1  # the null page alone: requests wait for room, none is suspended
    config.disable_l2_cache = True
    config.disable_prefix_cache = not setup.enable_prefix_caching
    config.max_batch_size = setup.max_num_seqs
    config.max_scheduled_tokens = setup.max_num_batched_tokens
    config.decode_input_tokens = 1 + setup.num_speculative_tokens
    config.overlap_schedule_depth = int(setup.async_scheduling)
    config.cache_groups = [_group(index, spec, setup.num_blocks) for index, spec in enumerate(setup.groups)]
    return config


def group_id(index: int) -> str:
    """How a group is called."""
    return f"group{index}"


def _group(index: int, spec: KVCacheSpec, pages: int) -> Any:
    import tokenspeed_scheduler as classes

    if isinstance(spec, SlidingWindowSpec):
        return classes.CacheGroupConfig(group_id(index), spec.block_size, pages, classes.AttnKind.SlidingWindow, spec.window)
    return classes.CacheGroupConfig(group_id(index), spec.block_size, pages, classes.AttnKind.Full)


def start(setup: EngineSetup) -> Any:
    """A scheduler. Raises SetupError for what it does not accept, and for a pool that cannot hold one request of the greatest length."""
    import tokenspeed_scheduler as classes

    config = scheduler_config(setup)
    try:
        scheduler = classes.Scheduler(config)
        most = scheduler.max_single_request_tokens()
    except (ValueError, RuntimeError) as error:
        raise SetupError(f"TokenSpeed: {error}") from error
    # Its own bound for a request counts a whole decode step behind the prompt, however few tokens are asked for.
    needed = setup.max_model_len + setup.num_speculative_tokens
    _require(most >= needed, f"a request may have {most} tokens at most in this pool, not {needed}")
    return scheduler


def min_num_blocks(setup: EngineSetup) -> int:
    """The smallest pool in which the scheduler says that one request of the greatest length fits. Raises SetupError if there is none."""

    def accepts(num_blocks: int) -> bool:
        try:
            start(replace(setup, num_blocks=num_blocks))
        except SetupError:
            return False
        return True

    check_setup(setup)
    too_few, enough = 1, 2
    while not accepts(enough):
        too_few, enough = enough, 2 * enough
        _require(enough <= _MOST_BLOCKS, "no pool is large enough")
    while enough - too_few > 1:
        middle = (enough + too_few) // 2
        too_few, enough = (too_few, middle) if accepts(middle) else (middle, enough)
    return enough
