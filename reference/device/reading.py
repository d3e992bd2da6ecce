"""Which keys a query reads, as ranges of positions: what the kernels compute with, and what a launch is said to read.

Written from the meaning of each kind's parameters, independently of the model's masks and of the managers' skip formulas.
"""

from __future__ import annotations

from collections.abc import Callable

from settled.model.specs import (
    ChunkedLocalAttentionSpec,
    CustomSpec,
    FullAttentionSpec,
    KVCacheSpec,
    RSWASpec,
    SinkWindowSpec,
    SlidingWindowSpec,
)
from settled.reference.masks import Reads, mask_named

Ranges = tuple[tuple[int, int], ...]
Reading = Callable[[int, int], Ranges]
"""(query, prompt tokens) to the key positions [first, end) that the query reads: disjoint, ascending, the query's own position included."""


class UnreadableKindError(ValueError):
    """A group of this kind has no kernel here; the message says which."""


def reading_of(spec: KVCacheSpec) -> Reading:
    """Raises UnreadableKindError for kinds that keep no keys or whose keys are not the request's own, MaskError for unknown masks."""
    match spec:
        case FullAttentionSpec():
            return lambda query, prompt_tokens: ((0, query + 1),)
        case SlidingWindowSpec(window=window):
            return lambda query, prompt_tokens: ((max(0, query - window + 1), query + 1),)
        case ChunkedLocalAttentionSpec(chunk=chunk):
            return lambda query, prompt_tokens: ((query - query % chunk, query + 1),)
        case SinkWindowSpec(sink=sink, window=window):
            return lambda query, prompt_tokens: _joined((0, min(sink, query + 1)), (max(0, query - window + 1), query + 1))
        case RSWASpec(window=window):
            return lambda query, prompt_tokens: _joined((0, min(prompt_tokens, query + 1)), (max(0, query - window + 1), query + 1))
        case CustomSpec(name=name):
            return _asking(mask_named(name))
        case _:
            raise UnreadableKindError(f"no kernel reads keys of kind {spec.kind!r}")


def _joined(kept: tuple[int, int], window: tuple[int, int]) -> Ranges:
    """What is kept from the beginning, then the window; one range where they meet."""
    if kept[1] <= kept[0]:
        return (window,)
    return ((0, window[1]),) if kept[1] >= window[0] else (kept, window)


def _asking(reads: Reads) -> Reading:
    """Token by token."""

    def ranges(query: int, prompt_tokens: int) -> Ranges:
        found: list[tuple[int, int]] = []
        for token in range(query + 1):
            if not reads(query, token):
                continue
            if found and found[-1][1] == token:
                found[-1] = (found[-1][0], token + 1)
            else:
                found.append((token, token + 1))
        return tuple(found)

    return ranges
