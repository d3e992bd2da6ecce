"""A lane for each stream of the device: steps on the compute stream, transfers beside it, and what waits for what.

Where the trace can be lowered to an op log, the streams and what they wait for are the log's. Else they come from the events alone. When
the device really runs a launch nobody knows: a bar reaches from where the host enqueues it to where the host knows that it is over.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from settled.model.events import Event, Gap, Job, Load, Loaded, Schedule, State, Store, Stored
from settled.proofs.showing.timeline import StepSpan, Timeline
from settled.proofs.showing.words import blocks_text
from settled.reference.device.foresight import LoweringError
from settled.reference.device.lowering import lower
from settled.reference.device.ops import (
    COMPUTE,
    HOST,
    BlocksWork,
    CopyWork,
    Launch,
    LaunchKind,
    OpLog,
    Record,
    StepWork,
    TransferWork,
    Wait,
    stream_name,
)

DRAWN = (LaunchKind.STEP, LaunchKind.ZERO, LaunchKind.COPY, LaunchKind.LOAD, LaunchKind.STORE)


@dataclass(slots=True)
class Bar:
    """`begin` to before `end` (None: to the end of the trace), in the sub-row `slot` of its lane. `step`: a step's number."""

    begin: int
    end: int | None
    kind: str
    label: str
    step: int | None = None
    slot: int = 0


@dataclass(slots=True)
class Lane:
    name: str
    bars: list[Bar] = field(default_factory=list)
    num_slots: int = 1


@dataclass(frozen=True, slots=True)
class Edge:
    """The bar `to` of a lane waits for the bar `of` of another."""

    lane: int
    of: int
    to_lane: int
    to: int


@dataclass(slots=True)
class Lanes:
    """`note` says where they come from."""

    lanes: list[Lane]
    waits: list[Edge]
    note: str


def lanes_of(timeline: Timeline) -> Lanes:
    """The lanes of a trace, bars laid out so that none covers another."""
    try:
        log = lower([event for _, event in timeline.events])
    except LoweringError as error:
        lanes = Lanes(_from_events(timeline), [], f"from the events alone: not lowered to an op log ({error})")
    else:
        lanes = _from_log(timeline, log)
    for lane in lanes.lanes:
        lane.num_slots = _lay_out(lane.bars)
    return lanes


def _lay_out(bars: Iterable[Bar]) -> int:
    """Gives each bar the first sub-row that is empty where it begins; returns how many there are."""
    ends: list[float] = []
    for bar in sorted(bars, key=lambda each: each.begin):
        slot = next((slot for slot, end in enumerate(ends) if end <= bar.begin), len(ends))
        ends[slot : slot + 1] = [float("inf") if bar.end is None else bar.end]
        bar.slot = slot
    return max(len(ends), 1)


# ---- from the events alone -------------------------------------------------------------------------------------------


def _from_events(timeline: Timeline) -> list[Lane]:
    events = [event for _, event in timeline.events]
    compute = Lane("compute", [_step_bar(events, span) for span in timeline.steps if _runs(events, span)])
    return [compute, *([Lane("transfers", bars)] if (bars := [bar for _, bar in _transfers(timeline)]) else [])]


def _runs(events: Sequence[Event], span: StepSpan) -> bool:
    """A step without requests is no forward pass."""
    event = events[span.begin]
    return not isinstance(event, Schedule) or bool(event.requests)


def _step_bar(events: Sequence[Event], span: StepSpan) -> Bar:
    event = events[span.begin]
    parts = event.requests if isinstance(event, Schedule) else ()
    named = ", ".join(f"{part.request} [{part.start}, {part.start + part.tokens})" for part in parts)
    return Bar(span.begin, span.end, "step", f"step {span.step}" + (f": {named}" if named else ""), span.step)


def _transfers(timeline: Timeline) -> list[tuple[Job, Bar]]:
    """In the order of their beginnings; over with the last handle, or where nothing is known any more. A job's name may come again."""
    bars: list[tuple[Job, Bar]] = []
    running: dict[Job, tuple[Bar, int]] = {}  # with the handles that are left
    for position, (_, event) in enumerate(timeline.events):
        match event:
            case Load() | Store():
                begun = [(event.job, event.name, event.request, event.blocks, event.handles)]
            case State():
                begun = [(job.job, job.kind, job.request, job.blocks, job.handles) for job in event.jobs]
            case _:
                begun = []
        for job, kind, request, blocks, handles in begun:
            moved = blocks_text([block for of_group in blocks for block in of_group])
            bars.append((job, Bar(position, None, kind, f"{kind} {job} for {request}: {moved}")))
            running[job] = bars[-1][1], handles
        if isinstance(event, Loaded | Stored) and event.job in running:
            bar, left = running.pop(event.job)
            if left > 1:
                running[event.job] = bar, left - 1
            else:
                bar.end = position
        elif isinstance(event, Gap):
            for bar, _ in running.values():
                bar.end = position
            running.clear()
    return bars


# ---- from the op log -------------------------------------------------------------------------------------------------


def _from_log(timeline: Timeline, log: OpLog) -> Lanes:
    events = [event for _, event in timeline.events]
    steps = {span.step: span for span in timeline.steps}
    transfers: dict[Job, list[Bar]] = {}  # a job's name may come again
    for job, transfer in _transfers(timeline):
        transfers.setdefault(job, []).append(transfer)
    lanes = {stream: Lane(stream_name(stream)) for stream in range(log.num_streams)}
    before_step: list[Bar] = []  # on the compute stream, over with the step that comes next
    last: dict[int, int] = {}  # stream → its latest bar
    recorded: dict[int, tuple[int, int]] = {}  # event → lane, bar
    waiting: dict[int, list[tuple[int, int]]] = {}  # stream → what its next launch waits for
    waits: list[tuple[tuple[int, int], tuple[int, int]]] = []
    for op in log.ops:
        if isinstance(op, Record) and op.stream in last:
            recorded[op.event] = op.stream, last[op.stream]
        elif isinstance(op, Wait) and op.event in recorded:
            waiting.setdefault(op.stream, []).append(recorded[op.event])
        elif isinstance(op, Launch) and op.kind in DRAWN:
            bar = _bar(events, steps, transfers, op)
            if op.stream == COMPUTE and op.kind is not LaunchKind.STEP:
                before_step.append(bar)
            elif op.stream == COMPUTE:
                for earlier in before_step:
                    earlier.end = bar.end
                before_step.clear()
            bars = lanes[op.stream].bars
            bars.append(bar)
            last[op.stream] = len(bars) - 1
            waits += [(of, (op.stream, len(bars) - 1)) for of in waiting.pop(op.stream, ()) if of[0] != op.stream]
    shown = [stream for stream in lanes if stream != HOST and (stream == COMPUTE or lanes[stream].bars)]
    place = {stream: number for number, stream in enumerate(shown)}
    note = "from the op log to which the trace is lowered" + "".join(f"; {each}" for each in log.assumptions)
    edges = [Edge(place[of[0]], of[1], place[to[0]], to[1]) for of, to in waits]
    return Lanes([lanes[stream] for stream in shown], edges, note)


def _bar(events: Sequence[Event], steps: dict[int, StepSpan], transfers: dict[Job, list[Bar]], op: Launch) -> Bar:
    begin, work = op.line - 1, op.work
    match work:
        case StepWork():
            return _step_bar(events, steps[work.step])
        case TransferWork():
            return [bar for bar in transfers[work.job] if bar.begin <= begin][-1]
        case CopyWork():
            return Bar(begin, None, "copy", f"copy block {work.source} into {work.target}")
        case BlocksWork():
            return Bar(begin, None, "zero", f"zero {blocks_text(work.blocks)}")
        case _:
            raise AssertionError(f"{op.kind} is not drawn")
