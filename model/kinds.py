"""Attention kinds. The mask is the only axiom; everything else here is derived from it or is an engine's claim about it.

`reads(query, token)`: the query at position `query` reads the key at position `token`. An engine's formula
(`get_num_skipped_tokens`) is a claim: `proofs/masks.py` proves that it frees no more than the mask allows. All positions, windows
and block sizes are in tokens and may be symbolic.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from settled.model.algebra import (
    BoolTerm,
    Int,
    IntTerm,
    as_int,
    both,
    either,
    function,
    maximum,
    negate,
    predicate,
)
from settled.model.disciplines import Discipline, FreeBasis, Rounding
from settled.model.specs import (
    ChunkedLocalAttentionSpec,
    FullAttentionSpec,
    KVCacheSpec,
    MambaSpec,
    RSWASpec,
    SinkWindowSpec,
    SlidingWindowSpec,
)


class Axiom(NamedTuple):
    """What is known of an uninterpreted symbol of a mask, as a condition on every pair of its arguments."""

    symbol: str
    name: str
    of_pair: Callable[[IntTerm, IntTerm], BoolTerm]


class Kind(ABC):
    """An attention kind: its mask, and the formula by which engines free."""

    name: str

    @property
    def axiom(self) -> Axiom | None:
        """What proofs may use of the mask's uninterpreted symbol; None if it has none."""
        return None

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

        `skipped // B` whole blocks go: those whose last token is skipped. Rounding up frees every block whose first token is; a prune that
        stops short frees a block only if the next one may go as well.
        """
        match rounding:
            case Rounding.FLOOR:
                edge = as_int(last)
            case Rounding.CEIL:
                edge = as_int(first)
            case Rounding.SHORT:
                edge = as_int(last) + (as_int(last) - first + 1)
        return edge < self.skipped_tokens(basis)

    def prune_basis(self, discipline: Discipline) -> FreeBasis:
        """The count on which a prune of this kind relies under a discipline."""
        return discipline.free_basis

    # ---- a step, whose queries are start to start + tokens - 1; its own tokens' slots exist when it is scheduled ------

    def step_reads(self, start: Int, tokens: Int, token: Int) -> BoolTerm:
        """Whether a step reads what is kept for `token`.

        Where needed-sets shrink, a key before the start is read by some query iff the first one reads it; a key that the step itself
        writes is read by its own query.
        """
        earlier = both(as_int(token) < start, self.reads(start, token))
        return either(earlier, _within(start, tokens, token))

    def step_writes(self, start: Int, tokens: Int, token: Int, lookahead: Int) -> BoolTerm:
        """Whether a step may write the slot of `token`: its own tokens, and `lookahead` slots past them."""
        return _within(start, as_int(tokens) + lookahead, token)

    def takes_block(self, first: Int, last: Int, start: Int, end: Int) -> BoolTerm:
        """Whether slots for the positions `start` to `end` - 1 include the block of the tokens `first` to `last`."""
        return as_int(first) < end


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
class ChunkedLocal(Kind):
    """A query reads the keys of its own chunk of `chunk` tokens, up to its own.

    Skip formula: vLLM, ChunkedLocalAttentionManager.get_num_skipped_tokens.
    """

    chunk: Int
    name = "chunked_local"

    def reads(self, query: Int, token: Int) -> BoolTerm:
        return both(as_int(token) >= 0, self.chunk_start(query) <= token, as_int(token) <= query)

    def skipped_tokens(self, basis: Int) -> IntTerm:
        return self.chunk_start(basis)

    def chunk_start(self, position: Int) -> IntTerm:
        """The first position of the chunk that holds a position."""
        return (as_int(position) // self.chunk) * self.chunk


@dataclass(frozen=True)
class AnyChunks(ChunkedLocal):
    """Chunked local attention with chunk starts known by an axiom, not by a division: no product of symbols is left.

    `proofs/masks.py` proves the axiom of the division. It allows more than the division, chunks with gaps between them, so a proof for
    these chunks is one for the division, and a refutation need not be.
    """

    symbol: str = "chunk start"

    def chunk_start(self, position: Int) -> IntTerm:
        return function(self.symbol, position)

    @property
    def axiom(self) -> Axiom:
        return Axiom(self.symbol, "chunks", self.chunks)

    def chunks(self, x: Int, y: Int) -> BoolTerm:
        """The axiom for one pair of positions."""
        return chunks_of(self.chunk, x, self.chunk_start(x), self.chunk_start(y))


@dataclass(frozen=True)
class SinkWindow(Kind):
    """A query reads the first `sink` keys and the last `window` keys, its own included."""

    sink: Int
    window: Int
    name = "sink_window"

    def reads(self, query: Int, token: Int) -> BoolTerm:
        in_reach = either(as_int(token) < self.sink, as_int(query) - self.window < token)
        return both(as_int(token) >= 0, as_int(token) <= query, in_reach)

    def skipped_tokens(self, basis: Int) -> IntTerm:
        return maximum(as_int(basis) - self.window + 1, 0)

    def frees_block(self, first: Int, last: Int, basis: Int, rounding: Rounding) -> BoolTerm:
        """The blocks that lie between the sink and the window."""
        return both(as_int(first) >= self.sink, Kind.frees_block(self, first, last, basis, rounding))


@dataclass(frozen=True)
class RSWA(Kind):
    """Reference sliding-window attention: a query reads the whole prompt and the last `window` keys, its own included.

    `prompt`: the request's prompt, in tokens, which must not grow. Skip formula: vLLM, RSWAManager.remove_skipped_blocks, which frees
    the gap between the prompt's last block and the window, and keeps one key more than the mask needs.
    """

    window: Int
    prompt: Int
    name = "rswa"

    def reads(self, query: Int, token: Int) -> BoolTerm:
        in_reach = either(as_int(token) < self.prompt, as_int(query) - self.window < token)
        return both(as_int(token) >= 0, as_int(token) <= query, in_reach)

    def skipped_tokens(self, basis: Int) -> IntTerm:
        return maximum(as_int(basis) - self.window, 0)

    def frees_block(self, first: Int, last: Int, basis: Int, rounding: Rounding) -> BoolTerm:
        """The blocks that lie between the prompt and the window."""
        return both(as_int(first) >= self.prompt, Kind.frees_block(self, first, last, basis, rounding))


@dataclass(frozen=True)
class MambaAlign(Kind):
    """A recurrent state, kept at the end of each step: `token` stands for the state after that token.

    A query reads the state before its own token. A step reads one state and writes one, that after its last token; what its tokens pass
    in between is never stored, so a block that holds no step's last token stays null. Skip formula: vLLM,
    MambaManager.get_num_skipped_tokens.
    """

    name = "mamba align"

    def reads(self, query: Int, token: Int) -> BoolTerm:
        return both(as_int(token) >= 0, as_int(token) == as_int(query) - 1)

    def skipped_tokens(self, basis: Int) -> IntTerm:
        return maximum(as_int(basis) - 1, 0)

    def step_reads(self, start: Int, tokens: Int, token: Int) -> BoolTerm:
        return self.reads(start, token)

    def step_writes(self, start: Int, tokens: Int, token: Int, lookahead: Int) -> BoolTerm:
        """States have no lookahead: draft models have no such layers."""
        return as_int(token) == as_int(start) + tokens - 1

    def prune_basis(self, discipline: Discipline) -> FreeBasis:
        return discipline.state_basis or discipline.free_basis

    def takes_block(self, first: Int, last: Int, start: Int, end: Int) -> BoolTerm:
        """The block of the last position alone."""
        return in_block(as_int(end) - 1, first, last)


@dataclass(frozen=True)
class MambaNone(Kind):
    """One recurrent state, overwritten in place, with `slots` - 1 more for drafts: blocks 0 to `slots` - 1 of a table.

    A block is as long as a request may be, so `block_size` > every position: what is kept for drafts stands past all tokens.
    """

    slots: Int
    block_size: Int
    name = "mamba none"

    def reads(self, query: Int, token: Int) -> BoolTerm:
        return both(as_int(token) >= 0, as_int(token) < as_int(self.slots) * self.block_size)

    def skipped_tokens(self, basis: Int) -> IntTerm:
        """vLLM's formula is that of `align`; no whole block is below it."""
        return maximum(as_int(basis) - 1, 0)

    def step_reads(self, start: Int, tokens: Int, token: Int) -> BoolTerm:
        return self.reads(start, token)

    def step_writes(self, start: Int, tokens: Int, token: Int, lookahead: Int) -> BoolTerm:
        return self.reads(start, token)

    def prune_basis(self, discipline: Discipline) -> FreeBasis:
        return discipline.state_basis or discipline.free_basis

    def takes_block(self, first: Int, last: Int, start: Int, end: Int) -> BoolTerm:
        return self.reads(start, first)


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

    @property
    def axiom(self) -> Axiom:
        return Axiom(self.symbol, "needed-sets shrink", self.shrinks)

    def shrinks(self, earlier: Int, later: Int) -> BoolTerm:
        """The axiom for one pair of queries."""
        return needed_sets_shrink(self, earlier, later, self.token)


def needed_sets_shrink(kind: Kind, earlier: Int, later: Int, token: Int) -> BoolTerm:
    """What is not needed now is not needed later: the property of a mask on which the free rule rests."""
    applies = both(as_int(token) < earlier, as_int(earlier) <= later, kind.reads(later, token))
    return negate(both(applies, negate(kind.reads(earlier, token))))


def chunks_of(chunk: Int, position: Int, start: IntTerm, another: IntTerm) -> BoolTerm:
    """What is known of a position, the start of its chunk of `chunk` tokens, and the start of another chunk: the position lies in its
    chunk, chunks do not overlap, and one of them starts at 0."""
    apart = either(start + chunk <= another, another + chunk <= start)
    return both(
        start <= position, as_int(position) < start + chunk, (start >= 0) == (as_int(position) >= 0), either(start == another, apart)
    )


def kind_of(spec: KVCacheSpec, prompt: Int | None = None) -> Kind | None:
    """The kind of a KV cache group; None for a kind that is not modelled: cross attention, Mamba's mode `all`, what only a name describes.

    `prompt`: the request's prompt, in tokens, on which R-SWA depends. Raises ValueError where it is needed and not given.
    """
    match spec:
        case FullAttentionSpec():
            return FullAttention()
        case SlidingWindowSpec():
            return SlidingWindow(spec.window, spec.extra_retained)
        case ChunkedLocalAttentionSpec():
            return ChunkedLocal(spec.chunk)
        case SinkWindowSpec():
            return SinkWindow(spec.sink, spec.window)
        case RSWASpec():
            if prompt is None:
                raise ValueError("the mask of R-SWA depends on the request: expected its prompt, in tokens")
            return RSWA(spec.window, prompt)
        case MambaSpec(mode="align"):
            return MambaAlign()
        case MambaSpec(mode="none"):
            return MambaNone(1 + spec.num_speculative_blocks, spec.block_size)
        case _:
            return None


def _within(start: Int, tokens: Int, token: Int) -> BoolTerm:
    return both(as_int(start) <= token, as_int(token) < as_int(start) + tokens)


def ceil_div(tokens: Int, block_size: Int) -> IntTerm:
    """The blocks that `tokens` tokens need."""
    return (as_int(tokens) + block_size - 1) // block_size


def in_block(token: Int, first: Int, last: Int) -> BoolTerm:
    """Whether a token lies in the block of the tokens `first` to `last`."""
    return both(as_int(first) <= token, as_int(token) <= last)
