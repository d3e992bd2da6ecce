"""The definitions, compiled: what `kinds.py`, `lifetime.py` and `counters.py` say, as Python functions over integers.

Each definition is called once on symbols, which traces it into the expression graph, and the graph becomes a function. No window,
mask or counter formula stands here. All arguments are token positions or token counts; an index counts blocks of a table.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from settled.model import counters as count
from settled.model import lifetime
from settled.model.algebra import IntTerm, Term, as_int, both, int_variable, minimum
from settled.model.counters import Counters
from settled.model.disciplines import RIGHT, Rounding
from settled.model.interpret import compile_terms
from settled.model.kinds import Kind, ceil_div, kind_of
from settled.model.lifetime import Step
from settled.model.specs import KVCacheSpec

Compiled = Callable[..., tuple[Any, ...]]


def _compiled(define: Callable[..., Any], *inputs: str) -> Compiled:
    defined = define(*map(int_variable, inputs))
    values = (defined,) if isinstance(defined, Term) else defined
    return compile_terms([value if isinstance(value, Term) else as_int(value) for value in values], inputs)


# ---- counters: (computed, in flight, stale) and what an event adds to them, to the same three after it ----------------

counters_after_schedule = _compiled(lambda c, f, s, tokens: count.schedule(Counters(c, f, s), tokens), *"cfs", "tokens")
counters_after_process = _compiled(
    lambda c, f, s, tokens, rejected: count.process(Counters(c, f, s), tokens, rejected, RIGHT), *"cfs", "tokens", "rejected"
)
counters_after_preempt = _compiled(lambda c, f, s: count.preempt(Counters(c, f, s), RIGHT), *"cfs")
blocks_of = _compiled(ceil_div, "tokens", "block_size")
processed_tokens = _compiled(lambda c, f: count.processed(Counters(c, f, 0)), "c", "f")
start_after_rejection = _compiled(
    lambda start, rejected: lifetime.after_earlier_output(Step(True, False, start, 0, 0, 0), 0, rejected, same_generation=True).start,
    "start",
    "rejected",
)


# ---- one attention kind ----------------------------------------------------------------------------------------------


class Mask:
    """What a kind's mask says of whole blocks, for steps whose queries are start to start + tokens - 1.

    The positions that a step reads are an interval that ends at its last query: true of every kind here (`tests/monitor/test_masks.py`
    compares with the mask token by token). So the highest position of a block that is not past the step decides for the block.
    """

    def __init__(self, kind: Kind, block_size: int) -> None:
        self.block_size = block_size
        self._reads = _compiled(lambda query, token: kind.reads(query, token), "query", "token")
        self._may_free = _compiled(lambda token, basis: kind.may_free(token, basis), "token", "basis")
        self._frees = _compiled(lambda first, last, basis: kind.frees_block(first, last, basis, Rounding.FLOOR), "first", "last", "basis")
        self._reads_block = _compiled(
            lambda start, tokens, first, last: _block_has(
                first, last, start + tokens, lambda token: lifetime.reads(_step(start, tokens), kind, token)
            ),
            *("start", "tokens", "first", "last"),
        )
        self._writes_block = _compiled(
            lambda start, tokens, first, last: _block_has(
                first, last, start + tokens, lambda token: lifetime.writes(_step(start, tokens), kind, token, 0)
            ),
            *("start", "tokens", "first", "last"),
        )

    def reads_index(self, start: int, tokens: int, index: int) -> bool:
        """Whether a step reads some token of the block at a table index. With `tokens` below 1, of what lies before
        start + tokens only."""
        first = index * self.block_size
        found: bool = self._reads_block(start, tokens, first, first + self.block_size - 1)[0]
        return found

    def writes_index(self, start: int, tokens: int, index: int) -> bool:
        """Whether a step writes some token of the block at a table index."""
        first = index * self.block_size
        found: bool = self._writes_block(start, tokens, first, first + self.block_size - 1)[0]
        return found

    def may_free_index(self, index: int, basis: int) -> bool:
        """Whether the mask lets the block at a table index go at `basis` computed tokens: each of its tokens may.

        What the query at `basis` reads ends at `basis` without a gap, so whatever may go lies below all that stays: if the block's
        last token may go, each one may.
        """
        may: bool = self._may_free((index + 1) * self.block_size - 1, basis)[0]
        return may

    def is_skipped(self, index: int, basis: int) -> bool:
        """Whether a prune on `basis` frees the block at a table index: the kind's published claim."""
        first = index * self.block_size
        skipped: bool = self._frees(first, first + self.block_size - 1, basis)[0]
        return skipped

    def lowest_read(self, query: int) -> int:
        """The lowest position that the query at `query` reads; `query` itself if it reads nothing before it."""
        low, high = 0, query
        while low < high:
            middle = (low + high) // 2
            if self._reads(query, middle)[0]:
                high = middle
            else:
                low = middle + 1
        return low

    def needed_tokens(self, start: int, tokens: int, index: int, *, written: bool) -> tuple[int, int]:
        """The positions of the block at `index` that a step reads, or writes: first and last, both included."""
        first = index * self.block_size
        low = start if written else self.lowest_read(start)
        return max(first, low), min(first + self.block_size, start + tokens) - 1


def _step(start: IntTerm, tokens: IntTerm) -> Step:
    return Step(True, False, start, tokens, 0, 0)


def _block_has(first: IntTerm, last: IntTerm, stop: IntTerm, holds: Callable[[IntTerm], Any]) -> Term:
    highest = minimum(last, stop - 1)
    return both(first <= highest, holds(highest))


@cache
def mask_of(spec: KVCacheSpec) -> Mask | None:
    """The compiled mask of a KV cache group; None for a kind that is not modelled yet."""
    kind = kind_of(spec)
    return None if kind is None else Mask(kind, spec.block_size)
