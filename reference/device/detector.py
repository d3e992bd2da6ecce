"""Races in an op log, found in one pass and without luck: two accesses of a resource, one a write, that happens-before does not order.

A later access is compared, for each other stream, with that stream's latest read and latest write of the resource: a stream runs in
order, so if the second comes after the latest, it comes after all of them. An access that the host has seen over can not race any more.
The host's own accesses are never the first of a race, since all that it enqueues later comes after them.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable
from typing import Any

from settled.reference.device.clocks import NOTHING, Clocks, OpLogError
from settled.reference.device.ops import HOST, Free, HostSync, Launch, Op, OpLog, Record, Wait
from settled.reference.device.race import Place, Race

CONTRACTS = ("settled", "stream_order", "event")
"""As the model names them (`Contract` is a string): the reference does not import its properties."""

KEPT = 64
"""So many launches of a stream are kept before those that can not race any more are dropped."""


class RaceDetector:
    """Feed it ops as they come; `races(log, contract)` does it for a whole log.

    What a Free is depends on the contract. `settled`: the host writes each of its blocks, so every access by the device must be known
    over on the host, whether the block is used again or not. `stream_order`: nothing; who uses a block again is judged like any
    other access. `event`: the same, since the log already has the waits that a block's event stands for.

    `log` gives streams and names; its own ops are not looked at, and it may grow while it is watched. What is kept is bounded by the
    resources and the launches that the host has not seen over, and one entry an event.
    """

    def __init__(self, log: OpLog, contract: str) -> None:
        """Raises ValueError for an unknown contract."""
        if contract not in CONTRACTS:
            raise ValueError(f"unknown contract {contract!r}, known: {', '.join(CONTRACTS)}")
        self._frees_are_writes = contract == "settled"
        self._clocks = Clocks(log)
        self._num_resources = log.table + 1
        self._num_ops = 0
        self._streams: list[_Stream] = []
        self._under_way: list[_Stream] = []  # streams with a launch that the host has not seen over
        self._judges: dict[type, Callable[[Any, int], list[Race]]] = {
            Launch: self._launch,
            Record: self._record,
            Wait: self._wait,
            HostSync: self._host_sync,
            Free: self._free,
        }
        self._grow()

    def feed(self, op: Op) -> list[Race]:
        """The races whose second access is this op, by stream of the first. Raises OpLogError, after which nothing more can be fed."""
        return self.feed_all((op,))

    def feed_all(self, ops: Iterable[Op]) -> list[Race]:
        """The same of several ops, one after the other."""
        found: list[Race] = []
        judges = self._judges
        for op in ops:
            index = self._num_ops
            self._num_ops = index + 1
            try:
                races = judges[type(op)](op, index)
            except (IndexError, KeyError):
                self._check(op, index)
                raise
            if races:
                found += races
        return found

    def _grow(self) -> None:
        self._streams += [_Stream(number, self._num_resources) for number in range(len(self._streams), len(self._clocks.seen))]

    def _launch(self, op: Launch, index: int) -> list[Race]:
        number, reads, writes = op.stream, op.reads, op.writes
        if (reads and min(reads) < 0) or (writes and min(writes) < 0):
            raise IndexError  # as for what is too large, where it is looked up
        if number == HOST:
            return self._by_host(op, index, reads, writes)
        clocks = self._clocks
        waited = clocks.launch(index, number)
        if number >= len(self._streams):
            self._grow()
        found = _NONE
        for other in self._under_way:
            if other.latest > waited[other.number]:  # never of the stream itself: its clock is this launch
                conflicts = other.conflicts(reads, writes, clocks.known(number, other.number))
                if conflicts:
                    found = found + self._races(other, conflicts, op, index)
        stream = self._streams[number]
        if stream.latest <= clocks.seen[number]:
            self._under_way.append(stream)
        stream.launch(op, index)
        return found

    def _free(self, op: Free, index: int) -> list[Race]:
        if min(op.blocks, default=0) < 0:
            raise IndexError
        return self._by_host(op, index, (), op.blocks) if self._frees_are_writes else _NONE

    def _check(self, op: Op, index: int) -> None:
        """Raises OpLogError for what is no op and for what is no resource of the log."""
        if type(op) not in self._judges:
            raise OpLogError(index, f"{op!r} is no op")
        resources = (*op.reads, *op.writes) if isinstance(op, Launch) else op.blocks if isinstance(op, Free) else ()
        for resource in resources:
            if not 0 <= resource < self._num_resources:
                raise OpLogError(index, f"resource {resource}: the log has 0 to {self._num_resources - 1}")

    def _by_host(self, op: Launch | Free, index: int, reads: tuple[int, ...], writes: tuple[int, ...]) -> list[Race]:
        if (reads and max(reads) >= self._num_resources) or (writes and max(writes) >= self._num_resources):
            raise IndexError
        found = _NONE
        for other in self._under_way:
            conflicts = other.conflicts(reads, writes, self._clocks.seen[other.number])
            if conflicts:
                found = found + self._races(other, conflicts, op, index)
        return found

    def _races(self, other: _Stream, conflicts: dict[int, int], op: Launch | Free, index: int) -> list[Race]:
        second = Place(index, op)
        known = self._clocks.known(second.stream, other.number)
        latest = None if known == NOTHING else other.place(known)
        return [Race(resource, other.place(first), second, latest, other.event_after(first)) for resource, first in conflicts.items()]

    def _record(self, op: Record, index: int) -> list[Race]:
        self._clocks.record(index, op.event, op.stream)
        if op.stream >= len(self._streams):
            self._grow()
        stream = self._streams[op.stream]
        stream.recorded.append(stream.latest)
        stream.events.append(op.event)
        return _NONE

    def _wait(self, op: Wait, index: int) -> list[Race]:
        self._clocks.wait(index, op.stream, op.event)
        return _NONE

    def _host_sync(self, op: HostSync, index: int) -> list[Race]:
        for number in self._clocks.host_sync(index, op.event):
            stream = self._streams[number]
            seen = self._clocks.seen[number]
            if seen == stream.latest:
                stream.written.clear()
                self._under_way.remove(stream)
            if len(stream.indices) > KEPT:
                stream.forget(seen)
        return _NONE


class _Stream:
    """What a stream has done that may still race."""

    __slots__ = ("events", "indices", "latest", "number", "ops", "reads", "recorded", "writes", "written")

    def __init__(self, number: int, num_resources: int) -> None:
        self.number = number
        self.latest = NOTHING
        self.reads = [NOTHING] * num_resources  # the latest reader here of each resource
        self.writes = [NOTHING] * num_resources
        self.written: set[int] = set()  # the resources written by what the host has not seen over, and perhaps others
        self.indices: list[int] = []  # the launches that the host has not seen over, the latest that it has, and some before
        self.ops: list[Launch] = []
        self.recorded: list[int] = []  # the latest launch before each record
        self.events: list[int] = []

    def launch(self, op: Launch, index: int) -> None:
        self.latest = index
        self.indices.append(index)
        self.ops.append(op)
        clock = self.reads
        for resource in op.reads:
            clock[resource] = index
        clock = self.writes
        for resource in op.writes:
            clock[resource] = index
        self.written.update(op.writes)

    def conflicts(self, reads: tuple[int, ...], writes: tuple[int, ...], known: int) -> dict[int, int]:
        """Resource to the latest access here, after `known`, that such reads and writes race with."""
        found = {}
        if not self.written.isdisjoint(reads):
            for resource in reads:
                if self.writes[resource] > known:
                    found[resource] = self.writes[resource]
        for resource in writes:
            if self.writes[resource] > known or self.reads[resource] > known:
                found[resource] = max(self.writes[resource], self.reads[resource])
        return found

    def place(self, index: int) -> Place:
        """One of the launches kept."""
        return Place(index, self.ops[bisect_left(self.indices, index)])

    def event_after(self, index: int) -> int | None:
        """The first event recorded after that launch."""
        at = bisect_left(self.recorded, index)
        return self.events[at] if at < len(self.events) else None

    def forget(self, seen: int) -> None:
        """The launches before `seen`, and the records up to it: the host knows all that over."""
        gone = bisect_left(self.indices, seen)
        del self.indices[:gone], self.ops[:gone]
        gone = bisect_right(self.recorded, seen)
        del self.recorded[:gone], self.events[:gone]


_NONE: list[Race] = []  # never appended to


def races(log: OpLog, contract: str) -> list[Race]:
    """All races of a log, in the order of their second accesses. Raises OpLogError, and ValueError for an unknown contract."""
    return RaceDetector(log, contract).feed_all(log.ops)
