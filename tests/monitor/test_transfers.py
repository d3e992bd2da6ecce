"""A load is an unordered writer unless `after` or `step` orders it."""

from __future__ import annotations

from typing import Any

import pytest

from settled.model import events as ev
from settled.model.monitor import Monitor, Verdict
from settled.model.properties import Contract, Property

LOST_BY_LOAD = {"read_resident": {"loaded_over[window]": 1}}
SETTLED, STREAM_ORDER, EVENT = Contract.SETTLED, Contract.STREAM_ORDER, Contract.EVENT


def _freed_in_flight(kit: Any, *, allocated_after: Any = None) -> Any:
    """Step 2 of A reads block 2, which A released and B was given."""
    trace = kit.Builder(records=("order",)).add().allocate(1, 2, 3).schedule(1, kit.entry(0, 8, [1, 2, 3]))
    trace.process(1, kit.output()).schedule(2, kit.entry(8, 1)).release({1: 2})
    return trace.add("B").allocate(2, request="B", after=allocated_after)


@pytest.mark.parametrize("contract", [STREAM_ORDER, EVENT])
def test_an_unordered_load_is_a_violation_under_every_contract(kit: Any, contract: Contract) -> None:
    trace = _freed_in_flight(kit).load(7, 2)
    assert trace.found(contract) == LOST_BY_LOAD
    assert trace.judge(contract).result(Property.READ_RESIDENT).violations[0].taken_by == "job 7"
    assert trace.found(SETTLED)["read_resident"]["loaded_over[window]"] == 1


@pytest.mark.parametrize("contract", Contract)
@pytest.mark.parametrize("keys", [{"after": (ev.After(step=2),)}, {"step": 3}])
def test_a_load_ordered_after_the_step_is_fine(kit: Any, contract: Contract, keys: dict[str, Any]) -> None:
    assert "loaded_over[window]" not in str(_freed_in_flight(kit).load(7, 2, **keys).found(contract))


def test_a_load_after_a_later_step_is_after_the_earlier_too(kit: Any) -> None:
    trace = _freed_in_flight(kit).schedule(9).load(7, 2, after=(ev.After(step=9),))
    assert trace.found(STREAM_ORDER) == {}


def test_a_load_ordered_after_an_earlier_step_only_is_not(kit: Any) -> None:
    trace = kit.Builder(records=("order",)).add().allocate(1, 2, 3).schedule(1, kit.entry(0, 8, [1, 2, 3]))
    trace.schedule(2, kit.entry(8, 1)).release({1: 2}).add("B").allocate(2, request="B")
    assert "read_resident" in trace.load(7, 2, after=(ev.After(step=1),)).found(STREAM_ORDER)


def test_a_load_after_a_transfer_that_waits_for_the_step(kit: Any) -> None:
    trace = _freed_in_flight(kit)
    trace.put(ev.Store(job=1, request="B", blocks=((2,),), after=(ev.After(step=2),)))
    assert trace.load(7, 2, after=(ev.After(job=1),)).found(STREAM_ORDER) == {}


@pytest.mark.parametrize(("cancelled", "found"), [(None, {}), (True, LOST_BY_LOAD)])
def test_the_transfer_may_be_over_while_its_step_is_not_processed(kit: Any, cancelled: bool | None, found: dict[str, Any]) -> None:
    """The host has seen the store end, but not yet read step 2: on the device the load still comes after both."""
    trace = _freed_in_flight(kit).put(ev.Store(job=1, request="B", blocks=((2,),), after=(ev.After(step=2),)))
    trace.put(ev.Stored(job=1, ok=not cancelled, cancelled=cancelled))
    assert trace.load(7, 2, after=(ev.After(job=1),)).found(STREAM_ORDER) == found


def test_a_transfer_that_is_over_is_kept_while_its_step_is_unprocessed_only(kit: Any) -> None:
    trace = kit.Builder(kit.FULL).add().allocate(1).schedule(1, kit.entry(0, 4, [1])).schedule(2, kit.entry(4, 1))
    monitor = Monitor(trace.config, STREAM_ORDER)
    for job, step in ((1, 1), (2, 2), (3, 9)):
        trace.put(ev.Store(job=job, request="A", blocks=((1,),), after=(ev.After(step=step),))).put(ev.Stored(job=job, ok=True))
    kept = []
    for line, event in enumerate(trace.process(1, kit.output()).process(2, kit.output()).events, start=1):
        monitor.feed(line, event)
        kept.append(set(monitor._live.transfers_over))
    assert kept[-3:] == [{1, 2}, {2}, set()]


def test_a_name_that_comes_back_is_another_transfer(kit: Any) -> None:
    trace = _freed_in_flight(kit).put(ev.Store(job=1, request="B", blocks=((2,),), after=(ev.After(step=2),)))
    trace.put(ev.Stored(job=1, ok=True)).put(ev.Store(job=1, request="B", blocks=((2,),)))
    trace.put(ev.Stored(job=1, ok=True))
    assert trace.load(7, 2, after=(ev.After(job=1),)).found(STREAM_ORDER) == LOST_BY_LOAD


@pytest.mark.parametrize("contract", [STREAM_ORDER, EVENT])
def test_a_load_within_the_step_that_still_reads_what_was_released(kit: Any, contract: Contract) -> None:
    """The load runs before the reads of step 2, and step 2 reads A's tokens in a block that has B's by then."""
    assert _freed_in_flight(kit).load(7, 2, step=2).found(contract) == LOST_BY_LOAD


def test_a_load_within_the_step_that_it_is_for(kit: Any) -> None:
    trace = kit.Builder(kit.FULL).add().allocate(1, 2)
    trace.put(ev.Computed(request="A", computed=4, cause="external", stale=False)).schedule(1, kit.entry(4, 4, [1, 2]))
    assert trace.load(7, 1, request="A", step=1).end().found(STREAM_ORDER) == {}


def test_a_load_within_a_step_to_come_is_decided_by_its_coming(kit: Any) -> None:
    trace = _freed_in_flight(kit).load(7, 2, step=3)
    report = trace.end().judge(STREAM_ORDER)
    assert report.result(Property.READ_RESIDENT).verdict is Verdict.UNDECIDED
    assert (report.exit_code, report.unknown) == (3, ("the trace stops before 1 possible violation(s) could be decided",))
    trace.events[-1:] = [ev.Schedule(step=3, requests=()), ev.End(idle=False)]
    report = trace.judge(STREAM_ORDER)
    assert (report.result(Property.READ_RESIDENT).verdict, report.exit_code) == (Verdict.HOLDS, 0)


def test_a_load_that_is_over_before_its_step_comes_did_not_run_within_it(kit: Any) -> None:
    trace = _freed_in_flight(kit).load(7, 2, step=3).put(ev.Loaded(job=7, ok=True)).schedule(3).end()
    assert trace.judge(STREAM_ORDER).result(Property.READ_RESIDENT).verdict is Verdict.UNDECIDED


def test_a_load_within_a_step_to_come_that_can_harm_nobody(kit: Any) -> None:
    trace = kit.Builder().add().allocate(1).schedule(1, kit.entry(0, 4, [1])).add("B").allocate(2, request="B")
    report = trace.load(7, 2, step=77).end().judge(STREAM_ORDER)
    assert report.exit_code == 0


def test_an_allocation_that_waits_helps_under_event_only(kit: Any) -> None:
    trace = _freed_in_flight(kit, allocated_after=(ev.After(step=2),)).load(7, 2)
    assert trace.found(EVENT) == {}
    assert trace.found(STREAM_ORDER) == LOST_BY_LOAD


def test_event_is_not_decided_without_recorded_order(kit: Any) -> None:
    trace = kit.Builder().add().allocate(1, 2, 3).schedule(1, kit.entry(0, 8, [1, 2, 3])).process(1, kit.output())
    trace.schedule(2, kit.entry(8, 1)).release({1: 2}).add("B").allocate(2, request="B").load(7, 2).end()
    assert trace.judge(EVENT).result(Property.READ_RESIDENT).verdict is Verdict.NOT_CHECKED
    assert trace.found(STREAM_ORDER) == LOST_BY_LOAD


@pytest.mark.parametrize("contract", Contract)
def test_a_load_over_what_the_step_writes(kit: Any, contract: Contract) -> None:
    trace = kit.Builder(records=("order",)).add().allocate(1, 2, 3).schedule(1, kit.entry(0, 8, [1, 2, 3]))
    trace.process(1, kit.output()).schedule(2, kit.entry(8, 1)).release({2: 3}, "preempt")
    trace.add("B").allocate(3, request="B").load(7, 3)
    assert trace.found(contract)["write_owned"]["loaded_over[preempt]"] == 1


def test_an_allocation_that_waits_covers_itself_only(kit: Any) -> None:
    trace = _freed_in_flight(kit, allocated_after=(ev.After(step=2),)).release({0: 2}, "abort", request="B")
    assert trace.allocate(2, first=1, request="B").load(7, 2).found(EVENT) == LOST_BY_LOAD


def test_a_load_over_a_block_that_the_request_still_holds(kit: Any) -> None:
    trace = kit.Builder().add().allocate(1).schedule(1, kit.entry(0, 4, [1])).load(7, 1, request="A")
    assert "read_resident" in trace.found(STREAM_ORDER)
    foreign = kit.Builder().add().allocate(1).schedule(1, kit.entry(0, 4, [1])).add("B").load(7, 1)
    assert "read_resident" in foreign.found(STREAM_ORDER)
    shared = kit.Builder(kit.FULL).add().allocate(1).schedule(1, kit.entry(0, 4, [1])).process(1, kit.output())
    shared.allocate(2, first=1).schedule(2, kit.entry(4, 1, [2])).add("B").touch(1, request="B").load(7, 1)
    assert shared.found(STREAM_ORDER) == {"read_resident": {"loaded_over[never released]": 1}}


def test_a_store_harms_nobody(kit: Any) -> None:
    trace = _freed_in_flight(kit).put(ev.Store(job=1, request="B", blocks=((2,),)))
    assert trace.found(STREAM_ORDER) == {}
