"""Logs on the streams of a fake device: exactly the order that was asked for, some linear extension otherwise."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest
import torch
from fake_runs import KINDS, TWO, fake, is_extension, run
from random_logs import fill, load, log_of, poison, random_log, step

from settled.model.trace_io import read_trace
from settled.reference.device.compiling import compile_log
from settled.reference.device.cuda.streams import run_on_streams
from settled.reference.device.cuda.tickets import AHEAD, SpinGates
from settled.reference.device.lowering import lower
from settled.reference.device.numbered import NumberedLog
from settled.reference.device.ops import COMPUTE, HostSync, OpLog, Record, Wait
from settled.reference.device.orders import LaunchOrder
from settled.reference.device.replay import Replay, replay

pytestmark = pytest.mark.fake_device

torch.set_num_threads(1)
TRACES = Path(__file__).parents[2] / "data" / "traces"


def lowered(name: str) -> OpLog:
    with (TRACES / f"{name}.ndjson").open(encoding="utf-8") as lines:
        return lower([event for _, event in read_trace(lines)])


# ---- directed --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_the_device_runs_exactly_the_order_that_is_asked_for(kind: str) -> None:
    moved = 0
    with fake(**KINDS[kind]) as (gpu, device):
        for seed in range(30):
            log = random_log(seed, num_ops=30, num_streams=3 + seed % 4)
            orders = LaunchOrder(log)
            for order in (orders.enqueue(), orders.transfers_first(), orders.compute_first(), orders.random(seed)):
                assert run(gpu, device, log, order=order) == order
                moved += order != orders.enqueue()
        assert device.tickets.gates.name == ("spin kernels" if kind == "spin kernels" else "stream memory operations")
        assert device.tickets.ahead == (1 if "one queue" in kind else AHEAD)
    assert moved > 50


@pytest.mark.parametrize("name", ["v0.24.0-connector-overwrite", "v0.33.0-conn-apc-spec", "v0.25.1-mamba-align-spec"])
def test_a_directed_run_is_the_serial_replay_of_its_order(name: str) -> None:
    log = lowered(name)
    compiled = compile_log(log)
    numbered = NumberedLog(compiled)
    orders = LaunchOrder(log)
    with fake() as (gpu, device):
        for order in (orders.transfers_first(), orders.random(1)):
            memory = Replay(compiled, numbered)
            assert run(gpu, device, log, memory.run, order=order, seconds=60.0) == order
            serial = replay(compiled, order, numbered)
            assert memory.result == serial
            assert serial.counts.steps > 5
            assert serial.counts.is_clean == (name != "v0.24.0-connector-overwrite")


def test_launches_far_from_their_turn_do_not_fill_the_launch_queue() -> None:
    """All poison last, of more launches than the queue takes: put there at once it would never let the host come to the steps."""
    log = log_of(*[op for number in range(60) for op in (poison(1), step(number))])
    order = LaunchOrder(log).compute_first()
    with fake(queue_length=3 * AHEAD) as (gpu, device):
        assert run(gpu, device, log, order=order) == order
        assert gpu.blocked == 0


def test_the_host_puts_launches_behind_closed_gates_and_goes_on() -> None:
    """The step is on its stream before the load is, and still runs after it."""
    log = log_of(step(0), load(0, 1))
    enqueued: list[int] = []
    with fake() as (gpu, device):
        seen: list[int] = []
        launch = gpu.queued(seen.append, log)

        def noted(op: int) -> None:
            enqueued.append(op)
            launch(op)

        run_on_streams(log, noted, device=device, order=[1, 0])
    assert (enqueued, seen) == ([0, 1], [1, 0])


def test_one_device_runs_in_any_thread() -> None:
    log = random_log(3, num_ops=20)
    order = LaunchOrder(log).random(3)
    seen: list[list[int]] = []
    with fake() as (gpu, device):
        thread = threading.Thread(target=lambda: seen.append(run(gpu, device, log, order=order)))
        thread.start()
        thread.join()
    assert seen == [order], "a new thread has no context of its own"


def test_a_run_probes_the_streams_that_it_needs_and_bounds_its_gates_by_its_deadline() -> None:
    with fake(**KINDS["spin kernels"]) as (gpu, device):
        assert run(gpu, device, log_of(step(0)), order=[0]) == [0]
        for num_streams in (7, 9):
            log = log_of(step(0), num_streams=num_streams)
            assert run(gpu, device, log, order=[0], seconds=num_streams) == [0]
            assert device.tickets._probed == len(device.streams) == log.num_streams - 1
            assert isinstance(device.tickets.gates, SpinGates)
            assert device.tickets.gates.looks == num_streams * 4_000_000


# ---- natural ---------------------------------------------------------------------------------------------------------


def test_left_alone_the_device_runs_some_linear_extension() -> None:
    moved = 0
    with fake() as (gpu, device):
        for seed in range(40):
            log = random_log(seed, num_ops=30, num_streams=3 + seed % 4)
            delays = (seed % 3) / 2000
            seen = run(gpu, device, log, lambda op, delays=delays: time.sleep(delays * (op % 2)))  # type: ignore[misc]
            assert is_extension(log, seen)
            moved += seen != log.launches()
    assert moved > 5


def test_a_busy_compute_stream_is_overtaken_by_what_does_not_wait_for_it() -> None:
    log = log_of(step(0), load(0, 1), Record(0, COMPUTE), Wait(TWO, 0), load(1, 2, stream=TWO))
    with fake(cycles_per_second=2e8) as (gpu, device):
        assert run(gpu, device, log, step_seconds=0.3) == [1, 0, 4]
        began = time.monotonic()
        assert run(gpu, device, log, step_seconds=0.3) == [1, 0, 4]
        assert time.monotonic() - began >= 0.1, "as far as the clock could be measured"


def test_the_host_waits_for_the_event_and_no_longer() -> None:
    """The step that is recorded, not the one after it."""
    log = log_of(step(0), Record(0, COMPUTE), step(1), HostSync(0), fill(log_of()))
    first, second = threading.Event(), threading.Event()

    def launch(op: int) -> None:
        if op == 0:
            time.sleep(0.05)
            first.set()
        elif op == 2:
            assert second.wait(5)
        else:
            assert first.is_set()
            second.set()

    with fake() as (gpu, device):
        assert run(gpu, device, log, launch) == [0, 4, 2]
