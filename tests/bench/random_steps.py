"""Random steps of the reference under the monitor: how many violate something, and how fast it goes.

Run it as `python tests/bench/random_steps.py --steps 100000`. For each right discipline with its contract it runs seeds 0, 1, 2, ...
until so many steps were scheduled, prints a row, and exits with 1 if anything was violated. An operation is one request in one
schedule or process event.
"""

from __future__ import annotations

import argparse
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from statistics import median

from settled.model.disciplines import RIGHT
from settled.model.events import Config, Event
from settled.model.monitor import Monitor
from settled.model.properties import Contract
from settled.reference.workload import random_workload, run_workload

STEPS_A_RUN = 500


@dataclass
class Total:
    """What the runs of one contract came to."""

    steps: int = 0
    operations: int = 0
    events: int = 0
    preempted: int = 0
    aborted: int = 0
    violations: int = 0
    first_bad_seed: int | None = None


def run(contract: Contract, *, fence: bool, steps: int) -> tuple[Total, list[float]]:
    """Runs seed after seed until `steps` steps are scheduled."""
    total, rates, seed = Total(), [], 0
    while total.steps < steps:
        monitors: list[Monitor] = []
        count = 0

        def sink(event: Event, monitors: list[Monitor] = monitors) -> None:
            nonlocal count
            count += 1
            if isinstance(event, Config):
                monitors.append(Monitor(event, contract))
            monitors[-1].feed(count, event)

        began = time.perf_counter()
        summary = run_workload(random_workload(seed), discipline=RIGHT, fence=fence, steps=min(STEPS_A_RUN, steps - total.steps), sink=sink)
        found = sum(result.count for result in monitors[-1].finish().properties)
        rates.append(summary.operations / (time.perf_counter() - began))
        total.steps += summary.steps
        total.operations += summary.operations
        total.events += count
        total.preempted += summary.preempted
        total.aborted += summary.aborted
        total.violations += found
        if found and total.first_bad_seed is None:
            total.first_bad_seed = seed
        seed += 1
    return total, rates


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=100_000, help="steps to schedule under each contract")
    steps = parser.parse_args().steps
    bad = 0
    settings = ((Contract.SETTLED, True), (Contract.STREAM_ORDER, False))
    with ProcessPoolExecutor(len(settings)) as pool:
        running = [pool.submit(run, contract, fence=fence, steps=steps) for contract, fence in settings]
    for (contract, fence), (total, rates) in zip(settings, (done.result() for done in running), strict=True):
        bad += total.violations
        print(
            f"{contract}, fence {'on' if fence else 'off'}: {total.steps} steps, {total.operations} operations, {total.events} events, "
            f"{total.preempted} preemptions, {total.aborted} aborts; {total.violations} violations; "
            f"median {median(rates):.0f} operations/s, reference and monitor"
        )
        if total.first_bad_seed is not None:
            print(f"  first at seed {total.first_bad_seed}: run_workload(random_workload({total.first_bad_seed}), fence={fence})")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
