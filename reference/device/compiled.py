"""A compiled op log: index tensors that every replay of it reuses, in whatever order.

Where a step's tokens stand follows from the table that is on the device when a launch runs, which a wrong order may change: it is worked
out once for each launch and table. Tables are numbered: 0 is all null, the others are what the FILLs write, in the order of the log.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from settled.reference.device.cells import last_of_each
from settled.reference.device.ops import Launch, LaunchKind, OpLog, StatesPart, StepWork
from settled.reference.device.reading import Reading
from settled.reference.device.state_tensors import chains
from settled.reference.device.tags import describe


@dataclass(slots=True)
class WriteSlots:
    """Where a step's new keys go under one table. `keep`: which writes are the last to their slot; None: all.

    A table entry that two parts write through, as the null entry can be, is written in the order of the parts.
    """

    slots: Tensor
    tags: Tensor
    keep: Tensor | None


@dataclass(slots=True)
class StepSlots:
    """Where the keys and states that a step reads stand under one table, and where its states go. `keep_states`: as `keep` of a write."""

    reads: Tensor
    state_reads: Tensor
    state_writes: Tensor
    keep_states: Tensor | None


@dataclass(slots=True)
class Span:
    """Keys that a part reads, `count` from position `first` on, in the order of `Step.expected`."""

    part: int
    first: int
    count: int


@dataclass(slots=True)
class Write:
    """A WRITE. Cells and offsets: see `cells.py`."""

    op: int
    cells: Tensor = None
    offsets: Tensor = None
    tags: Tensor = None
    by_table: dict[int, WriteSlots] = field(default_factory=dict)


@dataclass(slots=True)
class Step:
    """A STEP. Cells and offsets: see `cells.py`. `state_parts`: which parts; a cell of -1 is the empty state.

    The state that ends at (`out_cells`) comes of the state read by the part `out_of` (an index of `state_parts`) after `out_tokens` tokens,
    which make `h * out_a + out_b` of its tag.
    """

    op: int
    work: StepWork
    rows: int
    spans: list[Span]
    state_parts: list[int]
    read_cells: Tensor = None
    read_offsets: Tensor = None
    expected: Tensor = None
    state_cells: Tensor = None
    state_expected: Tensor = None
    out_cells: Tensor = None
    out_of: Tensor = None
    out_tokens: Tensor = None
    out_a: Tensor = None
    out_b: Tensor = None
    by_table: dict[int, StepSlots] = field(default_factory=dict)


@dataclass(slots=True)
class Move:
    """A LOAD or a STORE. `states`: sequences of the slots that are states, by index in `tags`. `at`: where a STORE's host slots begin."""

    op: int
    slots: Tensor
    tags: Tensor
    states: dict[int, tuple[int, ...]]
    at: int = 0


@dataclass(slots=True)
class Table:
    """A FILL, which writes table number `table` into the staging buffer, or an UPLOAD (`table` is then 0)."""

    staging: int
    table: int


@dataclass(slots=True)
class Pages:
    """A ZERO, a POISON (`sources` None) or a COPY: whole blocks, slot by slot."""

    targets: Tensor
    sources: Tensor | None = None


Compiled = Write | Step | Move | Table | Pages


@dataclass(slots=True)
class CompiledLog:
    """`launches`: by index in the log's ops, None for what is no launch. `page`: slots a block. `num_slots` without the last, which is no
    block's: it holds the empty state. `host_slots`: of the stores. `width`: entries a table row."""

    log: OpLog
    page: int
    width: int
    readings: list[Reading | None]
    tables: Tensor
    launches: list[Compiled | None]
    kinds: list[LaunchKind | None]
    writes: list[Write]
    steps: list[Step]
    host_slots: int
    _states: dict[int, str] = field(default_factory=dict)

    @property
    def num_slots(self) -> int:
        return self.log.num_blocks * self.page

    def write_slots(self, write: Write, table: int) -> WriteSlots:
        """Where the keys go under the table of that number."""
        known = write.by_table.get(table)
        if known is None:
            self.place_writes([(write, table)])
            known = write.by_table[table]
        return known

    def step_slots(self, step: Step, table: int) -> StepSlots:
        """Where what the step reads stands, and where its states go, under the table of that number."""
        known = step.by_table.get(table)
        if known is None:
            self.place_steps([(step, table)])
            known = step.by_table[table]
        return known

    def place_writes(self, pairs: Sequence[tuple[Write, int]]) -> None:
        """Works out the slots of writes under tables, all of them in one go."""
        if not pairs:
            return
        tables = self._offsets_of(table for _, table in pairs)
        placed = self._slots(tables, [write.cells for write, _ in pairs], [write.offsets for write, _ in pairs])
        for (write, table), slots in zip(pairs, placed, strict=True):
            keep = last_of_each(slots)
            write.by_table[table] = WriteSlots(slots, write.tags, None) if keep is None else WriteSlots(slots[keep], write.tags[keep], keep)

    def place_steps(self, pairs: Sequence[tuple[Step, int]]) -> None:
        """The same of steps."""
        if not pairs:
            return
        steps = [step for step, _ in pairs]
        tables = self._offsets_of(table for _, table in pairs)
        reads = self._slots(tables, [step.read_cells for step in steps], [step.read_offsets for step in steps])
        states = self._slots(tables, [step.state_cells for step in steps], None)
        outs = self._slots(tables, [step.out_cells for step in steps], None)
        for (step, table), read, state_reads, state_writes in zip(pairs, reads, states, outs, strict=True):
            keep = last_of_each(state_writes)
            step.by_table[table] = StepSlots(read, state_reads, state_writes if keep is None else state_writes[keep], keep)

    def _offsets_of(self, tables: Iterable[int]) -> Tensor:
        """Where each table begins among the entries of all."""
        return torch.tensor(list(tables), dtype=torch.int64) * self.tables[0].numel()

    def _slots(self, tables: Tensor, cells: list[Tensor], offsets: list[Tensor] | None) -> Sequence[Tensor]:
        """A tensor of slots a launch. `tables`: where each step's begins among all entries. A cell of -1 is the empty state's."""
        sizes = [len(part) for part in cells]
        cell = torch.cat(cells)
        entries = self.tables.view(-1)[cell.clamp(min=0) + torch.repeat_interleave(tables, torch.tensor(sizes))]
        slots = entries * self.page
        slots = torch.where(cell < 0, self.num_slots, slots) if offsets is None else slots + torch.cat(offsets)
        split: Sequence[Tensor] = slots.split(sizes)
        return split

    def describe(self, tag: int) -> str:
        """What a slot holds, for people: a token, or which request's state."""
        if tag >= -2:
            return describe(tag)
        if not self._states:
            self._states.update(_state_names(self.log))
        return self._states.get(tag, "a state of other tokens")


def _state_names(log: OpLog) -> Iterator[tuple[int, str]]:
    """The tag of every state that the log's steps should read, with its request and length."""
    for op in log.ops:
        if type(op) is Launch and op.kind is LaunchKind.STEP:
            assert isinstance(op.work, StepWork)
            for part in op.work.parts:
                if isinstance(part, StatesPart):
                    sequence = (*part.before, *part.tags)
                    tags = chains([sequence[:length] for length in range(part.start, len(sequence) + 1)])
                    for length, tag in enumerate(tags.tolist(), start=part.start):
                        yield tag, f"the state of {length} tokens of request {part.request}"
