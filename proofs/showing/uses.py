"""What each step reads and writes, by the monitor's own masks: table indices, and the tokens that they stand for."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from settled.model.monitor.masks import Mask
from settled.model.monitor.state import Entry

Run = tuple[int, int, int, int]
"""A run of table indices, first and last, and the tokens read or written there, first and last; all included."""


@dataclass(slots=True)
class GroupUse:
    """Of one group. `row`: which of the worker's rows the step sees, `length` entries of it."""

    row: int
    length: int
    reads: list[Run] = field(default_factory=list)
    writes: list[Run] = field(default_factory=list)


@dataclass(slots=True)
class Part:
    """A request's part of a step: in flight from the position `begin` to before `end` (None: to the end of the trace).

    `start` is the true one as far as the trace tells, `scheduled` the one that was scheduled.
    """

    step: int
    owner: int
    begin: int
    end: int | None
    scheduled: int
    start: int
    tokens: int
    drafts: int
    uses: list[GroupUse] = field(default_factory=list)


class Rows:
    """The worker's table rows. A row grows, so that it is written out once for all steps that see a part of it."""

    def __init__(self) -> None:
        self.rows: list[list[int]] = []
        self._numbers: dict[int, int] = {}

    def number(self, row: list[int]) -> int:
        """The row is kept, so that its identity is not given to another one."""
        known = self._numbers.get(id(row))
        if known is None:
            known = self._numbers[id(row)] = len(self.rows)
            self.rows.append(row)
        return known


def uses_of(entry: Entry, lookahead: int, rows: Rows) -> list[GroupUse]:
    """Of every group; nothing is known of a kind that is not modelled."""
    uses = []
    for group, mask in enumerate(entry.request.masks):
        use = GroupUse(rows.number(entry.rows[group]), entry.lengths[group])
        if mask is not None:
            use.reads = _runs(mask, entry, _read(mask, entry, group), lookahead, written=False)
            written = [index for index in mask.written(entry, group, lookahead) if mask.needs_now(entry, group, index, lookahead, True)]
            use.writes = _runs(mask, entry, sorted(set(written)), lookahead, written=True)
        uses.append(use)
    return uses


def _read(mask: Mask, entry: Entry, group: int) -> list[int]:
    """Ascending. Where a mask reads the last keys only, nothing stands below the first index that is not read."""
    reads_the_last = mask.prunes_in_order and not mask.kept and not mask.keeps_states
    read: list[int] = []
    for index in reversed(range(entry.lengths[group])):
        if mask.needs_now(entry, group, index, 0, False):
            read.append(index)
        elif read and reads_the_last:
            break
    return read[::-1]


def _runs(mask: Mask, entry: Entry, indices: Iterable[int], lookahead: int, *, written: bool) -> list[Run]:
    runs: list[Run] = []
    for index in indices:
        first, last = runs[-1][0] if runs and runs[-1][1] == index - 1 else index, index
        if first < index:
            runs.pop()
        low, _ = mask.needed(entry.start, entry.tokens, first, lookahead, written)
        _, high = mask.needed(entry.start, entry.tokens, last, lookahead, written)
        runs.append((first, last, low, high))
    return runs
