"""What all managers do: the block tables of one group's layers, pruned, extended, registered with the prefix cache, freed.

A table's entry i is the block of tokens [i * block_size, (i + 1) * block_size), or the null block where nothing is kept.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar, NamedTuple

from settled.model.disciplines import Rounding
from settled.model.events import NULL_BLOCK, CacheEntry, ReleaseCause
from settled.model.specs import KVCacheSpec
from settled.reference.free_queue import BlockHash, KVCacheBlock
from settled.reference.pool import BlockPool
from settled.reference.request import Request


def cdiv(amount: int, size: int) -> int:
    """How many pieces of `size` cover `amount`."""
    assert size >= 1
    return -(-amount // size)


class TableEntries(NamedTuple):
    """Blocks that a table gives up, with the indices at which they stood, in table order; null entries left out."""

    indices: tuple[int, ...]
    blocks: tuple[KVCacheBlock, ...]


class TableState(NamedTuple):
    """All that a manager knows about one request; None where it knows nothing."""

    table: tuple[KVCacheBlock, ...] | None
    num_cached: int | None
    kind: object | None  # what only the kind's manager knows


class SingleTypeKVCacheManager(ABC):
    """The tables of one group."""

    holds_states: ClassVar[bool] = False  # blocks hold recurrent states: a step names the table entries that it reads and writes

    def __init__(self, spec: KVCacheSpec, group: int, pool: BlockPool, rounding: Rounding) -> None:
        self.block_size = spec.block_size
        self.cap = spec.cap
        self.hashes_per_block = 1
        self.zeroes_fresh_blocks = False
        self.group = group
        self.pool = pool
        # Only whole blocks of skipped tokens are freed, unless the discipline rounds up, or stops one short.
        self.rounding_tokens = {Rounding.FLOOR: 0, Rounding.CEIL: spec.block_size - 1, Rounding.SHORT: -spec.block_size}[rounding]
        self.req_to_blocks: dict[str, list[KVCacheBlock]] = {}
        self.num_cached_block: dict[str, int] = {}  # blocks of the table that need no further look by the prefix cache

    # ---- what a kind decides -----------------------------------------------------------------------------------------

    @abstractmethod
    def get_num_skipped_tokens(self, num_computed_tokens: int) -> int:
        """How many tokens from the first on no query at or after `num_computed_tokens` needs."""

    @abstractmethod
    def find_longest_cache_hit(self, hashes: Sequence[int], max_length: int, alignment: int) -> list[KVCacheBlock]:
        """The blocks of the longest cached prefix: `max_length` tokens at most, a multiple of `alignment` tokens."""

    def get_skipped_range(self, num_computed_tokens: int, num_prompt_tokens: int) -> tuple[int, int]:
        """Which blocks, first and past the last, go back to the pool: those of skipped tokens, unless the kind keeps some of them."""
        return 0, (self.get_num_skipped_tokens(num_computed_tokens) + self.rounding_tokens) // self.block_size

    # ---- pruning -----------------------------------------------------------------------------------------------------

    def remove_skipped_blocks(self, request_id: str, num_computed_tokens: int, num_prompt_tokens: int, cause: ReleaseCause) -> None:
        """Prunes: frees the blocks that no query at or after `num_computed_tokens` needs, null takes their place."""
        first, last = self.get_skipped_range(num_computed_tokens, num_prompt_tokens)
        if last <= first:
            return
        table = self.req_to_blocks.get(request_id)
        if not table:
            return
        null = self.pool.null_block
        indices: list[int] = []
        # From the boundary down to the first null: below it an earlier prune has been. The order is also that of reuse.
        for index in range(min(last, len(table)) - 1, first - 1, -1):
            if table[index] is null:
                break
            indices.append(index)
        self._prune(request_id, indices, cause)

    def _prune(self, request_id: str, indices: Sequence[int], cause: ReleaseCause) -> None:
        """Frees the blocks at these indices, none of them null, in this order."""
        if not indices:
            return
        table = self.req_to_blocks[request_id]
        blocks = [table[index] for index in indices]
        for index in indices:
            table[index] = self.pool.null_block
        self._record_release(request_id, indices, blocks, cause, self.pool.free_pruned_blocks(blocks))

    # ---- allocation --------------------------------------------------------------------------------------------------

    def get_num_blocks_to_allocate(
        self, request: Request, num_slots: int, num_tokens: int, *, num_hit_blocks: int = 0, first_index: int = 0
    ) -> int:
        """Free blocks that the request's table takes from the pool when it grows to `num_slots` tokens, lookahead slots included;
        up to `num_tokens` the step computes. `num_hit_blocks` blocks of a hit are still to be put into the table. New entries below
        `first_index` are null and take none.
        """
        present = len(self.req_to_blocks.get(request.request_id, ())) + num_hit_blocks
        more = -(-num_slots // self.block_size) - (present if present > first_index else first_index)
        return more if more > 0 else 0

    def allocate_new_blocks(self, request: Request, num_slots: int, num_tokens: int, *, first_index: int = 0) -> tuple[int, ...]:
        """Extends the table as above; returns the ids of the new entries, null (0) below `first_index`."""
        table = self.req_to_blocks.setdefault(request.request_id, [])
        num_entries = -(-num_slots // self.block_size)
        if num_entries <= len(table):  # slots of rejected drafts are still there
            return ()
        if first_index <= len(table):
            return self._append_fresh(request.request_id, table, num_entries - len(table))
        num_nulls = min(first_index, num_entries) - len(table)
        table.extend([self.pool.null_block] * num_nulls)
        return (NULL_BLOCK,) * num_nulls + self._append_fresh(request.request_id, table, num_entries - len(table))

    def _append_fresh(self, request_id: str, table: list[KVCacheBlock], count: int) -> tuple[int, ...]:
        if count <= 0:
            return ()
        blocks = self.pool.get_new_blocks(count)
        first_index = len(table)
        table.extend(blocks)
        ids = tuple([block.block_id for block in blocks])
        if self.zeroes_fresh_blocks:
            self.pool.to_zero.extend(ids)
        if self.pool.recorder is not None:
            self.pool.recorder.allocate(request_id, self.group, first_index, ids)
        return ids

    # ---- a prefix-cache hit ------------------------------------------------------------------------------------------

    def kept_of_hit(self, hit: Sequence[KVCacheBlock], num_hit_tokens: int, num_prompt_tokens: int) -> list[KVCacheBlock]:
        """The hit as it enters the table: null for what would be pruned at once."""
        first, last = self.get_skipped_range(num_hit_tokens, num_prompt_tokens)
        if last <= first:
            return list(hit)
        null = self.pool.null_block
        return [null if first <= index < last else block for index, block in enumerate(hit)]

    def add_local_computed_blocks(self, request_id: str, kept: Sequence[KVCacheBlock]) -> None:
        """Puts what is kept of a hit into an empty table, one more reference each."""
        assert not self.req_to_blocks.get(request_id), f"request {request_id} has a table, it cannot take a prefix hit"
        self.pool.touch(kept)
        self.req_to_blocks[request_id] = list(kept)
        self.num_cached_block[request_id] = len(kept)
        if self.pool.recorder is not None:
            for first_index, ids in runs_of_blocks(kept):
                self.pool.recorder.touch(request_id, self.group, first_index, ids)

    def blocks_for_sequence(self, num_tokens: int, kept: Sequence[KVCacheBlock]) -> int:
        """Free blocks that a waiting request of `num_tokens` tokens takes to the end of its prefill, without regard to the cap."""
        return max(0, cdiv(num_tokens, self.block_size) - len(kept)) + count_free(kept)

    def can_go_back_to(self, request_id: str, num_computed_tokens: int) -> bool:
        """Whether a step that starts at `num_computed_tokens` finds a block in every entry that it reads or writes. Of kinds whose
        skipped tokens are a prefix.
        """
        first_needed = self.get_num_skipped_tokens(num_computed_tokens) // self.block_size
        null = self.pool.null_block
        return not any(block is null for block in self.req_to_blocks[request_id][first_needed:])

    # ---- prefix cache ------------------------------------------------------------------------------------------------

    def num_hashed_blocks(self, hashes: Sequence[int], max_length: int) -> int:
        """How many full blocks of at most `max_length` tokens the hashes cover."""
        return min(max_length // self.block_size, len(hashes) // self.hashes_per_block)

    def cached_at(self, hashes: Sequence[int], index: int) -> KVCacheBlock | None:
        """A cached block that stands for table index `index`: chained, the hash at its end covers the block and all before it."""
        return self.pool.get_cached_block(BlockHash(self.group, hashes[(index + 1) * self.hashes_per_block - 1]))

    def cache_blocks(self, request: Request, num_tokens: int, entries: list[CacheEntry] | None, *, unsaved_index: int = -1) -> None:
        """Gives hashes to the full blocks among the first `num_tokens` tokens, which must be known; adds them to `entries`, if that is
        wanted. The block at `unsaved_index` gets none: it does not hold what its hash would stand for.
        """
        first = self.num_cached_block.get(request.request_id, 0)
        full_blocks = num_tokens // self.block_size
        if first >= full_blocks:
            return
        assert num_tokens <= request.num_tokens
        table = self.req_to_blocks[request.request_id]
        hashes = request.hashes_up_to_now(self.block_size // self.hashes_per_block)
        null = self.pool.null_block
        for index in range(first, full_blocks):
            block = table[index]
            if block is null or block.block_hash is not None or index == unsaved_index:
                continue
            self.pool.cache_block(block, BlockHash(self.group, hashes[(index + 1) * self.hashes_per_block - 1]))
            if entries is not None:
                entries.append(self._cache_entry(request.request_id, block, index))
        self.num_cached_block[request.request_id] = full_blocks

    def _cache_entry(self, request_id: str, block: KVCacheBlock, index: int) -> CacheEntry:
        assert block.block_hash is not None
        return CacheEntry(
            block=block.block_id,
            group=self.group,
            hash=block.block_hash.value,
            request=request_id,
            start=index * self.block_size,
            end=(index + 1) * self.block_size,
        )

    # ---- whole-request frees -----------------------------------------------------------------------------------------

    def pop_blocks_for_free(self, request_id: str) -> TableEntries:
        """Forgets the table and returns what it held, still referenced; free it in reverse order."""
        table = self.req_to_blocks.pop(request_id, [])
        self.num_cached_block.pop(request_id, None)
        null = self.pool.null_block
        indices = tuple([index for index, block in enumerate(table) if block is not null])
        return TableEntries(indices, tuple([table[index] for index in indices]))

    def free(self, request_id: str, cause: ReleaseCause) -> None:
        """Frees the whole table, the tail first: of a cached prefix the end is the least useful part."""
        entries = self.pop_blocks_for_free(request_id)
        if entries.blocks:
            blocks = entries.blocks[::-1]
            self._record_release(request_id, entries.indices[::-1], blocks, cause, self.pool.free_blocks(blocks))

    def _record_release(
        self,
        request_id: str,
        indices: Sequence[int],
        blocks: Sequence[KVCacheBlock],
        cause: ReleaseCause,
        freed: Sequence[KVCacheBlock],
    ) -> None:
        if self.pool.recorder is not None:
            ids = [block.block_id for block in blocks]
            freed_ids = [block.block_id for block in freed]
            self.pool.recorder.release(request_id, self.group, indices, ids, cause, freed_ids)

    # ---- going back --------------------------------------------------------------------------------------------------

    def save(self, request_id: str) -> TableState:
        """What `restore` needs to make the request's table as it is now; its blocks are the pool's to restore."""
        table = self.req_to_blocks.get(request_id)
        return TableState(None if table is None else tuple(table), self.num_cached_block.get(request_id), None)

    def restore(self, request_id: str, state: TableState) -> None:
        if state.table is None:
            self.req_to_blocks.pop(request_id, None)
        else:
            self.req_to_blocks[request_id] = list(state.table)
        if state.num_cached is None:
            self.num_cached_block.pop(request_id, None)
        else:
            self.num_cached_block[request_id] = state.num_cached


def count_free(blocks: Sequence[KVCacheBlock]) -> int:
    """How many of these blocks stand in the free queue; a hit takes them out of it."""
    return sum([block.ref_cnt == 0 and block.block_id != NULL_BLOCK for block in blocks])


def runs_of_blocks(table: Sequence[KVCacheBlock]) -> list[tuple[int, tuple[int, ...]]]:
    """The owned blocks of a table as runs without a null between: the index of the first, and the ids."""
    runs: list[tuple[int, list[int]]] = []
    previous = NULL_BLOCK
    for index, block in enumerate(table):
        if block.block_id != NULL_BLOCK:
            if previous == NULL_BLOCK:
                runs.append((index, []))
            runs[-1][1].append(block.block_id)
        previous = block.block_id
    return [(first_index, tuple(ids)) for first_index, ids in runs]
