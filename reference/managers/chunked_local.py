"""Chunked local attention: what lies before the chunk leaves."""

from __future__ import annotations

from collections.abc import Sequence

from settled.model.disciplines import Rounding
from settled.model.specs import ChunkedLocalAttentionSpec
from settled.reference.free_queue import KVCacheBlock
from settled.reference.managers.base import SingleTypeKVCacheManager
from settled.reference.pool import BlockPool
from settled.reference.prefix_cache import longest_suffix


class ChunkedLocalAttentionManager(SingleTypeKVCacheManager):
    """A query reads the keys of its own chunk of `chunk` tokens, up to its own."""

    def __init__(self, spec: ChunkedLocalAttentionSpec, group: int, pool: BlockPool, rounding: Rounding) -> None:
        super().__init__(spec, group, pool, rounding)
        self.chunk = spec.chunk

    def get_num_skipped_tokens(self, num_computed_tokens: int) -> int:
        """The next query, at position `num_computed_tokens`, reads from the start of its chunk on."""
        return num_computed_tokens - num_computed_tokens % self.chunk

    def find_longest_cache_hit(self, hashes: Sequence[int], max_length: int, alignment: int) -> list[KVCacheBlock]:
        """Null, then what is cached of the chunk in which the prefix ends; a prefix that ends with a chunk needs no block at all.

        vLLM looks once, for the chunk of `max_length`, and takes what comes before for granted. Where block size does not divide the
        chunk, a miss there leaves a prefix that ends in the chunk before, whose blocks are null; so here each length is asked for
        what it needs itself.
        """
        return longest_suffix(
            lambda index: self.cached_at(hashes, index),
            self.num_hashed_blocks(hashes, max_length),
            first_needed=lambda num_blocks: self.get_num_skipped_tokens(num_blocks * self.block_size) // self.block_size,
            blocks_aligned=alignment // self.block_size,
            null_block=self.pool.null_block,
        )
