"""A CUDA device without one: what torch.cuda and libcuda do for `settled.reference.device.cuda`, with a thread for each stream.

Work is queued, and run in the order of its stream while the host goes on. A launch queue has an end, behind which the host waits. Events
happen when the stream gets there; stream memory operations really hold up the stream until the word in memory is there. What goes wrong
on real devices can be asked for: operations that are missing, that do not hold or never open, streams that share a queue, error codes.

Kernels are torch code or interpreted Triton kernels over CPU tensors: `queued` makes of a launch one that goes to torch's current stream.
"""

from __future__ import annotations

import ctypes
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from settled.reference.device.cuda.runtime import ENVIRONMENT, Platform
from settled.reference.device.cuda.spin import SpinKernels
from settled.reference.device.ops import HOST, Launch, LaunchKind, OpLog

SUCCESS, INVALID_VALUE, NOT_INITIALIZED, INVALID_CONTEXT, NOT_READY, LAUNCH_FAILED = 0, 1, 3, 201, 600, 719
NAMES = {
    INVALID_VALUE: b"CUDA_ERROR_INVALID_VALUE",
    NOT_INITIALIZED: b"CUDA_ERROR_NOT_INITIALIZED",
    INVALID_CONTEXT: b"CUDA_ERROR_INVALID_CONTEXT",
    NOT_READY: b"CUDA_ERROR_NOT_READY",
    LAUNCH_FAILED: b"CUDA_ERROR_LAUNCH_FAILED",
    801: b"CUDA_ERROR_NOT_SUPPORTED",
}
COPIES = (LaunchKind.UPLOAD, LaunchKind.LOAD, LaunchKind.STORE)
_CONTEXT, _POLL_SECONDS = 0xC0DE, 1e-4


class _ClosedError(Exception):
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
            except _ClosedError:
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


@dataclass(eq=False)
class _Event:
    """`recorded`, `happened`: how often."""

    recorded: int = 0
    happened: int = 0
    at: float = 0.0


class FakeCuda:
    """What stands in for the module torch.cuda. 32 streams are handed out in turn, as torch does."""

    def __init__(self, gpu: FakeGpu) -> None:
        self.gpu = gpu
        self._current = threading.local()
        self._given = 0

    def is_available(self) -> bool:
        self.gpu.has_started = True
        return self.gpu.is_available

    def current_device(self) -> int:
        return 0

    def Stream(self) -> FakeStream:  # noqa: N802 (torch's name)
        self.gpu.has_started = True
        self.gpu.contexts.current = _CONTEXT
        pool = self.gpu.streams
        if len(pool) < self.gpu.stream_pool:
            queue = pool[0].queue if pool and self.gpu.shares_queue else _Queue(self.gpu)
            pool.append(FakeStream(0x1000 + len(pool), queue))
        self._given += 1
        return pool[(self._given - 1) % self.gpu.stream_pool]

    @contextmanager
    def stream(self, stream: FakeStream) -> Iterator[None]:
        before = self.current_stream()
        self._current.stream = stream
        try:
            yield
        finally:
            self._current.stream = before

    def current_stream(self) -> FakeStream | None:
        stream: FakeStream | None = getattr(self._current, "stream", None)
        return stream

    def _sleep(self, cycles: int) -> None:
        self.put(lambda: time.sleep(cycles / self.gpu.cycles_per_second))

    def put(self, command: Callable[[], None]) -> None:
        """On the current stream."""
        stream = self.current_stream()
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

        self.gpu.cuda.put(kernel if self.gpu.spin == "works" else lambda: None)

    def post(self, words: Tensor, index: int, value: int) -> None:
        def kernel() -> None:
            words[index] = value

        self.gpu.cuda.put(kernel)


class _Function:
    """A function as ctypes gives it: `argtypes` say how arguments are passed; the result is a code."""

    argtypes: tuple[Any, ...] = ()
    restype: Any = None

    def __init__(self, gpu: FakeGpu, name: str, body: Callable[..., int]) -> None:
        self.gpu, self.name, self.body = gpu, name, body

    def __call__(self, *arguments: Any) -> int:
        assert len(arguments) == len(self.argtypes), f"{self.name} takes {len(self.argtypes)} arguments"
        assert self.restype is ctypes.c_int, f"{self.name} has no result type"
        if self.name not in ("cuGetErrorName", "cuCtxGetCurrent", "cuCtxSetCurrent"):
            code = self._state()
            if code != SUCCESS:
                return code
        return self.gpu.codes.get(self.name, SUCCESS) or self.body(*map(_passed, self.argtypes, arguments))

    def _state(self) -> int:
        if not self.gpu.has_started:
            return NOT_INITIALIZED
        if getattr(self.gpu.contexts, "current", None) != _CONTEXT:
            return INVALID_CONTEXT
        return LAUNCH_FAILED if self.gpu.failure is not None else SUCCESS


def _passed(kind: Any, argument: Any) -> Any:
    """What arrives: the number, or for a pointer what it points to."""
    if hasattr(argument, "_obj"):
        assert kind == ctypes.POINTER(type(argument._obj)), f"a pointer to {type(argument._obj)} is no {kind}"
        return argument._obj
    number = kind(argument).value or 0
    assert number == (argument or 0), f"{argument} does not fit into {kind}"
    return number


class FakeLibcuda:
    """What stands in for libcuda as ctypes loads it."""

    def __init__(self, gpu: FakeGpu) -> None:
        self.gpu = gpu
        self._functions: dict[str, _Function] = {}
        self._events: dict[int, _Event] = {}
        self._next_event = 0xE000

    def __getattr__(self, name: str) -> _Function:
        body = getattr(type(self), f"_{name.removesuffix('_v2')}", None)
        if (
            body is None
            or name in self.gpu.missing
            or name.endswith("_v2") != (f"{name.removesuffix('_v2')}_v2" in _WITH_V2 - self.gpu.missing)
        ):
            raise AttributeError(name)
        if name not in self._functions:
            self._functions[name] = _Function(self.gpu, name, lambda *arguments: body(self, *arguments))
        return self._functions[name]

    # ---- contexts, errors ----------------------------------------------------------------------------------------------

    def _cuGetErrorName(self, code: int, name: ctypes.c_char_p) -> int:  # noqa: N802 (libcuda's names, here and below)
        name.value = NAMES.get(code)
        return SUCCESS if code in NAMES else INVALID_VALUE

    def _cuCtxGetCurrent(self, context: ctypes.c_void_p) -> int:  # noqa: N802
        context.value = getattr(self.gpu.contexts, "current", None)
        return SUCCESS if self.gpu.has_started else NOT_INITIALIZED

    def _cuCtxSetCurrent(self, context: int) -> int:  # noqa: N802
        self.gpu.contexts.current = context
        return SUCCESS

    def _cuCtxGetDevice(self, device: ctypes.c_int) -> int:  # noqa: N802
        device.value = 0
        return SUCCESS

    def _cuDeviceGetAttribute(self, value: ctypes.c_int, attribute: int, device: int) -> int:  # noqa: N802
        assert (attribute, device) == (92, 0)
        value.value = self.gpu.attribute
        return SUCCESS

    # ---- events --------------------------------------------------------------------------------------------------------

    def _cuEventCreate(self, event: ctypes.c_void_p, flags: int) -> int:  # noqa: N802
        assert flags in (0, 2)
        event.value = self._next_event
        self._events[self._next_event] = _Event()
        self._next_event += 1
        return SUCCESS

    def _cuEventDestroy(self, event: int) -> int:  # noqa: N802
        return SUCCESS if self._events.pop(event, None) else INVALID_VALUE

    def _cuEventRecord(self, event: int, stream: int) -> int:  # noqa: N802
        record = self._events[event]
        record.recorded += 1
        number = record.recorded

        def happen() -> None:
            record.happened, record.at = number, time.perf_counter()

        return self._put(stream, happen)

    def _cuEventQuery(self, event: int) -> int:  # noqa: N802
        record = self._events[event]
        return SUCCESS if record.happened >= record.recorded else NOT_READY

    def _cuEventElapsedTime(self, milliseconds: ctypes.c_float, first: int, second: int) -> int:  # noqa: N802
        milliseconds.value = (self._events[second].at - self._events[first].at) * 1e3
        return SUCCESS

    def _cuStreamQuery(self, stream: int) -> int:  # noqa: N802
        chosen = self._stream(stream)
        return SUCCESS if chosen.ended == chosen.enqueued else NOT_READY

    def _cuStreamWaitEvent(self, stream: int, event: int, flags: int) -> int:  # noqa: N802
        assert flags == 0
        record = self._events[event]
        number = record.recorded  # as of now: nothing to wait for before the first record
        return self._put(stream, lambda: self.gpu.hold(lambda: record.happened >= number))

    # ---- stream memory operations --------------------------------------------------------------------------------------

    def _cuStreamWaitValue32(self, stream: int, address: int, value: int, flags: int) -> int:  # noqa: N802
        if flags != 0 or not self.gpu.is_pinned(address):
            return INVALID_VALUE
        word = ctypes.c_int32.from_address(address)
        how = self.gpu.memory_operations

        def wait() -> None:
            if how != "never closed":
                self.gpu.hold(lambda: how != "never opened" and ctypes.c_int32(word.value - value).value >= 0)

        return self._put(stream, wait)

    def _cuStreamWriteValue32(self, stream: int, address: int, value: int, flags: int) -> int:  # noqa: N802
        if flags != 0 or not self.gpu.is_pinned(address):
            return INVALID_VALUE

        def write() -> None:
            ctypes.c_int32.from_address(address).value = value

        return self._put(stream, write)

    def _put(self, stream: int, command: Callable[[], None]) -> int:
        chosen = self._stream(stream)
        chosen.queue.put(chosen, command)
        return SUCCESS

    def _stream(self, handle: int) -> FakeStream:
        return next(stream for stream in self.gpu.streams if stream.cuda_stream == handle)


_WITH_V2 = frozenset({"cuEventDestroy_v2", "cuStreamWaitValue32_v2", "cuStreamWriteValue32_v2"})


@dataclass(eq=False)
class FakeGpu:
    """A fake device; use it in a `with`, whose end ends its threads.

    `queue_length`: commands that a launch queue takes. `memory_operations`, `spin`: how gates behave ("works"; "never closed", "never
    opened"). `attribute`: the answer to whether the first version of the operations may be used. `shares_queue`: all streams stand in one
    queue. `missing`: functions that libcuda lacks. `codes`: what functions answer, by name.
    """

    queue_length: int = 1024
    memory_operations: str = "works"
    spin: str = "works"
    attribute: int = 0
    shares_queue: bool = False
    missing: frozenset[str] = frozenset()
    codes: dict[str, int] = field(default_factory=dict)
    is_available: bool = True
    has_started: bool = False
    stream_pool: int = 32
    cycles_per_second: float = 2e9
    seconds_a_look: float = 5e-7
    environment: dict[str, str] = field(default_factory=lambda: dict(ENVIRONMENT))

    def __post_init__(self) -> None:
        self.changed = threading.Condition()
        self.kernel_lock = threading.Lock()  # the interpreter is not made for several threads
        self.contexts = threading.local()
        self.streams: list[FakeStream] = []
        self.failure: BaseException | None = None  # of a kernel: the device is done for
        self.is_closed = False
        self.blocked = 0  # how often the host came to the end of a launch queue
        self._pinned: list[Tensor] = []
        self.cuda = FakeCuda(self)
        self.library = FakeLibcuda(self)

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
        return Platform(self.cuda, lambda: self.library, "cpu", self.pinned, FakeSpin(self), self.environment)

    def queued(self, launch: Callable[[int], None], log: OpLog) -> Callable[[int], None]:
        """The launch as a device takes it: put on the current stream. The host's run at once; copies beside kernels, of which one runs at a
        time."""

        def run(index: int) -> None:
            op = log.ops[index]
            assert isinstance(op, Launch)
            if op.stream == HOST:
                assert self.cuda.current_stream() is None
                launch(index)
            elif op.kind in COPIES:
                self.cuda.put(lambda: launch(index))
            else:
                self.cuda.put(lambda: self._kernel(launch, index))

        return run

    def _kernel(self, launch: Callable[[int], None], index: int) -> None:
        with self.kernel_lock:
            launch(index)

    def pinned(self, count: int) -> Tensor:
        self._pinned.append(torch.zeros(count, dtype=torch.int32))
        return self._pinned[-1]

    def is_pinned(self, address: int) -> bool:
        return any(0 <= address - words.data_ptr() < words.nbytes for words in self._pinned)

    def hold(self, is_so: Callable[[], bool]) -> None:
        while not is_so():
            self.pause()

    def pause(self) -> None:
        """Memory tells nobody that it has changed."""
        if self.is_closed:
            raise _ClosedError
        time.sleep(_POLL_SECONDS)
