"""All rows over their workloads, in as many processes as there are cores; what each row came to, and whether that is what it must."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from settled.proofs.differential.one import POISONED, STEPS, Outcome, run
from settled.proofs.differential.rows import ROWS, Expected, Row
from settled.proofs.processes import in_order
from settled.reference.device.payload import Numbers
from settled.reference.device.trials import ENQUEUED

SHARD = 10  # workloads


class Shard(NamedTuple):
    """A piece of work, small enough to be sent to a process: ROWS[`row`], seeds from `first` on."""

    row: int
    first: int
    workloads: int
    with_numbers: bool
    steps: int


@dataclass(slots=True)
class Total:
    """Of a row. `garbled`: workloads by order; `first`: the first outcome with a race or something garbled."""

    row: Row
    workloads: int = 0
    steps: int = 0
    ops: int = 0
    rows: int = 0
    compared: int = 0
    freeing_early: int = 0  # workloads
    racing: int = 0  # workloads
    reading_null: int = 0  # workloads
    garbled: Counter[str] = field(default_factory=Counter)
    contradictions: list[str] = field(default_factory=list)
    first: Outcome | None = None

    def add(self, outcome: Outcome) -> None:
        self.workloads += 1
        self.steps += outcome.steps
        self.ops += outcome.ops
        self.rows += outcome.rows
        self.compared += outcome.compared
        self.freeing_early += outcome.early_frees > 0
        self.racing += outcome.races > 0
        self.reading_null += outcome.null_rows > 0
        self.garbled.update(outcome.garbled)
        self.contradictions += [f"seed {outcome.seed}: {each}" for each in outcome.contradictions]
        if self.first is None and (outcome.garbled or outcome.races or outcome.early_frees):
            self.first = outcome

    @property
    def is_as_expected(self) -> bool | None:
        """None: a broken row that did not show yet what it must; more workloads may."""
        if self.contradictions:
            return False
        reordered = any(times for order, times in self.garbled.items() if order not in (ENQUEUED, POISONED))
        match self.row.expected:
            case Expected.CLEAN:
                return False if self.freeing_early or self.racing or self.garbled.total() else self.rows > 0 or None
            case Expected.RACES:
                return False if self.garbled[ENQUEUED] else (self.racing > 0 and reordered) or None
            case Expected.FREES:
                return False if self.racing or self.garbled[ENQUEUED] or reordered else self.freeing_early > 0 or None
            case Expected.ALWAYS:
                return self.garbled[ENQUEUED] > 0 or None


class WorkloadError(RuntimeError):
    """A workload could not be judged, which is a fault of ours; the message names it."""


def run_shard(shard: Shard) -> list[Outcome]:
    """Raises WorkloadError."""
    import torch

    torch.set_num_threads(1)
    numbers = Numbers() if shard.with_numbers else None
    seeds = range(shard.first, shard.first + shard.workloads)
    return [_run(ROWS[shard.row], seed, numbers, shard.steps) for seed in seeds]


def _run(row: Row, seed: int, numbers: Numbers | None, steps: int) -> Outcome:
    try:
        return run(row, seed, numbers=numbers, steps=steps)
    except Exception as error:
        raise WorkloadError(f"{row.name}, seed {seed}: {type(error).__name__}: {error}") from error


def compare(
    rows: Sequence[Row], *, workloads: int, seed: int = 0, numbers: bool = True, steps: int = STEPS, tell: Callable[[Total], None]
) -> Iterator[Total]:
    """`workloads` of each row from `seed` on; each row when it is through. `tell` is called after every few workloads."""
    shards = [
        Shard(ROWS.index(row), first, min(SHARD, seed + workloads - first), numbers, steps)
        for row in rows
        for first in range(seed, seed + workloads, SHARD)
    ]
    with in_order(run_shard, shards) as results:
        total: Total | None = None
        for shard, outcomes in zip(shards, results, strict=True):
            if total is None:
                total = Total(ROWS[shard.row])
            for outcome in outcomes:
                total.add(outcome)
            tell(total)
            if total.workloads == workloads:
                yield total
                total = None
