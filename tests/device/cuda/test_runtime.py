"""A device and its streams, and what has to be set before CUDA starts."""

from __future__ import annotations

import time

import pytest
import torch
from fake_device import FakeGpu

from settled.reference.device.cuda.driver import Driver, DriverError
from settled.reference.device.cuda.runtime import ENVIRONMENT, MOST_STREAMS, CudaDevice, CudaError, Platform, pinned

pytestmark = pytest.mark.fake_device


def test_before_cuda_starts_the_environment_is_set() -> None:
    with FakeGpu(environment={"PATH": "x"}) as gpu:
        device = CudaDevice(gpu.platform)
        assert gpu.environment == {"PATH": "x", "CUDA_MODULE_LOADING": "EAGER", "CUDA_DEVICE_MAX_CONNECTIONS": "32"}
        assert device.torch_device == torch.device("cpu", 0)
        assert device.driver.has_started


@pytest.mark.parametrize(("name", "value"), [("CUDA_MODULE_LOADING", "LAZY"), ("CUDA_DEVICE_MAX_CONNECTIONS", "8")])
def test_what_the_user_set_is_not_overridden(name: str, value: str) -> None:
    for has_started, text in (
        (False, f"{name} is '{value}'; it has to be"),
        (True, f"{name}=.* before anything in the process uses CUDA; it is"),
    ):
        with FakeGpu(environment={**ENVIRONMENT, name: value}, has_started=has_started) as gpu, pytest.raises(CudaError, match=text):
            CudaDevice(gpu.platform)


def test_once_cuda_has_started_it_is_too_late() -> None:
    with FakeGpu(environment={}, has_started=True) as gpu:
        with pytest.raises(CudaError, match="CUDA_MODULE_LOADING=EAGER has to be set before anything in the process uses CUDA; it is None"):
            CudaDevice(gpu.platform)
        assert gpu.environment == {}
    with FakeGpu(has_started=True) as gpu:
        assert CudaDevice(gpu.platform).streams == range(1, 2)


@pytest.mark.parametrize("has_started", [False, True])
def test_launches_that_block_would_wait_for_their_own_gates(has_started: bool) -> None:
    with (
        FakeGpu(environment={**ENVIRONMENT, "CUDA_LAUNCH_BLOCKING": "1"}, has_started=has_started) as gpu,
        pytest.raises(CudaError, match="CUDA_LAUNCH_BLOCKING is set"),
    ):
        CudaDevice(gpu.platform)
    with FakeGpu(environment={**ENVIRONMENT, "CUDA_LAUNCH_BLOCKING": "0"}, has_started=has_started) as gpu:
        CudaDevice(gpu.platform)


def test_a_machine_without_a_device() -> None:
    with FakeGpu(is_available=False) as gpu, pytest.raises(CudaError, match="torch finds no CUDA device"):
        CudaDevice(gpu.platform)


def test_the_real_platform_is_the_default() -> None:
    platform = Platform()
    assert platform.cuda is torch.cuda
    assert platform.buffers == "cuda"
    target = torch.zeros(2)
    platform.copy(target, torch.ones(2))
    assert target.tolist() == [1, 1]
    if torch.cuda.is_available():
        assert pinned(3).tolist() == [0, 0, 0]
        assert pinned(3).is_pinned()
    else:
        with pytest.raises(RuntimeError, match=r"pin|NVIDIA"):
            pinned(3)
        with pytest.raises(RuntimeError, match=r"no NVIDIA driver|no CUDA device"):
            CudaDevice()


def test_streams_are_made_once_and_all_differ() -> None:
    with FakeGpu() as gpu:
        device = CudaDevice(gpu.platform)
        device.need_streams(5)
        handles = [device.handle(stream) for stream in device.streams]
        assert len(set(handles)) == 5
        device.need_streams(3)
        assert [device.handle(stream) for stream in device.streams] == handles
        device.replace_streams()
        assert not {device.handle(stream) for stream in device.streams} & set(handles)
        assert device.streams == range(1, 6)
        with pytest.raises(CudaError, match="33 streams are asked for; 32 can be independent"):
            device.need_streams(MOST_STREAMS + 1)


def test_there_are_as_many_streams_as_were_asked_for_and_no_more() -> None:
    """torch's own are up to 128 at once, which share 32 connections: a closed gate on one would hold up others."""
    with FakeGpu() as gpu:
        assert not hasattr(gpu.cuda, "Stream"), "one of torch's"
        device = CudaDevice(gpu.platform)
        assert len(gpu.streams) == 1
        device.need_streams(4)
        device.need_streams(4)
        assert [stream.cuda_stream for stream in gpu.streams] == [device.handle(number) for number in device.streams]
        assert len(gpu.streams) == 4


def test_the_driver_may_refuse_a_stream() -> None:
    with FakeGpu(codes={"cuStreamCreate": 201}) as gpu, pytest.raises(DriverError, match="cuStreamCreate: CUDA_ERROR_INVALID_CONTEXT"):
        CudaDevice(gpu.platform)


def test_work_goes_to_the_stream_that_is_current() -> None:
    with FakeGpu() as gpu:
        device = CudaDevice(gpu.platform)
        device.need_streams(2)
        seen: list[object] = []
        device.enqueue(2, lambda: seen.append(gpu.cuda.chosen))
        assert seen == [gpu.streams[1]]
        assert gpu.cuda.chosen is None
        device.touch(2)
        assert device.drain(5.0)


def test_a_stream_is_kept_busy_for_so_long() -> None:
    with FakeGpu(cycles_per_second=2e8) as gpu:
        device = CudaDevice(gpu.platform)
        device.measure_clock()
        assert 5e7 < device.cycles_per_second <= 2.01e8, "a busy machine wakes late"
        measured = device.cycles_per_second
        device.measure_clock()
        assert device.cycles_per_second == measured
        began = time.monotonic()
        device.keep_busy(1, 0.5)
        assert not device.drain(0.05)
        assert device.drain(5.0)
        assert 0.49 * measured / 2e8 <= time.monotonic() - began < 10


def test_a_clock_is_measured_three_times_behind_work_that_wakes_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """The most counts: a device that begins to wake clocks low."""
    slept: list[int] = []
    with FakeGpu() as gpu:
        device = CudaDevice(gpu.platform)
        monkeypatch.setattr(gpu.cuda, "_sleep", slept.append)
        seconds = iter((4.0, 2.0, 8.0))
        monkeypatch.setattr(device.driver, "seconds_between", lambda first, second: next(seconds))
        device.measure_clock()
        assert not gpu.libcuda._events, "events are given back"
    assert slept == [100_000_000, *[4_000_000] * 3]
    assert device.cycles_per_second == 2_000_000


def test_a_device_that_does_not_answer_is_told() -> None:
    with (
        FakeGpu(cycles_per_second=1e8, grace_seconds=0.05) as gpu,
        pytest.raises(CudaError, match=r"did not end a short kernel in 0\.05 s"),
    ):
        CudaDevice(gpu.platform).measure_clock()


def test_a_condition_is_asked_at_least_once_and_until_the_deadline() -> None:
    with FakeGpu() as gpu:
        device = CudaDevice(gpu.platform)
        assert device.wait_until(lambda: True, 0.0)
        began = time.monotonic()
        assert not device.wait_until(lambda: False, 0.05)
        assert 0.05 <= time.monotonic() - began < 10
        assert Driver(gpu.libcuda).has_started
