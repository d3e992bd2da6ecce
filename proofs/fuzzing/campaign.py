"""A campaign: shard after shard of random runs of one discipline; the first violation of each key is told at once, then shrunk."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import count
from multiprocessing import get_context
from typing import NamedTuple

from settled.model.disciplines import Discipline
from settled.model.properties import Contract
from settled.proofs.fuzzing.corpus import Entry
from settled.proofs.fuzzing.coverage import Coverage, Feature
from settled.proofs.fuzzing.generating import RUNS_A_SHARD, ShardJob, Tried, tries
from settled.proofs.fuzzing.running import run_case
from settled.proofs.fuzzing.shrinking import Shrinker
from settled.proofs.processes import begin_worker
from settled.proofs.watching import Found, Key
from settled.reference.decisions import DRAIN
from settled.reference.decoder import Case, ConfigSpace, with_decisions


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a campaign does: it ends after `runs` runs or `seconds` seconds (None: no end), in `jobs` processes.

    What is found in how many runs depends on the seed alone, not on the processes. `known` keys are found already.
    """

    discipline: Discipline
    contract: Contract
    seed: int = 0
    runs: int | None = None
    seconds: float | None = None
    jobs: int = 1
    known: frozenset[Key] = frozenset()


@dataclass(slots=True)
class Progress:
    """What a campaign has done so far. `operations_to_first`: up to the end of the run with the first violation."""

    runs: int = 0
    operations: int = 0
    events: int = 0
    undecided: int = 0
    operations_to_first: int | None = None
    entries: dict[Key, Entry] = field(default_factory=dict)
    coverage: Counter[Feature] = field(default_factory=Counter)


class Told(NamedTuple):
    """A finding. `is_shrunk`: nothing smaller will follow."""

    entry: Entry
    is_shrunk: bool


class Batch(NamedTuple):
    """What came of some runs, in order."""

    runs: int
    operations: int
    events: int
    undecided: int
    found: tuple[tuple[Found, Tried, int], ...]  # ... and the operations up to the end of that run
    coverage: Counter[Feature]


class Campaign:
    """`tell` gets every finding at once, and again when it has been shrunk; `tick` is called after every batch of runs."""

    def __init__(self, plan: Plan, tell: Callable[[Told], None], tick: Callable[[Progress], None]) -> None:
        self.plan, self.tell, self.tick = plan, tell, tick
        self.space = ConfigSpace(discipline=plan.discipline)
        self.progress = Progress()
        self._ends = None if plan.seconds is None else time.monotonic() + plan.seconds
        self._with_workers: deque[Future[Batch]] = deque()

    def run(self) -> Progress:
        """Runs until it is over. An interrupt passes through once all that was found has been told."""
        try:
            for batch in self._batches_here() if self.plan.jobs == 1 else self._batches_of_workers():
                self._take(batch, shrink=True)
                self.tick(self.progress)
                if self._ends is not None and time.monotonic() >= self._ends:
                    break
        except KeyboardInterrupt:
            for future in self._with_workers:
                if not future.cancel():
                    self._take(future.result(), shrink=False)
            raise
        return self.progress

    # ---- runs --------------------------------------------------------------------------------------------------------

    def _shards(self) -> Iterator[ShardJob]:
        for shard in count():
            runs = RUNS_A_SHARD if self.plan.runs is None else min(RUNS_A_SHARD, self.plan.runs - shard * RUNS_A_SHARD)
            if runs <= 0:
                return
            yield ShardJob(self.plan.seed, shard, runs, self.space, self.plan.contract)

    def _batches_here(self) -> Iterator[Batch]:
        """One run a batch."""
        for job in self._shards():
            coverage = Coverage()
            try:
                for tried in tries(job, coverage):
                    yield batch_of([tried], Counter())
            finally:
                self.progress.coverage += coverage.counts

    def _batches_of_workers(self) -> Iterator[Batch]:
        """One shard a batch, in the order of the shards."""
        shards = self._shards()
        with ProcessPoolExecutor(self.plan.jobs, get_context("spawn"), initializer=begin_worker) as pool:
            try:
                for job in shards:
                    self._with_workers.append(pool.submit(run_shard, job))
                    if len(self._with_workers) > 2 * self.plan.jobs:
                        yield self._oldest()
                while self._with_workers:
                    yield self._oldest()
            finally:
                pool.shutdown(wait=False, cancel_futures=True)

    def _oldest(self) -> Batch:
        batch = self._with_workers[0].result()
        self._with_workers.popleft()
        return batch

    # ---- findings ----------------------------------------------------------------------------------------------------

    def _take(self, batch: Batch, *, shrink: bool) -> None:
        """Shrinking takes long; where it is interrupted, what else the batch has found is told as it is."""
        progress = self.progress
        new = []
        for found, tried, operations in batch.found:
            if progress.operations_to_first is None:
                progress.operations_to_first = progress.operations + operations
            if found.key not in progress.entries and found.key not in self.plan.known:
                new.append(self._entry(found, tried))
        progress.runs += batch.runs
        progress.operations += batch.operations
        progress.events += batch.events
        progress.undecided += batch.undecided
        progress.coverage += batch.coverage
        untold = deque(new)
        try:
            while untold:
                entry = untold.popleft()
                self._tell(entry, is_shrunk=False)
                if shrink:
                    self._shrink(entry)
        except KeyboardInterrupt:
            for entry in untold:
                self._tell(entry, is_shrunk=False)
            raise

    def _entry(self, found: Found, tried: Tried) -> Entry:
        decisions = (*tried.case.decisions, DRAIN)[: found.place + 1]
        return Entry(
            discipline=self.plan.discipline,
            contract=self.plan.contract,
            key=found.key,
            case=with_decisions(tried.case, decisions),
            sentence=found.sentence,
            seed=self.plan.seed,
            run=tried.run,
        )

    def _shrink(self, entry: Entry) -> None:
        """Tells the smallest case, also after an interrupt."""
        shrinker = Shrinker(entry.case, self.space, lambda case: self._shown_by(case, entry.key) is not None)
        try:
            shrinker.run()
        finally:
            shown = self._shown_by(shrinker.best, entry.key)
            self._tell(replace(entry, case=shrinker.best, sentence=shown.sentence if shown else entry.sentence), is_shrunk=True)

    def _shown_by(self, case: Case, key: Key) -> Found | None:
        return run_case(case, contract=self.plan.contract, until=key).found.get(key)

    def _tell(self, entry: Entry, *, is_shrunk: bool) -> None:
        self.progress.entries[entry.key] = entry
        self.tell(Told(entry, is_shrunk))


def run_shard(job: ShardJob) -> Batch:
    """All runs of a shard."""
    coverage = Coverage()
    return batch_of(list(tries(job, coverage)), coverage.counts)


def batch_of(tried: list[Tried], coverage: Counter[Feature]) -> Batch:
    """Sums up runs; of each key only the first finding."""
    seen: set[Key] = set()
    found = []
    operations = 0
    for each in tried:
        operations += each.result.operations
        for key, first in each.result.found.items():
            if key not in seen:
                seen.add(key)
                found.append((first, each, operations))
    results = [each.result for each in tried]
    return Batch(
        runs=len(tried),
        operations=operations,
        events=sum(result.num_events for result in results),
        undecided=sum(result.is_undecided for result in results),
        found=tuple(found),
        coverage=coverage,
    )
