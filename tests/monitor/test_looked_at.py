"""What cannot have changed is not looked at again: all is found that a monitor finds which always looks, in right runs and wrong."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from settled.model import events as ev
from settled.model.disciplines import DISCIPLINES
from settled.model.monitor import Monitor, sharing
from settled.model.monitor.bounds import Bounds
from settled.model.monitor.live import Live
from settled.model.monitor.masks import Mask
from settled.model.monitor.state import FAR, Entry, Request, Watch
from settled.model.properties import Contract
from settled.model.trace_io import TraceError
from settled.reference.workload import random_workload, run_workload

SEEDS, FAULTS, STEPS = range(60), 6, 40
Found = list[tuple[int, str]]


def _events(seed: int) -> list[ev.Event]:
    """A random run under a discipline, right or broken, with a few events changed, lost or put in."""
    rng = Random(seed)
    events: list[ev.Event] = []
    discipline = rng.choice(tuple(DISCIPLINES.values()))
    run_workload(random_workload(seed), discipline=discipline, steps=STEPS, sink=events.append)
    for _ in range(seed % FAULTS):
        _plant(rng, events)
    return events


def _plant(rng: Random, events: list[ev.Event]) -> None:
    """One fault, at a random place."""
    place = rng.randrange(1, len(events))
    event = events[place]
    blocks = [block for other in events if isinstance(other, ev.Allocate) for block in other.blocks]
    match event:
        case ev.Schedule(requests=[part, *others]) if rng.random() < 0.6:
            rows = tuple([tuple([rng.choice(blocks) for _ in row]) for row in part.new_blocks])
            wrong = rng.choice((replace(part, start=max(0, part.start + rng.choice((-3, 3)))), replace(part, new_blocks=rows)))
            events[place] = replace(event, requests=(wrong, *others))
        case ev.Allocate() | ev.Touch() if rng.random() < 0.6:
            events[place] = replace(event, blocks=tuple([rng.choice(blocks) for _ in event.blocks]))
        case ev.Allocate():
            events.insert(place, ev.Hold(holder="planted", kind=rng.choice(("pin", "copy")), blocks=event.blocks))
        case ev.Release() | ev.Touch() | ev.Evict() | ev.Cache():
            del events[place]
        case ev.Schedule(requests=[part, *_]):
            release = ev.Release(request=part.request, group=0, indices=(0,), blocks=(rng.choice(blocks),), cause="window", freed=())
            events.insert(place, rng.choice((release, ev.Touch(request=part.request, group=0, first_index=1, blocks=release.blocks))))


def _found(events: list[ev.Event], contract: Contract) -> Found:
    config = events[0]
    assert isinstance(config, ev.Config)
    monitor = Monitor(config, contract)
    found: Found = []
    try:
        for line, event in enumerate(events, 1):
            found += [(line, str(violation)) for violation in monitor.feed(line, event)]
    except TraceError as error:
        found.append((0, str(error)))
    return [*found, *[(-1, f"{result.property} {result.verdict} {result.causes}") for result in monitor.finish().properties]]


@pytest.fixture
def always_looks(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """From the call on, monitors look at each step's whole row and at what each prune left."""

    def pruned_anew(self: Bounds, request: Request, *args: Any, **keys: Any) -> None:
        for table in request.tables:
            table.kept_to = -1
        pruned(self, request, *args, **keys)

    def scheduled(live: Live, entry: Entry, line: int) -> None:
        for group, mask, _ in entry.request.modelled:
            for index in mask.written(entry, group, live.config.num_lookahead_tokens):
                block = entry.row_block(group, index)
                if live.ledger.users(block) > 1:
                    live.residency.shared(Watch(entry, group, index, block, None), line, "others")

    def switch() -> None:
        monkeypatch.setattr(Bounds, "pruned", pruned_anew)
        monkeypatch.setattr(sharing, "scheduled", scheduled)

    pruned = Bounds.pruned
    return switch


@pytest.mark.slow
def test_nothing_is_missed_that_a_full_look_would_find(always_looks: Callable[[], None]) -> None:
    traces = [(_events(seed), contract) for seed in SEEDS for contract in (Contract.SETTLED, Contract.STREAM_ORDER)]
    found = [_found(*trace) for trace in traces]
    always_looks()
    assert found == [_found(*trace) for trace in traces]
    assert sum(len(each) > 6 for each in found) > len(traces) // 2  # more than the six results


@pytest.mark.slow
def test_the_traces_tell_when_a_look_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    traces = [(_events(seed), Contract.SETTLED) for seed in SEEDS]
    right = [_found(*trace) for trace in traces]
    with monkeypatch.context() as patched:
        patched.setattr(sharing, "scheduled", lambda live, entry, line: None)
        assert right != [_found(*trace) for trace in traces]
    monkeypatch.setattr(Mask, "kept_to", lambda self, index: FAR)
    assert right != [_found(*trace) for trace in traces]
