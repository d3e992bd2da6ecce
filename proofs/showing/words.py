"""An event in words: one line, for a list, a tooltip, a lane. What comes from a trace is not escaped here for any format."""

from __future__ import annotations

from collections.abc import Sequence

from settled.model.events import (
    Add,
    Allocate,
    Cache,
    Computed,
    Config,
    Copy,
    Drop,
    End,
    Event,
    Evict,
    Finish,
    Gap,
    Hold,
    Move,
    PerGroup,
    Preempt,
    Process,
    ProcessedRequest,
    Release,
    Schedule,
    ScheduledRequest,
    State,
    Touch,
    Transfer,
    TransferDone,
    Zero,
)

NAMED_MAX = 4  # ranges of ids, or requests of a step, that one line names


def words_of(event: Event) -> str:
    """What happened, in one line."""
    match event:
        case Config():
            return f"{event.engine}: {event.num_blocks} blocks, {event.max_in_flight_steps} steps in flight at most"
        case State():
            return f"the trace begins in mid-run: {_count(len(event.requests), 'request')}"
        case Gap():
            return f"{_count(event.events, 'event')} lost"
        case End():
            return "end of the trace" + (", nothing in flight" if event.idle else "")
        case Schedule():
            return f"step {event.step} scheduled: {_listed([_scheduled(each) for each in event.requests]) or 'no request'}"
        case Process():
            return f"step {event.step} processed: {_listed([_processed(each) for each in event.requests]) or 'no request'}"
        case Transfer():
            within = "" if event.step is None else f", within step {event.step}"
            return f"{event.name} {event.job} for {event.request} begins: {blocks_text(_flat(event.blocks))}{within}"
        case TransferDone():
            end = "cancelled" if event.cancelled else "is over" if event.ok else "failed"
            failed = f": {blocks_text(_flat(event.failed))}" if event.failed and any(event.failed) else ""
            return f"{event.name.removesuffix('ed').replace('stor', 'store')} {event.job} {end}{failed}"
        case Add() | Computed() | Preempt() | Finish():
            return _of_request(event)
        case _:
            return _of_blocks(event)


def _of_request(event: Add | Computed | Preempt | Finish) -> str:
    match event:
        case Add():
            return f"{event.request} arrives with {_count(event.prompt_tokens, 'prompt token')}"
        case Computed():
            stale = ", its steps in flight become stale" if event.stale else ""
            return f"{event.request}: computed set to {event.computed} ({event.cause}){stale}"
        case Preempt():
            return f"{event.request} preempted: computed 0, its steps in flight become stale"
        case Finish():
            return f"{event.request} finishes ({event.reason})"


def _of_blocks(event: Event) -> str:
    match event:
        case Allocate() | Touch():
            last = event.first_index + len(event.blocks) - 1
            verb = "takes" if isinstance(event, Allocate) else "hits"
            at = f"[{event.first_index}]" if last <= event.first_index else f"[{event.first_index}] to [{last}]"
            return f"{event.request} {verb} {blocks_text(event.blocks)} as {at} of group {event.group}"
        case Release():
            back = "all" if set(event.freed) == set(event.blocks) else str(len(event.freed))
            freed = f"{back} back in the pool" if event.freed else "none goes back to the pool"
            return f"{event.request} releases {blocks_text(event.blocks)} of group {event.group} ({event.cause}): {freed}"
        case Hold():
            return f"{event.holder} holds {blocks_text(event.blocks)} ({event.kind})"
        case Drop():
            return f"{event.holder} lets go of {blocks_text(event.blocks)}" + (": back in the pool" if event.freed else "")
        case Move():
            return f"{event.request} moves block {event.block} from [{event.from_index}] to [{event.to_index}] of group {event.group}"
        case Copy():
            return f"block {event.source} is copied into block {event.target}, before step {event.step}"
        case Zero():
            return f"{blocks_text(event.blocks)} zeroed, before step {event.step}"
        case Cache():
            return f"{blocks_text([entry.block for entry in event.entries])} into the prefix cache"
        case Evict():
            return f"{blocks_text([entry.block for entry in event.entries])} out of the prefix cache"
        case _:
            return event.name


def _scheduled(part: ScheduledRequest) -> str:
    drafts = f" with {_count(part.drafts, 'draft')}" if part.drafts else ""
    return f"{part.request} [{part.start}, {part.start + part.tokens}){drafts}"


def _processed(output: ProcessedRequest) -> str:
    return f"{output.request} {output.sampled} sampled" + (f", {output.rejected} rejected" if output.rejected else "")


def blocks_text(blocks: Sequence[int]) -> str:
    """Block ids in words, neighbours as a range: "blocks 1 to 4, 9"."""
    if not blocks:
        return "no block"
    runs: list[list[int]] = []
    for block in blocks:
        if runs and block == runs[-1][1] + 1:
            runs[-1][1] = block
        else:
            runs.append([block, block])
    named = [str(first) if first == last else f"{first} to {last}" for first, last in runs]
    return f"block{'s' if len(blocks) > 1 else ''} {_listed(named)}"


def _listed(items: Sequence[str]) -> str:
    more = f" and {len(items) - NAMED_MAX} more" if len(items) > NAMED_MAX else ""
    return ", ".join(items[:NAMED_MAX]) + more


def _count(number: int, thing: str) -> str:
    return f"{number} {thing}{'' if number == 1 else 's'}"


def _flat(blocks: PerGroup) -> list[int]:
    return [block for of_group in blocks for block in of_group]
