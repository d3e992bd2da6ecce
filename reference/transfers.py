"""Transfers under way: loads into pool blocks and stores from them, worker by worker, and the blocks that a store pins."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from settled.model.events import After, PerGroup
from settled.reference.free_queue import KVCacheBlock
from settled.reference.pool import BlockPool
from settled.reference.request import Request


class TransferError(RuntimeError):
    """A completion of something that is not under way, or that cannot have failed like this; the message says which."""


class Completion(NamedTuple):
    """A worker is through with a job. `handle` says which worker, from 0; None where it does not matter.

    `failed`: per group the ids of blocks that hold nothing valid. `cancelled`: nothing that it was to write is valid.
    """

    job: int
    handle: int | None = None
    failed: PerGroup | None = None
    cancelled: bool = False


class TransferBlocks(NamedTuple):
    """What a transfer reads or writes: per group the table indices and the blocks there, in table order, null left out."""

    indices: PerGroup
    blocks: tuple[tuple[KVCacheBlock, ...], ...]

    @property
    def ids(self) -> PerGroup:
        return tuple([tuple([block.block_id for block in blocks]) for blocks in self.blocks])

    def __bool__(self) -> bool:
        return any(self.indices)


@dataclass(slots=True, eq=False)
class Transfer:
    """A load or store. `handles` workers move a part of it each; it is over with the last. `step`: a synchronous load runs in it.

    `start_token` is the first that a load brings. `failed`: per group the table indices of blocks that hold nothing valid.
    """

    job: int
    request: Request
    is_load: bool
    where: TransferBlocks
    handles: int
    start_token: int
    step: int | None
    pins: bool
    over: set[int] = field(default_factory=set)
    num_over: int = 0
    failed: list[set[int]] = field(default_factory=list)
    cancelled: bool = False

    @property
    def has_failed(self) -> bool:
        return self.cancelled or any(self.failed)

    def first_invalid_token(self, block_sizes: Sequence[int]) -> int:
        """The position before which all that a failed load should have brought is there, in tokens."""
        if self.cancelled:
            return self.start_token
        return min(min(indices) * size for indices, size in zip(self.failed, block_sizes, strict=True) if indices)


class Transfers:
    """Jobs by number, counted from 0 in the order in which they start."""

    def __init__(self, pool: BlockPool) -> None:
        self.pool = pool
        self.under_way: dict[int, Transfer] = {}
        self.num_started = 0
        self.num_reported = 0  # handles that are over

    def start(
        self,
        request: Request,
        where: TransferBlocks,
        *,
        is_load: bool,
        handles: int = 1,
        start_token: int = 0,
        step: int | None = None,
        pins: bool = False,
        after: tuple[After, ...] = (),
    ) -> Transfer:
        """From here on the connector may touch the blocks. With `pins` they stay in memory whatever becomes of the request."""
        assert where, "a transfer moves at least one block"
        if handles < 1:
            raise TransferError(f"a transfer has at least 1 handle, not {handles}")
        transfer = Transfer(self.num_started, request, is_load, where, handles, start_token, step, pins)
        transfer.failed = [set() for _ in where.indices]
        self.num_started += 1
        self.under_way[transfer.job] = transfer
        if pins:
            self._pin(transfer)
        if self.pool.recorder is not None:
            record = self.pool.recorder.load if is_load else self.pool.recorder.store
            record(transfer.job, request.request_id, where.ids, handles, step, after)
        return transfer

    def check(self, completion: Completion) -> Transfer:
        """The transfer of a completion. Raises TransferError for one that is late, doubled, or about other blocks."""
        transfer = self.under_way.get(completion.job)
        if transfer is None:
            why = "it is over already" if 0 <= completion.job < self.num_started else "no such job was started"
            raise TransferError(f"job {completion.job} is not under way: {why}")
        kind = "load" if transfer.is_load else "store"
        if completion.handle is not None:
            if not 0 <= completion.handle < transfer.handles:
                raise TransferError(f"handle {completion.handle} of {kind} {completion.job}: it has handles 0 to {transfer.handles - 1}")
            if completion.handle in transfer.over:
                raise TransferError(f"handle {completion.handle} of {kind} {completion.job} is over already")
        if completion.failed is not None:
            if len(completion.failed) != len(transfer.where.ids):
                raise TransferError(
                    f"{kind} {completion.job}: failed blocks of {len(completion.failed)} groups, not {len(transfer.where.ids)}"
                )
            foreign = [set(failed) - set(ids) for failed, ids in zip(completion.failed, transfer.where.ids, strict=True)]
            if any(foreign):
                raise TransferError(f"{kind} {completion.job} does not touch blocks {sorted(set().union(*foreign))}")
        return transfer

    def handle_over(self, completion: Completion) -> Transfer | None:
        """Takes in a completion; the transfer if it is over with it. Raises TransferError, and then nothing has changed."""
        transfer = self.check(completion)
        transfer.num_over += 1
        self.num_reported += 1
        if completion.handle is not None:
            transfer.over.add(completion.handle)
        if completion.failed is not None:
            for indices, failed, at in zip(transfer.failed, completion.failed, _places(transfer.where), strict=True):
                indices.update(at[block] for block in failed)
        transfer.cancelled |= completion.cancelled
        if self.pool.recorder is not None:
            record = self.pool.recorder.loaded if transfer.is_load else self.pool.recorder.stored
            record(completion.job, completion.handle, completion.failed, completion.cancelled)
        if transfer.num_over < transfer.handles:
            return None
        del self.under_way[transfer.job]
        if transfer.pins:
            self._unpin(transfer)
        return transfer

    def pinned_blocks(self) -> list[KVCacheBlock]:
        """The blocks that stores pin, once for each reference."""
        return [block for transfer in self.under_way.values() if transfer.pins for blocks in transfer.where.blocks for block in blocks]

    def _pin(self, transfer: Transfer) -> None:
        blocks = [block for group in transfer.where.blocks for block in group]
        self.pool.touch(blocks)
        if self.pool.recorder is not None:
            self.pool.recorder.hold(f"store {transfer.job}", [block.block_id for block in blocks])

    def _unpin(self, transfer: Transfer) -> None:
        blocks = [block for group in transfer.where.blocks for block in reversed(group)]
        freed = self.pool.free_blocks(blocks)
        if self.pool.recorder is not None:
            ids = [block.block_id for block in blocks]
            self.pool.recorder.drop(f"store {transfer.job}", ids, [block.block_id for block in freed])


def _places(where: TransferBlocks) -> list[Mapping[int, int]]:
    """Per group the table index of each block."""
    return [dict(zip(ids, indices, strict=True)) for ids, indices in zip(where.ids, where.indices, strict=True)]
