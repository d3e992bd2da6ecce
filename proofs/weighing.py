"""The alternatives weighed: for every discipline, property and contract, a proof, or a shortest trace, or what was searched in vain.

Nothing here is a result: a cell is decided by the obligations of the theorems, built for the discipline, and by the bounded search. The
kind is a sliding window of any size, with blocks of any size. An identical query is decided once a run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial

from settled.model import counters as count
from settled.model import tracked, tracked_properties
from settled.model.algebra import BoolTerm, as_int, implies, subterms
from settled.model.disciplines import VLLM, Discipline, FreeBasis, Rounding, StaleOutput
from settled.model.explicit import Claim
from settled.model.kinds import Kind, MambaAlign
from settled.model.properties import Contract, Property
from settled.model.search.bounded import UndecidedError
from settled.model.search.induction import Named, Obligation, decide, with_covers
from settled.model.search.solver import Solver
from settled.model.tracked import System, Tracked
from settled.proofs.caps import WINDOW_ENOUGH, slots_made, window_maximum, window_published
from settled.proofs.counters import prefix_sums
from settled.proofs.fence import OWNED_BY_ANYONE, kept, rows
from settled.proofs.finishing import in_order_to_the_end, rollback_unfinished
from settled.proofs.invariant import conjuncts, induction
from settled.proofs.masks import CASES, Case, claim
from settled.proofs.refutations import (
    CONSEQUENCES,
    REFUTATIONS,
    WINDOWED,
    Counterexample,
    Refutation,
    judge,
    matching,
    run_on_reference,
    search,
)
from settled.proofs.residency import GENERIC, NO_LOAD, in_order, residency, rollback

SEARCHED = 6  # events: how far a cell that nothing decides is searched
_WINDOW = CASES["sliding window"]


class Word(StrEnum):
    """What became of a cell."""

    PROVED = "proved"
    REFUTED = "refuted"
    OPEN = "open"  # neither: no proof of ours covers it, and no trace of up to SEARCHED events violates it
    UNKNOWN = "unknown"  # a solver gave up, or two answers contradict each other


@dataclass(frozen=True)
class Cell:
    """`by`: the theorems whose obligations prove it. `length`: events of a shortest trace. `searched`: events, of an open one."""

    discipline: Discipline
    column: str
    contract: Contract | None
    word: Word
    by: str = ""
    length: int | None = None
    searched: int | None = None
    problem: str = ""


@dataclass(frozen=True)
class Column:
    """A property, or the half of two of them that speaks of steps in flight. `contracts`: None where they do not matter."""

    name: str
    meaning: str
    claims: Sequence[Claim]
    contracts: Sequence[Contract | None] = (None,)


_EACH = tuple(Contract)
IN_FLIGHT = "in flight"
COLUMNS = (
    Column(
        IN_FLIGHT,
        "fault 1: from schedule to process no step loses a block that its row had and that it reads or writes (contract settled)",
        (Claim(Property.READ_RESIDENT, in_flight=True), Claim(Property.WRITE_OWNED, in_flight=True)),
    ),
    *(Column(name, name.meaning, (Claim(name),), _EACH) for name in (Property.READ_RESIDENT, Property.WRITE_OWNED)),
    Column(Property.ROLLBACK_RESIDENT, f"fault 2: {Property.ROLLBACK_RESIDENT.meaning}", (Claim(Property.ROLLBACK_RESIDENT),)),
    *(Column(name, name.meaning, (Claim(name),)) for name in (Property.SINGLE_OWNER, Property.COUNTERS_SYMMETRIC, Property.HELD_BOUNDED)),
)


# ---- proofs ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Argument:
    """Obligations that prove some columns, under some contracts, of the disciplines to which they apply."""

    by: str
    columns: Sequence[str]
    contracts: Sequence[Contract | None]
    build: Callable[[Case, Discipline], list[Obligation]]
    applies: Callable[[Discipline], bool]


def _has_right_counters(discipline: Discipline) -> bool:
    return discipline.stale_output is StaleOutput.DRAIN and discipline.preempt_marks_stale


def _is_tracked(discipline: Discipline) -> bool:
    """Whether the tracked environment is that of the discipline: it takes right counters for granted, and blocks for all that is new."""
    return _has_right_counters(discipline) and not discipline.nulls_at_allocation


def _any(_: Discipline) -> bool:
    return True


def _kept_and_rows(case: Case, discipline: Discipline) -> list[Obligation]:
    return [*kept(case, discipline), *_rows(case, discipline)]


def _rows(case: Case, discipline: Discipline) -> list[Obligation]:
    """As in A1, for bases that take drafts off too."""
    some_drafts = {"drafts a step >= 0": System(case.kind, discipline).drafts_max >= 0}
    return [
        replace(obligation, name=f"row: {obligation.name}", hypotheses={**obligation.hypotheses, **some_drafts})
        for obligation in rows(case, discipline)
    ]


def _rows_in_order(case: Case, discipline: Discipline) -> list[Obligation]:
    """Without writers out of order a row is as good when its step is processed as when it was made."""

    def intact(state: Tracked, system: System) -> Named:
        return {f"in flight, {contract}": tracked_properties.kept_in_flight(state, system, contract) for contract in _EACH[1:]}

    ordered = induction(
        case.kind, discipline, assumptions={**case.assumptions, **NO_LOAD}, only=("every writer is ordered",), properties=intact
    )
    return [*ordered, *_rows(case, discipline)]


def _owners(case: Case, discipline: Discipline) -> list[Obligation]:
    """No guard that speaks of the counters is used, so this holds whatever they say."""

    def owner(state: Tracked, system: System) -> Named:
        return {Property.SINGLE_OWNER: tracked_properties.single_owner(state)}

    obligations = induction(case.kind, discipline, assumptions=case.assumptions, only=OWNED_BY_ANYONE, properties=owner)
    return [replace(obligation, hypotheses=_without_counters(obligation.hypotheses)) for obligation in obligations]


def _without_counters(hypotheses: Named) -> Named:
    counters = {as_int(term).args[0] for term in tracked.symbolic_state().counters}

    def speaks_of_counters(formula: BoolTerm) -> bool:
        return any(term.op == "variable" and term.args[0] in counters for term in subterms(formula))

    return {name: formula for name, formula in hypotheses.items() if not (name.startswith("guard: ") and speaks_of_counters(formula))}


def _held(case: Case, discipline: Discipline) -> list[Obligation]:
    """A prune frees all that one on max(0, C - F) frees, and what that one leaves is within the discipline's cap (T8)."""
    system, state = System(case.kind, discipline), tracked.symbolic_state()
    frees = system.frees(state.counters, discipline.free_basis)
    least = case.kind.frees_block(system.first, system.last, count.processed(state.counters), Rounding.FLOOR)
    hypotheses = {
        **system.assumptions(),
        **case.assumptions,
        "counts": conjuncts(state, system)["counts"],
        "drafts a step >= 0": system.drafts_max >= 0,
    }
    return [
        claim("a prune frees all that one on max(0, C - F) frees", hypotheses, implies(least, frees)),
        *slots_made(replace(discipline, free_basis=FreeBasis.PROCESSED)),
        *window_maximum(VLLM),
        next(obligation for obligation in window_published(discipline) if obligation.name == WINDOW_ENOUGH),
    ]


_ORDERED = (Contract.STREAM_ORDER, Contract.EVENT)
ARGUMENTS = (
    Argument(
        "T3", (IN_FLIGHT, Property.READ_RESIDENT, Property.WRITE_OWNED, Property.SINGLE_OWNER), (*_EACH, None), residency, _is_tracked
    ),
    Argument("T3", (Property.READ_RESIDENT, Property.WRITE_OWNED), _ORDERED, in_order, _is_tracked),
    Argument("T3", (Property.READ_RESIDENT, Property.WRITE_OWNED), _ORDERED, in_order_to_the_end, _is_tracked),
    Argument("A1", (IN_FLIGHT, Property.SINGLE_OWNER), (None,), kept, _is_tracked),
    Argument("A1", (Property.READ_RESIDENT,), _EACH, _kept_and_rows, _is_tracked),
    Argument("A1", (Property.READ_RESIDENT,), _ORDERED, _rows_in_order, _is_tracked),
    Argument("T4", (Property.ROLLBACK_RESIDENT,), (None,), rollback, _is_tracked),
    Argument("T4", (Property.ROLLBACK_RESIDENT,), (None,), rollback_unfinished, _is_tracked),
    Argument("T3", (Property.SINGLE_OWNER,), (None,), _owners, lambda discipline: not discipline.nulls_at_allocation),
    Argument("T1", (Property.COUNTERS_SYMMETRIC,), (None,), lambda _, discipline: prefix_sums(discipline), _any),
    Argument(
        "T8", (Property.HELD_BOUNDED,), (None,), _held, lambda discipline: _has_right_counters(discipline) and discipline.prunes_in_full
    ),
)


class Prover:
    """Decides obligations with one solver; the same query, which many disciplines share, once."""

    def __init__(self, solver: Solver) -> None:
        self._solver = solver
        self._known: dict[tuple[int, ...], Word] = {}

    def word(self, obligations: Sequence[Obligation]) -> Word:
        """PROVED if every claim is and every cover is reachable; else what the first to fail says."""
        claims = [obligation for obligation in obligations if not obligation.is_cover]
        for obligation in [*claims, *(o for o in with_covers(obligations) if o.is_cover)]:
            word = self._decide(obligation)
            if word is not Word.PROVED:
                return word
        return Word.PROVED

    def _decide(self, obligation: Obligation) -> Word:
        terms = [term.index for term in obligation.query().values()]
        key = (int(obligation.is_cover), *sorted(terms))
        if key not in self._known:
            verdict = decide(obligation, self._solver)
            self._known[key] = Word.PROVED if verdict.holds else Word.REFUTED if verdict.word == "refuted" else Word.UNKNOWN
        return self._known[key]


# ---- cells -----------------------------------------------------------------------------------------------------------


def kind_weighed(discipline: Discipline) -> Kind:
    """A sliding window; for a discipline that differs for states alone, a state kind."""
    return WINDOWED if discipline.state_basis is None else MambaAlign()


class Weighing:
    """One run: asks for each cell first the proofs, then the known shortest traces, then the bounded search."""

    def __init__(self, solver: Solver) -> None:
        self._prover = Prover(solver)
        self._found: dict[str, Counterexample | str] = {}
        self._searched: dict[tuple[str, Claim], str] = {}

    def cells(self, discipline: Discipline) -> Iterator[Cell]:
        """The row of a discipline."""
        for column in COLUMNS:
            for contract in column.contracts:
                yield self._cell(discipline, column, contract)

    def _cell(self, discipline: Discipline, column: Column, contract: Contract | None) -> Cell:
        cell = partial(Cell, discipline, column.name, contract)
        by = self._proof(discipline, column.name, contract)
        claims = [replaced(known, contract) for known in column.claims]
        listed = (*REFUTATIONS, *CONSEQUENCES)
        refutations = [known for known in listed if known.discipline is discipline and known.claim in map(as_searched, claims)]
        if by and refutations:
            return cell(Word.UNKNOWN, problem=f"{by} proves it, and {refutations[0].name} refutes it")
        if by:
            return cell(Word.PROVED, by=by)
        if not refutations:
            return self._search(discipline, claims, cell)
        lengths = []
        for refutation in refutations:
            problem = self._problem(refutation, contract)
            if problem:
                return cell(Word.UNKNOWN, problem=problem)
            lengths.append(refutation.length)
        return cell(Word.REFUTED, length=min(lengths))

    def _proof(self, discipline: Discipline, column: str, contract: Contract | None) -> str:
        is_window = kind_weighed(discipline) is WINDOWED
        for argument in ARGUMENTS:
            if not is_window and column != Property.COUNTERS_SYMMETRIC:
                continue
            if column not in argument.columns or contract not in argument.contracts or not argument.applies(discipline):
                continue
            # A generic mask has no block boundary, which is what the cap counts and rounding is about.
            needs_blocks = discipline.rounding is not Rounding.FLOOR or column == Property.HELD_BOUNDED
            if self._prover.word(argument.build(_WINDOW if needs_blocks else GENERIC, discipline)) is Word.PROVED:
                return argument.by
        return ""

    def _problem(self, refutation: Refutation, contract: Contract | None) -> str:
        """What is wrong with a known refutation, if anything: it is searched, judged, and run on the reference."""
        found = self._found.get(refutation.name)
        if found is None:
            found = self._found[refutation.name] = _checked(refutation)
        if isinstance(found, str):
            return found
        asked = replaced(refutation.claim, contract)
        return "" if matching(judge(found.events, asked.contract), asked) else f"{refutation.name}: not violated under {contract}"

    def _search(self, discipline: Discipline, claims: Sequence[Claim], cell: Callable[..., Cell]) -> Cell:
        is_window = kind_weighed(discipline) is WINDOWED
        of_held = claims[0].prop is Property.HELD_BOUNDED
        if claims[0].prop is Property.SINGLE_OWNER or (of_held and not is_window):
            return cell(Word.OPEN, searched=0)
        for asked in map(as_searched, claims):
            key = (discipline.name, asked)
            if key not in self._searched:
                self._searched[key] = _unlisted(Refutation(discipline, asked, SEARCHED - 2, kind_weighed(discipline)))
            if self._searched[key]:
                return cell(Word.UNKNOWN, problem=self._searched[key])
        return cell(Word.OPEN, searched=SEARCHED)


def _unlisted(refutation: Refutation) -> str:
    """What is wrong with leaving a cell open, if anything."""
    try:
        found = search(refutation)
    except UndecidedError as error:
        return str(error)
    return "" if found is None else f"{refutation.violates} has a trace of {found.shortest.length} events that nobody lists"


def _checked(refutation: Refutation) -> Counterexample | str:
    try:
        counterexample = search(refutation)
    except UndecidedError as error:
        return str(error)
    if counterexample is None or counterexample.shortest.length != refutation.length:
        return f"{refutation.name}: no shortest trace of {refutation.length} events"
    if not run_on_reference(counterexample).agrees(refutation):
        return f"{refutation.name}: the reference disagrees"
    return counterexample


def replaced(claim: Claim, contract: Contract | None) -> Claim:
    return claim if contract is None else claim._replace(contract=contract)


def as_searched(claim: Claim) -> Claim:
    """No writer of the bounded search is out of order, so the last two contracts are one there."""
    return claim._replace(contract=Contract.STREAM_ORDER) if claim.contract is Contract.EVENT else claim
