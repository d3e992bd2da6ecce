"""The KV-cache manager: several groups, possibly with different block sizes, over one pool."""

from __future__ import annotations

from collections.abc import Sequence
from math import lcm

from settled.model.disciplines import FreeBasis, PruneFence
from settled.model.events import CacheEntry, PerGroup, ReleaseCause
from settled.model.specs import ChunkedLocalAttentionSpec, SlidingWindowSpec
from settled.reference.admission import full_sequence_fits
from settled.reference.config import EngineConfig
from settled.reference.free_queue import KVCacheBlock
from settled.reference.managers import (
    FullAttentionManager,
    MambaAlignManager,
    MambaManager,
    StateIndices,
    TableEntries,
    cdiv,
    count_free,
    make_manager,
)
from settled.reference.pool import BlockPool
from settled.reference.prefix_cache import CacheHit
from settled.reference.preparation import StepPreparation
from settled.reference.recorder import Recorder
from settled.reference.request import Request, StepIndices

SETTLED = FreeBasis.SETTLED


def free_basis_tokens(basis: FreeBasis, computed: int, in_flight: int, stale: int, drafts_max: int = 0) -> int:
    """Up to which position, in tokens, a prune takes the past for granted.

    A step in flight still reads below the optimistic count, and its rejected drafts take the count back; so what is in
    flight does not count. Stale tokens are in flight but were never part of this generation's count. `drafts_max`: drafts a step.
    """
    if basis is SETTLED:
        return computed - (in_flight - stale)
    if basis is FreeBasis.PROCESSED:
        return max(0, computed - in_flight)
    if basis is FreeBasis.LESS_DRAFTS:
        return max(0, computed - drafts_max)
    assert basis is FreeBasis.COMPUTED
    return computed


def _copier(request: Request, group: int) -> str:
    """Who holds the source of a copy-on-write, in the trace."""
    return f"copy for {request.request_id}, generation {request.generation}, group {group}"


class KVCacheManager:
    """Tables of all groups. `config` must carry caps (see admission.with_caps)."""

    def __init__(self, config: EngineConfig) -> None:
        self.enable_caching = config.enable_prefix_caching
        self.max_model_len = config.max_model_len
        self.discipline = config.discipline
        self.num_steps_scheduled = 0  # told by the scheduler, for prunes that wait for all of them
        self.drafts_max = config.num_speculative_tokens
        self.chunk_max = min(config.max_num_batched_tokens, config.long_prefill_token_threshold or config.max_num_batched_tokens)
        self.block_pool = BlockPool(config.num_blocks, enable_caching=self.enable_caching)
        self.managers = tuple(
            make_manager(spec, group, self.block_pool, config.discipline.rounding) for group, spec in enumerate(config.groups)
        )
        discipline = self.discipline
        prunes = [manager for manager in self.managers if type(manager) is not FullAttentionManager]
        state_basis = discipline.state_basis or discipline.free_basis
        self.prunes_wait = discipline.prune_fence is not PruneFence.NONE
        self.pruners = tuple([(manager, state_basis if manager.holds_states else discipline.free_basis) for manager in prunes])
        self.finish_pruners = tuple([(manager, discipline.finish_basis) for manager in prunes])
        self.has_window = tuple([isinstance(spec, SlidingWindowSpec | ChunkedLocalAttentionSpec) for spec in config.groups])
        self.no_nulls = (0,) * len(config.groups)
        self.no_blocks: PerGroup = ((),) * len(config.groups)
        self.aligned = tuple([manager for manager in self.managers if isinstance(manager, MambaAlignManager)])
        self.holds_states = any(manager.holds_states for manager in self.managers)
        self.state_alignment = lcm(*(manager.block_size for manager in self.aligned))
        self.preparation = StepPreparation(self.block_pool)
        self.tokens_per_hash = config.tokens_per_hash
        for manager, spec in zip(self.managers, config.groups, strict=True):
            manager.hashes_per_block = spec.block_size // self.tokens_per_hash
            manager.zeroes_fresh_blocks = config.zeroes(spec)
        keeps_all = [manager for manager in self.managers if type(manager) is FullAttentionManager]
        has_part = any(manager.hashes_per_block > 1 for manager in self.managers)
        wanted = config.hash_block_size is not None and has_part and len(keeps_all) == len(self.managers)
        self.partial_hits = tuple(keeps_all) if wanted else ()
        for keeper in self.partial_hits:
            keeper.serves_partial_hits = True
        self.watermark_blocks = int(config.watermark * config.num_blocks)
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
        if not self.enable_caching:
            return self.no_hit
        length = request.num_tokens - 1 if max_hit_tokens is None else min(max_hit_tokens, request.num_tokens - 1)
        hashes = request.hashes_up_to_now(self.tokens_per_hash)
        if self.partial_hits:
            return self._partial_hit(hashes, length)
        length -= length % self.hit_alignment
        while length > 0:
            blocks: list[list[KVCacheBlock]] = []
            for manager in self.managers:
                found = manager.find_longest_cache_hit(hashes, length, self.hit_alignment)
                if len(found) * manager.block_size < length:
                    length = len(found) * manager.block_size
                    break
                blocks.append(found)
            else:
                return CacheHit(length, tuple(blocks))
        return self.no_hit

    def _partial_hit(self, hashes: Sequence[int], max_length: int) -> CacheHit:
        """The hit may end within a block. Full attention needs every block before, so the shortest prefix serves all groups."""
        found = [manager.find_longest_partial_hit(hashes, max_length, self.tokens_per_hash) for manager in self.partial_hits]
        length = min(num_tokens for _, num_tokens in found)
        if length == 0:
            return self.no_hit
        blocks = tuple([list(hit[: length // manager.block_size]) for manager, (hit, _) in zip(self.managers, found, strict=True)])
        tails = tuple(
            [
                hit[length // manager.block_size] if length % manager.block_size else None
                for manager, (hit, _) in zip(self.managers, found, strict=True)
            ]
        )
        if any(manager.is_computed_this_step(tail) for manager, tail in zip(self.partial_hits, tails, strict=True)):
            # Another group cut the hit short within a full block, which is copied before this very step computes it.
            return self._partial_hit(hashes, length - length % self.hit_alignment)
        return CacheHit(length, blocks, tails if any(tails) else ())

    def without_tails(self, request: Request, hit: CacheHit) -> CacheHit:
        """The hit as far as it ends between blocks in all groups."""
        if not hit.tails:
            return hit
        return self.get_computed_blocks(request, hit.num_tokens - hit.num_tokens % self.hit_alignment)

    def cache_blocks(self, request: Request, num_tokens: int) -> None:
        """Lets other requests hit the full blocks among the first `num_tokens` tokens, which must be known."""
        if not self.enable_caching:
            return
        recorder = self.block_pool.recorder
        entries: list[CacheEntry] | None = None if recorder is None else []
        for manager in self.managers:
            if num_tokens // manager.block_size > manager.num_cached_block.get(request.request_id, 0):
                manager.cache_blocks(request, num_tokens, entries)
        for manager in self.partial_hits:
            manager.cache_prompt_tail(request, num_tokens, self.tokens_per_hash, entries)
        if entries and recorder is not None:
            recorder.cache(tuple(entries))

    # ---- allocation --------------------------------------------------------------------------------------------------

    def allocate_slots(
        self,
        request: Request,
        num_new_tokens: int,
        *,
        hit: CacheHit | None = None,
        num_external_tokens: int = 0,
        num_lookahead_tokens: int = 0,
        delay_cache_blocks: bool = False,
        full_sequence_must_fit: bool = False,
        keep_watermark: bool = False,
        prunes: bool = True,
    ) -> PerGroup | None:
        """Gives the request slots for `num_new_tokens` more tokens; per group the ids of new table entries, or None if the pool has
        too few blocks. `hit` is a cached prefix that a request without blocks starts from; `num_external_tokens`, which a load brings,
        follow. Such a request must be able to finish its prefill if `full_sequence_must_fit`, and leaves the watermark's blocks free if
        `keep_watermark`.

        Prune first: it may free what is needed, and it is right even if the allocation then fails. Then take in the hit
        of every group before the first fresh block, for a fresh block may be a hit block of another group that was free.
        With `delay_cache_blocks` nothing gets a hash: what a load should bring may turn out not to be there.
        """
        assert num_new_tokens + num_external_tokens >= 1
        num_adopted = (0 if hit is None else hit.num_tokens) + num_external_tokens
        num_tokens = request.num_computed_tokens + num_new_tokens + num_adopted
        num_slots = min(num_tokens + num_lookahead_tokens, self.max_model_len)
        first_indices, next_query = self.no_nulls, 0
        if hit is not None or num_external_tokens:
            # The next query is the last known token at the latest: it is computed again if all of them are loaded.
            next_query = min(request.num_computed_tokens + num_adopted, request.num_tokens - 1)
        if num_external_tokens or self.discipline.nulls_at_allocation:
            first_indices = self._first_indices(next_query if num_external_tokens else 0, num_tokens - 1)
        if hit is None:
            if prunes:
                self.remove_skipped_blocks(request, "window")
            needed = self._num_blocks_to_allocate(request, num_slots, num_tokens, first_indices)
            if needed > self.block_pool.get_num_free_blocks():
                return None
            if needed == 0 and first_indices is self.no_nulls:
                if self.enable_caching and not delay_cache_blocks:
                    self.cache_blocks(request, min(num_tokens, request.num_tokens))
                return self.no_blocks
        elif not self._adopt(request, hit, next_query, num_slots, num_tokens, first_indices, full_sequence_must_fit, keep_watermark):
            return None
        new_blocks = tuple(
            [
                manager.allocate_new_blocks(request, num_slots, num_tokens, first_index=first_index)
                for manager, first_index in zip(self.managers, first_indices, strict=True)
            ]
        )
        if hit is not None and hit.tails:
            self._copy_tails(request, hit)
        if not delay_cache_blocks:
            # Drafts and tokens still to be sampled are not known: no hash can stand for them.
            self.cache_blocks(request, min(num_tokens, request.num_tokens))
        return new_blocks

    def _adopt(
        self,
        request: Request,
        hit: CacheHit,
        next_query: int,
        num_slots: int,
        num_tokens: int,
        first_indices: tuple[int, ...],
        full_sequence_must_fit: bool,
        keep_watermark: bool,
    ) -> bool:
        """Puts what `next_query` and later ones need of the hit into the tables of a request that has none, if the pool can hold it and
        what the step adds.
        """
        kept = [
            manager.kept_of_hit(blocks, next_query, request.num_prompt_tokens)
            for manager, blocks in zip(self.managers, hit.blocks, strict=True)
        ]
        tails_free = count_free([tail for tail in hit.tails if tail is not None])
        free_blocks = self.block_pool.get_num_free_blocks() - tails_free - (self.watermark_blocks if keep_watermark else 0)
        if full_sequence_must_fit and not full_sequence_fits(self.managers, request.num_tokens, kept, free_blocks):
            return False
        if any(manager.is_computed_this_step(kept[manager.group]) for manager in self.aligned):
            return False
        needed = sum(
            count_free(blocks)
            + manager.get_num_blocks_to_allocate(request, num_slots, num_tokens, num_hit_blocks=len(blocks), first_index=first_index)
            for manager, blocks, first_index in zip(self.managers, kept, first_indices, strict=True)
        )
        if needed > free_blocks:
            return False
        for manager, blocks in zip(self.managers, kept, strict=True):
            manager.add_local_computed_blocks(request.request_id, blocks)
        for manager, tail in zip(self.managers, hit.tails, strict=False):
            if tail is not None:
                self.preparation.hold_source(_copier(request, manager.group), tail)
        return True

    def _copy_tails(self, request: Request, hit: CacheHit) -> None:
        """The block in which the hit ends is copied into the first fresh one of its group."""
        for manager, tail in zip(self.managers, hit.tails, strict=True):
            if tail is not None:
                target = manager.req_to_blocks[request.request_id][hit.num_tokens // manager.block_size]
                self.preparation.copy(_copier(request, manager.group), manager.group, tail, target)

    def remove_skipped_blocks(self, request: Request, cause: ReleaseCause) -> None:
        """Prunes the request's tables up to what the discipline's basis takes for granted."""
        if self.prunes_wait:
            self.block_pool.prunes_wait_for = self._prune_waits_for(request)
        request_id, num_prompt_tokens = request.request_id, request.num_prompt_tokens
        known_basis = None
        num_tokens = 0
        for manager, basis in self.finish_pruners if cause == "connector_finish" else self.pruners:
            if basis is not known_basis:
                num_tokens = free_basis_tokens(basis, *request.counters, self.drafts_max)
                known_basis = basis
            if num_tokens > 0:
                manager.remove_skipped_blocks(request_id, num_tokens, num_prompt_tokens, cause)

    def _prune_waits_for(self, request: Request) -> int:
        """The step, by sequence number, before whose output what is pruned now is not free."""
        return self.num_steps_scheduled if self.discipline.prune_fence is PruneFence.POOL else request.last_step_sequence

    def _first_indices(self, after_load: int, last_query: int) -> tuple[int, ...]:
        """Per group the first new table entry that gets a block. All do, but what no query from `after_load` on reads is not loaded,
        and a discipline may look at the last query of the step alone.
        """
        query = last_query if self.discipline.nulls_at_allocation else after_load
        if query <= 0:
            return self.no_nulls
        return tuple(
            [
                manager.get_skipped_range(query, 0)[1] if has_window else 0
                for manager, has_window in zip(self.managers, self.has_window, strict=True)
            ]
        )

    def _num_blocks_to_allocate(self, request: Request, num_slots: int, num_tokens: int, first_indices: tuple[int, ...]) -> int:
        if first_indices is self.no_nulls:
            needed = 0
            for manager in self.managers:
                needed += manager.get_num_blocks_to_allocate(request, num_slots, num_tokens)
            return needed
        return sum(
            [
                manager.get_num_blocks_to_allocate(request, num_slots, num_tokens, first_index=first_index)
                for manager, first_index in zip(self.managers, first_indices, strict=True)
            ]
        )

    def zero_from(self, request_id: str, num_tokens: int) -> None:
        """A load failed to write what follows the first `num_tokens` tokens: blocks that would have been zeroed are, before the next step
        of the request.
        """
        for manager in self.managers:
            if manager.zeroes_fresh_blocks:
                blocks = manager.req_to_blocks[request_id][cdiv(num_tokens, manager.block_size) :]
                self.preparation.zero_in_own_step(request_id, [block.block_id for block in blocks if not block.is_null])

    def can_go_back_to(self, request_id: str, num_computed_tokens: int) -> bool:
        """Whether the request can compute on from there with the blocks that it has."""
        return all(manager.can_go_back_to(request_id, num_computed_tokens) for manager in self.managers)

    # ---- states ------------------------------------------------------------------------------------------------------

    def new_step_starts(self) -> None:
        """The scheduler begins to make up a step."""
        for manager in self.aligned:
            manager.new_step_starts()
        for keeper in self.partial_hits:
            keeper.new_step_starts()

    def clip_chunk(self, request: Request, start: int, tokens: int) -> int:
        """How many of `tokens` tokens from `start` on a prefill chunk should take, so that it ends where a state can be cached.

        In `align` mode a state is kept where a step ends. With a prefix cache, chunks therefore end at block boundaries, up to the last
        one before the end of the prefill. Where a block is wider than a chunk may be, chunks run on to the boundary in parts. May be 0,
        when what is left of the batch does not reach the next boundary. vLLM: Scheduler._mamba_block_aligned_split.
        """
        if not self.aligned or not self.enable_caching:
            return tokens
        prefill_end = max(request.num_prompt_tokens, request.num_tokens - 1)
        if start >= prefill_end:
            return tokens
        size = self.state_alignment
        end = start + tokens
        if end < prefill_end:
            aligned_end = end - end % size
            if aligned_end > start or size <= self.chunk_max:
                end = aligned_end
        last_cacheable = (request.num_tokens - 1) // size * size
        next_boundary = (start // size + 1) * size if start % size else 0
        end = min([stop for stop in (next_boundary, last_cacheable) if start < stop < end], default=end)
        return max(0, end - start)

    def step_indices(self, request: Request, start: int, tokens: int, drafts: int) -> StepIndices | None:
        """The table entries that a step may read and may write; None if the masks of all kinds tell."""
        if not self.holds_states:
            return None
        found = [
            manager.step_indices(request, start, tokens, drafts) if isinstance(manager, MambaManager) else StateIndices((), (), True)
            for manager in self.managers
        ]
        return StepIndices(tuple([each.reads for each in found]), tuple([each.writes for each in found]), all(each.known for each in found))

    # ---- whole-request frees -----------------------------------------------------------------------------------------

    def free(self, request_id: str, cause: ReleaseCause) -> None:
        """Frees all blocks of the request at once."""
        self.preparation.forget(request_id)
        for manager in self.managers:
            manager.free(request_id, cause)

    def pop_blocks_for_free(self, request_id: str) -> tuple[TableEntries, ...]:
        """Takes the request's tables away, their blocks still referenced: the fence keeps them."""
        self.preparation.forget(request_id)
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
