"""Compiles an op log: what it says of each launch becomes flat tensors over the whole log, split by launch."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from settled.model.specs import KVCacheSpec, MambaSpec
from settled.reference.device.cells import Runs
from settled.reference.device.compiled import Compiled, CompiledLog, Move, Pages, Span, Step, Table, Write
from settled.reference.device.ops import (
    BlocksWork,
    CopyWork,
    FillWork,
    KeysPart,
    Launch,
    LaunchKind,
    OpLog,
    StatesPart,
    StepWork,
    TransferWork,
)
from settled.reference.device.reading import Reading, UnreadableKindError, reading_of
from settled.reference.device.reads import read_by_part
from settled.reference.device.state_tensors import chains, folds


class CompileError(ValueError):
    """The log says something that no device can do; the message says which launch and what."""


def compile_log(log: OpLog) -> CompiledLog:
    """Raises CompileError."""
    return _Compiler(log).compiled()


class _Compiler:
    """Gathers what all launches say in flat lists, then makes tensors of them."""

    def __init__(self, log: OpLog) -> None:
        self.log = log
        keys = [spec.block_size for spec in log.groups if not isinstance(spec, MambaSpec)]
        self.page = max(keys, default=1)
        self.readings = [_reading(spec) for spec in log.groups]
        self.writes: list[tuple[Write, int]] = []  # with the table that each finds in the order of the log
        self.steps: list[tuple[Step, int]] = []
        self.written, self.reads = Runs(), Runs()
        self.write_tags: list[int] = []
        self.write_sizes: list[int] = []  # a write's keys
        self.expected: list[int] = []
        self.states: list[tuple[int, int]] = []  # (row, index), index -1: the empty state
        self.before: list[tuple[int, ...]] = []
        self.outs: list[tuple[int, int, int, int]] = []  # (row, index, which state, tokens)
        self.out_tags: list[tuple[int, ...]] = []
        self.sizes: list[tuple[int, int, int]] = []  # a step's reads, states, states written
        self.fills: list[tuple[tuple[int, ...], ...]] = [()]
        self.host_slots = 0

    def compiled(self) -> CompiledLog:
        log = self.log
        launches: list[Compiled | None] = [None] * len(log.ops)
        staging, table = [0] * log.num_staging, 0
        for index, op in enumerate(log.ops):
            if type(op) is not Launch:
                continue
            work = op.work
            if isinstance(work, StepWork):
                launches[index] = self._write(index, work, table) if op.kind is LaunchKind.WRITE else self._step(index, work, table)
            elif isinstance(work, FillWork):
                self._require(0 <= work.staging < log.num_staging, index, f"there is no staging buffer {work.staging}")
                launches[index] = self._table(op.kind, work)
                if op.kind is LaunchKind.FILL:
                    staging[work.staging] = len(self.fills) - 1
                else:
                    table = staging[work.staging]
            elif isinstance(work, TransferWork):
                launches[index] = self._move(index, op.kind, work)
            else:
                launches[index] = self._pages(index, work)
        kinds = [op.kind if type(op) is Launch else None for op in log.ops]
        width = max([self.written.width(), self.reads.width(), 1, *(len(row) for rows in self.fills for row in rows)])
        width = max([width, *(index + 1 for _, index in self.states), *(index + 1 for _, index, _, _ in self.outs)])
        writes, steps = [write for write, _ in self.writes], [step for step, _ in self.steps]
        compiled = CompiledLog(log, self.page, width, self.readings, self._tables(width), launches, kinds, writes, steps, self.host_slots)
        self._fill_writes(writes, width)
        self._fill_steps(steps, width)
        compiled.place_writes(self.writes)
        compiled.place_steps(self.steps)
        return compiled

    def _require(self, condition: bool, index: int, message: str) -> None:
        if not condition:
            raise CompileError(f"launch {index}: {message}")

    # ---- a launch at a time --------------------------------------------------------------------------------------------

    def _table(self, kind: LaunchKind, work: FillWork) -> Table:
        if kind is LaunchKind.UPLOAD:
            return Table(work.staging, 0)
        self.fills.append(work.rows)
        return Table(work.staging, len(self.fills) - 1)

    def _pages(self, index: int, work: BlocksWork | CopyWork) -> Pages:
        if isinstance(work, BlocksWork):
            return Pages(self._whole(index, work.blocks))
        return Pages(self._whole(index, (work.target,)), self._whole(index, (work.source,)))

    def _whole(self, index: int, blocks: Sequence[int]) -> Tensor:
        for block in blocks:
            self._require(0 <= block < self.log.num_blocks, index, f"there is no block {block}")
        return torch.tensor([block * self.page + slot for block in blocks for slot in range(self.page)], dtype=torch.int64)

    def _move(self, index: int, kind: LaunchKind, work: TransferWork) -> Move:
        places: list[int] = []
        tags: list[int] = []
        states: dict[int, tuple[int, ...]] = {}
        for slots in work.slots:
            self._require(0 <= slots.block < self.log.num_blocks, index, f"there is no block {slots.block}")
            at = slots.block * self.page + slots.first
            if slots.is_state:
                states[len(places)] = slots.tags
                places.append(at)
                tags.append(0)
                continue
            self._require(slots.first + len(slots.tags) <= self.page, index, f"block {slots.block} has {self.page} slots")
            places.extend(range(at, at + len(slots.tags)))
            tags.extend(slots.tags)
        held = torch.tensor(tags, dtype=torch.int64)
        if states:
            held[list(states)] = chains(list(states.values()))
        move = Move(index, torch.tensor(places, dtype=torch.int64), held, states, self.host_slots)
        if kind is LaunchKind.STORE:
            self.host_slots += len(places)
        return move

    def _write(self, index: int, work: StepWork, table: int) -> Write:
        before = len(self.write_tags)
        for part in work.parts:
            if isinstance(part, KeysPart) and part.tags:
                self.written.add(part.row, self.log.groups[part.group].block_size, part.start, len(part.tags))
                self.write_tags.extend(part.tags)
        self.write_sizes.append(len(self.write_tags) - before)
        write = Write(index)
        self.writes.append((write, table))
        return write

    def _step(self, index: int, work: StepWork, table: int) -> Step:
        before = (len(self.expected), len(self.states), len(self.outs))
        spans: list[Span] = []
        state_parts: list[int] = []
        rows = 0
        for number, part in enumerate(work.parts):
            rows += part.tokens
            if isinstance(part, KeysPart):
                self._keys(index, number, part, spans)
            else:
                self._states(index, part, len(state_parts))
                state_parts.append(number)
        after = (len(self.expected), len(self.states), len(self.outs))
        self.sizes.append((after[0] - before[0], after[1] - before[1], after[2] - before[2]))
        step = Step(index, work, rows, spans, state_parts)
        self.steps.append((step, table))
        return step

    def _keys(self, index: int, number: int, part: KeysPart, spans: list[Span]) -> None:
        reading, block_size = self.readings[part.group], self.log.groups[part.group].block_size
        if reading is None:
            raise CompileError(f"launch {index}: no kernel reads keys of group {part.group}, {self.log.groups[part.group].kind}")
        end = part.start + part.tokens
        self._require(
            len(part.expected) == end - part.first, index, f"part {number} expects {len(part.expected)} keys from {part.first} to {end}"
        )
        self._require(part.tokens > 0, index, f"part {number} has no tokens")
        for first, stop in read_by_part(part, reading):
            self._require(first >= part.first, index, f"part {number} reads position {first}, before its first, {part.first}")
            self.reads.add(part.row, block_size, first, stop - first)
            self.expected.extend(part.expected[first - part.first : stop - part.first])
            spans.append(Span(number, first, stop - first))

    def _states(self, index: int, part: StatesPart, which: int) -> None:
        self._require(len(part.before) == part.start, index, f"a state after {part.start} tokens is made of {len(part.before)}")
        self._require(part.read is not None or part.start == 0, index, f"the state after {part.start} tokens is read from nowhere")
        self.states.append((part.row, -1 if part.read is None else part.read))
        self.before.append(part.before)
        for table_index, tokens in part.writes:
            self._require(0 <= tokens <= len(part.tags), index, f"a state after {tokens} of {len(part.tags)} tokens")
            self.outs.append((part.row, table_index, which, tokens))
            self.out_tags.append(part.tags[:tokens])

    # ---- all at once ---------------------------------------------------------------------------------------------------

    def _tables(self, width: int) -> Tensor:
        """[tables, rows, width]: what a FILL does not give is null."""
        rows_max = max([1, *(len(rows) for rows in self.fills), *(row + 1 for row in self.written.rows + self.reads.rows)])
        rows_max = max([rows_max, *(row + 1 for row, _ in self.states)])
        flat: list[int] = []
        nothing = (0,) * width
        for rows in self.fills:
            for row in rows:
                flat.extend(row)
                flat.extend(nothing[len(row) :])
            flat.extend(nothing * (rows_max - len(rows)))
        tables = torch.tensor(flat, dtype=torch.int64).reshape(len(self.fills), rows_max, width)
        if int(tables.max()) >= self.log.num_blocks or int(tables.min()) < 0:
            raise CompileError(f"a block table names a block outside of 0 to {self.log.num_blocks - 1}")
        return tables

    def _fill_writes(self, writes: list[Write], width: int) -> None:
        """Gives each write its share of the tensors over the whole log."""
        columns = (*self.written.cells(width), torch.tensor(self.write_tags, dtype=torch.int64))
        for write, *column in zip(writes, *(each.split(self.write_sizes) for each in columns), strict=True):
            write.cells, write.offsets, write.tags = column

    def _fill_steps(self, steps: list[Step], width: int) -> None:
        """The same of steps."""
        reads, states, outs = ([size[which] for size in self.sizes] for which in range(3))
        state_table = torch.tensor(self.states, dtype=torch.int64).reshape(-1, 2)
        state_cells = torch.where(state_table[:, 1] < 0, -1, state_table[:, 0] * width + state_table[:, 1])
        out_table = torch.tensor(self.outs, dtype=torch.int64).reshape(-1, 4)
        out_a, out_b = folds(self.out_tags)
        columns = zip(
            *(column.split(reads) for column in (*self.reads.cells(width), torch.tensor(self.expected, dtype=torch.int64))),
            *(column.split(states) for column in (state_cells, chains(self.before))),
            *(column.split(outs) for column in (out_table[:, 0] * width + out_table[:, 1], out_table[:, 2], out_table[:, 3], out_a, out_b)),
            strict=True,
        )
        for step, column in zip(steps, columns, strict=True):
            (
                step.read_cells,
                step.read_offsets,
                step.expected,
                step.state_cells,
                step.state_expected,
                step.out_cells,
                step.out_of,
                step.out_tokens,
                step.out_a,
                step.out_b,
            ) = column


def _reading(spec: KVCacheSpec) -> Reading | None:
    try:
        return reading_of(spec)
    except UnreadableKindError:
        return None
