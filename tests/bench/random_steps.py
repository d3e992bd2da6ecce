"""Random operations of the reference under the monitor: how many violate something, and how fast it goes.

Run it as `python tests/bench/random_steps.py --operations 500000`. Under each contract, the right discipline runs seeds 0, 1, 2, ...
until so many operations are done; every kind, hybrids, prefix cache, fence and connector come up. Prints a row for each contract and
exits with 1 if anything was violated. An operation is one request in one schedule or process event, or one control event of it: it is
added, preempted, finished (aborts included), a transfer of it starts, or a worker reports it. Releases, allocations and other events of
blocks are none. `monitor_speed.py` gives the speed on one core.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from statistics import median

from settled.model.disciplines import RIGHT
from settled.model.events import Config, Event
from settled.model.monitor import Monitor
from settled.model.properties import Contract
from settled.reference.workload import random_workload, run_workload

STEPS_A_RUN = 500
# Without a fence, loads wait on the device for the steps in flight (`after` edges), which is what the last two contracts ask for.
SETTINGS = ((Contract.SETTLED, True), (Contract.STREAM_ORDER, False), (Contract.EVENT, False))


@dataclass
class Total:
    """What the runs of one contract came to."""

    counts: Counter[str] = field(default_factory=Counter)
    kinds: Counter[str] = field(default_factory=Counter)  # operations of runs with such a group
    violations: int = 0
    first_bad_seed: int | None = None


def run(contract: Contract, *, fence: bool, operations: int) -> tuple[Total, list[float]]:
    """Runs seed after seed until `operations` operations are done."""
    total, rates, seed = Total(), [], 0
    while total.counts["operations"] < operations:
        monitors: list[Monitor] = []
        count = 0

        def sink(event: Event, monitors: list[Monitor] = monitors) -> None:
            nonlocal count
            count += 1
            if isinstance(event, Config):
                monitors.append(Monitor(event, contract))
            monitors[-1].feed(count, event)

        workload = random_workload(seed)
        began = time.perf_counter()
        summary = run_workload(workload, discipline=RIGHT, fence=fence, steps=STEPS_A_RUN, sink=sink)
        found = sum(result.count for result in monitors[-1].finish().properties) + summary.given_up
        rates.append(summary.operations / (time.perf_counter() - began))
        for name in ("steps", "operations", "preempted", "aborted", "transfers", "failed_loads"):
            total.counts[name] += getattr(summary, name)
        total.counts["events"] += count
        total.kinds.update({spec.kind: summary.operations for spec in workload.config.groups})
        total.violations += found
        if found and total.first_bad_seed is None:
            total.first_bad_seed = seed
        seed += 1
    return total, rates


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--operations", type=int, default=100_000, help="operations under each contract")
    operations = parser.parse_args().operations
    bad = 0
    with ProcessPoolExecutor() as pool:
        running = [pool.submit(run, contract, fence=fence, operations=operations) for contract, fence in SETTINGS]
    for (contract, fence), (total, rates) in zip(SETTINGS, (done.result() for done in running), strict=True):
        bad += total.violations
        counts = ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in total.counts.items())
        print(f"{contract}, fence {'on' if fence else 'off'}: {total.violations} violations; {counts}")
        print(f"  median {median(rates):.0f} operations/s, reference and monitor; operations by kind: {dict(sorted(total.kinds.items()))}")
        if total.first_bad_seed is not None:
            print(f"  first at seed {total.first_bad_seed}: run_workload(random_workload({total.first_bad_seed}), fence={fence})")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
