"""A live vLLM scheduler, read: where each release keeps what the inspections compare. Nothing here changes anything.

Releases differ in which of these objects they have, not in what they mean, so a reader asks for an attribute and goes without it where
the release has none. Sizes are in blocks, counts in tokens.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

_KINDS = {
    "FullAttentionSpec": "full",
    "SlidingWindowSpec": "sliding_window",
    "ChunkedLocalAttentionSpec": "chunked_local",
    "MambaSpec": "mamba",
    "CrossAttentionSpec": "cross",
    "RSWASpec": "rswa",
}
_QUEUES = ("waiting", "skipped_waiting", "kv_holding_waiting")  # of requests that do not run; `running` apart


class View:
    """The scheduler's parts that keep blocks, and who holds them."""

    def __init__(self, scheduler: Any) -> None:
        self.scheduler = scheduler
        self.kv_cache_manager = scheduler.kv_cache_manager
        self.managers: Sequence[Any] = scheduler.kv_cache_manager.coordinator.single_type_managers
        self.pool = scheduler.kv_cache_manager.block_pool
        self.lookahead: int = scheduler.num_lookahead_tokens
        caches = bool(self.kv_cache_manager.enable_caching)
        self.kinds = tuple([_kind(manager.kv_cache_spec, caches=caches) for manager in self.managers])
        self._sizing_caps: dict[int, int] = {}  # by group: they cost more than all else that is inspected

    def lookahead_of(self, group: int) -> int:
        """Slots that a step may write past its tokens in a group; states have none."""
        return 0 if self.kinds[group].startswith("mamba") else self.lookahead

    @property
    def requests(self) -> Mapping[str, Any]:
        """All that the scheduler knows, those included that are finished and whose blocks a connector still stores."""
        known: Mapping[str, Any] = self.scheduler.requests
        return known

    def queued(self) -> Iterator[Any]:
        """The requests in every queue, once for each queue that has them."""
        queues = [getattr(self.scheduler, name, ()) for name in _QUEUES]
        return chain(self.scheduler.running, *queues)

    def deferred_frees(self) -> Sequence[tuple[int, Sequence[Any]]]:
        """Whole tables that wait behind a fence: the number of the step that must be processed, and the blocks; from 0.24."""
        deferred: Sequence[tuple[int, Sequence[Any]]] = getattr(self.scheduler, "deferred_frees", ())
        return deferred

    def copies(self) -> Iterator[Any]:
        """Sources and targets of copies that no step has been given yet; each is held once for it. From 0.26."""
        pairs = chain.from_iterable([getattr(manager, "_pending_cow_copies", ()) for manager in self.managers])
        return chain.from_iterable(pairs)

    def pins(self) -> Iterator[int]:
        """Ids of the blocks that vLLM's own simple offloading connector keeps from the pool, once for each reference."""
        connector = getattr(self.scheduler, "connector", None)
        owner = getattr(connector, "scheduler_manager", None)
        for name in ("_reqs_to_load", "_abandoned_reqs_to_load"):
            for state in getattr(owner, name, {}).values():
                yield from state.transfer_meta.gpu_block_ids
        for name in ("_store_event_to_blocks", "_abandoned_store_event_to_blocks"):
            for transfer in getattr(owner, name, {}).values():
                yield from transfer.gpu_block_ids
        for transfer in getattr(owner, "_pending_finished_stores", ()):
            yield from transfer.gpu_block_ids

    def cached(self) -> Iterator[tuple[Any, int, Any]]:
        """The entries of the prefix cache: hash, the id under which the block is kept, the block."""
        entries = getattr(self.pool.cached_block_hash_to_block, "_cache", self.pool.cached_block_hash_to_block)
        for key, kept in entries.items():
            if isinstance(kept, dict):
                for block_id, block in kept.items():
                    yield key, block_id, block
            else:
                yield key, kept.block_id, kept

    def other_hashes(self, block_id: int) -> Iterable[Any]:
        """Hashes of a block beside its own: those of parts of it. From 0.24."""
        by_block: Mapping[int, Iterable[Any]] = getattr(self.pool, "cached_block_hashes_by_block", {})
        return by_block.get(block_id, ())

    def sizing_cap(self, group: int) -> int:
        """Blocks of a group that the release's start-up check counts for one request of the greatest length."""
        cap = self._sizing_caps.get(group)
        if cap is None:
            spec = self.managers[group].kv_cache_spec
            of_bytes, of_page = int(spec.max_memory_usage_bytes(self.scheduler.vllm_config)), int(spec.page_size_bytes)
            cap = self._sizing_caps[group] = -(-of_bytes // of_page)
        return cap

    def gate_cap(self, group: int) -> int | None:
        """Blocks of a group that the admission gate counts for a request at most; None where it counts the whole sequence."""
        manager = self.managers[group]
        for name in ("max_admission_blocks_per_request", "_max_admission_blocks_per_request"):
            cap = getattr(manager, name, None)
            if cap is not None:
                return int(cap)
        return None


def held(table: Sequence[Any]) -> int:
    """Blocks that a table holds: its entries but the null ones."""
    return sum([not block.is_null for block in table])


def in_flight(request: Any) -> int | None:
    """The request's own count of tokens in flight; None before 0.26, which keeps none."""
    count: int | None = getattr(request, "num_in_flight_tokens", None)
    return count


def stale(request: Any) -> int | None:
    """The request's own count of stale tokens in flight; None before 0.29, which keeps none."""
    count: int | None = getattr(request, "num_stale_output_tokens", None)
    return count


def hash_parts(key: Any) -> tuple[bytes, int]:
    """A cached block's hash, apart: the hash of the tokens, and the group."""
    from vllm.v1.core.kv_cache_utils import get_block_hash, get_group_id

    return get_block_hash(key), get_group_id(key)


def _kind(spec: Any, *, caches: bool) -> str:
    name = type(spec).__name__
    kind = _KINDS.get(name, name)
    # Releases before there was a mode keep all states with a prefix cache, and one without.
    return f"{kind} {getattr(spec, 'mamba_cache_mode', 'all' if caches else 'none')}" if kind == "mamba" else kind
