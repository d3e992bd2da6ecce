"""What a compiled log computes with, in numbers, and what it should compute: outputs of the same kernels over contiguous memory.

Made once for a log, since none of it depends on the order. A row's keys are laid out as the paged side gathers them, [rows, keys], padded
with the row's own first key, so that both sides have the same shapes.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from settled.reference.device.attention import advance, attend
from settled.reference.device.compiled import CompiledLog, Move, Step
from settled.reference.device.ops import KeysPart, StatesPart
from settled.reference.device.payload import INPUT, KEY, QUERY, VALUE, Numbers, payload
from settled.reference.device.state_tensors import numbers_of


@dataclass(slots=True)
class StepNumbers:
    """`rows`: (part, query) of each row of attention; `gather` [rows, keys] indexes the step's reads. `outputs`: as should be.

    `inputs` [states, tokens, head_dim] padded with zeroes; `states` [states, tokens + 1, head_dim]: as should be, the one read first.
    """

    rows: list[tuple[int, int]]
    queries: Tensor
    gather: Tensor
    is_read: Tensor
    outputs: Tensor
    write_keys: Tensor
    write_values: Tensor
    inputs: Tensor
    states: Tensor


@dataclass(slots=True)
class MoveNumbers:
    """The bytes that a LOAD brings or a STORE should find."""

    keys: Tensor
    values: Tensor


class NumberedLog:
    """The numbers of a compiled log. `steps` and `moves` by index in the log's ops."""

    def __init__(self, compiled: CompiledLog, numbers: Numbers) -> None:
        self.compiled = compiled
        self.numbers = numbers
        self.steps = {step.op: self._step(step) for step in compiled.steps}
        self.moves = {move.op: self._move(move) for move in compiled.launches if isinstance(move, Move)}

    def _payload(self, tags: Tensor, vector: int) -> Tensor:
        return payload(tags, vector, self.numbers)

    def _move(self, move: Move) -> MoveNumbers:
        keys, values = self._payload(move.tags, KEY), self._payload(move.tags, VALUE)
        if move.states:
            at = list(move.states)
            keys[at] = values[at] = numbers_of(list(move.states.values()), self.numbers)
        return MoveNumbers(keys, values)

    def _step(self, step: Step) -> StepNumbers:
        rows, reads, tags = self._rows(step)
        queries = self._payload(torch.tensor(tags, dtype=torch.int64), QUERY)
        longest = max(map(len, reads), default=1)
        gather = torch.tensor([read + read[:1] * (longest - len(read)) for read in reads], dtype=torch.int64).reshape(-1, longest)
        lengths = torch.tensor([len(read) for read in reads], dtype=torch.int64)
        is_read = torch.arange(longest) < lengths.unsqueeze(1)
        keys, values = self._payload(step.expected, KEY), self._payload(step.expected, VALUE)
        outputs = attend(queries, keys[gather], values[gather], is_read)
        inputs, states = self._states(step)
        written = step.write_tags
        return StepNumbers(
            rows, queries, gather, is_read, outputs, self._payload(written, KEY), self._payload(written, VALUE), inputs, states
        )

    def _rows(self, step: Step) -> tuple[list[tuple[int, int]], list[list[int]], list[int]]:
        """(part, query), the indices of the reads and the query's tag, of each row."""
        rows: list[tuple[int, int]] = []
        reads: list[list[int]] = []
        tags: list[int] = []
        index_at: dict[tuple[int, int], int] = {}
        at = 0
        for span in step.spans:
            index_at.update({(span.part, span.first + offset): at + offset for offset in range(span.count)})
            at += span.count
        for number, part in enumerate(step.work.parts):
            reading = self.compiled.readings[part.group]
            if not isinstance(part, KeysPart) or reading is None:
                continue
            for query in range(part.start, part.start + part.tokens):
                ranges = reading(query, part.prompt_tokens)
                rows.append((number, query))
                reads.append([index_at[number, position] for first, end in ranges for position in range(first, end)])
                tags.append(part.expected[query - part.first])
        return rows, reads, tags

    def _states(self, step: Step) -> tuple[Tensor, Tensor]:
        parts = [part for part in step.work.parts if isinstance(part, StatesPart)]
        longest = max((len(part.tags) for part in parts), default=0)
        tags = torch.tensor([[*part.tags, *(0,) * (longest - len(part.tags))] for part in parts], dtype=torch.int64)
        inputs = self._payload(tags.reshape(len(parts), longest), INPUT)
        return inputs, advance(numbers_of([part.before for part in parts], self.numbers), inputs)


def numbered(compiled: CompiledLog, numbers: Numbers | None = None) -> NumberedLog:
    """With float64 and 8 numbers a key where nothing else is said."""
    return NumberedLog(compiled, numbers or Numbers())
