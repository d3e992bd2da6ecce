"""How fast the race detector is: medians of processor time, one process, one core.

Run it as `python tests/bench/race_speed.py`. The logs are made up after what steps lower to: two steps in flight; each is a fill of a
staging buffer, its upload, the step with its block reads, records and the host's syncs; one step in FREE_EVERY gives blocks back, one in
TRANSFER_EVERY goes with a load. In clean logs loads wait for the steps before, in racy ones they do not. A row gives ops (entries of
the log) and accesses of resources a second, and the races found. Each log is judged ROUNDS times; making it is not in the time.
"""

from __future__ import annotations

import gc
import random
import time
from statistics import median

from settled.model.specs import FullAttentionSpec
from settled.reference.device.detector import CONTRACTS, races
from settled.reference.device.ops import (
    COMPUTE,
    FIRST_TRANSFER,
    HOST,
    FillWork,
    Free,
    HostSync,
    Launch,
    LaunchKind,
    OpLog,
    Record,
    StepWork,
    TransferWork,
    Wait,
)

ROUNDS = 7
STEPS, NUM_BLOCKS, NUM_STAGING, TRANSFER_STREAMS = 6000, 2048, 3, 4
READS = (2, 30, 60)
FREE_EVERY, TRANSFER_EVERY, FREED_AT_ONCE, LOADED_AT_ONCE = 2, 4, 2, 4


class SyntheticLog:
    """Steps of `reads` block reads each on average (half to three halves of it), one write in eight."""

    def __init__(self, reads: int, *, racy: bool = False, steps: int = STEPS) -> None:
        self._draw = random.Random(reads)
        self._racy = racy
        self._reads = reads
        self.log = OpLog((FullAttentionSpec(block_size=16),), NUM_BLOCKS, NUM_STAGING, FIRST_TRANSFER + TRANSFER_STREAMS)
        self._in_flight: list[int] = []  # the events of the steps
        self._transfers: list[tuple[int, int]] = []  # stream, event
        for number in range(steps):
            self._step(number)

    def _event(self, stream: int) -> int:
        self.log.ops.append(Record(self.log.num_events, stream))
        self.log.num_events += 1
        return self.log.num_events - 1

    def _step(self, number: int) -> None:
        log, ops = self.log, self.log.ops
        if len(self._in_flight) == 2:
            ops.append(HostSync(self._in_flight.pop(0)))
        if number % FREE_EVERY == 0:
            ops.append(Free(self._some(1, FREED_AT_ONCE), number))
        staging = number % NUM_STAGING
        if number % TRANSFER_EVERY == 0:
            self._transfer(number)
        ops.append(Launch(HOST, LaunchKind.FILL, (), (log.staging(staging),), FillWork(staging, ()), number))
        ops.append(Launch(COMPUTE, LaunchKind.UPLOAD, (log.staging(staging),), (log.table,), FillWork(staging, ()), number))
        self._event(COMPUTE)
        reads = self._some(max(1, self._reads // 2), self._reads * 3 // 2)
        ops.append(Launch(COMPUTE, LaunchKind.STEP, (log.table, *reads), reads[: 1 + len(reads) // 8], StepWork(number, ()), number))
        self._in_flight.append(self._event(COMPUTE))

    def _transfer(self, number: int) -> None:
        ops = self.log.ops
        if len(self._transfers) == TRANSFER_STREAMS:
            _, event = self._transfers.pop(0)
            ops.append(HostSync(event))
        stream = FIRST_TRANSFER + number // TRANSFER_EVERY % TRANSFER_STREAMS
        if self._in_flight and not self._racy:
            ops.append(Wait(stream, self._in_flight[-1]))
        ops.append(Launch(stream, LaunchKind.LOAD, (), self._some(1, LOADED_AT_ONCE), TransferWork(number, ()), number))
        event = self._event(stream)
        self._transfers.append((stream, event))
        ops.append(Wait(COMPUTE, event))

    def _some(self, least: int, most: int) -> tuple[int, ...]:
        """Distinct blocks: those of the freed and the loaded may still be in use, so that `settled` finds races, as it would."""
        return tuple(self._draw.sample(range(1, NUM_BLOCKS), self._draw.randint(least, most)))


def accesses(log: OpLog) -> int:
    """By launches and, each block once, by frees."""
    return sum(
        len(op.reads) + len(op.writes) if isinstance(op, Launch) else len(op.blocks) if isinstance(op, Free) else 0 for op in log.ops
    )


def measure(name: str, log: OpLog, contract: str) -> None:
    seconds, found = [], 0
    for _ in range(ROUNDS):
        gc.collect()
        began = time.process_time()
        found = len(races(log, contract))
        seconds.append(time.process_time() - began)
    typical = median(seconds)
    spread = (max(seconds) - min(seconds)) / typical
    print(
        f"{name:22s} {contract:12s} {len(log.ops) / typical:12,.0f} ops/s {accesses(log) / typical:12,.0f} accesses/s"
        f" {accesses(log) / len(log.ops):6.1f} accesses an op {found:7,d} races   spread {spread:4.0%}"
    )


def main() -> None:
    for reads in READS:
        for racy in (False, True):
            log = SyntheticLog(reads, racy=racy).log
            for contract in CONTRACTS[:2]:
                measure(f"{reads} reads, {'racy' if racy else 'clean'}", log, contract)


if __name__ == "__main__":
    main()
