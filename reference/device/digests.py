"""What every read of a CPU replay found, row by row, right or wrong: the `Outcome` that other back-ends' are compared with."""

from __future__ import annotations

import torch
from torch import Tensor

from settled.reference.device.compiled import CompiledLog, Step, StepSlots
from settled.reference.device.memory import Memory
from settled.reference.device.numbered import NumberedLog
from settled.reference.device.outcome import Outcome, add_stores, outcome_before
from settled.reference.device.payload import mix
from settled.reference.device.rows import rows_of


class Digests:
    """Filled by a replay, which calls `keys` and `states` for each step that reads some."""

    def __init__(self, compiled: CompiledLog, numbered: NumberedLog) -> None:
        self.compiled = compiled
        self.numbered = numbered
        self._outcome = outcome_before(rows_of(compiled), numbered.numbers.head_dim, numbered.numbers.dtype)

    def keys(self, step: Step, slots: StepSlots, tags: Tensor, outputs: Tensor) -> None:
        """`tags` of the step's reads; what each row reads of them is what its attention gathered."""
        numbers, outcome, of_step = self.numbered.steps[step.op], self._outcome, self._outcome.rows.of_step[step.op]
        own = slice(of_step.start, of_step.stop)
        places = numbers.gather
        wrong = (tags != step.expected)[places] & numbers.is_read
        outcome.digests[own] = torch.where(numbers.is_read, mix(tags)[places], 0).sum(1)
        outcome.wrong[own] = wrong.sum(1).to(torch.int32)
        outcome.outputs[own] = outputs
        positions = torch.cat([torch.arange(span.first, span.first + span.count) for span in step.spans])
        for row in wrong.any(1).nonzero().flatten().tolist():
            first = int(places[row, wrong[row].nonzero()[0]])
            outcome.first[own.start + row] = positions[first]
            outcome.found[own.start + row] = tags[first]
            outcome.is_null[own.start + row] = int(slots.reads[first] < self.compiled.page)

    def states(self, step: Step, slots: StepSlots, tags: Tensor, outputs: Tensor) -> None:
        """`outputs` [states, tokens + 1, head_dim]: the states read and all that follow from them."""
        rows, outcome = self._outcome.rows, self._outcome
        for which, number in enumerate(rows.states_of[step.op]):
            outcome.state_found[number] = tags[which]
            outcome.state_wrong[number] = int(tags[which] != step.state_expected[which])
            outcome.state_null[number] = int(slots.state_reads[which] < self.compiled.page)
            first = rows.state_rows[number]
            end = rows.state_rows[number + 1] if number + 1 < len(rows.states) else rows.num_state_rows
            outcome.state_outputs[first:end] = outputs[which, : end - first]

    def outcome(self, memory: Memory) -> Outcome:
        """After the last launch; what STOREs brought lies in memory."""
        add_stores(self._outcome, self.compiled, self.numbered, memory.host_tags, memory.host_keys, memory.host_values)
        return self._outcome
