"""The pool's own books: the free queue as a linked list, the prefix cache against the hashes that blocks carry."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from settled.reference.engines.protocol import Anomaly
from settled.reference.engines.vllm.inspection_view import View, hash_parts

SINGLE_OWNER, CACHE_TRUTHFUL = "single_owner", "cache_truthful"


def free_queue(view: View) -> Iterator[Anomaly]:
    """The free queue is linked both ways, as long as it says, and has each block without a reference once; never the null block."""
    queue, blocks = view.pool.free_block_queue, view.pool.blocks
    listed: set[int] = set()
    before, block = queue.fake_free_list_head, queue.fake_free_list_head.next_free_block
    while block is not queue.fake_free_list_tail:
        if block is None:
            yield _free("free_list_cut", f"the free queue ends behind block {before.block_id}, after {len(listed)} blocks")
            break
        if block.block_id in listed:
            yield _free("free_list_cycle", f"the free queue comes to block {block.block_id} again, after {len(listed)} blocks")
            break
        if block.prev_free_block is not before:
            yield _free("free_list_back_link", f"block {block.block_id} of the free queue does not link back to block {before.block_id}")
        if block.is_null:
            yield _free("null_block_free", "the null block is in the free queue")
        elif block.ref_cnt:
            yield _free("held_block_free", f"block {block.block_id} is in the free queue with {block.ref_cnt} reference(s)")
        listed.add(block.block_id)
        before, block = block, block.next_free_block
    if queue.num_free_blocks != len(listed):
        yield _free("free_count", f"the free queue counts {queue.num_free_blocks} blocks and has {len(listed)}")
    lost = [block.block_id for block in blocks if not block.is_null and not block.ref_cnt and block.block_id not in listed]
    if lost:
        yield _free("free_block_lost", f"blocks {lost} have no reference and are not in the free queue")


def prefix_cache(view: View) -> Iterator[Anomaly]:
    """Each entry of the prefix cache names a block that carries its hash, and each hash that a block carries has its entry."""
    entries: set[tuple[Any, int]] = set()
    for key, block_id, block in view.cached():
        entries.add((key, block.block_id))
        if block_id != block.block_id:
            yield _cache("entry_id", f"the prefix cache keeps block {block.block_id} as block {block_id}")
        if block.block_hash != key and key not in view.other_hashes(block.block_id):
            yield _cache(
                "entry_without_hash", f"the prefix cache has an entry for block {block.block_id}, which carries another hash or none"
            )
    for block in view.pool.blocks:
        if block.block_hash is None:
            continue
        if block.is_null:
            yield _cache("null_block_cached", "the null block carries a hash")
        elif not all((key, block.block_id) in entries for key in (block.block_hash, *view.other_hashes(block.block_id))):
            yield _cache("hash_without_entry", f"block {block.block_id} carries a hash that the prefix cache has no entry for")


def hashes_of_tables(view: View) -> Iterator[Anomaly]:
    """A hashed block in a request's table carries the hash of the request's own tokens up to where the block's hash ends."""
    for group, manager in enumerate(view.managers):
        for request_id, table in manager.req_to_blocks.items():
            request = view.requests.get(request_id)
            if request is None:
                continue  # told by the inspection of holders
            for index, block in enumerate(table):
                if block.block_hash is not None and not block.is_null:
                    yield from _hash_of_entry(view, group, request, index, block)


def _hash_of_entry(view: View, group: int, request: Any, index: int, block: Any) -> Iterator[Anomaly]:
    size = view.managers[group].block_size
    hash_size = getattr(view.pool, "hash_block_size", size)
    end = getattr(block, "block_hash_num_tokens", None) or (index + 1) * size
    of_tokens, of_group = hash_parts(block.block_hash)
    where = f"block {block.block_id} at index {index} of request {request.request_id} in group {group}"
    if of_group != group:
        yield _cache("hash_of_other_group", f"{where} carries a hash of group {of_group}")
    elif not index * size < end <= (index + 1) * size:
        yield _cache(
            "hash_of_other_index", f"{where} carries a hash of the tokens before {end}; the entry has tokens {index * size} to {end}"
        )
    elif end // hash_size > len(request.block_hashes):
        tokens = len(request.block_hashes) * hash_size
        yield _cache("hash_of_unknown_tokens", f"{where} carries a hash of {end} tokens, of which the request has {tokens} hashed")
    elif request.block_hashes[end // hash_size - 1] != of_tokens:
        yield _cache("hash_of_other_tokens", f"{where} carries a hash that is not the one of the request's first {end} tokens")


def _free(cause: str, sentence: str) -> Anomaly:
    return Anomaly(SINGLE_OWNER, cause, sentence)


def _cache(cause: str, sentence: str) -> Anomaly:
    return Anomaly(CACHE_TRUTHFUL, cause, sentence)
