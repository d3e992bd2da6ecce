"""Loads and stores. A load may write from its event on, on its own stream: an unordered writer unless `after` or `step` orders it."""

from __future__ import annotations

from collections.abc import Iterator

from settled.model.events import NULL_BLOCK, Load, Loaded, Store, Stored
from settled.model.monitor.live import BadEventError, Live, Transfer
from settled.model.monitor.state import Entry, Watch
from settled.model.monitor.violation import Loss
from settled.model.properties import Contract


def load(live: Live, line: int, event: Load) -> None:
    """A connector may write into the blocks from here on: every step in flight that uses one must be ordered before it."""
    transfer = _start(live, event, is_load=True)
    for group, blocks in enumerate(event.blocks):
        for block in blocks:
            if block == NULL_BLOCK:
                continue
            for watch in live.residency.watches.get(block, ()):
                _judge(live, line, event, transfer, watch, is_released=True)
            for watch in list(_held_by_steps(live, event.request, group, block)):
                _judge(live, line, event, transfer, watch, is_released=False)


def store(live: Live, line: int, event: Store) -> None:
    """A connector may read the blocks: it harms no step."""
    _start(live, event, is_load=False)


def _start(live: Live, event: Load | Store, *, is_load: bool) -> Transfer:
    live.check_per_group("blocks", event.blocks)
    live.request(event.request)
    if event.job in live.transfers:
        raise BadEventError(f"job {event.job!r} is under way already: expected a new job")
    if event.handles < 1:
        raise BadEventError(f"job {event.job!r} has {event.handles} handles: expected at least 1")
    transfer = live.transfers[event.job] = Transfer(is_load, event.handles, live.waits_for(event.after))
    live.transfers_over.pop(event.job, None)
    return transfer


def _judge(live: Live, line: int, event: Load, transfer: Transfer, watch: Watch, *, is_released: bool) -> None:
    by_event = live.findings.contract is Contract.EVENT
    waited_for = max(transfer.waits_for, live.waits.get(watch.block, -1) if by_event else -1)
    if waited_for >= watch.entry.order or _runs_within_later(live, event, transfer, watch.entry, is_released=is_released):
        return
    if by_event and "order" not in live.config.records and event.after is None:
        live.residency.undecidable("loads are recorded without `after` (no `order` in records)")
        return
    live.residency.judge(watch, Loss.LOADED_OVER, line, f"job {event.job}")


def _runs_within_later(live: Live, event: Load, transfer: Transfer, entry: Entry, *, is_released: bool) -> bool:
    """Whether a synchronous load comes after the entry's step, because it runs within a later one.

    Within the entry's own step it comes before the reads: right for a block that the request holds, which then reads what was loaded
    for it; wrong for one that it has released.
    """
    if event.step is None:
        return False
    within = live.steps.get(event.step)
    if within is None:
        transfer.within = event.step  # still to come, and so later than every step in flight
        return True
    return within.order > entry.order or (within.order == entry.order and not is_released)


def step_came(live: Live, step: int) -> None:
    """The loads that run within a step are ordered by it."""
    for transfer in live.transfers.values():
        if transfer.within == step:
            transfer.within = None


def loads_unplaced(live: Live) -> int:
    """Loads that harm nobody only if they ran within a step which did not come."""
    return live.loads_astray + sum(transfer.within is not None for transfer in live.transfers.values())


def _held_by_steps(live: Live, owner: str, group: int, block: int) -> Iterator[Watch]:
    """Steps in flight whose request still holds the block: of the load's own request, and of all if others hold it."""
    shared = live.ledger.references[block] > 1 or block not in live.requests[owner].tables[group].blocks
    for record in live.steps.values():
        for entry in record.entries:
            if not (shared or entry.request.name == owner):
                continue
            index = _index_of(live, entry, group, block)
            if index is not None:
                yield Watch(entry, group, index, block, None)


def _index_of(live: Live, entry: Entry, group: int, block: int) -> int | None:
    """Where the step's row names a block that its request holds."""
    if entry.request.masks[group] is None or block not in entry.rows[group]:
        return None
    index = entry.rows[group].index(block)
    held = entry.request.tables[group].holds_as_seen(index, block)
    return index if held and index < entry.lengths[group] else None


def loaded(live: Live, line: int, event: Loaded) -> None:
    """A handle of a load is over."""
    _handle_over(live, event, is_load=True)


def stored(live: Live, line: int, event: Stored) -> None:
    """A handle of a store is over."""
    _handle_over(live, event, is_load=False)


def _handle_over(live: Live, event: Loaded | Stored, *, is_load: bool) -> None:
    """The transfer is over with its last handle. What it waited for is kept: later work may wait for it still."""
    transfer = live.transfers.get(event.job)
    if transfer is None:
        raise BadEventError(f"unknown job {event.job!r}: expected a load or store under way")
    if transfer.is_load != is_load:
        kinds = ("load", "store") if transfer.is_load else ("store", "load")
        raise BadEventError(f"job {event.job!r} is a {kinds[0]}: expected a {kinds[1]}")
    if event.failed is not None:
        live.check_per_group("failed", event.failed)
    if event.handle is not None:
        if event.handle in transfer.over:
            raise BadEventError(f"handle {event.handle!r} of job {event.job!r} is over already: expected another")
        transfer.over.add(event.handle)
    transfer.handles -= 1
    if transfer.handles == 0:
        del live.transfers[event.job]
        live.loads_astray += transfer.within is not None
        if transfer.waits_for in {record.order for record in live.steps.values()} and not event.cancelled:
            live.transfers_over[event.job] = transfer.waits_for  # one that was cancelled may never have waited
