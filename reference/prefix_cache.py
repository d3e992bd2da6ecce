"""Prefix cache: what a block's hash is, and how long a prefix each kind finds in the cache.

A hash covers a full block and, by chaining, every token before it. `lookup` maps a block's index to a cached block or None.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from settled.reference.free_queue import KVCacheBlock

Lookup = Callable[[int], KVCacheBlock | None]

_ROOT = 0x5E771ED  # stands before the first block
_HASH_BITS = (1 << 60) - 1


class CacheHit(NamedTuple):
    """`num_tokens` of a prompt are in the cache; `blocks`, per group, hold them (null where no later step reads).

    `tails`: per group the cached block in which the hit ends, if it ends within one; empty if it ends between blocks in all groups.
    """

    num_tokens: int
    blocks: tuple[list[KVCacheBlock], ...]
    tails: tuple[KVCacheBlock | None, ...] = ()


def hash_block_tokens(parent: int, token_ids: Sequence[int]) -> int:
    """The hash of a full block: its tokens after the block with hash `parent`. The same in every process."""
    return hash((parent, *token_ids)) & _HASH_BITS


def extend_block_hashes(hashes: list[int], token_ids: Sequence[int], block_size: int) -> None:
    """Appends the hashes of full blocks that have become known since the last call."""
    for start in range(len(hashes) * block_size, len(token_ids) - block_size + 1, block_size):
        parent = hashes[-1] if hashes else _ROOT
        hashes.append(hash_block_tokens(parent, token_ids[start : start + block_size]))


def longest_prefix(lookup: Lookup, num_blocks: int) -> list[KVCacheBlock]:
    """The cached blocks from the first on, `num_blocks` at most: what full attention can use."""
    found: list[KVCacheBlock] = []
    for index in range(num_blocks):
        block = lookup(index)
        if block is None:
            break
        found.append(block)
    return found


def longest_suffix(
    lookup: Lookup, num_blocks: int, *, first_needed: Callable[[int], int], blocks_aligned: int, null_block: KVCacheBlock
) -> list[KVCacheBlock]:
    """The longest prefix, `num_blocks` at most, of which all blocks that the next query reads are cached; null stands before them.

    The next query after a prefix of n blocks reads those from `first_needed(n)` on, which must not fall as n grows: so a block that is
    missing rules out every longer prefix that was still in question. The length is a multiple of `blocks_aligned` blocks.
    """
    length = num_blocks - num_blocks % blocks_aligned
    while length > 0:
        first = first_needed(length)
        found: list[KVCacheBlock] = []
        for index in range(length - 1, first - 1, -1):
            block = lookup(index)
            if block is None:
                length = index - index % blocks_aligned
                break
            found.append(block)
        else:
            return [null_block] * first + found[::-1]
    return []
