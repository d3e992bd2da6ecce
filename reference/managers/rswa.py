"""R-SWA: the prompt stays, generated tokens stay as long as the window reaches them; the gap between leaves."""

from __future__ import annotations

from settled.model.disciplines import Rounding
from settled.model.events import ReleaseCause
from settled.model.specs import RSWASpec
from settled.reference.managers.base import SingleTypeKVCacheManager, cdiv
from settled.reference.managers.full import FullAttentionManager
from settled.reference.pool import BlockPool


class RSWAManager(FullAttentionManager):
    """A query reads the whole prompt and the last `window` keys, its own included.

    The prompt must not grow: a session that extends it would read the gap. Like vLLM's, the prune keeps one key more than is read, and a
    cached prefix is used as far as every block of it is cached.
    """

    def __init__(self, spec: RSWASpec, group: int, pool: BlockPool, rounding: Rounding) -> None:
        super().__init__(spec, group, pool, rounding)
        self.window = spec.window

    def get_num_skipped_tokens(self, num_computed_tokens: int) -> int:
        """Tokens behind the window; those of the prompt among them stay."""
        return max(0, num_computed_tokens - self.window)

    def get_skipped_range(self, num_computed_tokens: int, num_prompt_tokens: int) -> tuple[int, int]:
        first = cdiv(num_prompt_tokens, self.block_size)
        return first, (self.get_num_skipped_tokens(num_computed_tokens) + self.rounding_tokens) // self.block_size

    def remove_skipped_blocks(self, request_id: str, num_computed_tokens: int, num_prompt_tokens: int, cause: ReleaseCause) -> None:
        SingleTypeKVCacheManager.remove_skipped_blocks(self, request_id, num_computed_tokens, num_prompt_tokens, cause)
