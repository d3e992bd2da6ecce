"""A shortest violation told as events is a trace that the monitor, which knows nothing of the search, finds violated."""

from __future__ import annotations

import io
from dataclasses import replace
from functools import cache

import pytest

from settled.model.events import Add, Config, Drop, Event, Hold, Process, Release, Schedule
from settled.model.explicit import Move
from settled.model.kinds import MambaAlign, SlidingWindow
from settled.model.monitor import PropertyResult, Verdict
from settled.model.properties import Property
from settled.model.specs import MambaSpec, SlidingWindowSpec
from settled.model.trace_io import read_trace, write_trace
from settled.proofs.refutations import REFUTATIONS, Counterexample, Refutation, judge, search

SHORT = [refutation for refutation in REFUTATIONS if refutation.length <= 3]  # the longer ones take seconds
each = pytest.mark.parametrize("refutation", SHORT, ids=lambda refutation: refutation.name)
windowed = pytest.mark.parametrize(
    "refutation", [known for known in SHORT if isinstance(known.kind, SlidingWindow)], ids=lambda refutation: refutation.name
)


@cache
def found(refutation: Refutation) -> Counterexample:
    counterexample = search(refutation)
    assert counterexample is not None
    return counterexample


def test_there_are_short_refutations() -> None:
    assert SHORT


@each
def test_the_shortest_trace_has_the_stated_length(refutation: Refutation) -> None:
    assert found(refutation).shortest.length == refutation.length


@each
def test_the_monitor_finds_the_stated_property_violated(refutation: Refutation) -> None:
    result = found(refutation).report.result(refutation.violates)
    assert result.verdict is Verdict.VIOLATED
    assert found(refutation).violation is not None


@each
def test_the_trace_is_schema_v1_and_judged_the_same_when_read_back(refutation: Refutation) -> None:
    events = found(refutation).events
    out = io.StringIO()
    write_trace(events, out)
    read = [event for _, event in read_trace(io.StringIO(out.getvalue()))]
    assert read == list(events)
    again, before = judge(read, refutation.claim.contract), found(refutation).report
    assert [told(result) for result in again.properties] == [told(result) for result in before.properties]


def told(result: PropertyResult) -> tuple[object, ...]:
    return result.property, result.verdict, result.count, result.causes, tuple(result.violations)


@windowed
def test_the_trace_tells_the_choices_of_the_search(refutation: Refutation) -> None:
    """The config has the window and block size of the search, and every schedule and process of it is there, in order."""
    shortest, events = found(refutation).shortest, found(refutation).events
    config, add = events[0], events[1]
    assert isinstance(config, Config)
    assert isinstance(shortest.kind, SlidingWindow)
    (spec,) = config.groups
    assert replace(spec, cap=None) == SlidingWindowSpec(block_size=shortest.block_size, window=int(repr(shortest.kind.window)))
    assert (spec.cap is None) == (refutation.violates is not Property.HELD_BOUNDED)
    assert config.num_draft_tokens == shortest.drafts_max >= max(choice.drafts for choice in shortest.choices)
    assert add == Add(request="A", prompt_tokens=shortest.prompt)
    assert [_tokens(event) for event in events if isinstance(event, Schedule) and event.requests[0].request == "A"] == [
        (choice.tokens, choice.drafts) for choice in shortest.choices if choice.move == Move.SCHEDULE
    ]
    assert any(event.requests[0].request == "B" for event in events if isinstance(event, Schedule)) == (
        Move.ANOTHER in [choice.move for choice in shortest.choices]
    )
    assert sum(isinstance(event, Process) for event in events) == [choice.move for choice in shortest.choices].count(Move.PROCESS)


def _tokens(event: Event) -> tuple[int, int]:
    assert isinstance(event, Schedule)
    return event.requests[0].tokens, event.requests[0].drafts


def test_a_pruned_block_that_waits_is_held_by_the_fence_until_the_steps_before_are_processed() -> None:
    refutation = next(known for known in REFUTATIONS if known.name == "pool-fence-rollback_resident")
    events = found(refutation).events
    hold, release, drop = (next(event for event in events if isinstance(event, kind)) for kind in (Hold, Release, Drop))
    assert isinstance(hold, Hold)
    assert isinstance(release, Release)
    assert isinstance(drop, Drop)
    assert hold.blocks == release.blocks == drop.blocks == drop.freed
    assert release.freed == ()
    scheduled = [event.step for event in events[: events.index(release)] if isinstance(event, Schedule)]
    processed = [event.step for event in events[: events.index(drop)] if isinstance(event, Process)]
    assert scheduled == processed


def test_a_state_kind_is_told_by_the_reference() -> None:
    refutation = next(known for known in REFUTATIONS if isinstance(known.kind, MambaAlign))
    counterexample = found(refutation)
    config = counterexample.events[0]
    assert isinstance(config, Config)
    (spec,) = config.groups
    assert replace(spec, cap=None) == MambaSpec(block_size=4, mode="align", num_speculative_blocks=1)
    assert sum(isinstance(event, Schedule) for event in counterexample.events) == refutation.length
