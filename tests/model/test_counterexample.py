"""A shortest violation told as events is a trace that the monitor, which knows nothing of the search, finds violated."""

from __future__ import annotations

import io
from functools import cache

import pytest

from settled.model.events import Add, Config, Event, Process, Schedule
from settled.model.monitor import Verdict
from settled.model.specs import SlidingWindowSpec
from settled.model.trace_io import read_trace, write_trace
from settled.proofs.refutations import REFUTATIONS, Counterexample, Refutation, judge, search

SHORT = [refutation for refutation in REFUTATIONS if refutation.length <= 3]  # the longer ones take seconds
each = pytest.mark.parametrize("refutation", SHORT, ids=lambda refutation: f"{refutation.discipline.name}-{refutation.violates}")


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
    assert judge(read) == found(refutation).report


@each
def test_the_trace_tells_the_choices_of_the_search(refutation: Refutation) -> None:
    """The config has the window and block size of the search, and every schedule and process of it is there, in order."""
    shortest, events = found(refutation).shortest, found(refutation).events
    config, add = events[0], events[1]
    assert isinstance(config, Config)
    assert config.groups == (SlidingWindowSpec(block_size=shortest.block_size, window=shortest.window),)
    assert add == Add(request="A", prompt_tokens=shortest.prompt)
    assert [_tokens(event) for event in events if isinstance(event, Schedule)] == [
        (choice.tokens, choice.drafts) for choice in shortest.choices if choice.move == 0
    ]
    assert sum(isinstance(event, Process) for event in events) == [choice.move for choice in shortest.choices].count(1)


def _tokens(event: Event) -> tuple[int, int]:
    assert isinstance(event, Schedule)
    return event.requests[0].tokens, event.requests[0].drafts
