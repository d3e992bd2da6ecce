"""Sink + window: the first tokens stay for ever, the last ones as long as the window reaches them; the gap between leaves."""

from __future__ import annotations

from collections.abc import Sequence

from settled.model.disciplines import Rounding
from settled.model.specs import SinkWindowSpec
from settled.reference.free_queue import KVCacheBlock
from settled.reference.managers.base import SingleTypeKVCacheManager, cdiv
from settled.reference.pool import BlockPool
from settled.reference.prefix_cache import longest_prefix, longest_suffix


class SinkWindowManager(SingleTypeKVCacheManager):
    """A query reads the first `sink` keys and the last `window` keys, its own included."""

    def __init__(self, spec: SinkWindowSpec, group: int, pool: BlockPool, rounding: Rounding) -> None:
        super().__init__(spec, group, pool, rounding)
        self.window = spec.window
        self.sink_blocks = cdiv(spec.sink, spec.block_size)

    def get_num_skipped_tokens(self, num_computed_tokens: int) -> int:
        """Tokens behind the window; those of the sink among them stay."""
        return max(0, num_computed_tokens - (self.window - 1))

    def get_skipped_range(self, num_computed_tokens: int, num_prompt_tokens: int) -> tuple[int, int]:
        return self.sink_blocks, (self.get_num_skipped_tokens(num_computed_tokens) + self.rounding_tokens) // self.block_size

    def find_longest_cache_hit(self, hashes: Sequence[int], max_length: int, alignment: int) -> list[KVCacheBlock]:
        """The sink's blocks, null, then the blocks of one window, all of them cached. A prefix within the sink is cached as a whole."""
        num_blocks = self.num_hashed_blocks(hashes, max_length)
        sink = longest_prefix(lambda index: self.cached_at(hashes, index), min(num_blocks, self.sink_blocks))
        if len(sink) < self.sink_blocks:
            return sink[: len(sink) - len(sink) % (alignment // self.block_size)]
        window_blocks = cdiv(self.window - 1, self.block_size)
        found = longest_suffix(
            lambda index: self.cached_at(hashes, index),
            num_blocks,
            first_needed=lambda length: max(0, length - window_blocks),
            blocks_aligned=alignment // self.block_size,
            null_block=self.pool.null_block,
        )
        return sink[: len(found)] + found[len(sink) :]
