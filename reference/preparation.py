"""What the device does at the start of a step, before any layer runs: zero fresh blocks, copy blocks that a hit used in part.

A hit that ends within a block cannot put the block into the request's table: its owner, or another hit, may fill the rest with other
tokens. So the request gets a fresh block, and the cached one is copied into it (copy-on-write). The source must not be given to anyone
else until that has run, though the request does not hold it: the copy itself holds it, until its step is processed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from settled.model.events import PerGroup
from settled.reference.free_queue import KVCacheBlock
from settled.reference.pool import BlockPool


class BlockCopy(NamedTuple):
    """`source` is copied into `target` for the layers of `group`; `holder` is who holds the source, in the trace."""

    holder: str
    group: int
    source: KVCacheBlock
    target: KVCacheBlock


PreparationState = tuple[Sequence[int], Sequence[BlockCopy]]


class StepPreparation:
    """Copies of the step that is being made up, and of those that are unprocessed. The pool lists what is to be zeroed."""

    def __init__(self, pool: BlockPool) -> None:
        self.pool = pool
        self._pending: list[BlockCopy] = []
        self._in_flight: dict[int, list[BlockCopy]] = {}
        self._owed: dict[str, list[int]] = {}  # blocks, by id, that a request's own next step begins by zeroing

    def hold_source(self, holder: str, source: KVCacheBlock) -> None:
        """Takes the source out of the free queue, before any fresh block is taken from it."""
        self.pool.touch([source])
        if self.pool.recorder is not None:
            self.pool.recorder.hold(holder, [source.block_id], kind="copy")

    def copy(self, holder: str, group: int, source: KVCacheBlock, target: KVCacheBlock) -> None:
        """The step that is being made up begins by this copy; hold_source has been called."""
        self._pending.append(BlockCopy(holder, group, source, target))
        if target.block_id in self.pool.to_zero:
            self.pool.to_zero.remove(target.block_id)  # every byte of it is copied

    def keep_bytes(self, blocks: PerGroup) -> None:
        """A load writes these fresh blocks: zeroing them would race with it."""
        if self.pool.to_zero:
            loaded = set().union(*blocks)
            self.pool.to_zero[:] = [block for block in self.pool.to_zero if block not in loaded]

    def zero_in_own_step(self, request_id: str, block_ids: Sequence[int]) -> None:
        """Zeroes blocks that the request has had for a while. The request's end does not wait for a step of others."""
        self._owed.setdefault(request_id, []).extend(block_ids)

    def forget(self, request_id: str) -> None:
        """The request gives its blocks back: whoever gets them next sees to them."""
        self._owed.pop(request_id, None)

    def dispatch(self, step: int, sequence: int, request_ids: Iterable[str]) -> None:
        """The step of these requests goes to the device. `step` is the number in the trace, `sequence` counts steps without gaps."""
        if self._owed:
            for request_id in request_ids:
                self.pool.to_zero.extend(self._owed.pop(request_id, ()))
        if self.pool.to_zero:
            if self.pool.recorder is not None:
                self.pool.recorder.zero(step, self.pool.to_zero)
            self.pool.to_zero.clear()
        if self._pending:
            if self.pool.recorder is not None:
                for copy in self._pending:
                    self.pool.recorder.copy(step, copy.group, copy.source.block_id, copy.target.block_id)
            self._in_flight[sequence] = self._pending
            self._pending = []

    def processed(self, sequence: int) -> None:
        """The step has run: nobody needs the sources any more."""
        if not self._in_flight:
            return
        for copy in self._in_flight.pop(sequence, ()):
            freed = self.pool.free_blocks([copy.source])
            if self.pool.recorder is not None:
                self.pool.recorder.drop(copy.holder, [copy.source.block_id], [block.block_id for block in freed])

    def held_blocks(self) -> list[KVCacheBlock]:
        """The sources of copies that have not run for certain, once for each."""
        copies = [*self._pending, *(copy for copies in self._in_flight.values() for copy in copies)]
        return [copy.source for copy in copies]

    # ---- going back --------------------------------------------------------------------------------------------------

    def save(self) -> PreparationState:
        """What `restore` needs to forget what has been added since: nothing is owed while a step is made up."""
        return tuple(self.pool.to_zero), tuple(self._pending)

    def restore(self, state: PreparationState) -> None:
        to_zero, pending = state
        self.pool.to_zero[:] = to_zero
        self._pending[:] = pending
