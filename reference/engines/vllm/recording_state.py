"""The state of a scheduler in mid-run: what a trace that starts there must say first."""

from __future__ import annotations

from settled.model.events import NULL_BLOCK, Hold, PerGroup, RequestState, State, UnprocessedRequest, UnprocessedStep
from settled.reference.engines.vllm.recording_blocks import BlockRecorder
from settled.reference.engines.vllm.recording_live import KnownRequest, Recording
from settled.reference.engines.vllm.recording_steps import StepEntry, StepRecorder
from settled.reference.engines.vllm.recording_transfers import TransferRecorder


def state_of(recording: Recording, blocks: BlockRecorder, steps: StepRecorder, transfers: TransferRecorder) -> State:
    """Between two calls of the scheduler. Costs time in proportion to what is alive, the prefix cache included."""
    known = list(recording.requests.by_id.values())
    tables = {one.name: _tables(one) for one in known if any(one.tables)}
    _add_fenced(blocks, tables, len(blocks.managers))
    return State(
        requests=tuple([_request_state(one, steps) for one in known if not one.is_finished]),
        unprocessed=tuple(
            [
                UnprocessedStep(step=step.step, requests=tuple([_unprocessed(entry, step.step) for entry in step.entries]))
                for step in steps.unprocessed.values()
            ]
        ),
        tables=tables,
        holders=tuple([Hold(holder=name, kind=kind, blocks=tuple(held.elements())) for (name, kind), held in blocks.holders.held.items()]),
        cached=tuple([entry for entries in blocks.cache.cached.values() for entry in entries]),
        jobs=transfers.pending(),
    )


def _tables(known: KnownRequest) -> PerGroup:
    return tuple([_row(table) for table in known.tables])


def _row(table: dict[int, int]) -> tuple[int, ...]:
    row = [NULL_BLOCK] * (max(table.values(), default=-1) + 1)
    for block, index in table.items():
        row[index] = block
    return tuple(row)


def _add_fenced(blocks: BlockRecorder, tables: dict[str, PerGroup], num_groups: int) -> None:
    """A fenced table is its request's, unless that has another one already: then a holder keeps it from here on."""
    for number, fenced in enumerate(blocks.fence.fenced):
        known = fenced.known
        if known is None or fenced.holder is not None:
            continue
        if known.name not in tables:
            groups: list[dict[int, int]] = [{} for _ in range(num_groups)]
            for group, index, block in fenced.entries:
                groups[group][block] = index
            tables[known.name] = tuple([_row(table) for table in groups])
        else:
            fenced.holder = f"fence {number} of {known.name}"
            blocks.holders.take_over(fenced.holder, [block for _, _, block in fenced.entries])


def _request_state(known: KnownRequest, steps: StepRecorder) -> RequestState:
    """The counters by the unprocessed steps: every release has those."""
    in_flight = stale = 0
    for step in steps.unprocessed.values():
        for entry in step.entries:
            if entry.known is known:
                in_flight += entry.tokens
                stale += entry.tokens if step.step <= known.last_stale_step else 0
    request = known.request
    return RequestState(
        request=known.name,
        prompt_tokens=request.num_prompt_tokens,
        computed=request.num_computed_tokens,
        in_flight=in_flight,
        stale=stale,
    )


def _unprocessed(entry: StepEntry, step: int) -> UnprocessedRequest:
    return UnprocessedRequest(
        request=entry.known.name,
        start=entry.start,
        tokens=entry.tokens,
        drafts=entry.drafts,
        rows=tuple([tuple(row[:length]) for row, length in zip(entry.rows, entry.lengths, strict=True)]),
        live=not entry.known.is_finished and step > entry.known.last_stale_step,
    )
