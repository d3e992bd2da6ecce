"""The free queue and the pool: vLLM's order of reuse, reference counts, errors."""

from __future__ import annotations

import pytest

from settled.model.events import Event, Evict
from settled.reference.free_queue import BlockHash, FreeKVCacheBlockQueue, KVCacheBlock, PoolError
from settled.reference.pool import BlockPool
from settled.reference.recorder import Recorder


def order(pool: BlockPool) -> list[int]:
    return [block.block_id for block in pool.free_block_queue]


def test_a_fresh_pool_hands_out_blocks_from_1() -> None:
    pool = BlockPool(5, enable_caching=False)
    assert order(pool) == [1, 2, 3, 4]
    assert [block.block_id for block in pool.get_new_blocks(2)] == [1, 2]
    assert order(pool) == [3, 4]


def test_blocks_leave_the_middle_and_keep_the_order() -> None:
    blocks = [KVCacheBlock(number) for number in range(1, 6)]
    queue = FreeKVCacheBlockQueue(blocks)
    queue.remove(blocks[2])
    assert [block.block_id for block in queue] == [1, 2, 4, 5]
    queue.prepend_n([blocks[2]])
    assert [block.block_id for block in queue] == [3, 1, 2, 4, 5]
    queue.remove(blocks[4])
    queue.remove(blocks[2])
    assert [block.block_id for block in queue] == [1, 2, 4]
    assert queue.num_free_blocks == 3


def test_the_queue_refuses_what_would_corrupt_it() -> None:
    blocks = [KVCacheBlock(1), KVCacheBlock(2)]
    queue = FreeKVCacheBlockQueue(blocks)
    with pytest.raises(PoolError, match="already"):
        queue.append_n([blocks[0]])
    queue.remove(blocks[0])
    with pytest.raises(PoolError, match="not in the free queue"):
        queue.remove(blocks[0])
    with pytest.raises(PoolError, match="2 blocks were asked for, 1 are free"):
        queue.popleft_n(2)
    assert [block.block_id for block in queue] == [2]


def test_blocks_without_hash_are_reused_first_and_hashed_ones_last() -> None:
    pool = BlockPool(7, enable_caching=True)
    held = pool.get_new_blocks(4)
    pool.cache_block(held[0], BlockHash(0, 10))
    pool.cache_block(held[2], BlockHash(0, 12))
    freed = pool.free_blocks(reversed(held))
    assert order(pool) == [4, 2, 5, 6, 3, 1]
    assert {block.block_id for block in freed} == {1, 2, 3, 4}


def test_without_prefix_caching_every_freed_block_goes_to_the_front() -> None:
    pool = BlockPool(6, enable_caching=False)
    held = pool.get_new_blocks(3)
    pool.free_blocks(reversed(held))
    assert order(pool) == [3, 2, 1, 4, 5]


def test_a_hit_takes_a_free_block_out_of_the_queue_and_a_new_owner_evicts_its_hash() -> None:
    events: list[Event] = []
    pool = BlockPool(3, enable_caching=True, recorder=Recorder(events.append))
    (block,) = pool.get_new_blocks(1)
    pool.cache_block(block, BlockHash(1, 99))
    pool.free_blocks([block])
    assert pool.get_cached_block(BlockHash(1, 99)) is block
    assert pool.get_cached_block(BlockHash(0, 99)) is None
    pool.touch([block, pool.null_block])
    assert (block.ref_cnt, pool.null_block.ref_cnt, order(pool)) == (1, 0, [2])
    pool.touch([block])
    assert pool.free_blocks([block]) == []
    assert [freed.block_id for freed in pool.free_blocks([block])] == [1]
    assert events == []
    pool.get_new_blocks(2)
    assert pool.get_cached_block(BlockHash(1, 99)) is None
    (evict,) = events
    assert isinstance(evict, Evict)
    assert [(entry.block, entry.group, entry.hash) for entry in evict.entries] == [(1, 1, 99)]


def test_two_blocks_with_one_hash_the_first_is_hit() -> None:
    pool = BlockPool(4, enable_caching=True)
    first, second = pool.get_new_blocks(2)
    pool.cache_block(first, BlockHash(0, 5))
    pool.cache_block(second, BlockHash(0, 5))
    assert pool.get_cached_block(BlockHash(0, 5)) is first
    pool.free_blocks([first])
    pool.free_block_queue.remove(first)
    pool.free_block_queue.prepend_n([first])
    pool.get_new_blocks(1)
    assert pool.get_cached_block(BlockHash(0, 5)) is second


def test_a_double_free_is_an_error_and_null_is_never_freed() -> None:
    pool = BlockPool(4, enable_caching=False)
    (block,) = pool.get_new_blocks(1)
    assert pool.free_blocks([pool.null_block]) == []
    pool.free_blocks([block])
    with pytest.raises(PoolError, match="block 1 is freed, but nobody owns it"):
        pool.free_blocks([block])
    with pytest.raises(PoolError, match="null block"):
        BlockPool(1, enable_caching=False)
