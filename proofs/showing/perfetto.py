"""A trace as Chrome trace JSON, which ui.perfetto.dev and chrome://tracing open: host, device streams and blocks as threads.

An event takes a millisecond, for a trace has no times. A step is a slice from its schedule to its process event; steps in flight at once
overlap, and slices of one thread may not, so that each gets a thread of its own. Format: "Trace Event Format", the JSON that Chrome's
tracing writes; Perfetto's documentation lists it among the external formats that it reads.
"""

from __future__ import annotations

import json
from typing import Any

from settled.model.events import Event, Process, Schedule
from settled.model.trace_io import printable
from settled.proofs.showing.lanes import lanes_of
from settled.proofs.showing.stretches import stretches_of
from settled.proofs.showing.timeline import Timeline
from settled.proofs.showing.words import words_of

MICROSECONDS_AN_EVENT = 1000
HOST, DEVICE, BLOCKS = 1, 2, 3  # processes
SCHEDULER, VIOLATIONS = 1, 2  # threads of the host


def perfetto_of(timeline: Timeline) -> str:
    """The JSON text."""
    told: list[dict[str, Any]] = [*_name(HOST, "host"), *_name(DEVICE, "device streams"), *_name(BLOCKS, "blocks")]
    told += _host(timeline) + _device(timeline) + _blocks(timeline)
    facts = {
        "source": printable(timeline.source),
        "engine": printable(timeline.config.engine),
        "contract": timeline.contract,
        "time": "an event of the trace takes a millisecond: a trace has no times",
    }
    return json.dumps({"traceEvents": told, "displayTimeUnit": "ms", "otherData": facts}, separators=(",", ":"))


def _name(process: int, name: str, threads: dict[int, str] | None = None) -> list[dict[str, Any]]:
    """Names a process, or threads of one, and puts them into the order of their numbers."""
    if threads is None:
        return [
            {"ph": "M", "pid": process, "name": "process_name", "args": {"name": name}},
            {"ph": "M", "pid": process, "name": "process_sort_index", "args": {"sort_index": process}},
        ]
    told = []
    for thread, called in threads.items():
        told.append({"ph": "M", "pid": process, "tid": thread, "name": "thread_name", "args": {"name": called}})
        told.append({"ph": "M", "pid": process, "tid": thread, "name": "thread_sort_index", "args": {"sort_index": thread}})
    return told


def _slice(process: int, thread: int, begin: float, end: float, name: str, **facts: Any) -> dict[str, Any]:
    """Positions of events; a slice lasts from one to the other."""
    at, length = begin * MICROSECONDS_AN_EVENT, (end - begin) * MICROSECONDS_AN_EVENT
    return {"ph": "X", "pid": process, "tid": thread, "ts": at, "dur": length, "name": printable(name), "args": facts}


def _host(timeline: Timeline) -> list[dict[str, Any]]:
    """A slice an event, a flow from each schedule to its process, an instant a violation."""
    told = _name(HOST, "", {SCHEDULER: "scheduler", VIOLATIONS: "violations"})
    for position, (line, event) in enumerate(timeline.events):
        told.append(_slice(HOST, SCHEDULER, position, position + 0.9, _title(event), line=line, what=printable(words_of(event))))
    for number, span in enumerate(timeline.steps, start=1):
        if span.end is not None:
            told += _flow(number, f"step {span.step}", span.begin, span.end)
    for position, found in timeline.violations:
        at = timeline.position_of(found.line)
        told.append(
            {
                "ph": "i",
                "s": "t",  # of its thread: Perfetto puts an instant of the whole trace on a track of its own, without a name
                "pid": HOST,
                "tid": VIOLATIONS,
                "ts": (position if at is None else at) * MICROSECONDS_AN_EVENT,
                "name": f"{found.property} violated",
                "args": {"sentence": found.sentence(), "cause": found.cause},
            }
        )
    return told


def _title(event: Event) -> str:
    return f"{event.name} {event.step}" if isinstance(event, Schedule | Process) else event.name


def _flow(number: int, name: str, begin: int, end: int) -> list[dict[str, Any]]:
    """An arrow between two slices of the scheduler; each end lies within its slice."""
    common = {"cat": "step", "id": number, "name": name, "pid": HOST, "tid": SCHEDULER}
    half = MICROSECONDS_AN_EVENT // 2
    return [
        {**common, "ph": "s", "ts": begin * MICROSECONDS_AN_EVENT + half},
        {**common, "ph": "f", "bp": "e", "ts": end * MICROSECONDS_AN_EVENT + half},
    ]


def _device(timeline: Timeline) -> list[dict[str, Any]]:
    """A thread for each sub-row of a lane."""
    told: list[dict[str, Any]] = []
    threads: dict[int, str] = {}
    for lane in lanes_of(timeline).lanes:
        first = len(threads) + 1
        for slot in range(lane.num_slots):
            threads[first + slot] = lane.name if lane.num_slots == 1 else f"{lane.name}, in flight {slot + 1}"
        for bar in lane.bars:
            end = len(timeline.events) if bar.end is None else bar.end
            told.append(_slice(DEVICE, first + bar.slot, bar.begin, end, bar.label, kind=bar.kind))
    return _name(DEVICE, "", threads) + told


def _blocks(timeline: Timeline) -> list[dict[str, Any]]:
    """A thread a block. Where several hold a block at once, what they hold overlaps: a slice for each stretch, named by all of them."""
    told: list[dict[str, Any]] = []
    threads: dict[int, str] = {}
    for block, stretches in sorted(stretches_of(timeline).items()):
        threads[block] = f"block {block}"
        told += [_slice(BLOCKS, block, begin, end, ", ".join(holders)) for begin, end, holders in stretches]
    return _name(BLOCKS, "", threads) + told
