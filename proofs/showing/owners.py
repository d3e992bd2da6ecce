"""Who holds which block from when to when: table entries of requests, null ones included, and references of others."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from settled.model.events import (
    NULL_BLOCK,
    Add,
    Allocate,
    Cache,
    Drop,
    Event,
    Evict,
    Finish,
    Gap,
    Hold,
    Move,
    Preempt,
    Release,
    State,
    Touch,
)

PRUNES = ("window", "connector_finish")  # causes of releases that leave null entries
NOWHERE = -1  # the group and the index of a reference that is no table entry


class Names:
    """Requests and other holders, numbered as they come."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self._numbers: dict[tuple[str, bool], int] = {}
        self.is_request: list[bool] = []

    def number(self, name: str, *, is_request: bool = True) -> int:
        known = self._numbers.get((name, is_request))
        if known is None:
            known = self._numbers[name, is_request] = len(self.names)
            self.names.append(name)
            self.is_request.append(is_request)
        return known


@dataclass(slots=True, eq=False)
class Holding:
    """A reference to a block, or a null entry (block 0), from the position `begin` to before `end` (None: to the end of the trace).

    Positions count events. `ended` is where the generation of its request ended, if it was held on from there: behind a fence.
    """

    block: int
    owner: int
    group: int
    index: int
    begin: int
    end: int | None = None
    ended: int | None = None


_Key = tuple[int, int, int, int]  # owner, group, index, block


class Owners:
    """Takes in events, and keeps what every block went through. `cached`: (block, begin, end) of its time in the prefix cache."""

    def __init__(self, names: Names) -> None:
        self.names = names
        self.holdings: list[Holding] = []
        self.cached: list[tuple[int, int, int | None]] = []
        self._open: dict[_Key, list[Holding]] = {}
        self._of_owner: dict[int, dict[int, Holding]] = {}  # owner → id of what it holds now
        self._cached_since: dict[int, tuple[int, dict[str, int]]] = {}  # block → since when, how often by hash

    def take(self, position: int, event: Event) -> None:
        match event:
            case Allocate() | Touch():
                self._hold(position, event.request, event.group, event.first_index, event.blocks)
            case Release():
                self._release(position, event)
            case Move():
                owner = self.names.number(event.request)
                self._close(position, owner, event.group, event.from_index, event.block)
                self._begin(position, owner, event.group, event.from_index, NULL_BLOCK)
                self._close_null(position, owner, event.group, event.to_index)
                self._begin(position, owner, event.group, event.to_index, event.block)
            case Hold():
                self._pin(position, event)
            case Drop():
                owner = self.names.number(event.holder, is_request=False)
                for block in event.blocks:
                    self._close(position, owner, NOWHERE, NOWHERE, block)
            case Cache():
                self._cache(position, event)
            case Evict():
                self._evict(position, event)
            case Preempt() | Finish():
                self._end_generation(position, self.names.number(event.request))
            case Add():
                self.names.number(event.request)
            case State():
                self._restore(position, event)
            case Gap():
                self._forget(position)

    def owned_by(self, owner: int, group: int) -> Iterable[Holding]:
        """What stands in an owner's table of a group now."""
        return [holding for holding in self._of_owner.get(owner, {}).values() if holding.group == group]

    # ---- holding -----------------------------------------------------------------------------------------------------

    def _begin(self, position: int, owner: int, group: int, index: int, block: int) -> None:
        holding = Holding(block, owner, group, index, position)
        self.holdings.append(holding)
        self._open.setdefault((owner, group, index, block), []).append(holding)
        self._of_owner.setdefault(owner, {})[id(holding)] = holding

    def _close(self, position: int, owner: int, group: int, index: int, block: int, *, is_pruned: bool = False) -> Holding | None:
        """A prune takes from the present table. Anything else takes the oldest: what an ended generation left behind a fence goes before
        what the next one holds, which may be the same block at the same index, through a hit."""
        key = owner, group, index, block
        found = self._open.get(key)
        if not found:
            return None
        holding = next((each for each in found if is_pruned and each.ended is None), found[0])
        found.remove(holding)
        if not found:
            del self._open[key]
        holding.end = position
        del self._of_owner[owner][id(holding)]
        return holding

    def _close_null(self, position: int, owner: int, group: int, index: int) -> None:
        self._close(position, owner, group, index, NULL_BLOCK)

    def _hold(self, position: int, request: str, group: int, first: int, blocks: Iterable[int]) -> None:
        owner = self.names.number(request)
        for index, block in enumerate(blocks, start=first):
            self._close_null(position, owner, group, index)
            self._begin(position, owner, group, index, block)

    def _pin(self, position: int, event: Hold) -> None:
        owner = self.names.number(event.holder, is_request=False)
        for block in event.blocks:
            self._begin(position, owner, NOWHERE, NOWHERE, block)

    def _release(self, position: int, event: Release) -> None:
        """A prune leaves null entries; any other release takes a table apart, its null entries with it."""
        owner, is_pruned = self.names.number(event.request), event.cause in PRUNES
        for index, block in zip(event.indices, event.blocks, strict=True):
            closed = self._close(position, owner, event.group, index, block, is_pruned=is_pruned)
            if is_pruned and closed is not None and closed.ended is None:
                self._begin(position, owner, event.group, index, NULL_BLOCK)
        left = list(self.owned_by(owner, event.group))
        if not is_pruned and all(holding.block == NULL_BLOCK for holding in left):
            self._drop_nulls(position, left)

    def _drop_nulls(self, position: int, holdings: Iterable[Holding]) -> None:
        for holding in holdings:
            self._close_null(position, holding.owner, holding.group, holding.index)

    def _end_generation(self, position: int, owner: int) -> None:
        for holding in list(self._of_owner.get(owner, {}).values()):
            if holding.block == NULL_BLOCK:
                self._close_null(position, owner, holding.group, holding.index)
            elif holding.ended is None:
                holding.ended = position

    # ---- the prefix cache --------------------------------------------------------------------------------------------

    def _cache(self, position: int, event: Cache | State) -> None:
        entries = event.entries if isinstance(event, Cache) else event.cached
        for entry in entries:
            _, times = self._cached_since.setdefault(entry.block, (position, {}))
            times[str(entry.hash)] = times.get(str(entry.hash), 0) + 1

    def _evict(self, position: int, event: Evict) -> None:
        for entry in event.entries:
            if entry.block not in self._cached_since:
                continue
            since, times = self._cached_since[entry.block]
            if entry.hash is None:
                times.clear()
            else:
                times.pop(str(entry.hash), None)
            if not times:
                del self._cached_since[entry.block]
                self.cached.append((entry.block, since, position))

    # ---- the whole trace ---------------------------------------------------------------------------------------------

    def _restore(self, position: int, event: State) -> None:
        for request, tables in event.tables.items():
            for group, blocks in enumerate(tables):
                self._hold(position, request, group, 0, blocks)
        for hold in event.holders:
            self._pin(position, hold)
        self._cache(position, event)

    def _forget(self, position: int) -> None:
        """Nothing is known any more."""
        for holding in self.holdings:
            if holding.end is None:
                holding.end = position
        self._open.clear()
        self._of_owner.clear()
        self.finish(position)

    def finish(self, position: int | None = None) -> None:
        """Closes what is still in the cache; without a position it stays there to the end."""
        self.cached.extend((block, since, position) for block, (since, _) in self._cached_since.items())
        self._cached_since.clear()
