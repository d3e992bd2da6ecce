"""`write_owned`, where blocks are shared: what a step in flight writes into a block that others use too, and when they meet."""

from __future__ import annotations

from collections.abc import Iterator

from settled.model.events import NULL_BLOCK
from settled.model.monitor.live import Live
from settled.model.monitor.state import Entry, Watch


def scheduled(live: Live, entry: Entry, line: int) -> None:
    """A step starts: each block that it may write has one user, or a hash that stands for what is written."""
    shared, lowest, rows = live.ledger.shared, entry.start - entry.rejectable, entry.rows
    for group, mask, _ in entry.request.modelled:
        # Keys are written from the start on. What is shared lies before it, as nearly always; a state may be anywhere.
        if mask.keeps_states or not shared.isdisjoint(rows[group][lowest // mask.block_size :]):
            for index in mask.written(entry, group, live.config.num_lookahead_tokens):
                block = rows[group][index]
                if block in shared:
                    live.residency.shared(Watch(entry, group, index, block, None), line, "others")


def joined(live: Live, block: int, line: int, taken_by: str) -> None:
    """Someone else uses a block from here on: steps in flight of those who hold it, or did, may still write it."""
    if live.steps and block != NULL_BLOCK:
        for watch in list(_writers(live, block)):
            live.residency.shared(watch, line, taken_by)
    for watch in live.residency.watches.get(block, ()):
        if not watch.is_reissued:
            live.residency.shared(watch, line, taken_by)


def _writers(live: Live, block: int) -> Iterator[Watch]:
    """Steps in flight that may write a block which their request still holds."""
    lookahead = live.config.num_lookahead_tokens
    for record in live.steps.values():
        for entry in record.entries:
            for group, mask, _ in entry.request.modelled:
                for index in mask.written(entry, group, lookahead):
                    if entry.row_block(group, index) == block and entry.request.tables[group].holds_as_seen(index, block):
                        yield Watch(entry, group, index, block, None)
