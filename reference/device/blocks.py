"""What the scheduler's tables and the worker's rows hold, and what each block's bytes stand for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from collections.abc import Sequence as Seq
from typing import NamedTuple

from settled.model.events import NULL_BLOCK, CacheEntry, PerGroup
from settled.model.specs import KVCacheSpec, MambaSpec
from settled.reference.device.contents import Sequence

Row = tuple[int, ...]


class Origin(NamedTuple):
    """A block's bytes: the positions from `first` on of a list of tags, which may still have to grow up to there."""

    tags: list[int]
    first: int


class Hit(NamedTuple):
    """A block that a request took over, whole or as a copy. What it holds is looked up once the step that writes it has been launched."""

    group: int
    table_index: int
    origin: Origin


class Place(NamedTuple):
    """Where a block stands in the table of the request that it was allocated to."""

    sequence: Sequence
    group: int
    table_index: int


class Tables:
    """Of one request: the scheduler's tables, both ways; the worker's rows, which only grow or are replaced; hits to look up."""

    def __init__(self, sequence: Sequence, num_groups: int) -> None:
        self.sequence = sequence
        self.index_of: list[dict[int, int]] = [{} for _ in range(num_groups)]
        self._held: list[dict[int, int]] = [{} for _ in range(num_groups)]  # table index to block
        self.rows: list[Row] = [()] * num_groups
        self.hits: list[Hit] = []
        self._is_known_to_worker = False

    def hold(self, group: int, first_index: int, blocks: Seq[int]) -> None:
        self.index_of[group].update({block: index for index, block in enumerate(blocks, first_index)})
        self._held[group].update(enumerate(blocks, first_index))

    def release(self, group: int, indices: Iterable[int], blocks: Iterable[int]) -> None:
        held, index_of = self._held[group], self.index_of[group]
        for index, block in zip(indices, blocks, strict=True):
            if held.get(index) == block:
                del held[index]
            if index_of.get(block) == index:
                del index_of[block]

    def begin_again(self) -> None:
        """A preemption takes the whole tables; what a fence gives back later is not in the next ones."""
        self.hits.clear()
        for group in range(len(self._held)):
            self._held[group], self.index_of[group] = {}, {}

    def as_held(self) -> list[Row]:
        """The scheduler's tables, with null where nothing is held."""
        return [tuple([held.get(index, NULL_BLOCK) for index in range(max(held, default=-1) + 1)]) for held in self._held]

    def grow_rows(self, new_blocks: PerGroup, *, resumed: bool) -> None:
        """What a step tells the worker."""
        if resumed or not self._is_known_to_worker:
            self._is_known_to_worker = True
            self.rows = [tuple(blocks) for blocks in new_blocks]
        elif any(new_blocks):  # the rows of earlier steps stay as they are
            self.rows = [(*row, *blocks) for row, blocks in zip(self.rows, new_blocks, strict=True)]


class Blocks:
    """All blocks of the pool. `hashed`: those in the prefix cache, with what their hash stands for."""

    def __init__(self, groups: Seq[KVCacheSpec]) -> None:
        self.groups = groups
        self.hashed: dict[int, Origin] = {}
        self._places: dict[int, Place] = {}

    def allocate(self, tables: Tables, group: int, first_index: int, blocks: Seq[int]) -> None:
        tables.hold(group, first_index, blocks)
        for index, block in enumerate(blocks, first_index):
            self._places[block] = Place(tables.sequence, group, index)
            self.hashed.pop(block, None)

    def touch(self, tables: Tables, group: int, first_index: int, blocks: Seq[int]) -> None:
        tables.hold(group, first_index, blocks)
        for index, block in enumerate(blocks, first_index):
            origin = self.origin_of(block)
            if origin is not None:
                tables.hits.append(Hit(group, index, origin))

    def move(self, tables: Tables, group: int, from_index: int, to_index: int, block: int) -> None:
        tables.release(group, (from_index,), (block,))
        tables.hold(group, to_index, (block,))
        self._places[block] = Place(tables.sequence, group, to_index)

    def copy(self, group: int, source: int, target: int, tables: Mapping[str, Tables]) -> None:
        """The request that owns the target takes over what the source holds."""
        origin, place = self.origin_of(source), self._places.get(target)
        if origin is not None and place is not None:
            tables[place.sequence.name].hits.append(Hit(group, place.table_index, origin))

    # ---- what blocks hold --------------------------------------------------------------------------------------------

    def place_of(self, block: int) -> Place | None:
        return self._places.get(block)

    def origin_of(self, block: int) -> Origin | None:
        """What a block holds by its hash, or else by its place; None if nobody ever had it."""
        if block in self.hashed:
            return self.hashed[block]
        place = self._places.get(block)
        if place is None:
            return None
        return Origin(place.sequence.tags[place.group], place.table_index * self.groups[place.group].block_size)

    def take_hits(self, tables: Tables, *, so_far: bool = False) -> None:
        """The request's contents are those of the blocks that it took over, as far as it counts them as computed.

        `so_far`: what steps not launched yet will write there is taken later.
        """
        pending = []
        for hit in tables.hits:
            own, size = tables.sequence.tags[hit.group], self.groups[hit.group].block_size
            first = 0 if isinstance(self.groups[hit.group], MambaSpec) else hit.table_index * size
            until = min((hit.table_index + 1) * size, len(own))
            skipped = hit.origin.first - hit.table_index * size  # the two tables may hold it at different indices only for states
            tags = hit.origin.tags[first + skipped : until + skipped]
            tables.sequence.adopt(hit.group, first, tags)
            if so_far and len(tags) < until - first:
                pending.append(hit)
        tables.hits = pending

    # ---- the prefix cache --------------------------------------------------------------------------------------------

    def cache(self, entries: Iterable[CacheEntry], tables: Mapping[str, Tables]) -> None:
        """A hash stands for the tokens that its entry names, or, where it names none, for those of the block's place."""
        for entry in entries:
            origin = self._named_by(entry, tables) or self.origin_of(entry.block)
            if origin is not None and entry.block != NULL_BLOCK:
                self.hashed[entry.block] = origin

    def _named_by(self, entry: CacheEntry, tables: Mapping[str, Tables]) -> Origin | None:
        if entry.request is None or entry.start is None or entry.request not in tables:
            return None
        place = self._places.get(entry.block)
        group = entry.group if entry.group is not None else (place.group if place is not None else None)
        if group is None:
            return None
        size = self.groups[group].block_size
        return Origin(tables[entry.request].sequence.tags[group], entry.start // size * size)

    def evict(self, entries: Iterable[CacheEntry]) -> None:
        for entry in entries:
            self.hashed.pop(entry.block, None)


def block_at(row: Row, index: int) -> int:
    """What a step finds there: past the end of a row the device's table holds the null block."""
    return row[index] if index < len(row) else NULL_BLOCK
