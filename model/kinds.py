"""Attention kinds. The mask is the only axiom; everything else here is derived from it or is an engine's claim about it.

`reads(query, token)`: the query at position `query` reads the key at position `token`. An engine's formula
(`get_num_skipped_tokens`) is a claim: `proofs/masks.py` proves that it frees no more than the mask allows. All positions, windows
and block sizes are in tokens and may be symbolic.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from settled.model.algebra import (
    BoolTerm,
    Int,
    IntTerm,
    as_int,
    both,
    maximum,
    minimum,
    negate,
    predicate,
)
from settled.model.disciplines import Rounding
from settled.model.specs import FullAttentionSpec, KVCacheSpec, SlidingWindowSpec


class Kind(ABC):
    """An attention kind: its mask, and the formula by which engines free."""

    name: str

    @abstractmethod
    def reads(self, query: Int, token: Int) -> BoolTerm:
        """Whether the query at position `query` reads the key at position `token`. The axiom."""

    @abstractmethod
    def skipped_tokens(self, basis: Int) -> IntTerm:
        """How many tokens an engine skips at `basis` computed tokens: the claim `get_num_skipped_tokens`."""

    def may_free(self, token: Int, basis: Int) -> BoolTerm:
        """Whether the mask lets `token` go at `basis` settled tokens.

        It is in the past, and the query at `basis` does not read it. Where needed-sets shrink, no later query does either.
        """
        return both(as_int(token) < basis, negate(self.reads(basis, token)))

    def frees_block(self, first: Int, last: Int, basis: Int, rounding: Rounding) -> BoolTerm:
        """Whether a prune on `basis` frees the block of the tokens `first` to `last`, both included.

        `skipped // B` whole blocks go: those whose last token is skipped. Rounding up frees every block whose first token is.
        """
        edge = last if rounding is Rounding.FLOOR else first
        return as_int(edge) < self.skipped_tokens(basis)


@dataclass(frozen=True)
class FullAttention(Kind):
    """Every query reads every key up to its own."""

    name = "full"

    def reads(self, query: Int, token: Int) -> BoolTerm:
        return both(as_int(token) >= 0, as_int(token) <= query)

    def skipped_tokens(self, basis: Int) -> IntTerm:
        return as_int(0)


@dataclass(frozen=True)
class SlidingWindow(Kind):
    """A query reads the last `window` keys, its own included. `extra_retained` more are kept but never read.

    Skip formula: vLLM, SlidingWindowManager.get_num_skipped_tokens.
    """

    window: Int
    extra_retained: Int = 0
    name = "sliding_window"

    def reads(self, query: Int, token: Int) -> BoolTerm:
        return both(as_int(token) >= 0, as_int(query) - self.window < token, as_int(token) <= query)

    def skipped_tokens(self, basis: Int) -> IntTerm:
        return maximum(as_int(basis) - self.window + 1 - self.extra_retained, 0)


@dataclass(frozen=True)
class AnyShrinking(Kind):
    """Any kind whose needed-sets shrink, for one fixed token: an uninterpreted predicate of the query.

    `t < q <= q'` and `reads(q', t)` imply `reads(q, t)`: `shrinks` is one instance of that axiom. There is no published
    formula: a prune takes all that the mask allows, token by token.
    """

    token: IntTerm
    symbol: str = "needed"
    name = "any shrinking mask"

    def reads(self, query: Int, token: Int) -> BoolTerm:
        if token is not self.token:
            raise ValueError("an uninterpreted mask speaks of its own token only")
        return predicate(self.symbol, query)

    def skipped_tokens(self, basis: Int) -> IntTerm:
        raise NotImplementedError("an uninterpreted mask has no published skip formula")

    def frees_block(self, first: Int, last: Int, basis: Int, rounding: Rounding) -> BoolTerm:
        """A block goes only if each of its tokens may; of the fixed token this is all that is known."""
        if rounding is not Rounding.FLOOR:
            raise NotImplementedError("an uninterpreted mask has no block boundary to round at")
        return self.may_free(self.token, basis)

    def shrinks(self, earlier: Int, later: Int) -> BoolTerm:
        """The axiom for one pair of queries."""
        return needed_sets_shrink(self, earlier, later, self.token)


def needed_sets_shrink(kind: Kind, earlier: Int, later: Int, token: Int) -> BoolTerm:
    """What is not needed now is not needed later: the property of a mask on which the free rule rests."""
    applies = both(as_int(token) < earlier, as_int(earlier) <= later, kind.reads(later, token))
    return negate(both(applies, negate(kind.reads(earlier, token))))


def kind_of(spec: KVCacheSpec) -> Kind | None:
    """The kind of a KV cache group; None for a kind that is not modelled yet."""
    match spec:
        case FullAttentionSpec():
            return FullAttention()
        case SlidingWindowSpec():
            return SlidingWindow(spec.window, spec.extra_retained)
        case _:
            return None


def admission_cap(kind: Kind, block_size: Int, tokens_in_flight_max: Int, model_len_max: Int) -> IntTerm:
    """The published bound, in blocks, on what one request holds of a group.

    vLLM, SlidingWindowSpec.max_admission_blocks_per_request: `ceil(min(W - 1 + extra + M, L) / B) + 1`; the one more is for a
    window that starts in the middle of a block. Full attention holds `ceil(L / B)`.
    """
    if isinstance(kind, SlidingWindow):
        needed = minimum(as_int(kind.window) - 1 + kind.extra_retained + tokens_in_flight_max, model_len_max)
        return ceil_div(needed, block_size) + 1
    if isinstance(kind, FullAttention):
        return ceil_div(model_len_max, block_size)
    raise NotImplementedError(f"no admission cap is published for {kind.name}")


def ceil_div(tokens: Int, block_size: Int) -> IntTerm:
    """The blocks that `tokens` tokens need."""
    return (as_int(tokens) + block_size - 1) // block_size


def in_block(token: Int, first: Int, last: Int) -> BoolTerm:
    """Whether a token lies in the block of the tokens `first` to `last`."""
    return both(as_int(first) <= token, as_int(token) <= last)
