"""The table of alternatives: its cells are decided, not written down, and it notices an answer that contradicts another."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache

import pytest

from settled.model import tracked
from settled.model.algebra import as_bool, as_int
from settled.model.disciplines import (
    CALLBACK,
    CAP_WITHOUT_IN_FLIGHT,
    DISCIPLINES,
    DRAFTS_UNPRUNED,
    KEEPS_ONE,
    NO_FENCE,
    OPTIMISTIC,
    POOL_FENCE,
    RAW_FINISH,
    RIGHT,
    STALE_APPLIED,
    UNDRAINED,
    VLLM,
    Discipline,
)
from settled.model.properties import Contract, Property
from settled.model.search.induction import Obligation
from settled.model.search.solver import Z3, Answer, Status
from settled.proofs import finishing, weighing
from settled.proofs.fence import ENDS_A_GENERATION, FINISH_PRUNE
from settled.proofs.finishing import in_order_to_the_end, rollback_unfinished
from settled.proofs.masks import Case
from settled.proofs.refutations import CONSEQUENCES, REFUTATIONS
from settled.proofs.residency import GENERIC
from settled.proofs.weighing import COLUMNS, IN_FLIGHT, SEARCHED, Cell, Prover, Weighing, Word

pytestmark = pytest.mark.slow

WEIGHING = Weighing(Z3())


@cache
def row(discipline: Discipline) -> dict[tuple[str, Contract | None], Cell]:
    return {(cell.column, cell.contract): cell for cell in WEIGHING.cells(discipline)}


def words(discipline: Discipline, column: str) -> list[tuple[Word, str, int | None]]:
    return [(cell.word, cell.by, cell.length) for (name, _), cell in row(discipline).items() if name == column]


@pytest.mark.parametrize("discipline", [RIGHT, VLLM], ids=lambda discipline: discipline.name)
def test_a_right_discipline_is_proved_in_every_cell(discipline: Discipline) -> None:
    cells = row(discipline).values()
    assert {cell.word for cell in cells} == {Word.PROVED}
    assert len(cells) == sum(len(column.contracts) for column in COLUMNS)


@pytest.mark.parametrize("discipline", [POOL_FENCE, CALLBACK], ids=lambda discipline: discipline.name)
def test_a_fence_behind_a_prune_repairs_fault_1_and_not_fault_2(discipline: Discipline) -> None:
    assert words(discipline, IN_FLIGHT) == [(Word.PROVED, "A1", None)]
    assert words(discipline, Property.READ_RESIDENT) == [(Word.PROVED, "A1", None)] * len(Contract)
    assert words(discipline, Property.ROLLBACK_RESIDENT) == [(Word.REFUTED, "", 5)]
    assert words(discipline, Property.WRITE_OWNED) == [(Word.REFUTED, "", 5)] * len(Contract)
    assert {cell.word for cell in row(OPTIMISTIC).values() if cell.column == IN_FLIGHT} == {Word.REFUTED}


def test_without_a_consumer_the_optimistic_basis_breaks_the_rollback_and_some_writes_only() -> None:
    cells = row(OPTIMISTIC)
    for contract in (Contract.STREAM_ORDER, Contract.EVENT):
        assert cells[Property.READ_RESIDENT, contract].word is Word.PROVED
        assert cells[Property.WRITE_OWNED, contract].length == 5
    assert cells[Property.READ_RESIDENT, Contract.SETTLED].length == 2
    assert cells[Property.WRITE_OWNED, Contract.SETTLED].length == 2


def test_without_a_consumer_no_fence_is_needed() -> None:
    cells = row(NO_FENCE)
    assert {contract: cells[Property.WRITE_OWNED, contract].word for contract in Contract} == {
        Contract.SETTLED: Word.REFUTED,
        Contract.STREAM_ORDER: Word.PROVED,
        Contract.EVENT: Word.PROVED,
    }


def test_a_cap_breaks_its_bound_alone() -> None:
    cells = row(CAP_WITHOUT_IN_FLIGHT).values()
    assert {cell.column for cell in cells if cell.word is not Word.PROVED} == {Property.HELD_BOUNDED}


def test_no_proof_is_claimed_where_the_counters_are_wrong() -> None:
    """The environment of the proofs takes right counters for granted; ownership and the counters themselves do not rest on it."""
    proved = {cell.column for cell in row(UNDRAINED).values() if cell.word is Word.PROVED}
    assert proved == {Property.SINGLE_OWNER}
    assert {cell.searched for cell in row(UNDRAINED).values() if cell.word is Word.OPEN} == {SEARCHED}


def test_a_prune_that_comes_with_the_finish_rolls_nothing_back_and_loses_no_row_out_of_order() -> None:
    cells = row(RAW_FINISH)
    assert words(RAW_FINISH, Property.ROLLBACK_RESIDENT) == [(Word.PROVED, "T4", None)]
    assert [cells[Property.WRITE_OWNED, contract].word for contract in Contract] == [Word.REFUTED, Word.PROVED, Word.PROVED]


@pytest.mark.parametrize("build", [rollback_unfinished, in_order_to_the_end])
def test_only_the_prune_of_a_finish_is_left_out(build: Callable[[Case, Discipline], list[Obligation]]) -> None:
    """The basis of every other prune is still asked for."""
    assert Prover(Z3()).word(build(GENERIC, RAW_FINISH)) is Word.PROVED
    assert Prover(Z3()).word(build(GENERIC, OPTIMISTIC)) is Word.REFUTED
    actions = {action.name for action in tracked.actions(tracked.symbolic_state(), tracked.System(GENERIC.kind, RAW_FINISH))}
    asked = {obligation.name for obligation in build(GENERIC, RAW_FINISH)}
    assert actions - asked == {FINISH_PRUNE}


def test_the_rows_of_a_finished_request_are_kept_by_the_finish_itself() -> None:
    asked = {obligation.name for obligation in in_order_to_the_end(GENERIC, RAW_FINISH)}
    assert {f"finished: {FINISH_PRUNE}", f"finished: {ENDS_A_GENERATION}", "at the finish"} <= asked


def test_what_a_finished_request_uses_rests_on_its_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(finishing, "_row", lambda state, system: as_bool(True))
    assert Prover(Z3()).word(in_order_to_the_end(GENERIC, RAW_FINISH)) is Word.REFUTED


@pytest.mark.parametrize("discipline", [KEEPS_ONE, DRAFTS_UNPRUNED], ids=lambda discipline: discipline.name)
def test_a_prune_that_leaves_a_block_out_is_refuted(discipline: Discipline) -> None:
    assert words(discipline, Property.HELD_BOUNDED) == [(Word.REFUTED, "", 3)]


def test_wrong_counters_lose_what_steps_use() -> None:
    cells = row(STALE_APPLIED)
    for prop in (Property.READ_RESIDENT, Property.WRITE_OWNED):
        assert [cells[prop, contract].length for contract in Contract] == [7, 7, 7]


def test_every_refutation_has_its_cell() -> None:
    """No refutation is left out of the table."""
    columns = {claim: column for column in COLUMNS for claim in column.claims}
    for refutation in (*REFUTATIONS, *CONSEQUENCES):
        assert any(weighing.as_searched(claim) == refutation.claim._replace(contract=claim.contract) for claim in columns)
    assert {refutation.discipline.name for refutation in REFUTATIONS} <= set(DISCIPLINES)


# ---- it can fail -----------------------------------------------------------------------------------------------------


def test_a_proof_of_what_is_refuted_is_a_contradiction(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Prover, "word", lambda self, obligations: Word.PROVED)
    cells = Weighing(Z3()).cells(OPTIMISTIC)
    cell = next(cell for cell in cells if cell.column == Property.ROLLBACK_RESIDENT)
    assert cell.word is Word.UNKNOWN
    assert "optimistic-rollback_resident refutes it" in cell.problem


def test_a_refutation_that_nobody_lists_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weighing, "REFUTATIONS", ())
    monkeypatch.setattr(weighing, "CONSEQUENCES", ())
    cell = next(iter(Weighing(Z3()).cells(OPTIMISTIC)))
    assert cell.word is Word.UNKNOWN
    assert "2 events that nobody lists" in cell.problem


def test_a_length_that_is_wrong_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = tuple(replace(known, length=known.length + 1) for known in REFUTATIONS)
    monkeypatch.setattr(weighing, "REFUTATIONS", wrong)
    cell = next(iter(Weighing(Z3()).cells(OPTIMISTIC)))
    assert (cell.word, cell.problem) == (Word.UNKNOWN, "optimistic-read_resident-in-flight: no shortest trace of 3 events")


def test_an_unsure_solver_proves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Z3, "check", lambda self, formulas: Answer(Status.UNKNOWN, 0.0, reason="tired"))
    assert {cell.word for cell in Weighing(Z3()).cells(RIGHT)} <= {Word.UNKNOWN, Word.OPEN}
    assert not any(cell.word is Word.PROVED for cell in Weighing(Z3()).cells(RIGHT))


def test_a_claim_from_contradictory_hypotheses_proves_nothing() -> None:
    x = as_int(1)
    vacuous = Obligation("vacuous", {"false": x < 0}, {"anything": x < 0})
    assert Prover(Z3()).word([vacuous]) is not Word.PROVED


def test_the_same_query_is_decided_once() -> None:
    asked = []

    class Counting(Z3):
        def check(self, formulas: object) -> Answer:
            asked.append(formulas)
            return super().check(formulas)  # type: ignore[arg-type]

    weigh = Weighing(Counting())
    list(weigh.cells(RIGHT))
    before = len(asked)
    list(weigh.cells(DISCIPLINES["preempt-fenced"]))
    assert len(asked) == before, "the two differ in nothing that the proofs speak of"
