"""A load is an unordered writer unless `after` or `step` orders it."""

from __future__ import annotations

from typing import Any

import pytest

from settled.model import events as ev
from settled.model.monitor import Verdict
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
    shared = kit.Builder(kit.FULL).add().allocate(1).schedule(1, kit.entry(0, 4, [1])).process(1, kit.output())
    shared.allocate(2, first=1).schedule(2, kit.entry(4, 1, [2])).add("B").touch(1, request="B").load(7, 1)
    assert shared.found(STREAM_ORDER) == {"read_resident": {"loaded_over[never released]": 1}}


def test_a_store_harms_nobody(kit: Any) -> None:
    trace = _freed_in_flight(kit).put(ev.Store(job=1, request="B", blocks=((2,),)))
    assert trace.found(STREAM_ORDER) == {}
