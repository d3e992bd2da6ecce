"""Sliding window: what falls behind the window leaves."""

from __future__ import annotations

from collections.abc import Sequence

from settled.model.disciplines import Rounding
from settled.model.specs import SlidingWindowSpec
from settled.reference.free_queue import KVCacheBlock
from settled.reference.managers.base import SingleTypeKVCacheManager, cdiv
from settled.reference.pool import BlockPool
from settled.reference.prefix_cache import longest_suffix


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
        """Null, then the blocks of one window, all of them cached.

        A window of 1 reads nothing from before; like vLLM, still ask for one block as a proof of the prefix.
        """
        window_blocks = max(1, cdiv(self.window - 1, self.block_size))
        return longest_suffix(
            lambda index: self.cached_at(hashes, index),
            self.num_hashed_blocks(hashes, max_length),
            first_needed=lambda num_blocks: max(0, num_blocks - window_blocks),
            blocks_aligned=alignment // self.block_size,
            null_block=self.pool.null_block,
        )
