"""A mask from a user's file, run: the reference serves it, the monitor judges by it, and a broken basis is found."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from settled.model.disciplines import OPTIMISTIC, RIGHT, Discipline
from settled.model.events import Config, Event, Release
from settled.model.monitor import Monitor, default_contract
from settled.model.properties import Contract
from settled.proofs.user_masks import UserMask, compiled_reads, load_mask, served
from settled.reference.masks import register_mask, unregister_mask
from settled.reference.workload import random_workload, run_workload

FILE = Path(__file__).parents[2] / "docs" / "masks" / "strided_sink.py"


@pytest.fixture(params=["with its rule", "without"])
def mask(request: pytest.FixtureRequest) -> Iterator[UserMask]:
    loaded = load_mask(str(FILE))
    register_mask(loaded.name, compiled_reads(loaded))
    yield loaded if request.param == "with its rule" else replace(loaded, defines_frees=None)
    unregister_mask(loaded.name)


def run(mask: UserMask, discipline: Discipline, seeds: range) -> Counter[str]:
    """Findings by property over random runs of one block size, judged by the mask; and how many blocks were pruned.

    No prefix cache: of a hit the reference takes every block of a custom kind, and prunes it a step later than `held_bounded` asks.
    """
    found: Counter[str] = Counter()
    for seed in seeds:
        workload = random_workload(seed, kinds=(f"custom:{mask.name}",))
        groups = workload.config.groups[:1]
        workload = replace(workload, config=replace(workload.config, groups=groups, enable_prefix_caching=False))
        events: list[Event] = []
        run_workload(workload, discipline=discipline, steps=60, sink=events.append)
        config = events[0]
        assert isinstance(config, Config)
        contract = Contract.SETTLED if config.kv_consumer else default_contract(config)
        monitor = Monitor(config, contract, custom={mask.name: served(mask, groups[0].block_size)})
        for line, event in enumerate(events, 1):
            monitor.feed(line, event)
            found["pruned"] += len(event.blocks) if isinstance(event, Release) and event.cause == "window" else 0
        found.update({str(result.property): result.count for result in monitor.finish().properties if result.count})
    return found


def test_the_right_discipline_keeps_what_the_mask_reads(mask: UserMask) -> None:
    found = run(mask, RIGHT, range(60))
    assert found.pop("pruned") > 100
    assert found == {}


def test_the_optimistic_basis_is_found(mask: UserMask) -> None:
    found = run(mask, OPTIMISTIC, range(60))
    assert found["rollback_resident"] + found["read_resident"] > 0
