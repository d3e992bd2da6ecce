"""Every broken discipline with the properties it violates, and how to show it: search, decode, judge, run on the reference."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from settled.model.algebra import int_variable
from settled.model.counterexample import events_of
from settled.model.disciplines import (
    CEIL,
    DISCARD_FLAG,
    NO_FENCE,
    OPTIMISTIC,
    RAW_FINISH,
    RIGHT,
    STALE_APPLIED,
    STALE_UNMARKED,
    UNDRAINED,
    Discipline,
)
from settled.model.events import Allocate, Config, Event, Finish, Preempt, Process, Release, Schedule, Touch
from settled.model.explicit import Setting
from settled.model.kinds import SlidingWindow
from settled.model.monitor import Monitor, Report, Violation
from settled.model.properties import Contract, Property
from settled.model.search.bounded import Shortest, shortest_violation

WINDOW = int_variable("window")


@dataclass(frozen=True)
class Refutation:
    """A discipline, a property that it violates, and the length in events of the shortest trace that shows it.

    `length` counts what happens after the request was added: schedules, processes, preemptions, ends. It is a claim, checked at each
    run: every smaller length is unsatisfiable for every window, block size, table index and prompt, within `explicit.SCOPE`.
    """

    discipline: Discipline
    violates: Property
    length: int

    @property
    def has_connector(self) -> bool:
        """Whether a connector is shown finished tables, which is when the prune before a finish happens."""
        return self.discipline is RAW_FINISH


REFUTATIONS = (
    Refutation(OPTIMISTIC, Property.READ_RESIDENT, 2),
    Refutation(OPTIMISTIC, Property.ROLLBACK_RESIDENT, 5),
    Refutation(STALE_APPLIED, Property.COUNTERS_SYMMETRIC, 6),
    Refutation(UNDRAINED, Property.COUNTERS_SYMMETRIC, 3),
    Refutation(STALE_UNMARKED, Property.COUNTERS_SYMMETRIC, 3),
    Refutation(CEIL, Property.READ_RESIDENT, 3),
    Refutation(NO_FENCE, Property.READ_RESIDENT, 2),
    Refutation(RAW_FINISH, Property.READ_RESIDENT, 2),
    Refutation(DISCARD_FLAG, Property.COUNTERS_SYMMETRIC, 3),
)


@dataclass(frozen=True)
class Counterexample:
    """A shortest trace, its events, and the monitor's verdict on them under the settled contract."""

    refutation: Refutation
    shortest: Shortest
    events: tuple[Event, ...]
    report: Report

    @property
    def violation(self) -> Violation | None:
        """The first violation of the property that the refutation names."""
        return next(iter(self.report.result(self.refutation.violates).violations), None)


@dataclass(frozen=True)
class Replayed:
    """What the reference did with the same decisions, under the broken discipline and under the right one."""

    events: tuple[Event, ...]
    report: Report
    same_events: bool
    right_events: tuple[Event, ...]
    right_report: Report

    def agrees(self, refutation: Refutation) -> bool:
        """Same events, same violated property, and nothing violated once the discipline is right."""
        violated = self.report.result(refutation.violates).count > 0
        return self.same_events and violated and not any(result.count for result in self.right_report.properties)


def search(refutation: Refutation) -> Counterexample | None:
    """The shortest counterexample, or None if there is none within 2 events more than claimed. Raises UndecidedError."""
    setting = Setting(SlidingWindow(WINDOW), refutation.discipline, refutation.has_connector)
    shortest = shortest_violation(setting, WINDOW, refutation.violates, length_max=refutation.length + 2)
    if shortest is None:
        return None
    events = tuple(events_of(shortest, refutation.discipline))
    return Counterexample(refutation, shortest, events, judge(events))


def judge(events: Iterable[Event], contract: Contract = Contract.SETTLED) -> Report:
    """The monitor's report on events that start with their config; line numbers count from 1."""
    numbered = list(enumerate(events, start=1))
    config = numbered[0][1]
    assert isinstance(config, Config)
    monitor = Monitor(config, contract)
    for line, event in numbered:
        monitor.feed(line, event)
    return monitor.finish()


def run_on_reference(counterexample: Counterexample) -> Replayed:
    """Executes the counterexample on the reference engine, broken and right. Raises ReplayError."""
    from settled.reference.replay import replay

    events = replay(counterexample.events, counterexample.refutation.discipline)
    right = replay(counterexample.events, RIGHT)
    same = canonical(events) == canonical(counterexample.events)
    return Replayed(tuple(events), judge(events), same, tuple(right), judge(right))


# ---- comparing traces ------------------------------------------------------------------------------------------------

_COMPARED = (Schedule, Process, Preempt, Finish, Allocate, Touch, Release)


def canonical(events: Sequence[Event]) -> list[tuple[object, ...]]:
    """What two traces share if they tell the same story: steps, counters, table indices, and blocks by order of appearance."""
    names: dict[int, int] = {0: 0}

    def blocks(ids: Iterable[int]) -> tuple[int, ...]:
        return tuple(names.setdefault(block, len(names)) for block in ids)

    story: list[tuple[object, ...]] = []
    for event in events:
        if not isinstance(event, _COMPARED):
            continue
        match event:
            case Schedule():
                entries = [
                    (e.request, e.start, e.tokens, e.drafts, tuple(map(blocks, e.new_blocks)), e.resumed, e.counters)
                    for e in event.requests
                ]
                story.append(("schedule", event.step, *entries))
            case Process():
                story.append(("process", event.step, *((e.request, e.sampled, e.rejected, e.counters) for e in event.requests)))
            case Allocate() | Touch():
                story.append((event.name, event.request, event.group, event.first_index, blocks(event.blocks)))
            case Release():
                paired = sorted(zip(event.indices, blocks(event.blocks), strict=True))
                story.append(("release", event.request, event.group, *paired, event.cause, tuple(sorted(blocks(event.freed)))))
            case Preempt():
                story.append(("preempt", event.request))
            case Finish():
                story.append(("finish", event.request, event.reason))
    return story
