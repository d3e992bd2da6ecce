"""The block pool: who owns which block, in which order free blocks are reused, which of them the prefix cache knows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from settled.model.events import NULL_BLOCK, CacheEntry
from settled.reference.free_queue import BlockHash, FreeKVCacheBlockQueue, KVCacheBlock, PoolError
from settled.reference.recorder import Recorder

PRUNE_FENCE = "prune fence"  # who holds, in the trace, the pruned blocks that wait


class PoolState(NamedTuple):
    """All that a pool knows: references and hashes of each block, by block id; the free queue; who stands for which hash; what it keeps
    aside."""

    blocks: tuple[tuple[int, BlockHash | None, BlockHash | None], ...]
    free: tuple[KVCacheBlock, ...]
    cached: dict[BlockHash, tuple[KVCacheBlock, ...]]
    aside: dict[int, tuple[KVCacheBlock, ...]]


class BlockPool:
    """Blocks 1 to `num_blocks` - 1 can be owned; block 0 is the null block, which nobody owns and nobody frees.

    A free block that still has a hash can be hit, so it is reused last (it joins the tail of the free queue, the least
    recently used first); one without a hash is worth nothing and is reused first. The order is vLLM's.
    """

    def __init__(self, num_blocks: int, *, enable_caching: bool, recorder: Recorder | None = None) -> None:
        if num_blocks < 2:
            raise PoolError(f"a pool needs the null block and at least one more, not {num_blocks} blocks")
        self.num_blocks = num_blocks
        self.enable_caching = enable_caching
        self.recorder = recorder
        self.blocks = [KVCacheBlock(block_id) for block_id in range(num_blocks)]
        self.null_block = self.blocks[NULL_BLOCK]
        self.free_block_queue = FreeKVCacheBlockQueue(self.blocks[1:])
        # One hash can stand for several blocks: two requests may compute the same prefix at the same time.
        self._cached: dict[BlockHash, dict[int, KVCacheBlock]] = {}
        self.to_zero: list[int] = []  # fresh blocks, by id, that the next step begins by zeroing
        self.prunes_wait_for = 0  # the step, by sequence number, that must be processed before what is pruned now is free
        self._num_steps_processed = 0
        self._aside: dict[int, list[KVCacheBlock]] = {}  # pruned blocks by the step that they wait for

    def get_num_free_blocks(self) -> int:
        return self.free_block_queue.num_free_blocks

    def get_new_blocks(self, count: int) -> list[KVCacheBlock]:
        """`count` blocks with one reference each, their hashes evicted. Raises PoolError when fewer are free."""
        blocks = self.free_block_queue.popleft_n(count)
        for block in blocks:
            assert block.ref_cnt == 0, f"the free queue held {block}"
            assert block.block_id != NULL_BLOCK
            block.ref_cnt = 1
        if self.enable_caching:
            hashed = [block for block in blocks if block.block_hash is not None or block.partial_hash is not None]
            if hashed:
                self._evict(hashed)
        return blocks

    def touch(self, blocks: Iterable[KVCacheBlock]) -> None:
        """One more reference to each: a prefix hit. A block that was free leaves the free queue; null is passed over."""
        for block in blocks:
            if block.is_null:
                continue
            if block.ref_cnt == 0:
                self.free_block_queue.remove(block)
            block.ref_cnt += 1

    def free_blocks(self, ordered_blocks: Iterable[KVCacheBlock]) -> list[KVCacheBlock]:
        """Gives up one reference to each; null is passed over. Returns the blocks that went back to the pool.

        The order is that of reuse: the first block given is reused before the later ones of its sort (hashed or not).
        Raises PoolError when a block has no reference to give up.
        """
        reused_first: list[KVCacheBlock] = []
        reused_last: list[KVCacheBlock] = []
        for block in ordered_blocks:
            if block.block_id == NULL_BLOCK:
                continue
            left = block.ref_cnt = block.ref_cnt - 1
            if left < 0:
                block.ref_cnt = 0
                raise PoolError(f"block {block.block_id} is freed, but nobody owns it")
            if left == 0:
                keep = block.block_hash is not None or block.partial_hash is not None
                (reused_last if keep else reused_first).append(block)
        if reused_first:
            self.free_block_queue.prepend_n(reused_first)
        if reused_last:
            self.free_block_queue.append_n(reused_last)
        return reused_first + reused_last

    # ---- pruned blocks that wait -------------------------------------------------------------------------------------

    def free_pruned_blocks(self, ordered_blocks: Sequence[KVCacheBlock]) -> list[KVCacheBlock]:
        """Like free_blocks, for blocks that a prune took from a table; they are kept aside while they have to wait."""
        if self.prunes_wait_for <= self._num_steps_processed:
            return self.free_blocks(ordered_blocks)
        self._aside.setdefault(self.prunes_wait_for, []).extend(ordered_blocks)
        if self.recorder is not None:
            self.recorder.hold(PRUNE_FENCE, [block.block_id for block in ordered_blocks])
        return []

    def step_processed(self, sequence: int) -> None:
        """Step `sequence` has been processed, in order: what was kept aside for it goes back."""
        self._num_steps_processed = sequence
        blocks = self._aside.pop(sequence, None)
        if blocks is None:
            return
        freed = self.free_blocks(blocks)
        if self.recorder is not None:
            self.recorder.drop(PRUNE_FENCE, [block.block_id for block in blocks], [block.block_id for block in freed])

    def blocks_aside(self) -> list[KVCacheBlock]:
        """The pruned blocks that wait, once for each reference."""
        return [block for blocks in self._aside.values() for block in blocks]

    # ---- going back --------------------------------------------------------------------------------------------------

    def save(self) -> PoolState:
        """What `restore` needs to make the pool as it is now."""
        return PoolState(
            tuple([(block.ref_cnt, block.block_hash, block.partial_hash) for block in self.blocks]),
            tuple(self.free_block_queue),
            {block_hash: tuple(blocks.values()) for block_hash, blocks in self._cached.items()},
            {sequence: tuple(blocks) for sequence, blocks in self._aside.items()},
        )

    def restore(self, state: PoolState) -> None:
        """Makes the pool as it was when `state` was saved, the order of the free queue and of equal hashes included."""
        for block, saved in zip(self.blocks, state.blocks, strict=True):
            block.ref_cnt, block.block_hash, block.partial_hash = saved
            block.prev_free_block = block.next_free_block = None
        self.free_block_queue = FreeKVCacheBlockQueue(state.free)
        self._cached = {block_hash: {block.block_id: block for block in blocks} for block_hash, blocks in state.cached.items()}
        self._aside = {sequence: list(blocks) for sequence, blocks in state.aside.items()}

    # ---- prefix cache ------------------------------------------------------------------------------------------------

    def get_cached_block(self, block_hash: BlockHash) -> KVCacheBlock | None:
        """A block that holds the tokens of this hash; of several, the one cached first."""
        blocks = self._cached.get(block_hash)
        return next(iter(blocks.values())) if blocks else None

    def cache_block(self, block: KVCacheBlock, block_hash: BlockHash) -> None:
        """Lets later requests hit this block. It must be owned and must not have a hash yet."""
        assert self.enable_caching
        assert block.ref_cnt > 0, f"{block} is free"
        assert block.block_hash is None, f"{block} is cached already"
        block.block_hash = block_hash
        self._cached.setdefault(block_hash, {})[block.block_id] = block

    def cache_partial_block(self, block: KVCacheBlock, block_hash: BlockHash) -> None:
        """Lets later requests hit the first tokens of this block, which its owner goes on to fill."""
        assert self.enable_caching
        assert block.ref_cnt > 0, f"{block} is free"
        assert block.partial_hash is None, f"{block} is cached already"
        block.partial_hash = block_hash
        self._cached.setdefault(block_hash, {})[block.block_id] = block

    def cached_blocks(self) -> Sequence[KVCacheBlock]:
        """Every block with a hash, by block id."""
        return [block for block in self.blocks if block.block_hash is not None or block.partial_hash is not None]

    def _evict(self, blocks: Sequence[KVCacheBlock]) -> None:
        entries: list[CacheEntry] | None = None if self.recorder is None else []
        for block in blocks:
            for block_hash in (block.block_hash, block.partial_hash):
                if block_hash is None:
                    continue
                same_hash = self._cached[block_hash]
                del same_hash[block.block_id]
                if not same_hash:
                    del self._cached[block_hash]
                if entries is not None:
                    entries.append(CacheEntry(block=block.block_id, group=block_hash.group, hash=block_hash.value))
            block.block_hash = block.partial_hash = None
        if entries and self.recorder is not None:
            self.recorder.evict(tuple(entries))
