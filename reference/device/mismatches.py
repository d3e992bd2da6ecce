"""An `Outcome` in the words of a replay: each garbled row and store, and the first position that it finds wrong."""

from __future__ import annotations

from collections.abc import Iterator

from settled.reference.device.compiled import CompiledLog, Step
from settled.reference.device.ops import KeysPart, LaunchKind
from settled.reference.device.outcome import Outcome
from settled.reference.device.results import Garbled
from settled.reference.device.rows import moves_of


def garbled_of(outcome: Outcome, compiled: CompiledLog, contiguous: Outcome | None = None) -> list[Garbled]:
    """In the order of the log, rows of attention first. `contiguous`: the same rows over contiguous memory on the same device, with which
    outputs are compared; what differs although its tags are right is garbled too.
    """
    steps = {step.op: step for step in compiled.steps}
    return [*_rows(outcome, steps, contiguous), *_states(outcome, steps, contiguous), *_stores(outcome, compiled)]


def _rows(outcome: Outcome, steps: dict[int, Step], contiguous: Outcome | None) -> Iterator[Garbled]:
    differing = None if contiguous is None else set(outcome.rows_differing(contiguous))
    first, found, is_null = outcome.first.tolist(), outcome.found.tolist(), outcome.is_null.tolist()
    wrong = set((outcome.wrong > 0).nonzero().flatten().tolist())
    for row in sorted(wrong | (differing or set())):
        op, number, query = outcome.rows.keys[row]
        part = steps[op].work.parts[number]
        assert isinstance(part, KeysPart)
        expected = part.expected[first[row] - part.first] if row in wrong else 0
        differs = None if differing is None else row in differing
        yield Garbled(op, number, query, first[row], expected, found[row], bool(is_null[row]), part.is_delivered, False, differs)


def _states(outcome: Outcome, steps: dict[int, Step], contiguous: Outcome | None) -> Iterator[Garbled]:
    """A wrong state makes each of the part's queries wrong."""
    rows = outcome.rows
    differing = None if contiguous is None else set(outcome.state_rows_differing(contiguous))
    for which, (op, number) in enumerate(rows.states):
        step, is_wrong = steps[op], bool(outcome.state_wrong[which] > 0)
        part = step.work.parts[number]
        expected = int(step.state_expected[which - rows.states_of[op].start])
        found, is_null = int(outcome.state_found[which]), bool(outcome.state_null[which])
        for token in range(part.tokens):
            differs = None if differing is None else rows.state_rows[which] + 1 + token in differing
            position = part.start if is_wrong else -1
            if is_wrong or differs:
                yield Garbled(op, number, part.start + token, position, expected, found, is_null, part.is_delivered, True, differs)


def _stores(outcome: Outcome, compiled: CompiledLog) -> Iterator[Garbled]:
    for which, store in enumerate(moves_of(compiled, LaunchKind.STORE)):
        first, differs = int(outcome.store_first[which]), bool(outcome.store_differing[which])
        if first >= 0:
            is_null, found = int(store.slots[first]) < compiled.page, int(outcome.store_found[which])
            yield Garbled(store.op, -1, -1, first, int(store.tags[first]), found, is_null, True, first in store.states, differs)
        elif differs:
            yield Garbled(store.op, -1, -1, -1, 0, 0, False, True, False, True)
