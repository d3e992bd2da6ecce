"""A kind that a user describes by its mask: the mask is asked, token by token."""

from __future__ import annotations

from collections.abc import Sequence

from settled.model.disciplines import Rounding
from settled.model.events import ReleaseCause
from settled.model.specs import CustomSpec
from settled.reference.free_queue import KVCacheBlock
from settled.reference.managers.full import FullAttentionManager
from settled.reference.masks import mask_named
from settled.reference.pool import BlockPool


class CustomManager(FullAttentionManager):
    """Any mask whose needed-sets shrink. A cached prefix is used as far as every block of it is cached: right for any mask."""

    def __init__(self, spec: CustomSpec, group: int, pool: BlockPool, rounding: Rounding) -> None:
        super().__init__(spec, group, pool, rounding)
        self.reads = mask_named(spec.name)

    def is_skipped(self, index: int, num_computed_tokens: int) -> bool:
        """Whether the query at `num_computed_tokens` reads no token of a past block; with rounding up, not its first one, and with a
        prune that stops short none of the next block either."""
        first = index * self.block_size
        tokens = range(first, first + self.block_size - self.rounding_tokens)
        return all(token < num_computed_tokens and not self.reads(num_computed_tokens, token) for token in tokens)

    def remove_skipped_blocks(self, request_id: str, num_computed_tokens: int, num_prompt_tokens: int, cause: ReleaseCause) -> None:
        table = self.req_to_blocks.get(request_id, [])
        null = self.pool.null_block
        past = range(min(num_computed_tokens // self.block_size, len(table) - 1), -1, -1)
        self._prune(
            request_id, [index for index in past if table[index] is not null and self.is_skipped(index, num_computed_tokens)], cause
        )

    def kept_of_hit(self, hit: Sequence[KVCacheBlock], num_hit_tokens: int, num_prompt_tokens: int) -> list[KVCacheBlock]:
        null = self.pool.null_block
        return [null if self.is_skipped(index, num_hit_tokens) else block for index, block in enumerate(hit)]
