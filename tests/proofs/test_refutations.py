"""Every broken discipline is refuted by a trace of the stated length, which the reference executes event for event."""

from __future__ import annotations

from dataclasses import replace

import pytest

from settled.model.algebra import int_variable
from settled.model.disciplines import DISCIPLINES, RIGHT, VLLM, Discipline
from settled.model.events import Release
from settled.model.explicit import Setting
from settled.model.kinds import SlidingWindow
from settled.model.properties import Property
from settled.model.search.bounded import UndecidedError, shortest_violation
from settled.model.search.solver import Z3, Answer, Status
from settled.proofs.refutations import REFUTATIONS, Counterexample, Refutation, canonical, run_on_reference, search

# The engine runs them already; the model has no transitions for them yet.
NOT_YET = {
    "pool-fence",
    "callback",
    "mamba-local",
    "local-subtraction",
    "preempt-fenced",
    "cap-without-in-flight",
    "null-at-allocation",
}
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
    assert {refutation.discipline.name for refutation in REFUTATIONS} == broken - NOT_YET


@pytest.mark.parametrize("discipline", [RIGHT, VLLM], ids=lambda discipline: discipline.name)
@pytest.mark.parametrize("prop", BY_BOUNDED_SEARCH)
def test_a_right_discipline_has_no_counterexample_within_five_events(discipline: Discipline, prop: Property) -> None:
    window = int_variable("window")
    assert shortest_violation(Setting(SlidingWindow(window), discipline, connector=True), window, prop, length_max=5) is None


def test_a_replay_agrees_only_if_all_three_hold() -> None:
    refutation = REFUTATIONS[0]
    counterexample = found(refutation)
    replayed = run_on_reference(counterexample)
    assert replayed.agrees(refutation)
    assert not replace(replayed, same_events=False).agrees(refutation)
    assert not replace(replayed, report=replayed.right_report).agrees(refutation)
    assert not replace(replayed, right_report=replayed.report).agrees(refutation)


def test_other_events_are_told_apart() -> None:
    counterexample = found(REFUTATIONS[0])
    events = list(counterexample.events)
    release = next(index for index, event in enumerate(events) if isinstance(event, Release))
    assert canonical(events) != canonical(events[:release] + events[release + 1 :])
    assert canonical(events) != canonical([replace(event, indices=(1,)) if isinstance(event, Release) else event for event in events])


def test_an_unsure_solver_refutes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Z3, "check", lambda self, formulas: Answer(Status.UNKNOWN, 0.0, reason="tired"))
    with pytest.raises(UndecidedError, match="tired"):
        search(REFUTATIONS[0])


def test_an_unsure_minimizer_is_not_taken_for_a_no(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Z3, "minimize", lambda self, formulas, objectives: Answer(Status.UNKNOWN, 0.0, reason="tired"))
    with pytest.raises(UndecidedError, match="block size 4: tired"):
        search(REFUTATIONS[0])
