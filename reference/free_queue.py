"""KV-cache blocks and the queue of free ones: a doubly linked list, because a prefix hit takes a block out of its middle."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from settled.model.events import NULL_BLOCK


class PoolError(RuntimeError):
    """Someone asked the pool for what would corrupt it: a double free, a free of a free block, more blocks than there are."""


class BlockHash(NamedTuple):
    """What a block holds: the chained hash of its tokens and all before them, for the layers of one group."""

    group: int
    value: int


class KVCacheBlock:
    """One block of the pool. `ref_cnt` counts the table entries, and other holders, that refer to it; `block_hash` is set while it is
    cached, `partial_hash` while it is cached for the first of its tokens alone.
    """

    __slots__ = ("block_hash", "block_id", "next_free_block", "partial_hash", "prev_free_block", "ref_cnt")

    def __init__(self, block_id: int) -> None:
        self.block_id = block_id
        self.ref_cnt = 0
        self.block_hash: BlockHash | None = None
        self.partial_hash: BlockHash | None = None
        self.prev_free_block: KVCacheBlock | None = None
        self.next_free_block: KVCacheBlock | None = None

    @property
    def is_null(self) -> bool:
        return self.block_id == NULL_BLOCK

    def __repr__(self) -> str:
        return f"KVCacheBlock({self.block_id}, ref_cnt={self.ref_cnt}, block_hash={self.block_hash})"


class FreeKVCacheBlockQueue:
    """Free blocks, the next to be handed out first. Every operation on one block takes constant time.

    One sentinel closes the list into a ring, so that no operation has to ask whether it stands at an end.
    """

    def __init__(self, blocks: Sequence[KVCacheBlock]) -> None:
        self.num_free_blocks = 0
        self._sentinel = KVCacheBlock(-1)
        self._sentinel.prev_free_block = self._sentinel.next_free_block = self._sentinel
        self.append_n(blocks)

    def popleft(self) -> KVCacheBlock:
        """Takes the block at the front. Raises PoolError when there is none."""
        block = self._sentinel.next_free_block
        if block is None or block is self._sentinel:
            raise PoolError("no free blocks are left")
        self.remove(block)
        return block

    def popleft_n(self, count: int) -> list[KVCacheBlock]:
        """Takes `count` blocks from the front, or raises PoolError and takes none."""
        if count > self.num_free_blocks:
            raise PoolError(f"{count} blocks were asked for, {self.num_free_blocks} are free")
        blocks: list[KVCacheBlock] = []
        block = self._sentinel.next_free_block
        for _ in range(count):
            assert block is not None
            blocks.append(block)
            after = block.next_free_block
            block.prev_free_block = block.next_free_block = None
            block = after
        assert block is not None
        self._sentinel.next_free_block, block.prev_free_block = block, self._sentinel
        self.num_free_blocks -= count
        return blocks

    def remove(self, block: KVCacheBlock) -> None:
        """Takes a block out of wherever it stands. Raises PoolError when it is not in the queue."""
        before, after = block.prev_free_block, block.next_free_block
        if before is None or after is None:
            raise PoolError(f"block {block.block_id} is not in the free queue")
        before.next_free_block, after.prev_free_block = after, before
        block.prev_free_block = block.next_free_block = None
        self.num_free_blocks -= 1

    def prepend_n(self, blocks: Iterable[KVCacheBlock]) -> None:
        """Puts blocks at the front, in the order given: the first of them is handed out next."""
        place = self._sentinel
        for block in blocks:
            self._insert_after(place, block)
            place = block

    def append_n(self, blocks: Iterable[KVCacheBlock]) -> None:
        """Puts blocks at the tail, in the order given: the last of them is handed out last."""
        for block in blocks:
            assert self._sentinel.prev_free_block is not None
            self._insert_after(self._sentinel.prev_free_block, block)

    def _insert_after(self, place: KVCacheBlock, block: KVCacheBlock) -> None:
        if block.next_free_block is not None:
            raise PoolError(f"block {block.block_id} is in the free queue already")
        after = place.next_free_block
        assert after is not None
        block.prev_free_block, block.next_free_block = place, after
        place.next_free_block = after.prev_free_block = block
        self.num_free_blocks += 1

    def __iter__(self) -> Iterator[KVCacheBlock]:
        """The free blocks from the front to the tail."""
        block = self._sentinel.next_free_block
        while block is not None and block is not self._sentinel:
            yield block
            block = block.next_free_block
