"""Parameters of attention kinds: what a KV cache group is, and nothing about what it implies.

The masks and formulas that follow from these parameters are in `kinds.py`; the reference engine has its own. Names follow
vLLM's `KVCacheSpec` classes, field names follow the trace schema. Every length is in tokens unless it says blocks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise ValueError(message)


@dataclass(frozen=True, slots=True, kw_only=True)
class KVCacheSpec:
    """One KV cache group: layers that share a block table.

    `block_size` is in tokens; `cap`, in blocks, is what the engine's admission counts for one request at most, if known.
    Raises ValueError when a size is below 1.
    """

    kind: ClassVar[str]
    block_size: int
    cap: int | None = None

    def __post_init__(self) -> None:
        _require(self.block_size >= 1, f"block_size must be at least 1 token, not {self.block_size}")
        _require(self.cap is None or self.cap >= 0, f"cap must be at least 0 blocks, not {self.cap}")


@dataclass(frozen=True, slots=True, kw_only=True)
class FullAttentionSpec(KVCacheSpec):
    """Every query reads every earlier key."""

    kind: ClassVar[str] = "full"


@dataclass(frozen=True, slots=True, kw_only=True)
class SlidingWindowSpec(KVCacheSpec):
    """A query reads the last `window` keys, itself included; `extra_retained` more tokens are kept but not read."""

    kind: ClassVar[str] = "sliding_window"
    window: int
    extra_retained: int = 0

    def __post_init__(self) -> None:
        KVCacheSpec.__post_init__(self)
        _require(self.window >= 1, f"window must be at least 1 token, not {self.window}")
        _require(self.extra_retained >= 0, f"extra_retained must be at least 0 tokens, not {self.extra_retained}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkedLocalAttentionSpec(KVCacheSpec):
    """A query reads the keys of its own chunk only."""

    kind: ClassVar[str] = "chunked_local"
    chunk: int

    def __post_init__(self) -> None:
        KVCacheSpec.__post_init__(self)
        _require(self.chunk >= 1, f"chunk must be at least 1 token, not {self.chunk}")


@dataclass(frozen=True, slots=True, kw_only=True)
class MambaSpec(KVCacheSpec):
    """A recurrent state; blocks hold states, not keys."""

    kind: ClassVar[str] = "mamba"
    mode: Literal["none", "align", "all"]
    num_speculative_blocks: int = 0

    def __post_init__(self) -> None:
        KVCacheSpec.__post_init__(self)
        _require(self.num_speculative_blocks >= 0, f"num_speculative_blocks must be at least 0 blocks, not {self.num_speculative_blocks}")


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkWindowSpec(KVCacheSpec):
    """A sliding window plus the first `sink` tokens."""

    kind: ClassVar[str] = "sink_window"
    sink: int
    window: int

    def __post_init__(self) -> None:
        KVCacheSpec.__post_init__(self)
        _require(self.sink >= 0, f"sink must be at least 0 tokens, not {self.sink}")
        _require(self.window >= 1, f"window must be at least 1 tokens, not {self.window}")


@dataclass(frozen=True, slots=True, kw_only=True)
class RSWASpec(KVCacheSpec):
    """The prompt is kept, decode slides; the gap between them is freed."""

    kind: ClassVar[str] = "rswa"
    window: int

    def __post_init__(self) -> None:
        KVCacheSpec.__post_init__(self)
        _require(self.window >= 1, f"window must be at least 1 tokens, not {self.window}")


@dataclass(frozen=True, slots=True, kw_only=True)
class CrossAttentionSpec(KVCacheSpec):
    """Keys live on the encoder's axis."""

    kind: ClassVar[str] = "cross"


@dataclass(frozen=True, slots=True, kw_only=True)
class CustomSpec(KVCacheSpec):
    """A kind that only its name describes."""

    kind: ClassVar[str] = "custom"
    name: str


SPEC_BY_KIND: dict[str, type[KVCacheSpec]] = {
    spec.kind: spec
    for spec in (
        FullAttentionSpec,
        SlidingWindowSpec,
        ChunkedLocalAttentionSpec,
        MambaSpec,
        SinkWindowSpec,
        RSWASpec,
        CrossAttentionSpec,
        CustomSpec,
    )
}
