"""`write_owned` where blocks are shared: a step writes there only what the block's hash stands for."""

from __future__ import annotations

from typing import Any

import pytest

from settled.model import events as ev
from settled.model.monitor import Verdict
from settled.model.properties import Contract, Property

SETTLED, STREAM_ORDER = Contract.SETTLED, Contract.STREAM_ORDER


def _shared(kit: Any, *entries: ev.CacheEntry, **config: Any) -> Any:
    trace = kit.Builder(kit.FULL, **config).add().allocate(1)
    if entries:
        trace.put(ev.Cache(entries=entries))
    return trace.add("B").touch(1, request="B").schedule(1, kit.entry(0, 4, [1]))


def test_a_shared_block_is_written_without_a_hash_for_it(kit: Any) -> None:
    for contract in Contract:
        assert _shared(kit, records=("content",)).found(contract) == {"write_owned": {"shared[never released]": 1}}


def test_a_shared_block_is_written_with_what_its_hash_stands_for(kit: Any) -> None:
    assert _shared(kit, ev.CacheEntry(block=1)).found() == {}
    assert _shared(kit, ev.CacheEntry(block=1, start=0, end=4)).found() == {}
    assert "write_owned" in _shared(kit, ev.CacheEntry(block=1, start=0, end=3)).found()


def test_sharing_is_not_judged_without_recorded_content(kit: Any) -> None:
    result = _shared(kit).judge().result(Property.WRITE_OWNED)
    assert result.verdict is Verdict.NOT_CHECKED
    assert "no prefix-cache entries are recorded" in result.remarks[0]


def test_a_released_block_that_others_hold_is_still_written(kit: Any) -> None:
    trace = kit.Builder(kit.FULL, records=("content",)).add().allocate(1).schedule(1, kit.entry(0, 4, [1]))
    trace.add("B").touch(1, request="B").put(ev.Preempt(request="A")).release({0: 1}, "preempt", freed=())
    assert trace.found(SETTLED) == {"write_owned": {"shared[never released]": 1}}  # told once, when B joined


@pytest.mark.parametrize("way", ["touch", "copy", "pin"])
def test_sharing_begins_under_a_step_that_writes(kit: Any, way: Any) -> None:
    """Step 1 of A writes block 1. Whoever uses the block from then on reads what may be half written; a pin does not read."""
    trace = kit.Builder(kit.FULL, records=("content",)).add().allocate(1, 2).schedule(1, kit.entry(0, 4, [1, 2])).add("B")
    for block in (1, 2):
        trace.touch(block, request="B") if way == "touch" else trace.put(ev.Hold(holder="h", kind=way, blocks=(block,)))
    for contract in Contract:
        found = {key: causes for key, causes in trace.found(contract).items() if key != "single_owner"}
        assert found == ({} if way == "pin" else {"write_owned": {"shared[never released]": 1}})
    trace.events[4:4] = [ev.Cache(entries=(ev.CacheEntry(block=1, request="A", start=0, end=4),))]
    assert "write_owned" not in trace.found()


def test_a_pin_on_what_the_request_itself_writes_is_no_sharing(kit: Any) -> None:
    trace = kit.Builder(kit.FULL, records=("content",)).add().allocate(1).put(ev.Hold(holder="h", kind="pin", blocks=(1,)))
    assert trace.schedule(1, kit.entry(0, 4, [1])).found() == {}
    trace.put(ev.Preempt(request="A")).release({0: 1}, "preempt", freed=())
    assert trace.found(SETTLED) == {}
    copied = kit.Builder(kit.FULL, records=("content",)).add().allocate(1).put(ev.Hold(holder="h", kind="copy", blocks=(1,)))
    assert copied.schedule(1, kit.entry(0, 4, [1])).found() == {"write_owned": {"shared[never released]": 1}}


@pytest.mark.parametrize(("copied", "is_fine"), [(1, True), (2, False), (None, False)])
def test_a_step_writes_what_was_copied_at_its_start(kit: Any, copied: int | None, is_fine: bool) -> None:
    """Block 1 is held for a copy until that is over; the copy is made at the start of step 1, and step 1 of A goes on in the block."""
    trace = kit.Builder(kit.FULL, records=("content",)).add().allocate(1).put(ev.Hold(holder="h", kind="copy", blocks=(1,)))
    trace.put(ev.Hold(holder="h", kind="pin", blocks=(2,)))
    if copied is not None:
        trace.put(ev.Copy(step=1, group=0, source=copied, target=3 - copied))
    trace.schedule(1, kit.entry(0, 4, [1]))
    assert ("write_owned" not in trace.found()) == is_fine
    assert "single_owner" not in trace.put(ev.Drop(holder="h", blocks=(1, 2), freed=(2,))).found()


def test_others_that_share_a_copied_block_still_read_it(kit: Any) -> None:
    trace = kit.Builder(kit.FULL, records=("content",)).add().allocate(1).put(ev.Hold(holder="h", kind="copy", blocks=(1,)))
    trace.put(ev.Copy(step=1, group=0, source=1, target=2)).add("B").touch(1, request="B")
    assert trace.schedule(1, kit.entry(0, 4, [1])).found() == {"write_owned": {"shared[never released]": 1}}


@pytest.mark.parametrize(("end", "is_fine"), [(2, True), (4, True), (None, False)])
def test_a_block_that_is_copied_for_its_first_tokens_is_filled_on(kit: Any, end: int | None, is_fine: bool) -> None:
    """Step 1 of A writes tokens 0 to 3 of block 1; a copy of it is made for what the block's hash stands for, if it has one."""
    trace = kit.Builder(kit.FULL, records=("content",)).add().allocate(1)
    if end is not None:
        trace.put(ev.Cache(entries=(ev.CacheEntry(block=1, request="A", start=0, end=end),)))
    trace.schedule(1, kit.entry(0, 4, [1])).put(ev.Hold(holder="h", kind="copy", blocks=(1,)))
    assert ("write_owned" in trace.found()) != is_fine
    if end == 2:  # a request that shares the block reads all of it
        assert "write_owned" in trace.add("B").touch(1, request="B").found()


def test_lookahead_slots_are_written_too(kit: Any) -> None:
    """Step 1 writes 0 to 3 and may write 4 to 7; B shares block 2, which holds them."""
    trace = kit.Builder(kit.FULL, records=("content",), num_lookahead_tokens=4).add().allocate(1, 2).add("B").touch(2, request="B")
    assert trace.schedule(1, kit.entry(0, 4, [1, 2])).found() == {"write_owned": {"shared[never released]": 1}}
    short = kit.Builder(kit.FULL, records=("content",), num_lookahead_tokens=4).add().allocate(1, 2).add("B").touch(2, request="B")
    assert short.schedule(1, kit.entry(0, 4, [1])).found() == {}  # its row has no block for them


def test_a_block_that_moved_is_shared_where_the_row_has_it(kit: Any) -> None:
    trace = kit.Builder(kit.FULL, records=("content",)).add().allocate(1).schedule(1, kit.entry(0, 4, [1]))
    trace.put(ev.Move(request="A", group=0, from_index=0, to_index=5, block=1)).add("B").touch(1, request="B")
    assert trace.found()["write_owned"] == {"shared[never released]": 1}


@pytest.mark.parametrize(
    ("keys", "verdict"),
    [
        ({"request": "A", "start": 0, "end": 4}, Verdict.HOLDS),
        ({"request": "A", "group": 0, "start": 0, "end": 4}, Verdict.HOLDS),
        ({"start": 0, "end": 4}, Verdict.HOLDS),
        ({}, Verdict.HOLDS),  # as recorded engines write it
        ({"request": "A"}, Verdict.HOLDS),
        ({"request": "C", "start": 0, "end": 4}, Verdict.NOT_CHECKED),  # A may have the same tokens, or not
        ({"request": "C"}, Verdict.NOT_CHECKED),
        ({"request": "A", "start": 0}, Verdict.NOT_CHECKED),
        ({"request": "A", "end": 4}, Verdict.NOT_CHECKED),
        ({"request": "A", "end": 3}, Verdict.VIOLATED),
        ({"request": "C", "start": 4, "end": 8}, Verdict.VIOLATED),
        ({"request": "A", "group": 1, "start": 0, "end": 4}, Verdict.VIOLATED),
    ],
)
def test_what_an_entry_says_of_the_bytes(kit: Any, keys: dict[str, Any], verdict: Verdict) -> None:
    trace = kit.Builder(kit.FULL, kit.FULL).add().allocate(1).allocate(2, group=1).put(ev.Cache(entries=(ev.CacheEntry(block=1, **keys),)))
    trace.add("B").touch(1, request="B").schedule(1, kit.entry(0, 4, [1], [2])).end()
    result = trace.judge().result(Property.WRITE_OWNED)
    assert result.verdict is verdict
    assert any("does not tell" in remark for remark in result.remarks) == (verdict is Verdict.NOT_CHECKED)


def test_an_evicted_entry_no_longer_allows_anything(kit: Any) -> None:
    trace = kit.Builder(kit.FULL).add().allocate(1).put(ev.Cache(entries=(ev.CacheEntry(block=1, hash="h"),)))
    trace.put(ev.Evict(entries=(ev.CacheEntry(block=1, hash="h"),))).add("B").touch(1, request="B")
    assert "write_owned" in trace.schedule(1, kit.entry(0, 4, [1])).found()


def test_a_new_owner_ends_what_the_hash_stood_for(kit: Any) -> None:
    trace = kit.Builder(kit.FULL).add().allocate(1).put(ev.Cache(entries=(ev.CacheEntry(block=1),))).release({0: 1}, "finish")
    trace.add("B").allocate(1, request="B").add("C").touch(1, request="C").schedule(1, kit.entry(0, 4, [1], request="B"))
    assert trace.found() == {"write_owned": {"shared[never released]": 1}}


def test_a_reissued_block_that_its_new_owners_share_is_not_shared_with_the_old_step(kit: Any) -> None:
    """A's step may still write the block, B's overwrites it later on the same stream, and C hits what B wrote."""
    trace = kit.Builder(kit.FULL, records=("content",)).add().allocate(1).schedule(1, kit.entry(0, 2, [1]))
    trace.finish(reason="abort").release({0: 1}, "abort").add("B", 4).allocate(1, request="B")
    trace.schedule(2, kit.entry(0, 4, [1], request="B")).add("C", 8)
    trace.put(ev.Cache(entries=(ev.CacheEntry(block=1, request="B", start=0, end=4),))).touch(1, request="C")
    assert trace.found(STREAM_ORDER) == {}


def test_a_hit_on_a_block_that_a_step_may_still_write_is_sharing(kit: Any) -> None:
    """The same without B: what A's step writes is not what the hash stands for."""
    trace = kit.Builder(kit.FULL, records=("content",)).add().allocate(1).schedule(1, kit.entry(4, 2, [1]))
    trace.put(ev.Cache(entries=(ev.CacheEntry(block=1, request="B", start=0, end=4),)))
    trace = kit.Builder(kit.FULL, records=("content",)).add().allocate(1, 2).schedule(1, kit.entry(0, 6, [1, 2]))
    trace.put(ev.Cache(entries=(ev.CacheEntry(block=2, request="B", start=0, end=4),)))
    trace.finish(reason="abort").release({0: 1, 1: 2}, "abort").add("C", 8).touch(2, request="C", first=1)
    assert trace.found(STREAM_ORDER) == {"write_owned": {"shared[abort]": 1}}


def test_a_pin_is_no_sharing_though_other_blocks_are_shared(kit: Any) -> None:
    trace = kit.Builder(kit.FULL, records=("content",)).add().allocate(1, 2).put(ev.Hold(holder="h", kind="pin", blocks=(2,)))
    assert trace.add("B").touch(1, request="B").schedule(1, kit.entry(4, 4, [1, 2])).found() == {}


def test_a_step_may_fall_into_a_shared_block(kit: Any) -> None:
    """Step 2 writes from 4 on, or from 2 if step 1 rejects 2; block 1, of the tokens 0 to 3, is shared before it is scheduled."""
    trace = kit.Builder(kit.FULL).add().allocate(1, 2).schedule(1, kit.entry(0, 4, [1, 2], drafts=2))
    trace.put(ev.Cache(entries=(ev.CacheEntry(block=1, request="A", start=0, end=1),))).add("B").touch(1, request="B")
    trace.schedule(2, kit.entry(4, 1)).process(1, kit.output(rejected=2)).process(2, kit.output())
    assert [violation.step for violation in trace.judge().result(Property.WRITE_OWNED).violations] == [1, 2]


def test_who_shares_a_block_that_was_given_out_afresh_shares_nothing_with_the_step(kit: Any) -> None:
    """Step 1 of A may still write block 1, which B has as a fresh block and shares with C: what is lost is lost to B, once."""
    trace = kit.Builder(kit.FULL, records=("content",)).add().allocate(1).schedule(1, kit.entry(0, 4, [1])).release({0: 1}, "preempt")
    trace.add("B").allocate(1, request="B").add("C").touch(1, request="C")
    assert trace.found("settled")["write_owned"] == {"reallocated[preempt]": 1}
    assert "write_owned" not in trace.found("stream_order")


@pytest.mark.parametrize("is_cached", [False, True])
def test_a_block_that_a_copy_is_made_into_is_a_fresh_one(kit: Any, is_cached: bool) -> None:
    """Step 1 of A may still write block 2, which is free again. A copy into it comes later on the same stream, and whoever reads it then
    reads that copy. If the block is cached, the pin keeps what it has, and step 1 writes that."""
    trace = kit.Builder(kit.FULL, records=("content", "copies")).add().allocate(1, 2).schedule(1, kit.entry(0, 6, [1, 2]))
    trace.finish(reason="abort").release({0: 1, 1: 2}, "abort")
    entry = ev.Cache(entries=(ev.CacheEntry(block=2, request="B", start=0, end=4),))
    pin = ev.Hold(holder="h", kind="pin", blocks=(2,))
    for event in (entry, pin) if is_cached else (pin, entry):
        trace.put(event)
    trace.add("C", 8).touch(2, request="C", first=1)
    assert trace.found(STREAM_ORDER) == ({"write_owned": {"shared[abort]": 1}} if is_cached else {})
