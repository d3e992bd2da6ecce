"""Deferred frees: tables, and blocks of copies, that wait in vLLM's queue until a step is processed (0.24 on).

The queue is mirrored entry by entry, since what comes out of it is a list of blocks that names nobody.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any

from settled.model.events import Release
from settled.reference.engines.vllm.recording_holders import COPIES, Holders
from settled.reference.engines.vllm.recording_live import KnownRequest, Recording


@dataclass(slots=True, eq=False)
class FencedTables:
    """What a request gave up: (group, index, block) in the order in which it was taken out. No request: blocks held for copies.

    `holder`: since a trace that began in mid-run, which could not say whose table it is, a holder has the blocks.
    """

    known: KnownRequest | None
    entries: list[tuple[int, int, int]] = field(default_factory=list)
    holder: str | None = None


class FenceRecorder:
    """Mirrors `Scheduler.deferred_frees`."""

    def __init__(self, recording: Recording, holders: Holders) -> None:
        self.fenced: deque[FencedTables] = deque()
        self.is_draining = False
        self.is_freeing_copies = False
        self._recording = recording
        self._holders = holders
        self._popped: list[tuple[int, int, int]] = []
        patches, scheduler = recording.patches, recording.scheduler
        patches.wrap_if_present(scheduler, "_free_request_blocks", self._around_free_request_blocks)
        patches.wrap_if_present(scheduler, "_free_cow_retained_blocks", self._around_free_cow_retained_blocks)
        patches.wrap_if_present(scheduler, "_drain_deferred_frees", self._around_drain)

    def popped(self, known: KnownRequest, group: int) -> None:
        """A manager hands out a table without freeing it."""
        self._popped += [(group, index, block) for block, index in known.tables[group].items()]
        known.tables[group].clear()

    def _around_free_request_blocks(self, original: Any) -> Any:
        def free_request_blocks(request: Any) -> None:
            queue = self._recording.scheduler.deferred_frees
            length = len(queue)
            self._popped = []
            original(request)
            if len(queue) > length:
                known = self._recording.requests.by_id[request.request_id]
                known.num_fenced += 1
                self.fenced.append(FencedTables(known, self._popped))

        return free_request_blocks

    def _around_free_cow_retained_blocks(self, original: Any) -> Any:
        def free_cow_retained_blocks(blocks: Any, fence_seq: int) -> None:
            queue = self._recording.scheduler.deferred_frees
            length = len(queue)
            self.is_freeing_copies = True
            try:
                original(blocks, fence_seq)
            finally:
                self.is_freeing_copies = False
            if len(queue) > length:
                self.fenced.append(FencedTables(None))

        return free_cow_retained_blocks

    def _around_drain(self, original: Any) -> Any:
        def drain_deferred_frees() -> None:
            self.is_draining = True
            try:
                original()
            finally:
                self.is_draining = False

        return drain_deferred_frees

    def drained(self, blocks: list[int], freed: set[int]) -> None:
        """The oldest entry's blocks lose their references; `freed` are those with none left."""
        oldest = self.fenced.popleft() if self.fenced else FencedTables(None)
        known = oldest.known
        if known is None or oldest.holder is not None:
            if not self._holders.drop(oldest.holder or COPIES, blocks, freed):
                self._recording.unattributed.append(f"deferred free of blocks {blocks}, which nobody gave up")
        else:
            if sorted(blocks) != sorted([block for _, _, block in oldest.entries]):
                self._recording.unattributed.append(f"deferred free of blocks {blocks}, where {known.name} gave up {oldest.entries}")
            self._release(known, oldest.entries, freed)
        if known is not None:
            known.num_fenced -= 1
            self._recording.requests.forget_if_gone(known)

    def _release(self, known: KnownRequest, entries: list[tuple[int, int, int]], freed: set[int]) -> None:
        """A release a group. A block that two groups hold is freed by the last of them."""
        last_group = {block: group for group, _, block in entries}
        for group in dict.fromkeys([group for group, _, _ in entries]):
            of_group = [(index, block) for of, index, block in entries if of == group]
            self._recording.emit(
                Release(
                    request=known.name,
                    group=group,
                    indices=tuple([index for index, _ in of_group]),
                    blocks=tuple([block for _, block in of_group]),
                    cause="deferred",
                    freed=tuple([block for _, block in of_group if block in freed and last_group[block] == group]),
                )
            )
