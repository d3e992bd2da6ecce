"""What TokenSpeed's plans tell about blocks. Its scheduler has no hooks: a plan has the block tables of the requests that it runs, whole,
and the scheduler counts the blocks that are in use. What changes in between is found by comparing.

A change is placed where it is seen first: when a plan is made, which is when tables are pruned and extended, or when an event has been
taken in, which is when whole tables go. What leaves no mark in either, such as entries of the prefix cache, is not recorded.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence

from settled.model.events import NULL_BLOCK, Allocate, PerGroup, Release, ReleaseCause, Touch
from settled.reference.engines.protocol import Sink

_PADDING = -1  # behind the last entry of the shorter tables of a batch


def entries(row: Sequence[int]) -> tuple[int, ...]:
    """A table without the padding of its batch."""
    return tuple([block for block in row if block != _PADDING])


class Tables:
    """The tables of all requests that hold blocks, and the events that say how they change."""

    def __init__(self, num_groups: int, sink: Sink | None) -> None:
        self.num_groups = num_groups
        self._sink = sink
        self.of: dict[str, PerGroup] = {}
        self._references: Counter[int] = Counter()

    @property
    def num_held(self) -> int:
        """Blocks that some request holds."""
        return len(+self._references)

    def num_held_after(self, told: Mapping[str, PerGroup], without: Collection[str]) -> int:
        """Blocks that will be held once these requests have the tables that a plan told of, and others have none."""
        tables = {name: table for name, table in {**self.of, **told}.items() if name not in without}
        return len({block for groups in tables.values() for table in groups for block in table} - {NULL_BLOCK})

    def release_gone(self, request_id: str, tables: PerGroup) -> None:
        """Gives up what a plan's tables of a request no longer have: pruned blocks, and those replaced by others with the same content.

        A block is replaced when another request has computed the same tokens, and when a partial last block enters the prefix cache: the
        request goes on in a copy. The trace has one cause for all of them.
        """
        for group, (former, table) in enumerate(zip(self.of.get(request_id, ((),) * self.num_groups), tables, strict=True)):
            gone = [index for index, block in enumerate(former) if block not in (NULL_BLOCK, _at(table, index))]
            self._release(request_id, group, gone, former, "window")

    def take_new(self, request_id: str, tables: PerGroup, fresh: frozenset[int]) -> None:
        """Takes what a plan's tables of a request have and did not have. `fresh`: blocks that left the pool for this plan."""
        formers = self.of.get(request_id, ((),) * self.num_groups)
        for group, (former, table) in enumerate(zip(formers, tables, strict=True)):
            for index, block in enumerate(table):
                if block not in (NULL_BLOCK, _at(former, index)):
                    self._references[block] += 1
                    kind = Allocate if block in fresh else Touch
                    self._emit(kind(request=request_id, group=group, first_index=index, blocks=(block,)))
        self.of[request_id] = tables

    def release_all(self, request_id: str, cause: ReleaseCause) -> None:
        """Gives up all tables of a request."""
        for group, table in enumerate(self.of.pop(request_id, ())):
            self._release(request_id, group, [index for index, block in enumerate(table) if block != NULL_BLOCK], table, cause)

    def _release(self, request_id: str, group: int, indices: Sequence[int], table: Sequence[int], cause: ReleaseCause) -> None:
        if not indices:
            return
        blocks = tuple([table[index] for index in indices])
        freed = []
        for block in blocks:
            self._references[block] -= 1
            if not self._references[block]:
                del self._references[block]
                freed.append(block)
        self._emit(Release(request=request_id, group=group, indices=tuple(indices), blocks=blocks, cause=cause, freed=tuple(freed)))

    def _emit(self, event: Allocate | Touch | Release) -> None:
        if self._sink is not None:
            self._sink(event)


def _at(table: Sequence[int], index: int) -> int:
    return table[index] if index < len(table) else NULL_BLOCK
