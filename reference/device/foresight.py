"""What only the rest of a trace tells of its steps: where they truly start, whose output is used, which loads fail.

The device knows these when it comes to a step; the host that dispatches it does not yet. So a trace is read once for them, before it is
lowered. True starts, generations and stale steps are those of the trace schema.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from settled.model.events import (
    Add,
    Computed,
    Copy,
    Event,
    Finish,
    Hold,
    Job,
    Load,
    Loaded,
    Preempt,
    Process,
    Schedule,
    ScheduledRequest,
    Store,
    Zero,
)


class LoweringError(ValueError):
    """A trace that cannot be lowered; the message says at which event, and why."""

    def __init__(self, line: int, message: str) -> None:
        super().__init__(f"event {line}: {message}")
        self.line = line


class NoSuchTokenError(LoweringError):
    """By the engine's own counters a step begins before the first token: whatever a device makes of that is wrong, in every order."""


@dataclass(slots=True)
class Entry:
    """A request's share of a step. `start` is the true one; `end`: as it was scheduled, with drafts in flight counted as accepted.

    `rejected`: by its own output (0 while nobody has read it). `is_delivered`: somebody gets the output. `is_excused`: it ran on a load
    that failed, which the host noticed and dropped its output. `previous` is the step before it in the same generation.
    """

    start: int
    tokens: int
    drafts: int
    end: int
    generation: int
    previous: Entry | None
    rejected: int = 0
    is_stale: bool = False
    is_delivered: bool = True
    is_excused: bool = False


@dataclass(slots=True)
class _Request:
    computed: int = 0
    generation: int = 0
    last: Entry | None = None
    unprocessed: deque[Entry] = field(default_factory=deque)


@dataclass(slots=True)
class Foresight:
    """`entries`: by the line of the schedule event, in its order. `launched_at`: the line of the last event that comes before the launch of
    the step of that schedule event (its own, or a copy, a zeroing, or a transfer within the step that stands after it). `failed`: the
    blocks that a load does not bring, by job; None for all of them. `restarts`: the lines of the events that end a generation. `settled`:
    how many tokens of its request are final, by the line of a store.
    """

    entries: dict[int, tuple[Entry, ...]] = field(default_factory=dict)
    launched_at: dict[int, int] = field(default_factory=dict)
    failed: dict[Job, frozenset[int] | None] = field(default_factory=dict)
    restarts: set[int] = field(default_factory=set)
    settled: dict[int, int] = field(default_factory=dict)


def look_ahead(events: Sequence[Event]) -> Foresight:
    """Reads a whole trace, whose first line is 1. Raises LoweringError for an event about what there is not."""
    reader = _Reader()
    for line, event in enumerate(events, start=1):
        reader.take(line, event)
    return reader.foresight


class _Reader:
    def __init__(self) -> None:
        self.foresight = Foresight()
        self.requests: dict[str, _Request] = {}
        self.open_step: int | None = None  # the line of a schedule event that nothing but transfers, zeroings and copies has followed
        self.loaders: dict[Job, _Request] = {}  # of loads within a step
        self.steps: dict[int, tuple[int, dict[str, Entry]]] = {}  # unprocessed: the line of the schedule event, the entries

    def take(self, line: int, event: Event) -> None:
        if not isinstance(event, Zero | Copy | Load | Store | Hold):
            self.open_step = None
        match event:
            case Schedule():
                self._schedule(line, event)
            case Process():
                self._process(line, event)
            case Add() if event.request in self.requests:
                raise LoweringError(line, f"request {event.request!r} is added twice")
            case Add():
                self.requests[event.request] = _Request()
            case Computed():
                self._computed(line, self._request(line, event.request), event)
            case Preempt():
                request = self._request(line, event.request)
                request.computed = 0
                self.foresight.restarts.add(line)
                _end_generation(request, stale=True, delivered=event.output != "drop")
            case Finish():
                request = self._request(line, event.request)
                request.computed = _settled(request)  # nothing of what is in flight is ever counted
                _end_generation(request, stale=True, delivered=False)
                for entry in request.unprocessed:  # those that a preemption made stale, too
                    entry.is_delivered = False
            case Zero() | Copy():
                self._within_step(line, event.step)
            case Load():
                if event.step is not None:
                    self.loaders[event.job] = self._request(line, event.request)
                self._within_step(line, event.step)
            case Store():
                request = self._request(line, event.request)
                self.foresight.settled[line] = _settled(request)
                self._within_step(line, event.step)
            case Loaded():
                self._loaded(event)

    def _within_step(self, line: int, step: int | None) -> None:
        if step not in self.steps:
            return
        scheduled_at = self.steps[step][0]
        if scheduled_at != self.open_step:
            raise LoweringError(line, f"step {step} went to the device before this, which belongs to it")
        self.foresight.launched_at[scheduled_at] = line

    def _request(self, line: int, name: str) -> _Request:
        request = self.requests.get(name)
        if request is None:
            raise LoweringError(line, f"request {name!r} was never added")
        return request

    def _schedule(self, line: int, event: Schedule) -> None:
        if len({each.request for each in event.requests}) < len(event.requests):
            raise LoweringError(line, f"step {event.step} names a request twice")
        entries = {each.request: self._dispatch(self._request(line, each.request), each) for each in event.requests}
        self.open_step = line
        self.steps[event.step] = line, entries
        self.foresight.entries[line] = tuple(entries.values())
        self.foresight.launched_at[line] = line

    def _dispatch(self, request: _Request, scheduled: ScheduledRequest) -> Entry:
        """The start falls, for now, by nothing: outputs to come are taken off when they are read."""
        end = scheduled.start + scheduled.tokens
        entry = Entry(scheduled.start, scheduled.tokens, scheduled.drafts, end, request.generation, request.last)
        request.unprocessed.append(entry)
        request.last, request.computed = entry, end
        return entry

    def _process(self, line: int, event: Process) -> None:
        if event.step not in self.steps:
            raise LoweringError(line, f"step {event.step} is not unprocessed")
        _, entries = self.steps.pop(event.step)
        for output in event.requests:
            if output.request not in entries:
                raise LoweringError(line, f"request {output.request!r} is not in step {event.step}")
            entry, request = entries[output.request], self._request(line, output.request)
            request.unprocessed.remove(entry)
            entry.rejected = output.rejected
            if not entry.is_stale:
                request.computed -= output.rejected
            for later in request.unprocessed:
                if later.generation == entry.generation:
                    later.start -= output.rejected

    def _computed(self, line: int, request: _Request, event: Computed) -> None:
        if event.stale or event.computed < request.computed:
            self.foresight.restarts.add(line)
            for entry in request.unprocessed:
                if event.stale and event.cause == "load_failed":  # also if a preemption came first, and its output was to be delivered
                    entry.is_excused, entry.is_delivered = True, False
            _end_generation(request, stale=event.stale, delivered=not event.stale)
        request.computed = event.computed

    def _loaded(self, event: Loaded) -> None:
        """Nobody asks what a step found that ran on a failed load and whose output is dropped in any case."""
        if not event.ok and event.job in self.loaders:
            for entry in self.loaders[event.job].unprocessed:
                entry.is_excused |= not entry.is_delivered
        known = self.foresight.failed.get(event.job, frozenset())
        if known is None or event.cancelled:
            self.foresight.failed[event.job] = None
        elif event.failed is not None:
            self.foresight.failed[event.job] = known.union(*event.failed)
        elif not event.ok:
            self.foresight.failed[event.job] = None


def _settled(request: _Request) -> int:
    """The true start of the oldest unprocessed step that is not stale, of the next step if there is none."""
    return next((entry.start for entry in request.unprocessed if not entry.is_stale), request.computed)


def _end_generation(request: _Request, *, stale: bool, delivered: bool) -> None:
    """`stale`: its unprocessed steps belong to the past from here on."""
    request.generation += 1
    request.last = None
    if stale:
        for entry in request.unprocessed:
            if not entry.is_stale:
                entry.is_stale, entry.is_delivered = True, delivered
