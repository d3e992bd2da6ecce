"""A manager per attention kind: what stands in the block tables of a group's layers, and what may leave them.

Read `base.py` first: pruning, allocation, registration and whole-request frees are the same for all kinds. A kind's file says only what
the kind decides: what no later query needs, and how long a cached prefix it can use. `mamba.py` is the one that allocates differently.
"""

from __future__ import annotations

from settled.model.disciplines import Rounding
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
from settled.reference.managers.base import SingleTypeKVCacheManager, TableEntries, cdiv, count_free
from settled.reference.managers.chunked_local import ChunkedLocalAttentionManager
from settled.reference.managers.custom import CustomManager
from settled.reference.managers.full import FullAttentionManager
from settled.reference.managers.mamba import MambaAlignManager, MambaManager, MambaNoneManager, StateIndices
from settled.reference.managers.rswa import RSWAManager
from settled.reference.managers.sink_window import SinkWindowManager
from settled.reference.managers.sliding_window import SlidingWindowManager
from settled.reference.pool import BlockPool

__all__ = [
    "ChunkedLocalAttentionManager",
    "CustomManager",
    "FullAttentionManager",
    "MambaAlignManager",
    "MambaManager",
    "MambaNoneManager",
    "RSWAManager",
    "SingleTypeKVCacheManager",
    "SinkWindowManager",
    "SlidingWindowManager",
    "StateIndices",
    "TableEntries",
    "cdiv",
    "count_free",
    "make_manager",
]


def make_manager(spec: KVCacheSpec, group: int, pool: BlockPool, rounding: Rounding) -> SingleTypeKVCacheManager:
    """The manager of the spec's kind. Raises TypeError for a kind that has none, MaskError for a custom one without a mask."""
    match spec:
        case FullAttentionSpec():
            return FullAttentionManager(spec, group, pool, rounding)
        case SlidingWindowSpec():
            return SlidingWindowManager(spec, group, pool, rounding)
        case ChunkedLocalAttentionSpec():
            return ChunkedLocalAttentionManager(spec, group, pool, rounding)
        case SinkWindowSpec():
            return SinkWindowManager(spec, group, pool, rounding)
        case RSWASpec():
            return RSWAManager(spec, group, pool, rounding)
        case MambaSpec(mode="none"):
            return MambaNoneManager(spec, group, pool, rounding)
        case MambaSpec(mode="align"):
            return MambaAlignManager(spec, group, pool, rounding)
        case CustomSpec():
            return CustomManager(spec, group, pool, rounding)
        case _:
            raise TypeError(f"no manager for kind {spec.kind!r}")
