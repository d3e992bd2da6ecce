"""Rows of a whole log, numbered: steps in the order of the log, in each its rows. Back-ends tell what a row read at its number."""

from __future__ import annotations

from dataclasses import dataclass, field

from settled.reference.device.compiled import CompiledLog, Move
from settled.reference.device.ops import KeysPart, LaunchKind


@dataclass(slots=True)
class Rows:
    """`keys`: (op, part, query) of each row of attention. `states`: (op, part) of each part that reads a state; its numbers are the row
    `state_rows[which]`, the state read, and one for each of its tokens behind it. `stores`: the op of each STORE. `of_step`, `states_of`:
    which of `keys` and of `states` are an op's.
    """

    keys: list[tuple[int, int, int]] = field(default_factory=list)
    states: list[tuple[int, int]] = field(default_factory=list)
    state_rows: list[int] = field(default_factory=list)
    stores: list[int] = field(default_factory=list)
    of_step: dict[int, range] = field(default_factory=dict)
    states_of: dict[int, range] = field(default_factory=dict)
    num_state_rows: int = 0


def rows_of(compiled: CompiledLog) -> Rows:
    """The rows of a log."""
    rows = Rows()
    for step in compiled.steps:
        first_key, first_state = len(rows.keys), len(rows.states)
        for number, part in enumerate(step.work.parts):
            if isinstance(part, KeysPart):
                rows.keys += [(step.op, number, query) for query in range(part.start, part.start + part.tokens)]
            else:
                rows.states.append((step.op, number))
                rows.state_rows.append(rows.num_state_rows)
                rows.num_state_rows += 1 + len(part.tags)
        rows.of_step[step.op] = range(first_key, len(rows.keys))
        rows.states_of[step.op] = range(first_state, len(rows.states))
    for op, kind in enumerate(compiled.kinds):
        if kind is LaunchKind.STORE:
            rows.stores.append(op)
    return rows


def moves_of(compiled: CompiledLog, kind: LaunchKind) -> list[Move]:
    """The LOADs or the STOREs, in the order of the log."""
    return [move for move, of_kind in zip(compiled.launches, compiled.kinds, strict=True) if isinstance(move, Move) and of_kind is kind]
