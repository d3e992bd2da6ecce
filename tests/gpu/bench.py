"""What a phase is given: a device, real or fake, how much time it has, and where it tells what it found."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from report import Report

if TYPE_CHECKING:
    from settled.reference.device.cuda.against_cpu import Queued
    from settled.reference.device.cuda.runtime import CudaDevice


@dataclass(slots=True)
class Bench:
    """`seconds`: after which a phase begins nothing new. `put`: sends work to the current stream; `queued`: the same of a log's launches.

    On a CUDA device both do nothing, since kernels and copies go there by themselves.
    """

    device: CudaDevice
    report: Report
    seconds: float
    is_dry: bool
    put: Callable[[Callable[[], None]], None]
    queued: Queued
    began: float = field(default_factory=time.monotonic)

    @property
    def is_spent(self) -> bool:
        return time.monotonic() - self.began > self.seconds

    def enqueue(self, stream: int, work: Callable[[], None]) -> None:
        self.device.enqueue(stream, lambda: self.put(work))

    def drain(self, seconds: float = 20.0) -> None:
        """Raises TimeoutError."""
        if not self.device.drain(seconds):
            raise TimeoutError(f"the device did not end its work in {seconds:g} s")


@contextmanager
def open_bench(report: Report, seconds: float, is_dry: bool) -> Iterator[Bench]:
    """Raises what CudaDevice raises."""
    from settled.reference.device.cuda.against_cpu import by_itself
    from settled.reference.device.cuda.runtime import CudaDevice

    if not is_dry:
        yield Bench(CudaDevice(), report, seconds, is_dry, lambda work: work(), by_itself)
        return
    from fake_device import FakeGpu

    with FakeGpu() as gpu:
        yield Bench(CudaDevice(gpu.platform), report, seconds, is_dry, gpu.cuda.put, gpu.queued)
