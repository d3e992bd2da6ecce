"""Admission caps, in blocks: what one request holds of a group right after it pruned and took slots, at most.

The published caps are engines' claims; `proofs/caps.py` compares them with the exact maxima, which follow from the kinds' own formulas.
Lengths are in tokens. `in_flight_max` is M, the tokens of scheduled, unprocessed steps at most; `lookahead` the slots that a step may
write past its tokens; `model_len_max` is L.
"""

from __future__ import annotations

from settled.model.algebra import Int, IntTerm, as_int, minimum
from settled.model.kinds import ChunkedLocal, FullAttention, Kind, SlidingWindow, ceil_div


def admission_cap(kind: Kind, block_size: Int, in_flight_max: Int, model_len_max: Int) -> IntTerm:
    """The published bound on what one request holds of a group.

    vLLM, max_admission_blocks_per_request of SlidingWindowSpec: `ceil(min(W - 1 + extra + M, L) / B) + 1`, the one more for a window that
    starts in the middle of a block; of ChunkedLocalAttentionSpec: `ceil(min(X + M, L) / B)`. Full attention holds `ceil(L / B)`.
    Raises NotImplementedError for a kind without a published cap.
    """
    if isinstance(kind, SlidingWindow):
        needed = minimum(as_int(kind.window) - 1 + kind.extra_retained + in_flight_max, model_len_max)
        return ceil_div(needed, block_size) + 1
    if isinstance(kind, ChunkedLocal):
        return ceil_div(minimum(as_int(kind.chunk) + in_flight_max, model_len_max), block_size)
    if isinstance(kind, FullAttention):
        return ceil_div(model_len_max, block_size)
    raise NotImplementedError(f"no admission cap is published for {kind.name}")


def blocks_held(kind: Kind, block_size: Int, settled: Int, slots: Int) -> IntTerm:
    """What a table holds that was pruned at `settled` tokens and then has slots for the positions below `slots`."""
    return ceil_div(slots, block_size) - kind.skipped_tokens(settled) // block_size


def exact_maximum(kind: Kind, block_size: Int, in_flight_max: Int, lookahead: Int, gcd: Int) -> IntTerm:
    """The most that a request holds, for an unbounded model length. `gcd` is that of the block size and the chunk.

    Sliding window: `1 + ceil((W - 2 + extra + M + k) / B)`; chunked local: `ceil((B - gcd + X - 1 + M + k) / B)`.
    Raises NotImplementedError for another kind.
    """
    in_flight = as_int(in_flight_max) + lookahead
    if isinstance(kind, SlidingWindow):
        return ceil_div(as_int(kind.window) - 2 + kind.extra_retained + in_flight, block_size) + 1
    if isinstance(kind, ChunkedLocal):
        return ceil_div(as_int(block_size) - gcd + kind.chunk - 1 + in_flight, block_size)
    raise NotImplementedError(f"no exact maximum is known for {kind.name}")
