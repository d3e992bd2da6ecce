"""vLLM's own start-up, without a device: groups, pool, block sizes, hashes, and the check that the pool holds one longest request.

`EngineCore._initialize_kv_caches` is called as it is, with an executor that answers what workers would: specs of layers and memory.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib import import_module
from inspect import getattr_static
from types import SimpleNamespace
from typing import Any, NamedTuple

from settled.reference.engines.setup import EngineSetup, SetupError
from settled.reference.engines.vllm.configuration import describes, layer_specs, page_bytes, refused, vllm_config_for
from settled.reference.engines.vllm.releases import Release

_MOST_BLOCKS = 1 << 20  # what no pool of a workload comes near: refused with it, a setup is refused with any


class Started(NamedTuple):
    """What start-up leaves behind. `hasher`: None without prefix caching and connector, as vLLM then computes no hashes."""

    vllm_config: Any
    kv_cache_config: Any
    scheduler: Any
    hasher: Callable[[Any], Any] | None
    max_in_flight_steps: int


def start(setup: EngineSetup, release: Release) -> Started:
    """A scheduler as EngineCore builds it. Raises SetupError for what the release does not accept."""
    vllm_config, kv_cache_config = _started_up(setup, release)
    if kv_cache_config.num_blocks != setup.num_blocks:
        raise SetupError(f"a pool of {setup.num_blocks} blocks came out as one of {kv_cache_config.num_blocks}")
    with refused():
        parts = _parts(setup, vllm_config, kv_cache_config, release)
        scheduler = parts.scheduler_class(
            vllm_config=vllm_config,
            kv_cache_config=kv_cache_config,
            structured_output_manager=parts.structured_output_manager,
            include_finished_set=False,
            log_stats=False,
            **parts.sizes,
        )
    return Started(vllm_config, kv_cache_config, scheduler, parts.hasher, parts.max_in_flight_steps)


class _Parts(NamedTuple):
    """What the engines of one set-up share beside its configuration: nothing of it has a state that requests without grammars change."""

    scheduler_class: Callable[..., Any]
    sizes: dict[str, int]  # in tokens, as the scheduler takes them
    structured_output_manager: Any
    hasher: Callable[[Any], Any] | None
    max_in_flight_steps: int


def _parts(setup: EngineSetup, vllm_config: Any, kv_cache_config: Any, release: Release) -> _Parts:
    """Made once for the latest start-up."""
    latest = _latest[0]
    if latest.parts is None:
        latest.parts = _make_parts(setup, vllm_config, kv_cache_config, release)
    return latest.parts


def _make_parts(setup: EngineSetup, vllm_config: Any, kv_cache_config: Any, release: Release) -> _Parts:
    from vllm.v1.structured_output import StructuredOutputManager

    block_size, hash_block_size = _block_sizes(kv_cache_config, vllm_config, release)
    sizes = {"block_size": block_size} if release.has("scheduler_block_size") else {}
    if release.has("resolves_block_sizes"):
        sizes["hash_block_size"] = hash_block_size
    hasher = None
    if setup.enable_prefix_caching or setup.connector is not None:
        hasher = _request_block_hasher(hash_block_size, vllm_config, release)
    return _Parts(
        scheduler_class=_scheduler_class(vllm_config, release),
        sizes=sizes,
        structured_output_manager=StructuredOutputManager(vllm_config),
        hasher=hasher,
        max_in_flight_steps=max_concurrent_batches(vllm_config, release),
    )


def min_num_blocks(setup: EngineSetup, release: Release) -> int:
    """The smallest pool that start-up accepts, null block counted: found by asking it. Raises SetupError if it accepts none."""
    return _min_num_blocks(replace(setup, num_blocks=1), release)


@lru_cache(maxsize=1024)
def _min_num_blocks(setup: EngineSetup, release: Release) -> int:
    def accepts(num_blocks: int) -> bool:
        try:
            _started_up(replace(setup, num_blocks=num_blocks), release)
        except SetupError:
            return False
        return True

    # What the specs say of one longest request is nearly always the answer; the rest costs a start-up a question.
    enough = max(1, _estimated_num_blocks(setup, release))
    step = 1
    if accepts(enough):
        while enough > step and accepts(enough - step):
            enough, step = enough - step, 2 * step
        too_few = max(0, enough - step)
    else:
        _started_up(replace(setup, num_blocks=_MOST_BLOCKS), release)
        too_few = enough
        while not accepts(too_few + step):
            too_few, step = too_few + step, 2 * step
        enough = too_few + step
    while enough - too_few > 1:
        middle = (enough + too_few) // 2
        enough, too_few = (middle, too_few) if accepts(middle) else (enough, middle)
    return enough


def _estimated_num_blocks(setup: EngineSetup, release: Release) -> int:
    """Blocks of one longest request by each group's own account, and the null block. A guess: start-up is asked about it."""
    _latest.clear()
    vllm_config = vllm_config_for(setup, release)
    with refused():
        bytes_needed = [int(spec.max_memory_usage_bytes(vllm_config)) for spec in layer_specs(setup, release).values()]
    return 1 + sum([-(-each // page_bytes(setup)) for each in bytes_needed])


@dataclass(slots=True, eq=False)
class _StartedUp:
    """A start-up that is over."""

    setup: EngineSetup
    release: Release
    vllm_config: Any
    kv_cache_config: Any
    parts: _Parts | None = None  # until the first scheduler is built


_latest: list[_StartedUp] = []  # at most one: start-up writes into a VllmConfig that setups share


def _started_up(setup: EngineSetup, release: Release) -> tuple[Any, Any]:
    """VllmConfig and KVCacheConfig after start-up, which is run again unless the latest one was the same.

    Nothing writes into either after start-up. Raises SetupError if it refuses, or makes other groups.
    """
    if not _latest or (_latest[0].setup, _latest[0].release) != (setup, release):
        _latest.clear()
        vllm_config = vllm_config_for(setup, release)
        _latest.append(_StartedUp(setup, release, vllm_config, _initialize_kv_caches(setup, vllm_config, release)))
    return _latest[0].vllm_config, _latest[0].kv_cache_config


def _initialize_kv_caches(setup: EngineSetup, vllm_config: Any, release: Release) -> Any:
    """The KVCacheConfig that start-up makes of the setup's layers and memory. Raises SetupError if it refuses, or makes other groups."""
    from vllm.v1.engine.core import EngineCore

    page = page_bytes(setup)
    host_bytes = dict(setup.connector.extra).get("cpu_bytes_to_use") if setup.connector is not None else None
    host_blocks = None if host_bytes is None else int(host_bytes) // page
    executor = _Executor(layer_specs(setup, release), setup.num_blocks * page, host_blocks)
    core = SimpleNamespace(model_executor=executor, collective_rpc=_no_rpc, available_gpu_memory_for_kv_cache=-1)
    with refused():
        answer = EngineCore._initialize_kv_caches(core, vllm_config)
    if release.has("start_up_returns_counts"):
        vllm_config.cache_config.num_gpu_blocks, vllm_config.cache_config.num_cpu_blocks, answer = answer
    made = [group.kv_cache_spec for group in answer.kv_cache_groups]
    if len(made) != len(setup.groups) or not all(map(describes, setup.groups, made)):
        raise SetupError(f"start-up makes other groups of these layers: {made}")
    return answer


class _Executor:
    """What start-up asks of workers."""

    def __init__(self, specs: dict[str, Any], available_bytes: int, host_blocks: int | None) -> None:
        self.specs = specs
        self.available_bytes = available_bytes
        self.host_blocks = host_blocks

    def get_kv_cache_specs(self) -> list[dict[str, Any]]:
        return [dict(self.specs)]  # start-up may change the dictionary

    def determine_available_memory(self) -> list[int]:
        return [self.available_bytes]

    def get_supported_kv_cache_layouts(self) -> list[list[str]]:
        from vllm.v1.attention.backends.utils import get_supported_kv_cache_layouts

        return [[layout.name for layout in get_supported_kv_cache_layouts([])]]

    def set_kv_cache_layout(self, *layout: Any) -> None:
        """Workers take note of it."""

    def initialize_from_config(self, kv_cache_configs: list[Any]) -> None:
        """Workers allocate."""

    def compile_or_warm_up_model(self) -> None:
        """Workers warm up."""

    def get_simple_cpu_offload_num_blocks(self) -> int | None:
        """Asked only beside SimpleCPUOffloadConnector: blocks that the host's memory holds."""
        return self.host_blocks


def _no_rpc(method: str, args: tuple[Any, ...] = ()) -> None:
    raise SetupError(f"start-up asks workers to {method}: max_model_len does not fit")


def _block_sizes(kv_cache_config: Any, vllm_config: Any, release: Release) -> tuple[int, int]:
    """Tokens: what the scheduler aligns to, and what a hash covers."""
    if release.has("resolves_block_sizes"):
        from vllm.v1.core.kv_cache_utils import resolve_kv_cache_block_sizes

        scheduler_block_size, hash_block_size = resolve_kv_cache_block_sizes(kv_cache_config, vllm_config)
        return scheduler_block_size, hash_block_size
    return vllm_config.cache_config.block_size, vllm_config.cache_config.block_size


def _scheduler_class(vllm_config: Any, release: Release) -> Any:
    if release.has("scheduler_class"):
        return vllm_config.scheduler_config.get_scheduler_cls()
    from vllm.v1.core.sched import async_scheduler, scheduler

    return async_scheduler.AsyncScheduler if vllm_config.scheduler_config.async_scheduling else scheduler.Scheduler


def _request_block_hasher(hash_block_size: int, vllm_config: Any, release: Release) -> Callable[[Any], Any]:
    from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash

    module = import_module("vllm.utils.hashing" if release.has("hashing_module") else "vllm.utils")
    function = module.get_hash_fn_by_name(vllm_config.cache_config.prefix_caching_hash_algo)
    init_none_hash(function)
    lookahead = (vllm_config.num_hash_lookahead_tokens,) if release.has("hash_lookahead") else ()
    hasher: Callable[[Any], Any] = get_request_block_hasher(hash_block_size, function, *lookahead)
    return hasher


def max_concurrent_batches(vllm_config: Any, release: Release) -> int:
    """Steps that the engine core keeps in flight at most."""
    if release.has("depth_on_config"):
        return int(vllm_config.max_concurrent_batches)
    from vllm.v1.executor.abstract import Executor

    declared = getattr_static(Executor.get_class(vllm_config), "max_concurrent_batches")
    count: Any = declared.fget if isinstance(declared, property) else declared.func
    executor = SimpleNamespace(scheduler_config=vllm_config.scheduler_config, parallel_config=vllm_config.parallel_config)
    return int(count(executor))
