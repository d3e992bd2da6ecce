"""Tickets: a word of pinned memory for each rank of an order. A launch waits for its rank's word, and writes the next one when it is done.

Within a run a word only ever opens: whoever releases all of them, the host at a deadline say, does so for good, and no launch that still
runs closes a gate again. Words hold the number of the run that opened them, so that the next run finds all gates closed.

The gates are the driver's stream memory operations where a probe finds them working, else kernels that spin for a bounded time.
"""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

from settled.reference.device.cuda.driver import DriverError
from settled.reference.device.cuda.runtime import CudaDevice

PROBE_SECONDS = 1.0
MOST_RANKS = 1 << 18
AHEAD = 8
"""How many launches may stand behind closed gates. A launch queue takes about 1,024 commands before it blocks; a load is dozens of them."""

_CLOSED_SECONDS = 0.02  # how long a gate is looked at before it counts as closed
_LEAVE_SECONDS = 0.2  # how long a stream may take to go on after a failed probe
_LOOKS_PER_SECOND = 4_000_000  # of a spin kernel: twice what it does at the most, half a microsecond each, so that the host is first
_MOST_LOOKS = (1 << 31) - 1  # one kernel, whose numbers are 32 bits wide


class ProbeError(RuntimeError):
    """Neither kind of gate works on this device; the message says what was seen."""


class Words:
    """Words of pinned memory, all 0 at first. The host reads and writes them plainly; on x86 its writes are seen in their order."""

    def __init__(self, device: CudaDevice, count: int) -> None:
        self.tensor = device.platform.pinned(count)
        self._host = (ctypes.c_int32 * count).from_address(self.tensor.data_ptr())
        self._first = device.driver.device_address(self.tensor.data_ptr())

    def __getitem__(self, index: int) -> int:
        word: int = self._host[index]
        return word

    def __setitem__(self, index: int, value: int) -> None:
        self._host[index] = value

    def fill(self, count: int, value: int) -> None:
        """The first `count` words."""
        self._host[:count] = [value] * count

    def address(self, index: int) -> int:
        """On the device."""
        return self._first + ctypes.sizeof(ctypes.c_int32) * index


class Gates(Protocol):
    """A way to hold a stream until a word is at least `value`, and to write a word from a stream."""

    name: str

    def wait(self, stream: int, index: int, value: int) -> None: ...

    def post(self, stream: int, index: int, value: int) -> None: ...


class MemoryOperations:
    """The stream's own waits and writes, by the driver."""

    name = "stream memory operations"

    def __init__(self, device: CudaDevice, words: Words) -> None:
        self._device, self._words = device, words

    def wait(self, stream: int, index: int, value: int) -> None:
        self._device.driver.wait_value(self._device.handle(stream), self._words.address(index), value)

    def post(self, stream: int, index: int, value: int) -> None:
        self._device.driver.write_value(self._device.handle(stream), self._words.address(index), value)


class SpinGates:
    """Kernels that look at a word for a bounded time. `bounds`: the words of those that saw their bound instead."""

    name = "spin kernels"

    def __init__(self, device: CudaDevice, words: Words) -> None:
        self._device, self._words = device, words
        self.bounds = Words(device, MOST_RANKS + 1)
        self.looks = int(PROBE_SECONDS * _LOOKS_PER_SECOND)

    def wait(self, stream: int, index: int, value: int) -> None:
        spin = self._device.platform.spin
        self._device.enqueue(stream, lambda: spin.wait(self._words.tensor, index, value, self.bounds.tensor, self.looks))

    def post(self, stream: int, index: int, value: int) -> None:
        spin = self._device.platform.spin
        self._device.enqueue(stream, lambda: spin.post(self._words.tensor, index, value))


class Tickets:
    """`gates`: which kind was found to work. `ahead`: how many launches may stand behind closed gates.

    A launch of rank r waits for word r and writes word r + 1. Raises ProbeError.
    """

    def __init__(self, device: CudaDevice) -> None:
        self._device = device
        self._words = Words(device, MOST_RANKS + 1)
        self._run, self._ranks, self._done = 0, 0, 0
        self._probed = 0
        self.ahead = AHEAD
        self.gates: Gates = MemoryOperations(device, self._words)
        self.refused = "" if device.driver.has_memory_operations else "libcuda does not have them"
        """Why the driver's operations are not used; empty where they are."""
        self.probe()

    # ---- a run ---------------------------------------------------------------------------------------------------------

    def begin(self, ranks: int, seconds: float) -> None:
        """A run of that many launches, which is to take at most that long; all gates but the first are closed.

        Raises ValueError for more than MOST_RANKS. Nothing of an earlier run may be under way.
        """
        if ranks > MOST_RANKS:
            raise ValueError(f"an order has {ranks:,} launches; there are tickets for {MOST_RANKS:,}")
        self._run, self._ranks, self._done = self._run + 1, ranks, 0
        if isinstance(self.gates, SpinGates):
            self.gates.looks = min(int(seconds * _LOOKS_PER_SECOND), _MOST_LOOKS)
        self.open(0)

    def wait(self, stream: int, rank: int) -> None:
        self.gates.wait(stream, rank, self._run)

    def post(self, stream: int, rank: int) -> None:
        """After the launch of that rank."""
        self.gates.post(stream, rank + 1, self._run)

    def open(self, rank: int) -> None:
        """By the host, once all of lower rank has run."""
        self._words[rank] = self._run

    def is_open(self, rank: int) -> bool:
        return self._words[rank] == self._run

    @property
    def done(self) -> int:
        """How many launches have run, as far as nothing was released."""
        done = self._done  # a thread's own: two may ask at once
        while done < self._ranks and self.is_open(done + 1):
            done += 1
        self._done = done
        return done

    def release(self) -> None:
        """Opens all gates of the run for good. May be called from any thread, whatever the others do."""
        self._words.fill(self._ranks + 1, self._run)

    @contextmanager
    def released_after(self, seconds: float, expired: Callable[[], None]) -> Iterator[None]:
        """Within it, calls `expired` and opens all gates at the deadline, in a thread of its own: the caller's may be stuck in a launch."""

        def expire() -> None:
            expired()
            self.release()

        watchdog = threading.Timer(seconds, expire)
        watchdog.daemon = True
        watchdog.start()
        try:
            yield
        finally:
            watchdog.cancel()
            watchdog.join()  # so that it does not open the gates of the next run

    def beyond_bound(self) -> list[int]:
        """Ranks whose launch did not wait for its turn, since a spin kernel came to its bound."""
        if not isinstance(self.gates, SpinGates):
            return []
        return [rank for rank in range(self._ranks) if self.gates.bounds[rank] == self._run]

    # ---- the probe -----------------------------------------------------------------------------------------------------

    def probe(self) -> None:
        """Finds out which gates work, on all streams that the device has by now; at once where that is known. Raises ProbeError."""
        if self._probed == len(self._device.streams):
            return
        for stream in self._device.streams:
            self._device.touch(stream)  # once before a gate is closed: what is loaded late may wait for the device
        if not self._device.drain(self._device.platform.grace_seconds):
            raise ProbeError("the streams have other work that does not end")
        if not self.refused:
            self.refused = self._seen_wrong()
        if self.refused:
            if not isinstance(self.gates, SpinGates):
                self.gates = SpinGates(self._device, self._words)
                self._warm_up()
            wrong = self._seen_wrong()
            if wrong:
                raise ProbeError(f"stream memory operations: {self.refused}; spin kernels: {wrong}")
        self._probed = len(self._device.streams)

    def _warm_up(self) -> None:
        """Compiles and loads the spin kernels, with a gate that is open."""
        self.begin(1, PROBE_SECONDS)
        self.wait(1, 0)
        self.post(1, 0)
        seconds = self._device.platform.warm_up_seconds
        if not self._device.drain(seconds):
            raise ProbeError(f"the first spin kernels did not end in {seconds:g} s")

    def _seen_wrong(self) -> str:
        """Empty where every stream's gate is closed, then opened by the host, within a second. Sees whether others go on meanwhile."""
        deadline = time.monotonic() + PROBE_SECONDS
        wrong = ""
        with self.released_after(PROBE_SECONDS, lambda: None):
            try:
                for stream in self._device.streams:
                    wrong = wrong or self._try_gate(stream, lambda: max(0.0, deadline - time.monotonic()))
            except DriverError as error:
                wrong = str(error)
            finally:
                self.release()
        if wrong:
            self._leave_behind()
        return wrong

    def _leave_behind(self) -> None:
        """Whatever the failed gates hold up for ever stays on streams that nobody uses any more."""
        try:
            ended = self._device.drain(_LEAVE_SECONDS)
        except DriverError:
            ended = False
        if not ended:
            self._device.replace_streams()

    def _try_gate(self, stream: int, left: Callable[[], float]) -> str:
        device, others = self._device, [other for other in self._device.streams if other != stream]
        self.begin(2, PROBE_SECONDS)
        self.wait(stream, 1)
        device.touch(stream)  # a copy that stands behind a gate must not hold up the copies of others
        self.post(stream, 1)
        for other in others:
            device.touch(other)
        if self.ahead > 1 and not device.wait_until(lambda: all(map(device.is_idle, others)), left() / 4):
            self.ahead = 1  # a closed gate holds up other streams: then nothing may stand behind one
        if device.wait_until(lambda: self.is_open(2) or device.is_idle(stream), _CLOSED_SECONDS):
            return f"the gate on stream {stream} was not closed"
        self.open(1)
        if not device.wait_until(lambda: self.is_open(2) and all(map(device.is_idle, device.streams)), left()):
            return f"the gate on stream {stream} did not open when the host opened it"
        return ""
