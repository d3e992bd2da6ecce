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
    """A block's bytes: the positions `first` to `end` - 1 of a list of tags, which may still have to grow up to there."""

    tags: list[int]
    first: int
    end: int


class Hit(NamedTuple):
    """A block that a request took over, whole or as a copy (`origin` None: one that stands for nothing). What it holds is looked up once
    the step that writes it has been launched.
    """

    group: int
    table_index: int
    origin: Origin | None


class Place(NamedTuple):
    """Where a block stands in the table of the request that it was allocated to. `tags`: those of the generation that had it."""

    sequence: Sequence
    group: int
    table_index: int
    tags: list[int]


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
    """All blocks of the pool. `hashed`: those in the prefix cache, with what their hash stands for. `are_hashes_told`: the trace says
    which; else a hit stands for what its block holds by its place.
    """

    def __init__(self, groups: Seq[KVCacheSpec], *, are_hashes_told: bool = True) -> None:
        self.groups, self.are_hashes_told = groups, are_hashes_told
        self.hashed: dict[int, Origin] = {}
        self._places: dict[int, Place] = {}
        self._promised: dict[int, list[int]] = {}  # blocks hashed since the last step of their request was launched, by its list of tags

    def allocate(self, tables: Tables, group: int, first_index: int, blocks: Seq[int]) -> None:
        tables.hold(group, first_index, blocks)
        for index, block in enumerate(blocks, first_index):
            self._places[block] = Place(tables.sequence, group, index, tables.sequence.tags[group])
            self.hashed.pop(block, None)

    def touch(self, tables: Tables, group: int, first_index: int, blocks: Seq[int]) -> None:
        """What is not in the prefix cache stands for nothing."""
        tables.hold(group, first_index, blocks)
        stands_for = self.hashed.get if self.are_hashes_told else self._in_place
        tables.hits += [Hit(group, index, stands_for(block)) for index, block in enumerate(blocks, first_index)]

    def move(self, tables: Tables, group: int, from_index: int, to_index: int, block: int) -> None:
        tables.release(group, (from_index,), (block,))
        tables.hold(group, to_index, (block,))
        self._places[block] = Place(tables.sequence, group, to_index, tables.sequence.tags[group])

    def copy(self, group: int, source: int, target: int, tables: Mapping[str, Tables]) -> None:
        """The request that owns the target takes over what the source holds."""
        place = self._places.get(target)
        if place is not None:
            tables[place.sequence.name].hits.append(Hit(group, place.table_index, self.hashed.get(source) or self._in_place(source)))

    def may_be_hit(self, blocks: Iterable[int]) -> Iterable[int]:
        """Those of the blocks, and perhaps others, whose contents somebody may still take over."""
        return self.hashed if self.are_hashes_told else blocks

    # ---- what blocks hold --------------------------------------------------------------------------------------------

    def go_on(self, sequence: Sequence) -> None:
        """Its generation has ended, and it keeps its table: what it writes from now on stands in its blocks, too."""
        self._places.update(
            {block: place._replace(tags=sequence.tags[place.group]) for block, place in self._places.items() if place.sequence is sequence}
        )

    def place_of(self, block: int) -> Place | None:
        return self._places.get(block)

    def _in_place(self, block: int) -> Origin | None:
        """What a block holds by its place; None if nobody ever had it."""
        place = self._places.get(block)
        if place is None:
            return None
        size = self.groups[place.group].block_size
        return Origin(place.tags, place.table_index * size, (place.table_index + 1) * size)

    def take_hits(self, tables: Tables, *, so_far: bool = False) -> None:
        """The request's contents are those of the blocks that it took over, as far as it counts them as computed.

        `so_far`: they are looked up again, for steps that are not launched yet may write there. A block that stands for other positions
        than those at which it is taken brings nothing.
        """
        for hit in tables.hits:
            own, spec, origin = tables.sequence.tags[hit.group], self.groups[hit.group], hit.origin
            first, size = hit.table_index * spec.block_size, spec.block_size
            if origin is None or origin.first != first:
                continue
            begin, end = (0 if isinstance(spec, MambaSpec) else first), min(first + size, origin.end, len(own))
            if begin < end:
                tables.sequence.adopt(hit.group, begin, origin.tags[begin:end])
        if not so_far:
            tables.hits = []

    # ---- the prefix cache --------------------------------------------------------------------------------------------

    def cache(self, entries: Iterable[CacheEntry], tables: Mapping[str, Tables]) -> None:
        """A hash stands for the tokens that its entry names, or, where it names none, for those of the block's place: as the next step of
        that request leaves them, which may be the one that is being scheduled, whatever is rejected later.
        """
        for entry in entries:
            origin = self._named_by(entry, tables) or self._in_place(entry.block)
            if origin is not None and entry.block != NULL_BLOCK:
                self.hashed[entry.block] = origin
                self._promised.setdefault(id(origin.tags), []).append(entry.block)

    def freeze(self, launched: Iterable[Sequence]) -> None:
        """These requests' steps have been launched: what hashes of theirs stand for stays as it is."""
        for sequence in launched:
            for tags in sequence.tags:
                for block in self._promised.pop(id(tags), ()):
                    origin = self.hashed.get(block)
                    if origin is not None and origin.tags is tags:
                        self.hashed[block] = Origin(tags[: origin.end], origin.first, origin.end)

    def _named_by(self, entry: CacheEntry, tables: Mapping[str, Tables]) -> Origin | None:
        if entry.request is None or entry.start is None or entry.request not in tables:
            return None
        place = self._places.get(entry.block)
        group = entry.group if entry.group is not None else (place.group if place is not None else None)
        if group is None:
            return None
        size = self.groups[group].block_size
        first = entry.start // size * size
        end = first + size if entry.end is None else entry.end
        known = self.hashed.get(entry.block)  # several hashes of one block: the longest
        if known is not None and known.first == first and known.end > end:
            return known
        return Origin(tables[entry.request].sequence.tags[group], first, end)

    def evict(self, entries: Iterable[CacheEntry]) -> None:
        for entry in entries:
            self.hashed.pop(entry.block, None)


def block_at(row: Row, index: int) -> int:
    """What a step finds there: past the end of a row the device's table holds the null block."""
    return row[index] if index < len(row) else NULL_BLOCK
