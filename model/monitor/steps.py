"""Schedule and process: rows, counters and true starts move, and the checks that belong to these moments run."""

from __future__ import annotations

from settled.model.events import Process, Schedule, ScheduledRequest
from settled.model.monitor import masks, sharing, transfers
from settled.model.monitor.live import BadEventError, Live, StepRecord
from settled.model.monitor.state import Entry, Request


def schedule(live: Live, line: int, event: Schedule) -> None:
    """A step is dispatched. Before it, each request has pruned; from here on it reads through its rows as they stand."""
    _check_step(live, event)
    live.residency.no_finish_followed()
    transfers.step_came(live, event.step)
    record = StepRecord(event.step, live.next_order)
    live.next_order += 1
    live.steps[event.step] = record
    live.findings.saw_steps |= bool(event.requests)
    for scheduled in event.requests:
        request = live.request(scheduled.request)
        _check_scheduled(live, scheduled, request)
        live.counts.before_schedule(request, scheduled.start, line, event.step)
        if live.bounds.checked:
            live.bounds.pruned(request, line)
        entry = _dispatch(record, request, scheduled)
        live.counts.scheduled(request, scheduled.tokens)
        live.counts.compare(request, scheduled.counters, line, event.step)
        live.residency.scheduled(entry, line)
        if live.ledger.shared_blocks:
            sharing.scheduled(live, entry, line)


def _check_step(live: Live, event: Schedule) -> None:
    if event.step in live.steps:
        raise BadEventError(f"step {event.step} is unprocessed already: expected a new step")
    depth = live.config.max_in_flight_steps
    if event.requests and len(live.steps) >= depth and sum(1 for record in live.steps.values() if record.entries) >= depth:
        raise BadEventError(f"{depth} steps are unprocessed already: expected no more (max_in_flight_steps)")
    names = {scheduled.request for scheduled in event.requests}
    if len(names) != len(event.requests):
        raise BadEventError(f"step {event.step} names {len(names)} requests in {len(event.requests)} entries: expected each once")
    live.check_after(event.after)


def _check_scheduled(live: Live, scheduled: ScheduledRequest, request: Request) -> None:
    live.check_per_group("new_blocks", scheduled.new_blocks)
    for name, indices in (("reads", scheduled.reads), ("writes", scheduled.writes)):
        if indices is not None and len(indices) != len(live.modelled):
            raise BadEventError(f"{name} has {len(indices)} lists: expected one a group, {len(live.modelled)}")
    if request.finished:
        raise BadEventError(f"request {request.name!r} is finished: expected no further step of it")
    if scheduled.drafts > live.config.num_draft_tokens:
        raise BadEventError(
            f"request {request.name!r} has {scheduled.drafts} drafts: expected at most {live.config.num_draft_tokens} (num_draft_tokens)"
        )
    if scheduled.start < 0 or scheduled.tokens < 1 or not 0 <= scheduled.drafts <= scheduled.tokens:
        raise BadEventError(
            f"request {request.name!r}: expected start >= 0, tokens >= 1 and 0 <= drafts <= tokens, "
            f"found {scheduled.start}, {scheduled.tokens}, {scheduled.drafts}"
        )


def _dispatch(record: StepRecord, request: Request, scheduled: ScheduledRequest) -> Entry:
    starts_over = scheduled.resumed or request.is_new_to_worker
    request.is_new_to_worker = False
    rows, lengths = [], []
    for table, new_blocks in zip(request.tables, scheduled.new_blocks, strict=True):
        if starts_over:
            table.replace_row(new_blocks)
        elif new_blocks:
            table.extend_row(new_blocks)
        rows.append(table.row)
        lengths.append(len(table.row))
    entry = Entry(
        record.step,
        record.order,
        request,
        request.generation,
        scheduled.start,
        scheduled.tokens,
        scheduled.drafts,
        rows,
        lengths,
        scheduled.start + scheduled.tokens,
        scheduled.reads,
        scheduled.writes,
        previous=request.last,
    )
    request.last = entry
    record.entries.append(entry)
    request.unprocessed.append(entry)
    return entry


def process(live: Live, line: int, event: Process) -> None:
    """The oldest step's output is read."""
    live.residency.no_finish_followed()
    if event.step not in live.steps:
        raise BadEventError(f"step {event.step} is not unprocessed: expected a scheduled step")
    oldest = next(iter(live.steps))
    if event.step != oldest:
        raise BadEventError(f"step {event.step} is processed before step {oldest}: expected schedule order")
    record = live.steps.pop(oldest)
    live.step_processed(record.order)
    outputs = {output.request: output for output in event.requests}
    if len(outputs) != len(event.requests):
        raise BadEventError(f"step {event.step} has {len(event.requests)} outputs of {len(outputs)} requests: expected each once")
    for entry in record.entries:
        request = entry.request
        output = outputs.pop(request.name, None)
        if output is None:
            raise BadEventError(f"request {request.name!r} has no output of step {event.step}: expected one of each request that it ran")
        rejected = output.rejected
        if not 0 <= rejected <= entry.drafts:
            raise BadEventError(f"request {request.name!r} rejects {rejected}: expected 0 to the step's {entry.drafts} drafts")
        entry.rejected = rejected
        live.residency.settle(entry)
        entry.previous = None
        request.unprocessed.popleft()
        live.counts.processed(request, entry.tokens, rejected)
        if rejected:
            _take_back(live, line, entry, rejected)
        live.counts.compare(request, output.counters, line, event.step)
        if request.finished:
            live.forget_if_gone(request)
    if outputs:
        raise BadEventError(f"request {next(iter(outputs))!r} has an output of step {event.step}: expected one that it ran")


def _take_back(live: Live, line: int, entry: Entry, rejected: int) -> None:
    """Later steps of the generation start lower, on the device; a stale output rolls nothing back on the host."""
    for later in entry.request.unprocessed:
        if later.generation == entry.generation:
            later.start = masks.start_after_rejection(later.start, rejected)[0]
    if not entry.stale:
        live.residency.rolled_back(entry.request, line, rejected)


def end_generation(live: Live, request: Request, *, stale: bool) -> None:
    """A generation ends; `stale` says whether the outputs of its unprocessed steps still count."""
    request.generation += 1
    request.last = None
    if stale:
        live.counts.generation_ended(request)
        for entry in request.unprocessed:
            entry.stale = True
