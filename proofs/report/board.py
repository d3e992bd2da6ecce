"""The block table of one request in one group, as the events of a trace change it, and what a row of a picture shows of it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from settled.model.algebra import constant_value
from settled.model.events import NULL_BLOCK, Release
from settled.model.kinds import Kind
from settled.proofs.report.signs import Signs

Entries = dict[int, int | None]  # table index → block; None: null


class StepTokens(NamedTuple):
    """What a step carries of the request; the last `drafts` of its tokens are drafts."""

    start: int
    tokens: int
    drafts: int


class Board:
    """`table` is that of the current generation. A preemption ends it; what is not released at once (a fence) is kept in `ended`."""

    def __init__(self) -> None:
        self.table: Entries = {}
        self.ended: list[Entries] = []

    @property
    def shown(self) -> Entries:
        """The current table; before a resumption, the one that the preemption ended."""
        return self.table or (self.ended[-1] if self.ended else self.table)

    def hold(self, first: int, blocks: Iterable[int]) -> None:
        self.table.update((index, None if block == NULL_BLOCK else block) for index, block in enumerate(blocks, start=first))

    def move(self, from_index: int, to_index: int) -> None:
        self.table[to_index] = self.table.get(from_index)
        self.table[from_index] = None

    def end_generation(self) -> None:
        if _owns_something(self.table):
            self.ended.append(self.table)
        self.table = {}

    def released_from(self, event: Release) -> Entries:
        """The table that a release speaks of. A deferred one that an earlier generation left behind names blocks of that table, which
        the resumed request may hold again at the same indices, through prefix hits."""
        if event.cause in ("deferred", "preempt"):
            for table in self.ended:
                if all(table.get(index) == block for index, block in zip(event.indices, event.blocks, strict=True)):
                    return table
        return self.table

    def release(self, event: Release) -> None:
        """A prune leaves null entries. Any other release takes a whole table apart: its entries are gone."""
        table = self.released_from(event)
        if event.cause in ("window", "connector_finish"):
            table.update(dict.fromkeys(event.indices))
            return
        for index in event.indices:
            table.pop(index, None)
        if not _owns_something(table):
            table.clear()
            self.ended = [other for other in self.ended if other]


def _owns_something(entries: Entries) -> bool:
    return any(block is not None for block in entries.values())


@dataclass(frozen=True)
class Cells:
    """One row: the table as it stood, and the step that uses it, the indices that are being released, or the tokens that are needed."""

    entries: Mapping[int, int | None]
    step: StepTokens | None = None
    released: Collection[int] = ()
    needed: tuple[int, range] | None = None  # table index, tokens

    @property
    def top(self) -> int:
        """The number of indices that the table has."""
        return max(self.entries, default=-1) + 1

    def signs(self, index: int, size: int, kind: Kind, signs: Signs) -> str:
        """A sign for each token of the block at a table index."""
        tokens = range(index * size, (index + 1) * size)
        if self.needed is not None:
            return self._need(index, tokens)
        if index in self.released:
            return signs.released * size
        if self.entries.get(index) is not None:
            return "".join(self._use(token, kind) or signs.held for token in tokens)
        # Below the top of a table an index without a block is a null entry; above it there is nothing, unless a step needs it.
        nothing = signs.null if index < self.top else " "
        return "".join(signs.null if self._use(token, kind) else nothing for token in tokens)

    def _need(self, index: int, tokens: range) -> str:
        """What is needed at an index: tokens, or the whole block where it keeps a state that is not one of its own tokens'."""
        if self.needed is None or index != self.needed[0]:
            return " " * len(tokens)
        needed = ["!" if token in self.needed[1] else " " for token in tokens]
        return "".join(needed if "!" in needed else "!" * len(tokens))

    def _use(self, token: int, kind: Kind) -> str:
        """What the step does with a token: w, d, r, or nothing."""
        if self.step is None:
            return ""
        start, count, drafts = self.step
        if constant_value(kind.step_writes(start, count, token, 0)):
            return "d" if start + count - drafts <= token < start + count else "w"
        return "r" if token < start and constant_value(kind.step_reads(start, count, token)) else ""
