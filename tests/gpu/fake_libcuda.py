"""What stands in for libcuda on the fake device: its functions as ctypes gives them, and the events."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fake_streams import CONTEXT, FakeStream

if TYPE_CHECKING:
    from fake_device import FakeGpu

SUCCESS, INVALID_VALUE, NOT_INITIALIZED, INVALID_CONTEXT, NOT_READY, LAUNCH_FAILED, NOT_SUPPORTED = 0, 1, 3, 201, 600, 719, 801
NAMES = {
    INVALID_VALUE: b"CUDA_ERROR_INVALID_VALUE",
    NOT_INITIALIZED: b"CUDA_ERROR_NOT_INITIALIZED",
    INVALID_CONTEXT: b"CUDA_ERROR_INVALID_CONTEXT",
    NOT_READY: b"CUDA_ERROR_NOT_READY",
    LAUNCH_FAILED: b"CUDA_ERROR_LAUNCH_FAILED",
    NOT_SUPPORTED: b"CUDA_ERROR_NOT_SUPPORTED",
}
FIRST_VERSION_OF_OPERATIONS = ("cuStreamWaitValue32", "cuStreamWriteValue32")  # off by default; libcuda has the functions all the same
DEVICE_SIDE = 1 << 44  # how far the device's address of pinned memory is from the host's; on real machines they are mostly the same
HAVE_TWO_VERSIONS = (*FIRST_VERSION_OF_OPERATIONS, "cuEventDestroy", "cuEventElapsedTime", "cuMemHostGetDevicePointer")


@dataclass(eq=False)
class _Event:
    """`recorded`, `happened`: how often."""

    recorded: int = 0
    happened: int = 0
    at: float = 0.0


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
        code = self.gpu.codes.get(self.name, SUCCESS)
        if code == LAUNCH_FAILED:
            self.gpu.failure = RuntimeError(f"{self.name} was told to fail")
        return code or self.body(*map(_passed, self.argtypes, arguments))

    def _state(self) -> int:
        if not self.gpu.has_started:
            return NOT_INITIALIZED
        if getattr(self.gpu.contexts, "current", None) != CONTEXT:
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
        has_two = name.removesuffix("_v2") in HAVE_TWO_VERSIONS
        if body is None or name in self.gpu.missing or (name.endswith("_v2") and not has_two):
            raise AttributeError(name)
        if name in FIRST_VERSION_OF_OPERATIONS and not self.gpu.attribute:
            body = _not_supported
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

    def _cuStreamCreate(self, stream: ctypes.c_void_p, flags: int) -> int:  # noqa: N802
        assert flags == 1, "a stream that waits for the default one"
        stream.value = self.gpu.cuda.new_stream().cuda_stream
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

    def _cuMemHostGetDevicePointer(self, pointer: ctypes.c_uint64, address: int, flags: int) -> int:  # noqa: N802
        assert flags == 0
        pointer.value = address + DEVICE_SIDE
        return SUCCESS if self.gpu.is_pinned(address) else INVALID_VALUE

    # ---- stream memory operations --------------------------------------------------------------------------------------

    def _cuStreamWaitValue32(self, stream: int, address: int, value: int, flags: int) -> int:  # noqa: N802
        if flags != 0 or not self.gpu.is_pinned(address - DEVICE_SIDE):
            return INVALID_VALUE
        word = ctypes.c_int32.from_address(address - DEVICE_SIDE)
        how = self.gpu.memory_operations

        def wait() -> None:
            if how != "never closed":
                self.gpu.hold(lambda: how != "never opened" and ctypes.c_int32(word.value - value).value >= 0)

        return self._put(stream, wait)

    def _cuStreamWriteValue32(self, stream: int, address: int, value: int, flags: int) -> int:  # noqa: N802
        if flags != 0 or not self.gpu.is_pinned(address - DEVICE_SIDE):
            return INVALID_VALUE

        def write() -> None:
            if self.gpu.memory_operations != "never written":
                ctypes.c_int32.from_address(address - DEVICE_SIDE).value = value

        return self._put(stream, write)

    def _put(self, stream: int, command: Callable[[], None]) -> int:
        chosen = self._stream(stream)
        chosen.queue.put(chosen, command)
        return SUCCESS

    def _stream(self, handle: int) -> FakeStream:
        return next(stream for stream in self.gpu.streams if stream.cuda_stream == handle)


def _not_supported(*details: object) -> int:
    return NOT_SUPPORTED
