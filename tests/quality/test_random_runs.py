"""Random runs of the reference under the monitor: nothing is violated under a right discipline, every broken one is caught."""

from __future__ import annotations

from collections import Counter

import pytest

from settled.model.disciplines import (
    CALLBACK,
    CAP_WITHOUT_IN_FLIGHT,
    CEIL,
    DISCARD_FLAG,
    DRAFTS_UNPRUNED,
    KEEPS_ONE,
    LOCAL_SUBTRACTION,
    MAMBA_LOCAL,
    NO_FENCE,
    NULL_AT_ALLOCATION,
    OPTIMISTIC,
    POOL_FENCE,
    RAW_FINISH,
    RIGHT,
    STALE_APPLIED,
    STALE_UNMARKED,
    UNDRAINED,
    VLLM,
    Discipline,
)
from settled.model.events import Config, Event
from settled.model.monitor import Monitor
from settled.model.properties import Contract, Property
from settled.reference.workload import random_workload, run_workload

STEPS_A_RUN = 200
P = Property


def violations(seed: int, discipline: Discipline, contract: Contract, *, fence: bool | None = None, steps: int = STEPS_A_RUN) -> Counter[P]:
    """What the monitor finds in the run of a seed, by property; events go to it as they happen."""
    watched: list[Monitor] = []
    lines = 0

    def sink(event: Event) -> None:
        nonlocal lines
        lines += 1
        if isinstance(event, Config):
            watched.append(Monitor(event, contract))
        watched[-1].feed(lines, event)

    run_workload(random_workload(seed), discipline=discipline, fence=fence, steps=steps, sink=sink)
    return Counter({result.property: result.count for result in watched[-1].finish().properties if result.count})


@pytest.mark.parametrize(
    ("contract", "fence"),
    [(Contract.SETTLED, True), (Contract.STREAM_ORDER, False), (Contract.EVENT, False)],
    ids=["settled, fence", "stream_order, no fence", "event, no fence"],
)
@pytest.mark.parametrize("discipline", [RIGHT, VLLM], ids=lambda discipline: discipline.name)
def test_a_right_discipline_violates_nothing(discipline: Discipline, contract: Contract, fence: bool) -> None:
    """Every kind, hybrids, cache, connector; 4,000 steps each. CI runs more, with `tests/bench/random_steps.py`."""
    found = {seed: bad for seed in range(20) if (bad := violations(seed, discipline, contract, fence=fence))}
    assert not found, f"reproduce with violations({next(iter(found))}, {discipline.name}, {contract}, fence={fence})"


@pytest.mark.parametrize(
    ("discipline", "contract", "expected"),
    [
        (OPTIMISTIC, Contract.SETTLED, {P.READ_RESIDENT, P.ROLLBACK_RESIDENT, P.WRITE_OWNED}),
        (OPTIMISTIC, Contract.STREAM_ORDER, {P.ROLLBACK_RESIDENT}),
        (CEIL, Contract.SETTLED, {P.READ_RESIDENT}),
        (STALE_APPLIED, Contract.SETTLED, {P.COUNTERS_SYMMETRIC}),
        (UNDRAINED, Contract.SETTLED, {P.COUNTERS_SYMMETRIC}),
        (STALE_UNMARKED, Contract.SETTLED, {P.COUNTERS_SYMMETRIC}),
        (NO_FENCE, Contract.SETTLED, {P.READ_RESIDENT, P.WRITE_OWNED}),
        (RAW_FINISH, Contract.SETTLED, {P.READ_RESIDENT}),
        (POOL_FENCE, Contract.SETTLED, {P.ROLLBACK_RESIDENT}),
        (CALLBACK, Contract.SETTLED, {P.ROLLBACK_RESIDENT}),
        (MAMBA_LOCAL, Contract.SETTLED, {P.READ_RESIDENT}),
        (LOCAL_SUBTRACTION, Contract.SETTLED, {P.READ_RESIDENT, P.ROLLBACK_RESIDENT, P.WRITE_OWNED}),
        (CAP_WITHOUT_IN_FLIGHT, Contract.SETTLED, {P.HELD_BOUNDED}),
        (KEEPS_ONE, Contract.SETTLED, {P.HELD_BOUNDED}),
        (DRAFTS_UNPRUNED, Contract.SETTLED, {P.HELD_BOUNDED}),
        (DISCARD_FLAG, Contract.SETTLED, {P.COUNTERS_SYMMETRIC}),
        (NULL_AT_ALLOCATION, Contract.STREAM_ORDER, {P.READ_RESIDENT, P.WRITE_OWNED}),
    ],
    ids=lambda value: getattr(value, "name", None),
)
def test_a_broken_discipline_is_caught(discipline: Discipline, contract: Contract, expected: set[Property]) -> None:
    found: Counter[Property] = Counter()
    for seed in range(300):
        found += violations(seed, discipline, contract, steps=40)
        if expected <= set(found):
            return
    pytest.fail(f"{discipline.name} under {contract}: expected {expected}, found {dict(found)}")


@pytest.mark.parametrize("discipline", [POOL_FENCE, CALLBACK], ids=lambda discipline: discipline.name)
def test_a_fence_behind_the_prune_repairs_what_steps_in_flight_read_and_nothing_else(discipline: Discipline) -> None:
    found: Counter[P] = Counter()
    for seed in range(60):
        found += violations(seed, discipline, Contract.SETTLED, steps=120)
    assert found[P.READ_RESIDENT] == 0
    assert found[P.ROLLBACK_RESIDENT] > 0


def test_without_a_fence_the_settled_contract_is_broken() -> None:
    """What holds under stream_order does not under settled: the contract matters."""
    assert any(violations(seed, RIGHT, Contract.SETTLED, fence=False, steps=120)[P.READ_RESIDENT] for seed in range(20))
