"""Replay of small logs, tags alone, in plain Python: a launch can be taken back, so that orders with a common beginning share its work.

The same semantics as `replay.py`, worked out anew from the ops, without torch: each is a check of the other. A caller that walks all orders
depth first does a launch, goes on, and undoes it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

from settled.model.specs import MambaSpec
from settled.reference.device.ops import (
    BlocksWork,
    CopyWork,
    FillWork,
    KeysPart,
    Launch,
    LaunchKind,
    OpLog,
    StatesPart,
    StepWork,
    TransferWork,
)
from settled.reference.device.reading import Reading, reading_of
from settled.reference.device.reads import Found, garbled_queries, read_by_part
from settled.reference.device.results import Garbled
from settled.reference.device.states import EMPTY, chain, fold, stepped
from settled.reference.device.tags import NEVER_WRITTEN, POISONED, ZEROED

_Written = tuple[tuple[int, ...], tuple[int, ...]]
"""Slots and what goes into them."""

_TABLE = -1  # in the stack of what to undo: the block table; -2 and below are the staging buffers


@dataclass(slots=True)
class Misread:
    """A launch that found something wrong: the tags read, of keys (or a store's slots) and of states, and the number of its table."""

    op: int
    table: int
    keys: tuple[int, ...]
    states: tuple[int, ...]


@dataclass(slots=True)
class _Read:
    """Slots read, in a form that is fast to get. `get` gives a tuple, or the one tag where there is one slot."""

    slots: tuple[int, ...]
    expected: tuple[int, ...]
    get: Callable[[list[int]], Any]
    wanted: Any

    @classmethod
    def of(cls, slots: Iterable[int], expected: Iterable[int]) -> _Read:
        slots, expected = tuple(slots), tuple(expected)
        if not slots:
            return cls(slots, expected, lambda tags: (), ())
        return cls(slots, expected, itemgetter(*slots), expected if len(slots) > 1 else expected[0])

    def found(self, tags: list[int]) -> tuple[int, ...]:
        return tuple(tags[slot] for slot in self.slots)


@dataclass(slots=True)
class _Placed:
    """A step under one table. `outs`: (slot, which state read, a, b). `written`: their slots."""

    outs: tuple[tuple[int, int, int, int], ...]
    written: tuple[int, ...]
    keys: _Read
    states: _Read
    positions: list[tuple[int, int]]  # (part, position) of each key read


class SmallReplay:
    """Memory before the first launch. `path`: the launches done, in order; `misreads`: how many of them found something wrong."""

    def __init__(self, log: OpLog) -> None:
        self.log = log
        self.page = max((spec.block_size for spec in log.groups if not isinstance(spec, MambaSpec)), default=1)
        self.num_slots = log.num_blocks * self.page
        self.tags = [ZEROED] * self.page + [NEVER_WRITTEN] * (self.num_slots - self.page) + [EMPTY]
        self.table = 0
        self.staging = [0] * log.num_staging
        self.path: list[int] = []
        self.misreads = 0
        self._undo: list[tuple[Any, Any, bool]] = []
        self._tables: list[tuple[tuple[int, ...], ...]] = [()]
        self._written: dict[tuple[int, int], _Written] = {}  # by write and table
        self._placed: dict[tuple[int, int], _Placed] = {}  # by step and table
        self._launches: list[tuple[Any, Any] | None] = [self._compiled(op) if type(op) is Launch else None for op in log.ops]

    # ---- one launch on, one back ---------------------------------------------------------------------------------------

    def do(self, op: int) -> Misread | None:
        """The launch at that index of the log's ops. Returns what it found wrong, if anything; `garbled` says more of that."""
        launch = self._launches[op]
        if launch is None:
            raise ValueError(f"op {op} is no launch")
        run, data = launch
        misread: Misread | None = run(op, data)
        self.path.append(op)
        if misread is not None:
            self.misreads += 1
            self._undo[-1] = (*self._undo[-1][:2], True)
        return misread

    def undo(self) -> None:
        """As it was before the last launch. Raises IndexError where there is none."""
        place, old, is_wrong = self._undo.pop()
        self.path.pop()
        self.misreads -= is_wrong
        if type(place) is tuple:
            tags = self.tags
            for slot, tag in zip(place, old, strict=True):
                tags[slot] = tag
        elif place == _TABLE:
            self.table = old
        else:
            self.staging[_TABLE - 1 - place] = old

    def run(self, order: Iterable[int]) -> list[Garbled]:
        """Does the launches one after the other. Returns all that they find wrong; `undo` as often to get back."""
        garbled: list[Garbled] = []
        for op in order:
            misread = self.do(op)
            if misread is not None:
                garbled.extend(self.garbled(misread))
        return garbled

    # ---- kinds ---------------------------------------------------------------------------------------------------------

    def _compiled(self, op: Launch) -> tuple[Any, Any]:
        work, page = op.work, self.page
        if isinstance(work, StepWork):
            return self._write_keys if op.kind is LaunchKind.WRITE else self._step, work
        if isinstance(work, FillWork):
            if op.kind is LaunchKind.UPLOAD:
                return self._upload, work.staging
            self._tables.append(work.rows)
            return self._fill, (work.staging, len(self._tables) - 1)
        if isinstance(work, CopyWork):
            slots = tuple(range(work.target * page, (work.target + 1) * page))
            return self._copy, (slots, tuple(range(work.source * page, (work.source + 1) * page)))
        if isinstance(work, BlocksWork):
            blocks = tuple(dict.fromkeys(work.blocks))
            slots = tuple(block * page + slot for block in blocks for slot in range(page))
            return self._write, (slots, (ZEROED if op.kind is LaunchKind.ZERO else POISONED,) * len(slots))
        places, tags = self._moved(work)
        return (self._write, (places, tags)) if op.kind is LaunchKind.LOAD else (self._store, _Read.of(places, tags))

    def _moved(self, work: TransferWork) -> tuple[tuple[int, ...], tuple[int, ...]]:
        places: list[int] = []
        tags: list[int] = []
        for slots in work.slots:
            held = (chain(slots.tags),) if slots.is_state else slots.tags
            places.extend(slots.block * self.page + slots.first + offset for offset in range(len(held)))
            tags.extend(held)
        return tuple(places), tuple(tags)

    def _fill(self, op: int, filled: tuple[int, int]) -> None:
        buffer, table = filled
        self._undo.append((_TABLE - 1 - buffer, self.staging[buffer], False))
        self.staging[buffer] = table

    def _upload(self, op: int, buffer: int) -> None:
        self._undo.append((_TABLE, self.table, False))
        self.table = self.staging[buffer]

    def _write(self, op: int, written: _Written) -> None:
        slots, new = written
        tags = self.tags
        self._undo.append((slots, [tags[slot] for slot in slots], False))
        for slot, tag in zip(slots, new, strict=True):
            tags[slot] = tag

    def _copy(self, op: int, copied: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
        targets, sources = copied
        self._write(op, (targets, tuple(self.tags[slot] for slot in sources)))

    def _store(self, op: int, read: _Read) -> Misread | None:
        self._undo.append(((), (), False))
        return None if read.get(self.tags) == read.wanted else Misread(op, self.table, read.found(self.tags), ())

    def _write_keys(self, op: int, work: StepWork) -> None:
        written = self._written.get((op, self.table))
        if written is None:
            written = self._written[op, self.table] = self._place_keys(work, self._tables[self.table])
        self._write(op, written)

    def _step(self, op: int, work: StepWork) -> Misread | None:
        placed = self._placed.get((op, self.table))
        if placed is None:
            placed = self._placed[op, self.table] = self._place(work, self._tables[self.table])
        tags = self.tags
        self._undo.append((placed.written, [tags[slot] for slot in placed.written], False))
        states = placed.states.found(tags)
        for slot, which, a, b in placed.outs:
            tags[slot] = stepped(states[which], a, b)
        if placed.keys.get(tags) == placed.keys.wanted and states == placed.states.expected:
            return None
        return Misread(op, self.table, placed.keys.found(tags), states)

    # ---- a step under a table ------------------------------------------------------------------------------------------

    def _place_keys(self, work: StepWork, rows: tuple[tuple[int, ...], ...]) -> _Written:
        written: dict[int, int] = {}
        for part in work.parts:
            if isinstance(part, KeysPart):
                row = _row(rows, part.row)
                written.update({self._slot(row, part.group, position): tag for position, tag in enumerate(part.tags, start=part.start)})
        return tuple(written), tuple(written.values())

    def _place(self, work: StepWork, rows: tuple[tuple[int, ...], ...]) -> _Placed:
        outs: dict[int, tuple[int, int, int]] = {}
        keys: list[tuple[int, int]] = []
        states: list[tuple[int, int]] = []
        positions: list[tuple[int, int]] = []
        for number, part in enumerate(work.parts):
            row = _row(rows, part.row)
            if isinstance(part, KeysPart):
                for first, end in read_by_part(part, reading_of(self.log.groups[part.group])):
                    positions.extend((number, position) for position in range(first, end))
                    expected = part.expected[first - part.first : end - part.first]
                    keys.extend(zip((self._slot(row, part.group, position) for position in range(first, end)), expected, strict=True))
            else:
                for index, tokens in part.writes:
                    outs[_entry(row, index) * self.page] = (len(states), *fold(part.tags[:tokens]))
                states.append((self._state_slot(row, part), chain(part.before)))
        keys_read = _Read.of((slot for slot, _ in keys), (tag for _, tag in keys))
        states_read = _Read.of((slot for slot, _ in states), (tag for _, tag in states))
        made = tuple((slot, which, a, b) for slot, (which, a, b) in outs.items())
        return _Placed(made, tuple(outs), keys_read, states_read, positions)

    def _slot(self, row: tuple[int, ...], group: int, position: int) -> int:
        size = self.log.groups[group].block_size
        return _entry(row, position // size) * self.page + position % size

    def _state_slot(self, row: tuple[int, ...], part: StatesPart) -> int:
        return self.num_slots if part.read is None else _entry(row, part.read) * self.page

    # ---- what was wrong ------------------------------------------------------------------------------------------------

    def garbled(self, misread: Misread) -> list[Garbled]:
        """The rows that the launch garbled, or the first wrong slot of a store, as `replay.py` gives them."""
        op = self.log.ops[misread.op]
        assert type(op) is Launch
        if isinstance(op.work, TransferWork):
            return [self._stored(misread, op.work)]
        assert isinstance(op.work, StepWork)
        placed = self._placed[misread.op, misread.table]
        return [*self._states_garbled(misread, op.work, placed), *self._keys_garbled(misread, op.work, placed)]

    def _stored(self, misread: Misread, work: TransferWork) -> Garbled:
        slots, wanted = self._moved(work)
        states = [slots.is_state for slots in work.slots for _ in ((0,) if slots.is_state else slots.tags)]
        at = next(at for at, (found, tag) in enumerate(zip(misread.keys, wanted, strict=True)) if found != tag)
        return Garbled(misread.op, -1, -1, at, wanted[at], misread.keys[at], slots[at] < self.page, True, states[at])

    def _states_garbled(self, misread: Misread, work: StepWork, placed: _Placed) -> list[Garbled]:
        garbled: list[Garbled] = []
        parts = [(number, part) for number, part in enumerate(work.parts) if isinstance(part, StatesPart)]
        read = zip(parts, placed.states.slots, placed.states.expected, misread.states, strict=True)
        for (number, part), slot, wanted, found in read:
            if wanted != found:
                queries = range(part.start, part.start + part.tokens)
                is_null = slot < self.page
                garbled += [
                    Garbled(misread.op, number, query, part.start, wanted, found, is_null, part.is_delivered, True) for query in queries
                ]
        return garbled

    def _keys_garbled(self, misread: Misread, work: StepWork, placed: _Placed) -> list[Garbled]:
        wrong: dict[int, dict[int, Found]] = {}
        read = zip(placed.positions, placed.keys.slots, placed.keys.expected, misread.keys, strict=True)
        for (number, position), slot, wanted, found in read:
            if wanted != found:
                wrong.setdefault(number, {})[position] = Found(wanted, found, slot < self.page)
        garbled: list[Garbled] = []
        for number, by_position in wrong.items():
            part = work.parts[number]
            assert isinstance(part, KeysPart)
            for query, position, _ in garbled_queries(part, self._reading(part), by_position):
                bad = by_position[position]
                garbled.append(Garbled(misread.op, number, query, position, bad.expected, bad.found, bad.is_null, part.is_delivered, False))
        return garbled

    def _reading(self, part: KeysPart) -> Reading:
        return reading_of(self.log.groups[part.group])


def _row(rows: tuple[tuple[int, ...], ...], row: int) -> tuple[int, ...]:
    """Of a table: nothing beyond its last."""
    return rows[row] if row < len(rows) else ()


def _entry(row: tuple[int, ...], index: int) -> int:
    """What a table row says; null beyond its end."""
    return row[index] if index < len(row) else 0
