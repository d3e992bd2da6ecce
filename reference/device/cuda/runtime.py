"""The thin layer over torch.cuda and libcuda: one device, its streams by number, events, pinned words, and what must be set beforehand.

Nothing here waits without a deadline, and nothing that a run calls while a gate is closed waits for the device, but for a launch queue
that is full.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, MutableMapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from settled.reference.device.cuda.driver import Driver, load_libcuda
from settled.reference.device.cuda.place import Place
from settled.reference.device.cuda.spin import SpinKernels

if TYPE_CHECKING:
    from settled.reference.device.cuda.tickets import Tickets

POLL_SECONDS = 20e-6
MOST_STREAMS = 32
"""CUDA_DEVICE_MAX_CONNECTIONS goes no higher. Streams beyond share connections, and torch's own are too many: whoever asks for the first
gets 32 of each priority made, of up to four. Ours are therefore made by the driver, and are all that there are."""

ENVIRONMENT = {
    "CUDA_MODULE_LOADING": "EAGER",  # lazily, the first launch of a kernel may wait for the device: behind a closed gate, for ever
    "CUDA_DEVICE_MAX_CONNECTIONS": str(MOST_STREAMS),  # streams that share a connection wait for each other's gates
}
_CALIBRATION_CYCLES = 4_000_000
_WAKING_CYCLES = 100_000_000  # 50 ms at 2 GHz, and longer at rest


class CudaError(RuntimeError):
    """CUDA is not there, or not as it has to be; the message says what to do."""


def set_environment(environment: MutableMapping[str, str]) -> None:
    """What a process needs before it first uses CUDA. Raises CudaError where a variable is set to something else."""
    for name, wanted in ENVIRONMENT.items():
        if environment.setdefault(name, wanted) != wanted:
            raise CudaError(f"{name} is {environment[name]!r}; it has to be {wanted}")
    _check_blocking(environment)


def check_environment(environment: MutableMapping[str, str]) -> None:
    """The same where CUDA has started and reads them no more. Raises CudaError."""
    for name, wanted in ENVIRONMENT.items():
        if environment.get(name) != wanted:
            raise CudaError(f"{name}={wanted} has to be set before anything in the process uses CUDA; it is {environment.get(name)!r}")
    _check_blocking(environment)


def _check_blocking(environment: MutableMapping[str, str]) -> None:
    if environment.get("CUDA_LAUNCH_BLOCKING", "") not in ("", "0"):
        raise CudaError("CUDA_LAUNCH_BLOCKING is set: each launch would wait for its gate, and no other stream would ever open it")


def pinned(*shape: int, dtype: torch.dtype = torch.int32) -> Tensor:
    """Zeroed pinned host memory."""
    return torch.zeros(shape, dtype=dtype, pin_memory=True)


def copy_on_stream(target: Tensor, source: Tensor) -> None:
    """Enqueues a copy on torch's current stream."""
    target.copy_(source, non_blocking=True)


@dataclass(frozen=True, slots=True)
class Platform:
    """What a device stands on; a fake one stands here in dry runs.

    `cuda`: torch.cuda. `libcuda`: loads it. `buffers`: torch's name of the device that holds buffers. `pinned`: makes zeroed host
    memory, of words where no `dtype` is given. `copy`: enqueues a copy. `spin`: the kernels that wait and post where the driver cannot.
    `environment`: the process's variables. `grace_seconds`: how long work may take to end that nothing holds up any more;
    `warm_up_seconds`: the same of spin kernels that have to be compiled first.
    """

    cuda: Any = torch.cuda
    libcuda: Callable[[], Any] = load_libcuda
    buffers: str = "cuda"
    pinned: Callable[..., Tensor] = pinned
    copy: Callable[[Tensor, Tensor], None] = copy_on_stream
    spin: SpinKernels = field(default_factory=SpinKernels)
    environment: MutableMapping[str, str] = field(default_factory=lambda: os.environ)
    grace_seconds: float = 5.0
    warm_up_seconds: float = 60.0


class CudaDevice:
    """The current CUDA device. Make it before anything else uses CUDA, or set `ENVIRONMENT` in the shell; keep one a process.

    Streams are numbered as in an op log, from 1. `torch_device`, `place`: where buffers belong. Raises CudaError where there is no device
    or the environment is wrong, and DriverError.
    """

    def __init__(self, platform: Platform | None = None) -> None:
        self.platform = platform or Platform()
        self.driver = Driver(self.platform.libcuda())
        if self.driver.has_started:
            check_environment(self.platform.environment)
        else:
            set_environment(self.platform.environment)
        if not self.platform.cuda.is_available():
            raise CudaError("torch finds no CUDA device")
        self.torch_device = torch.device(self.platform.buffers, self.platform.cuda.current_device())
        self.place = Place(self.torch_device, self.platform.cuda, self.platform.pinned)
        self.is_lost = False
        self.cycles_per_second = 0.0
        self._streams: list[Any] = []
        self._on_host = self.platform.pinned(1)
        self._on_device = torch.zeros(1, dtype=torch.int32, device=self.torch_device)
        self.platform.cuda.synchronize()  # now this thread has the context, whatever was made lazily before
        self.driver.adopt()
        self.need_streams(1)

    @cached_property
    def tickets(self) -> Tickets:
        """Made, and probed, the first time: not behind a gate. Raises ProbeError where gates do not work."""
        from settled.reference.device.cuda.tickets import Tickets

        return Tickets(self)

    # ---- streams -------------------------------------------------------------------------------------------------------

    def need_streams(self, last: int) -> None:
        """Sees to it that there are streams 1 to `last`. Raises CudaError, and DriverError."""
        if last > MOST_STREAMS:
            raise CudaError(f"{last} streams are asked for; {MOST_STREAMS} can be independent of each other")
        while len(self._streams) < last:
            self._streams.append(self.platform.cuda.ExternalStream(self.driver.new_stream(), self.torch_device))

    def replace_streams(self) -> None:
        """New streams for those that may never go on."""
        count = len(self._streams)
        self._streams = []
        self.need_streams(count)

    @property
    def streams(self) -> range:
        return range(1, len(self._streams) + 1)

    def handle(self, stream: int) -> int:
        handle: int = self._streams[stream - 1].cuda_stream
        return handle

    def enqueue(self, stream: int, work: Callable[[], None]) -> None:
        """Calls `work` with the stream as torch's current one: what torch and Triton launch goes there."""
        with self.platform.cuda.stream(self._streams[stream - 1]):
            work()

    def touch(self, stream: int) -> None:
        """Enqueues a kernel and copies both ways, of next to nothing: a bit of all that goes through a stream."""

        def work() -> None:
            self.platform.cuda._sleep(1)
            self.platform.copy(self._on_device, self._on_host)
            self.platform.copy(self._on_host, self._on_device)

        self.enqueue(stream, work)

    def is_idle(self, stream: int) -> bool:
        """Whether all has run that was enqueued there. Raises DriverError, of a failed kernel say."""
        return self.driver.is_idle(self.handle(stream))

    def keep_busy(self, stream: int, seconds: float) -> None:
        """Enqueues a kernel of one thread that runs for about that long. `measure_clock` comes first."""
        cycles = int(seconds * self.cycles_per_second)
        self.enqueue(stream, lambda: self.platform.cuda._sleep(cycles))

    def measure_clock(self) -> None:
        """How many cycles torch's busy kernel counts in a second, once: the most of three rounds, behind work that wakes a device at rest,
        which clocks low.

        Waits for the device. Raises CudaError where it does not answer.
        """
        if not self.cycles_per_second:
            self.enqueue(1, lambda: self.platform.cuda._sleep(_WAKING_CYCLES))
            self.cycles_per_second = max(self._measure_cycles() for _ in range(3))

    def _measure_cycles(self) -> float:
        first, second = self.driver.new_event(is_timed=True), self.driver.new_event(is_timed=True)
        self.record(first, 1)
        self.enqueue(1, lambda: self.platform.cuda._sleep(_CALIBRATION_CYCLES))
        self.record(second, 1)
        if not self.wait_until(lambda: self.driver.has_happened(second), self.platform.grace_seconds):
            raise CudaError(f"the device did not end a short kernel in {self.platform.grace_seconds:g} s")
        seconds = self.driver.seconds_between(first, second)
        self.discard((first, second))
        return _CALIBRATION_CYCLES / seconds

    # ---- events --------------------------------------------------------------------------------------------------------

    def new_events(self, count: int) -> list[int]:
        return [self.driver.new_event() for _ in range(count)]

    def discard(self, events: Iterable[int]) -> None:
        for event in events:
            self.driver.destroy(event)

    def record(self, event: int, stream: int) -> None:
        self.driver.record(event, self.handle(stream))

    def wait(self, stream: int, event: int) -> None:
        self.driver.wait_event(self.handle(stream), event)

    # ---- the host waits ------------------------------------------------------------------------------------------------

    def wait_until(self, is_so: Callable[[], bool], seconds: float) -> bool:
        """Asks until it is so; false after that many seconds."""
        deadline = time.monotonic() + seconds
        while not is_so():
            if time.monotonic() > deadline:
                return False
            time.sleep(POLL_SECONDS)
        return True

    def drain(self, seconds: float) -> bool:
        """Waits until all streams have done their work; false after that many seconds. Raises DriverError, of a failed kernel say.

        Only asks, so that a full launch queue cannot hold it up.
        """
        return self.wait_until(lambda: all(map(self.is_idle, self.streams)), seconds)
