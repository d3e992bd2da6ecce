"""First phase: which device and versions these are, and whether its gates hold and open."""

from __future__ import annotations

import os
import platform
from typing import Any

import torch
import triton
from bench import Bench

STREAMS = 16
"""As many as any log of tests/data/gpu has on the device."""
LEAST = {"torch": (2, 11), "triton": (3, 6)}


def run(bench: Bench) -> None:
    report, device = bench.report, bench.device
    versions = {"torch": torch.__version__, "triton": triton.__version__}
    report.facts = {**versions, "python": platform.python_version(), "machine": platform.machine(), **_device(bench)}
    for name, version in versions.items():
        report.check(_is_at_least(version, LEAST[name]), f"{name} {version} is older than {'.'.join(map(str, LEAST[name]))}")
    device.measure_clock()
    device.need_streams(STREAMS)
    device.tickets.probe()  # raises where neither kind of gate works
    report.checks += 1
    gates = device.tickets.gates.name
    report.facts |= {"gates": gates, "refused": device.tickets.refused, "ahead": device.tickets.ahead}
    if not bench.is_dry:
        report.facts["cycles_per_second"] = device.cycles_per_second
    report.line = f"{report.facts['device']}, torch {torch.__version__}, triton {triton.__version__}, gates: {gates}"
    if device.tickets.ahead == 1:
        report.line += ", one at a time: a closed gate holds up other streams"


def _device(bench: Bench) -> dict[str, Any]:
    properties = bench.device.platform.cuda.get_device_properties(bench.device.torch_device)
    return {
        "device": properties.name,
        "memory_bytes": properties.total_memory,
        "multiprocessors": properties.multi_processor_count,
        "capability": f"{properties.major}.{properties.minor}",
        "cuda": torch.version.cuda,
        "cores": os.cpu_count(),
    }


def _is_at_least(version: str, least: tuple[int, int]) -> bool:
    """Of versions such as 2.11.0+cu130."""
    major, minor = version.split("+")[0].split(".")[:2]
    return (int(major), int(minor)) >= least
