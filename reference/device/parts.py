"""A request's share of a step in one group, as a launch does it: what it writes, what it reads, and what it should find."""

from __future__ import annotations

from dataclasses import dataclass, field

from settled.model.events import ScheduledRequest
from settled.model.specs import KVCacheSpec, MambaSpec
from settled.reference.device.blocks import Row, block_at
from settled.reference.device.contents import Sequence
from settled.reference.device.foresight import Entry
from settled.reference.device.ops import KeysPart, StatesPart
from settled.reference.device.reading import Reading
from settled.reference.device.state_use import StateUse, state_use


@dataclass(slots=True)
class Parts:
    """Those of a step, and the blocks: `reads`, of keys and of states, and where either is written."""

    parts: list[KeysPart | StatesPart] = field(default_factory=list)
    reads: set[int] = field(default_factory=set)
    key_writes: set[int] = field(default_factory=set)
    state_writes: set[int] = field(default_factory=set)

    @property
    def rows(self) -> tuple[Row, ...]:
        return tuple([part.blocks for part in self.parts])


@dataclass(frozen=True, slots=True)
class Share:
    """What all groups of a request have in common. `written`: per group the tags of the step's tokens."""

    scheduled: ScheduledRequest
    entry: Entry
    sequence: Sequence
    rows: list[Row]
    written: list[list[int]]


def add_keys(parts: Parts, group: int, spec: KVCacheSpec, reading: Reading, share: Share, num_lookahead: int) -> None:
    """One group of keys."""
    entry, sequence, row = share.entry, share.sequence, share.rows[group]
    start, end = entry.start, entry.start + entry.tokens
    first, indices = _read(reading, spec.block_size, start, end, sequence.prompt_tokens)
    slots_end = max(end, min(end + num_lookahead, len(row) * spec.block_size))
    parts.reads.update([block_at(row, index) for index in indices])
    parts.key_writes.update([block_at(row, index) for index in range(start // spec.block_size, -(-slots_end // spec.block_size))])
    expected = sequence.tags[group][first:end]
    if entry.is_excused:
        expected = sequence.with_failures(group, first, expected)
    parts.parts.append(
        KeysPart(
            request=sequence.name,
            group=group,
            row=len(parts.parts),
            blocks=row,
            start=start,
            tokens=entry.tokens,
            prompt_tokens=sequence.prompt_tokens,
            tags=(*share.written[group], *sequence.lookahead(group, end, slots_end)),
            first=first,
            expected=tuple(expected),
            is_delivered=entry.is_delivered,
        )
    )


def _read(reading: Reading, block_size: int, start: int, end: int, prompt_tokens: int) -> tuple[int, set[int]]:
    """The lowest position that queries `start` to `end` - 1 read, and the table indices of all of them."""
    first, indices, known = start, set[int](), None
    for query in range(start, end):
        ranges = reading(query, prompt_tokens)
        blocks = [(low // block_size, (high - 1) // block_size) for low, high in ranges]
        if blocks != known:
            known = blocks
            for low, high in blocks:
                indices.update(range(low, high + 1))
        if ranges:
            first = min(first, ranges[0][0])
    return first, indices


def add_states(parts: Parts, group: int, spec: MambaSpec, share: Share) -> None:
    """One group of states."""
    entry, sequence, row = share.entry, share.sequence, share.rows[group]
    use = _as_recorded(state_use(spec, entry), group, share)
    if use.read is not None:
        parts.reads.add(block_at(row, use.read))
    parts.state_writes.update([block_at(row, index) for index, _ in use.writes])
    before = sequence.tags[group][: entry.start]
    if entry.is_excused:
        before = sequence.state_with_failures(group, before)
    parts.parts.append(
        StatesPart(
            request=sequence.name,
            group=group,
            row=len(parts.parts),
            blocks=row,
            start=entry.start,
            tokens=entry.tokens,
            read=use.read,
            before=tuple(before),
            tags=tuple(share.written[group]),
            writes=use.writes,
            is_delivered=entry.is_delivered,
        )
    )


def _as_recorded(use: StateUse, group: int, share: Share) -> StateUse:
    """An engine may tell which single index it reads: then it does, right or wrong."""
    reads = share.scheduled.reads
    if reads is not None and len(reads[group]) == 1 and use.read is not None:
        return use._replace(read=reads[group][0])
    return use
