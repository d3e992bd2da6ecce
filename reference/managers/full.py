"""Full attention: everything stays to the end."""

from __future__ import annotations

from collections.abc import Sequence

from settled.model.disciplines import Rounding
from settled.model.events import CacheEntry, ReleaseCause
from settled.model.specs import KVCacheSpec
from settled.reference.free_queue import BlockHash, KVCacheBlock
from settled.reference.managers.base import SingleTypeKVCacheManager
from settled.reference.pool import BlockPool
from settled.reference.prefix_cache import longest_prefix
from settled.reference.request import Request


class FullAttentionManager(SingleTypeKVCacheManager):
    """Every query reads every earlier key: nothing is skipped before the request ends."""

    def __init__(self, spec: KVCacheSpec, group: int, pool: BlockPool, rounding: Rounding) -> None:
        super().__init__(spec, group, pool, rounding)
        self.serves_partial_hits = False
        self._cached_this_step: set[int] = set()  # blocks, by id, of which the step that is being scheduled computes what is cached

    def new_step_starts(self) -> None:
        """What was cached so far is computed by earlier steps."""
        self._cached_this_step.clear()

    def get_num_skipped_tokens(self, num_computed_tokens: int) -> int:
        return 0

    def remove_skipped_blocks(self, request_id: str, num_computed_tokens: int, num_prompt_tokens: int, cause: ReleaseCause) -> None:
        """Nothing to prune."""

    def find_longest_cache_hit(self, hashes: Sequence[int], max_length: int, alignment: int) -> list[KVCacheBlock]:
        """The cached blocks from the first on."""
        num_blocks = self.num_hashed_blocks(hashes, max_length)
        found = longest_prefix(lambda index: self.cached_at(hashes, index), num_blocks)
        return found[: len(found) - len(found) % (alignment // self.block_size)]

    # ---- hits that end within a block --------------------------------------------------------------------------------

    def find_longest_partial_hit(self, hashes: Sequence[int], max_length: int, tokens_per_hash: int) -> tuple[list[KVCacheBlock], int]:
        """Like find_longest_cache_hit, but the last block may be cached for its first tokens alone; returns how many tokens all hold.

        Keys are only ever appended, so a block that is cached for its first tokens goes on to hold them while its owner fills it. A copy is
        made when a step begins: what that very step computes is not there yet.
        """
        found = longest_prefix(lambda index: self.cached_at(hashes, index), self.num_hashed_blocks(hashes, max_length))
        first = len(found) * self.hashes_per_block
        last = min(first + self.hashes_per_block - 1, max_length // tokens_per_hash, len(hashes))
        for num_hashes in range(last, first, -1):
            block = self.pool.get_cached_block(BlockHash(self.group, hashes[num_hashes - 1]))
            if block is not None and block.block_id not in self._cached_this_step:
                return [*found, block], num_hashes * tokens_per_hash
        return found, first * tokens_per_hash

    def is_computed_this_step(self, tail: KVCacheBlock | None) -> bool:
        """Whether a block in which a hit ends is not there yet when the step begins, with a copy of it."""
        return tail is not None and tail.block_id in self._cached_this_step

    def cache_blocks(self, request: Request, num_tokens: int, entries: list[CacheEntry] | None, *, unsaved_index: int = -1) -> None:
        first = self.num_cached_block.get(request.request_id, 0)
        super().cache_blocks(request, num_tokens, entries, unsaved_index=unsaved_index)
        if self.serves_partial_hits:
            table = self.req_to_blocks[request.request_id]
            self._cached_this_step.update([block.block_id for block in table[first : num_tokens // self.block_size]])

    def cache_prompt_tail(self, request: Request, num_tokens: int, tokens_per_hash: int, entries: list[CacheEntry] | None) -> None:
        """Gives a hash to the start of the block in which the prompt ends, once the first `num_tokens` tokens include it.

        A later request with the same prompt computes at least its last token: the hash ends before that.
        """
        end = (request.num_prompt_tokens - 1) // tokens_per_hash * tokens_per_hash
        index = end // self.block_size
        if end % self.block_size == 0 or end > num_tokens:
            return
        block = self.req_to_blocks[request.request_id][index]
        if block.partial_hash is not None:
            return
        block_hash = BlockHash(self.group, request.hashes_up_to_now(tokens_per_hash)[end // tokens_per_hash - 1])
        self.pool.cache_partial_block(block, block_hash)
        self._cached_this_step.add(block.block_id)
        if entries is not None:
            start = index * self.block_size
            entries.append(
                CacheEntry(block=block.block_id, group=self.group, hash=block_hash.value, request=request.request_id, start=start, end=end)
            )
