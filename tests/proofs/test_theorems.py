"""The theorems are proved, their covers reached, their killers kill; and the runner does not take less for an answer."""

from __future__ import annotations

from dataclasses import replace

import pytest

from settled.model import align, fifo, tracked
from settled.model.algebra import BoolTerm, as_bool, int_variable
from settled.model.disciplines import DISCIPLINES, OPTIMISTIC, RIGHT
from settled.model.search.induction import Obligation, decide
from settled.model.search.solver import Z3, Answer, Cvc5, Solver, Status
from settled.proofs import found
from settled.proofs.catalogue import THEOREMS
from settled.proofs.report.proving import exit_code
from settled.proofs.residency import ANY_MASK, SLOTS
from settled.proofs.runner import Exit, FoundRow, KillerRow, Row, decide_all, find_and_verify, prove

LONG = ("T3", "T4")  # seconds of cvc5; by z3 the tour proves every theorem, in `test_tour.py`


@pytest.mark.parametrize("key", [pytest.param(key, marks=[pytest.mark.slow] if key in LONG else []) for key in THEOREMS])
def test_theorem_is_proved_by_both_solvers(key: str) -> None:
    rows = list(prove(THEOREMS[key], [Z3(), Cvc5()]))
    wrong = [row for row in rows if row.exit is not Exit.HOLDS]
    assert not wrong
    assert any(isinstance(row, KillerRow) for row in rows), "a theorem without a killer is not tested"
    assert all(set(row.verdicts) == {"z3", "cvc5"} for row in rows if isinstance(row, Row) and row.verdicts)


@pytest.mark.parametrize("key", ["T1", "T2", "T3", "T4", "T6", "A1"])
def test_every_action_has_a_claim_and_a_cover(key: str) -> None:
    system = fifo.actions(fifo.symbolic_fifo(), RIGHT) if key == "T1" else tracked.actions(tracked.symbolic_state(), SYSTEM)
    expected = {action.name for action in system}
    for part in THEOREMS[key].parts:
        obligations = part.build(part.discipline)
        claims = {obligation.name for obligation in obligations if not obligation.is_cover}
        if "initial state" not in claims or part.name == SLOTS:
            continue  # lemmas, which no action concerns; slots have actions of their own
        assert {obligation.name.removeprefix("cover: ") for obligation in obligations if obligation.is_cover} == expected
        assert expected <= claims


@pytest.mark.parametrize("key", ["T3", "T4"])
def test_every_action_on_slots_has_a_claim_and_a_cover(key: str) -> None:
    expected = {action.name for action in align.actions(align.symbolic_align(), align.AlignSystem(RIGHT))}
    obligations = THEOREMS[key].part(SLOTS).build(RIGHT)
    assert {obligation.name.removeprefix("cover: ") for obligation in obligations if obligation.is_cover} == expected
    assert expected <= {obligation.name for obligation in obligations if not obligation.is_cover}


def test_a_claim_from_contradictory_hypotheses_is_noticed() -> None:
    vacuous = Obligation("vacuous", {"x < 0": X < 0, "x > 0": X > 0}, {"false": as_bool(False)})
    (row,) = rows_of([vacuous], Z3())
    assert (row.word, row.cover_word) == ("proved", "unreachable")
    assert row.exit is Exit.UNKNOWN


def test_a_queue_may_hold_a_step_of_two_tokens() -> None:
    """The axiom about the prefix sums is not too strong."""
    process = next(o for o in THEOREMS["T1"].parts[0].build(RIGHT) if o.name == "cover: process")
    head = int_variable("head")
    two = fifo.tokens_before(head + 1) - fifo.tokens_before(head) == 2
    assert decide(Obligation("cover: two tokens", {**process.hypotheses, "two tokens": two}), Z3()).word == "reachable"


@pytest.mark.parametrize("key", THEOREMS)
def test_no_killer_is_a_right_discipline_of_its_theorem(key: str) -> None:
    """A discipline may be right for one part (no fence, without loads) and kill another."""
    theorem = THEOREMS[key]
    assert all(theorem.part(killer.part).discipline is not killer.discipline for killer in theorem.killers)
    assert all(DISCIPLINES[killer.discipline.name] is killer.discipline for killer in theorem.killers)


SYSTEM = tracked.System(ANY_MASK, RIGHT)


class Unsure:
    """A solver that never knows."""

    name = "unsure"

    def check(self, formulas: dict[str, BoolTerm]) -> Answer:
        return Answer(Status.UNKNOWN, 0.0, reason="tired")


def rows_of(obligations: list[Obligation], *solvers: Solver) -> list[Row]:
    return list(decide_all("T0", "part", obligations, solvers))  # type: ignore[arg-type]


X = int_variable("x")
TRUE = Obligation("x <= x + 1", {}, {"x <= x + 1": X <= X + 1})
FALSE = Obligation("x <= 0", {}, {"x <= 0": X <= 0})
UNREACHABLE = Obligation("cover: nothing", {"x < 0": X < 0, "x > 0": X > 0})


@pytest.mark.parametrize(
    ("obligation", "expected"), [(TRUE, Exit.HOLDS), (FALSE, Exit.VIOLATED), (UNREACHABLE, Exit.UNKNOWN)], ids=lambda value: str(value)[:20]
)
def test_exit_code_of_a_row(obligation: Obligation, expected: Exit) -> None:
    assert exit_code(rows_of([obligation], Z3())) is expected


def test_unknown_is_never_proved() -> None:
    assert exit_code(rows_of([TRUE], Unsure())) is Exit.UNKNOWN  # type: ignore[arg-type]


def test_solvers_that_disagree_prove_nothing() -> None:
    class Contrary:
        name = "contrary"

        def check(self, formulas: dict[str, BoolTerm]) -> Answer:
            return Answer(Status.SAT, 0.0)

    assert exit_code(rows_of([TRUE], Z3(), Contrary())) is Exit.UNKNOWN  # type: ignore[arg-type]


def test_a_killer_that_does_not_kill_is_noticed() -> None:
    theorem = THEOREMS["T3"]
    harmless = replace(theorem.killers[0], discipline=RIGHT)
    rows = list(prove(replace(theorem, parts=theorem.parts[:1], killers=(harmless,)), [Z3()]))
    assert exit_code(rows) is Exit.UNKNOWN


def test_a_killer_must_lose_the_conjunct_it_names() -> None:
    theorem = THEOREMS["T3"]
    misnamed = replace(theorem.killers[0], conjunct="fence")
    rows = list(prove(replace(theorem, parts=theorem.parts[:1], killers=(misnamed,)), [Z3()]))
    assert exit_code(rows) is Exit.UNKNOWN


def test_spacer_finds_an_invariant_that_plain_queries_verify() -> None:
    rows = list(find_and_verify([Z3(), Cvc5()]))
    assert exit_code(rows) is Exit.HOLDS
    first = rows[0]
    assert isinstance(first, FoundRow)
    assert len(first.conjuncts) >= 3


def test_what_spacer_found_is_not_verified_for_the_optimistic_basis() -> None:
    """Plain queries would notice an answer that is not an invariant."""
    answer = found.ask_spacer(found.core(RIGHT))
    verdicts = [decide(obligation, Z3()) for obligation in found.verify(found.core(OPTIMISTIC), answer.conjuncts)]
    assert {verdict.word for verdict in verdicts} == {"proved", "refuted", "reachable"}


def test_a_weaker_invariant_than_spacers_is_not_verified() -> None:
    system = found.core(RIGHT)
    verdicts = [decide(obligation, Z3()) for obligation in found.verify(system, (as_bool(True),))]
    assert "refuted" in {verdict.word for verdict in verdicts}


def test_spacers_system_has_rejections_and_every_action_can_happen() -> None:
    system = found.core(RIGHT)
    assert {action.name for action in system.actions} == set(found.ACTIONS)
    assert len(found.ACTIONS) == 5
    with_rejection = {action.name for action in system.actions if "rejections" in action.guard}
    assert with_rejection == {name for name in found.ACTIONS if name.startswith("process")}
    answer = found.ask_spacer(system)
    covers = [obligation for obligation in found.verify(system, answer.conjuncts) if obligation.is_cover]
    assert {cover.name.removeprefix("cover: ") for cover in covers} == set(found.ACTIONS)
    assert all(decide(cover, Z3()).holds for cover in covers)
