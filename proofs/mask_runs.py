"""A user's mask, run: the reference serves it in random runs, and the monitor judges every event by it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from settled.model.disciplines import RIGHT, Discipline
from settled.model.events import Config, Event, Release
from settled.model.monitor import Monitor
from settled.proofs.user_masks import UserMask, compiled_reads, served, smallest_growth
from settled.reference.masks import register_mask, unregister_mask
from settled.reference.workload import random_workload, run_workload

SEEDS = range(24)
STEPS = 60


@dataclass
class MaskRuns:
    """What runs came to: one request in one event is an operation; `found` counts violations by property."""

    operations: int = 0
    pruned_blocks: int = 0
    found: dict[str, int] = field(default_factory=dict)

    def sentence(self) -> str:
        """What happened, in a line."""
        said = ", ".join(f"{name} {count} times" for name, count in self.found.items())
        runs = f"run on the reference: {self.operations} operations, {self.pruned_blocks} blocks pruned"
        return f"{runs}, violated {said}" if said else f"{runs}, nothing violated"


def run_if_it_shrinks(mask: UserMask) -> MaskRuns | None:
    """Runs of a mask whose needed-sets shrink; None for another one, which no prune can serve."""
    return run_mask(mask) if smallest_growth(mask) is None else None


def run_mask(mask: UserMask, discipline: Discipline = RIGHT, seeds: Iterable[int] = SEEDS) -> MaskRuns:
    """Random runs of one group of this kind, each judged under the contract that its configuration asks for.

    No prefix cache: of a hit the reference takes every block of a custom kind, and prunes it a step later than `held_bounded` asks.
    """
    runs = MaskRuns()
    register_mask(mask.name, compiled_reads(mask))
    try:
        for seed in seeds:
            _run(mask, discipline, seed, runs)
    finally:
        unregister_mask(mask.name)
    return runs


def _run(mask: UserMask, discipline: Discipline, seed: int, runs: MaskRuns) -> None:
    workload = random_workload(seed, kinds=(f"custom:{mask.name}",))
    group = workload.config.groups[0]
    workload = replace(workload, config=replace(workload.config, groups=(group,), enable_prefix_caching=False))
    events: list[Event] = []
    runs.operations += run_workload(workload, discipline=discipline, steps=STEPS, sink=events.append).operations
    config = events[0]
    assert isinstance(config, Config)
    monitor = Monitor(config, custom={mask.name: served(mask, group.block_size)})
    for line, event in enumerate(events, start=1):
        monitor.feed(line, event)
        runs.pruned_blocks += len(event.blocks) if isinstance(event, Release) and event.cause == "window" else 0
    for result in monitor.finish().properties:
        if result.count:
            runs.found[result.property] = runs.found.get(result.property, 0) + result.count
