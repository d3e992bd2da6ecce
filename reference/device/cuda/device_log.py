"""A compiled log as the kernels want it: flat tensors over all launches, and for each launch which of their entries are its own."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from settled.reference.device.compiled import CompiledLog, Move, Step
from settled.reference.device.numbered import NumberedLog
from settled.reference.device.ops import BlocksWork, CopyWork, KeysPart, Launch, StatesPart, TransferWork
from settled.reference.device.rows import Rows, rows_of

ROW_FIELDS, RANGE_FIELDS, PART_FIELDS = 4, 3, 4


@dataclass(slots=True)
class Segment:
    """Slots of one block that a LOAD or a STORE moves: `slot` and on in memory, `at` and on in the host's buffer, `count` of them."""

    slot: int
    at: int
    count: int


@dataclass(slots=True)
class DeviceLog:
    """What is uploaded: tensors by the name that the kernels call them, integers in 32 bits, tags in 64. Ranges and segments by op.

    `loaded_tags` and so on: the host's buffer from which LOADs come, all of them one behind the other.
    """

    rows: Rows
    tensors: dict[str, Tensor] = field(default_factory=dict)
    writes: dict[int, range] = field(default_factory=dict)
    outs: dict[int, range] = field(default_factory=dict)
    blocks: dict[int, range] = field(default_factory=dict)
    pairs: dict[int, range] = field(default_factory=dict)
    segments: dict[int, list[Segment]] = field(default_factory=dict)
    loaded_tags: Tensor = None
    loaded_keys: Tensor = None
    loaded_values: Tensor = None


def device_log(compiled: CompiledLog, numbered: NumberedLog) -> DeviceLog:
    """Everything that the launches of a log are told."""
    made = DeviceLog(rows_of(compiled))
    _writes(made, compiled)
    _attention(made, compiled, numbered)
    _states(made, compiled)
    _pages(made, compiled)
    _moves(made, compiled, numbered)
    return made


def _writes(made: DeviceLog, compiled: CompiledLog) -> None:
    made.writes = _ranges((write.op, len(write.tags)) for write in compiled.writes)
    made.tensors["write_cells"] = _joined([write.cells for write in compiled.writes], torch.int32)
    made.tensors["write_offsets"] = _joined([write.offsets for write in compiled.writes], torch.int32)
    made.tensors["write_tags"] = _joined([write.tags for write in compiled.writes], torch.int64)


def _attention(made: DeviceLog, compiled: CompiledLog, numbered: NumberedLog) -> None:
    rows: list[int] = []
    ranges: list[int] = []
    at = 0  # where the tags that the step expects begin
    for step in compiled.steps:
        for number, query in numbered.steps[step.op].rows:
            part = step.work.parts[number]
            reading = compiled.readings[part.group]
            assert isinstance(part, KeysPart)
            assert reading is not None
            read = reading(query, part.prompt_tokens)
            rows += (part.row * compiled.width, compiled.log.groups[part.group].block_size, len(ranges) // RANGE_FIELDS, len(read))
            for first, end in read:
                ranges += (first, end, at + _expected_at(step, number, first))
        at += len(step.expected)
    made.tensors["rows"] = torch.tensor(rows, dtype=torch.int32)
    made.tensors["ranges"] = torch.tensor(ranges, dtype=torch.int32)
    made.tensors["expected"] = _joined([step.expected for step in compiled.steps], torch.int64)
    made.tensors["queries"] = _joined([numbered.steps[step.op].queries.flatten() for step in compiled.steps], torch.float32)


def _expected_at(step: Step, part: int, position: int) -> int:
    """Where among the tags that the step expects a position of a part stands."""
    at = 0
    for span in step.spans:
        if span.part == part and span.first <= position < span.first + span.count:
            return at + position - span.first
        at += span.count
    raise AssertionError(f"launch {step.op}: position {position} of part {part} is in no span")


def _states(made: DeviceLog, compiled: CompiledLog) -> None:
    fields: list[int] = []
    tags: list[int] = []
    out_rows: list[Tensor] = []
    out_of: list[Tensor] = []
    which = 0
    for step in compiled.steps:
        parts = [part for part in step.work.parts if isinstance(part, StatesPart)]
        first_rows = made.rows.state_rows[which : which + len(parts)]
        for part, cell, first_row in zip(parts, step.state_cells.tolist(), first_rows, strict=True):
            fields += (cell, len(part.tags), len(tags), first_row)
            tags += part.tags
        out_rows.append(torch.tensor(first_rows, dtype=torch.int64)[step.out_of] + step.out_tokens)
        out_of.append(step.out_of + which)
        which += len(parts)
    made.outs = _ranges((step.op, len(step.out_of)) for step in compiled.steps)
    made.tensors["parts"] = torch.tensor(fields, dtype=torch.int32)
    made.tensors["state_tags"] = torch.tensor(tags, dtype=torch.int64)
    made.tensors["state_expected"] = _joined([step.state_expected for step in compiled.steps], torch.int64)
    made.tensors["out_cells"] = _joined([step.out_cells for step in compiled.steps], torch.int32)
    made.tensors["out_rows"] = _joined(out_rows, torch.int32)
    made.tensors["out_of"] = _joined(out_of, torch.int32)
    made.tensors["out_factors"] = _joined([step.out_a for step in compiled.steps], torch.int64)
    made.tensors["out_addends"] = _joined([step.out_b for step in compiled.steps], torch.int64)


def _pages(made: DeviceLog, compiled: CompiledLog) -> None:
    blocks: list[int] = []
    pairs: list[int] = []
    for op, launch in enumerate(compiled.log.ops):
        work = launch.work if type(launch) is Launch else None
        if isinstance(work, BlocksWork):
            made.blocks[op] = range(len(blocks), len(blocks) + len(work.blocks))
            blocks += work.blocks
        elif isinstance(work, CopyWork):
            made.pairs[op] = range(len(pairs) // 2, len(pairs) // 2 + 1)
            pairs += (work.source, work.target)
    made.tensors["blocks"] = torch.tensor(blocks, dtype=torch.int32)
    made.tensors["pairs"] = torch.tensor(pairs, dtype=torch.int32)


def _moves(made: DeviceLog, compiled: CompiledLog, numbered: NumberedLog) -> None:
    loads: list[Move] = []
    at = 0
    for op, launch in enumerate(compiled.log.ops):
        move = compiled.launches[op]
        if not isinstance(move, Move) or type(launch) is not Launch or not isinstance(launch.work, TransferWork):
            continue
        if launch.kind == "store":
            made.segments[op] = _segments(launch.work, compiled.page, move.at)
        else:
            made.segments[op] = _segments(launch.work, compiled.page, at)
            at += len(move.tags)
            loads.append(move)
    head_dim = numbered.numbers.head_dim
    made.loaded_tags = _joined([load.tags for load in loads], torch.int64)
    made.loaded_keys = _joined([numbered.moves[load.op].keys.flatten() for load in loads], torch.float32).view(-1, head_dim)
    made.loaded_values = _joined([numbered.moves[load.op].values.flatten() for load in loads], torch.float32).view(-1, head_dim)


def _segments(work: TransferWork, page: int, at: int) -> list[Segment]:
    segments = []
    for slots in work.slots:
        count = 1 if slots.is_state else len(slots.tags)
        segments.append(Segment(slots.block * page + slots.first, at, count))
        at += count
    return segments


def _ranges(sizes: Iterable[tuple[int, int]]) -> dict[int, range]:
    """One behind the other, by op."""
    ranges, at = {}, 0
    for op, size in sizes:
        ranges[op] = range(at, at + size)
        at += size
    return ranges


def _joined(parts: Sequence[Tensor], dtype: torch.dtype) -> Tensor:
    return torch.cat(list(parts)).to(dtype) if parts else torch.zeros(0, dtype=dtype)
