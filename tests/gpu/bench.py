"""What a phase is given: a device, real or fake, how much time it has, and where it tells what it found."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

from report import Report


@dataclass(slots=True)
class Bench:
    """`seconds`: after which a phase begins nothing new."""

    device: Any
    report: Report
    seconds: float
    is_dry: bool
    began: float = field(default_factory=time.monotonic)

    @property
    def is_spent(self) -> bool:
        return time.monotonic() - self.began > self.seconds


def open_device(is_dry: bool) -> Any:
    """A CudaDevice. Raises what it raises."""
    from settled.reference.device.cuda.runtime import CudaDevice

    if not is_dry:
        return CudaDevice()
    from fake_cuda import fake_platform

    return CudaDevice(fake_platform())
