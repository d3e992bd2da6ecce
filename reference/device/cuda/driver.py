"""The few functions of libcuda that torch does not offer, by ctypes: stream memory operations, plain streams, events that one may poll.

ctypes lets other threads run while a call waits, as it does where a launch queue is full: a watchdog thread gets its turn. Each result is
checked and named. The driver works on the calling thread's current context; `attach` sets it.
"""

from __future__ import annotations

import ctypes
from ctypes import POINTER, byref, c_char_p, c_float, c_int, c_uint, c_uint32, c_uint64, c_void_p
from typing import Any

SUCCESS, NOT_INITIALIZED, NOT_READY = 0, 3, 600
CAN_USE_STREAM_MEM_OPS_V1 = 92  # CU_DEVICE_ATTRIBUTE_...; 0 on present devices, where `_v2` works without asking
WAIT_VALUE_GEQ, WRITE_VALUE_DEFAULT, DISABLE_TIMING = 0, 0, 2
NON_BLOCKING = 1  # a stream that neither waits for the default one nor holds it up

_SIGNATURES: dict[str, list[Any]] = {
    "cuGetErrorName": [c_int, POINTER(c_char_p)],
    "cuCtxGetCurrent": [POINTER(c_void_p)],
    "cuCtxSetCurrent": [c_void_p],
    "cuCtxGetDevice": [POINTER(c_int)],
    "cuDeviceGetAttribute": [POINTER(c_int), c_int, c_int],
    "cuStreamCreate": [POINTER(c_void_p), c_uint],
    "cuEventCreate": [POINTER(c_void_p), c_uint],
    "cuEventRecord": [c_void_p, c_void_p],
    "cuEventQuery": [c_void_p],
    "cuEventElapsedTime": [POINTER(c_float), c_void_p, c_void_p],
    "cuEventDestroy_v2": [c_void_p],
    "cuStreamQuery": [c_void_p],
    "cuStreamWaitEvent": [c_void_p, c_void_p, c_uint],
    "cuMemHostGetDevicePointer_v2": [POINTER(c_uint64), c_void_p, c_uint],
    "cuStreamWaitValue32": [c_void_p, c_uint64, c_uint32, c_uint],
    "cuStreamWriteValue32": [c_void_p, c_uint64, c_uint32, c_uint],
}


class DriverError(RuntimeError):
    """What libcuda answered: `function`, `code` of the CUresult and its `name`."""

    def __init__(self, function: str, code: int, name: str) -> None:
        super().__init__(f"{function}: {name} ({code})")
        self.function, self.code, self.name = function, code, name


class Driver:
    """`libcuda`: as ctypes loads it. Handles of streams and events are integers. Methods raise DriverError."""

    def __init__(self, libcuda: Any) -> None:
        self._libcuda = libcuda
        self._functions: dict[str, Any] = {}
        self._context: int | None = None

    @property
    def has_started(self) -> bool:
        """Whether anybody in this process has started CUDA."""
        return self._code("cuCtxGetCurrent", byref(c_void_p())) != NOT_INITIALIZED

    def adopt(self) -> None:
        """Takes the calling thread's context, which torch has made. Raises RuntimeError where there is none."""
        context = c_void_p()
        self._call("cuCtxGetCurrent", byref(context))
        if context.value is None:
            raise RuntimeError("this thread has no CUDA context")
        self._context = context.value

    def attach(self) -> None:
        """Makes that context the calling thread's: a new thread has none, whatever torch's functions do on it by themselves."""
        self._call("cuCtxSetCurrent", self._context)

    def new_stream(self) -> int:
        """For as long as the process lives."""
        stream = c_void_p()
        self._call("cuStreamCreate", byref(stream), NON_BLOCKING)
        assert stream.value is not None
        return stream.value

    # ---- events --------------------------------------------------------------------------------------------------------

    def new_event(self, *, is_timed: bool = False) -> int:
        event = c_void_p()
        self._call("cuEventCreate", byref(event), 0 if is_timed else DISABLE_TIMING)
        assert event.value is not None
        return event.value

    def destroy(self, event: int) -> None:
        self._call("cuEventDestroy_v2", event)

    def record(self, event: int, stream: int) -> None:
        self._call("cuEventRecord", event, stream)

    def wait_event(self, stream: int, event: int) -> None:
        self._call("cuStreamWaitEvent", stream, event, 0)

    def has_happened(self, event: int) -> bool:
        """Whether all has run that stood before its latest record."""
        return self._is_ready("cuEventQuery", event)

    def is_idle(self, stream: int) -> bool:
        """Whether all has run that was enqueued."""
        return self._is_ready("cuStreamQuery", stream)

    def _is_ready(self, name: str, handle: int) -> bool:
        """Asks, and never blocks."""
        code = self._code(name, handle)
        if code != NOT_READY:
            self._check(name, code)
        return code == SUCCESS

    def seconds_between(self, first: int, second: int) -> float:
        """Between two timed events that have happened, on the device's clock."""
        milliseconds = c_float()
        self._call(self._newest("cuEventElapsedTime"), byref(milliseconds), first, second)
        return milliseconds.value / 1000

    def device_address(self, pinned: int) -> int:
        """Of pinned host memory; with unified addressing the same."""
        address = c_uint64()
        self._call("cuMemHostGetDevicePointer_v2", byref(address), pinned, 0)
        return address.value

    # ---- stream memory operations --------------------------------------------------------------------------------------

    @property
    def has_memory_operations(self) -> bool:
        """Whether libcuda offers them; a probe has to show that they work."""
        if self._has("cuStreamWaitValue32_v2") and self._has("cuStreamWriteValue32_v2"):
            return True  # on by default on every platform; there is no attribute to ask for
        if not (self._has("cuStreamWaitValue32") and self._has("cuStreamWriteValue32")):
            return False
        device, value = c_int(), c_int()
        self._call("cuCtxGetDevice", byref(device))
        self._call("cuDeviceGetAttribute", byref(value), CAN_USE_STREAM_MEM_OPS_V1, device.value)
        return bool(value.value)

    def wait_value(self, stream: int, address: int, value: int) -> None:
        """What follows on the stream waits until the 32-bit word is at least `value` (as a cyclic difference)."""
        self._call(self._newest("cuStreamWaitValue32"), stream, address, value, WAIT_VALUE_GEQ)

    def write_value(self, stream: int, address: int, value: int) -> None:
        """Writes the word when all before it on the stream has run.

        By default a fence of the whole system stands before the write: whoever sees the word sees all that the stream wrote before it,
        the host in pinned memory and other streams in the device's. The flag that waives the fence is not passed.
        """
        self._call(self._newest("cuStreamWriteValue32"), stream, address, value, WRITE_VALUE_DEFAULT)

    # ---- calls ---------------------------------------------------------------------------------------------------------

    def _has(self, name: str) -> bool:
        return getattr(self._libcuda, name, None) is not None

    def _newest(self, name: str) -> str:
        return f"{name}_v2" if self._has(f"{name}_v2") else name

    def _code(self, name: str, *arguments: Any) -> int:
        function = self._functions.get(name)
        if function is None:
            function = self._functions[name] = getattr(self._libcuda, name)
            function.argtypes = _SIGNATURES[name] if name in _SIGNATURES else _SIGNATURES[name.removesuffix("_v2")]
            function.restype = c_int
        code: int = function(*arguments)
        return code

    def _call(self, name: str, *arguments: Any) -> None:
        self._check(name, self._code(name, *arguments))

    def _check(self, name: str, code: int) -> None:
        if code != SUCCESS:
            text = c_char_p()
            known = self._code("cuGetErrorName", code, byref(text)) == SUCCESS and text.value is not None
            raise DriverError(name, code, text.value.decode() if known and text.value is not None else "an unknown error")


def load_libcuda() -> Any:
    """Raises RuntimeError where there is no driver."""
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise RuntimeError(f"no NVIDIA driver: {error}") from error
