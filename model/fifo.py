"""One request's counters beside the queue of its steps, of any length: in-flight tokens as prefix sums.

`A(i)` is how many tokens the first i steps of the request had, an uninterpreted increasing function: step i has `A(i+1) - A(i)` of
them. The queue holds the steps `head` to `tail - 1`; those before `boundary` are stale. So what is in flight is `A(tail) - A(head)`,
for a queue of any length.
"""

from __future__ import annotations

from typing import NamedTuple

from settled.model import counters as count
from settled.model.algebra import BoolTerm, Int, IntTerm, as_int, function, implies, int_variable, maximum, select
from settled.model.counters import Counters
from settled.model.disciplines import Discipline

SYMBOL = "A"
REJECTED, HIT = int_variable("rejected"), int_variable("hit")


class Fifo(NamedTuple):
    """The counters, the queue, and what the computed count should be (`expected`, tokens)."""

    counters: Counters
    head: Int
    tail: Int
    boundary: Int
    expected: Int


class FifoAction(NamedTuple):
    """An event: it can happen if every condition of the guard holds."""

    name: str
    guard: dict[str, BoolTerm]
    after: Fifo


EMPTY = Fifo(Counters(0, 0, 0), 0, 0, 0, 0)


def symbolic_fifo() -> Fifo:
    """A queue whose every component is a variable."""
    names = ("computed", "in_flight", "stale", "head", "tail", "boundary", "expected")
    computed, in_flight, stale, head, tail, boundary, expected = (int_variable(name) for name in names)
    return Fifo(Counters(computed, in_flight, stale), head, tail, boundary, expected)


def tokens_before(step: Int) -> IntTerm:
    """A(step), tokens."""
    return function(SYMBOL, step)


def increases(earlier: IntTerm, later: IntTerm) -> BoolTerm:
    """A grows by at least one a step, for one pair: every step has a token."""
    return implies(earlier < later, tokens_before(later) - tokens_before(earlier) >= later - earlier)


def actions(state: Fifo, discipline: Discipline) -> list[FifoAction]:
    """Every event that moves the counters."""
    head, tail, boundary = as_int(state.head), as_int(state.tail), as_int(state.boundary)
    scheduled = tokens_before(tail + 1) - tokens_before(tail)
    oldest = tokens_before(head + 1) - tokens_before(head)
    is_stale = head < boundary
    ended = state._replace(counters=count.preempt(state.counters, discipline), boundary=tail, expected=0)
    return [
        FifoAction(
            "schedule",
            {},
            state._replace(counters=count.schedule(state.counters, scheduled), tail=tail + 1, expected=as_int(state.expected) + scheduled),
        ),
        FifoAction(
            "process",
            {"a step is in flight": head < tail},
            state._replace(
                counters=count.process(state.counters, oldest, REJECTED, discipline),
                head=head + 1,
                boundary=maximum(boundary, head + 1),
                expected=as_int(state.expected) - select(is_stale, 0, REJECTED),
            ),
        ),
        FifoAction("preempt, finish or abort", {}, ended),
        FifoAction(
            "start with a prefix-cache hit",
            {},
            state._replace(counters=count.resume(state.counters, HIT), expected=HIT),
        ),
    ]


def agree(state: Fifo) -> dict[str, BoolTerm]:
    """counters_symmetric: the counters say what the queue says."""
    head, tail, boundary = as_int(state.head), as_int(state.tail), as_int(state.boundary)
    return {
        "in flight is the sum": as_int(state.counters.in_flight) == tokens_before(tail) - tokens_before(head),
        "stale is the sum": as_int(state.counters.stale) == tokens_before(boundary) - tokens_before(head),
        "computed is what events say": as_int(state.counters.computed) == state.expected,
    }
