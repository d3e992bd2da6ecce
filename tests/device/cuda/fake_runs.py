"""Runs of logs on a fake device, of each kind of gates."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from fake_device import FakeGpu
from random_logs import before

from settled.reference.device.cuda.runtime import CudaDevice
from settled.reference.device.cuda.streams import run_on_streams
from settled.reference.device.ops import FIRST_TRANSFER, OpLog

KINDS = {
    "memory operations": {},
    "first version of them": {"missing": frozenset({"cuStreamWaitValue32_v2", "cuStreamWriteValue32_v2"}), "attribute": 1},
    "spin kernels": {"memory_operations": "never closed"},
    "one queue for all streams": {"shares_queue": True},
    "one queue for all copies": {"shares_copies": True},
}
ONE, TWO = FIRST_TRANSFER, FIRST_TRANSFER + 1


@contextmanager
def fake(**how: object) -> Iterator[tuple[FakeGpu, CudaDevice]]:
    with FakeGpu(**{"grace_seconds": 5.0, **how}) as gpu:  # type: ignore[arg-type]
        yield gpu, CudaDevice(gpu.platform)


def run(gpu: FakeGpu, device: CudaDevice, log: OpLog, launch: Callable[[int], None] | None = None, **how: object) -> list[int]:
    """The order in which launches ran."""
    seen: list[int] = []

    def ran(op: int) -> None:
        if launch is not None:
            launch(op)
        seen.append(op)

    run_on_streams(log, gpu.queued(ran, log), device=device, **how)  # type: ignore[arg-type]
    return seen


def is_extension(log: OpLog, order: list[int]) -> bool:
    place = {index: number for number, index in enumerate(order)}
    earlier = before(log)
    return sorted(order) == sorted(earlier) and all(place[first] < place[index] for index in earlier for first in earlier[index])
