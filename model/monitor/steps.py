"""Schedule and process: rows, counters and true starts move, and the checks that belong to these moments run."""

from __future__ import annotations

from typing import NoReturn

from settled.model.events import Process, ProcessedRequest, Schedule, ScheduledRequest
from settled.model.monitor import masks, sharing, transfers
from settled.model.monitor.live import BadEventError, Live, StepRecord
from settled.model.monitor.state import Entry, Request


def schedule(live: Live, line: int, event: Schedule) -> None:
    """A step is dispatched. Before it, each request has pruned; from here on it reads through its rows as they stand."""
    _check_step(live, event)
    residency, counts, bounds, ledger, requests = live.residency, live.counts, live.bounds, live.ledger, live.requests
    drafts_max = live.config.num_draft_tokens
    if residency.rollbacks:
        residency.no_finish_followed()
    if live.transfers:
        transfers.step_came(live, event.step)
    record = StepRecord(event.step, live.next_order, [])
    live.next_order += 1
    live.steps[event.step] = record
    if event.requests:
        live.findings.saw_steps = True
    for scheduled in event.requests:
        request = requests.get(scheduled.request) or live.request(scheduled.request)
        start, tokens, drafts = scheduled.start, scheduled.tokens, scheduled.drafts
        if request.finished or start < 0 or tokens < 1 or not 0 <= drafts <= tokens or drafts > drafts_max:
            _refuse(live, scheduled, request)
        if start != request.computed:
            counts.before_schedule(request, start, line, event.step)
        if request.bounded:
            bounds.pruned(request, line)
        entry = _dispatch(live, record, request, scheduled)
        after = masks.counters_after_schedule(request.computed, request.in_flight, request.stale, tokens)
        request.computed, request.in_flight, request.stale = after
        if scheduled.counters is not None and (scheduled.counters != after or not counts.saw_counters):
            counts.compare(request, scheduled.counters, line, event.step)
        residency.scheduled(entry, line)
        if ledger.shared:
            sharing.scheduled(live, entry, line)


def _check_step(live: Live, event: Schedule) -> None:
    requests = event.requests
    if event.step in live.steps:
        raise BadEventError(f"step {event.step} is unprocessed already: expected a new step")
    depth = live.config.max_in_flight_steps
    if requests and len(live.steps) >= depth and sum(1 for record in live.steps.values() if record.entries) >= depth:
        hint = (
            f"the config declares max_in_flight_steps {depth}: declare what the engine keeps in flight, or is the output of a step missing?"
        )
        raise BadEventError(
            f"{depth} {'step is' if depth == 1 else 'steps are'} unprocessed already: expected no more (max_in_flight_steps)", hint
        )
    if len(requests) > 1:
        names = {scheduled.request for scheduled in requests}
        if len(names) != len(requests):
            raise BadEventError(f"step {event.step} names {len(names)} requests in {len(requests)} entries: expected each once")
    if event.after:
        live.check_after(event.after)


def _refuse(live: Live, scheduled: ScheduledRequest, request: Request) -> NoReturn:
    if request.finished:
        raise BadEventError(f"request {request.name!r} is finished: expected no further step of it")
    start, tokens, drafts, drafts_max = scheduled.start, scheduled.tokens, scheduled.drafts, live.config.num_draft_tokens
    if drafts > drafts_max:
        raise BadEventError(f"request {request.name!r} has {drafts} drafts: expected at most {drafts_max} (num_draft_tokens)")
    raise BadEventError(
        f"request {request.name!r}: expected start >= 0, tokens >= 1 and 0 <= drafts <= tokens, found {start}, {tokens}, {drafts}"
    )


def _check_lists(live: Live, scheduled: ScheduledRequest) -> None:
    """One list a group, of blocks in range."""
    live.check_per_group("new_blocks", scheduled.new_blocks)
    if scheduled.reads is None and scheduled.writes is None:
        return
    for name, indices in (("reads", scheduled.reads), ("writes", scheduled.writes)):
        if indices is not None and len(indices) != len(live.modelled):
            raise BadEventError(f"{name} has {len(indices)} lists: expected one a group, {len(live.modelled)}")


def _dispatch(live: Live, record: StepRecord, request: Request, scheduled: ScheduledRequest) -> Entry:
    new_blocks, tables = scheduled.new_blocks, request.tables
    has_new = any(new_blocks)
    if has_new or len(new_blocks) != len(tables) or scheduled.reads is not None or scheduled.writes is not None:
        _check_lists(live, scheduled)
    if scheduled.resumed or request.is_new_to_worker:
        request.is_new_to_worker = False
        for table, blocks in zip(tables, new_blocks, strict=True):
            table.replace_row(blocks)
        request.rows_replaced()
    elif has_new:
        for table, blocks in zip(tables, new_blocks, strict=True):
            if blocks:
                table.extend_row(blocks)
        request.rows_grown()
    previous, rejectable = request.last, 0
    if previous is not None and previous.rejected is None:
        rejectable = previous.rejectable + previous.drafts
    entry = Entry(
        record.step,
        record.order,
        request,
        request.generation,
        scheduled.start,
        scheduled.tokens,
        scheduled.drafts,
        request.rows,
        request.lengths,
        scheduled.start + scheduled.tokens,
        rejectable,
        scheduled.reads,
        scheduled.writes,
        False,
        previous,
    )
    request.last = entry
    record.entries.append(entry)
    request.unprocessed.append(entry)
    return entry


def process(live: Live, line: int, event: Process) -> None:
    """The oldest step's output is read."""
    if live.residency.rollbacks:
        live.residency.no_finish_followed()
    record = _oldest(live, event)
    entries, outputs = record.entries, event.requests
    if len(entries) != len(outputs):
        outputs = _in_order(record, event)
    for position, entry in enumerate(entries):
        request, output = entry.request, outputs[position]
        if output.request != request.name:
            outputs = _in_order(record, event)
            output = outputs[position]
        rejected, drafts = output.rejected, entry.drafts
        if not 0 <= rejected <= drafts:
            raise BadEventError(f"request {request.name!r} rejects {rejected}: expected 0 to the step's {drafts} drafts")
        entry.rejected = rejected
        if entry.suspects is not None or entry.watched is not None:
            live.residency.settle(entry)
        entry.previous = None
        request.unprocessed.popleft()
        after = masks.counters_after_process(request.computed, request.in_flight, request.stale, entry.tokens, rejected)
        request.computed, request.in_flight, request.stale = after
        if drafts:
            _take_back(live, line, entry, rejected)
        if output.counters is not None and (output.counters != after or not live.counts.saw_counters):
            live.counts.compare(request, output.counters, line, event.step)
        if request.finished:
            live.forget_if_gone(request)


def _oldest(live: Live, event: Process) -> StepRecord:
    """Takes out the step that is processed."""
    if event.step not in live.steps:
        raise BadEventError(f"step {event.step} is not unprocessed: expected a scheduled step")
    oldest = next(iter(live.steps))
    if event.step != oldest:
        raise BadEventError(f"step {event.step} is processed before step {oldest}: expected schedule order")
    record = live.steps.pop(oldest)
    live.step_processed(record.order)
    return record


def _in_order(record: StepRecord, event: Process) -> tuple[ProcessedRequest, ...]:
    """The outputs in the order of the step's entries, of an engine that lists them in another."""
    entries, outputs = record.entries, event.requests
    by_name = {output.request: output for output in outputs}
    if len(by_name) != len(outputs):
        raise BadEventError(f"step {event.step} has {len(outputs)} outputs of {len(by_name)} requests: expected each once")
    for entry in entries:
        if entry.request.name not in by_name:
            name = entry.request.name
            raise BadEventError(f"request {name!r} has no output of step {event.step}: expected one of each request that it ran")
    in_order = tuple(by_name.pop(entry.request.name) for entry in entries)
    if by_name:
        raise BadEventError(f"request {next(iter(by_name))!r} has an output of step {event.step}: expected one that it ran")
    return in_order


def _take_back(live: Live, line: int, entry: Entry, rejected: int) -> None:
    """Later steps of the generation start lower, on the device; a stale output rolls nothing back on the host."""
    request, generation, drafts = entry.request, entry.generation, entry.drafts
    for later in request.unprocessed:
        if later.generation == generation:
            later.rejectable -= drafts
            if rejected:
                later.start = masks.start_after_rejection(later.start, rejected)
    if rejected and not entry.stale:
        live.residency.rolled_back(request, line, rejected)


def end_generation(live: Live, request: Request, *, stale: bool) -> None:
    """A generation ends; `stale` says whether the outputs of its unprocessed steps still count."""
    request.generation += 1
    request.last = None
    if stale:
        live.counts.generation_ended(request)
        for entry in request.unprocessed:
            entry.stale = True
