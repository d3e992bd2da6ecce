"""Every broken discipline is found by random runs within a stated number of operations, and made small to a stated length.

An operation is one request in one schedule, process or control event. The length counts decisions, the adding of requests included; what
the solver proved shortest (`settled refute`) does not count the add.
"""

from __future__ import annotations

from statistics import median
from typing import NamedTuple

import pytest

from settled.model.disciplines import DISCIPLINES, PREEMPT_FENCED, Discipline
from settled.model.properties import Contract
from settled.proofs.fuzzing.coverage import Coverage
from settled.proofs.fuzzing.generating import ShardJob, Tried, tries
from settled.proofs.fuzzing.running import run_case
from settled.proofs.fuzzing.shrinking import Shrinker
from settled.proofs.watching import Found
from settled.reference.decisions import DRAIN
from settled.reference.decoder import ConfigSpace, with_decisions

SEEDS = 3
OPERATIONS_MAX = 5_000  # median of the seeds


class Stated(NamedTuple):
    """`operations`: the median until the first violation; `decisions`: of the smallest case of the first violation."""

    operations: int
    decisions: int


STATED = {
    "optimistic": Stated(300, 3),
    "ceil": Stated(300, 5),
    "stale-applied": Stated(5_000, 7),
    "undrained": Stated(300, 4),
    "stale-unmarked": Stated(300, 4),
    "no-fence": Stated(300, 3),
    "raw-finish": Stated(600, 3),
    "pool-fence": Stated(1_500, 6),
    "callback": Stated(1_500, 6),
    "mamba-local": Stated(1_500, 4),
    "local-subtraction": Stated(300, 3),
    "cap-without-in-flight": Stated(300, 2),
    "null-at-allocation": Stated(300, 2),
    "keeps-one": Stated(300, 4),
    "drafts-unpruned": Stated(2_000, 4),
    "discard-flag": Stated(300, 5),
}


def first_violation(discipline: Discipline, seed: int) -> tuple[int, Tried, Found] | None:
    """Operations up to the end of the run that shows it, the run, and what is found there first."""
    operations = 0
    for shard in range(6):
        for tried in tries(ShardJob(seed, shard, 50, ConfigSpace(discipline=discipline), Contract.SETTLED), Coverage()):
            operations += tried.result.operations
            if tried.result.found:
                return operations, tried, next(iter(tried.result.found.values()))
    return None


@pytest.mark.parametrize("name", STATED)
def test_a_broken_discipline_is_found_and_made_small(name: str) -> None:
    firsts = [first_violation(DISCIPLINES[name], seed) for seed in range(SEEDS)]
    found = [first for first in firsts if first is not None]
    assert len(found) == SEEDS
    assert median(operations for operations, _, _ in found) <= min(STATED[name].operations, OPERATIONS_MAX)
    _, tried, first = found[0]
    case = with_decisions(tried.case, (*tried.case.decisions, DRAIN)[: first.place + 1])
    small = Shrinker(case, ConfigSpace(discipline=DISCIPLINES[name]), lambda each: first.key in run_case(each, until=first.key).found).run()
    assert len(small.decisions) <= STATED[name].decisions, small.decisions


def test_every_discipline_that_breaks_a_property_is_stated() -> None:
    """Preempting fenced victims breaks none: it costs progress, which `settled graph preempt-fenced` shows."""
    assert set(STATED) == {name for name, each in DISCIPLINES.items() if not each.is_right} - {PREEMPT_FENCED.name}
