"""What random runs reach: which decisions, which causes, and how close they come to the boundaries where faults are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, NamedTuple

from settled.model.events import Computed, Config, Event, Evict, Finish, Preempt, Process, Release, Schedule, Touch
from settled.model.specs import ChunkedLocalAttentionSpec, KVCacheSpec, RSWASpec, SinkWindowSpec, SlidingWindowSpec
from settled.reference.decisions import Decision, Player

# The first token that a query at position p reads apart from sinks and prompts, by kind and the length of its window or chunk; kinds that
# read everything have no boundary.
_FIRST_READ: dict[type[KVCacheSpec], Callable[[int, int], int]] = {
    SlidingWindowSpec: lambda length, p: p - length + 1,
    SinkWindowSpec: lambda length, p: p - length + 1,
    RSWASpec: lambda length, p: p - length + 1,
    ChunkedLocalAttentionSpec: lambda length, p: p // length * length,
}
FREE_BLOCKS_SHOWN = 4


def _length(spec: KVCacheSpec) -> int:
    """The window or chunk, in tokens."""
    length = getattr(spec, "window", None) or getattr(spec, "chunk", None)
    assert isinstance(length, int)
    return length


class Feature(NamedTuple):
    """Something that a run can reach; `section` is the heading under which it is shown."""

    section: str
    what: str


DECISION, CAUSE, DEPTH, POOL = "decisions", "causes", "pipeline depth, steps", "free blocks after a step"
BOUNDARY, EDGE, OUTPUT, PAIR = "free boundary, tokens past a block", "settled, tokens past the window", "drafts rejected", "pairs of events"


# A hunt counts several features for every event: each is made once. There are few, since none has a number without a bound.
feature = cache(Feature)


@cache
def _pair(before: str, label: str) -> Feature:
    return Feature(PAIR, f"{before} {label}")


# How an event that is a cause is called, by its type.
_CAUSES: Mapping[type[Event], Callable[[Any], str]] = {
    Release: lambda event: f"release: {event.cause}" if event.freed else f"release: {event.cause}, still shared",
    Finish: lambda event: f"finish: {event.reason}",
    Computed: lambda event: f"computed: {event.cause}",
    Preempt: lambda event: f"preempt: {event.output or 'deliver'}",
    Touch: lambda event: Touch.name,
    Evict: lambda event: Evict.name,
}


class EventCoverage:
    """Counts features of traces. Give `listen` every event."""

    def __init__(self) -> None:
        self.counts: Counter[Feature] = Counter()
        self._groups: list[tuple[int, int, Callable[[int, int], int]]] = []  # block size, length of the window or chunk, first read
        self._drafts: dict[tuple[int, str], int] = {}
        self._before = ""

    def listen(self, event: Event) -> None:
        label, cause_of = event.name, _CAUSES.get(type(event))
        if cause_of is not None:
            label = cause_of(event)
            self.counts[feature(CAUSE, label)] += 1
        elif isinstance(event, Schedule):
            self._scheduled(event)
        elif isinstance(event, Process):
            self._processed(event)
        elif isinstance(event, Config):
            self._configured(event)
        self.counts[_pair(self._before, label)] += 1
        self._before = label

    def _configured(self, event: Config) -> None:
        bounded = [spec for spec in event.groups if type(spec) in _FIRST_READ]
        self._groups = [(spec.block_size, _length(spec), _FIRST_READ[type(spec)]) for spec in bounded]
        self._drafts.clear()

    def _scheduled(self, event: Schedule) -> None:
        counts = self.counts
        for entry in event.requests:
            self._drafts[event.step, entry.request] = entry.drafts
            if entry.counters is None:
                continue
            computed, in_flight, stale = entry.counters
            settled = computed - (in_flight - stale)
            for block_size, length, first_read in self._groups:
                boundary = first_read(length, settled)
                counts[feature(EDGE, _near(settled - length, 0))] += 1
                if boundary > 0:
                    counts[feature(BOUNDARY, _near(boundary % block_size, block_size))] += 1

    def _processed(self, event: Process) -> None:
        for entry in event.requests:
            drafts = self._drafts.pop((event.step, entry.request), 0)
            if drafts:
                how_many = "none" if not entry.rejected else "all" if entry.rejected >= drafts else "some"
                self.counts[feature(OUTPUT, how_many)] += 1


class Coverage(EventCoverage):
    """Counts features of the reference's runs. Give `after` the player after every decision."""

    def after(self, player: Player, decision: Decision) -> None:
        self.counts[feature(DECISION, decision.name)] += 1
        if decision.name.startswith("schedule"):
            engine = player.engine
            free = engine.scheduler.kv_cache_manager.block_pool.get_num_free_blocks()
            self.counts[feature(DEPTH, str(len(engine.unprocessed)))] += 1
            self.counts[feature(POOL, str(free) if free < FREE_BLOCKS_SHOWN else f"{FREE_BLOCKS_SHOWN} or more")] += 1


def by_section(coverage: Counter[Feature]) -> dict[str, dict[str, int]]:
    """Plain values for JSON."""
    sections: dict[str, dict[str, int]] = {}
    for (section, what), times in sorted(coverage.items()):
        sections.setdefault(section, {})[what] = times
    return sections


def _near(distance: int, period: int) -> str:
    """-1, 0 and 1 by name, the rest as before or after; with a period, the last of it is -1."""
    if period and distance == period - 1 and distance > 0:
        distance = -1
    if -1 <= distance <= 1:
        return f"{distance:+d}" if distance else "0"
    return "between" if period else "before" if distance < 0 else "after"
