"""What the monitor knows at one moment: requests with their tables and worker rows, unprocessed steps, and who let go of what.

Only what is alive is kept: a request until it is finished, its steps are processed and its tables are empty; a step until it is
processed. Positions and counts are in tokens, table indices and `held` in blocks. What is written down and never changed is a plain
dataclass all the same: a named tuple, or a frozen dataclass, takes twice the time to make.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from settled.model.events import NULL_BLOCK, PerGroup
from settled.model.monitor.violation import Loss

if TYPE_CHECKING:
    from settled.model.monitor.masks import Mask

RESTORED_GENERATION = 1  # of requests that stand in a `state`
FAR = 2**62  # past every position


@dataclass(slots=True, eq=False)
class Note:
    """Who released a table entry: where, why, and the optimistic computed count at that moment."""

    request: str
    line: int
    cause: str
    computed: int


@dataclass(slots=True)
class Table:
    """A request's block table of one group, the scheduler's `blocks` beside the worker's `row`.

    The row is replaced, never shortened, so a step keeps its view as (row, length). Below `doubt_from` and from `sound_from` on, every
    entry of the table holds a block, and the row agrees wherever it reaches: nothing there needs to be looked at twice. `moved` has the
    former indices of blocks that moved, where steps may still see them. `lowest`: below it no entry holds a block, but for the first
    `kept`, which no prune takes. `kept_to`: a prune on so many computed tokens takes nothing that is held from `lowest` on.
    """

    kept: int = 0

    blocks: list[int] = field(default_factory=list)
    row: list[int] = field(default_factory=list)
    doubt_from: int = 0
    sound_from: int = 0
    clear_from: int = FAR  # a step that starts there or later reads nothing of what must be looked at
    held: int = 0
    lowest: int = 0
    kept_to: int = -1
    has_fresh: bool = False  # fresh blocks entered it in this generation
    notes: dict[int, Note] = field(default_factory=dict)
    moved: dict[int, set[int]] = field(default_factory=dict)
    is_over: bool = False  # its generation ended; what it still holds is fenced once the next one begins

    def put(self, index: int, block: int) -> int:
        """Places a block; the entry's former block comes back."""
        blocks = self.blocks
        if self.notes:
            self.notes.pop(index, None)
        if index < len(blocks):
            former, blocks[index] = blocks[index], block
            self.held += former == NULL_BLOCK
            if index < self.lowest:
                self.lowest, self.kept_to = index, -1
            self._doubt(index, index + 1)
            return former
        if index > len(blocks):
            self._doubt(len(blocks), index)
            blocks.extend([NULL_BLOCK] * (index - len(blocks)))
        blocks.append(block)
        self.held += 1
        return NULL_BLOCK

    def take(self, index: int, note: Note | None) -> None:
        """Nulls an entry that holds a block; a table without blocks starts over."""
        self.blocks[index] = NULL_BLOCK
        self.held -= 1
        if note is not None:
            self.notes[index] = note
        self.taken(index, index)

    def taken(self, low: int, high: int) -> None:
        """The entries at indices from `low` to `high` may have been nulled in place; a table without blocks starts over."""
        self._doubt(low, high + 1)
        if self.held == 0:
            self.blocks.clear()
            self.lowest, self.kept_to, self.has_fresh = 0, -1, False

    def detach(self) -> list[int]:
        """Takes the blocks out, for a fence to keep; the table starts over."""
        fenced, self.blocks = self.blocks, []
        self._doubt(0, len(fenced))
        self.held = 0
        self.lowest, self.kept_to, self.has_fresh = 0, -1, False
        self.notes.clear()
        return fenced

    def block_at(self, index: int) -> int:
        """The block at an index; null past the end."""
        return self.blocks[index] if 0 <= index < len(self.blocks) else NULL_BLOCK

    def holds_as_seen(self, index: int, block: int) -> bool:
        """Whether the table holds a block that a step in flight sees at an index, there or where it moved since."""
        return self.block_at(index) == block or index in self.moved.get(block, ())

    def is_sound(self, index: int, seen: int, *, through_moves: bool = False) -> bool:
        """Whether the block that a row names at an index is the one that the table holds there, or that moved from there."""
        return seen != NULL_BLOCK and (self.block_at(index) == seen or (through_moves and self.holds_as_seen(index, seen)))

    def lowest_prunable(self) -> int | None:
        """The lowest index that holds a block, the first `kept` left out."""
        blocks, index = self.blocks, self.lowest
        if index < self.kept:
            index = self.kept
        while index < len(blocks) and blocks[index] == NULL_BLOCK:
            index += 1
        self.lowest = index
        return index if index < len(blocks) else None

    def extend_row(self, new_blocks: tuple[int, ...]) -> None:
        """The worker's row grows."""
        begin = len(self.row)
        self.row.extend(new_blocks)
        end = len(self.row)
        if tuple(self.blocks[begin:end]) != new_blocks or NULL_BLOCK in new_blocks:
            self._doubt_what_differs(begin, end)

    def replace_row(self, new_blocks: tuple[int, ...]) -> None:
        """The worker's row starts over; steps in flight keep the old one."""
        self.row = list(new_blocks)
        self.doubt_from = self.sound_from = 0
        if self.row != self.blocks or NULL_BLOCK in self.row:
            self._doubt_what_differs(0, max(len(self.row), len(self.blocks)))

    def _doubt(self, begin: int, end: int) -> None:
        """The entries from `begin` to `end` - 1 must be looked at; so are those between them and the others."""
        self.clear_from = FAR
        if self.doubt_from >= self.sound_from:
            self.doubt_from, self.sound_from = begin, end
            return
        if begin < self.doubt_from:
            self.doubt_from = begin
        if end > self.sound_from:
            self.sound_from = end

    def _doubt_what_differs(self, begin: int, end: int) -> None:
        """Entries that are null, or on which table and row differ."""
        row = self.row
        for indices in (range(begin, end), range(end - 1, begin - 1, -1)):
            for index in indices:
                block = self.block_at(index)
                if block == NULL_BLOCK or (index < len(row) and row[index] != block):
                    self._doubt(index, index + 1)
                    break


@dataclass(slots=True, eq=False)
class Request:
    """A request's own counters C, F, S, its tables, and its unprocessed steps in schedule order.

    `masks` has one entry a group, None where nothing is known of what steps read there. `bounded`: of `modelled`, those groups with a
    recorded cap of which prunes take something. `last` is the newest step of the generation.
    """

    name: str
    tables: list[Table]
    masks: list[Mask | None]
    modelled: list[tuple[int, Mask, Table]]  # the groups that have a mask
    bounded: list[tuple[int, Mask, Table]] = field(default_factory=list)
    computed: int = 0
    in_flight: int = 0
    stale: int = 0
    generation: int = 0
    is_new_to_worker: bool = True
    finished: bool = False
    is_restored: bool = False  # it began before the trace: of its first generation some steps are not known
    last: Entry | None = None
    unprocessed: deque[Entry] = field(default_factory=deque)
    fenced: list[tuple[int, list[int]]] = field(default_factory=list)  # (group, table) of ended generations, oldest first
    rows: list[list[int]] = field(default_factory=list)  # the worker's, one a group; steps share this list until one is replaced
    lengths: list[int] = field(default_factory=list)  # of the rows; steps share this list until one grows

    @property
    def is_gone(self) -> bool:
        """Whether nothing of the request is left to watch."""
        return self.finished and not self.unprocessed and not self.fenced and not any(table.held for table in self.tables)

    def end_tables(self) -> None:
        """The generation is over: its tables are given up, at once or by a deferred release."""
        for table in self.tables:
            table.is_over = True

    def rows_replaced(self) -> None:
        """The steps before keep theirs."""
        self.rows = [table.row for table in self.tables]
        self.rows_grown()

    def rows_grown(self) -> None:
        """The steps before see no more of them than they did."""
        self.lengths = [len(row) for row in self.rows]

    def begin_table(self, group: int) -> Table:
        """The table of the present generation; what the last one still holds there is behind the fence."""
        table = self.tables[group]
        if table.is_over:
            table.is_over = False
            if table.held:
                self.fenced.append((group, table.detach()))
        return table

    def take_fenced(self, group: int, index: int, block: int) -> bool:
        """Takes an entry from the oldest fenced table that holds the block there; whether there was one."""
        for position, (of_group, blocks) in enumerate(self.fenced):
            if of_group == group and index < len(blocks) and blocks[index] == block != NULL_BLOCK:
                blocks[index] = NULL_BLOCK
                if not any(blocks):
                    del self.fenced[position]
                return True
        return False

    def has_live_step(self) -> bool:
        """Whether an unprocessed step's output will be applied."""
        return any(not entry.stale for entry in self.unprocessed)


@dataclass(slots=True, eq=False)
class Entry:
    """One request's part in an unprocessed step.

    `start` is its true start as far as it is known: it falls when an earlier step of its generation rejects tokens, and `rejectable` is
    how far it may still fall, the drafts of those that are unprocessed. `end` is where the step was scheduled to end. `rows` and
    `lengths` are the worker's rows as they stood at the schedule. `suspects` wait for the true start. `previous` is the step of the same
    generation before it, `rejected` what its own output rejected, once that is known.
    """

    step: int
    order: int  # of the step among all steps
    request: Request
    generation: int
    start: int
    tokens: int
    drafts: int
    rows: list[list[int]]
    lengths: list[int]
    end: int
    rejectable: int
    reads: PerGroup | None = None
    writes: PerGroup | None = None
    stale: bool = False
    previous: Entry | None = None
    rejected: int | None = None
    suspects: list[Suspect] | None = None
    watched: list[int] | None = None

    def row_block(self, group: int, index: int) -> int:
        """The block that the step sees at a table index; null past the row's end."""
        return self.rows[group][index] if index < self.lengths[group] else NULL_BLOCK


@dataclass(slots=True, eq=False)
class Watch:
    """An entry of an unprocessed step's row that the request has released: the block is no longer protected by its reference.

    `is_reissued`: it was given out as a fresh block since; who holds it now shares nothing with the step.
    """

    entry: Entry
    group: int
    table_index: int
    block: int
    note: Note | None
    is_reissued: bool = False


@dataclass(slots=True, eq=False)
class Suspect:
    """A loss that is a violation only if the step's true start, once known, makes it need the block."""

    watch: Watch
    loss: Loss
    line: int
    taken_by: str | None
    written: bool
