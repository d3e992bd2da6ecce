"""How fast the race detector is, and the walk through all orders of a small log: medians of processor time, one process, one core.

Run it as `python tests/bench/race_speed.py`. The logs are lowered from random runs of the reference: SEEDS runs of STEPS steps under the
right discipline, the same with frees on the scheduled count (`optimistic`), and with one staging buffer for all steps. Runs with few and
with many block reads a step are shown apart. A row gives ops (entries of the log) and accesses of resources a second, and the races
found. All logs of a row are judged ROUNDS times; running the reference and lowering are not in the time.

The last rows walk through linear extensions of made-up logs, at most MOST: all of them, and one of each class.
"""

from __future__ import annotations

import gc
import random
import time
from collections.abc import Callable
from statistics import mean, median

from settled.model.disciplines import OPTIMISTIC, RIGHT, Discipline
from settled.model.events import Event
from settled.model.specs import FullAttentionSpec
from settled.reference.device.detector import CONTRACTS, races
from settled.reference.device.foresight import LoweringError
from settled.reference.device.interleavings import Interleavings, Representatives
from settled.reference.device.lowering import lower
from settled.reference.device.ops import COMPUTE, FIRST_TRANSFER, Free, HostSync, Launch, LaunchKind, OpLog, Record, TransferWork, Wait
from settled.reference.device.orders import LaunchOrder
from settled.reference.device.worker import ONE_STAGING_BUFFER, RIGHT_WORKER, Worker
from settled.reference.workload import random_workload, run_workload

ROUNDS = 7
SEEDS, STEPS = 40, 300
MANY_READS = 15  # a step, on average
MOST = 200_000  # orders
WALKED, LAUNCHES = 5, 16


def lowered(seed: int, discipline: Discipline, worker: Worker) -> OpLog | None:
    """None for a run that has kinds without kernels."""
    events: list[Event] = []
    run_workload(random_workload(seed), steps=STEPS, discipline=discipline, sink=events.append)
    try:
        return lower(events, worker=worker)
    except LoweringError:
        return None


def reads_a_step(log: OpLog) -> float:
    return mean(len(op.reads) for op in log.ops if isinstance(op, Launch) and op.kind is LaunchKind.STEP)


def accesses(log: OpLog) -> int:
    """By launches, and by frees of each of their blocks."""
    return sum(
        len(op.reads) + len(op.writes) if isinstance(op, Launch) else len(op.blocks) if isinstance(op, Free) else 0 for op in log.ops
    )


def timed(work: Callable[[], object]) -> tuple[float, float]:
    """Seconds of processor time: the median, and the spread as a share of it."""
    seconds = []
    for _ in range(ROUNDS):
        gc.collect()
        began = time.process_time()
        work()
        seconds.append(time.process_time() - began)
    return median(seconds), (max(seconds) - min(seconds)) / median(seconds)


def judge(name: str, logs: list[OpLog], contract: str) -> None:
    typical, spread = timed(lambda: [races(log, contract) for log in logs])
    num_races = sum(len(races(log, contract)) for log in logs)
    num_ops, touched = sum(len(log.ops) for log in logs), sum(map(accesses, logs))
    print(
        f"{name:38s} {contract:12s} {num_ops / typical:10,.0f} ops/s {touched / typical:11,.0f} accesses/s"
        f" {mean(map(reads_a_step, logs)):5.1f} reads a step {num_races:6,d} races   spread {spread:4.0%}"
    )


def small_log(seed: int) -> OpLog:
    """LAUNCHES loads on four streams, a wait or a host sync for every third."""
    draw = random.Random(seed)
    log = OpLog((FullAttentionSpec(block_size=4),), 8, 0, FIRST_TRANSFER + 2)
    for number in range(LAUNCHES):
        stream = draw.randrange(COMPUTE, log.num_streams)
        log.ops.append(Launch(stream, LaunchKind.LOAD, (draw.randrange(8),), (draw.randrange(8),), TransferWork(number, ())))
        if number % 3 == 0:
            log.ops.append(Record(log.num_events, stream))
            log.ops.append(HostSync(log.num_events) if number % 2 else Wait(draw.randrange(COMPUTE, log.num_streams), log.num_events))
            log.num_events += 1
    return log


def walk(seed: int) -> None:
    order = LaunchOrder(small_log(seed))
    for name, kind in (("all orders", Interleavings), ("one of each class", Representatives)):
        every = kind(order, most=MOST)
        given = sum(1 for _ in every)
        typical, spread = timed(lambda every=every: sum(1 for _ in every))  # type: ignore[misc]
        print(f"{name:34s} {given:9,d}{'+' if every.was_cut else ' '} orders {given / typical:10,.0f} orders/s   spread {spread:4.0%}")


def main() -> None:
    for name, discipline, worker in (
        ("right", RIGHT, RIGHT_WORKER),
        ("optimistic", OPTIMISTIC, RIGHT_WORKER),
        ("one staging buffer", RIGHT, ONE_STAGING_BUFFER),
    ):
        logs = [log for seed in range(SEEDS) if (log := lowered(seed, discipline, worker)) is not None]
        for many in (False, True):
            some = [log for log in logs if (reads_a_step(log) >= MANY_READS) is many]
            for contract in CONTRACTS[:2]:
                judge(f"{name}, {'many' if many else 'few'} reads, {len(some)} logs", some, contract)
    for seed in range(WALKED):
        walk(seed)


if __name__ == "__main__":
    main()
