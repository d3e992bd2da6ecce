"""What a discipline costs: the same random workloads run under each, metered by the events that the reference emits.

Only sliding windows and full attention, since it is windows for which the alternatives were weighed. The pools are small and crowded and
the runs go to the boundaries: the numbers compare disciplines, and say nothing of a real load.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields

from settled.model import counters as count
from settled.model import events as ev
from settled.model.algebra import int_variable
from settled.model.counters import Counters
from settled.model.disciplines import (
    CALLBACK,
    CAP_WITHOUT_IN_FLIGHT,
    NO_FENCE,
    OPTIMISTIC,
    POOL_FENCE,
    PREEMPT_FENCED,
    RIGHT,
    VLLM,
    Discipline,
)
from settled.model.interpret import compile_terms
from settled.model.monitor.groups import mask_of
from settled.model.monitor.masks import Mask
from settled.reference.pool import PRUNE_FENCE
from settled.reference.workload import random_workload, run_workload, without_transfers

COMPARED = (RIGHT, VLLM, OPTIMISTIC, POOL_FENCE, CALLBACK, NO_FENCE, PREEMPT_FENCED, CAP_WITHOUT_IN_FLIGHT)
KINDS = ("sliding_window", "full")
SEEDS = tuple(range(24))
STEPS = 150

_PRUNES = ("window", "connector_finish")
_settled = compile_terms([count.settled(Counters(*map(int_variable, "cfs")))], "cfs")
_Entry = tuple[str, int, int, int]  # request, group, table index, block


@dataclass
class Cost:
    """Sums over runs. `held` counts blocks out of the pool; the waits are in steps scheduled.

    A pruned block waits from the moment at which the settled count lets it go until it is back in the pool (`early`: it is back before
    that moment); one of a whole table from the end of its generation, if it was needed until then.
    """

    steps: int = 0
    held_sum: int = 0
    held_peak: int = 0  # of any run
    pruned: int = 0
    early: int = 0
    pruned_wait: int = 0
    given_up: int = 0  # blocks of whole tables
    given_up_wait: int = 0
    preemptions: int = 0
    stuck: int = 0  # requests aborted because nothing moved
    sampled: int = 0  # tokens
    finished: int = 0  # requests

    def add(self, other: Cost) -> None:
        for name in (known.name for known in fields(self) if known.name != "held_peak"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.held_peak = max(self.held_peak, other.held_peak)

    @property
    def held_mean(self) -> float:
        return self.held_sum / max(1, self.steps)

    @property
    def pruned_wait_mean(self) -> float:
        return self.pruned_wait / max(1, self.pruned)

    @property
    def given_up_wait_mean(self) -> float:
        return self.given_up_wait / max(1, self.given_up)

    @property
    def sampled_per_step(self) -> float:
        return self.sampled / max(1, self.steps)


@dataclass
class Meter:
    """A sink for the events of one run."""

    cost: Cost = field(default_factory=Cost)
    _masks: list[Mask | None] = field(default_factory=list)
    _tables: dict[str, set[_Entry]] = field(default_factory=dict)
    _out: set[int] = field(default_factory=set)  # blocks out of the pool
    _since: dict[_Entry, int] = field(default_factory=dict)  # entry → the step since which nothing needs it
    _ended: dict[_Entry, deque[int]] = field(default_factory=dict)  # the same for tables that were given up, oldest first
    _pinned: Counter[int] = field(default_factory=Counter)  # blocks that a prune fence has taken, before their release is told
    _aside: dict[int, list[_Entry]] = field(default_factory=dict)  # block → the entries for whose prunes the fence keeps it

    def __call__(self, event: ev.Event) -> None:
        match event:
            case ev.Config():
                self._masks = [mask_of(spec) for spec in event.groups]
            case ev.Allocate() | ev.Touch():
                entries = ((event.request, event.group, index, block) for index, block in enumerate(event.blocks, start=event.first_index))
                self._tables.setdefault(event.request, set()).update(entries)
                self._out.update(event.blocks)
            case ev.Hold() if event.holder == PRUNE_FENCE:
                self._pinned.update(event.blocks)
            case ev.Drop() if event.holder == PRUNE_FENCE:
                for block in event.blocks:
                    self._back(self._aside[block].pop(0), is_free=block in event.freed)
                self._out.difference_update(event.freed)
            case ev.Release():
                self._release(event)
            case ev.Schedule():
                self.cost.steps += 1
                self.cost.held_sum += len(self._out)
                self.cost.held_peak = max(self.cost.held_peak, len(self._out))
                self._settle(event.requests)
            case ev.Process():
                self.cost.sampled += sum(output.sampled for output in event.requests)
                self._settle(event.requests)
            case ev.Preempt() | ev.Finish():
                for entry in self._tables.pop(event.request, ()):
                    self._ended.setdefault(entry, deque()).append(self._since.pop(entry, self.cost.steps))
                self.cost.finished += isinstance(event, ev.Finish) and event.reason != "abort"

    def _settle(self, requests: Iterable[ev.ScheduledRequest | ev.ProcessedRequest]) -> None:
        """Notes what the settled counts of these requests have passed."""
        for told in requests:
            if told.counters is None:
                continue
            (settled,) = _settled(*told.counters)
            for entry in self._tables.get(told.request, ()):
                mask = self._masks[entry[1]]
                if entry not in self._since and mask is not None and mask.is_skipped(entry[2], settled):
                    self._since[entry] = self.cost.steps

    def _release(self, event: ev.Release) -> None:
        for index, block in zip(event.indices, event.blocks, strict=True):
            entry = (event.request, event.group, index, block)
            is_free, is_prune = block in event.freed, event.cause in _PRUNES
            if is_prune and self._pinned[block]:
                self._pinned[block] -= 1
                self._aside.setdefault(block, []).append(entry)  # followed on, as if it stood in the table
            elif is_prune:
                self._back(entry, is_free=is_free)
            elif entry in self._ended and is_free:
                self.cost.given_up += 1
                self.cost.given_up_wait += self.cost.steps - self._ended_since(entry)
            elif entry in self._ended:
                self._ended_since(entry)
        self._out.difference_update(event.freed)

    def _ended_since(self, entry: _Entry) -> int:
        """Takes note that one of the entries of that place in ended tables is gone; since when nothing needed it."""
        times = self._ended[entry]
        since = times.popleft()
        if not times:
            del self._ended[entry]
        return since

    def _back(self, entry: _Entry, *, is_free: bool) -> None:
        """A pruned block is back in the pool, unless somebody else holds it too."""
        table = self._tables.get(entry[0], set())
        if entry in table or entry not in self._ended:
            table.discard(entry)
            since = self._since.pop(entry, None)
        else:
            since = self._ended_since(entry)
        if is_free:
            self.cost.pruned += 1
            self.cost.early += since is None
            self.cost.pruned_wait += 0 if since is None else self.cost.steps - since


def cost_of(discipline: Discipline, seeds: Sequence[int] = SEEDS, *, steps: int = STEPS) -> Cost:
    """The sums over one run a seed, of so many steps each."""
    total = Cost()
    for seed in seeds:
        meter = Meter()
        workload = without_transfers(random_workload(seed, kinds=KINDS))
        summary = run_workload(workload, discipline=discipline, steps=steps, sink=meter)
        meter.cost.preemptions, meter.cost.stuck = summary.preempted, summary.given_up
        total.add(meter.cost)
    return total
