"""Puts into words and counts what a replay found wrong. It is asked only where something is."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from settled.reference.device.attention import rows_differing
from settled.reference.device.compiled import CompiledLog, Move, Step, StepSlots
from settled.reference.device.numbered import StepNumbers
from settled.reference.device.ops import KeysPart
from settled.reference.device.reads import Found, garbled_queries
from settled.reference.device.results import Garbled, Result


class Judge:
    """Writes into `result`. `differing`: (part, query) whose output differs bit for bit; None where no numbers are computed."""

    def __init__(self, compiled: CompiledLog, result: Result) -> None:
        self.compiled = compiled
        self.result = result

    def keys(self, step: Step, slots: StepSlots, tags: Tensor, differing: set[tuple[int, int]] | None) -> None:
        for number, wrong in self._wrong_keys(step, slots, tags).items():
            part = step.work.parts[number]
            reading = self.compiled.readings[part.group]
            assert isinstance(part, KeysPart)
            assert reading is not None
            self.result.counts.tokens_null += sum(found.is_null for found in wrong.values())
            self.result.counts.tokens_wrong += sum(not found.is_null for found in wrong.values())
            for query, position, reads_null in garbled_queries(part, reading, wrong):
                found = wrong[position]
                differs = None if differing is None else (number, query) in differing
                self._row(
                    Garbled(
                        step.op, number, query, position, found.expected, found.found, found.is_null, part.is_delivered, False, differs
                    ),
                    reads_null,
                )
                if differing is not None:
                    differing.discard((number, query))
        for number, query in sorted(differing or ()):
            self._row(Garbled(step.op, number, query, -1, 0, 0, False, step.work.parts[number].is_delivered, False, True), False)

    def _wrong_keys(self, step: Step, slots: StepSlots, tags: Tensor) -> dict[int, dict[int, Found]]:
        """By part and position."""
        at = (tags != step.expected).nonzero().flatten()
        found = zip(
            at.tolist(), step.expected[at].tolist(), tags[at].tolist(), (slots.reads[at] < self.compiled.page).tolist(), strict=True
        )
        wrong: dict[int, dict[int, Found]] = {}
        spans = iter(step.spans)
        span, begin = next(spans), 0
        for index, *what in found:
            while index >= begin + span.count:
                begin += span.count
                span = next(spans)
            wrong.setdefault(span.part, {})[span.first + index - begin] = Found(*what)
        return wrong

    def _row(self, garbled: Garbled, reads_null: bool) -> None:
        counts = self.result.counts
        if garbled.position >= 0:
            counts.rows_garbled += 1
            counts.rows_garbled_delivered += garbled.is_delivered
            counts.rows_reading_null += reads_null
        counts.rows_differing += bool(garbled.differs)
        self.result.keep(garbled)

    def states(self, step: Step, slots: StepSlots, tags: Tensor, differing: set[tuple[int, int]] | None) -> None:
        """A wrong state makes each of the part's queries wrong."""
        counts = self.result.counts
        for which, number in enumerate(step.state_parts):
            part = step.work.parts[number]
            expected, found = int(step.state_expected[which]), int(tags[which])
            is_null = int(slots.state_reads[which]) < self.compiled.page
            if expected != found:
                counts.tokens_null += is_null
                counts.tokens_wrong += not is_null
            for query in range(part.start, part.start + part.tokens):
                differs = None if differing is None else (number, query) in differing
                garbled = Garbled(step.op, number, query, part.start, expected, found, is_null, part.is_delivered, True, differs)
                if expected != found:
                    self._row(garbled, is_null)
                elif differs:
                    self._row(replace(garbled, position=-1), False)

    def store(self, store: Move, tags: Tensor, differs: bool | None) -> None:
        """What a STORE brought to the host."""
        wrong = (tags != store.tags).nonzero().flatten().tolist()
        counts = self.result.counts
        counts.stores_wrong += 1
        counts.store_slots_wrong += len(wrong)
        if not wrong:
            self.result.keep(Garbled(store.op, -1, -1, -1, 0, 0, False, True, False, differs))
            return
        first = wrong[0]
        is_null = int(store.slots[first]) < self.compiled.page
        self.result.keep(
            Garbled(store.op, -1, -1, first, int(store.tags[first]), int(tags[first]), is_null, True, first in store.states, differs)
        )


def states_differing(step: Step, outputs: Tensor, numbers: StepNumbers) -> set[tuple[int, int]]:
    """(part, query) whose state, after the query's token, differs."""
    found = set()
    for which, number in enumerate(step.state_parts):
        part = step.work.parts[number]
        span = slice(1, part.tokens + 1)
        found |= {(number, part.start + token) for token in rows_differing(outputs[which, span], numbers.states[which, span])}
    return found
