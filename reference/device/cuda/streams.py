"""An op log on real CUDA streams: launches, records, waits and host syncs as they stand there, in natural timing or a directed order.

Directed, each launch has a ticket, its rank in the order: a gate on its stream waits for the launch of the rank before. The host goes
through the log as ever, but holds back launches that are far ahead of their turn: a launch queue has an end, and a host that is stuck in
it could not enqueue what has to run first. A launch whose turn it is can always be enqueued, so that every linear extension comes to
its end.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence

from settled.reference.device.cuda.driver import DriverError
from settled.reference.device.cuda.runtime import POLL_SECONDS, CudaDevice
from settled.reference.device.ops import HOST, HostSync, Launch, LaunchKind, Op, OpLog, Record, Wait, stream_name
from settled.reference.device.orders import LaunchOrder


class StreamsError(RuntimeError):
    """A run did not come to its end; the message says who waited for what."""


class GateTimeoutError(StreamsError):
    """The deadline passed before the launches of a directed order had run. All gates were opened."""


class GateBoundError(StreamsError):
    """A spin kernel came to its bound, and a launch ran before its turn: what was read is worth nothing."""


class DeviceLostError(StreamsError):
    """An earlier run left work on the device that does not end."""


class _Natural:
    """A run in which only the log's own records, waits and host syncs order the work."""

    def __init__(self, log: OpLog, launch: Callable[[int], None], device: CudaDevice, step_seconds: float, seconds: float) -> None:
        self.log, self.launch, self.device, self.step_seconds = log, launch, device, step_seconds
        self.seconds = seconds
        self.deadline = time.monotonic() + seconds
        self.events = device.new_events(log.num_events)
        self.at = 0  # the op that the host has come to

    def run(self) -> None:
        try:
            for index, op in enumerate(self.log.ops):
                self.at = index
                self._check("putting it on its stream")
                self._do(op)
            self._finish()
        except BaseException as error:
            self._give_up(error)
            raise
        self.device.discard(self.events)

    def _do(self, op: Op) -> None:
        if isinstance(op, HostSync):
            self._await(lambda: self._has_happened(op.event), f"waiting for event {op.event}")
        elif isinstance(op, Launch) and op.stream == HOST:
            self._host_launch(self.at)
        elif isinstance(op, Launch | Record | Wait):
            self._submit(self.at, op.stream)

    def _submit(self, index: int, stream: int) -> None:
        self._enqueue(index)

    def _enqueue(self, index: int) -> None:
        """Puts an op on its stream."""
        op = self.log.ops[index]
        if isinstance(op, Launch):
            self._launch(index, op)
        elif isinstance(op, Record):
            self.device.record(self.events[op.event], op.stream)
        else:
            assert isinstance(op, Wait)
            self.device.wait(op.stream, self.events[op.event])

    def _launch(self, index: int, op: Launch) -> None:
        if op.kind is LaunchKind.STEP and self.step_seconds:
            self.device.keep_busy(op.stream, self.step_seconds)
        self.device.enqueue(op.stream, lambda: self.launch(index))

    def _host_launch(self, index: int) -> None:
        self.launch(index)

    def _has_happened(self, event: int) -> bool:
        return self.device.driver.has_happened(self.events[event])

    # ---- waiting -------------------------------------------------------------------------------------------------------

    def _await(self, is_so: Callable[[], bool], what: str) -> None:
        """Raises StreamsError at the deadline."""
        while True:
            self._check(what)
            if is_so():
                return
            self._go_on()
            time.sleep(POLL_SECONDS)

    def _check(self, what: str) -> None:
        if time.monotonic() > self.deadline:
            raise StreamsError(f"the deadline of {self.seconds:g} s passed; the host was at op {self.at}, {what}")

    def _go_on(self) -> None:
        """What the host has to do while it waits."""

    def _finish(self) -> None:
        self._await(lambda: all(map(self.device.is_idle, self.device.streams)), "waiting for the streams to end")

    def _give_up(self, error: BaseException) -> None:
        """Waits for what is under way, or sees to it that nobody uses the device again."""
        error.add_note(f"the host was at op {self.at} of {len(self.log.ops)}")
        self.device.is_lost = True
        try:
            grace = self.device.platform.grace_seconds
            if self.device.drain(grace):
                self.device.discard(self.events)
                self.device.is_lost = False
            else:
                error.add_note(f"work was left on the device: it did not end in {grace:g} s")
        except DriverError as failed:
            error.add_note(f"the device has failed: {failed}")


class _Directed(_Natural):
    """A run in exactly one order."""

    def __init__(self, log: OpLog, launch: Callable[[int], None], device: CudaDevice, order: Sequence[int], seconds: float) -> None:
        self.tickets = device.tickets
        self.tickets.begin(len(order), seconds)
        super().__init__(log, launch, device, 0.0, seconds)
        self.order = order
        self.ranks = {index: rank for rank, index in enumerate(order)}
        self.held: list[deque[int]] = [deque() for _ in range(log.num_streams)]  # what has yet to be put on each stream
        self.recorded: set[int] = set()
        self.stuck: int | None = None  # at the deadline: the rank whose turn it was

    def run(self) -> None:
        with self.tickets.released_after(self.seconds, self._expire):
            super().run()

    def _expire(self) -> None:
        self.stuck = self.tickets.done  # before the gates are opened, after which it would tell nothing

    # ---- what the host does --------------------------------------------------------------------------------------------

    def _submit(self, index: int, stream: int) -> None:
        self.held[stream].append(index)
        self._go_on()

    def _go_on(self) -> None:
        """Puts on the streams what may go there, until nothing more may."""
        while sum(map(self._advance, self.held)):
            pass

    def _advance(self, queue: deque[int]) -> bool:
        has_moved = False
        while queue and self._may_go(queue[0]):
            self._enqueue(queue.popleft())
            has_moved = True
        return has_moved

    def _may_go(self, index: int) -> bool:
        op = self.log.ops[index]
        if isinstance(op, Wait):
            return op.event in self.recorded  # a wait for an event that is not recorded yet would wait for nothing
        return isinstance(op, Record) or self.ranks[index] < self.tickets.done + self.tickets.ahead

    def _enqueue(self, index: int) -> None:
        super()._enqueue(index)
        op = self.log.ops[index]
        if isinstance(op, Record):
            self.recorded.add(op.event)

    def _launch(self, index: int, op: Launch) -> None:
        rank = self.ranks[index]
        self.tickets.wait(op.stream, rank)
        super()._launch(index, op)
        self.tickets.post(op.stream, rank)

    def _host_launch(self, index: int) -> None:
        rank = self.ranks[index]
        self._await(lambda: self.tickets.is_open(rank), f"waiting for its turn to run launch {index}")
        super()._host_launch(index)
        self.tickets.open(rank + 1)

    def _has_happened(self, event: int) -> bool:
        return event in self.recorded and super()._has_happened(event)

    # ---- how it ends ---------------------------------------------------------------------------------------------------

    def _check(self, what: str) -> None:
        if self.stuck is None:
            return  # the watchdog tells the time, so that nobody takes a gate that it opened for a launch that has run
        if self.stuck < len(self.order):
            raise GateTimeoutError(
                f"the deadline of {self.seconds:g} s passed; the device waited for {self._named(self.stuck)}; "
                f"the host was at op {self.at}, {what}"
            )
        super()._check(what)

    def _named(self, rank: int) -> str:
        index = self.order[rank]
        op = self.log.ops[index]
        assert isinstance(op, Launch)
        return f"launch {index} ({op.kind}, stream {stream_name(op.stream)}, rank {rank} of {len(self.order)})"

    def _finish(self) -> None:
        self._await(lambda: self.tickets.done == len(self.order) and not any(self.held), "waiting for the launches to run")
        super()._finish()
        early = self.tickets.beyond_bound()
        if early:
            raise GateBoundError(f"a spin kernel came to its bound: {self._named(early[0])} ran before its turn")

    def _give_up(self, error: BaseException) -> None:
        self.tickets.release()
        super()._give_up(error)


def run_on_streams(
    log: OpLog,
    launch: Callable[[int], None],
    *,
    device: CudaDevice,
    order: Sequence[int] | None = None,
    step_seconds: float = 0.0,
    seconds: float = 10.0,
) -> None:
    """Runs the log's launches on the device's streams; `launch(op)` enqueues one on torch's current stream, those of the host run at once.

    `order`, all the launches in a linear extension of the log, directs them; without it timing is natural, and the compute stream is kept
    busy for `step_seconds` before each STEP, as a real forward pass keeps it. `seconds` is the deadline of the whole run. Every kernel has
    to have run once before: to compile or load one may wait for the device.

    Raises what `launch` or the device raised; GateTimeoutError at the deadline, where an order that is no linear extension ends;
    GateBoundError; StreamsError at the deadline of a natural run; DeviceLostError after a run that left work behind; OpLogError;
    ProbeError; ValueError when `order` does not name every launch once, or comes with `step_seconds`. However it ends, all gates are open.
    """
    if device.is_lost:
        raise DeviceLostError("an earlier run left work on the device that does not end: start a new process")
    LaunchOrder(log)
    if order is not None and (step_seconds or sorted(order) != log.launches()):
        raise ValueError("an order names every launch of the log once, and takes no step_seconds")
    device.driver.attach()
    device.need_streams(log.num_streams - 1)
    if order is None:
        if step_seconds:
            device.measure_clock()  # while nothing runs
        _Natural(log, launch, device, step_seconds, seconds).run()
    else:
        device.tickets.probe()
        _Directed(log, launch, device, order, seconds).run()
