"""The same log over contiguous memory: every step alone, its keys and states freshly written into blocks that are nobody else's.

It is a log like any other, whose tables are the identity, and runs through the same launches: rows and states come in the same order, and
their outputs are what the given log's must be, bit for bit.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from settled.model.specs import KVCacheSpec
from settled.reference.device.compiled import CompiledLog
from settled.reference.device.ops import (
    COMPUTE,
    FIRST_TRANSFER,
    HOST,
    FillWork,
    KeysPart,
    Launch,
    LaunchKind,
    OpLog,
    Slots,
    StatesPart,
    StepWork,
    TransferWork,
    Work,
)


def contiguous_log(compiled: CompiledLog) -> OpLog:
    """For each step its table, the states and keys that it should find, and the step itself. To be run in its own order."""
    log = OpLog(compiled.log.groups, 1, 1, FIRST_TRANSFER)
    for step in compiled.steps:
        laid_out = _LaidOut(log.groups)
        parts = tuple(laid_out.part(row, part) for row, part in enumerate(step.work.parts))
        table = FillWork(0, tuple(laid_out.rows))
        _launch(log, HOST, LaunchKind.FILL, table)
        _launch(log, COMPUTE, LaunchKind.UPLOAD, table)
        if laid_out.states:
            _launch(log, COMPUTE, LaunchKind.LOAD, TransferWork(step.work.step, tuple(laid_out.states)))
        if laid_out.written:
            _launch(log, COMPUTE, LaunchKind.WRITE, StepWork(step.work.step, tuple(laid_out.written)))
        _launch(log, COMPUTE, LaunchKind.STEP, StepWork(step.work.step, parts))
        log.num_blocks = max(log.num_blocks, laid_out.blocks)
    return log


def _launch(log: OpLog, stream: int, kind: LaunchKind, work: Work) -> None:
    log.ops.append(Launch(stream, kind, (), (), work))


@dataclass(slots=True)
class _LaidOut:
    """One step's memory. `blocks`: taken so far, the null block included; `written` spells out every key that is read."""

    groups: tuple[KVCacheSpec, ...]
    blocks: int
    rows: list[tuple[int, ...]]
    states: list[Slots]
    written: list[KeysPart]

    def __init__(self, groups: tuple[KVCacheSpec, ...]) -> None:
        self.groups, self.blocks, self.rows, self.states, self.written = groups, 1, [], [], []

    def part(self, row: int, part: KeysPart | StatesPart) -> KeysPart | StatesPart:
        """The part as it stands in this memory, in a table row of its own."""
        laid_out = self._keys(row, part) if isinstance(part, KeysPart) else self._states(row, part)
        self.rows.append(laid_out.blocks)
        return laid_out

    def _keys(self, row: int, part: KeysPart) -> KeysPart:
        size, end = self.groups[part.group].block_size, part.start + part.tokens
        skipped = part.first // size
        blocks = (0,) * skipped + self._take(-(-end // size) - skipped)
        self.written.append(replace(part, row=row, blocks=blocks, start=part.first, tokens=end - part.first, tags=part.expected))
        return replace(part, row=row, blocks=blocks, tags=())

    def _states(self, row: int, part: StatesPart) -> StatesPart:
        """Entry 0 holds the state that is read; states go to the entries behind it."""
        if part.read is not None:
            self.states.append(Slots(self.blocks, 0, part.before, is_state=True))
        writes = tuple((1 + which, tokens) for which, (_, tokens) in enumerate(part.writes))
        return replace(part, row=row, blocks=self._take(1 + len(writes)), read=None if part.read is None else 0, writes=writes)

    def _take(self, count: int) -> tuple[int, ...]:
        self.blocks += count
        return tuple(range(self.blocks - count, self.blocks))
