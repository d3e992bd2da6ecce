"""Writes the events of a running engine from a thread of its own: the engine neither waits for a disk nor runs out of memory."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

from settled.model.events import Cache, Config, End, Event, Evict, Gap, Process, Schedule, State
from settled.reference.engines.trace_files import TraceFiles

FLUSH_SECONDS = 0.05
CLOSE_SECONDS_MAX = 10.0
_CHUNK_BYTES = 1 << 16


class TraceWriter:
    """A bounded buffer before files. `write` never blocks: what finds no room is lost, and counted in a `gap`.

    The buffer holds `buffer_records` at most, where an event counts one, and one more for each request or entry in it. When `needs_opening`
    says so (a file is full, or events were lost and half of the buffer is free again), the engine's thread calls `open_anew` between two
    steps; until then everything after a loss is lost too, as no reader could tell what it is about. The first event is to be the config.

    `encode` makes a line of an event. If it or a disk fails, `on_failure` is told the error once (in the writer's thread) and writing ends;
    what is written stays readable.
    """

    def __init__(
        self, files: TraceFiles, encode: Callable[[Event], bytes], on_failure: Callable[[Exception], None], *, buffer_records: int
    ) -> None:
        self._files, self._encode, self._on_failure = files, encode, on_failure
        self._records_max = buffer_records
        self._buffer: deque[Event | None] = deque()  # None: go on in the next file
        # Each count is written by one thread alone.
        self._records_put = self._events_lost = self._rotations = 0  # the engine's
        self._records_taken = self._files_filled = 0  # the writer's
        self._files_begun = 1
        self._is_over = False
        self._is_closing = threading.Event()
        self._wake = threading.Event()
        self._thread = threading.Thread(target=self._run, name="settled-trace-writer", daemon=True)
        self._thread.start()

    # ---- the engine's side -------------------------------------------------------------------------------------------

    def write(self, event: Event) -> None:
        """Takes an event, or counts it as lost."""
        if self._is_over:
            return
        waiting = self._records_put - self._records_taken
        if self._events_lost or waiting >= self._records_max:
            self._events_lost += 1
            return
        self._put(event)
        if waiting > self._records_max // 2:
            self._wake.set()

    @property
    def needs_opening(self) -> bool:
        """Whether config and state are due. False once writing is over: nobody would read them."""
        if self._is_over:
            return False
        if self._events_lost:
            return self._records_put - self._records_taken <= self._records_max // 2
        return self._files_filled > self._rotations

    def open_anew(self, config: Config, state: State) -> None:
        """What is known between two steps: after a gap, or at the top of the next file. A file is complete if nothing was under way."""
        is_whole = not (self._events_lost or state.unprocessed or state.jobs)
        self._tell_loss()
        if self._files_filled > self._rotations:
            if is_whole:
                self._put(End(idle=False))
            self._rotations += 1
            self._buffer.append(None)
        self._put(config)
        self._put(state)

    @property
    def is_over(self) -> bool:
        """Whether writing has failed."""
        return self._is_over

    def finish(self) -> None:
        """Nothing more comes; what is buffered is written without anybody waiting for it. May be called twice."""
        self._tell_loss()
        self._is_closing.set()
        self._wake.set()

    def close(self) -> None:
        """The same, and waits for it, CLOSE_SECONDS_MAX at most."""
        self.finish()
        self._thread.join(CLOSE_SECONDS_MAX)

    def _put(self, event: Event) -> None:
        self._records_put += _records(event)
        self._buffer.append(event)

    def _tell_loss(self) -> None:
        if self._events_lost:
            self._put(Gap(events=self._events_lost))
            self._events_lost = 0

    # ---- the writer's side -------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while not self._is_closing.is_set():
                self._wake.wait(FLUSH_SECONDS)
                self._wake.clear()
                self._drain()
            self._drain()
        except Exception as error:
            self._is_over = True
            self._buffer.clear()
            self._on_failure(error)
        finally:
            self._files.close()

    def _drain(self) -> None:
        """A chunk at a time: each write lets the engine's thread run."""
        chunk = bytearray()
        try:
            while self._buffer:
                event = self._buffer.popleft()
                if event is None:
                    self._flush(chunk)
                    self._files.rotate()
                    self._files_begun += 1
                    continue
                chunk += self._encode(event) + b"\n"
                self._records_taken += _records(event)
                if len(chunk) >= _CHUNK_BYTES:
                    self._flush(chunk)
        finally:
            self._flush(chunk)

    def _flush(self, chunk: bytearray) -> None:
        lines = bytes(chunk)
        chunk.clear()
        if lines:
            self._files.write(lines)
        if self._files.is_full:
            self._files_filled = self._files_begun


def _records(event: Event) -> int:
    """What an event takes of the buffer. A state counts one whatever its size: one alone is ever due, and it must find room."""
    if isinstance(event, Schedule | Process):
        return 1 + len(event.requests)
    return 1 + len(event.entries) if isinstance(event, Cache | Evict) else 1
