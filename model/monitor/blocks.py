"""Events of tables and references: what enters a table, what leaves it, and who may still need it."""

from __future__ import annotations

from settled.model.events import (
    NULL_BLOCK,
    Allocate,
    Cache,
    Copy,
    Drop,
    Evict,
    Hold,
    Move,
    Release,
    Touch,
    Zero,
)
from settled.model.monitor import sharing
from settled.model.monitor.live import BadEventError, Live
from settled.model.monitor.state import Note, Request
from settled.model.monitor.violation import Loss

PRUNE_CAUSES = frozenset({"window", "connector_finish"})


def allocate(live: Live, line: int, event: Allocate) -> None:
    """Fresh blocks enter a table; a step that is still watched on one of them loses it."""
    request = _placed(live, event)
    table, group = request.begin_table(event.group), event.group
    waits_for = live.waits_for(event.after)
    for index, block in enumerate(event.blocks, start=event.first_index):
        live.ledger.allocate(request, group, index, block, line)
        live.residency.lost(block, Loss.REALLOCATED, line, f"request {request.name}")
        former = table.put(index, block)
        if former != NULL_BLOCK:
            live.ledger.replaced(request, group, index, former, line)
        if waits_for >= 0:
            live.waits[block] = waits_for
        elif live.waits:
            live.waits.pop(block, None)
    live.bounds.grew(request, group, line)


def touch(live: Live, line: int, event: Touch) -> None:
    """Cached blocks enter a table; their bytes stay."""
    request = _placed(live, event)
    table, group = request.begin_table(event.group), event.group
    for index, block in enumerate(event.blocks, start=event.first_index):
        live.ledger.touch(request, group, index, block, line)
        sharing.joined(live, block, line, f"request {request.name}")
        former = table.put(index, block)
        if former != NULL_BLOCK:
            live.ledger.replaced(request, group, index, former, line)
    live.bounds.grew(request, group, line)


def _placed(live: Live, event: Allocate | Touch) -> Request:
    live.check_group(event.group)
    live.check_blocks(event.blocks)
    if event.first_index < 0:
        raise BadEventError(f"first_index {event.first_index} is out of range: expected at least 0")
    if event.blocks:
        live.findings.saw_blocks = True
    return live.active_request(event.request)


def release(live: Live, line: int, event: Release) -> None:
    """A request gives up entries: each is nulled, and watched for the steps in flight that may use it."""
    live.check_group(event.group)
    live.check_blocks(event.blocks)
    live.check_blocks(event.freed)
    if len(event.indices) != len(event.blocks):
        raise BadEventError(f"release has {len(event.indices)} indices and {len(event.blocks)} blocks: expected as many")
    live.findings.saw_blocks = True
    request = live.requests.get(event.request)
    freed = []
    if request is None:
        for index, block in zip(event.indices, event.blocks, strict=True):
            live.ledger.not_held(event.request, event.group, index, block, NULL_BLOCK, line)
    else:
        note = Note(request.name, line, event.cause, request.computed)
        for index, block in zip(event.indices, event.blocks, strict=True):
            if _release_one(live, line, request, event.group, index, block, note):
                freed.append(block)
    live.ledger.compare_freed(freed, event.freed, line, request or event.request)
    if request is None:
        return
    if event.cause in PRUNE_CAUSES and live.bounds.checked:
        live.bounds.pruned(request, line, [event.group])
    if request.finished:
        live.forget_if_gone(request)


def _release_one(live: Live, line: int, request: Request, group: int, index: int, block: int, note: Note) -> bool:
    """Releases one entry; whether the block is free now."""
    if note.cause == "deferred" and request.take_fenced(group, index, block):
        return _let_go(live, line, request, group, index, block, note)
    table = request.tables[group]
    held = table.block_at(index)
    if held != block or block == NULL_BLOCK:
        moved = live.masks[group] is None and block != NULL_BLOCK and block in table.blocks
        if not moved:
            live.ledger.not_held(request.name, group, index, block, held, line)
            return False
        index = table.blocks.index(block)  # a kind whose moves are not recorded
    table.take(index, note)
    return _let_go(live, line, request, group, index, block, note)


def _let_go(live: Live, line: int, request: Request, group: int, index: int, block: int, note: Note) -> bool:
    """The request's reference is gone, its steps may still use the block; whether it is free now."""
    if request.unprocessed:
        live.residency.released(request, group, index, block, note)
    if live.ledger.give_up(block):
        live.residency.lost(block, Loss.FREED, line)
        return True
    return False  # who shares it with the request's steps was told when they began to share


def move(live: Live, line: int, event: Move) -> None:
    """A block changes its index."""
    live.check_group(event.group)
    live.check_blocks((event.block,))
    request = live.active_request(event.request)
    if event.from_index == event.to_index or event.to_index < 0:
        raise BadEventError(f"block {event.block} moves from index {event.from_index} to {event.to_index}: expected another index, from 0")
    live.findings.saw_blocks = True
    table = request.tables[event.group]
    held = table.block_at(event.from_index)
    if held != event.block or held == NULL_BLOCK:
        live.ledger.not_held(request.name, event.group, event.from_index, event.block, held, line)
        return
    former = table.put(event.to_index, event.block)
    if former != NULL_BLOCK:
        live.ledger.replaced(request, event.group, event.to_index, former, line)
    table.take(event.from_index, None)
    if request.unprocessed:
        table.moved.setdefault(event.block, set()).add(event.from_index)


def hold(live: Live, line: int, event: Hold) -> None:
    """References of a holder that is no request."""
    live.check_blocks(event.blocks)
    live.findings.saw_blocks = True
    live.ledger.hold(event.holder, event.kind, event.blocks, line)
    if event.kind == "copy":
        for block in event.blocks:
            sharing.joined(live, block, line, f"holder {event.holder}")


def drop(live: Live, line: int, event: Drop) -> None:
    """A holder that is no request gives up references."""
    live.check_blocks(event.blocks)
    live.check_blocks(event.freed)
    live.findings.saw_blocks = True
    freed = live.ledger.drop(event.holder, event.blocks, line)
    for block in freed:
        live.residency.lost(block, Loss.FREED, line)
    live.ledger.compare_freed(freed, event.freed, line, event.holder)


def copy(live: Live, line: int, event: Copy) -> None:
    """Runs on the device at the start of its step, in step order: nothing to judge here."""
    live.check_group(event.group)
    live.check_blocks((event.source, event.target))
    live.check_after(event.after)


def zero(live: Live, line: int, event: Zero) -> None:
    """Runs on the device at the start of its step, in step order: nothing to judge here."""
    live.check_blocks(event.blocks)
    live.check_after(event.after)


def cache(live: Live, line: int, event: Cache) -> None:
    """Entries enter the prefix cache."""
    live.check_entries(event.entries)
    live.ledger.cache(event.entries)


def evict(live: Live, line: int, event: Evict) -> None:
    """Entries leave the prefix cache."""
    live.check_entries(event.entries)
    live.ledger.evict(event.entries)
