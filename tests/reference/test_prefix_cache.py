"""Hashes of blocks, and how long a prefix each kind finds in the cache."""

from __future__ import annotations

import pytest

from settled.model.events import Computed, Event, Touch
from settled.model.specs import FullAttentionSpec, KVCacheSpec, SlidingWindowSpec
from settled.reference.config import EngineConfig
from settled.reference.engine import Engine
from settled.reference.free_queue import KVCacheBlock
from settled.reference.prefix_cache import extend_block_hashes, longest_prefix, longest_suffix

NULL = KVCacheBlock(0)


def cached(*indices: int) -> dict[int, KVCacheBlock]:
    return {index: KVCacheBlock(100 + index) for index in indices}


def ids(blocks: list[KVCacheBlock]) -> list[int]:
    return [block.block_id for block in blocks]


def test_a_hash_stands_for_its_block_and_every_token_before() -> None:
    one: list[int] = []
    other: list[int] = []
    extend_block_hashes(one, [1, 2, 3, 4, 5, 6, 7], 3)
    extend_block_hashes(other, [9, 2, 3, 4, 5, 6], 3)
    assert len(one) == 2
    assert one[1] != other[1]
    before = list(one)
    extend_block_hashes(one, [1, 2, 3, 4, 5, 6, 7, 8, 9], 3)
    assert one[:2] == before
    assert len(one) == 3


def test_full_attention_takes_the_longest_prefix() -> None:
    assert ids(longest_prefix(cached(0, 1, 3).get, 4)) == [100, 101]
    assert longest_prefix(cached(1).get, 4) == []


@pytest.mark.parametrize(
    ("indices", "num_blocks", "needed", "aligned", "expected"),
    [
        ((2, 3), 5, 2, 1, [0, 0, 102, 103]),
        ((0, 1, 3, 4), 5, 2, 1, [0, 0, 0, 103, 104]),
        ((0, 1, 3), 5, 3, 1, [100, 101]),  # a short prefix has no tokens before it
        ((1, 2, 3), 4, 2, 3, [0, 101, 102]),  # the edge stands at a multiple of 3 blocks
        ((1, 2), 4, 3, 1, []),
        ((), 4, 1, 1, []),
    ],
)
def test_a_window_needs_only_its_last_blocks(
    indices: tuple[int, ...], num_blocks: int, needed: int, aligned: int, expected: list[int]
) -> None:
    found = longest_suffix(
        cached(*indices).get,
        num_blocks,
        first_needed=lambda length: max(0, length - needed),
        blocks_aligned=aligned,
        null_block=NULL,
    )
    assert ids(found) == expected


def engine_with(groups: tuple[KVCacheSpec, ...], events: list[Event]) -> Engine:
    config = EngineConfig(
        groups=groups,
        num_blocks=200,
        max_num_batched_tokens=64,
        max_num_seqs=4,
        max_model_len=64,
        enable_prefix_caching=True,
    )
    return Engine(config, events.append)


def run_two(groups: tuple[KVCacheSpec, ...], shared_tokens: int) -> list[Event]:
    """A request of 40 tokens runs to its end; a second one shares its first tokens."""
    events: list[Event] = []
    engine = engine_with(groups, events)
    prompt = tuple(range(1, 41))
    engine.add_request("first", prompt, max_tokens=1)
    engine.run_to_idle()
    engine.add_request("second", (*prompt[:shared_tokens], *range(500, 500 + 40 - shared_tokens)), max_tokens=1)
    events.clear()
    engine.run_to_idle()
    return events


def hits(events: list[Event]) -> list[int]:
    return [event.computed for event in events if isinstance(event, Computed)]


def test_a_hit_leaves_one_token_to_compute() -> None:
    assert hits(run_two((FullAttentionSpec(block_size=4),), 40)) == [36]


def test_the_head_of_a_window_hit_is_null_and_not_touched() -> None:
    events = run_two((SlidingWindowSpec(block_size=4, window=8),), 30)
    assert hits(events) == [28]
    (touch,) = [event for event in events if isinstance(event, Touch)]
    assert touch.first_index == 5  # position 28 reads 21 to 28: blocks 5 and 6
    assert len(touch.blocks) == 2


def test_groups_agree_on_the_shortest_hit_at_a_multiple_of_all_block_sizes() -> None:
    groups = (FullAttentionSpec(block_size=2), SlidingWindowSpec(block_size=6, window=5), FullAttentionSpec(block_size=4))
    assert hits(run_two(groups, 35)) == [24]


def test_nothing_shared_no_hit() -> None:
    assert hits(run_two((FullAttentionSpec(block_size=4),), 3)) == []
