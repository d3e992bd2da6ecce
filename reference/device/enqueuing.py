"""The host's side of the device: builds an op log, and keeps the events that later work waits for."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from settled.model.events import Job
from settled.reference.device.ops import (
    JANITOR,
    BlocksWork,
    Free,
    HostSync,
    Launch,
    LaunchKind,
    OpLog,
    Record,
    Wait,
    Work,
)


class Enqueuer:
    """Appends to a log. With `poisons` freed blocks are overwritten, on a stream of its own that waits for nothing: the next to touch them
    waits for it.
    """

    def __init__(self, log: OpLog, *, poisons: bool) -> None:
        self.log = log
        self.poisons = poisons
        self.emit = log.ops.append
        self._guards: dict[int, list[int]] = {}  # by block: events that whoever touches it next waits for
        self._waited: set[tuple[int, int]] = set()  # (stream, event)
        self._idle_streams: list[int] = []  # of transfers that the host has seen over
        self._stream_of: dict[Job, int] = {}

    def launch(self, stream: int, kind: LaunchKind, reads: tuple[int, ...], writes: tuple[int, ...], work: Work, line: int) -> None:
        if self._guards:
            self._wait_for_guards(stream, reads, writes)
        self.emit(Launch(stream, kind, reads, writes, work, line))

    def record(self, stream: int) -> int:
        """A new event."""
        event = self.log.num_events
        self.log.num_events += 1
        self.emit(Record(event, stream))
        return event

    def wait(self, stream: int, event: int) -> None:
        """Once is enough for a stream."""
        if (stream, event) not in self._waited:
            self._waited.add((stream, event))
            self.emit(Wait(stream, event))

    def host_sync(self, event: int) -> None:
        self.emit(HostSync(event))

    def free(self, blocks: tuple[int, ...], cached: Iterable[int], line: int) -> None:
        """`cached`: those whose contents may still be hit; they are not poisoned."""
        self.emit(Free(blocks, line))
        if self.poisons:
            self.poison(tuple(sorted(set(blocks).difference(cached))), line)

    def poison(self, blocks: tuple[int, ...], line: int) -> None:
        if blocks:
            self.emit(Launch(JANITOR, LaunchKind.POISON, (), blocks, BlocksWork(blocks), line))
            self.guard(blocks, [self.record(JANITOR)])

    def guard(self, blocks: Iterable[int], events: Sequence[int]) -> None:
        """Whoever touches the blocks next waits for the events."""
        for block in blocks:
            self._guards.setdefault(block, []).extend(events)

    def _wait_for_guards(self, stream: int, reads: tuple[int, ...], writes: tuple[int, ...]) -> None:
        """A guard lasts until the block is written."""
        for block in reads:
            for event in self._guards.get(block, ()):
                self.wait(stream, event)
        for block in writes:
            for event in self._guards.pop(block, ()):
                self.wait(stream, event)

    # ---- streams of transfers ----------------------------------------------------------------------------------------

    def stream_for(self, job: Job) -> int:
        """One on which nothing is pending: transfers are not ordered among themselves."""
        if self._idle_streams:
            stream = self._idle_streams.pop()
        else:
            stream = self.log.num_streams
            self.log.num_streams += 1
        self._stream_of[job] = stream
        return stream

    def transfer_over(self, job: Job) -> None:
        """The host has seen it."""
        self._idle_streams.append(self._stream_of.pop(job))
