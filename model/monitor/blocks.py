"""Events of tables and references: what enters a table, what leaves it, and who may still need it."""

from __future__ import annotations

from settled.model.events import (
    NULL_BLOCK,
    After,
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
from settled.model.monitor.residency import FREED, REALLOCATED
from settled.model.monitor.slots import AlignedWithDrafts, StateMask
from settled.model.monitor.state import Entry, Note, Request

PRUNE_CAUSES = frozenset({"window", "connector_finish"})


def allocate(live: Live, line: int, event: Allocate) -> None:
    """Fresh blocks enter a table; a step that is still watched on one of them loses it."""
    request = _placed(live, event)
    group, blocks, ledger = event.group, event.blocks, live.ledger
    table = request.begin_table(group) if request.tables[group].is_over else request.tables[group]
    if live.moves_group[group]:
        _infer_moves(request, group, event.first_index, event.first_index + len(blocks))
    table.has_fresh = True
    watches, references, cached, held, notes = live.residency.watches, ledger.references, ledger.cached, table.blocks, table.notes
    for index, block in enumerate(blocks, start=event.first_index):
        if block == NULL_BLOCK or references[block] or block in cached:
            ledger.allocate(request, group, index, block, line)
        else:
            references[block] = 1  # what that does for a block that is free and not cached, as most are
        if block in watches:
            live.residency.lost(block, REALLOCATED, line, f"request {request.name}")
        if index == len(held) and not notes:
            held.append(block)
            table.held += 1
        else:
            former = table.put(index, block)
            if former != NULL_BLOCK:
                ledger.replaced(request, group, index, former, line)
    if event.after or live.waits:
        _note_waits(live, blocks, event.after)
    if live.bounds.checked:
        live.bounds.grew(request, group, line)


def _note_waits(live: Live, blocks: tuple[int, ...], after: tuple[After, ...] | None) -> None:
    """What the device waits for before it uses fresh blocks, until they are given out again."""
    waits_for = live.waits_for(after)
    for block in blocks:
        if waits_for >= 0:
            live.waits[block] = waits_for
        else:
            live.waits.pop(block, None)


def _infer_moves(request: Request, group: int, first_index: int, required: int) -> None:
    """The moves that an engine makes and does not record, before an allocation from `first_index` to `required`.

    They are taken as made only if they end where the fresh blocks begin.
    """
    mask, table = request.masks[group], request.tables[group]
    if isinstance(mask, AlignedWithDrafts):
        moves = mask.moves(table, required)
        if moves and moves[-1][1] == first_index - 1:
            for from_index, to_index in moves:
                if table.blocks[from_index] != NULL_BLOCK:
                    _move(request, group, from_index, to_index)


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
    request = live.requests.get(event.request)
    return live.active_request(event.request) if request is None or request.finished else request


def release(live: Live, line: int, event: Release) -> None:
    """A request gives up entries: each is nulled, and watched for the steps in flight that may use it."""
    blocks, group = event.blocks, event.group
    live.check_group(group)
    live.check_blocks(blocks)
    if event.freed != blocks:
        live.check_blocks(event.freed)
    if len(event.indices) != len(blocks):
        raise BadEventError(f"release has {len(event.indices)} indices and {len(blocks)} blocks: expected as many")
    live.findings.saw_blocks = True
    request = live.requests.get(event.request)
    if request is None:
        for index, block in zip(event.indices, blocks, strict=True):
            live.ledger.not_held(event.request, group, index, block, NULL_BLOCK, line)
        live.ledger.compare_freed([], event.freed, line, event.request)
        return
    freed = _release_all(live, line, request, event) if blocks else []
    if event.freed != tuple(freed):
        live.ledger.compare_freed(freed, event.freed, line, request)
    if request.bounded and event.cause in PRUNE_CAUSES:
        live.bounds.pruned(request, line, only=group)
    if request.finished:
        live.forget_if_gone(request)


def _release_all(live: Live, line: int, request: Request, event: Release) -> list[int]:
    """The blocks that are free now."""
    group, indices = event.group, event.indices
    table, is_deferred = request.tables[group], event.cause == "deferred"
    note = Note(request.name, line, event.cause, request.computed)
    held, notes, moved = table.blocks, table.notes, table.moved
    watches, references = live.residency.watches, live.ledger.references
    low, high = (indices[0], indices[0]) if len(indices) == 1 else (min(indices), max(indices))
    users: list[Entry] = []
    if request.unprocessed:
        # What moved is seen at other indices than these.
        users = list(request.unprocessed) if moved else live.residency.users(request, group, low, high)
    freed = []
    for index, block in zip(indices, event.blocks, strict=True):
        if is_deferred and request.take_fenced(group, index, block):
            pass
        elif block != NULL_BLOCK and 0 <= index < len(held) and held[index] == block:
            held[index] = NULL_BLOCK
            table.held -= 1
            notes[index] = note
        else:
            where = _where_it_moved(request, group, block)
            if where is None:
                live.ledger.not_held(request.name, group, index, block, table.block_at(index), line)
                continue
            index = where
            table.take(index, note)
        if users:
            seen = (index, *(moved.pop(block) - {index})) if block in moved else (index,)
            live.residency.released(users, group, seen, block, note)
        elif moved:
            moved.pop(block, None)
        if references[block] == 1:
            references[block] = 0
        elif not live.ledger.give_up(block):
            continue  # who shares it with the request's steps was told when they began to share
        if block in watches:
            live.residency.lost(block, FREED, line)
        freed.append(block)
    table.taken(low, high)
    return freed


def _where_it_moved(request: Request, group: int, block: int) -> int | None:
    """Where the table holds a block of a kind whose moves are neither recorded nor known."""
    blocks = request.tables[group].blocks
    if request.masks[group] is not None or block == NULL_BLOCK or block not in blocks:
        return None
    return blocks.index(block)


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
    former = _move(request, event.group, event.from_index, event.to_index)
    if former != NULL_BLOCK:
        live.ledger.replaced(request, event.group, event.to_index, former, line)


def _move(request: Request, group: int, from_index: int, to_index: int) -> int:
    """Moves a block; the former block of `to_index` comes back. Steps in flight see it where it was, and of a state kind the next one:
    it reads the state from there, and keeps its own where the block is now."""
    table = request.tables[group]
    block = table.blocks[from_index]
    former = table.put(to_index, block)
    table.take(from_index, None)
    if request.unprocessed:
        table.moved.setdefault(block, set()).add(from_index)
    elif isinstance(request.masks[group], StateMask):
        table.moved[block] = {from_index}
    return former


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
        live.residency.lost(block, FREED, line)
    live.ledger.compare_freed(freed, event.freed, line, event.holder)


def copy(live: Live, line: int, event: Copy) -> None:
    """Runs on the device at the start of its step, in step order: nothing to judge here. Later writes harm it no more."""
    live.check_group(event.group)
    live.check_blocks((event.source, event.target))
    live.check_after(event.after)
    live.ledger.copied(event.source)


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
