"""What a compiled log computes with, in numbers, and what it should compute: outputs of the same kernels over contiguous memory.

Made once for a log, since none of it depends on the order. A row's keys are laid out as the paged side gathers them, [rows, keys], padded
with the row's own first key, so that both sides have the same shapes.
"""

from __future__ import annotations

from collections.abc import Iterable
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

    `inputs` [states, tokens, head_dim], padded; `states` [states, tokens + 1, head_dim]: as should be, the one read first.
    """

    rows: list[tuple[int, int]]
    queries: Tensor
    gather: Tensor
    is_read: Tensor
    outputs: Tensor
    inputs: Tensor
    states: Tensor


@dataclass(slots=True)
class MoveNumbers:
    """The bytes that a WRITE or a LOAD puts into slots, or a STORE should find."""

    keys: Tensor
    values: Tensor


@dataclass(slots=True)
class _Rows:
    """Of a step: (part, query) of each row, the indices of what it reads among the step's reads, and the query's tag."""

    rows: list[tuple[int, int]]
    reads: list[list[int]]
    tags: list[int]


class NumberedLog:
    """The numbers of a compiled log, float64 and 8 of them a key if nothing else is said. `steps` and `moves` by index in the log's ops."""

    def __init__(self, compiled: CompiledLog, numbers: Numbers | None = None) -> None:
        self.compiled = compiled
        self.numbers = numbers or Numbers()
        steps = compiled.steps
        expected, written = [step.expected for step in steps], [write.tags for write in compiled.writes]
        rows = [self._rows(step) for step in steps]
        columns = zip(
            steps,
            rows,
            self._payloads([torch.tensor(row.tags, dtype=torch.int64) for row in rows], QUERY),
            self._payloads(expected, KEY),
            self._payloads(expected, VALUE),
            self._states() if steps else (),
            strict=True,
        )
        self.steps = {step.op: self._step(*column) for step, *column in columns}
        self.moves = {move.op: self._move(move) for move in compiled.launches if isinstance(move, Move)}
        for write, keys, values in zip(compiled.writes, self._payloads(written, KEY), self._payloads(written, VALUE), strict=True):
            self.moves[write.op] = MoveNumbers(keys, values)

    def _payloads(self, tags: list[Tensor], vector: int) -> Iterable[Tensor]:
        """Of many launches in one go."""
        if not tags:
            return ()
        different, which = torch.unique(torch.cat(tags), return_inverse=True)  # a key is expected by many steps
        whole: Iterable[Tensor] = payload(different, vector, self.numbers)[which].split([len(part) for part in tags])
        return whole

    def _move(self, move: Move) -> MoveNumbers:
        keys, values = payload(move.tags, KEY, self.numbers), payload(move.tags, VALUE, self.numbers)
        if move.states:
            at = list(move.states)
            keys[at] = values[at] = numbers_of(list(move.states.values()), self.numbers)
        return MoveNumbers(keys, values)

    def _step(self, rows: _Rows, queries: Tensor, keys: Tensor, values: Tensor, states: tuple[Tensor, Tensor]) -> StepNumbers:
        longest = max(map(len, rows.reads), default=1)
        gather = torch.tensor([[*read, *read[:1] * (longest - len(read))] for read in rows.reads], dtype=torch.int64).reshape(-1, longest)
        is_read = torch.arange(longest) < torch.tensor([len(read) for read in rows.reads], dtype=torch.int64).unsqueeze(1)
        outputs = attend(queries, keys[gather], values[gather], is_read)
        return StepNumbers(rows.rows, queries, gather, is_read, outputs, *states)

    def _rows(self, step: Step) -> _Rows:
        rows = _Rows([], [], [])
        at = 0
        spans: dict[int, list[tuple[int, int, int]]] = {}  # by part: (first position, end, index of the first in the step's reads)
        for span in step.spans:
            spans.setdefault(span.part, []).append((span.first, span.first + span.count, at))
            at += span.count
        for number, runs in spans.items():
            part = step.work.parts[number]
            reading = self.compiled.readings[part.group]
            assert isinstance(part, KeysPart)
            assert reading is not None
            for query in range(part.start, part.start + part.tokens):
                read: list[int] = []
                for first, end in reading(query, part.prompt_tokens):
                    shift = next(index - begin for begin, stop, index in runs if begin <= first < stop)
                    read.extend(range(first + shift, end + shift))
                rows.rows.append((number, query))
                rows.reads.append(read)
                rows.tags.append(part.expected[query - part.first])
        return rows

    def _states(self) -> Iterable[tuple[Tensor, Tensor]]:
        """(inputs, states) of each step."""
        parts = [[part for part in step.work.parts if isinstance(part, StatesPart)] for step in self.compiled.steps]
        begun = numbers_of([part.before for of_step in parts for part in of_step], self.numbers)
        longest = [max((len(part.tags) for part in of_step), default=0) for of_step in parts]
        tags = [
            torch.tensor([[*part.tags, *(0,) * (most - len(part.tags))] for part in of_step], dtype=torch.int64).flatten()
            for of_step, most in zip(parts, longest, strict=True)
        ]
        whole = zip(parts, longest, begun.split([len(of_step) for of_step in parts]), self._payloads(tags, INPUT), strict=True)
        for of_step, most, read, flat in whole:
            inputs = flat.view(len(of_step), most, self.numbers.head_dim)
            yield inputs, advance(read, inputs) if of_step else read
