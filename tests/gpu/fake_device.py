"""A CUDA device without one: what torch.cuda and libcuda do for `settled.reference.device.cuda`, with a thread for each stream.

Work is queued, and run in the order of its stream while the host goes on. A launch queue has an end, behind which the host waits. Events
happen when the stream gets there; stream memory operations really hold up the stream until the word in memory is there. What goes wrong
on real devices can be asked for: operations that are missing, that do not hold or never open, streams that share a queue, error codes.

Kernels are torch code or interpreted Triton kernels over CPU tensors: `queued` makes of a launch one that goes to torch's current stream.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from fake_libcuda import FakeLibcuda
from fake_streams import ClosedError, FakeCuda, FakeSpin, FakeStream
from torch import Tensor

from settled.reference.device.cuda.runtime import ENVIRONMENT, Platform
from settled.reference.device.ops import HOST, Launch, LaunchKind, OpLog

COPIES = (LaunchKind.UPLOAD, LaunchKind.LOAD, LaunchKind.STORE)
_POLL_SECONDS = 1e-4


@dataclass(eq=False)
class FakeGpu:
    """A fake device; use it in a `with`, whose end ends its threads.

    `queue_length`: commands that a launch queue takes. `memory_operations`: how they behave ("works", "never closed", "never opened",
    "never written"); `spin`: how spin kernels do ("works", "never closed", "hangs"). `attribute`: the answer to whether the first version
    of the operations may be used. `shares_queue`: all streams stand in one queue; `shares_copies`: their copies do. `loads_lazily`: the
    first kernel is loaded when it is launched, which waits for the device. `missing`: functions that libcuda lacks. `codes`: what
    functions answer, by name; a failed launch fails the device. `seconds_a_look`: of a spin kernel.
    """

    queue_length: int = 1024
    memory_operations: str = "works"
    spin: str = "works"
    attribute: int = 0
    shares_queue: bool = False
    shares_copies: bool = False
    loads_lazily: bool = False
    missing: frozenset[str] = frozenset()
    codes: dict[str, int] = field(default_factory=dict)
    is_available: bool = True
    has_started: bool = False
    cycles_per_second: float = 2e9
    seconds_a_look: float = 5e-7
    environment: dict[str, str] = field(default_factory=lambda: dict(ENVIRONMENT))
    grace_seconds: float = 5.0

    def __post_init__(self) -> None:
        self.changed = threading.Condition()
        self.kernel_lock = threading.Lock()  # the interpreter is not made for several threads
        self.contexts = threading.local()
        self.streams: list[FakeStream] = []
        self.failure: BaseException | None = None  # of a kernel: the device is done for
        self.is_closed = False
        self.blocked = 0  # how often the host came to the end of a launch queue
        self._pinned: list[Tensor] = []
        self._copies = self._copied = 0
        self.cuda = FakeCuda(self)
        self.libcuda = FakeLibcuda(self)

    def __enter__(self) -> FakeGpu:
        return self

    def __exit__(self, *details: object) -> None:
        with self.changed:
            self.is_closed = True
            self.changed.notify_all()
        for stream in self.streams:
            stream.queue.thread.join()

    @property
    def platform(self) -> Platform:
        return Platform(
            cuda=self.cuda,
            libcuda=lambda: self.libcuda,
            buffers="cpu",
            pinned=self.pinned,
            copy=lambda target, source: self._copy(lambda: target.copy_(source)),
            spin=FakeSpin(self),
            environment=self.environment,
            grace_seconds=self.grace_seconds,
            warm_up_seconds=self.grace_seconds,
        )

    def queued(self, launch: Callable[[int], None], log: OpLog) -> Callable[[int], None]:
        """The launch as a device takes it: put on the current stream. The host's run at once; copies beside kernels, of which one runs at a
        time."""

        def run(index: int) -> None:
            op = log.ops[index]
            assert isinstance(op, Launch)
            if op.stream == HOST:
                assert self.cuda.chosen is None
                launch(index)
            elif op.kind in COPIES:
                self._copy(lambda: launch(index))
            else:
                self.cuda.put(lambda: self._kernel(launch, index))

        return run

    def _copy(self, copy: Callable[[], None]) -> None:
        number = self._copies
        self._copies += 1

        def run() -> None:
            self.hold(lambda: not self.shares_copies or self._copied == number)
            copy()
            self._copied += 1

        self.cuda.put(run)

    def _kernel(self, launch: Callable[[int], None], index: int) -> None:
        with self.kernel_lock:
            launch(index)

    def pinned(self, *shape: int, dtype: torch.dtype = torch.int32) -> Tensor:
        self._pinned.append(torch.zeros(shape, dtype=dtype))
        return self._pinned[-1]

    def is_pinned(self, address: int) -> bool:
        """On the host."""
        return any(0 <= address - words.data_ptr() < words.nbytes for words in self._pinned)

    def hold(self, is_so: Callable[[], bool]) -> None:
        while not is_so():
            self.pause()

    def pause(self) -> None:
        """Memory tells nobody that it has changed."""
        if self.is_closed:
            raise ClosedError
        time.sleep(_POLL_SECONDS)

    def settled(self, seconds: float = 5.0) -> bool:
        """Whether all work ends in that time."""
        with self.changed:
            return self.changed.wait_for(lambda: all(stream.ended == stream.enqueued for stream in self.streams), seconds)
