"""Where the buffers of launches stand: on a device, which has to be waited for and copies from pinned memory, or on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Place:
    """`device`: of tensors. `cuda`: torch.cuda, or what stands in for it; None on the CPU, where whatever is called has been done.

    `host`: makes zeroed tensors, of sizes and a `dtype`, that copies on streams come from and go to.
    """

    device: torch.device
    cuda: Any = None
    host: Callable[..., Tensor] = torch.zeros

    def current(self) -> AbstractContextManager[object]:
        """In it the device is torch's current one."""
        return nullcontext() if self.cuda is None else self.cuda.device(self.device)

    def synchronize(self) -> None:
        """Waits for torch's current stream of the device, and for no other."""
        if self.cuda is not None:
            self.cuda.current_stream(self.device).synchronize()


def on_cpu() -> Place:
    """For kernels that are interpreted."""
    return Place(torch.device("cpu"))
