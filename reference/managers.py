"""One manager a group: the block tables of its layers, what attention no longer needs, what a cached prefix must hold."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NamedTuple

from settled.model.disciplines import Rounding
from settled.model.events import NULL_BLOCK, CacheEntry, ReleaseCause
from settled.model.specs import FullAttentionSpec, KVCacheSpec, SlidingWindowSpec
from settled.reference.free_queue import BlockHash, KVCacheBlock
from settled.reference.pool import BlockPool
from settled.reference.prefix_cache import longest_prefix, longest_window
from settled.reference.request import Request


def cdiv(amount: int, size: int) -> int:
    """How many pieces of `size` cover `amount`."""
    assert size >= 1
    return -(-amount // size)


class TableEntries(NamedTuple):
    """Blocks that a table gives up, with the indices at which they stood, in table order; null entries left out."""

    indices: tuple[int, ...]
    blocks: tuple[KVCacheBlock, ...]


class SingleTypeKVCacheManager(ABC):
    """The tables of one group. A table's entry i is the block of tokens [i * block_size, (i + 1) * block_size)."""

    def __init__(self, spec: KVCacheSpec, group: int, pool: BlockPool, rounding: Rounding) -> None:
        self.block_size = spec.block_size
        self.cap = spec.cap
        self.group = group
        self.pool = pool
        self.rounding = rounding
        self.req_to_blocks: dict[str, list[KVCacheBlock]] = {}
        self.num_cached_block: dict[str, int] = {}  # blocks of the table that need no further look by the prefix cache

    # ---- what a kind decides -----------------------------------------------------------------------------------------

    @abstractmethod
    def get_num_skipped_tokens(self, num_computed_tokens: int) -> int:
        """How many tokens from the first on no query at or after `num_computed_tokens` needs."""

    @abstractmethod
    def find_longest_cache_hit(self, hashes: Sequence[int], max_length: int, alignment: int) -> list[KVCacheBlock]:
        """The blocks of the longest cached prefix: `max_length` tokens at most, a multiple of `alignment` tokens."""

    # ---- pruning -----------------------------------------------------------------------------------------------------

    def get_num_skipped_blocks(self, num_computed_tokens: int) -> int:
        """How many blocks from the first on go back to the pool; only whole blocks, unless the discipline rounds up."""
        skipped_tokens = self.get_num_skipped_tokens(num_computed_tokens)
        if self.rounding is Rounding.CEIL:
            return cdiv(skipped_tokens, self.block_size)
        return skipped_tokens // self.block_size

    def remove_skipped_blocks(self, request_id: str, num_computed_tokens: int, cause: ReleaseCause) -> None:
        """Prunes: frees the blocks that no query at or after `num_computed_tokens` needs, null takes their place."""
        table = self.req_to_blocks.get(request_id)
        skipped_blocks = self.get_num_skipped_blocks(num_computed_tokens)
        if not table or skipped_blocks <= 0:
            return
        null = self.pool.null_block
        indices: list[int] = []
        # From the boundary down to the first null: below it an earlier prune has been. The order is also that of reuse.
        for index in range(min(skipped_blocks, len(table)) - 1, -1, -1):
            if table[index] is null:
                break
            indices.append(index)
        if indices:
            blocks = [table[index] for index in indices]
            for index in indices:
                table[index] = null
            self._record_release(request_id, indices, blocks, cause, self.pool.free_pruned_blocks(blocks))

    # ---- allocation --------------------------------------------------------------------------------------------------

    def get_num_blocks_to_allocate(self, request_id: str, num_tokens: int, hit: Sequence[KVCacheBlock], *, first_index: int = 0) -> int:
        """Free blocks that a table of `num_tokens` slots takes from the pool, hit blocks that are free now included.

        New entries below `first_index` are null and take none.
        """
        present = max(len(self.req_to_blocks.get(request_id, ())) + len(hit), first_index)
        if not hit:
            return max(0, cdiv(num_tokens, self.block_size) - present)
        kept = hit[self.get_num_skipped_blocks(len(hit) * self.block_size) :]
        return max(0, cdiv(num_tokens, self.block_size) - present) + count_free(kept)

    def add_local_computed_blocks(self, request_id: str, hit: Sequence[KVCacheBlock]) -> None:
        """Puts a cached prefix into an empty table: null for what is skipped already, one reference each for the rest."""
        assert not self.req_to_blocks.get(request_id), f"request {request_id} has a table, it cannot take a prefix hit"
        skipped_blocks = self.get_num_skipped_blocks(len(hit) * self.block_size)
        kept = hit[skipped_blocks:]
        self.pool.touch(kept)
        table = [self.pool.null_block] * skipped_blocks + list(kept)
        self.req_to_blocks[request_id] = table
        self.num_cached_block[request_id] = len(table)
        if self.pool.recorder is not None:
            # Nulls stand only at the head of a hit, before the blocks that the window needs.
            owned = tuple(block.block_id for block in kept if not block.is_null)
            if owned:
                self.pool.recorder.touch(request_id, self.group, len(table) - len(owned), owned)

    def allocate_new_blocks(self, request_id: str, num_tokens: int, *, first_index: int = 0) -> tuple[int, ...]:
        """Extends the table to `num_tokens` slots; returns the ids of the new entries, those below `first_index` null."""
        table = self.req_to_blocks.setdefault(request_id, [])
        num_nulls = max(0, first_index - len(table))
        table.extend([self.pool.null_block] * num_nulls)
        first_index = len(table)
        count = cdiv(num_tokens, self.block_size) - first_index
        if count <= 0:  # slots of rejected drafts are still there
            return ()
        blocks = self.pool.get_new_blocks(count)
        table.extend(blocks)
        ids = tuple(block.block_id for block in blocks)
        if self.pool.recorder is not None:
            self.pool.recorder.allocate(request_id, self.group, first_index, ids)
        return (NULL_BLOCK,) * num_nulls + ids

    # ---- prefix cache ------------------------------------------------------------------------------------------------

    def get_cached_block(self, block_hash: int) -> KVCacheBlock | None:
        return self.pool.get_cached_block(BlockHash(self.group, block_hash))

    def cache_blocks(self, request: Request, num_tokens: int) -> list[CacheEntry]:
        """Gives hashes to the full blocks among the first `num_tokens` tokens, which must be known; returns the new entries."""
        assert num_tokens <= request.num_tokens
        first = self.num_cached_block.get(request.request_id, 0)
        full_blocks = num_tokens // self.block_size
        if first >= full_blocks:
            return []
        table = self.req_to_blocks[request.request_id]
        hashes = request.hashes_for(self.block_size)
        entries = []
        for index in range(first, full_blocks):
            block = table[index]
            if block.is_null or block.block_hash is not None:
                continue
            self.pool.cache_block(block, BlockHash(self.group, hashes[index]))
            entries.append(self._cache_entry(request.request_id, block, index))
        self.num_cached_block[request.request_id] = full_blocks
        return entries

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
        owned = [(index, block) for index, block in enumerate(table) if not block.is_null]
        return TableEntries(tuple(index for index, _ in owned), tuple(block for _, block in owned))

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


class FullAttentionManager(SingleTypeKVCacheManager):
    """Every query reads every earlier key: nothing is skipped before the request ends."""

    def get_num_skipped_tokens(self, num_computed_tokens: int) -> int:
        return 0

    def find_longest_cache_hit(self, hashes: Sequence[int], max_length: int, alignment: int) -> list[KVCacheBlock]:
        num_blocks = min(max_length // self.block_size, len(hashes))
        found = longest_prefix(lambda index: self.get_cached_block(hashes[index]), num_blocks)
        return found[: len(found) - len(found) % (alignment // self.block_size)]


class SlidingWindowManager(SingleTypeKVCacheManager):
    """A query reads the last `window` keys, its own included; `extra_retained` more tokens are kept below the window."""

    def __init__(self, spec: SlidingWindowSpec, group: int, pool: BlockPool, rounding: Rounding) -> None:
        super().__init__(spec, group, pool, rounding)
        self.window = spec.window
        self.extra_retained = spec.extra_retained

    def get_num_skipped_tokens(self, num_computed_tokens: int) -> int:
        """The next query, at position `num_computed_tokens`, reads itself and the `window` - 1 keys before it."""
        return max(0, num_computed_tokens - (self.window - 1) - self.extra_retained)

    def find_longest_cache_hit(self, hashes: Sequence[int], max_length: int, alignment: int) -> list[KVCacheBlock]:
        num_blocks = min(max_length // self.block_size, len(hashes))
        return longest_window(
            lambda index: self.get_cached_block(hashes[index]),
            num_blocks,
            # A window of 1 reads nothing from before; like vLLM, still ask for one block as a proof of the prefix.
            blocks_needed=max(1, cdiv(self.window - 1, self.block_size)),
            blocks_aligned=alignment // self.block_size,
            null_block=self.pool.null_block,
        )


def count_free(blocks: Sequence[KVCacheBlock]) -> int:
    """How many of these blocks stand in the free queue; a hit takes them out of it."""
    return sum(block.ref_cnt == 0 and not block.is_null for block in blocks)


def make_manager(spec: KVCacheSpec, group: int, pool: BlockPool, rounding: Rounding) -> SingleTypeKVCacheManager:
    """The manager of the spec's kind. Raises TypeError for a kind that has none."""
    if isinstance(spec, FullAttentionSpec):
        return FullAttentionManager(spec, group, pool, rounding)
    if isinstance(spec, SlidingWindowSpec):
        return SlidingWindowManager(spec, group, pool, rounding)
    raise TypeError(f"no manager for kind {spec.kind!r}")
