"""Theorem 8 as a table: exact maxima, published caps, and for each cap that is too small the smallest numbers and a shortest trace.

Smallest: least lookahead first, then tokens computed and in flight, block size, window or chunk. The search tries every number below the
answer with the formulas of `model/caps.py`; M is the in-flight tokens themselves, since a greater M only raises the cap.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count

from settled.model import kinds
from settled.model.algebra import IntTerm, constant_value
from settled.model.caps import admission_cap, blocks_held
from settled.model.events import (
    SCHEMA_VERSION,
    Add,
    Allocate,
    Config,
    End,
    Event,
    Process,
    ProcessedRequest,
    Release,
    Schedule,
    ScheduledRequest,
)
from settled.model.specs import ChunkedLocalAttentionSpec, SlidingWindowSpec


@dataclass(frozen=True)
class Numbers:
    """A request that holds more than its cap. Tokens, but for `held` and `cap` (blocks); `length` is the window W or the chunk X."""

    block_size: int
    length: int
    lookahead: int
    settled: int
    in_flight: int
    held: int
    cap: int


@dataclass(frozen=True)
class CapRow:
    """One line of the table. `sound`: the published cap is enough for every M and L; `smallest`: where it is not, the smallest numbers.

    `make_kind` makes the kind of a window or chunk; `applies(B, X, k)` is `condition` on numbers.
    """

    name: str
    condition: str
    exact: str
    published: str
    sound: bool
    make_kind: Callable[[int], kinds.SlidingWindow | kinds.ChunkedLocal]
    applies: Callable[[int, int, int], bool]

    @property
    def smallest(self) -> Numbers | None:
        return None if self.sound else next(self._exceeding())

    def _exceeding(self) -> Iterator[Numbers]:
        lookahead = next(k for k in count() if any(self.applies(b, x, k) for b in range(1, 5) for x in range(1, 5)))
        for tokens in count(1):
            for block_size in range(1, tokens + lookahead + 1):
                for length in range(1, tokens + 1):
                    if self.applies(block_size, length, lookahead):
                        for settled in range(tokens):
                            found = self.numbers(block_size, length, lookahead, settled, tokens - settled)
                            if found.held > found.cap:
                                yield found

    def numbers(self, block_size: int, length: int, lookahead: int, settled: int, in_flight: int) -> Numbers:
        """What is held with these tokens settled and in flight, and what the cap for exactly as many in flight says."""
        kind = self.make_kind(length)
        slots = settled + in_flight + lookahead
        held = _number(blocks_held(kind, block_size, settled, slots))
        return Numbers(
            block_size, length, lookahead, settled, in_flight, held, _number(admission_cap(kind, block_size, in_flight, slots + length))
        )


def _number(term: IntTerm) -> int:
    value = constant_value(term)
    assert value is not None
    return int(value)


_WINDOW = ("sliding window", "1 + ceil((W - 2 + extra + M + k) / B)", "1 + ceil(min(W - 1 + extra + M, L) / B)")
_CHUNK = ("chunked local", "ceil((B - gcd(B, X) + X - 1 + M + k) / B)", "ceil(min(X + M, L) / B)")


def _row(kind: tuple[str, str, str], condition: str, sound: bool, applies: Callable[[int, int, int], bool]) -> CapRow:
    name, exact, published = kind
    make_kind = kinds.SlidingWindow if kind is _WINDOW else kinds.ChunkedLocal
    return CapRow(name, condition, exact, published, sound, make_kind, applies)


# Every block size B, window or chunk X and lookahead k falls under exactly one line of its kind.
TABLE: tuple[CapRow, ...] = (
    _row(_WINDOW, "k <= 1", True, lambda b, x, k: k <= 1),
    _row(_WINDOW, "k >= 2", False, lambda b, x, k: k >= 2),
    _row(_CHUNK, "B divides X, k <= 1", True, lambda b, x, k: x % b == 0 and k <= 1),
    _row(_CHUNK, "B = 2, X odd, k = 0", True, lambda b, x, k: b == 2 and x % 2 == 1 and k == 0),
    _row(_CHUNK, "B divides X, k >= 2", False, lambda b, x, k: x % b == 0 and k >= 2),
    _row(_CHUNK, "B = 2, X odd, k >= 1", False, lambda b, x, k: b == 2 and x % 2 == 1 and k >= 1),
    _row(_CHUNK, "otherwise", False, lambda b, x, k: b != 2 and x % b != 0),
)


# The same as the last line with sizes as engines have them.
SHOWN = TABLE[-1].numbers(block_size=16, length=24, lookahead=0, settled=41, in_flight=8)


# ---- the trace -------------------------------------------------------------------------------------------------------

_REQUEST = "r0"


def trace(row: CapRow, numbers: Numbers) -> list[Event]:
    """A shortest trace with these numbers: as few steps as M allows, one at a time, reach what is settled; one step more holds too much.

    The cap is recorded, so that `held_bounded` is judged; nothing else is wrong with the trace.
    """
    return list(_Trace(row, numbers).events())


class _Trace:
    """One request's table, played by the kind's own formula."""

    def __init__(self, row: CapRow, numbers: Numbers) -> None:
        self.numbers, self.kind = numbers, row.make_kind(numbers.length)
        self.table: list[int] = []
        self.blocks = count(1)
        self.steps = count(1)

    def events(self) -> Iterator[Event]:
        numbers = self.numbers
        total = numbers.settled + numbers.in_flight
        yield self._config(total)
        yield Add(request=_REQUEST, prompt_tokens=total)
        for start in range(0, numbers.settled, numbers.in_flight):
            tokens = min(numbers.in_flight, numbers.settled - start)
            yield from self._schedule(start, tokens)
            yield Process(
                step=self.step, requests=(ProcessedRequest(request=_REQUEST, sampled=0, rejected=0, counters=(start + tokens, 0, 0)),)
            )
        yield from self._schedule(numbers.settled, numbers.in_flight)
        yield End(idle=False)

    def _config(self, total: int) -> Config:
        n = self.numbers
        size, length, cap = n.block_size, n.length, n.cap
        spec = (
            SlidingWindowSpec(block_size=size, window=length, cap=cap)
            if isinstance(self.kind, kinds.SlidingWindow)
            else ChunkedLocalAttentionSpec(block_size=size, chunk=length, cap=cap)
        )
        return Config(
            schema=SCHEMA_VERSION,
            engine="a published cap that is too small",
            num_blocks=2 + (total + n.lookahead) // size + 1,
            max_in_flight_steps=1,
            max_batched_tokens=n.in_flight,
            num_draft_tokens=0,
            prefix_caching=False,
            kv_consumer=False,
            groups=(spec,),
            num_lookahead_tokens=n.lookahead,
            max_model_len=total + n.lookahead + length,
            records=("counters",),
        )

    def _schedule(self, start: int, tokens: int) -> Iterator[Event]:
        size = self.numbers.block_size
        skipped = _number(self.kind.skipped_tokens(start) // size)
        indices = tuple(index for index, block in enumerate(self.table[:skipped]) if block)
        if indices:
            blocks = tuple(self.table[index] for index in indices)
            yield Release(request=_REQUEST, group=0, indices=indices, blocks=blocks, cause="window", freed=blocks)
            self.table[:skipped] = [0] * skipped
        first = len(self.table)
        end = _number(kinds.ceil_div(start + tokens + self.numbers.lookahead, size))
        fresh = tuple(next(self.blocks) for _ in range(first, end))
        self.table += fresh
        if fresh:
            yield Allocate(request=_REQUEST, group=0, first_index=first, blocks=fresh)
        self.step = next(self.steps)
        entry = ScheduledRequest(
            request=_REQUEST, start=start, tokens=tokens, drafts=0, new_blocks=(fresh,), resumed=False, counters=(start + tokens, tokens, 0)
        )
        yield Schedule(step=self.step, requests=(entry,))
