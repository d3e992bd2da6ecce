"""The `state` event: a trace that starts in mid-run says what stood when it began."""

from __future__ import annotations

from settled.model.events import NULL_BLOCK, PendingJob, State, UnprocessedRequest
from settled.model.monitor.live import BadEventError, Live, StepRecord, Transfer
from settled.model.monitor.slots import AlignedWithDrafts
from settled.model.monitor.state import RESTORED_GENERATION, Entry, Request


def restore(live: Live, line: int, event: State) -> None:
    """Builds the live state. Who released what before is not known; the worker's rows are taken to equal the tables."""
    for known in event.requests:
        request = live.new_request(known.request, known.prompt_tokens)
        if min(known.computed, known.in_flight, known.stale) < 0:
            raise BadEventError(f"request {known.request!r} has a negative counter: expected computed, in_flight and stale from 0")
        request.computed, request.in_flight, request.stale = known.computed, known.in_flight, known.stale
        _began_before(live, request)
    for name, tables in event.tables.items():
        _restore_tables(live, line, live.requests.get(name) or _finished(live, name), tables)
    for held in event.holders:
        live.check_blocks(held.blocks)
        live.ledger.hold(held.holder, held.kind, held.blocks, line)
    for unprocessed in event.unprocessed:
        record = StepRecord(unprocessed.step, live.next_order, [])
        live.next_order += 1
        if live.steps.setdefault(unprocessed.step, record) is not record:
            raise BadEventError(f"step {unprocessed.step} stands twice in the state")
        names = {part.request for part in unprocessed.requests}
        if len(names) != len(unprocessed.requests):
            raise BadEventError(f"step {unprocessed.step} names a request twice: expected each once")
        for part in unprocessed.requests:
            record.entries.append(_restore_entry(live, record, part))
    for known in event.requests:
        _check_counters(live.requests[known.request])
    if event.cached:
        live.check_entries(event.cached)
        live.ledger.cache(event.cached)
    else:
        live.ledger.knows_cache = False  # the key is optional: the cache may have been full
    for job in event.jobs:
        _restore_job(live, job)
    live.findings.saw_steps |= any(live.steps[step].entries for step in live.steps)
    live.findings.saw_blocks |= bool(event.tables or event.holders)


def _check_counters(request: Request) -> None:
    """What is in flight is what the unprocessed steps say."""
    in_flight = sum(entry.tokens for entry in request.unprocessed)
    stale = sum(entry.tokens for entry in request.unprocessed if entry.stale)
    if (request.in_flight, request.stale) != (in_flight, stale):
        raise BadEventError(
            f"request {request.name!r} counts {request.in_flight} tokens in flight, {request.stale} of them stale: "
            f"expected {in_flight} and {stale}, by its unprocessed steps"
        )


def _restore_job(live: Live, job: PendingJob) -> None:
    if job.job in live.transfers:
        raise BadEventError(f"job {job.job!r} stands twice in the state")
    if job.handles < 1:
        raise BadEventError(f"job {job.job!r} has {job.handles} handles: expected at least 1")
    live.check_per_group(f"blocks of job {job.job!r}", job.blocks)
    live.transfers[job.job] = Transfer(job.kind == "load", job.handles, -1)


def _finished(live: Live, name: str) -> Request:
    """A request whose tables or steps outlive it."""
    request = live.new_request(name, None)
    request.finished = True
    _began_before(live, request)
    return request


def _began_before(live: Live, request: Request) -> None:
    """Its earlier steps are not known."""
    request.generation = RESTORED_GENERATION
    request.is_restored = True
    if any(isinstance(mask, AlignedWithDrafts) for _, mask, _ in request.modelled):
        live.residency.undecidable("which of a request's states its next step reads is not known where a trace starts in mid-run")


def _restore_tables(live: Live, line: int, request: Request, tables: tuple[tuple[int, ...], ...]) -> None:
    live.check_per_group(f"tables of {request.name!r}", tables)
    for group, blocks in enumerate(tables):
        table = request.tables[group]
        for index, block in enumerate(blocks):
            if block != NULL_BLOCK:
                table.put(index, block)
                live.ledger.add_reference(block)
        table.replace_row(blocks)
    request.rows_replaced()
    request.is_new_to_worker = not any(any(blocks) for blocks in tables)


def _restore_entry(live: Live, record: StepRecord, part: UnprocessedRequest) -> Entry:
    request = live.requests.get(part.request) or _finished(live, part.request)
    live.check_per_group("rows", part.rows)
    if part.start < 0 or part.tokens < 1 or not 0 <= part.drafts <= part.tokens:
        raise BadEventError(f"request {part.request!r}: expected start >= 0, tokens >= 1 and 0 <= drafts <= tokens in its step")
    rows = [list(row) for row in part.rows]
    generation = request.generation if part.live else request.generation - 1
    entry = Entry(
        record.step,
        record.order,
        request,
        generation,
        part.start,
        part.tokens,
        part.drafts,
        rows,
        [len(row) for row in rows],
        part.start + part.tokens,
        rejectable=sum(earlier.drafts for earlier in request.unprocessed if earlier.generation == generation),
        stale=not part.live,
        previous=request.last,
    )
    if part.live:
        request.last = entry
    request.unprocessed.append(entry)
    request.is_new_to_worker = False
    for group, row in enumerate(rows):
        users = [entry] if request.masks[group] is not None else []
        for index, block in enumerate(row):
            if block != NULL_BLOCK and request.tables[group].block_at(index) != block:
                live.residency.released(users, group, (index,), block, None)
    return entry
