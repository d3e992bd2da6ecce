"""Schema-v1 events to an op log: what an engine did, reference or real, as launches with their synchronisation.

The worker uploads each step's table rows through staging buffers, runs zeroings and copies before the step that they belong to, lets a step
wait for the transfers within it, and a transfer for what its `after` names. A step's keys are written by a launch of their own, as vLLM's
reshape_and_cache does, and read by the next. The host knows that a step or a transfer is over when the trace says so.
`OpLog.assumptions` tells what a trace left out.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq

from settled.model.events import (
    Add,
    After,
    Allocate,
    Cache,
    Computed,
    Config,
    Copy,
    Drop,
    Event,
    Evict,
    Gap,
    Loaded,
    Move,
    Preempt,
    Process,
    Release,
    Schedule,
    State,
    Stored,
    Touch,
    Transfer,
    Zero,
)
from settled.model.specs import MambaSpec
from settled.reference.device.blocks import Blocks, Tables
from settled.reference.device.contents import Sequence
from settled.reference.device.enqueuing import Enqueuer
from settled.reference.device.foresight import LoweringError, NoSuchTokenError, look_ahead
from settled.reference.device.ops import COMPUTE, HOST, BlocksWork, CopyWork, FillWork, LaunchKind, OpLog, StepWork
from settled.reference.device.parts import Parts, Share, add_keys, add_states
from settled.reference.device.reading import UnreadableKindError, reading_of
from settled.reference.device.transferring import Transferring
from settled.reference.device.worker import RIGHT_WORKER, Worker
from settled.reference.masks import MaskError


def lower(events: Seq[Event], *, worker: Worker = RIGHT_WORKER, poisons: bool = False) -> OpLog:
    """The whole trace, from its config on. `poisons`: freed blocks are overwritten at once, which only a free on settled counts survives.

    Raises LoweringError for a trace that starts in mid-run, has a gap, kinds without kernels here, or events about what there is not;
    NoSuchTokenError for a step that begins before the first token.
    """
    if not events or not isinstance(events[0], Config):
        raise LoweringError(1, "a trace begins with its config")
    lowering = _Lowering(events, events[0], worker, poisons=poisons)
    for line, event in enumerate(events[1:], start=2):
        lowering.take(line, event)
    return lowering.log


def _are_hashes_told(events: Seq[Event], config: Config) -> bool:
    """Some recorders do without saying so; where nothing is hit nobody asks."""
    return (
        "content" in config.records
        or any(isinstance(event, Cache) for event in events)
        or not any(isinstance(event, Touch) for event in events)
    )


class _Lowering:
    def __init__(self, events: Seq[Event], config: Config, worker: Worker, *, poisons: bool) -> None:
        self.config, self.foresight, self.worker = config, look_ahead(events), worker
        num_staging = config.max_in_flight_steps if worker.staging_ring else 1
        self.log = OpLog(config.groups, config.num_blocks, num_staging)
        self.queue = Enqueuer(self.log, poisons=poisons)
        self.blocks = Blocks(config.groups, are_hashes_told=_are_hashes_told(events, config))
        self.tables: dict[str, Tables] = {}
        self.known_steps: set[int] = set()
        self.step_events: dict[int, int] = {}
        self.last_step_event: int | None = None
        self.num_launched = 0
        self.pending: tuple[int, Schedule] | None = None  # a step whose launch waits for events that stand after it
        if any(isinstance(spec, MambaSpec) and spec.mode == "all" for spec in config.groups):
            raise LoweringError(1, "no kernel keeps the states of mamba mode 'all'")
        try:
            self.readings = [None if isinstance(spec, MambaSpec) else reading_of(spec) for spec in config.groups]
        except (MaskError, UnreadableKindError) as error:
            raise LoweringError(1, str(error)) from error
        self.transferring = Transferring(self.queue, self.blocks, self.foresight, worker)
        if "order" not in config.records:
            self.log.assumptions.append("the trace does not record what the device waits for: a store waits for the latest step")
            self.transferring.stores_wait_for_latest = True
        if not self.blocks.are_hashes_told:
            self.log.assumptions.append("the trace does not record what is hashed: a hit stands for what its block was last written with")

    def take(self, line: int, event: Event) -> None:
        match event:
            case Add():
                sequence = Sequence(event.request, len(self.tables), event.prompt_tokens, len(self.config.groups))
                self.tables[event.request] = Tables(sequence, len(self.config.groups))
            case Computed() | Preempt():
                self._count_set(line, event)
            case Schedule():
                self.known_steps.add(event.step)
                self.pending = (line, event) if event.requests else None
            case Process():
                self._process(event)
            case Zero() | Copy():
                self._prepare(line, event)
            case Transfer():
                self._transfer(line, event)
            case Loaded() | Stored():
                self.transferring.over(line, event)
            case Gap() | State():
                raise LoweringError(line, f"a {event.name} event: what the buffers held before is not known")
            case _:
                self._hold(line, event)
        if self.pending is not None and self.foresight.launched_at[self.pending[0]] <= line:
            scheduled_at, step = self.pending
            self.pending = None
            self._launch(scheduled_at, step)

    def _tables_of(self, line: int, name: str) -> Tables:
        if name not in self.tables:
            raise LoweringError(line, f"request {name!r} was never added")
        return self.tables[name]

    # ---- requests ----------------------------------------------------------------------------------------------------

    def _count_set(self, line: int, event: Computed | Preempt) -> None:
        tables = self._tables_of(line, event.request)
        computed = 0 if isinstance(event, Preempt) else event.computed
        if line in self.foresight.restarts:
            same = isinstance(event, Computed) and event.cause in ("last_token", "replay")
            tables.sequence.restart(computed, same=same)
            if not isinstance(event, Preempt):
                self.blocks.go_on(tables.sequence)
        if isinstance(event, Preempt):
            tables.begin_again()
        tables.sequence.fill(computed)

    # ---- blocks ------------------------------------------------------------------------------------------------------

    def _hold(self, line: int, event: Event) -> None:
        blocks = self.blocks
        match event:
            case Allocate():
                blocks.allocate(self._tables_of(line, event.request), event.group, event.first_index, event.blocks)
                if event.after:
                    self.queue.guard(event.blocks, self._events_of(line, event.after))
            case Touch():
                blocks.touch(self._tables_of(line, event.request), event.group, event.first_index, event.blocks)
            case Move():
                blocks.move(self._tables_of(line, event.request), event.group, event.from_index, event.to_index, event.block)
            case Release():
                if event.cause != "deferred":
                    self._tables_of(line, event.request).release(event.group, event.indices, event.blocks)
                if event.freed:
                    self.queue.free(event.freed, blocks.may_be_hit(event.freed), line)
            case Drop() if event.freed:
                self.queue.free(event.freed, blocks.may_be_hit(event.freed), line)
            case Cache():
                blocks.cache(event.entries, self.tables)
            case Evict():
                blocks.evict(event.entries)

    def _events_of(self, line: int, after: Seq[After]) -> list[int]:
        """Those that stand for the steps and jobs named. A step without requests is waited for by nobody."""
        events = []
        for each in after:
            if each.step is not None and each.step not in self.known_steps:
                raise LoweringError(line, f"step {each.step} has not been scheduled")
            event = self.step_events.get(each.step) if each.step is not None else self.transferring.event_of(line, each.job)
            if event is not None:
                events.append(event)
        return events

    # ---- steps -------------------------------------------------------------------------------------------------------

    def _prepare(self, line: int, event: Zero | Copy) -> None:
        for each in self._events_of(line, event.after or ()):
            self.queue.wait(COMPUTE, each)
        if isinstance(event, Zero):
            self.queue.launch(COMPUTE, LaunchKind.ZERO, (), event.blocks, BlocksWork(event.blocks), line)
            return
        self.blocks.copy(event.group, event.source, event.target, self.tables)
        work = CopyWork(event.source, event.target)
        self.queue.launch(COMPUTE, LaunchKind.COPY, (event.source,), (event.target,), work, line)

    def _launch(self, line: int, event: Schedule) -> None:
        queue, log = self.queue, self.log
        parts = self._parts(line, event)
        staging = self.num_launched % log.num_staging
        self.num_launched += 1
        fill = FillWork(staging, parts.rows)
        queue.launch(HOST, LaunchKind.FILL, (), (log.staging(staging),), fill, line)
        for each in self._events_of(line, event.after or ()):
            queue.wait(COMPUTE, each)
        if self.worker.steps_wait:
            for each in self.transferring.within(event.step):
                queue.wait(COMPUTE, each)
        queue.launch(COMPUTE, LaunchKind.UPLOAD, (log.staging(staging),), (log.table,), fill, line)
        work = StepWork(event.step, tuple(parts.parts))
        if parts.key_writes:
            queue.launch(COMPUTE, LaunchKind.WRITE, (log.table,), tuple(sorted(parts.key_writes)), work, line)
        queue.launch(COMPUTE, LaunchKind.STEP, (log.table, *sorted(parts.reads)), tuple(sorted(parts.state_writes)), work, line)
        self.last_step_event = self.step_events[event.step] = queue.record(COMPUTE)

    def _parts(self, line: int, event: Schedule) -> Parts:
        """All requests have written before the first takes over what another one writes in this very step."""
        entries = self.foresight.entries[line]
        tables = [self._tables_of(line, scheduled.request) for scheduled in event.requests]
        for scheduled, entry, table in zip(event.requests, entries, tables, strict=True):
            if entry.start < 0:
                raise NoSuchTokenError(line, f"step {event.step} of request {scheduled.request!r} begins at token {entry.start}")
            table.grow_rows(scheduled.new_blocks, resumed=scheduled.resumed)
        shares: dict[int, Share] = {}
        for hits in (False, True):
            for place, (scheduled, entry, table) in enumerate(zip(event.requests, entries, tables, strict=True)):
                if bool(table.hits) is hits and place not in shares:
                    table.sequence.fill(entry.start)
                    self.blocks.take_hits(table)
                    written = table.sequence.write(entry.start, entry.tokens)
                    rows = table.as_held() if self.worker.told_of_nulls else table.rows
                    shares[place] = Share(scheduled, entry, table.sequence, rows, written)
        self.blocks.freeze([table.sequence for table in tables])
        parts = Parts()
        for _, share in sorted(shares.items()):
            for group, (spec, reading) in enumerate(zip(self.config.groups, self.readings, strict=True)):
                if isinstance(spec, MambaSpec):
                    add_states(parts, group, spec, share)
                elif reading is not None:
                    add_keys(parts, group, spec, reading, share, self.config.num_lookahead_tokens)
        return parts

    def _process(self, event: Process) -> None:
        if event.step in self.step_events:
            self.queue.host_sync(self.step_events[event.step])

    # ---- transfers ---------------------------------------------------------------------------------------------------

    def _transfer(self, line: int, event: Transfer) -> None:
        tables = self._tables_of(line, event.request)
        after = self._events_of(line, event.after or ())
        self.transferring.start(line, event, tables, after, self.last_step_event)
