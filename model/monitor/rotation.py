"""The `state` event: a trace that starts in mid-run says what stood when it began."""

from __future__ import annotations

from settled.model.events import NULL_BLOCK, State, UnprocessedRequest
from settled.model.monitor.live import BadEventError, Live, StepRecord, Transfer
from settled.model.monitor.state import Entry, Request


def restore(live: Live, line: int, event: State) -> None:
    """Builds the live state. Who released what before is not known; the worker's rows are taken to equal the tables."""
    for known in event.requests:
        request = live.new_request(known.request)
        request.computed, request.in_flight, request.stale = known.computed, known.in_flight, known.stale
        request.generation = 1
    for name, tables in event.tables.items():
        _restore_tables(live, line, live.requests.get(name) or _finished(live, name), tables)
    for held in event.holders:
        live.check_blocks(held.blocks)
        live.ledger.hold(held.holder, held.blocks, line)
    for unprocessed in event.unprocessed:
        record = StepRecord(unprocessed.step, live.next_order)
        live.next_order += 1
        if live.steps.setdefault(unprocessed.step, record) is not record:
            raise BadEventError(f"step {unprocessed.step} stands twice in the state")
        for part in unprocessed.requests:
            record.entries.append(_restore_entry(live, record, part))
    if event.cached:
        live.check_blocks([entry.block for entry in event.cached])
        live.ledger.cache(event.cached)
    for job in event.jobs:
        live.transfers[job.job] = Transfer(job.handles, -1)


def _finished(live: Live, name: str) -> Request:
    """A request whose tables or steps outlive it."""
    request = live.new_request(name)
    request.finished = True
    request.generation = 1
    return request


def _restore_tables(live: Live, line: int, request: Request, tables: tuple[tuple[int, ...], ...]) -> None:
    live.check_per_group(f"tables of {request.name!r}", tables)
    for group, blocks in enumerate(tables):
        table = request.tables[group]
        for index, block in enumerate(blocks):
            if block != NULL_BLOCK:
                table.put(index, block)
                live.ledger.add_reference(block)
        table.replace_row(blocks)
    request.is_new_to_worker = not any(any(blocks) for blocks in tables)


def _restore_entry(live: Live, record: StepRecord, part: UnprocessedRequest) -> Entry:
    request = live.requests.get(part.request) or _finished(live, part.request)
    live.check_per_group("rows", part.rows)
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
        stale=not part.live,
    )
    request.unprocessed.append(entry)
    request.is_new_to_worker = False
    for group, row in enumerate(rows):
        for index, block in enumerate(row):
            if block != NULL_BLOCK and request.tables[group].block_at(index) != block:
                live.residency.released(request, group, index, block, None)
    return entry
