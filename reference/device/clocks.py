"""Happens-before between launches, as vector clocks: what each stream, and the host, knows to be over when it comes to the next op.

A clock is the index in the log of a stream's latest launch. Three things make one launch come before another: they stand on one stream
in that order; the later one's stream waited for an event recorded after the earlier one; the host had seen such an event happen, or had
made the earlier one itself, before it enqueued the later one. What the host knows holds for all that it enqueues from then on, so it is
kept once, not joined into every stream.
"""

from __future__ import annotations

from settled.reference.device.ops import HOST, OpLog

NOTHING = -1
"""A clock that knows no launch."""


class OpLogError(ValueError):
    """A log that no device could execute; `index` of the op, the message says what is wrong with it."""

    def __init__(self, index: int, message: str) -> None:
        super().__init__(f"op {index}: {message}")
        self.index = index


class Clocks:
    """Feed it launches, records, waits and host syncs in the order of the log.

    `waited[stream][other]`: the latest launch of `other` that the stream comes after by its own order and its waits; the entry of the
    stream itself is its own latest launch. `seen[other]`: the latest launch of `other` that the host knows to be over. The host's own
    launches need no clock: whatever is enqueued after them comes after them. `log` gives the number of streams and may grow while it is
    watched.
    """

    def __init__(self, log: OpLog) -> None:
        self._log = log
        self.waited: list[list[int]] = []
        self.seen: list[int] = []
        self._events: dict[int, list[int]] = {}  # what had been launched before the record; empty when the host knows all of it
        self.grow()

    def grow(self) -> None:
        """Takes over streams that the log has got since."""
        more = max(0, self._log.num_streams - len(self.seen))
        for clock in self.waited:
            clock.extend([NOTHING] * more)
        self.seen.extend([NOTHING] * more)
        self.waited.extend([NOTHING] * self._log.num_streams for _ in range(more))

    def launch(self, index: int, stream: int) -> list[int]:
        """Of a stream of the device: its clocks, this launch included. Raises OpLogError for a stream that the log does not have."""
        if not HOST < stream < len(self.seen):
            self._check_stream(index, stream)
        waited = self.waited[stream]
        waited[stream] = index
        return waited

    def record(self, index: int, event: int, stream: int) -> None:
        """Raises OpLogError for an unknown stream and for an event recorded before."""
        if not HOST < stream < len(self.seen):
            self._check_stream(index, stream)
        if event in self._events:
            raise OpLogError(index, f"event {event} is recorded a second time")
        self._events[event] = self.waited[stream][:]

    def wait(self, index: int, stream: int, event: int) -> None:
        """Raises OpLogError for an unknown stream and for an event not recorded before."""
        if not HOST < stream < len(self.seen):
            self._check_stream(index, stream)
        recorded = self._events.get(event)
        if recorded is None:
            raise OpLogError(index, f"stream {stream} waits for event {event}, which is not recorded before")
        _join(self.waited[stream], recorded)

    def host_sync(self, index: int, event: int) -> list[int]:
        """The streams of which the host knows more than before. Raises OpLogError for an event not recorded before."""
        recorded = self._events.get(event)
        if recorded is None:
            raise OpLogError(index, f"the host waits for event {event}, which is not recorded before")
        self._events[event] = []
        return _join(self.seen, recorded)

    def known(self, stream: int, other: int) -> int:
        """The latest launch of `other` that comes before whatever the host enqueues on the stream next, or does next itself."""
        return self.seen[other] if stream == HOST else max(self.seen[other], self.waited[stream][other])

    def _check_stream(self, index: int, stream: int) -> None:
        """Raises OpLogError for what is no stream of the device, even now that the log may have more."""
        self.grow()
        if not HOST < stream < len(self.seen):
            raise OpLogError(index, f"unknown stream {stream}: those of the device are 1 to {len(self.seen) - 1}")


def _join(clock: list[int], other: list[int]) -> list[int]:
    """Raises each entry to the other's; the entries that moved. `other` may be older and shorter."""
    moved = []
    for stream, latest in enumerate(other):
        if latest > clock[stream]:
            clock[stream] = latest
            moved.append(stream)
    return moved
