"""The streams of the fake device: a thread for each, a launch queue with an end, and what stands in for torch.cuda."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from settled.reference.device.cuda.spin import SpinKernels

if TYPE_CHECKING:
    from fake_device import FakeGpu

CONTEXT = 0xC0DE


class ClosedError(Exception):
    """The fake is done with; its threads end."""


class _Queue:
    """Work in order, in a thread of its own: a connection to the device."""

    def __init__(self, gpu: FakeGpu) -> None:
        self.gpu = gpu
        self.commands: deque[tuple[FakeStream, Callable[[], None]]] = deque()
        self.thread = threading.Thread(target=self._work, daemon=True)
        self.thread.start()

    def put(self, stream: FakeStream, command: Callable[[], None]) -> None:
        """Waits, for ever if need be, while the queue is full."""
        changed = self.gpu.changed
        with changed:
            self.gpu.blocked += len(self.commands) >= self.gpu.queue_length
            changed.wait_for(lambda: len(self.commands) < self.gpu.queue_length or self.gpu.is_closed)
            stream.enqueued += 1
            self.commands.append((stream, command))
            changed.notify_all()

    def _work(self) -> None:
        changed = self.gpu.changed
        while True:
            with changed:
                changed.wait_for(lambda: bool(self.commands) or self.gpu.is_closed)
                if self.gpu.is_closed:
                    return
                stream, command = self.commands[0]
            try:
                if self.gpu.failure is None:
                    command()
            except ClosedError:
                return
            except BaseException as error:
                self.gpu.failure = error
            with changed:
                self.commands.popleft()
                stream.ended += 1
                changed.notify_all()


@dataclass(eq=False)
class FakeStream:
    cuda_stream: int
    queue: _Queue
    enqueued: int = 0
    ended: int = 0

    def synchronize(self) -> None:
        with self.queue.gpu.changed:
            self.queue.gpu.changed.wait_for(lambda: self.ended == self.enqueued or self.queue.gpu.is_closed)


class DefaultStream:
    """Which torch works on where nobody chose another. Here that is done at once; `waits`: how often somebody waited for it."""

    waits = 0

    def synchronize(self) -> None:
        self.waits += 1


@dataclass(frozen=True, slots=True)
class FakeProperties:
    """What torch tells of a device."""

    name: str = "a fake device"
    total_memory: int = 1 << 30
    multi_processor_count: int = 1
    major: int = 0
    minor: int = 0


class FakeCuda:
    """What stands in for the module torch.cuda. It has no streams of its own: torch would make too many."""

    def __init__(self, gpu: FakeGpu) -> None:
        self.gpu = gpu
        self._current = threading.local()
        self.default = DefaultStream()

    def is_available(self) -> bool:
        self.gpu.has_started = True
        return self.gpu.is_available

    def current_device(self) -> int:
        return 0

    def new_stream(self) -> FakeStream:
        """For libcuda."""
        made = self.gpu.streams
        queue = made[0].queue if made and self.gpu.shares_queue else _Queue(self.gpu)
        made.append(FakeStream(0x1000 + len(made), queue))
        return made[-1]

    def ExternalStream(self, handle: int, device: torch.device) -> FakeStream:  # noqa: N802 (torch's name)
        self._check(device)
        return next(stream for stream in self.gpu.streams if stream.cuda_stream == handle)

    @contextmanager
    def stream(self, stream: FakeStream) -> Iterator[None]:
        before = self.chosen
        self._current.stream = stream
        try:
            yield
        finally:
            self._current.stream = before

    @property
    def chosen(self) -> FakeStream | None:
        """What the calling thread made the current stream."""
        stream: FakeStream | None = getattr(self._current, "stream", None)
        return stream

    def current_stream(self, device: torch.device) -> FakeStream | DefaultStream:
        self._check(device)
        return self.chosen or self.default

    @contextmanager
    def device(self, device: torch.device) -> Iterator[None]:
        self._check(device)
        yield

    def get_device_properties(self, device: torch.device) -> FakeProperties:
        self._check(device)
        return FakeProperties()

    def _check(self, device: torch.device) -> None:
        assert device == torch.device("cpu", self.current_device()), f"{device} is not the fake's"

    def synchronize(self) -> None:
        """Makes the context, as the first call of CUDA's runtime does on a thread."""
        self.gpu.has_started = True
        self.gpu.contexts.current = CONTEXT
        assert self.gpu.settled(), "the device does not end its work"

    def _sleep(self, cycles: int) -> None:
        if self.gpu.loads_lazily:
            self.gpu.settled()
            self.gpu.loads_lazily = False
        self.put(lambda: time.sleep(cycles / self.gpu.cycles_per_second))

    def put(self, command: Callable[[], None]) -> None:
        """On the current stream."""
        stream = self.chosen
        assert stream is not None, "work for the default stream"
        stream.queue.put(stream, command)


class FakeSpin(SpinKernels):
    """The spin kernels as a device runs them: beside everything else."""

    def __init__(self, gpu: FakeGpu) -> None:
        self.gpu = gpu

    def wait(self, words: Tensor, index: int, value: int, bounds: Tensor, looks: int) -> None:
        def kernel() -> None:
            deadline = time.monotonic() + looks * self.gpu.seconds_a_look
            while int(words[index]) < value:
                if time.monotonic() > deadline:
                    bounds[index] = value
                    return
                self.gpu.pause()

        how = {"works": kernel, "never closed": lambda: None, "hangs": lambda: self.gpu.hold(lambda: False)}
        self.gpu.cuda.put(how[self.gpu.spin])

    def post(self, words: Tensor, index: int, value: int) -> None:
        def kernel() -> None:
            words[index] = value

        self.gpu.cuda.put(kernel)
