"""No number in a trace makes the monitor work or store more than its table and row are long."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from settled.model import events as ev
from settled.model.monitor import Monitor
from settled.model.monitor.groups import mask_of
from settled.model.monitor.keys import BEYOND_MAX
from settled.model.properties import Contract, Property
from settled.model.specs import FullAttentionSpec, SlidingWindowSpec

FAR = 2**31 - 8  # just below the limit of a position


@contextmanager
def _quick() -> Iterator[None]:
    """By the time that this process takes: what else the machine does is no matter."""
    begun = time.process_time()
    yield
    assert time.process_time() - begun < 1


@pytest.mark.parametrize("spec", [FullAttentionSpec(block_size=1), SlidingWindowSpec(block_size=1, window=2**30)])
def test_a_step_far_past_its_row_is_judged_at_once(kit: Any, spec: Any) -> None:
    with _quick():
        result = kit.Builder(spec).add().allocate(1).schedule(1, kit.entry(FAR, 4, [1])).end().judge()
    reads, writes = result.result(Property.READ_RESIDENT), result.result(Property.WRITE_OWNED)
    assert 1 <= reads.count <= 2 * BEYOND_MAX + 1
    assert writes.count == 4  # each of the four slots that it writes is past the row
    assert writes.violations[-1].needed == (FAR + 3, FAR + 3)


def test_a_step_of_very_many_tokens(kit: Any) -> None:
    with _quick():
        report = kit.Builder(FullAttentionSpec(block_size=1), num_lookahead_tokens=FAR).add().allocate(1).add("B").touch(1, request="B")
        report = report.schedule(1, kit.entry(0, FAR, [1])).add("C").touch(1, request="C").end().judge()
    assert report.result(Property.READ_RESIDENT).count == BEYOND_MAX


def test_what_was_released_far_away_is_still_told(kit: Any) -> None:
    """Every entry of a request without blocks lies past its table; the one that was released has a note."""
    trace = kit.Builder(FullAttentionSpec(block_size=4)).add().allocate(1, first=5000).release({5000: 1})
    trace.schedule(1, kit.entry(40_000, 1)).end()
    assert trace.judge(Contract.STREAM_ORDER).result(Property.ROLLBACK_RESIDENT).causes == {}
    assert trace.judge(Contract.STREAM_ORDER).result(Property.READ_RESIDENT).causes["released_before_schedule[window]"] == 1


def test_a_rollback_from_far_away(kit: Any) -> None:
    trace = kit.Builder(FullAttentionSpec(block_size=1)).add().allocate(1)
    trace.put(ev.Computed(request="A", computed=FAR, cause="external", stale=False))
    trace.put(ev.Computed(request="A", computed=FAR - 1, cause="load_failed", stale=False)).end()
    with _quick():
        assert 1 <= trace.judge().result(Property.ROLLBACK_RESIDENT).count <= 2 * BEYOND_MAX


def test_what_a_near_step_reads_is_told_entry_by_entry(kit: Any) -> None:
    trace = kit.Builder(FullAttentionSpec(block_size=1)).add().allocate(1).schedule(1, kit.entry(BEYOND_MAX, 1, [1])).end()
    assert trace.judge().result(Property.READ_RESIDENT).count == BEYOND_MAX


def test_a_huge_block_is_decided_at_once() -> None:
    mask = mask_of(SlidingWindowSpec(block_size=2**31, window=5))
    assert mask is not None
    with _quick():
        assert mask.may_free_index(0, 2**31 + 4)
        assert not mask.may_free_index(0, 2**31 + 3)  # the query there reads the block's last token


def test_a_full_pool_is_affordable(kit: Any) -> None:
    with _quick():
        Monitor(kit.Builder(num_blocks=2**24).config)
