"""Replay of an op log's launches on the CPU, in whatever order: real buffers, real kernels, and every read checked.

A WRITE writes a step's keys. Its STEP reads the states, writes those that follow from them, then reads the keys.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from settled.reference.device.attention import advance, attend, rows_differing
from settled.reference.device.compiled import CompiledLog, Move, Pages, Step, StepSlots, Table, Write
from settled.reference.device.digests import Digests
from settled.reference.device.judge import Judge, states_differing
from settled.reference.device.memory import Memory
from settled.reference.device.numbered import NumberedLog, StepNumbers
from settled.reference.device.ops import LaunchKind
from settled.reference.device.outcome import Outcome
from settled.reference.device.results import TOLERANCE, Result
from settled.reference.device.states import SIGN
from settled.reference.device.tags import POISONED, ZEROED


def replay(compiled: CompiledLog, order: Iterable[int] | None = None, numbers: NumberedLog | None = None, limit: int = 100) -> Result:
    """Runs the launches, indices of the log's ops (None: as they were enqueued). Tags alone unless `numbers` are given."""
    device = Replay(compiled, numbers, limit)
    for op in compiled.log.launches() if order is None else order:
        device.run(op)
    return device.result


def replay_outcome(compiled: CompiledLog, numbers: NumberedLog, order: Iterable[int] | None = None) -> Outcome:
    """The same with a digest of every read, right or wrong, for comparison with other back-ends."""
    device = Replay(compiled, numbers, digests=Digests(compiled, numbers))
    for op in compiled.log.launches() if order is None else order:
        device.run(op)
    assert device.digests is not None
    return device.digests.outcome(device.memory)


class Replay:
    """A device under way. `memory` and `result` may be looked at between launches; `outputs`: of the last STEP, [rows, head_dim].

    `digests`, if given, is told of every read; it needs `numbers`.
    """

    def __init__(self, compiled: CompiledLog, numbers: NumberedLog | None = None, limit: int = 100, digests: Digests | None = None) -> None:
        self.compiled = compiled
        self.numbers = numbers
        self.digests = digests
        self.memory = Memory(compiled, None if numbers is None else numbers.numbers)
        self.result = Result(limit=limit)
        self.judge = Judge(compiled, self.result)
        self.outputs: Tensor = None
        self._run_kind: dict[LaunchKind | None, Any] = {
            LaunchKind.FILL: self._fill,
            LaunchKind.UPLOAD: self._upload,
            LaunchKind.WRITE: self._write,
            LaunchKind.STEP: self._step,
            LaunchKind.ZERO: self._zero,
            LaunchKind.COPY: self._copy,
            LaunchKind.LOAD: self._load,
            LaunchKind.STORE: self._store,
            LaunchKind.POISON: self._poison,
        }

    def run(self, op: int) -> None:
        """One launch. Raises KeyError for what is none."""
        self._run_kind[self.compiled.kinds[op]](self.compiled.launches[op])

    # ---- a method a kind -----------------------------------------------------------------------------------------------

    def _fill(self, fill: Table) -> None:
        self.memory.staging[fill.staging] = fill.table

    def _upload(self, upload: Table) -> None:
        self.memory.table = self.memory.staging[upload.staging]

    def _zero(self, pages: Pages) -> None:
        self.memory.fill(pages.targets, ZEROED)

    def _poison(self, pages: Pages) -> None:
        self.memory.fill(pages.targets, POISONED)

    def _copy(self, pages: Pages) -> None:
        self.memory.copy(pages.sources, pages.targets)

    def _load(self, load: Move) -> None:
        if self.numbers is None:
            self.memory.write(load.slots, load.tags, None, None)
        else:
            brought = self.numbers.moves[load.op]
            self.memory.write(load.slots, load.tags, brought.keys, brought.values)

    def _store(self, store: Move) -> None:
        self.memory.bring(store.slots, store.at)
        memory, span, differs = self.memory, slice(store.at, store.at + len(store.slots)), None
        if self.numbers is not None:
            wanted = self.numbers.moves[store.op]
            differs = bool(rows_differing(memory.host_keys[span], wanted.keys) or rows_differing(memory.host_values[span], wanted.values))
        if differs or not torch.equal(memory.host_tags[span], store.tags):
            self.judge.store(store, memory.host_tags[span], differs)

    def _write(self, write: Write) -> None:
        placed = self.compiled.write_slots(write, self.memory.table)
        if self.numbers is None:
            self.memory.write(placed.slots, placed.tags, None, None)
            return
        brought = self.numbers.moves[write.op]
        keys, values = brought.keys, brought.values
        if placed.keep is not None:
            keys, values = keys[placed.keep], values[placed.keep]
        self.memory.write(placed.slots, placed.tags, keys, values)

    def _step(self, step: Step) -> None:
        slots = self.compiled.step_slots(step, self.memory.table)
        counts = self.result.counts
        counts.steps += 1
        counts.rows += step.rows
        numbers = None if self.numbers is None else self.numbers.steps[step.op]
        if step.state_parts:
            self._write_states(step, slots, self._read_states(step, slots, numbers))
        if step.spans:
            self._attend(step, slots, numbers)

    # ---- a step's parts ------------------------------------------------------------------------------------------------

    def _read_states(self, step: Step, slots: StepSlots, numbers: StepNumbers | None) -> tuple[Tensor, Tensor]:
        """(tags of the states read, numbers of those and of all that follow from them)."""
        tags = self.memory.tags[slots.state_reads]
        outputs = None if numbers is None else advance(self.memory.keys[slots.state_reads], numbers.inputs)
        differing = None if numbers is None else states_differing(step, outputs, numbers)
        if self.digests is not None:
            self.digests.states(step, slots, tags, outputs)
        if differing or not torch.equal(tags, step.state_expected):
            self.judge.states(step, slots, tags, differing)
        return tags, outputs

    def _write_states(self, step: Step, slots: StepSlots, states: tuple[Tensor, Tensor]) -> None:
        tags, outputs = states
        written = tags[step.out_of] * step.out_a + step.out_b | SIGN
        made = None if outputs is None else outputs[step.out_of, step.out_tokens]
        if slots.keep_states is not None:
            written = written[slots.keep_states]
            made = None if made is None else made[slots.keep_states]
        self.memory.write(slots.state_writes, written, made, made)

    def _attend(self, step: Step, slots: StepSlots, numbers: StepNumbers | None) -> None:
        tags = self.memory.tags.index_select(0, slots.reads)
        differing: list[int] | None = None
        if numbers is not None:
            places = slots.reads[numbers.gather]
            self.outputs = attend(numbers.queries, self.memory.keys[places], self.memory.values[places], numbers.is_read)
            differing = rows_differing(self.outputs, numbers.outputs)
            if differing:
                self.result.counts.rows_within_tolerance += _near(self.outputs[differing], numbers.outputs[differing])
        if self.digests is not None:
            self.digests.keys(step, slots, tags, self.outputs)
        if differing or not torch.equal(tags, step.expected):
            differing_rows = None if numbers is None else {numbers.rows[row] for row in differing or ()}
            self.judge.keys(step, slots, tags, differing_rows)


def _near(outputs: Tensor, expected: Tensor) -> int:
    """How many rows a tolerance would pass. NaN passes none."""
    return int(((outputs - expected).norm(dim=1) <= TOLERANCE * expected.norm(dim=1)).sum())
