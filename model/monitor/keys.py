"""Kinds that keep a key for each token, and what their masks say of whole blocks.

How many tokens of a block decide for it depends on the shape of the mask. The definitions of `kinds.py` and `lifetime.py` are called
once on symbols and compiled; no window or mask stands here.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable
from enum import Enum
from functools import partial

from settled.model import lifetime
from settled.model.algebra import BoolTerm, IntTerm, both, either, int_variable, minimum
from settled.model.disciplines import Rounding
from settled.model.events import NULL_BLOCK
from settled.model.interpret import compile_term
from settled.model.kinds import RSWA, ChunkedLocal, FullAttention, Kind, SinkWindow, SlidingWindow
from settled.model.lifetime import Step
from settled.model.monitor.masks import Mask
from settled.model.monitor.state import Entry, Request, Table

BEYOND_MAX = 64  # entries past the end of a row and table that are judged one by one
INDEX_MAX = 2**20  # no table is longer: the limit of an index in a trace


class Shape(Enum):
    """What is known of the keys that a query at q reads among those from 0 to q, and so how many tokens of a block decide for it."""

    SUFFIX = "the last ones"  # the highest position of a block that is not past the step decides
    ENDS = "the first ones and the last ones"  # what is not read is an interval: the lowest and the highest position decide
    ANY = "any"  # every position is asked


_SHAPES: dict[type[Kind], Shape] = {
    FullAttention: Shape.SUFFIX,
    SlidingWindow: Shape.SUFFIX,
    ChunkedLocal: Shape.SUFFIX,
    SinkWindow: Shape.ENDS,
    RSWA: Shape.ENDS,
}  # `tests/monitor/test_masks.py` compares each with the mask token by token


class TokenMask(Mask):
    """The mask of a kind that keeps a key for each token, for steps whose queries are start to start + tokens - 1.

    That a step which starts lower reads no less of what is before both starts is the shrinking of needed-sets.
    """

    def __init__(self, shape: Shape, block_size: int, formulas: Formulas) -> None:
        super().__init__(block_size)
        self._asks_all, self._asks_both_ends, self._asks_last = [shape is each for each in (Shape.ANY, Shape.ENDS, Shape.SUFFIX)]
        self.prunes_in_order = shape is not Shape.ANY
        self._reads_token = formulas.reads_token
        self.may_free_index = formulas.may_free
        self.is_skipped = formulas.is_skipped
        self.reads_index = formulas.reads  # (start, tokens, index): with `tokens` below 1, of what lies before start + tokens only
        self.writes_index = formulas.writes  # (start, tokens, index)
        far = INDEX_MAX * block_size
        if shape is Shape.ENDS:
            self.kept = bisect_left(range(INDEX_MAX), True, key=lambda index: self.is_skipped(index, far))
        self.prunes = shape is Shape.ANY or self.is_skipped(self.kept, far)

    def needs(self, entry: Entry, group: int, index: int, lookahead: int, written: bool) -> bool | None:
        """Let s be the start now, s' <= s where it may end. Before s' + tokens, whatever the step reads from s it also reads from s',
        by the shrinking of needed-sets or as a token of its own. Above, nothing is certain: what it would have written from s it may
        not touch at all from s'."""
        start, tokens, rejectable = entry.start, entry.tokens, entry.rejectable
        if not rejectable:
            return self.writes_index(start, tokens + lookahead, index) if written else self.reads_index(start, tokens, index)
        uses = self.writes_index if written else self.reads_index
        if uses(start, tokens - rejectable, index):
            return True
        return None if uses(start - rejectable, tokens + rejectable + (lookahead if written else 0), index) else False

    def needs_now(self, entry: Entry, group: int, index: int, lookahead: int, written: bool) -> bool:
        if written:
            return self.writes_index(entry.start, entry.tokens + lookahead, index)
        return self.reads_index(entry.start, entry.tokens, index)

    def may_use(self, entry: Entry, group: int, index: int, lookahead: int) -> bool:
        rejectable = entry.rejectable
        start, tokens = entry.start - rejectable, entry.tokens + rejectable
        return self.reads_index(start, tokens, index) or self.writes_index(start, tokens + lookahead, index)

    def may_use_some(self, entry: Entry, group: int, first: int, last: int, lookahead: int) -> bool:
        last = min(last, (entry.start + entry.tokens + lookahead - 1) // self.block_size)
        if first > last or self._asks_all:
            return first <= last
        may_use = self.may_use(entry, group, last, lookahead)
        return may_use or (self._asks_both_ends and self.may_use(entry, group, first, lookahead))

    def written(self, entry: Entry, group: int, lookahead: int) -> range:
        first = (entry.start - entry.rejectable) // self.block_size
        last = (entry.start + entry.tokens + lookahead - 1) // self.block_size
        return range(first, min(last + 1, entry.lengths[group]))

    def written_span(self, entry: Entry, group: int, index: int, lookahead: int) -> tuple[int, int] | None:
        rejectable = entry.rejectable
        start, tokens = entry.start - rejectable, entry.tokens + rejectable + lookahead
        return self.written_tokens(start, tokens, index) if self.writes_index(start, tokens, index) else None

    def needed(self, start: int, tokens: int, index: int, lookahead: int, written: bool) -> tuple[int, int]:
        return self.written_tokens(start, tokens + lookahead, index) if written else self.read_tokens(start, tokens, index)

    def needed_next(self, computed: int, index: int) -> tuple[int, int]:
        return self.read_tokens(computed, 0, index)

    def written_tokens(self, start: int, tokens: int, index: int) -> tuple[int, int]:
        """The positions of the block at `index` that a step writes: first and last, both included."""
        first = index * self.block_size
        return max(first, start), min(first + self.block_size, start + tokens) - 1

    def read_tokens(self, start: int, tokens: int, index: int) -> tuple[int, int]:
        """The first and the last position of the block at `index` that a step reads; `reads_index` says that there is one."""
        positions = range(index * self.block_size, min((index + 1) * self.block_size, start + tokens))
        reads = partial(self._reads_token, start, tokens)
        if self._asks_all:
            read = [token for token in positions if reads(token)]
            return read[0], read[-1]
        low, high = positions[0], positions[-1]
        first = low if reads(low) else positions[bisect_left(positions, True, key=reads)]
        last = high if reads(high) else positions[bisect_left(positions, True, key=lambda token: not reads(token)) - 1]
        return first, last

    def _reads_some(self, start: int, tokens: int, first: int, end: int) -> bool:
        """Whether a step may read a block at one of the indices from `first` to `end` - 1; False only if it reads none."""
        if first >= end:
            return False
        if self._asks_all:
            return True
        return self.reads_index(start, tokens, end - 1) or (self._asks_both_ends and self.reads_index(start, tokens, first))

    def absent(self, entry: Entry, group: int) -> Iterable[int]:
        start, tokens, table = entry.start, entry.tokens, entry.request.tables[group]
        end = (start + tokens - 1) // self.block_size + 1
        rejectable = entry.rejectable
        start, tokens = start - rejectable, tokens + rejectable
        if entry.lengths[group] >= end and not self._reads_some(start, tokens, table.doubt_from, min(table.sound_from, end)):
            if table.sound_from <= end:
                table.clear_from = start
            return ()
        known = max(entry.lengths[group], len(table.blocks))
        return [
            index
            for index in self._to_look_at(table, start, known, entry.start, end)
            if not table.is_sound(index, entry.row_block(group, index)) and self.reads_index(start, tokens, index)
        ]

    def gone(self, request: Request, group: int) -> Iterable[int]:
        table, computed = request.tables[group], request.computed
        end = (computed - 1) // self.block_size + 1
        known = len(table.blocks)
        if known >= end and not self._reads_some(computed, 0, table.doubt_from, min(table.sound_from, end)):
            return ()
        return [
            index
            for index in self._to_look_at(table, computed, known, computed, end)
            if table.block_at(index) == NULL_BLOCK and self.reads_index(computed, 0, index)
        ]

    def _to_look_at(self, table: Table, query: int, known: int, start: int, end: int) -> Iterable[int]:
        """The indices below `end` that a step from `query` may read, in order; of those past all that is known only the first few.

        `known` is the length of table or row. What lies beyond was never there, unless a note tells who released it; a trace may put a
        start at any distance, and the first of such entries read, and the first written (from `start` on), say enough.
        """
        first = self._lowest_read(query) // self.block_size
        if end <= known + BEYOND_MAX:
            return range(first, end)
        beyond = {index for index in table.notes if known <= index < end}
        for begin in (max(first, known), max(start // self.block_size, known)):
            beyond.update(range(begin, min(begin + BEYOND_MAX, end)))
        return [*range(first, known), *sorted(index for index in beyond if index >= first)]

    def _lowest_read(self, query: int) -> int:
        """A position below which the query at `query` reads nothing; the highest such one where it reads the last keys only."""
        if not self._asks_last:
            return 0
        return bisect_left(range(query), True, key=partial(self._reads_token, query, 0))


class Formulas:
    """A kind's definitions as functions of (start, tokens, index), (index, basis) and (start, tokens, token).

    `prompt`: the symbol that stands for the request's prompt in the kind, if it depends on that; then it is the first argument of each.
    """

    def __init__(self, kind: Kind, shape: Shape, block_size: int, prompt: str | None = None) -> None:
        self._symbols = () if prompt is None else (prompt,)
        self.reads_token = self._compiled(
            lambda start, tokens, token: both(token < start + tokens, kind.step_reads(start, tokens, token)), "start", "tokens", "token"
        )
        if shape is Shape.ANY:
            self._scan(kind, block_size)
        else:
            self._decide(kind, shape is Shape.ENDS, block_size)
        self.is_skipped = self._compiled(
            lambda index, basis: kind.frees_block(index * block_size, index * block_size + (block_size - 1), basis, Rounding.FLOOR),
            *("index", "basis"),
        )

    def bound(self, prompt_tokens: int) -> Formulas:
        """The functions for one prompt."""
        bound = object.__new__(Formulas)
        for name, formula in vars(self).items():
            setattr(bound, name, partial(formula, prompt_tokens) if callable(formula) else formula)
        return bound

    def _compiled(self, define: Callable[..., BoolTerm], *inputs: str) -> Callable[..., bool]:
        return compile_term(define(*map(int_variable, inputs)), (*self._symbols, *inputs))

    def _decide(self, kind: Kind, by_both_ends: bool, block_size: int) -> None:
        """One or two positions of a block decide for it."""

        def block_has(start: IntTerm, tokens: IntTerm, index: IntTerm, holds: Callable[[IntTerm], BoolTerm]) -> BoolTerm:
            first = index * block_size
            highest = minimum(first + (block_size - 1), start + tokens - 1)
            return both(first < start + tokens, either(holds(highest), holds(first)) if by_both_ends else holds(highest))

        def reads(start: IntTerm, tokens: IntTerm, index: IntTerm) -> BoolTerm:
            return block_has(start, tokens, index, lambda token: lifetime.reads(_step(start, tokens), kind, token))

        def writes(start: IntTerm, tokens: IntTerm, index: IntTerm) -> BoolTerm:
            return block_has(start, tokens, index, lambda token: lifetime.writes(_step(start, tokens), kind, token, 0))

        def may_free(index: IntTerm, basis: IntTerm) -> BoolTerm:
            last = kind.may_free(index * block_size + (block_size - 1), basis)
            return both(kind.may_free(index * block_size, basis), last) if by_both_ends else last

        self.reads = self._compiled(reads, "start", "tokens", "index")
        self.writes = self._compiled(writes, "start", "tokens", "index")
        self.may_free = self._compiled(may_free, "index", "basis")

    def _scan(self, kind: Kind, block_size: int) -> None:
        """Every position of a block is asked: a cost of `block_size` calls."""
        reads, may_free = self.reads_token, self._compiled(kind.may_free, "token", "basis")
        writes = self._compiled(lambda start, tokens, token: kind.step_writes(start, tokens, token, 0), "start", "tokens", "token")

        def positions(index: int) -> range:
            return range(index * block_size, (index + 1) * block_size)

        self.reads = lambda start, tokens, index: any(reads(start, tokens, token) for token in positions(index))
        self.writes = lambda start, tokens, index: any(writes(start, tokens, token) for token in positions(index))
        self.may_free = lambda index, basis: all(may_free(token, basis) for token in positions(index))


def _step(start: IntTerm, tokens: IntTerm) -> Step:
    return Step(True, False, start, tokens, 0, 0)


def shape_of(kind: Kind) -> Shape:
    """What is known of a kind's mask; of one that is not built in, nothing."""
    return _SHAPES.get(type(kind), Shape.ANY)
