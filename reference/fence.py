"""The fence: blocks of a whole request wait here while a step that was scheduled for it may still write them.

A prune frees what no step needs; a finish, an abort and a preemption free what steps in flight do need: they run on and write
into the request's blocks, and a connector that got one of them would see its load overwritten.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from settled.reference.managers import TableEntries


class DeferredFree(NamedTuple):
    """The tables that a request gave up, per group."""

    request_id: str
    tables: tuple[TableEntries, ...]


class Fence:
    """Deferred frees, by the sequence number of the last step that carries the request. Steps are processed in order.

    vLLM keys its queue by the last step that anything was scheduled in, which frees later; the request's own last step is
    the last that can write its blocks. One step carries at most `max_num_seqs` requests, which bounds each entry.
    """

    def __init__(self, *, max_frees_per_step: int) -> None:
        self.max_frees_per_step = max_frees_per_step
        self._deferred: dict[int, list[DeferredFree]] = {}
        self._processed = 0

    def defer(self, sequence: int, request_id: str, tables: tuple[TableEntries, ...]) -> None:
        """Keeps the blocks until step `sequence` has been processed."""
        assert sequence > self._processed, f"step {sequence} has been processed: nothing to wait for"
        frees = self._deferred.setdefault(sequence, [])
        frees.append(DeferredFree(request_id, tables))
        assert len(frees) <= self.max_frees_per_step

    def release(self, sequence: int) -> list[DeferredFree]:
        """The frees that waited for step `sequence`, oldest first; call it once a processed step, in order."""
        assert sequence == self._processed + 1, f"step {sequence} is processed after step {self._processed}"
        self._processed = sequence
        return self._deferred.pop(sequence, [])

    def __iter__(self) -> Iterator[DeferredFree]:
        """Everything that still waits, by the step it waits for."""
        for sequence in sorted(self._deferred):
            yield from self._deferred[sequence]

    def __len__(self) -> int:
        return sum(map(len, self._deferred.values()))
