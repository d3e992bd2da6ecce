"""The shrinker: what it returns still holds, is small, is the same every time, and an interrupt leaves the best so far."""

from __future__ import annotations

from random import Random

import pytest

from settled.model.disciplines import OPTIMISTIC
from settled.proofs.fuzzing.running import run_case
from settled.proofs.fuzzing.shrinking import Shrinker, size_of
from settled.proofs.watching import Key
from settled.reference.decisions import Decision
from settled.reference.decoder import EVERYTHING, Case, ConfigSpace, decode

SPACE = ConfigSpace(discipline=OPTIMISTIC, kinds=("sliding_window", "full"))
KEY = Key("read_resident", "freed[window]", "sliding_window")


def shows(case: Case) -> bool:
    return KEY in run_case(case, until=KEY).found


@pytest.fixture(scope="module")
def found() -> Case:
    rng = Random(0)
    return next(case for _ in range(500) if shows(case := decode(rng.randbytes(250), SPACE)))


def test_a_violation_becomes_three_decisions(found: Case) -> None:
    shrinker = Shrinker(found, SPACE, shows)
    small = shrinker.run()
    assert shows(small)
    assert [decision.name for decision in small.decisions] == ["add", "schedule", "schedule"]
    assert decode(small.numbers, SPACE) == small
    assert [(spec.block_size, spec.kind) for spec in small.config.groups] == [(1, "sliding_window")]


def test_the_same_case_becomes_the_same_small_one(found: Case) -> None:
    assert Shrinker(found, SPACE, shows).run() == Shrinker(found, SPACE, shows).run()


def test_runs_are_bounded(found: Case) -> None:
    shrinker = Shrinker(found, SPACE, shows, runs_max=5)
    assert shows(shrinker.run())
    assert shrinker.runs == 5


def test_an_interrupt_leaves_the_best_so_far(found: Case) -> None:
    asked = 0

    def interrupted(case: Case) -> bool:
        nonlocal asked
        asked += 1
        if asked > 30:
            raise KeyboardInterrupt
        return shows(case)

    shrinker = Shrinker(found, SPACE, interrupted)
    with pytest.raises(KeyboardInterrupt):
        shrinker.run()
    assert size_of(shrinker.best) < size_of(found)
    assert shows(shrinker.best)


@pytest.mark.parametrize("count", [1, 3])
def test_a_property_of_the_decisions_alone_shrinks_to_its_least(count: int) -> None:
    rng = Random(count)

    def holds(case: Case) -> bool:
        return sum(decision.name == "preempt" for decision in case.decisions) >= count

    case = next(case for _ in range(100) if holds(case := decode(rng.randbytes(400))))
    small = Shrinker(case, EVERYTHING, holds).run()
    assert small.decisions == (Decision("preempt", (0, 0)),) * count
    assert [spec.block_size for spec in small.config.groups] == [1]
    assert (small.config.max_in_flight_steps, small.config.num_speculative_tokens, small.config.max_model_len) == (1, 0, 8)


def test_a_property_of_the_configuration_shrinks_to_its_least() -> None:
    rng = Random(9)

    def holds(case: Case) -> bool:
        return len(case.config.groups) >= 2 and case.config.max_in_flight_steps >= 2

    case = next(case for _ in range(100) if holds(case := decode(rng.randbytes(400))))
    small = Shrinker(case, EVERYTHING, holds).run()
    assert small.decisions == ()
    assert (len(small.config.groups), small.config.max_in_flight_steps, small.config.max_model_len) == (2, 2, 8)
