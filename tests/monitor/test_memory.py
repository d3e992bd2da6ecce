"""The monitor is online: what it keeps is bounded by what is alive, however long the trace and however many violations."""

from __future__ import annotations

import gc
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

import pytest

from settled.model import events as ev
from settled.model.monitor import Monitor
from settled.model.properties import Contract, Property
from settled.model.specs import FullAttentionSpec, MambaSpec

SHARED = (type, ModuleType, FunctionType, MethodType, BuiltinFunctionType)


def _objects_reached(root: object) -> int:
    """How many objects hang on a value: code and classes left out."""
    seen, stack = {id(root)}, [root]
    while stack:
        for referent in gc.get_referents(stack.pop()):
            if id(referent) not in seen and not isinstance(referent, SHARED):
                seen.add(id(referent))
                stack.append(referent)
    return len(seen)


def _rounds(kit: Any, monitor: Monitor, begin: int, end: int, *, broken: bool) -> None:
    """One request after the other: two steps in flight, drafts rejected, a load, a prune (under the reader, if broken), a finish."""
    line = 1 + begin * 100
    for number in range(begin, end):
        name, step = f"r{number}", 2 * number
        trace = kit.Builder(records=("order",)).add(name).allocate(1, 2, 3, request=name)
        trace.put(ev.Cache(entries=(ev.CacheEntry(block=1, hash=number),)))
        trace.schedule(step, kit.entry(0, 7, [1, 2, 3], request=name)).schedule(step + 1, kit.entry(7, 4, request=name, drafts=3))
        if broken:
            trace.release({0: 1, 1: 2}, request=name)
        trace.process(step, kit.output(request=name)).process(step + 1, kit.output(request=name, rejected=3))
        trace.load(number, 9, request=name).put(ev.Loaded(job=number, ok=True)).finish(name)
        trace.release({2: 3} if broken else {0: 1, 1: 2, 2: 3}, "finish", request=name)
        trace.put(ev.Evict(entries=(ev.CacheEntry(block=1),)))
        for event in trace.events[1:]:
            line += 1
            monitor.feed(line, event)


def test_state_does_not_grow_with_the_trace(kit: Any) -> None:
    for broken in (False, True):
        monitor = Monitor(kit.Builder().config, Contract.SETTLED)
        _rounds(kit, monitor, 0, 50, broken=broken)
        before = _objects_reached(monitor)
        _rounds(kit, monitor, 50, 1000, broken=broken)
        assert abs(_objects_reached(monitor) - before) < 50
        assert bool(monitor.finish().result(Property.READ_RESIDENT).count) == broken


@pytest.mark.parametrize("drafts", [0, 2])
def test_state_does_not_grow_with_the_steps_of_a_request(kit: Any, drafts: int) -> None:
    specs = FullAttentionSpec(block_size=100_000), MambaSpec(block_size=100_000, mode="align", num_speculative_blocks=2)
    trace = kit.Builder(*specs).add().allocate(1).allocate(2, 3, 4, group=1).schedule(0, kit.entry(0, 4, [1], [2, 3, 4]))
    for step in range(1, 1000):
        trace.schedule(step, kit.entry(4 * step, 4, [], [], drafts=drafts)).process(step - 1, kit.output())
    monitor = Monitor(trace.config, Contract.SETTLED)
    reached = []
    for line, event in enumerate(trace.events, start=1):
        assert not monitor.feed(line, event)
        if line in (100, len(trace.events)):
            reached.append(_objects_reached(monitor))
    assert abs(reached[1] - reached[0]) < 50


def test_all_violations_are_counted_and_the_first_are_kept(kit: Any) -> None:
    monitor = Monitor(kit.Builder().config, Contract.SETTLED)
    _rounds(kit, monitor, 0, 200, broken=True)
    result = monitor.finish().result(Property.READ_RESIDENT)
    assert result.count == sum(result.causes.values()) >= 400
    assert len(result.violations) == 20
