"""The fence: blocks of a whole request wait here while a step that was scheduled for it, or a transfer, may still touch them.

A prune frees what no step needs; a finish, an abort and a preemption free what steps in flight do need: they run on and write
into the request's blocks, and a connector that got one of them would see its load overwritten. A load under way writes into
them itself, and the store of a finished request reads them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from settled.reference.managers import TableEntries


@dataclass(slots=True, eq=False)
class DeferredFree:
    """The tables that a request gave up, per group; `sequence`, the step, and `jobs`, the transfers that they still wait for."""

    request_id: str
    tables: tuple[TableEntries, ...]
    sequence: int
    jobs: set[int]


class Fence:
    """Deferred frees. One waits for the last step that carries its request, by sequence number (0: for none), and for transfers.

    vLLM keys its queue by the last step that anything was scheduled in, which frees later; the request's own last step is
    the last that can write its blocks. Steps are processed in order. One step carries at most `max_num_seqs` requests, which
    bounds the frees that wait for it.
    """

    def __init__(self, *, max_frees_per_step: int) -> None:
        self.max_frees_per_step = max_frees_per_step
        self._waiting: dict[int, DeferredFree] = {}  # by number, oldest first
        self._by_step: dict[int, list[int]] = {}
        self._by_job: dict[int, list[int]] = {}
        self._num_deferred = 0
        self._processed = 0

    def defer(self, request_id: str, tables: tuple[TableEntries, ...], *, sequence: int, jobs: Iterable[int] = ()) -> None:
        """Keeps the blocks until step `sequence` has been processed and the transfers are over."""
        free = DeferredFree(request_id, tables, sequence, set(jobs))
        assert sequence > self._processed or (sequence == 0 and free.jobs), f"{request_id}: nothing to wait for"
        number = self._num_deferred
        self._num_deferred += 1
        self._waiting[number] = free
        if sequence:
            of_step = self._by_step.setdefault(sequence, [])
            of_step.append(number)
            assert len(of_step) <= self.max_frees_per_step
        for job in free.jobs:
            self._by_job.setdefault(job, []).append(number)

    def step_processed(self, sequence: int) -> list[DeferredFree]:
        """The frees that waited for step `sequence` last, oldest first; call it once a processed step, in order."""
        assert sequence == self._processed + 1, f"step {sequence} is processed after step {self._processed}"
        self._processed = sequence
        numbers = self._by_step.pop(sequence, None)
        return self._take_ready(numbers) if numbers else []

    def transfer_over(self, job: int) -> list[DeferredFree]:
        """The frees that waited for the transfer last, oldest first."""
        numbers = self._by_job.pop(job, [])
        for number in numbers:
            self._waiting[number].jobs.remove(job)
        return self._take_ready(numbers)

    def _take_ready(self, numbers: list[int]) -> list[DeferredFree]:
        ready = [number for number in numbers if not self._waiting[number].jobs and self._waiting[number].sequence <= self._processed]
        return [self._waiting.pop(number) for number in ready]

    def __iter__(self) -> Iterator[DeferredFree]:
        """Everything that still waits, oldest first."""
        yield from self._waiting.values()

    def __len__(self) -> int:
        return len(self._waiting)
