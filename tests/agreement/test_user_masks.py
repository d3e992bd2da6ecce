"""A mask from a user's file, told to the model and to the reference: runs hold; told differently, the monitor notices."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from settled.model.events import Config, Event, Release
from settled.model.monitor import Monitor
from settled.model.properties import Contract, Property
from settled.proofs.user_masks import compiled_reads, load_mask
from settled.reference.masks import Reads, register_mask, unregister_mask
from settled.reference.workload import random_workload, run_workload

MASK = load_mask(str(Path(__file__).parents[2] / "docs" / "masks" / "strided_sink.py"))


@pytest.fixture
def registered() -> Iterator[dict[str, Reads]]:
    """What the reference is told, by name; forgotten afterwards."""
    reads = compiled_reads(MASK)
    told: dict[str, Reads] = {
        "test.right": reads,
        "test.less": lambda query, token: reads(query, token) and query - token != 1,  # forgets the key before
        "test.more": lambda query, token: reads(query, token) or query - token < 40,  # keeps what is not read
    }
    for name, function in told.items():
        register_mask(name, function)
    yield told
    for name in told:
        unregister_mask(name)


def found(name: str, contract: Contract) -> tuple[set[Property], int]:
    """What the monitor, told the mask itself, finds in runs of an engine that was told `name`; and how many blocks were pruned."""
    broken: set[Property] = set()
    pruned = 0
    for seed in range(8):
        events: list[Event] = []
        workload = random_workload(seed, kinds=(f"custom:{name}",))
        run_workload(workload, fence=contract is Contract.SETTLED, steps=80, sink=events.append)
        config = events[0]
        assert isinstance(config, Config)
        monitor = Monitor(config, contract, custom={name: MASK})
        for line, event in enumerate(events, start=1):
            monitor.feed(line, event)
        report = monitor.finish()
        assert report.unknown == ()
        broken |= {result.property for result in report.properties if result.count}
        pruned += sum(len(event.blocks) for event in events if isinstance(event, Release) and event.cause == "window")
    return broken, pruned


@pytest.mark.parametrize("contract", [Contract.SETTLED, Contract.STREAM_ORDER], ids=lambda contract: contract.value)
def test_a_users_mask_runs(registered: dict[str, Reads], contract: Contract) -> None:
    broken, pruned = found("test.right", contract)
    assert broken == set()
    assert pruned > 100


def test_an_engine_that_was_told_another_mask_is_noticed(registered: dict[str, Reads]) -> None:
    assert Property.READ_RESIDENT in found("test.less", Contract.SETTLED)[0]
    assert found("test.more", Contract.SETTLED)[0] == {Property.HELD_BOUNDED}
