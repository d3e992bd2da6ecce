"""The race detector against brute force on random logs, rule by rule, and with planted faults in a log that is clean."""

from __future__ import annotations

import pytest
from random_logs import before, random_log

from settled.reference.device.detector import CONTRACTS, races
from settled.reference.device.ops import HOST, Free, Launch, Op, OpLog
from settled.reference.device.race import Race

Pair = tuple[int, int, int]  # resource, first, second


def touched(op: Op) -> tuple[set[int], set[int]]:
    if isinstance(op, Free):
        return set(), set(op.blocks)
    assert isinstance(op, Launch)
    return set(op.reads), set(op.writes)


def by_brute_force(log: OpLog, contract: str) -> set[Pair]:
    """Every two accesses that conflict and are not ordered; of those with one second access, the latest of each stream."""
    earlier = before(log, frees=contract == "settled")
    latest: dict[tuple[int, int, int], int] = {}
    for second in earlier:
        for first in earlier:
            if first >= second or first in earlier[second]:
                continue
            (reads, writes), (more_reads, more_writes) = touched(log.ops[first]), touched(log.ops[second])
            stream = getattr(log.ops[first], "stream", HOST)
            for resource in (writes & (more_reads | more_writes)) | (reads & more_writes):
                latest[resource, stream, second] = max(first, latest.get((resource, stream, second), -1))
    return {(resource, first, second) for (resource, _, second), first in latest.items()}


def pairs(found: list[Race]) -> set[Pair]:
    return {(race.resource, race.first.at, race.second.at) for race in found}


@pytest.mark.parametrize("contract", CONTRACTS)
@pytest.mark.parametrize("orderly", [0.2, 0.45, 0.7])
def test_exactly_the_races_that_brute_force_finds(contract: str, orderly: float) -> None:
    racy = clean = 0
    for seed in range(1000):
        log = random_log(seed, num_ops=8 + seed % 25, num_streams=3 + seed % 4, num_blocks=2 + seed % 5, orderly=orderly)
        found, expected = races(log, contract), by_brute_force(log, contract)
        assert len(found) == len(expected), seed
        assert pairs(found) == expected, seed
        assert [race.second.at for race in found] == sorted(race.second.at for race in found)
        racy, clean = racy + bool(found), clean + (not found)
    assert racy > 100
    assert clean > 5
