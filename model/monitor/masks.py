"""The definitions, compiled: what `kinds.py`, `lifetime.py` and `counters.py` say, as Python functions over integers.

Each definition is called once on symbols, which traces it into the expression graph, and the graph becomes a function. No window,
mask or counter formula stands here. All arguments are token positions or token counts; an index counts blocks of a table.
`Mask` is what the monitor asks of a kind: `keys.py` answers for kinds that keep keys, `slots.py` for those that keep a state.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from settled.model import counters as count
from settled.model import lifetime
from settled.model.algebra import Term, as_int, int_variable
from settled.model.counters import Counters
from settled.model.disciplines import RIGHT
from settled.model.interpret import compile_term, compile_terms
from settled.model.lifetime import Step
from settled.model.monitor.state import FAR

if TYPE_CHECKING:
    from settled.model.monitor.state import Entry, Request

Compiled = Callable[..., tuple[Any, ...]]


def _compiled(define: Callable[..., Any], *inputs: str) -> Compiled:
    defined = define(*map(int_variable, inputs))
    return compile_terms([value if isinstance(value, Term) else as_int(value) for value in defined], inputs)


def _value(define: Callable[..., Term], *inputs: str) -> Callable[..., Any]:
    return compile_term(define(*map(int_variable, inputs)), inputs)


# ---- counters: (computed, in flight, stale) and what an event adds to them, to the same three after it ----------------

counters_after_schedule = _compiled(lambda c, f, s, tokens: count.schedule(Counters(c, f, s), tokens), *"cfs", "tokens")
counters_after_process = _compiled(
    lambda c, f, s, tokens, rejected: count.process(Counters(c, f, s), tokens, rejected, RIGHT), *"cfs", "tokens", "rejected"
)
counters_after_preempt = _compiled(lambda c, f, s: count.preempt(Counters(c, f, s), RIGHT), *"cfs")
processed_tokens = _value(lambda c, f: count.processed(Counters(c, f, 0)), "c", "f")
start_after_rejection = _value(
    lambda start, rejected: as_int(
        lifetime.after_earlier_output(Step(True, False, start, 0, 0, 0), 0, rejected, same_generation=True).start
    ),
    "start",
    "rejected",
)


# ---- what the monitor asks of a kind ----------------------------------------------------------------------------------


class Mask(ABC):
    """What a group's kind says of whole blocks of one request. `lookahead` is in tokens; an index is one of a block table."""

    kept = 0  # so many blocks from the first on no prune ever takes
    keeps_states = False  # a block's bytes stand for one position, not for each of its own
    prunes = True  # whether a prune ever takes a block
    prunes_in_order = True  # what a prune takes starts at `kept`, and has no gap
    may_free_index: Callable[[int, int], bool]  # (index, basis): whether each token of the block may go at `basis` computed tokens
    is_skipped: Callable[[int, int], bool]  # (index, basis): whether a prune on `basis` frees the block, the kind's published claim

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self._kept_to: dict[int, int] = {}  # by index

    def kept_to(self, index: int) -> int:
        """The most computed tokens on which a prune leaves the block at an index, and so those after it, of a mask that prunes in order: it
        takes the more, the more are computed (`tests/monitor/test_masks.py` looks at each kind)."""
        known = self._kept_to.get(index)
        if known is None:
            end = (index + 1) * self.block_size
            while end < FAR and not self.is_skipped(index, end):
                end *= 2
            known = FAR if end >= FAR else bisect_left(range(end), True, key=lambda basis: self.is_skipped(index, basis)) - 1
            self._kept_to[index] = known
        return known

    @abstractmethod
    def needs(self, entry: Entry, group: int, index: int, lookahead: int, written: bool) -> bool | None:
        """Whether a step reads the block at an index, or writes it; None while outputs still to come may decide it."""

    @abstractmethod
    def needs_now(self, entry: Entry, group: int, index: int, lookahead: int, written: bool) -> bool:
        """The same, if nothing more were rejected."""

    @abstractmethod
    def may_use(self, entry: Entry, group: int, index: int, lookahead: int) -> bool:
        """Whether a step may read or write the block at an index."""

    @abstractmethod
    def may_use_some(self, entry: Entry, group: int, first: int, last: int, lookahead: int) -> bool:
        """Whether a step may read or write a block at an index from `first` to `last`; False only if it uses none."""

    @abstractmethod
    def written(self, entry: Entry, group: int, lookahead: int) -> Iterable[int]:
        """The indices within the step's row that it may write."""

    @abstractmethod
    def written_span(self, entry: Entry, group: int, index: int, lookahead: int) -> tuple[int, int] | None:
        """The first and the last position that a step may write in the block at an index; None if it writes none."""

    @abstractmethod
    def needed(self, start: int, tokens: int, index: int, lookahead: int, written: bool) -> tuple[int, int]:
        """The positions of the block at an index that a step from `start` on reads, or writes: first and last, both included."""

    @abstractmethod
    def absent(self, entry: Entry, group: int) -> Iterable[int]:
        """The indices that a step may read, and through which its row names no block that its request holds.

        If there are none, and by the shrinking of needed-sets none for a later start either, the table notes that as `clear_from`.
        """

    @abstractmethod
    def gone(self, request: Request, group: int) -> Iterable[int]:
        """The indices that the request's next step reads, and at which its table holds nothing."""

    @abstractmethod
    def needed_next(self, computed: int, index: int) -> tuple[int, int]:
        """The positions of the block at an index that a step from `computed` on reads of what is before it: first and last."""
