"""The KV-cache manager: several groups, possibly with different block sizes, over one pool."""

from __future__ import annotations

from math import lcm

from settled.model.disciplines import FreeBasis, PruneFence
from settled.model.events import PerGroup, ReleaseCause
from settled.model.specs import ChunkedLocalAttentionSpec, MambaSpec, SlidingWindowSpec
from settled.reference.admission import full_sequence_fits
from settled.reference.config import EngineConfig
from settled.reference.free_queue import KVCacheBlock
from settled.reference.managers import TableEntries, cdiv, make_manager
from settled.reference.pool import BlockPool
from settled.reference.prefix_cache import CacheHit
from settled.reference.recorder import Recorder
from settled.reference.request import Request


def free_basis_tokens(basis: FreeBasis, computed: int, in_flight: int, stale: int, drafts_max: int = 0) -> int:
    """Up to which position, in tokens, a prune takes the past for granted.

    A step in flight still reads below the optimistic count, and its rejected drafts take the count back; so what is in
    flight does not count. Stale tokens are in flight but were never part of this generation's count. `drafts_max`: drafts a step.
    """
    if basis is FreeBasis.SETTLED:
        return computed - (in_flight - stale)
    if basis is FreeBasis.PROCESSED:
        return max(0, computed - in_flight)
    if basis is FreeBasis.LESS_DRAFTS:
        return max(0, computed - drafts_max)
    assert basis is FreeBasis.COMPUTED
    return computed


class KVCacheManager:
    """Tables of all groups. `config` must carry caps (see admission.with_caps)."""

    def __init__(self, config: EngineConfig) -> None:
        self.enable_caching = config.enable_prefix_caching
        self.max_model_len = config.max_model_len
        self.discipline = config.discipline
        self.num_steps_scheduled = 0  # told by the scheduler, for prunes that wait for all of them
        self.drafts_max = config.num_speculative_tokens
        self.block_pool = BlockPool(config.num_blocks, enable_caching=self.enable_caching)
        self.managers = tuple(
            make_manager(spec, group, self.block_pool, config.discipline.rounding) for group, spec in enumerate(config.groups)
        )
        state_basis = self.discipline.state_basis or self.discipline.free_basis
        self.free_bases = tuple([state_basis if isinstance(spec, MambaSpec) else self.discipline.free_basis for spec in config.groups])
        self.finish_bases = (self.discipline.finish_basis,) * len(config.groups)
        self.has_window = tuple([isinstance(spec, SlidingWindowSpec | ChunkedLocalAttentionSpec) for spec in config.groups])
        self.no_nulls = (0,) * len(config.groups)
        self.hit_alignment = lcm(*(manager.block_size for manager in self.managers))
        self.no_hit = CacheHit(0, tuple([] for _ in self.managers))

    @property
    def recorder(self) -> Recorder | None:
        return self.block_pool.recorder

    # ---- prefix cache ------------------------------------------------------------------------------------------------

    def get_computed_blocks(self, request: Request, max_hit_tokens: int | None = None) -> CacheHit:
        """The longest prefix that every group finds in the cache; at least one token is left to compute.

        A group that finds less shortens the prefix for the others, and a window may then need other blocks: so look again
        until all agree. The length falls with every round, which bounds their number.
        """
        length = request.num_tokens - 1 if max_hit_tokens is None else min(max_hit_tokens, request.num_tokens - 1)
        if not self.enable_caching:
            return self.no_hit
        length -= length % self.hit_alignment
        while length > 0:
            blocks: list[list[KVCacheBlock]] = []
            for manager in self.managers:
                hashes = request.hashes_for(manager.block_size)
                found = manager.find_longest_cache_hit(hashes, length, self.hit_alignment)
                if len(found) * manager.block_size < length:
                    length = len(found) * manager.block_size
                    break
                blocks.append(found)
            else:
                return CacheHit(length, tuple(blocks))
        return self.no_hit

    def cache_blocks(self, request: Request, num_tokens: int) -> None:
        """Lets other requests hit the full blocks among the first `num_tokens` tokens, which must be known."""
        if not self.enable_caching:
            return
        entries = [entry for manager in self.managers for entry in manager.cache_blocks(request, num_tokens)]
        if entries and self.recorder is not None:
            self.recorder.cache(tuple(entries))

    # ---- allocation --------------------------------------------------------------------------------------------------

    def allocate_slots(
        self,
        request: Request,
        num_new_tokens: int,
        *,
        hit: CacheHit | None = None,
        num_lookahead_tokens: int = 0,
        full_sequence_must_fit: bool = False,
    ) -> PerGroup | None:
        """Gives the request slots for `num_new_tokens` more tokens; per group the ids of fresh blocks, or None if there are
        too few. `hit` is a cached prefix that a request without blocks starts from.

        Prune first: it may free what is needed, and it is right even if the allocation then fails. Then take in the hit
        of every group before the first fresh block, for a fresh block may be a hit block of another group that was free.
        """
        assert num_new_tokens >= 1
        adopted = self.no_hit if hit is None else hit
        computed = request.num_computed_tokens + adopted.num_tokens
        if full_sequence_must_fit:
            free_blocks = self.block_pool.get_num_free_blocks()
            if not full_sequence_fits(self.managers, request.num_tokens, adopted.blocks, free_blocks):
                return None
        self.remove_skipped_blocks(request, "window", num_hit_tokens=adopted.num_tokens)
        num_slots = min(computed + num_new_tokens + num_lookahead_tokens, self.max_model_len)
        first_indices = self._first_indices(computed + num_new_tokens - 1)
        if self._num_blocks_to_allocate(request, num_slots, adopted, first_indices) > self.block_pool.get_num_free_blocks():
            return None
        if hit is not None:
            for manager, blocks in zip(self.managers, hit.blocks, strict=True):
                manager.add_local_computed_blocks(request.request_id, blocks)
        new_blocks = tuple(
            [
                manager.allocate_new_blocks(request.request_id, num_slots, first_index=first_index)
                for manager, first_index in zip(self.managers, first_indices, strict=True)
            ]
        )
        # Drafts and tokens still to be sampled are not known: no hash can stand for them.
        self.cache_blocks(request, min(computed + num_new_tokens, request.num_tokens))
        return new_blocks

    def remove_skipped_blocks(self, request: Request, cause: ReleaseCause, *, num_hit_tokens: int = 0) -> None:
        """Prunes the request's tables up to what the discipline's basis takes for granted."""
        computed, in_flight, stale = request.counters
        self.block_pool.prunes_wait_for = self._prune_waits_for(request)
        for manager, basis in zip(self.managers, self.finish_bases if cause == "connector_finish" else self.free_bases, strict=True):
            num_tokens = free_basis_tokens(basis, computed + num_hit_tokens, in_flight, stale, self.drafts_max)
            manager.remove_skipped_blocks(request.request_id, num_tokens, cause)

    def _prune_waits_for(self, request: Request) -> int:
        """The step, by sequence number, before whose output what is pruned now is not free; 0 if it is at once."""
        if self.discipline.prune_fence is PruneFence.NONE:
            return 0
        return self.num_steps_scheduled if self.discipline.prune_fence is PruneFence.POOL else request.last_step_sequence

    def _first_indices(self, last_query: int) -> tuple[int, ...]:
        """Per group the first new table entry that gets a block. All do, unless the discipline looks at the last query alone."""
        if not self.discipline.nulls_at_allocation:
            return self.no_nulls
        return tuple(
            manager.get_num_skipped_tokens(last_query) // manager.block_size if has_window else 0
            for manager, has_window in zip(self.managers, self.has_window, strict=True)
        )

    def _num_blocks_to_allocate(self, request: Request, num_slots: int, hit: CacheHit, first_indices: tuple[int, ...]) -> int:
        return sum(
            manager.get_num_blocks_to_allocate(request.request_id, num_slots, blocks, first_index=first_index)
            for manager, blocks, first_index in zip(self.managers, hit.blocks, first_indices, strict=True)
        )

    # ---- whole-request frees -----------------------------------------------------------------------------------------

    def free(self, request_id: str, cause: ReleaseCause) -> None:
        """Frees all blocks of the request at once."""
        for manager in self.managers:
            manager.free(request_id, cause)

    def pop_blocks_for_free(self, request_id: str) -> tuple[TableEntries, ...]:
        """Takes the request's tables away, their blocks still referenced: the fence keeps them."""
        return tuple(manager.pop_blocks_for_free(request_id) for manager in self.managers)

    def free_deferred(self, request_id: str, tables: tuple[TableEntries, ...]) -> None:
        """Frees what the fence kept, the tail first, all groups in one batch as vLLM does."""
        held = [block for table in tables for block in table.blocks]
        freed = {block.block_id for block in self.block_pool.free_blocks(reversed(held))}
        if self.recorder is None:
            return
        for group, table in enumerate(tables):
            ids = [block.block_id for block in reversed(table.blocks)]
            if ids:
                freed_ids = [block_id for block_id in ids if block_id in freed]
                self.recorder.release(request_id, group, table.indices[::-1], ids, "deferred", freed_ids)

    # ---- views -------------------------------------------------------------------------------------------------------

    def get_block_ids(self, request_id: str) -> PerGroup:
        """Per group the whole table as block ids, null as 0."""
        return tuple(tuple([block.block_id for block in manager.req_to_blocks.get(request_id, ())]) for manager in self.managers)

    def get_block_ids_for_computed_tokens(self, request: Request) -> PerGroup:
        """Per group the entries that hold computed tokens, slots for later ones left out."""
        return tuple(
            ids[: cdiv(request.num_computed_tokens, manager.block_size)]
            for ids, manager in zip(self.get_block_ids(request.request_id), self.managers, strict=True)
        )
