"""Groups that random logs of these tests are made with: each kind alone or beside another, block sizes that differ."""

from __future__ import annotations

from settled.model.specs import (
    ChunkedLocalAttentionSpec,
    CustomSpec,
    FullAttentionSpec,
    KVCacheSpec,
    MambaSpec,
    RSWASpec,
    SinkWindowSpec,
    SlidingWindowSpec,
)
from settled.reference.masks import register_mask

TWO_PIECES = "device tests: the second token and the last two"


def _reads(query: int, token: int) -> bool:
    return query - token < 2 or token == 1


register_mask(TWO_PIECES, _reads)

GROUPS: dict[str, tuple[KVCacheSpec, ...]] = {
    "full": (FullAttentionSpec(block_size=4),),
    "sliding_window": (SlidingWindowSpec(block_size=2, window=5),),
    "chunked_local": (ChunkedLocalAttentionSpec(block_size=4, chunk=6),),
    "sink_window": (SinkWindowSpec(block_size=2, sink=3, window=4),),
    "rswa": (RSWASpec(block_size=2, window=3),),
    "custom": (CustomSpec(block_size=2, name=TWO_PIECES),),
    "mamba": (MambaSpec(block_size=4, mode="none"),),
    "window and state": (SlidingWindowSpec(block_size=2, window=5), MambaSpec(block_size=4, mode="none")),
    "full and chunk": (FullAttentionSpec(block_size=3), ChunkedLocalAttentionSpec(block_size=4, chunk=6)),
}
