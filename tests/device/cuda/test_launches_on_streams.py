"""The real launches on the streams of a fake device: what each order reads is what the CPU replay of that order reads."""

from __future__ import annotations

import pytest
import torch
from fake_device import FakeGpu
from workloads import FAULT_1, WORKLOADS, Workload, made

from settled.reference.device.cuda.interpreted import interpreted_launches
from settled.reference.device.cuda.runtime import CudaDevice
from settled.reference.device.cuda.streams import run_on_streams
from settled.reference.device.orders import LaunchOrder
from settled.reference.device.replay import replay_outcome

pytestmark = pytest.mark.fake_device

torch.set_num_threads(1)
DIRECTED = [workload for workload in WORKLOADS if workload.is_fast and "random order" not in workload.name]
CLEAN = "settled/everything 4 poisoned"


@pytest.mark.parametrize("workload", DIRECTED, ids=[workload.name for workload in DIRECTED])
def test_a_directed_order_reads_what_the_cpu_replay_of_it_reads(workload: Workload) -> None:
    ready = made(workload)
    launches = interpreted_launches(ready.compiled, ready.numbered)
    with FakeGpu() as gpu:
        device = CudaDevice(gpu.platform)
        launch = gpu.queued(launches.run, launches.log)
        for order in (ready.order, LaunchOrder(launches.log).random(1)):
            launches.reset()
            run_on_streams(launches.log, launch, device=device, order=order, seconds=120.0)
            assert launches.outcome().differences(replay_outcome(ready.compiled, ready.numbered, order)) == []
            if order is ready.order:
                assert launches.outcome().is_clean == workload.is_clean


def test_a_right_log_is_clean_in_any_timing_and_a_wrong_one_garbles_when_steps_take_their_time() -> None:
    for name, is_clean in ((CLEAN, True), (FAULT_1.name, False)):
        ready = made(next(workload for workload in WORKLOADS if workload.name == name))
        launches = interpreted_launches(ready.compiled, ready.numbered)
        with FakeGpu() as gpu:
            run_on_streams(
                launches.log, gpu.queued(launches.run, launches.log), device=CudaDevice(gpu.platform), step_seconds=0.1, seconds=120.0
            )
        assert launches.outcome().is_clean == is_clean
