"""Full attention: everything stays to the end."""

from __future__ import annotations

from collections.abc import Sequence

from settled.model.events import CacheEntry, ReleaseCause
from settled.reference.free_queue import BlockHash, KVCacheBlock
from settled.reference.managers.base import SingleTypeKVCacheManager
from settled.reference.prefix_cache import longest_prefix
from settled.reference.request import Request


class FullAttentionManager(SingleTypeKVCacheManager):
    """Every query reads every earlier key: nothing is skipped before the request ends."""

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

        Keys are only ever appended, so a block that is cached for its first tokens goes on to hold them while its owner fills it.
        """
        found = longest_prefix(lambda index: self.cached_at(hashes, index), self.num_hashed_blocks(hashes, max_length))
        first = len(found) * self.hashes_per_block
        last = min(first + self.hashes_per_block - 1, max_length // tokens_per_hash, len(hashes))
        for num_hashes in range(last, first, -1):
            block = self.pool.get_cached_block(BlockHash(self.group, hashes[num_hashes - 1]))
            if block is not None:
                return [*found, block], num_hashes * tokens_per_hash
        return found, first * tokens_per_hash

    def cache_prompt_tail(self, request: Request, num_tokens: int, tokens_per_hash: int) -> list[CacheEntry]:
        """Gives a hash to the start of the block in which the prompt ends, once the first `num_tokens` tokens include it.

        A later request with the same prompt computes at least its last token: the hash ends before that.
        """
        end = (request.num_prompt_tokens - 1) // tokens_per_hash * tokens_per_hash
        index = end // self.block_size
        if end % self.block_size == 0 or end > num_tokens:
            return []
        block = self.req_to_blocks[request.request_id][index]
        if block.partial_hash is not None:
            return []
        hashes = request.hashes_up_to_now(tokens_per_hash)
        self.pool.cache_partial_block(block, BlockHash(self.group, hashes[end // tokens_per_hash - 1]))
        assert block.partial_hash is not None
        return [
            CacheEntry(
                block=block.block_id,
                group=self.group,
                hash=block.partial_hash.value,
                request=request.request_id,
                start=index * self.block_size,
                end=end,
            )
        ]
