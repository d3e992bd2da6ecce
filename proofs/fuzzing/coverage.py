"""What random runs reach: which decisions, which causes, and how close they come to the boundaries where faults are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

from settled.model.events import Computed, Config, Event, Evict, Finish, Preempt, Process, Release, Schedule, Touch
from settled.model.specs import ChunkedLocalAttentionSpec, KVCacheSpec, RSWASpec, SinkWindowSpec, SlidingWindowSpec
from settled.reference.decisions import Decision, Player

# The first token that a query at position p reads apart from sinks and prompts, by kind; kinds that read everything have no boundary.
_FIRST_READ: dict[type[KVCacheSpec], Callable[[KVCacheSpec, int], int]] = {
    SlidingWindowSpec: lambda spec, p: p - _length(spec) + 1,
    SinkWindowSpec: lambda spec, p: p - _length(spec) + 1,
    RSWASpec: lambda spec, p: p - _length(spec) + 1,
    ChunkedLocalAttentionSpec: lambda spec, p: p // _length(spec) * _length(spec),
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


class EventCoverage:
    """Counts features of traces. Give `listen` every event."""

    def __init__(self) -> None:
        self.counts: Counter[Feature] = Counter()
        self._groups: list[tuple[KVCacheSpec, Callable[[KVCacheSpec, int], int]]] = []
        self._drafts: dict[tuple[int, str], int] = {}
        self._before = ""

    def listen(self, event: Event) -> None:
        label = event.name
        match event:
            case Config():
                self._groups = [(spec, _FIRST_READ[type(spec)]) for spec in event.groups if type(spec) in _FIRST_READ]
                self._drafts.clear()
            case Schedule():
                self._scheduled(event)
            case Process():
                self._processed(event)
            case Release() | Finish() | Computed() | Preempt():
                label = self._cause(event)
                self.counts[Feature(CAUSE, label)] += 1
            case Touch() | Evict():
                self.counts[Feature(CAUSE, label)] += 1
        self.counts[Feature(PAIR, f"{self._before} {label}")] += 1
        self._before = label

    def _cause(self, event: Release | Finish | Computed | Preempt) -> str:
        match event:
            case Release():
                return f"release: {event.cause}" + ("" if event.freed else ", still shared")
            case Finish():
                return f"finish: {event.reason}"
            case Computed():
                return f"computed: {event.cause}"
        return f"preempt: {event.output or 'deliver'}"

    def _scheduled(self, event: Schedule) -> None:
        counts = self.counts
        for entry in event.requests:
            self._drafts[event.step, entry.request] = entry.drafts
            if entry.counters is None:
                continue
            computed, in_flight, stale = entry.counters
            settled = computed - (in_flight - stale)
            for spec, first_read in self._groups:
                boundary = first_read(spec, settled)
                counts[Feature(EDGE, _near(settled - _length(spec), 0))] += 1
                if boundary > 0:
                    counts[Feature(BOUNDARY, _near(boundary % spec.block_size, spec.block_size))] += 1

    def _processed(self, event: Process) -> None:
        for entry in event.requests:
            drafts = self._drafts.pop((event.step, entry.request), 0)
            if drafts:
                how_many = "none" if not entry.rejected else "all" if entry.rejected >= drafts else "some"
                self.counts[Feature(OUTPUT, how_many)] += 1


class Coverage(EventCoverage):
    """Counts features of the reference's runs. Give `after` the player after every decision."""

    def after(self, player: Player, decision: Decision) -> None:
        self.counts[Feature(DECISION, decision.name)] += 1
        if decision.name.startswith("schedule"):
            engine = player.engine
            free = engine.scheduler.kv_cache_manager.block_pool.get_num_free_blocks()
            self.counts[Feature(DEPTH, str(len(engine.unprocessed)))] += 1
            self.counts[Feature(POOL, str(free) if free < FREE_BLOCKS_SHOWN else f"{FREE_BLOCKS_SHOWN} or more")] += 1


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
