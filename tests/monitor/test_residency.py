"""`read_resident`, `rollback_resident`, `write_owned`: one hand-made trace per way to lose a block, under each contract.

Blocks hold 4 tokens and the window is 4 unless a test says otherwise, so the query at position q reads q-3 to q.
"""

from __future__ import annotations

from typing import Any

import pytest

from settled.model import events as ev
from settled.model.monitor import Monitor, Verdict
from settled.model.properties import Contract, Property
from settled.model.specs import FullAttentionSpec, SlidingWindowSpec

SETTLED, STREAM_ORDER, EVENT = Contract.SETTLED, Contract.STREAM_ORDER, Contract.EVENT


def _in_flight(kit: Any, **config: Any) -> Any:
    """A has 8 tokens processed in blocks 1 and 2, and step 2, which reads 5 to 8 and writes 8, in flight."""
    trace = kit.Builder(**config).add().allocate(1, 2, 3).schedule(1, kit.entry(0, 8, [1, 2, 3])).process(1, kit.output())
    return trace.schedule(2, kit.entry(8, 1))


def test_a_correct_trace_violates_nothing(kit: Any) -> None:
    trace = _in_flight(kit).release({0: 1}).process(2, kit.output()).release({1: 2}).finish()
    trace.release({2: 3}, "finish").end(idle=True)
    assert all(trace.found(contract) == {} for contract in Contract)


def test_freed_under_a_reading_step(kit: Any) -> None:
    trace = _in_flight(kit).release({0: 1, 1: 2})
    assert trace.found(SETTLED) == {"read_resident": {"freed[window]": 1}}
    assert trace.found(STREAM_ORDER) == trace.found(EVENT) == {}


def test_a_violation_names_everything(kit: Any) -> None:
    [violation] = _in_flight(kit).release({0: 1, 1: 2}).judge(SETTLED).result(Property.READ_RESIDENT).violations
    assert (violation.line, violation.step, violation.request, violation.group) == (7, 2, "A", 0)
    assert (violation.index, violation.block, violation.needed) == (1, 2, (5, 7))
    assert (violation.freed_by, violation.freed_at_line, violation.release_cause) == ("A", 7, "window")
    assert violation.sentence() == (
        "line 7: step 2 of request A reads tokens 5 to 7 through index 1 of its table in group 0 (block 2), but A released it at "
        "line 7 (window) and the block went back to the pool while the step was unprocessed."
    )


def test_reallocated_under_a_step_that_reads_it(kit: Any) -> None:
    trace = _in_flight(kit).release({1: 2}).add("B").allocate(2, request="B")
    assert trace.found(SETTLED) == {"read_resident": {"freed[window]": 1, "reallocated[window]": 1}}
    assert trace.found(STREAM_ORDER) == trace.found(EVENT) == {}


def test_reallocated_under_a_step_that_writes_it(kit: Any) -> None:
    trace = _in_flight(kit).release({2: 3}, "preempt").add("B").allocate(3, request="B")
    found = trace.found(SETTLED)
    assert found["write_owned"] == {"reallocated[preempt]": 1}
    assert trace.found(STREAM_ORDER) == trace.found(EVENT) == {}
    taken_by = [violation.taken_by for violation in trace.judge(SETTLED).result(Property.WRITE_OWNED).violations]
    assert taken_by == ["request B"]


def test_once_processed_a_step_needs_nothing(kit: Any) -> None:
    trace = _in_flight(kit).process(2, kit.output()).release({1: 2, 2: 3}, "preempt").add("B").allocate(2, 3, request="B")
    assert all(trace.found(contract) == {} for contract in Contract)


@pytest.mark.parametrize("ending", ["preempt", "finish"])
def test_stale_and_finished_steps_still_read(kit: Any, ending: str) -> None:
    trace = _in_flight(kit)
    if ending == "preempt":
        trace.put(ev.Preempt(request="A"))
    else:
        trace.finish()
    trace.release({1: 2}, ending)
    assert trace.found(SETTLED) == {"read_resident": {f"freed[{ending}]": 1}}


def test_a_shared_block_is_freed_by_another_request(kit: Any) -> None:
    trace = _in_flight(kit).add("B").touch(1, 2, request="B").release({1: 2}, "preempt", freed=())
    assert trace.found(SETTLED) == {}
    trace.release({0: 1, 1: 2}, "finish", request="B", freed=[2])
    assert trace.found(SETTLED) == {"read_resident": {"freed[preempt]": 1}}


def test_freed_by_a_holder_that_is_no_request(kit: Any) -> None:
    trace = _in_flight(kit).put(ev.Hold(holder="pin", kind="pin", blocks=(2,))).release({1: 2}, freed=())
    assert trace.found(SETTLED) == {}
    trace.put(ev.Drop(holder="pin", blocks=(2,), freed=(2,)))
    assert trace.found(SETTLED) == {"read_resident": {"freed[window]": 1}}


def test_the_fork_report(kit: Any) -> None:
    """W=128, B=32, 158 settled, the step at 158 in flight: the optimistic prune frees block 0, read at position 31 (vllm-ascend#13501)."""
    trace = kit.Builder(SlidingWindowSpec(block_size=32, window=128)).add()
    trace.allocate(1, 2, 3, 4, 5).schedule(1, kit.entry(0, 158, [1, 2, 3, 4, 5])).process(1, kit.output())
    trace.schedule(2, kit.entry(158, 1)).release({0: 1})
    [violation] = trace.judge(SETTLED).result(Property.READ_RESIDENT).violations
    assert (violation.index, violation.needed) == (0, (31, 31))


# ---- null when scheduled ---------------------------------------------------------------------------------------------


def test_null_at_schedule_though_read_is_a_violation_under_every_contract(kit: Any) -> None:
    trace = kit.Builder().add().allocate(1, 2, 3).schedule(1, kit.entry(0, 8, [1, 2, 3])).process(1, kit.output())
    trace.release({1: 2}).schedule(2, kit.entry(8, 1))
    assert [trace.found(contract) for contract in Contract] == [
        {"read_resident": {"released_before_schedule[window]": 1}} for _ in Contract
    ]


def test_null_at_schedule_because_of_a_rollback_only(kit: Any) -> None:
    """At 9 computed tokens block 1 (tokens 4 to 7) is needed; at 11 it is not; a rejection of 3 takes the request back to 8."""
    trace = kit.Builder().add().allocate(1, 2, 3).schedule(1, kit.entry(0, 7, [1, 2, 3])).process(1, kit.output())
    trace.schedule(2, kit.entry(7, 4, drafts=3)).release({0: 1, 1: 2}).process(2, kit.output(rejected=3))
    trace.schedule(3, kit.entry(8, 1))
    for contract in Contract:
        causes = trace.found(contract)["rollback_resident"]
        assert causes == {"released_before_rollback[window]": 1, "released_before_schedule[window]": 1}
        assert ("read_resident" in trace.found(contract)) == (contract is SETTLED)


def test_null_at_schedule_in_a_row_that_is_written(kit: Any) -> None:
    trace = kit.Builder().add().allocate(1, 2, 3).schedule(1, kit.entry(0, 8, [1, 2, 3])).process(1, kit.output())
    trace.release({2: 3}).schedule(2, kit.entry(8, 1))
    for contract in Contract:
        assert trace.found(contract)["write_owned"] == {"released_before_schedule[window]": 1}


def test_a_row_without_a_block_for_its_own_token(kit: Any) -> None:
    trace = kit.Builder().add().allocate(1).schedule(1, kit.entry(0, 5, [1]))
    assert trace.found(STREAM_ORDER) == {
        "read_resident": {"released_before_schedule[never released]": 1},
        "write_owned": {"released_before_schedule[never released]": 1},
    }


def test_a_row_that_names_what_the_request_does_not_hold(kit: Any) -> None:
    trace = kit.Builder().add().allocate(1).schedule(1, kit.entry(0, 4, [2]))
    [violation] = trace.judge(STREAM_ORDER).result(Property.READ_RESIDENT).violations
    assert violation.block == 2
    assert "did not hold that block" in violation.sentence()


def test_who_released_an_entry_is_forgotten_once_it_holds_a_block_again(kit: Any) -> None:
    trace = kit.Builder(kit.FULL).add().allocate(1).schedule(1, kit.entry(0, 4, [1])).process(1, kit.output())
    trace.put(ev.Preempt(request="A")).release({0: 1}, "preempt").allocate(2).schedule(2, kit.entry(0, 4, [3], resumed=True))
    assert trace.found(STREAM_ORDER)["read_resident"] == {"released_before_schedule[never released]": 1}


def test_so_it_is_where_the_table_goes_on(kit: Any) -> None:
    """Block 3 takes the place of block 1, which the row still names."""
    trace = kit.Builder(kit.FULL).add().allocate(1, 2).schedule(1, kit.entry(0, 8, [1, 2])).process(1, kit.output())
    trace.release({0: 1}).allocate(3).schedule(2, kit.entry(8, 1))
    assert trace.judge(STREAM_ORDER).result(Property.READ_RESIDENT).violations[0].cause == "released_before_schedule[never released]"


def test_outputs_may_come_in_another_order_than_entries(kit: Any) -> None:
    trace = kit.Builder(kit.FULL).add().add("B").allocate(1, 2).allocate(3, request="B")
    trace.schedule(1, kit.entry(0, 4, [1, 2], drafts=3), kit.entry(0, 4, [3], request="B"))
    trace.process(1, kit.output(request="B"), kit.output(rejected=3)).schedule(2, kit.entry(1, 4), kit.entry(4, 1, request="B"))
    assert trace.found(STREAM_ORDER).get("counters_symmetric") is None


def test_where_a_block_was_before_it_moved_is_forgotten_with_it(kit: Any) -> None:
    trace = _in_flight(kit).put(_move(1, 7, 2)).process(2, kit.output())
    monitor = Monitor(trace.config, SETTLED)
    for line, event in enumerate(trace.events, start=1):
        monitor.feed(line, event)
    assert monitor._live.requests["A"].tables[0].moved == {2: {1}}
    monitor.feed(line + 1, kit.Builder().release({7: 2}).events[1])
    assert monitor._live.requests["A"].tables[0].moved == {}


def test_the_row_is_replaced_on_resume(kit: Any) -> None:
    trace = kit.Builder(kit.FULL).add().allocate(1).schedule(1, kit.entry(0, 4, [1])).process(1, kit.output())
    trace.put(ev.Preempt(request="A")).release({0: 1}, "preempt").allocate(2)
    resumed = kit.entry(0, 4, [2], resumed=True)
    assert trace.schedule(2, resumed).found(STREAM_ORDER) == {}
    trace.events[-1] = ev.Schedule(step=2, requests=(kit.entry(0, 4, [2]),))
    assert "read_resident" in trace.found(STREAM_ORDER)


def test_a_hole_beyond_the_first_step_is_seen_by_the_second(kit: Any) -> None:
    """The table has nothing at index 1; step 1 ends before it, step 2 reads it."""
    trace = kit.Builder(kit.FULL).add().allocate(1).allocate(3, first=2).schedule(1, kit.entry(0, 4, [1, 0, 3])).process(1, kit.output())
    assert trace.found(STREAM_ORDER) == {}
    trace.schedule(2, kit.entry(4, 8))
    assert [(found.step, found.index) for found in trace.judge(STREAM_ORDER).result(Property.READ_RESIDENT).violations] == [(2, 1)]


def test_a_later_step_past_its_row(kit: Any) -> None:
    trace = kit.Builder(kit.FULL).add().allocate(1).schedule(1, kit.entry(0, 4, [1])).process(1, kit.output())
    trace.schedule(2, kit.entry(4, 3, drafts=2))
    assert trace.found(STREAM_ORDER) == {
        "read_resident": {"released_before_schedule[never released]": 1},
        "write_owned": {"released_before_schedule[never released]": 1},
    }
    trace.process(2, kit.output(rejected=1)).schedule(3)
    assert trace.found(STREAM_ORDER)["rollback_resident"] == {"released_before_rollback[never released]": 1}


def test_lookahead_slots_are_written_only_where_there_are_blocks(kit: Any) -> None:
    trace = kit.Builder(num_lookahead_tokens=4).add().allocate(1).schedule(1, kit.entry(0, 4, [1]))
    assert trace.found(SETTLED) == {}
    trace = kit.Builder(num_lookahead_tokens=4).add().allocate(1, 2).schedule(1, kit.entry(0, 4, [1, 2]))
    trace.release({1: 2}).add("B").allocate(2, request="B")
    assert trace.found(SETTLED) == {"write_owned": {"reallocated[window]": 1}}


# ---- rollbacks -------------------------------------------------------------------------------------------------------


def _rolled_back(kit: Any) -> Any:
    trace = kit.Builder().add().allocate(1, 2, 3).schedule(1, kit.entry(0, 7, [1, 2, 3])).process(1, kit.output())
    return trace.schedule(2, kit.entry(7, 4, drafts=3)).release({0: 1, 1: 2}).process(2, kit.output(rejected=3))


def test_a_rollback_is_void_if_the_request_finishes_with_it(kit: Any) -> None:
    trace = _rolled_back(kit).add("B").finish().release({2: 3}, "finish").end(idle=True)
    assert trace.found(STREAM_ORDER) == {}


@pytest.mark.parametrize("told_by", ["schedule", "preempt", "end"])
def test_a_rollback_is_reported_once_no_finish_can_follow(kit: Any, told_by: str) -> None:
    trace = _rolled_back(kit)
    report = trace.judge(STREAM_ORDER)
    assert (report.result(Property.ROLLBACK_RESIDENT).verdict, report.exit_code) == (Verdict.UNDECIDED, 3)
    if told_by == "schedule":
        trace.schedule(3)
    elif told_by == "preempt":
        trace.put(ev.Preempt(request="A"))
    else:
        trace.end()
    [violation] = trace.judge(STREAM_ORDER).result(Property.ROLLBACK_RESIDENT).violations
    assert (violation.line, violation.index, violation.needed) == (8, 1, (5, 7))
    assert "after 3 tokens were taken back" in violation.sentence()


def test_a_failed_load_lowers_the_count_below_nulled_blocks(kit: Any) -> None:
    trace = kit.Builder().add(prompt_tokens=16).allocate(4, first=3).schedule(1, kit.entry(12, 2, [0, 0, 0, 4]))
    trace.put(ev.Computed(request="A", computed=8, cause="load_failed", stale=True)).schedule(2)
    assert trace.found(STREAM_ORDER)["rollback_resident"] == {"released_before_rollback[never released, load_failed]": 1}


def test_a_count_lowered_below_what_the_last_step_was_cleared_for(kit: Any) -> None:
    """The step at 16 reads 13 to 15; the one at 12 would read 9 to 11, where nothing is."""
    trace = kit.Builder().add(prompt_tokens=20).allocate(4, 5, first=3).schedule(1, kit.entry(16, 1, [0, 0, 0, 4, 5]))
    assert trace.found(STREAM_ORDER) == {}
    trace.put(ev.Computed(request="A", computed=12, cause="load_failed", stale=True)).schedule(2)
    [violation] = trace.judge(STREAM_ORDER).result(Property.ROLLBACK_RESIDENT).violations
    assert (violation.index, violation.needed) == (2, (9, 11))


def test_a_count_lowered_before_the_first_step(kit: Any) -> None:
    trace = kit.Builder().add(prompt_tokens=16).touch(4, first=3)
    trace.put(ev.Computed(request="A", computed=15, cause="hit", stale=False))
    trace.put(ev.Computed(request="A", computed=14, cause="last_token", stale=False)).end()
    assert trace.found(STREAM_ORDER)["rollback_resident"] == {"released_before_rollback[never released, last_token]": 1}


def test_a_rollback_is_told_at_the_next_output(kit: Any) -> None:
    trace = _rolled_back(kit)
    trace.events[6:6] = kit.Builder().schedule(9).events[1:]
    monitor = Monitor(trace.config, STREAM_ORDER)
    told = [monitor.feed(line, event) for line, event in enumerate(trace.process(9).events, start=1)]
    assert [len(violations) for violations in told[-2:]] == [0, 1]


def test_a_rollback_that_all_blocks_survive(kit: Any) -> None:
    trace = kit.Builder().add().allocate(1, 2, 3).schedule(1, kit.entry(0, 7, [1, 2, 3])).process(1, kit.output())
    trace.schedule(2, kit.entry(7, 4, drafts=3)).release({0: 1}).process(2, kit.output(rejected=3)).schedule(3, kit.entry(8, 1))
    assert trace.found(STREAM_ORDER) == {}


# ---- true starts -----------------------------------------------------------------------------------------------------


def _drafting(kit: Any) -> Any:
    """Step 2 at 7 with 3 drafts, and behind it step 3, scheduled at 11 and starting anywhere from 8 to 11."""
    trace = kit.Builder().add().allocate(1, 2, 3, 4).schedule(1, kit.entry(0, 7, [1, 2, 3, 4])).process(1, kit.output())
    return trace.schedule(2, kit.entry(7, 4, drafts=3)).schedule(3, kit.entry(11, 2))


@pytest.mark.parametrize(("rejected", "needed"), [(0, None), (1, (7, 7)), (3, (5, 7))])
def test_what_a_step_reads_follows_its_true_start(kit: Any, rejected: int, needed: tuple[int, int] | None) -> None:
    trace = _drafting(kit).process(2, kit.output(rejected=rejected)).release({1: 2}).process(3, kit.output())
    violations = trace.judge(SETTLED).result(Property.READ_RESIDENT).violations
    assert [(violation.step, violation.needed) for violation in violations] == ([(3, needed)] if needed else [])


@pytest.mark.parametrize(("rejected", "count"), [(0, 0), (1, 1), (3, 1)])
def test_a_loss_before_the_rejection_is_judged_when_the_start_is_known(kit: Any, rejected: int, count: int) -> None:
    """The block is freed while step 2, which needs it anyhow, is in flight; whether step 3 needs it too is open until then."""
    trace = _drafting(kit).release({1: 2})
    assert trace.found(SETTLED) == {"read_resident": {"freed[window]": 1}}
    trace.process(2, kit.output(rejected=rejected)).finish().process(3, kit.output())
    steps = [violation.step for violation in trace.judge(SETTLED).result(Property.READ_RESIDENT).violations]
    assert steps == [2] + [3] * count


@pytest.mark.parametrize(("rejected", "written"), [(0, True), (3, False)])
def test_a_write_at_the_top_is_open_until_the_start_is_known(kit: Any, rejected: int, written: bool) -> None:
    """Step 3 writes 11 and 12 if nothing is rejected, block 3 (from 12); 8 and 9 if all is."""
    trace = _drafting(kit).release({3: 4}).add("B").allocate(4, request="B")
    assert trace.found(SETTLED) == {}
    trace.process(2, kit.output(rejected=rejected)).process(3, kit.output())
    assert ("write_owned" in trace.found(SETTLED)) == written


def test_what_a_step_reads_however_far_its_start_falls_is_told_at_once(kit: Any) -> None:
    """Step 3 reads 8 and 9 from 11 as from 8, and all between."""
    told = _drafting(kit).release({2: 3}).judge(SETTLED).result(Property.READ_RESIDENT).violations
    assert [violation.step for violation in told] == [2, 3]


def test_once_the_start_is_known_a_loss_is_told_at_once(kit: Any) -> None:
    trace = _drafting(kit).process(2, kit.output(rejected=0)).release({3: 4}).add("B").allocate(4, request="B")
    assert trace.found(SETTLED)["write_owned"] == {"reallocated[window]": 1}
    trace = kit.Builder().add().allocate(1, 2, 3, 4).schedule(1, kit.entry(0, 4, [1, 2, 3, 4], drafts=3)).process(1, kit.output())
    trace.schedule(2, kit.entry(4, 2)).release({1: 2}).add("B").allocate(2, request="B")
    assert trace.found(SETTLED)["write_owned"] == {"reallocated[window]": 1}


@pytest.mark.parametrize(("rejected", "count"), [(0, 1), (3, 0)])
def test_a_start_may_fall_by_the_drafts_of_every_step_before(kit: Any, rejected: int, count: int) -> None:
    """Steps 2 and 3 have 3 drafts each; step 4 is scheduled at 15 and may start at 9, so whether it writes 15 is open until then."""
    one = FullAttentionSpec(block_size=1)
    trace = kit.Builder(one, num_blocks=40, max_in_flight_steps=3).add().allocate(*range(1, 20))
    trace.schedule(1, kit.entry(0, 7, range(1, 20))).process(1, kit.output()).schedule(2, kit.entry(7, 4, drafts=3))
    trace.schedule(3, kit.entry(11, 4, drafts=3)).schedule(4, kit.entry(15, 4)).release({15: 16}).add("B").allocate(16, request="B")
    assert "write_owned" not in trace.found(SETTLED)
    for step in (2, 3, 4):
        trace.process(step, kit.output(rejected=rejected if step < 4 else 0))
    assert trace.judge(SETTLED).result(Property.WRITE_OWNED).count == count


def test_an_open_loss_is_judged_by_the_start_known_at_the_end(kit: Any) -> None:
    trace = _drafting(kit).release({3: 4}).add("B").allocate(4, request="B")
    assert trace.judge(SETTLED).result(Property.WRITE_OWNED).verdict is Verdict.UNDECIDED
    assert trace.end().found(SETTLED)["write_owned"] == {"reallocated[window]": 1}


def test_rejections_of_an_earlier_generation_move_nothing(kit: Any) -> None:
    trace = kit.Builder(kit.FULL, max_in_flight_steps=3).add().allocate(1, 2, 3).schedule(1, kit.entry(0, 4, [1, 2, 3]))
    trace.schedule(2, kit.entry(4, 4, drafts=3)).put(ev.Preempt(request="A")).release({0: 1, 1: 2, 2: 3}, "preempt")
    trace.allocate(4).schedule(3, kit.entry(0, 4, [4], resumed=True))
    trace.process(1, kit.output()).process(2, kit.output(rejected=3)).process(3, kit.output()).schedule(4)
    assert trace.found(STREAM_ORDER) == {}


def test_stale_drafts_leave_nothing_open(kit: Any) -> None:
    """The step of the new generation has a known start, though a stale step with drafts is still in flight."""
    trace = kit.Builder(kit.FULL).add().allocate(1).schedule(1, kit.entry(0, 4, [1], drafts=3))
    trace.put(ev.Preempt(request="A")).release({0: 1}, "preempt").allocate(2)
    trace.schedule(2, kit.entry(0, 1, [2], resumed=True)).release({0: 2}, "preempt").add("B").allocate(2, request="B")
    assert [violation.step for violation in trace.judge(SETTLED).result(Property.WRITE_OWNED).violations] == [2]


def test_a_lowered_count_ends_the_generation_of_steps_that_stay_live(kit: Any) -> None:
    """Step 1 runs at 5 with 3 drafts; the count is set from 9 to 8; its rejections then move nothing of step 2, at 8."""
    trace = kit.Builder(kit.FULL).add().allocate(1, 2, 3).schedule(1, kit.entry(0, 5, [1, 2, 3])).process(1, kit.output())
    trace.schedule(2, kit.entry(5, 4, drafts=3)).put(ev.Computed(request="A", computed=8, cause="session", stale=False))
    trace.schedule(3, kit.entry(8, 1)).process(2, kit.output(rejected=3)).release({2: 3}, "preempt")
    assert trace.add("B").allocate(3, request="B").found(SETTLED)["write_owned"] == {"reallocated[preempt]": 1}


def test_a_stale_rejection_is_no_rollback(kit: Any) -> None:
    trace = kit.Builder().add().allocate(1).schedule(1, kit.entry(0, 4, [1], drafts=3)).put(ev.Preempt(request="A"))
    trace.release({0: 1}, "preempt").allocate(4, first=3).schedule(2, kit.entry(12, 1, [0, 0, 0, 4], resumed=True))
    trace.process(1, kit.output(rejected=3)).end()
    assert trace.found(STREAM_ORDER) == {"read_resident": {"released_before_schedule[never released]": 1}}


def test_a_step_sees_its_row_as_it_stood(kit: Any) -> None:
    """Step 2 appends block 2; step 1, with lookahead slots there, was scheduled before and cannot write it."""
    trace = kit.Builder(num_lookahead_tokens=4).add().allocate(1).schedule(1, kit.entry(0, 4, [1]))
    trace.allocate(2, first=1).schedule(2, kit.entry(4, 1, [2])).release({1: 2}).add("B").allocate(2, request="B")
    assert [violation.step for violation in trace.judge(SETTLED).result(Property.WRITE_OWNED).violations] == [2]


# ---- moves -----------------------------------------------------------------------------------------------------------


def _move(from_index: int, to_index: int, block: int) -> ev.Move:
    return ev.Move(request="A", group=0, from_index=from_index, to_index=to_index, block=block)


def test_a_block_that_moved_is_read_where_the_row_has_it(kit: Any) -> None:
    """Step 2 reads block 2 through index 1 of its row; the table has it at index 7 when it lets go."""
    trace = _in_flight(kit).put(_move(1, 7, 2)).release({7: 2})
    [violation] = trace.judge(SETTLED).result(Property.READ_RESIDENT).violations
    assert (violation.cause, violation.index, violation.needed) == ("freed[window]", 1, (5, 7))
    assert _in_flight(kit).put(_move(1, 7, 2)).put(_move(7, 8, 2)).release({8: 2}).found(SETTLED) == trace.found(SETTLED)
    assert _in_flight(kit).put(_move(0, 7, 1)).release({7: 1}).found(SETTLED) == {}  # index 0 is not read
    assert _in_flight(kit).process(2, kit.output()).put(_move(1, 7, 2)).release({7: 2}).found(SETTLED) == {}


def test_a_load_over_a_block_that_moved(kit: Any) -> None:
    trace = _in_flight(kit).put(_move(1, 7, 2)).load(7, 2, request="A")
    assert trace.found(STREAM_ORDER) == {"read_resident": {"loaded_over[never released]": 1}}


# ---- behind the fence ------------------------------------------------------------------------------------------------


def test_a_fenced_table_outlives_the_resumption(kit: Any) -> None:
    """A resumes with new blocks while its old table waits behind the fence: two tables, one request, nothing wrong."""
    trace = kit.Builder(kit.FULL).add().allocate(1).schedule(1, kit.entry(0, 4, [1])).put(ev.Preempt(request="A", output="drop"))
    trace.allocate(2).schedule(2, kit.entry(0, 4, [2], resumed=True)).process(1, kit.output())
    trace.release({0: 1}, "deferred").process(2, kit.output()).finish().release({0: 2}, "finish").end(idle=True)
    assert trace.found(SETTLED) == {}


def test_a_fenced_block_that_is_given_away_too_early(kit: Any) -> None:
    trace = kit.Builder(kit.FULL).add().allocate(1).schedule(1, kit.entry(0, 4, [1])).put(ev.Preempt(request="A", output="drop"))
    trace.allocate(2).schedule(2, kit.entry(0, 4, [2], resumed=True)).release({0: 1}, "deferred").add("B").allocate(1, request="B")
    found = trace.found(SETTLED)
    assert found["read_resident"] == {"freed[deferred]": 1, "reallocated[deferred]": 1}
    assert found["write_owned"] == {"reallocated[deferred]": 1}


def test_what_the_fence_keeps_must_come_back(kit: Any) -> None:
    trace = kit.Builder(kit.FULL).add().allocate(1).schedule(1, kit.entry(0, 4, [1])).put(ev.Preempt(request="A", output="drop"))
    trace.allocate(2).schedule(2, kit.entry(0, 4, [2], resumed=True)).process(1, kit.output()).process(2, kit.output())
    trace.finish().release({0: 2}, "finish").end(idle=True)
    assert trace.found(SETTLED) == {"single_owner": {"fenced_at_end": 1}}


@pytest.mark.parametrize(("rejected", "count"), [(0, 0), (3, 1)])
def test_a_stale_step_starts_lower_by_what_its_stale_predecessor_rejects(kit: Any, rejected: int, count: int) -> None:
    """On the device step 2 follows step 1, whether or not the host has ended their generation: at 5 it reads block 1, at 8 it does not."""
    trace = kit.Builder(kit.WINDOW).add().allocate(1, 2, 3).schedule(1, kit.entry(0, 4, [1, 2, 3])).process(1, kit.output())
    trace.schedule(2, kit.entry(4, 4, drafts=3)).schedule(3, kit.entry(8, 1)).put(ev.Preempt(request="A", output="drop"))
    trace.release({0: 1}, "preempt").process(2, kit.output(rejected=rejected))
    freed_under = [violation.step for violation in trace.end().judge(SETTLED).result(Property.READ_RESIDENT).violations]
    assert freed_under.count(3) == count
