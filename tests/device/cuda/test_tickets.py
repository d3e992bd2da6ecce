"""Which gates a device is found to have, and what they do."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from fake_device import FakeGpu

from settled.reference.device.cuda.driver import DriverError
from settled.reference.device.cuda.runtime import CudaDevice
from settled.reference.device.cuda.tickets import AHEAD, MOST_RANKS, ProbeError, SpinGates, Tickets

pytestmark = pytest.mark.fake_device

WAITS = frozenset({"cuStreamWaitValue32_v2", "cuStreamWriteValue32_v2"})
BOTH = WAITS | {"cuStreamWaitValue32", "cuStreamWriteValue32"}
MEMORY, SPIN = "stream memory operations", "spin kernels"


@contextmanager
def fake(streams: int = 3, **how: object) -> Iterator[tuple[FakeGpu, CudaDevice]]:
    with FakeGpu(**{"grace_seconds": 3.0, **how}) as gpu:  # type: ignore[arg-type]
        device = CudaDevice(gpu.platform)
        device.need_streams(streams)
        yield gpu, device


FOUND = {
    "as on present devices": ({}, MEMORY, "", AHEAD),
    "only the first version, allowed": ({"missing": WAITS, "attribute": 1}, MEMORY, "", AHEAD),
    "only the first version, not allowed": ({"missing": WAITS}, SPIN, "libcuda does not have them", AHEAD),
    "none": ({"missing": BOTH}, SPIN, "libcuda does not have them", AHEAD),
    "half of them": ({"missing": BOTH - {"cuStreamWaitValue32"}}, SPIN, "libcuda does not have them", AHEAD),
    "a write of the first version alone": ({"missing": {"cuStreamWriteValue32_v2"}}, SPIN, "libcuda does not have them", AHEAD),
    "refused at the wait": (
        {"codes": {"cuStreamWaitValue32_v2": 801}},
        SPIN,
        "cuStreamWaitValue32_v2: CUDA_ERROR_NOT_SUPPORTED (801)",
        AHEAD,
    ),
    "refused at the write": (
        {"codes": {"cuStreamWriteValue32_v2": 801}},
        SPIN,
        "cuStreamWriteValue32_v2: CUDA_ERROR_NOT_SUPPORTED (801)",
        AHEAD,
    ),
    "that do not hold": ({"memory_operations": "never closed"}, SPIN, "the gate on stream 1 was not closed", AHEAD),
    "that do not open": ({"memory_operations": "never opened"}, SPIN, "the gate on stream 1 did not open when the host opened it", AHEAD),
    "that do not write": ({"memory_operations": "never written"}, SPIN, "the gate on stream 1 did not open when the host opened it", AHEAD),
    "streams that wait for each other": ({"shares_queue": True}, MEMORY, "", 1),
    "copies that wait for each other": ({"shares_copies": True}, MEMORY, "", 1),
    "kernels that are loaded late": ({"loads_lazily": True}, MEMORY, "", AHEAD),
}


@pytest.mark.parametrize("name", FOUND)
def test_the_probe_finds_what_works(name: str) -> None:
    how, gates, refused, ahead = FOUND[name]
    with fake(**how) as (gpu, device):  # type: ignore[arg-type]
        before = [device.handle(stream) for stream in device.streams]
        began = time.monotonic()
        tickets = device.tickets
        assert time.monotonic() - began < 10
        assert (tickets.gates.name, tickets.refused, tickets.ahead) == (gates, refused, ahead)
        assert all(map(device.is_idle, device.streams)), "nothing is left behind a gate"
        held = [stream for stream in gpu.streams if stream.ended < stream.enqueued]
        assert len(held) == (name == "that do not open")
        assert ([device.handle(stream) for stream in device.streams] == before) == (not held), "streams that stand still are replaced"


def test_streams_that_come_later_are_probed_too() -> None:
    with fake(streams=1) as (gpu, device):
        tickets = device.tickets
        assert tickets is device.tickets
        gpu.memory_operations = "never closed"
        tickets.probe()
        assert tickets.gates.name == MEMORY, "known of that stream"
        device.need_streams(2)
        tickets.probe()
        assert (tickets.gates.name, tickets.refused) == (SPIN, "the gate on stream 1 was not closed")
        device.need_streams(3)
        tickets.probe()
        assert tickets.gates.name == SPIN


def test_no_gate_that_works_is_told() -> None:
    with fake(missing=BOTH, spin="never closed") as (_, device):
        with pytest.raises(ProbeError, match="libcuda does not have them; spin kernels: the gate on stream 1 was not closed"):
            _ = device.tickets
        assert all(map(device.is_idle, device.streams))


def test_a_probe_does_not_begin_under_other_work() -> None:
    with fake(grace_seconds=0.1) as (gpu, device):
        device.enqueue(2, lambda: gpu.cuda.put(lambda: time.sleep(0.3)))
        with pytest.raises(ProbeError, match="other work that does not end"):
            _ = device.tickets


def test_a_first_spin_kernel_that_hangs_is_told() -> None:
    with fake(missing=BOTH, grace_seconds=0.1, spin="hangs") as (gpu, device):
        with pytest.raises(ProbeError, match=r"the first spin kernels did not end in 0\.1 s"):
            _ = device.tickets
        assert not gpu.settled(0.0)


def test_a_device_that_fails_in_the_probe_is_not_probed_on() -> None:
    with (
        fake(codes={"cuStreamWriteValue32_v2": 719}) as (_, device),
        pytest.raises(DriverError, match="CUDA_ERROR_LAUNCH_FAILED"),
    ):
        _ = device.tickets


def test_a_word_a_rank() -> None:
    with fake() as (_, device):
        tickets = device.tickets
        tickets.begin(3, 1.0)
        assert [tickets.is_open(rank) for rank in range(4)] == [True, False, False, False]
        assert tickets.done == 0
        tickets.wait(1, 1)
        tickets.post(1, 1)
        assert not device.drain(0.05), "its turn has not come"
        tickets.post(2, 0)
        assert device.drain(5.0)
        assert [tickets.is_open(rank) for rank in range(4)] == [True, True, True, False]
        assert tickets.done == 2
        tickets.open(3)
        assert tickets.done == 3
        assert tickets.beyond_bound() == []
        tickets.begin(2, 1.0)
        assert [tickets.is_open(rank) for rank in range(4)] == [True, False, False, False], "the next run finds them closed"
        assert tickets.done == 0


def test_what_is_released_stays_open_whatever_is_posted_late() -> None:
    with fake() as (_, device):
        tickets = device.tickets
        tickets.begin(3, 1.0)
        tickets.wait(1, 2)
        tickets.release()
        tickets.post(2, 0)
        tickets.wait(2, 2)
        assert device.drain(5.0)
        assert all(tickets.is_open(rank) for rank in range(4))


def test_there_are_tickets_for_so_many_launches() -> None:
    with fake() as (_, device):
        device.tickets.begin(MOST_RANKS, 1.0)
        device.tickets.release()
        with pytest.raises(ValueError, match=r"an order has 262,145 launches; there are tickets for 262,144"):
            device.tickets.begin(MOST_RANKS + 1, 1.0)


def test_a_spin_kernel_looks_for_as_long_as_a_run_may_take() -> None:
    with fake(missing=BOTH) as (_, device):
        gates = device.tickets.gates
        assert isinstance(gates, SpinGates)
        device.tickets.begin(1, 3.0)
        assert gates.looks == 12_000_000
        device.tickets.begin(1, 1e9)
        assert gates.looks == 2**31 - 1, "a kernel's numbers are 32 bits wide"


def test_the_watchdog_opens_gates_at_the_deadline_and_only_then() -> None:
    with fake() as (_, device):
        tickets: Tickets = device.tickets
        told: list[bool] = []
        tickets.begin(2, 1.0)
        with tickets.released_after(1.0, lambda: told.append(tickets.is_open(1))):
            tickets.wait(1, 1)
            assert not device.drain(0.01)
            assert device.drain(5.0)
        assert told == [False], "it is told before they open"
        tickets.begin(2, 1.0)
        with tickets.released_after(1.0, lambda: told.append(True)):
            pass
        time.sleep(1.2)
        assert told == [False]
        assert not tickets.is_open(1)


def test_a_watchdog_at_work_is_waited_for_so_that_it_leaves_the_next_run_alone() -> None:
    with fake() as (_, device):
        tickets: Tickets = device.tickets
        tickets.begin(2, 1.0)
        with tickets.released_after(0.01, lambda: time.sleep(0.3)):
            time.sleep(0.1)
        tickets.begin(2, 1.0)
        time.sleep(0.4)
        assert not tickets.is_open(1)
