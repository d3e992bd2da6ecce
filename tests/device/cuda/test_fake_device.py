"""The fake device does what a device does, as far as runs of logs rely on it."""

from __future__ import annotations

import ctypes
import threading

import pytest
from fake_device import FakeGpu
from random_logs import fill, load, log_of, step

from settled.reference.device.cuda.runtime import CudaDevice


def test_the_host_goes_on_and_each_stream_keeps_its_order() -> None:
    go, seen = threading.Event(), []
    with FakeGpu() as gpu:
        device = CudaDevice(gpu.platform)
        device.need_streams(2)
        device.enqueue(1, lambda: gpu.cuda.put(lambda: gpu.hold(go.is_set)))
        for number in range(3):
            device.enqueue(1, lambda number=number: gpu.cuda.put(lambda: seen.append(number)))  # type: ignore[misc]
        device.enqueue(2, lambda: gpu.cuda.put(lambda: seen.append("other")))
        assert device.wait_until(lambda: device.is_idle(2), 5.0)
        assert seen == ["other"]
        go.set()
        assert device.drain(5.0)
        assert seen == ["other", 0, 1, 2]


def test_the_host_waits_at_the_end_of_a_launch_queue() -> None:
    go = threading.Event()
    with FakeGpu(queue_length=3) as gpu:
        device = CudaDevice(gpu.platform)
        for _ in range(3):
            device.enqueue(1, lambda: gpu.cuda.put(lambda: gpu.hold(go.is_set)))
        assert gpu.blocked == 0
        waiting = threading.Thread(target=lambda: device.wait_until(lambda: gpu.blocked == 1, 10.0) and go.set())
        waiting.start()
        device.enqueue(1, lambda: gpu.cuda.put(lambda: None))
        assert go.is_set(), "the host went on before there was room"
        assert gpu.blocked == 1
        waiting.join()
        assert device.drain(5.0)


def test_a_wait_is_for_the_record_that_stands_before_it() -> None:
    go = threading.Event()
    with FakeGpu() as gpu:
        device = CudaDevice(gpu.platform)
        device.need_streams(2)
        (event,) = device.new_events(1)
        device.wait(2, event)
        device.enqueue(1, lambda: gpu.cuda.put(lambda: gpu.hold(go.is_set)))
        device.record(event, 1)
        assert device.wait_until(lambda: device.is_idle(2), 5.0), "before the first record there is nothing to wait for"
        device.wait(2, event)
        assert not device.wait_until(lambda: device.is_idle(2), 0.05)
        go.set()
        assert device.drain(5.0)


def test_kernels_run_one_at_a_time_and_copies_beside_them() -> None:
    log = log_of(step(0), step(1), load(0, 1), fill(log_of()))
    go, seen = threading.Event(), []

    def launch(op: int) -> None:
        seen.append(op)
        if op == 0:
            assert go.wait(5)

    with FakeGpu() as gpu:
        device = CudaDevice(gpu.platform)
        device.need_streams(3)
        queued = gpu.queued(launch, log)
        device.enqueue(1, lambda: queued(0))
        assert device.wait_until(lambda: seen == [0], 5.0)
        device.enqueue(2, lambda: queued(1))
        device.enqueue(3, lambda: queued(2))
        assert device.wait_until(lambda: seen == [0, 2], 5.0)
        queued(3)
        assert seen == [0, 2, 3], "the host's own at once"
        go.set()
        assert device.drain(5.0)
        assert seen == [0, 2, 3, 1]


def test_wrong_calls_are_seen() -> None:
    with FakeGpu() as gpu:
        device = CudaDevice(gpu.platform)
        with pytest.raises(AssertionError, match="default stream"):
            gpu.cuda.put(lambda: None)
        record = gpu.libcuda.cuEventRecord
        with pytest.raises(AssertionError, match="cuEventRecord takes 0 arguments"):
            record(1, 2)
        event = device.driver.new_event()
        device.driver.record(event, device.handle(1))
        with pytest.raises(AssertionError, match="takes 2 arguments"):
            record(event)
        with pytest.raises(AssertionError, match="is no"):
            gpu.libcuda.cuEventCreate(ctypes.byref(ctypes.c_int()), 2)
        device.driver.wait_value(device.handle(1), device.driver.device_address(gpu.pinned(1).data_ptr()), 0)
        with pytest.raises(AssertionError, match="does not fit"):
            gpu.libcuda.cuStreamWaitValue32_v2(device.handle(1), gpu.pinned(1).data_ptr(), 2**32, 0)
        for name in ("cuEventRecord_v2", "cuNothing"):
            assert not hasattr(gpu.libcuda, name)


def test_a_failed_kernel_fails_the_device() -> None:
    with FakeGpu() as gpu:
        device = CudaDevice(gpu.platform)
        seen: list[int] = []
        device.enqueue(1, lambda: gpu.cuda.put(lambda: 1 // 0))  # type: ignore[arg-type, return-value]
        device.enqueue(1, lambda: gpu.cuda.put(lambda: seen.append(1)))
        assert gpu.settled()
        assert isinstance(gpu.failure, ZeroDivisionError)
        assert seen == []
        assert gpu.libcuda.cuStreamQuery.restype is None
        with pytest.raises(RuntimeError, match="LAUNCH_FAILED"):
            device.is_idle(1)
