"""Every broken discipline is refuted by a trace of the stated length, which the reference executes event for event."""

from __future__ import annotations

import pytest

from settled.model.algebra import int_variable
from settled.model.disciplines import DISCIPLINES, RIGHT, VLLM, Discipline
from settled.model.explicit import Setting
from settled.model.kinds import SlidingWindow
from settled.model.properties import Property
from settled.model.search.bounded import shortest_violation
from settled.proofs.refutations import REFUTATIONS, Counterexample, Refutation, canonical, run_on_reference, search

BY_BOUNDED_SEARCH = (Property.READ_RESIDENT, Property.ROLLBACK_RESIDENT, Property.COUNTERS_SYMMETRIC)


def found(refutation: Refutation) -> Counterexample:
    counterexample = search(refutation)
    assert counterexample is not None
    return counterexample


@pytest.mark.parametrize("refutation", REFUTATIONS, ids=lambda r: f"{r.discipline.name}-{r.violates}")
def test_shortest_counterexample_replays_on_the_reference(refutation: Refutation) -> None:
    counterexample = found(refutation)
    assert counterexample.shortest.length == refutation.length
    assert counterexample.violation is not None
    replayed = run_on_reference(counterexample)
    assert canonical(replayed.events) == canonical(counterexample.events)
    assert replayed.report.result(refutation.violates).count >= 1
    assert not any(result.count for result in replayed.right_report.properties)


def test_every_broken_discipline_is_refuted() -> None:
    broken = {name for name, discipline in DISCIPLINES.items() if not discipline.is_right}
    assert {refutation.discipline.name for refutation in REFUTATIONS} == broken


@pytest.mark.parametrize("discipline", [RIGHT, VLLM], ids=lambda discipline: discipline.name)
@pytest.mark.parametrize("prop", BY_BOUNDED_SEARCH)
def test_a_right_discipline_has_no_counterexample_within_five_events(discipline: Discipline, prop: Property) -> None:
    window = int_variable("window")
    assert shortest_violation(Setting(SlidingWindow(window), discipline, connector=True), window, prop, length_max=5) is None
