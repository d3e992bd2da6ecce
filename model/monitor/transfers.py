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
    _start(live, event)
    for group, blocks in enumerate(event.blocks):
        for block in blocks:
            if block == NULL_BLOCK:
                continue
            for watch in [*live.residency.watches_of(block), *_held_by_steps(live, event.request, group, block)]:
                _judge(live, line, event, watch)


def store(live: Live, line: int, event: Store) -> None:
    """A connector may read the blocks: it harms no step."""
    _start(live, event)


def _start(live: Live, event: Load | Store) -> None:
    live.check_per_group("blocks", event.blocks)
    if event.job in live.transfers:
        raise BadEventError(f"job {event.job!r} is under way already: expected a new job")
    if event.handles < 1:
        raise BadEventError(f"job {event.job!r} has {event.handles} handles: expected at least 1")
    live.transfers[event.job] = Transfer(event.handles, live.waits_for(event.after))


def _judge(live: Live, line: int, event: Load, watch: Watch) -> None:
    order = watch.entry.order
    if _is_ordered(live, event, order):
        return
    if live.findings.contract is Contract.EVENT:
        if live.waits.get(watch.block, -1) >= order:
            return
        if "order" not in live.config.records and event.after is None:
            live.residency.undecidable(watch, "loads are recorded without `after` (no `order` in records)")
            return
    live.residency.judge(watch, Loss.LOADED_OVER, line, f"job {event.job}")


def _is_ordered(live: Live, event: Load, order: int) -> bool:
    """Whether the load comes after the step of that order, by `after` or because it runs within a later step."""
    if live.waits_for(event.after) >= order:
        return True
    if event.step is None:
        return False
    within = live.steps.get(event.step)
    return within is None or within.order >= order


def _held_by_steps(live: Live, owner: str, group: int, block: int) -> Iterator[Watch]:
    """Steps in flight whose request still holds the block: of the load's own request, and of all if it is shared."""
    shared = live.ledger.references[block] > 1
    for record in live.steps.values():
        for entry in record.entries:
            if not (shared or entry.request.name == owner):
                continue
            index = _index_of(live, entry, group, block)
            if index is not None:
                yield Watch(entry, group, index, block, None)


def _index_of(live: Live, entry: Entry, group: int, block: int) -> int | None:
    """Where the step's row names a block that its request holds."""
    if live.masks[group] is None or block not in entry.rows[group]:
        return None
    index = entry.rows[group].index(block)
    held = entry.request.tables[group].block_at(index) == block
    return index if held and index < entry.lengths[group] else None


def finished(live: Live, line: int, event: Loaded | Stored) -> None:
    """A handle is over; the transfer is, with its last."""
    transfer = live.transfers.get(event.job)
    if transfer is None:
        raise BadEventError(f"unknown job {event.job!r}: expected a load or store under way")
    if event.failed is not None:
        live.check_per_group("failed", event.failed)
    transfer.handles -= 1
    if transfer.handles == 0:
        del live.transfers[event.job]
