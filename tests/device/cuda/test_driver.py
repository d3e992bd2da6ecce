"""libcuda by ctypes: what is called with what, and what is made of the answers."""

from __future__ import annotations

import ctypes.util
import threading
import time

import pytest
from fake_device import FakeGpu

from settled.reference.device.cuda.driver import Driver, DriverError, load_libcuda
from settled.reference.device.cuda.runtime import CudaDevice

pytestmark = pytest.mark.fake_device


def test_contexts() -> None:
    with FakeGpu() as gpu:
        driver = Driver(gpu.libcuda)
        assert not driver.has_started
        with pytest.raises(DriverError, match=r"^cuEventCreate: CUDA_ERROR_NOT_INITIALIZED \(3\)$"):
            driver.new_event()
        gpu.has_started = True
        assert driver.has_started
        with pytest.raises(RuntimeError, match="this thread has no CUDA context"):
            driver.adopt()
        gpu.cuda.synchronize()
        driver.adopt()
        told: list[str] = []

        def elsewhere() -> None:
            try:
                driver.new_event()
            except DriverError as error:
                told.append(error.name)
            driver.attach()
            told.append(str(driver.new_event() > 0))

        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()
        assert told == ["CUDA_ERROR_INVALID_CONTEXT", "True"]


def test_events() -> None:
    with FakeGpu() as gpu:
        device = CudaDevice(gpu.platform)
        device.need_streams(2)
        driver, go = device.driver, threading.Event()
        first, second = driver.new_event(is_timed=True), driver.new_event(is_timed=True)
        assert driver.has_happened(first), "an event that was never recorded"
        device.record(first, 1)
        device.enqueue(1, lambda: gpu.cuda.put(lambda: time.sleep(0.05)))
        device.enqueue(1, lambda: gpu.cuda.put(lambda: gpu.hold(go.is_set)))
        device.record(second, 1)
        device.wait(2, second)
        assert not driver.has_happened(second)
        assert not device.is_idle(1)
        assert not device.is_idle(2)
        assert device.wait_until(lambda: driver.has_happened(first), 5.0)
        go.set()
        assert device.drain(5.0)
        assert driver.has_happened(second)
        assert 0.05 <= driver.seconds_between(first, second) < 10
        device.discard((first, second))
        with pytest.raises(DriverError, match="cuEventDestroy_v2: CUDA_ERROR_INVALID_VALUE"):
            driver.destroy(first)


def test_memory_operations_take_pinned_memory_alone() -> None:
    with FakeGpu() as gpu:
        device = CudaDevice(gpu.platform)
        words = gpu.pinned(4)
        address = device.driver.device_address(words.data_ptr())
        device.driver.write_value(device.handle(1), address + 8, 2**32 - 1)
        device.driver.wait_value(device.handle(1), address + 8, 2**32 - 3)
        assert device.drain(5.0), "differences are cyclic"
        assert words.tolist() == [0, 0, -1, 0]
        for operation in (device.driver.wait_value, device.driver.write_value):
            with pytest.raises(DriverError, match=r"Value32_v2: CUDA_ERROR_INVALID_VALUE \(1\)"):
                operation(device.handle(1), address + 16, 1)
            with pytest.raises(DriverError, match=r"Value32_v2: CUDA_ERROR_INVALID_VALUE \(1\)"):
                operation(device.handle(1), words.data_ptr(), 1)
        with pytest.raises(DriverError, match="cuMemHostGetDevicePointer_v2: CUDA_ERROR_INVALID_VALUE"):
            device.driver.device_address(words.data_ptr() + 16)


def test_errors_without_a_name_are_told_by_number() -> None:
    with (
        FakeGpu(codes={"cuEventCreate": 4711}) as gpu,
        pytest.raises(DriverError, match=r"^cuEventCreate: an unknown error \(4711\)$") as told,
    ):
        CudaDevice(gpu.platform).driver.new_event()
    assert (told.value.function, told.value.code) == ("cuEventCreate", 4711)


def test_a_machine_without_a_driver() -> None:
    if ctypes.util.find_library("cuda") is None:
        with pytest.raises(RuntimeError, match=r"^no NVIDIA driver: libcuda\.so\.1"):
            load_libcuda()
    else:
        assert load_libcuda() is not None
