"""Full attention: everything stays to the end."""

from __future__ import annotations

from collections.abc import Sequence

from settled.model.events import ReleaseCause
from settled.reference.free_queue import KVCacheBlock
from settled.reference.managers.base import SingleTypeKVCacheManager
from settled.reference.prefix_cache import longest_prefix


class FullAttentionManager(SingleTypeKVCacheManager):
    """Every query reads every earlier key: nothing is skipped before the request ends."""

    def get_num_skipped_tokens(self, num_computed_tokens: int) -> int:
        return 0

    def remove_skipped_blocks(self, request_id: str, num_computed_tokens: int, num_prompt_tokens: int, cause: ReleaseCause) -> None:
        """Nothing to prune."""

    def find_longest_cache_hit(self, hashes: Sequence[int], max_length: int, alignment: int) -> list[KVCacheBlock]:
        """The cached blocks from the first on."""
        num_blocks = min(max_length // self.block_size, len(hashes))
        found = longest_prefix(lambda index: self.get_cached_block(hashes[index]), num_blocks)
        return found[: len(found) - len(found) % (alignment // self.block_size)]
