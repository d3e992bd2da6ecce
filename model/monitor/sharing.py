"""`write_owned`, where blocks are shared: what a step in flight writes into a block that others use too, and when they meet."""

from __future__ import annotations

from collections.abc import Iterator

from settled.model.events import NULL_BLOCK
from settled.model.monitor.live import Live
from settled.model.monitor.state import FAR, Entry, Watch


def scheduled(live: Live, entry: Entry, line: int) -> None:
    """A step starts: each block that it may write has one user, or a hash that stands for what is written."""
    lookahead, shared = live.config.num_lookahead_tokens, live.ledger.shared
    for group, mask, _ in entry.request.modelled:
        for index in mask.written(entry, group, lookahead):
            block = entry.row_block(group, index)
            if block in shared:
                live.residency.shared(Watch(entry, group, index, block, None), line, "others")


def look_done(live: Live, entry: Entry) -> None:
    """Notes for which later steps `residency.scheduled` and `scheduled` would find nothing, as they stand: kinds that keep keys only.

    A step that starts later reads no more of what the tables hold (`Table.clear_from`). It writes within the rows, from where it may start
    on; a block there gets a second user in the ledger's sight only.
    """
    request, lowest, clear_to, shared = entry.request, entry.start - entry.rejectable, FAR, live.ledger.shared
    for _, mask, table in request.modelled:
        first = lowest // mask.block_size
        if mask.keeps_states or table.clear_from > lowest or not shared.isdisjoint(table.row[first:]):
            return
        clear_to = min(clear_to, min(len(table.row), len(table.blocks)) * mask.block_size)
    request.clear_from, request.clear_to, request.sharings = lowest, clear_to, live.ledger.sharings


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
