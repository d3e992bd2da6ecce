"""Threads as streams: a worker thread a stream, events between them, a host that enqueues and waits.

With natural timing the threads race as they like; with directed timing each launch waits for its ticket, so that exactly one given order
happens. Launches exclude each other: what a run did is an order, and the serial replay of that order does the same. Every wait has the
run's deadline, and whoever waits hears of a failure elsewhere: a run ends, one way or the other.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from settled.reference.device.ops import HOST, HostSync, Launch, LaunchKind, OpLog, Record, Wait


class ThreadsError(RuntimeError):
    """A run did not come to its end: who waited for what, when the deadline passed."""


@dataclass(slots=True)
class _Shared:
    """What the threads know of each other, guarded by `changed`, which nobody holds while a launch runs."""

    deadline: float
    changed: threading.Condition = field(default_factory=threading.Condition)
    running: threading.Lock = field(default_factory=threading.Lock)  # held by the launch that runs
    happened: set[int] = field(default_factory=set)  # events
    done: list[int] = field(default_factory=list)  # launches, in the order in which they ran
    failure: BaseException | None = None

    def wait_for(self, is_so: Callable[[], bool], what: str) -> None:
        """With `changed` held. Raises ThreadsError at the deadline or when another thread has failed."""
        if not self.changed.wait_for(lambda: is_so() or self.failure is not None, max(0.0, self.deadline - time.monotonic())):
            raise ThreadsError(f"the deadline passed; waited for {what}")
        if self.failure is not None:
            raise ThreadsError(f"given up waiting for {what}: another thread failed")

    def fail(self, error: BaseException) -> None:
        """The first failure is the one that the caller hears of."""
        with self.changed:
            self.failure = self.failure or error
            self.changed.notify_all()


class _Run:
    """One run of a log."""

    def __init__(
        self,
        log: OpLog,
        launch: Callable[[int], None],
        tickets: Mapping[int, int] | None,
        delay: Callable[[LaunchKind], float],
        seconds: float,
    ) -> None:
        self.log, self.launch, self.tickets, self.delay = log, launch, tickets, delay
        self.shared = _Shared(time.monotonic() + seconds)
        self.queues: list[deque[Callable[[], None] | None]] = [deque() for _ in range(log.num_streams)]

    def run(self) -> list[int]:
        workers = [threading.Thread(target=self._work, args=(stream,), daemon=True) for stream in range(1, self.log.num_streams)]
        for worker in workers:
            worker.start()
        try:
            for index, op in enumerate(self.log.ops):
                self._host(index, op)
        except BaseException as error:
            self.shared.fail(error)
        for stream in range(1, self.log.num_streams):
            self._enqueue(stream, None)
        for worker in workers:
            worker.join(max(0.0, self.shared.deadline - time.monotonic()))
        if self.shared.failure is not None:
            raise self.shared.failure
        if any(worker.is_alive() for worker in workers):
            raise ThreadsError("the deadline passed; a launch was still running")
        return self.shared.done

    def _host(self, index: int, op: object) -> None:
        if type(op) is Launch:
            if op.stream == HOST:
                self._launch(index, op.kind)
            else:
                self._enqueue(op.stream, lambda: self._launch(index, op.kind))
        elif type(op) is Record:
            if op.stream == HOST:
                self._happen(op.event)
            else:
                self._enqueue(op.stream, lambda: self._happen(op.event))
        elif type(op) is Wait:
            self._enqueue(op.stream, lambda: self._await(op.event))
        elif type(op) is HostSync:
            self._await(op.event)

    def _enqueue(self, stream: int, command: Callable[[], None] | None) -> None:
        with self.shared.changed:
            self.queues[stream].append(command)
            self.shared.changed.notify_all()

    def _work(self, stream: int) -> None:
        queue = self.queues[stream]
        try:
            while True:
                with self.shared.changed:
                    command = queue.popleft() if self._has_work(queue) else None
                if command is None:
                    return
                command()
        except BaseException as error:
            self.shared.fail(error)

    def _has_work(self, queue: deque[Callable[[], None] | None]) -> bool:
        """Waits for it; false where none comes by the deadline or after a failure. What holds the host up says so, not the idle thread."""
        self.shared.changed.wait_for(
            lambda: bool(queue) or self.shared.failure is not None, max(0.0, self.shared.deadline - time.monotonic())
        )
        return bool(queue) and self.shared.failure is None

    def _launch(self, index: int, kind: LaunchKind) -> None:
        shared = self.shared
        if self.tickets is None:
            time.sleep(self.delay(kind))
        else:
            ticket = self.tickets[index]
            with shared.changed:
                shared.wait_for(lambda: len(shared.done) == ticket, f"the ticket of launch {index}")
        if not shared.running.acquire(timeout=max(0.0, shared.deadline - time.monotonic())):
            raise ThreadsError(f"the deadline passed; launch {index} waited for another to end")
        try:
            if shared.failure is not None:
                raise ThreadsError(f"launch {index} given up: another thread failed")
            self.launch(index)
            with shared.changed:
                shared.done.append(index)
                shared.changed.notify_all()
        finally:
            shared.running.release()

    def _happen(self, event: int) -> None:
        with self.shared.changed:
            self.shared.happened.add(event)
            self.shared.changed.notify_all()

    def _await(self, event: int) -> None:
        with self.shared.changed:
            self.shared.wait_for(lambda: event in self.shared.happened, f"event {event}")


def run_threads(
    log: OpLog,
    launch: Callable[[int], None],
    *,
    order: Sequence[int] | None = None,
    delay: Callable[[LaunchKind], float] = lambda kind: 0.0,
    seconds: float = 30.0,
) -> list[int]:
    """Runs the log with `launch`, `Replay.run` say, and returns the order in which the launches ran.

    `order`, all the launches in a linear extension of the log, directs them; without it `delay` gives each launch, by its kind, seconds
    to wait before it runs. `seconds` is the deadline of the whole run. Raises what a launch raised; ThreadsError at the deadline, where an
    order that is no linear extension ends; and ValueError when `order` does not name every launch once.
    """
    tickets = None
    if order is not None:
        tickets = {index: ticket for ticket, index in enumerate(order)}
        if len(order) != len(tickets) or sorted(order) != log.launches():
            raise ValueError("an order names every launch of the log once")
    return _Run(log, launch, tickets, delay, seconds).run()
