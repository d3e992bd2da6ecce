"""Every broken discipline is refuted by a trace of the stated length, which the reference executes event for event."""

from __future__ import annotations

from dataclasses import replace

import pytest

from settled.model.disciplines import CALLBACK, DISCIPLINES, POOL_FENCE, PREEMPT_FENCED, RIGHT, VLLM, Discipline
from settled.model.events import Release
from settled.model.explicit import Claim, Setting
from settled.model.kinds import MambaAlign, SlidingWindow
from settled.model.properties import Contract, Property
from settled.model.search.bounded import WINDOW, UndecidedError, shortest_violation
from settled.model.search.solver import Z3, Answer, Status
from settled.proofs.refutations import (
    CONSEQUENCES,
    REFUTATIONS,
    Counterexample,
    Refutation,
    canonical,
    matching,
    run_on_reference,
    search,
    under,
)

# Nothing is searched for them: what they break is the half of `held_bounded` that the bounded search leaves out, blocks below the need.
# The corpus of public bugs shows each.
BY_BOUNDED_SEARCH = tuple(dict.fromkeys(refutation.claim for refutation in REFUTATIONS))


def found(refutation: Refutation) -> Counterexample:
    counterexample = search(refutation)
    assert counterexample is not None
    return counterexample


SEARCHED_FOR_SECONDS = [pytest.param(refutation, marks=pytest.mark.slow) for refutation in CONSEQUENCES]


@pytest.mark.parametrize("refutation", [*REFUTATIONS, *SEARCHED_FOR_SECONDS], ids=lambda r: r.name)
def test_shortest_counterexample_replays_on_the_reference(refutation: Refutation) -> None:
    counterexample = found(refutation)
    assert counterexample.shortest.length == refutation.length
    assert counterexample.violation is not None
    replayed = run_on_reference(counterexample)
    assert canonical(replayed.events) == canonical(counterexample.events)
    assert matching(replayed.report, refutation.claim)
    assert not any(result.count for result in replayed.right_report.properties)


def test_every_broken_discipline_is_refuted() -> None:
    """But for `preempt-fenced`, which keeps requests from finishing: `test_progress.py` runs it."""
    broken = {name for name, discipline in DISCIPLINES.items() if not discipline.is_right}
    assert {refutation.discipline.name for refutation in REFUTATIONS} == broken - {PREEMPT_FENCED.name}


def test_names_are_unique_and_the_halves_in_flight_stay_apart() -> None:
    assert len({refutation.name for refutation in REFUTATIONS}) == len(REFUTATIONS)
    assert not set(CONSEQUENCES) & set(under(Contract.SETTLED))
    for contract in Contract:
        shown = under(contract)
        consequences = {(known.discipline.name, known.violates) for known in CONSEQUENCES}
        more = [known for known in under(contract, with_consequences=True) if known not in shown]
        assert {(known.discipline.name, known.violates) for known in more} == consequences
        assert shown
        assert {(refutation.claim.contract, refutation.claim.in_flight) for refutation in shown} == {(contract, False)}
    assert {refutation.name for refutation in under(Contract.STREAM_ORDER)} == {
        refutation.name.replace("event", "stream_order") for refutation in under(Contract.EVENT)
    }


@pytest.mark.parametrize("refutation", [known for known in under(Contract.EVENT) if known.length <= 5], ids=lambda r: r.name)
def test_what_is_refuted_under_the_event_contract_is_the_same_trace(refutation: Refutation) -> None:
    """No writer of the search is out of order, so `event` is judged like `stream_order`."""
    assert found(refutation).violation is not None


@pytest.mark.parametrize("discipline", [RIGHT, VLLM], ids=lambda discipline: discipline.name)
@pytest.mark.parametrize("claim", BY_BOUNDED_SEARCH, ids=str)
def test_a_right_discipline_has_no_counterexample_within_five_events(discipline: Discipline, claim: Claim) -> None:
    assert shortest_violation(Setting(SlidingWindow(WINDOW), discipline, connector=True), claim, length_max=5) is None


@pytest.mark.parametrize("claim", [Claim(Property.READ_RESIDENT), Claim(Property.WRITE_OWNED)], ids=lambda claim: str(claim.prop))
def test_a_state_kind_is_settled_within_five_events(claim: Claim) -> None:
    assert shortest_violation(Setting(MambaAlign(), RIGHT, connector=True), claim, length_max=5) is None


@pytest.mark.parametrize("in_flight", [False, True])
@pytest.mark.parametrize("discipline", [POOL_FENCE, CALLBACK], ids=lambda discipline: discipline.name)
def test_a_prune_fence_repairs_the_first_fault(discipline: Discipline, in_flight: bool) -> None:
    claim = Claim(Property.READ_RESIDENT, in_flight=in_flight)
    assert shortest_violation(Setting(SlidingWindow(WINDOW), discipline, connector=True), claim, length_max=5) is None


def test_the_half_in_flight_leaves_out_what_was_absent_at_the_schedule() -> None:
    """`ceil` nulls a needed entry before the step is scheduled: that is no fault of a step in flight."""
    counterexample = found(next(known for known in REFUTATIONS if known.name == "ceil-read_resident"))
    whole, half = Claim(Property.READ_RESIDENT), Claim(Property.READ_RESIDENT, in_flight=True)
    assert matching(counterexample.report, whole)
    assert len(matching(counterexample.report, half)) < len(matching(counterexample.report, whole))


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
