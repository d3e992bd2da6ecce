"""How soon random runs find each broken discipline: operations until the monitor reports the property, under the contract named.

Run it as `python tests/bench/detection.py --ranges 9`. Each range starts at a seed of its own and goes on, run after run of 30 steps,
until the property is reported. Prints a row for each discipline and property with the median, and exits with 1 if a median is above
5,000 operations. What an operation is, `random_steps.py` says.

`preempt-fenced` breaks no property of a trace: it costs progress. It is found at a preemption by the scheduler that gives up no block,
which the right discipline never makes: `--right` checks that on runs of the right discipline instead.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from itertools import count
from statistics import median

from settled.model.disciplines import DISCIPLINES, RIGHT, Discipline
from settled.model.events import Add, Config, Event, Finish, Load, Loaded, Preempt, Process, Release, Schedule, Store, Stored
from settled.model.monitor import Monitor
from settled.model.properties import Contract, Property
from settled.reference.workload import Workload, random_workload, run_workload

STEPS_A_RUN = 30  # short: another configuration is worth more than more of the same
OPERATIONS_MAX = 30_000  # then it counts as not found
TARGET = 5_000
PROGRESS = "preemption that frees nothing"

ROWS: tuple[tuple[str, Property | str, Contract], ...] = (
    ("optimistic", Property.READ_RESIDENT, Contract.SETTLED),
    ("optimistic", Property.ROLLBACK_RESIDENT, Contract.SETTLED),
    ("optimistic", Property.ROLLBACK_RESIDENT, Contract.STREAM_ORDER),
    ("ceil", Property.READ_RESIDENT, Contract.SETTLED),
    ("ceil", Property.READ_RESIDENT, Contract.STREAM_ORDER),
    ("stale-applied", Property.COUNTERS_SYMMETRIC, Contract.SETTLED),
    ("undrained", Property.COUNTERS_SYMMETRIC, Contract.SETTLED),
    ("stale-unmarked", Property.COUNTERS_SYMMETRIC, Contract.SETTLED),
    ("no-fence", Property.READ_RESIDENT, Contract.SETTLED),
    ("no-fence", Property.WRITE_OWNED, Contract.SETTLED),
    ("raw-finish", Property.READ_RESIDENT, Contract.SETTLED),
    ("pool-fence", Property.ROLLBACK_RESIDENT, Contract.SETTLED),
    ("callback", Property.ROLLBACK_RESIDENT, Contract.SETTLED),
    ("mamba-local", Property.READ_RESIDENT, Contract.SETTLED),
    ("local-subtraction", Property.READ_RESIDENT, Contract.SETTLED),
    ("local-subtraction", Property.ROLLBACK_RESIDENT, Contract.SETTLED),
    ("preempt-fenced", PROGRESS, Contract.SETTLED),
    ("cap-without-in-flight", Property.HELD_BOUNDED, Contract.SETTLED),
    ("null-at-allocation", Property.READ_RESIDENT, Contract.STREAM_ORDER),
    ("null-at-allocation", Property.WRITE_OWNED, Contract.STREAM_ORDER),
    ("keeps-one", Property.HELD_BOUNDED, Contract.SETTLED),
    ("drafts-unpruned", Property.HELD_BOUNDED, Contract.SETTLED),
    ("discard-flag", Property.COUNTERS_SYMMETRIC, Contract.SETTLED),
)


class FoundError(Exception):
    """The property was reported."""


@dataclass
class Watch:
    """Counts operations and stops the run at the first report."""

    wanted: Property | str
    contract: Contract
    operations: int = 0
    lines: int = 0
    monitor: Monitor | None = None
    preempted: bool = False

    def feed(self, event: Event) -> None:
        self.lines += 1
        if isinstance(event, Schedule | Process):
            self.operations += len(event.requests)
        elif isinstance(event, Add | Preempt | Finish | Load | Loaded | Store | Stored):
            self.operations += 1
        if self.wanted == PROGRESS:
            if self.preempted and not (isinstance(event, Release) and event.cause == "preempt"):
                raise FoundError
            self.preempted = isinstance(event, Preempt)
            return
        if isinstance(event, Config):
            self.lines, self.monitor = 1, Monitor(event, self.contract)
        assert self.monitor is not None
        if any(violation.property == self.wanted for violation in self.monitor.feed(self.lines, event)):
            raise FoundError


def operations_until_found(discipline: Discipline, wanted: Property | str, contract: Contract, first_seed: int) -> int | None:
    """Operations of runs from `first_seed` on until the report; None if it does not come within OPERATIONS_MAX."""
    watch = Watch(wanted, contract)
    for workload in workloads(first_seed, wanted):
        try:
            run_workload(workload, discipline=discipline, steps=STEPS_A_RUN, sink=watch.feed)
        except FoundError:
            return watch.operations
        if watch.operations >= OPERATIONS_MAX:
            return None
    raise AssertionError("seeds never end")


def workloads(first_seed: int, wanted: Property | str) -> Iterator[Workload]:
    for seed in count(first_seed):
        workload = random_workload(seed)
        if wanted == PROGRESS:  # nothing but the scheduler preempts
            chances = replace(workload.connector_chances, fail=0.0, cancel=0.0)
            workload = replace(workload, chance_preempt=0.0, connector_chances=chances)
        yield workload


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranges", type=int, default=9, help="seed ranges a row")
    parser.add_argument("--right", action="store_true", help="the right discipline in place of each: nothing may be found")
    options = parser.parse_args()
    slow = 0
    with ProcessPoolExecutor() as pool:
        running = [
            [
                pool.submit(
                    operations_until_found, RIGHT if options.right else DISCIPLINES[name], wanted, contract, 1_000_000 * (1 + number)
                )
                for number in range(options.ranges)
            ]
            for name, wanted, contract in ROWS
        ]
        print(f"operations until the report, {options.ranges} seed ranges of runs of {STEPS_A_RUN} steps")
        print(f"{'discipline':<22} {'found by':<30} {'contract':<13} {'median':>7} {'fewest':>7} {'most':>7}")
        for (name, wanted, contract), results in zip(ROWS, running, strict=True):
            found = [result.result() for result in results]
            counts = sorted(OPERATIONS_MAX if result is None else result for result in found)
            slow += any(result is not None for result in found) if options.right else median(counts) > TARGET
            print(f"{name:<22} {wanted:<30} {contract:<13} {median(counts):>7.0f} {counts[0]:>7} {counts[-1]:>7}", flush=True)
    return 1 if slow else 0


if __name__ == "__main__":
    sys.exit(main())
