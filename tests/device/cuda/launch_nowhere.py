"""Runs logs through Triton's own launcher, up to where a device would be needed: it compiles what it would launch, and launches nothing.

Prints, for each kernel, the types of the arguments of each binary that it asked for: one a variant, or a later launch would compile.
A script, since the process must not have Triton's interpreter on.
"""

from __future__ import annotations

import ast
import json
from typing import Any

import torch
import workloads
from triton.backends.compiler import GPUTarget
from triton.runtime import driver

from settled.reference.device.cuda import kernels, launches
from settled.reference.device.cuda.place import on_cpu
from settled.reference.device.cuda.variants import Variant


class Nowhere:
    """What the launcher asks of a device's driver before it launches."""

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 90, 32)


def _warm(self: Variant, grid: tuple[int, ...], *arguments: object) -> None:
    self.kernel.warmup(*arguments, grid=grid, **self.constants, **self.options())


def binaries(kernel: Any) -> list[list[list[object]]]:
    """Of each: (type, what is known of its alignment) of every argument."""
    found = []
    for key in kernel.device_caches[0][0]:
        types = key.split("]{")[0] + "]" if isinstance(key, str) else str(key[0])
        found.append([list(each) for each in ast.literal_eval(types)])
    return found


if __name__ == "__main__":
    driver.set_active(Nowhere())
    launches.check_back_end = lambda device: None
    Variant.launch = _warm  # type: ignore[method-assign]
    for workload in workloads.WORKLOADS:
        ready = workloads.made(workload)
        run = launches.Launches(ready.compiled, ready.numbered, on_cpu())
        step = ready.compiled.steps[-1].op
        flag = torch.zeros(3, dtype=torch.int32)
        for gate in (None, launches.Gate(step, 0, 1, flag[1:2], flag[2:], spins=1)):
            run.gate = gate
            for op in ready.order:
                run.run(op)
    named = {name: kernel for name, kernel in vars(kernels).items() if name.endswith("_kernel")}
    print(json.dumps({name: binaries(kernel) for name, kernel in named.items()}))
