"""A log on the CPU, its kernels in Triton's interpreter: what a device would be told, without one. A few steps a second."""

from __future__ import annotations

from collections.abc import Iterable

from settled.reference.device.compiled import CompiledLog
from settled.reference.device.cuda.launches import Launches
from settled.reference.device.cuda.place import on_cpu
from settled.reference.device.numbered import NumberedLog
from settled.reference.device.outcome import Outcome


def interpreted_launches(compiled: CompiledLog, numbered: NumberedLog) -> Launches:
    """Raises BackEndError where triton was imported without its interpreter."""
    return Launches(compiled, numbered, on_cpu())


def replay_interpreted(launches: Launches, order: Iterable[int] | None = None) -> Outcome:
    """Runs all launches, indices of the log's ops (None: as they were enqueued), on memory as before the first."""
    launches.reset()
    for op in launches.log.launches() if order is None else order:
        launches.run(op)
    return launches.outcome()
