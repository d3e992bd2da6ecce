"""`single_owner`, `counters_symmetric`, `held_bounded`: one hand-made trace per way to break them."""

from __future__ import annotations

from typing import Any

import pytest

from settled.model import events as ev
from settled.model.monitor import Verdict
from settled.model.properties import Contract, Property
from settled.model.specs import CrossAttentionSpec, FullAttentionSpec, MambaSpec, SlidingWindowSpec


def _owner(trace: Any) -> dict[str, int]:
    """What `single_owner` finds; it is the same under every contract."""
    found = [trace.found(contract).get("single_owner", {}) for contract in Contract]
    assert found[0] == found[1] == found[2]
    return found[0]


# ---- single_owner ----------------------------------------------------------------------------------------------------


def test_allocated_while_held(kit: Any) -> None:
    assert _owner(kit.Builder().add().allocate(1).add("B").allocate(1, request="B")) == {"allocated_while_held": 1}


def test_double_free(kit: Any) -> None:
    trace = kit.Builder().add().allocate(1, 2).release({0: 1}).release({0: 1}, freed=())
    assert _owner(trace) == {"double_free": 1}


def test_double_free_after_the_request_is_gone(kit: Any) -> None:
    trace = kit.Builder().add().allocate(1).finish().release({0: 1}, "finish").release({0: 1}, "finish", freed=())
    assert _owner(trace) == {"double_free": 1}


def test_a_block_twice_in_one_free_batch(kit: Any) -> None:
    release = ev.Release(request="A", group=0, indices=(0, 0), blocks=(1, 1), cause="finish", freed=(1,))
    assert _owner(kit.Builder().add().allocate(1, 2).put(release)) == {"double_free": 1}


def test_released_what_another_holds(kit: Any) -> None:
    trace = kit.Builder().add().allocate(1).add("B").allocate(2, request="B").release({0: 2}, freed=())
    assert _owner(trace) == {"not_held": 1}


def test_freed_though_another_holds_it(kit: Any) -> None:
    trace = kit.Builder().add().allocate(1).add("B").touch(1, request="B").release({0: 1}, freed=[1])
    assert _owner(trace) == {"freed_while_held": 1}


def test_not_freed_though_nobody_holds_it(kit: Any) -> None:
    assert _owner(kit.Builder().add().allocate(1).release({0: 1}, freed=())) == {"not_freed": 1}


@pytest.mark.parametrize("way", ["allocate", "touch", "release", "hold"])
def test_the_null_block_is_never_owned(kit: Any, way: str) -> None:
    trace = kit.Builder().add()
    if way == "allocate":
        trace.allocate(0)
    elif way == "touch":
        trace.touch(0)
    elif way == "release":
        trace.allocate(1, first=1).release({0: 0}, freed=())
    else:
        trace.put(ev.Hold(holder="pin", kind="pin", blocks=(0,)))
    assert _owner(trace) == {"null_block": 1}


def test_an_entry_is_overwritten(kit: Any) -> None:
    assert _owner(kit.Builder().add().allocate(1).allocate(2)) == {"entry_overwritten": 1}


def test_held_at_an_idle_end(kit: Any) -> None:
    trace = kit.Builder().add().allocate(1, 2).finish().release({0: 1}, "finish")
    assert _owner(trace) == {}
    assert _owner(trace.end(idle=True)) == {"held_at_end": 1}


def test_nothing_is_asked_of_an_end_that_is_not_idle(kit: Any) -> None:
    assert _owner(kit.Builder().add().allocate(1, 2).end(idle=False)) == {}


def test_a_deferred_release_keeps_its_references_until_it_takes_effect(kit: Any) -> None:
    trace = kit.Builder().add().allocate(1).schedule(1, kit.entry(0, 4, [1])).finish().process(1, kit.output())
    trace.add("B").release({0: 1}, "deferred").allocate(1, request="B").release({0: 1}, "abort", request="B")
    assert trace.end(idle=True).found(Contract.SETTLED) == {}


def test_a_holder_that_still_holds_at_an_idle_end_is_remarked(kit: Any) -> None:
    trace = kit.Builder().put(ev.Hold(holder="h\x1b", kind="copy", blocks=(1, 2))).put(ev.Hold(holder="p", kind="pin", blocks=(1,)))
    result = trace.end(idle=True).judge().result(Property.SINGLE_OWNER)
    assert (result.verdict, result.remarks) == (Verdict.HOLDS, ("idle, but holders keep blocks: h\\x1b (2), p (1)",))
    trace.events[-1:] = [ev.Drop(holder="h\x1b", blocks=(1, 2), freed=(2,)), ev.Drop(holder="p", blocks=(1,), freed=(1,))]
    assert trace.end(idle=True).judge().result(Property.SINGLE_OWNER).remarks == ()


def test_a_hit_on_a_free_block_that_the_cache_does_not_know(kit: Any) -> None:
    assert _owner(kit.Builder(records=("content",)).add().touch(1)) == {"hit_uncached": 1}
    assert _owner(kit.Builder().add().touch(1)) == {}  # the trace may record no cache
    entry = ev.CacheEntry(block=1, hash="h")
    trace = kit.Builder(records=("content",)).add().allocate(1).put(ev.Cache(entries=(entry,))).release({0: 1}, "finish")
    assert _owner(trace.touch(1)) == {}
    trace.events[-1:] = [ev.Evict(entries=(entry,)), *kit.Builder().touch(1).events[1:]]
    assert _owner(trace) == {"hit_uncached": 1}


def test_what_was_cached_before_a_rotation_is_known_only_if_the_state_tells(kit: Any) -> None:
    for cached, found in (((), {}), ((ev.CacheEntry(block=1),), {}), ((ev.CacheEntry(block=2),), {"hit_uncached": 1})):
        state = ev.State(requests=(), unprocessed=(), tables={}, cached=cached)
        assert _owner(kit.Builder(records=("content",)).put(state).add().touch(1)) == found


@pytest.mark.parametrize("kinds", [("pin", "copy"), ("copy", "pin")])
def test_a_holder_of_both_kinds_gives_up_both(kit: Any, kinds: tuple[Any, Any]) -> None:
    trace = kit.Builder()
    for kind in kinds:
        trace.put(ev.Hold(holder="h", kind=kind, blocks=(1,)))
    assert _owner(trace.put(ev.Drop(holder="h", blocks=(1, 1), freed=(1,)))) == {}
    assert _owner(trace.put(ev.Drop(holder="h", blocks=(1,), freed=()))) == {"not_held": 1}


def test_holders_count(kit: Any) -> None:
    trace = kit.Builder().add().allocate(1).put(ev.Hold(holder="pin", kind="pin", blocks=(1,))).release({0: 1}, freed=())
    assert _owner(trace.put(ev.Drop(holder="pin", blocks=(1,), freed=(1,)))) == {}
    assert _owner(trace.put(ev.Drop(holder="pin", blocks=(1,), freed=()))) == {"not_held": 1}


def test_a_move_changes_no_reference(kit: Any) -> None:
    trace = kit.Builder(MambaSpec(block_size=4, mode="align")).add().allocate(1)
    trace.put(ev.Move(request="A", group=0, from_index=0, to_index=3, block=1)).release({3: 1}, "finish")
    assert _owner(trace) == {}
    trace.put(ev.Move(request="A", group=0, from_index=0, to_index=3, block=1))
    assert _owner(trace) == {"double_free": 1}


# ---- counters_symmetric ----------------------------------------------------------------------------------------------


def _counts(trace: Any) -> dict[str, int]:
    found: dict[str, int] = trace.found().get("counters_symmetric", {})
    return found


def test_a_start_below_the_count(kit: Any) -> None:
    trace = kit.Builder(kit.FULL).add().allocate(1, 2).schedule(1, kit.entry(0, 4, [1, 2])).schedule(2, kit.entry(3, 1))
    assert _counts(trace) == {"start": 1}


def test_a_start_above_the_count_with_a_live_step_in_flight(kit: Any) -> None:
    trace = kit.Builder(kit.FULL).add().allocate(1, 2).schedule(1, kit.entry(0, 4, [1, 2])).schedule(2, kit.entry(5, 1))
    assert _counts(trace) == {"start": 1}


def test_a_start_above_the_count_without_one_implies_a_hit(kit: Any) -> None:
    assert _counts(kit.Builder(kit.FULL).add().touch(1).allocate(2, first=1).schedule(1, kit.entry(4, 1, [1, 2]))) == {}


def test_a_start_below_the_count_with_nothing_in_flight(kit: Any) -> None:
    trace = kit.Builder(kit.FULL).add().allocate(1).schedule(1, kit.entry(0, 4, [1])).process(1, kit.output())
    assert _counts(trace.schedule(2, kit.entry(3, 1))) == {"start": 1}


def test_a_hit_is_implied_while_only_stale_steps_are_in_flight(kit: Any) -> None:
    trace = kit.Builder(kit.FULL).add().allocate(1).schedule(1, kit.entry(0, 4, [1])).put(ev.Preempt(request="A"))
    trace.release({0: 1}, "preempt").touch(1).allocate(2, first=1)
    assert _counts(trace.schedule(2, kit.entry(4, 1, [1, 2], resumed=True))) == {}


def test_a_fault_is_told_once(kit: Any) -> None:
    trace = kit.Builder(kit.FULL, max_in_flight_steps=3).add().allocate(1, 2).schedule(1, kit.entry(0, 4, [1, 2]))
    assert _counts(trace.schedule(2, kit.entry(3, 1)).schedule(3, kit.entry(4, 1))) == {"start": 1}


def _stale_output(kit: Any, counters: tuple[int, int, int]) -> Any:
    """Step 1 has 3 drafts; A is preempted and resumed; step 1's output comes back and must roll nothing back."""
    trace = kit.Builder(kit.FULL).add().allocate(1).schedule(1, kit.entry(0, 4, [1], drafts=3))
    trace.put(ev.Preempt(request="A")).release({0: 1}, "preempt").allocate(1)
    trace.schedule(2, kit.entry(0, 4, [1], resumed=True, counters=(4, 8, 4)))
    return trace.process(1, kit.output(rejected=3, counters=counters))


def test_stale_output_rolls_nothing_back(kit: Any) -> None:
    assert _counts(_stale_output(kit, (4, 4, 0))) == {}
    assert _counts(_stale_output(kit, (1, 4, 0))) == {"counters[computed]": 1}


def test_stale_output_is_drained(kit: Any) -> None:
    assert _counts(_stale_output(kit, (4, 8, 4))) == {"counters[in_flight+stale]": 1}


def test_counters_at_schedule(kit: Any) -> None:
    trace = kit.Builder(kit.FULL).add().allocate(1).schedule(1, kit.entry(0, 4, [1], counters=(4, 0, 0)))
    assert _counts(trace) == {"counters[in_flight]": 1}


def test_stale_rejections_show_in_the_next_start(kit: Any) -> None:
    trace = _stale_output(kit, (4, 4, 0)).allocate(2, first=1)
    assert _counts(trace.schedule(3, kit.entry(1, 1, [2]))) == {"start": 1}


def test_in_flight_at_an_idle_end(kit: Any) -> None:
    trace = kit.Builder().add().allocate(1).schedule(1, kit.entry(0, 4, [1])).end(idle=True)
    assert _counts(trace) == {"in_flight_at_end": 1}


def test_in_flight_at_an_idle_end_of_a_finished_request(kit: Any) -> None:
    trace = kit.Builder().add().allocate(1).schedule(1, kit.entry(0, 4, [1])).finish().release({0: 1}, "finish")
    assert _counts(trace.end(idle=True)) == {"in_flight_at_end": 1}


def test_without_recorded_counters_the_report_says_how_it_judged(kit: Any) -> None:
    [remark] = kit.Builder().add().allocate(1).schedule(1, kit.entry(0, 4, [1])).end().judge().result(Property.COUNTERS_SYMMETRIC).remarks
    assert "judged by the start of each step" in remark


# ---- held_bounded ----------------------------------------------------------------------------------------------------

CAPPED = SlidingWindowSpec(block_size=4, window=4, cap=3)


def test_above_the_cap(kit: Any) -> None:
    assert kit.Builder(CAPPED).add().allocate(1, 2, 3).found() == {}
    assert kit.Builder(CAPPED).add().allocate(1, 2, 3, 4).found() == {"held_bounded": {"above_cap": 1}}
    assert kit.Builder(CAPPED).add().touch(1, 2, 3, 4).found() == {"held_bounded": {"above_cap": 1}}


def test_a_whole_block_below_the_need_at_schedule(kit: Any) -> None:
    trace = kit.Builder(CAPPED).add().allocate(1, 2, 3).schedule(1, kit.entry(0, 8, [1, 2, 3])).process(1, kit.output())
    assert trace.schedule(2, kit.entry(8, 1)).found() == {"held_bounded": {"below_need": 1}}
    trace.events[-1:] = [*kit.Builder().release({0: 1}).events[1:], trace.events[-1]]
    assert trace.found() == {}


def test_in_flight_tokens_are_not_below_the_need(kit: Any) -> None:
    trace = kit.Builder(CAPPED).add().allocate(1, 2, 3).schedule(1, kit.entry(0, 8, [1, 2, 3])).schedule(2, kit.entry(8, 1))
    assert trace.found() == {}


def test_a_prune_that_leaves_a_whole_block(kit: Any) -> None:
    trace = kit.Builder(SlidingWindowSpec(block_size=4, window=4, cap=9)).add().allocate(1, 2, 3, 4)
    trace.schedule(1, kit.entry(0, 13, [1, 2, 3, 4])).process(1, kit.output())
    assert trace.release({1: 2}).found() == {"held_bounded": {"below_need": 1}}


def test_held_bounded_is_not_checked_without_a_cap(kit: Any) -> None:
    result = kit.Builder().add().allocate(*range(1, 20)).judge().result(Property.HELD_BOUNDED)
    assert (result.verdict, result.groups) == (Verdict.NOT_CHECKED, ())
    both = kit.Builder(CAPPED, FullAttentionSpec(block_size=4)).add().allocate(1).end().judge().result(Property.HELD_BOUNDED)
    assert (both.verdict, both.groups) == (Verdict.HOLDS, (0,))


# ---- kinds without a model -------------------------------------------------------------------------------------------


def test_an_unmodelled_kind_keeps_its_books_only(kit: Any) -> None:
    trace = (
        kit.Builder(kit.FULL, CrossAttentionSpec(block_size=4))
        .add()
        .allocate(1)
        .allocate(2, group=1)
        .schedule(1, kit.entry(0, 4, [1], [2]))
    )
    trace.release({0: 2}, group=1).end()
    report = trace.judge(Contract.SETTLED)
    read = report.result(Property.READ_RESIDENT)
    assert (read.verdict, read.groups) == (Verdict.HOLDS, (0,))
    assert read.remarks == ("not checked for group 1: kind cross is not modelled",)
    assert report.result(Property.SINGLE_OWNER).groups == (0, 1)
    assert (report.exit_code, report.unknown) == (3, ("group 1 (cross) is not modelled",))


def test_with_no_modelled_kind_nothing_is_claimed(kit: Any) -> None:
    report = kit.Builder(MambaSpec(block_size=4, mode="all")).end().judge()
    assert report.result(Property.READ_RESIDENT).verdict is Verdict.NOT_CHECKED
    assert report.exit_code == 3
