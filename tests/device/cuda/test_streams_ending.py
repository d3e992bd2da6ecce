"""A run on streams ends, whatever goes wrong: with an error that says what, and with all gates open."""

from __future__ import annotations

import threading
import time

import pytest
from fake_runs import KINDS, ONE, fake, run
from random_logs import fill, load, log_of, poison, random_log, step

from settled.reference.device.clocks import OpLogError
from settled.reference.device.cuda.driver import DriverError
from settled.reference.device.cuda.runtime import CudaError
from settled.reference.device.cuda.streams import DeviceLostError, GateBoundError, GateTimeoutError, StreamsError, run_on_streams
from settled.reference.device.cuda.tickets import AHEAD
from settled.reference.device.ops import COMPUTE, HostSync, Record, Wait
from settled.reference.device.orders import LaunchOrder

pytestmark = pytest.mark.fake_device

# ---- what cannot be --------------------------------------------------------------------------------------------------


def test_orders_that_are_none() -> None:
    log = random_log(1)
    order = log.launches()
    with fake() as (gpu, device):
        for wrong in (order[1:], [*order, order[0]], [*order[1:], order[1]]):
            with pytest.raises(ValueError, match="names every launch of the log once"):
                run(gpu, device, log, order=wrong)
        with pytest.raises(ValueError, match="takes no step_seconds"):
            run(gpu, device, log, order=order, step_seconds=0.1)
        with pytest.raises(OpLogError, match="not recorded before"):
            run(gpu, device, log_of(Wait(COMPUTE, 0), Record(0, COMPUTE)))
        with pytest.raises(CudaError, match="40 streams are asked for"):
            run(gpu, device, log_of(num_streams=41))


NO_EXTENSIONS = {
    "a stream turned round": (log_of(step(0), step(1)), [1, 0], "launch 1 (step, stream compute, rank 0 of 2)"),
    "before what it waits for": (
        log_of(step(0), Record(0, COMPUTE), Wait(ONE, 0), load(0, 1)),
        [3, 0],
        "launch 3 (load, stream transfer 0, rank 0 of 2)",
    ),
    "before what the host waits for": (
        log_of(step(0), Record(0, COMPUTE), HostSync(0), load(0, 1)),
        [3, 0],
        "launch 3 (load, stream transfer 0, rank 0 of 2)",
    ),
    "the host last": (log_of(fill(log_of()), step(0)), [1, 0], "launch 1 (step, stream compute, rank 0 of 2)"),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", NO_EXTENSIONS)
def test_an_order_that_cannot_be_ends_at_the_deadline(name: str, kind: str) -> None:
    log, order, waited = NO_EXTENSIONS[name]
    with fake(**KINDS[kind]) as (gpu, device):
        assert device.tickets.ahead  # probed
        began = time.monotonic()
        with pytest.raises(GateTimeoutError) as told:
            run(gpu, device, log, order=order, seconds=0.2)
        assert 0.2 <= time.monotonic() - began < 10
        assert f"the deadline of 0.2 s passed; the device waited for {waited}; the host was at op" in str(told.value)
        assert not device.is_lost
        assert all(map(device.is_idle, device.streams)), "all gates are open"
        assert not gpu.libcuda._events, "events are given back"
        right = LaunchOrder(log).enqueue()
        assert run(gpu, device, log, order=right) == right, "the device serves on"


def test_the_watchdog_opens_the_gates_for_a_host_that_is_stuck_in_a_full_launch_queue() -> None:
    """More launches may stand behind gates here than the queue takes."""
    log = log_of(*[poison(1) for _ in range(6)], step(0))
    with fake(queue_length=6) as (gpu, device):
        assert device.tickets.ahead == AHEAD
        began = time.monotonic()
        with pytest.raises(GateTimeoutError, match=r"waited for launch 6 .*; the host was at op [1-5], putting it on its stream"):
            run(gpu, device, log, order=LaunchOrder(log).compute_first(), seconds=0.3)
        assert gpu.blocked >= 1
        assert 0.3 <= time.monotonic() - began < 10
        assert not device.is_lost


def test_a_launch_that_hangs_keeps_the_others_waiting_until_the_deadline() -> None:
    """Directed and not; the work ends within the grace, and the device serves on."""
    log = log_of(step(0), load(0, 1), HostSync(0))
    log.ops.insert(1, Record(0, COMPUTE))
    log.num_events = 1
    for how, error, text in (
        (
            {"order": [0, 2]},
            GateTimeoutError,
            r"waited for launch 0 \(step, stream compute, rank 0 of 2\); the host was at op 3, waiting for event 0",
        ),
        ({}, StreamsError, "the deadline of 0.2 s passed; the host was at op 3, waiting for event 0"),
    ):
        with fake() as (gpu, device):
            hang = threading.Event()
            threading.Timer(1.0, hang.set).start()
            with pytest.raises(error, match=text) as told:
                run(gpu, device, log, lambda op, hang=hang: assert_true(op != 0 or hang.wait(10)), seconds=0.2, **how)  # type: ignore[misc]
            assert told.value.__notes__ == ["the host was at op 3 of 4"]
            assert not device.is_lost
            assert run(gpu, device, log, order=[0, 2]) == [0, 2]


def assert_true(is_so: bool) -> None:
    assert is_so


def test_work_that_does_not_end_at_all_loses_the_device() -> None:
    log = log_of(step(0))
    hang = threading.Event()
    with fake(grace_seconds=0.2) as (gpu, device):
        with pytest.raises(StreamsError, match="waiting for the streams to end") as told:
            run(gpu, device, log, lambda op: assert_true(hang.wait(10)), seconds=0.1)
        assert told.value.__notes__[1:] == ["work was left on the device: it did not end in 0.2 s"]
        with pytest.raises(DeviceLostError, match="start a new process"):
            run(gpu, device, log)
        hang.set()


def test_a_run_whose_last_launch_has_run_may_still_miss_the_deadline() -> None:
    """Work that is no launch of the log's is on one of its streams."""
    log = log_of(step(0))
    with fake() as (gpu, device):
        device.need_streams(log.num_streams - 1)
        device.tickets.probe()
        device.measure_clock()
        device.keep_busy(2, 1.0)
        with pytest.raises(StreamsError, match="waiting for the streams to end") as told:
            run(gpu, device, log, order=[0], seconds=0.1)
        assert not isinstance(told.value, GateTimeoutError)


# ---- errors ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [ZeroDivisionError, KeyboardInterrupt])
@pytest.mark.parametrize("directed", [True, False])
def test_what_a_launch_raises_is_handed_on_with_all_gates_open(error: type[BaseException], directed: bool) -> None:
    log = log_of(load(0, 1), step(0), step(1), load(1, 1))
    order = [1, 2, 0, 3] if directed else None
    with fake() as (gpu, device):
        seen: list[int] = []
        queued = gpu.queued(seen.append, log)

        def launch(op: int) -> None:
            if op == 2:
                raise error("here")
            queued(op)

        with pytest.raises(error, match="here") as told:
            run_on_streams(log, launch, device=device, order=order)
        assert told.value.__notes__ == ["the host was at op 2 of 4"]
        assert sorted(seen) == [0, 1], "what stood behind a gate has run"
        assert not device.is_lost
        assert run(gpu, device, log, order=[1, 2, 0, 3]) == [1, 2, 0, 3]


def test_a_kernel_that_fails_loses_the_device() -> None:
    log = log_of(step(0), Record(0, COMPUTE), HostSync(0))

    def launch(op: int) -> None:
        raise ZeroDivisionError("on the device")

    for order in ([0], None):
        with fake() as (gpu, device):
            with pytest.raises(DriverError, match="CUDA_ERROR_LAUNCH_FAILED") as told:
                run(gpu, device, log, launch, order=order)
            assert any("the device has failed: cuStreamQuery: CUDA_ERROR_LAUNCH_FAILED" in note for note in told.value.__notes__)
            with pytest.raises(DeviceLostError):
                run(gpu, device, log)


@pytest.mark.parametrize(
    ("function", "name"),
    [
        ("cuCtxSetCurrent", "CUDA_ERROR_INVALID_CONTEXT"),
        ("cuEventCreate", "CUDA_ERROR_INVALID_VALUE"),
        ("cuEventRecord", "CUDA_ERROR_INVALID_VALUE"),
        ("cuStreamWaitEvent", "CUDA_ERROR_INVALID_VALUE"),
        ("cuEventQuery", "an unknown error"),
        ("cuStreamWaitValue32_v2", "CUDA_ERROR_NOT_SUPPORTED"),
        ("cuStreamWriteValue32_v2", "CUDA_ERROR_NOT_SUPPORTED"),
        ("cuStreamQuery", "CUDA_ERROR_INVALID_CONTEXT"),
        ("cuEventDestroy_v2", "CUDA_ERROR_INVALID_VALUE"),
    ],
)
def test_what_the_driver_answers_is_named(function: str, name: str) -> None:
    codes = {"CUDA_ERROR_INVALID_CONTEXT": 201, "CUDA_ERROR_INVALID_VALUE": 1, "CUDA_ERROR_NOT_SUPPORTED": 801, "an unknown error": 9999}
    log = log_of(step(0), Record(0, COMPUTE), Wait(ONE, 0), load(0, 1), HostSync(0))
    with fake() as (gpu, device):
        device.need_streams(log.num_streams - 1)
        assert device.tickets.refused == ""
        gpu.codes[function] = codes[name]
        with pytest.raises(DriverError) as told:
            run(gpu, device, log, order=[0, 3])
        assert (told.value.function, told.value.code, told.value.name) == (function, codes[name], name)
        assert str(told.value) == f"{function}: {name} ({codes[name]})"
        assert device.is_lost == (function == "cuStreamQuery"), "whether the work has ended could not be asked"
        gpu.codes.clear()
        assert gpu.settled(), "nothing is held up"


# ---- spin kernels ----------------------------------------------------------------------------------------------------


def test_a_spin_kernel_that_comes_to_its_bound_is_told() -> None:
    log = log_of(step(0), load(0, 1))
    with fake(missing=frozenset({"cuStreamWaitValue32_v2", "cuStreamWaitValue32"})) as (gpu, device):
        device.need_streams(log.num_streams - 1)
        assert device.tickets.refused == "libcuda does not have them"
        gpu.seconds_a_look = 1e-10  # 10 s of looks are over in 2 ms
        with pytest.raises(
            GateBoundError, match=r"came to its bound: launch 1 \(load, stream transfer 0, rank 1 of 2\) ran before its turn"
        ):
            run(gpu, device, log, lambda op: time.sleep(0.2 * (op == 0)), order=[0, 1])
        assert not device.is_lost
        gpu.seconds_a_look = 5e-7
        assert run(gpu, device, log, order=[1, 0]) == [1, 0]


def test_of_several_that_came_to_their_bound_the_first_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    log = log_of(step(0), load(0, 1))
    with fake() as (gpu, device):
        device.need_streams(log.num_streams - 1)
        monkeypatch.setattr(device.tickets, "beyond_bound", lambda: [0, 1])
        with pytest.raises(GateBoundError, match=r"launch 1 \(load, stream transfer 0, rank 0 of 2\) ran before its turn"):
            run(gpu, device, log, order=[1, 0])
