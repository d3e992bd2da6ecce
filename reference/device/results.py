"""What a replay found wrong, as plain values: counts, and the first wrong token of each garbled row.

A row is a query of a part of a step: (launch, part, query). It is garbled when a key or the state that it reads is not what memory that
never loses anything would hold.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from settled.reference.device.tags import describe

TOLERANCE = 1e-2


@dataclass(slots=True, order=True)
class Garbled:
    """A row, or a store (`part` and `query` are then -1), and the first position that it finds wrong.

    `op`: index in the log. `query` and `position` in tokens from the beginning of the request; of a state, `position` is how many tokens
    it should be made of. Of a store, `position` counts slots in the order in which its work names them. `is_null`: read through a null
    table entry. `differs`: the output (of a store, the bytes) differs bit for bit; None where no numbers are computed. A row whose tags
    are right and whose output differs all the same has position -1.
    """

    op: int
    part: int
    query: int
    position: int
    expected: int
    found: int
    is_null: bool
    is_delivered: bool
    is_state: bool
    differs: bool | None = None


@dataclass(slots=True)
class Counts:
    """All of a replay. Rows as above; tokens are keys and states, each counted once a part.

    `tokens_wrong`: found wrong in a block; `tokens_null`: read through a null table entry, and so counted apart. `rows_differing`: outputs
    that differ from the contiguous one bit for bit; `rows_within_tolerance`: those of attention among them that a relative tolerance would
    pass (norm of the difference at most TOLERANCE times the norm of the right output). `stores_wrong`: STORE launches that found something
    else; `store_slots_wrong`: their slots.
    """

    steps: int = 0
    rows: int = 0
    rows_garbled: int = 0
    rows_garbled_delivered: int = 0
    rows_reading_null: int = 0
    rows_differing: int = 0
    rows_within_tolerance: int = 0
    tokens_wrong: int = 0
    tokens_null: int = 0
    stores_wrong: int = 0
    store_slots_wrong: int = 0

    @property
    def is_clean(self) -> bool:
        return not (self.rows_garbled or self.rows_differing or self.stores_wrong)


@dataclass(slots=True)
class Result:
    """`garbled`: up to `limit` of the rows and stores, in the order of the replay; `counts` has all."""

    counts: Counts = field(default_factory=Counts)
    garbled: list[Garbled] = field(default_factory=list)
    limit: int = 100

    def keep(self, found: Garbled) -> None:
        if len(self.garbled) < self.limit:
            self.garbled.append(found)


def sentence(garbled: Garbled, describe_tag: Callable[[int], str] = describe) -> str:
    """For people: what stood where. `CompiledLog.describe` knows states too."""
    where = f"launch {garbled.op}"
    if garbled.part < 0:
        what = f"a store's slot {garbled.position}"
    elif garbled.is_state:
        what = f"the state of {garbled.position} tokens, read by query {garbled.query} of part {garbled.part},"
    else:
        what = f"position {garbled.position}, read by query {garbled.query} of part {garbled.part},"
    if garbled.position < 0:
        return f"{where}: the output of query {garbled.query} of part {garbled.part} differs, its tags are right"
    through = " through a null entry" if garbled.is_null else ""
    return f"{where}: {what} should hold {describe_tag(garbled.expected)}; found{through}: {describe_tag(garbled.found)}"
