"""Rows of the table on a CUDA device beside the CPU: the same workloads on real streams, in natural timing and in directed orders.

What frees too early, and what poison shows, the CPU alone decides; the device is asked whether it reads what the CPU read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from settled.model.events import Event
from settled.proofs.differential.one import STEPS
from settled.proofs.differential.rows import Expected, Row
from settled.reference.device.cuda.against_cpu import AgainstCpu, Queued, Run, by_itself
from settled.reference.device.cuda.runtime import CudaDevice
from settled.reference.device.lowering import lower
from settled.reference.device.ops import OpLog
from settled.reference.device.trials import ENQUEUED, trials
from settled.reference.workload import run_workload

STEP_SECONDS = (0.0, 1e-3)
"""Of the natural runs: nothing before a step, and the compute stream kept busy as long as a forward pass may take."""


@dataclass(slots=True)
class DeviceTotal:
    """Of a row. `garbled`, `garbled_on_cpu`: workloads by order; `natural`: runs in natural timing of logs that race, `natural_garbled` of
    them; `first`: what the device first found garbled. `problems`: where the device is not as the CPU or contiguous memory says.
    """

    row: Row
    workloads: int = 0
    racing: int = 0  # workloads
    runs: int = 0
    compared: int = 0  # outputs, of keys and states, bit for bit with contiguous memory on the device
    natural: int = 0
    natural_garbled: int = 0
    garbled: Counter[str] = field(default_factory=Counter)
    garbled_on_cpu: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)
    first: str = ""

    def add(self, seed: int, is_racing: bool, natural: Sequence[Run], directed: Sequence[tuple[str, Run]]) -> None:
        """One workload's runs, the directed ones by the name of their order."""
        self.workloads += 1
        self.racing += is_racing
        for run in (*natural, *(run for _, run in directed)):
            self.runs += 1
            self.compared += run.compared
            self.problems += [f"seed {seed}: {problem}" for problem in run.problems]
            if run.is_garbled and not self.first:
                self.first = f"seed {seed}, {run.order}: {run.rows_garbled} rows, {run.stores_wrong} stores" + (
                    f"; {run.first}" if run.first else ""
                )
        if is_racing:
            self.natural += len(natural)
            self.natural_garbled += sum(run.is_garbled for run in natural)
        self.garbled.update({name for name, run in directed if run.is_garbled})
        self.garbled_on_cpu.update({name for name, run in directed if run.wanted_rows or run.wanted_stores})

    @property
    def is_as_expected(self) -> bool | None:
        """None: a broken row that did not show yet what it must; more workloads may."""
        reordered = any(times for order, times in self.garbled.items() if order != ENQUEUED)
        if self.problems:
            return False
        match self.row.expected:
            case Expected.CLEAN:
                return False if self.racing or self.garbled.total() else self.compared > 0 or None
            case Expected.FREES:
                return False if self.racing or self.garbled.total() else self.runs > 0 or None
            case Expected.RACES:
                return False if self.garbled[ENQUEUED] else (self.racing > 0 and reordered) or None
            case Expected.ALWAYS:
                return self.garbled[ENQUEUED] > 0 or None


def compare_on_device(
    rows: Sequence[Row],
    device: CudaDevice,
    *,
    workloads: int,
    seed: int = 0,
    steps: int = STEPS,
    queued: Queued = by_itself,
    tell: Callable[[DeviceTotal], None],
) -> Iterator[DeviceTotal]:
    """`workloads` of each row from `seed` on; each row when it is through. `tell`: called after every workload. Raises what CUDA raises."""
    for row in rows:
        total = DeviceTotal(row)
        for each in range(seed, seed + workloads):
            _add(total, row, each, _log(row, each, steps), device, queued)
            tell(total)
        yield total


def _log(row: Row, seed: int, steps: int) -> OpLog:
    events: list[Event] = []
    run_workload(row.family.draw(seed), discipline=row.discipline, fence=row.family.fence, steps=steps, sink=events.append)
    return lower(events, worker=row.worker)


def _add(total: DeviceTotal, row: Row, seed: int, log: OpLog, device: CudaDevice, queued: Queued) -> None:
    case = AgainstCpu(log, device, queued=queued)
    total.problems += [f"seed {seed}: {problem}" for run in case.first_runs for problem in run.problems]
    natural = [case.natural(step_seconds=seconds) for seconds in STEP_SECONDS]
    directed = [(trial.name, case.directed(trial)) for trial in trials(log, case.races, seed)]
    total.add(seed, bool(case.races), natural, directed)
