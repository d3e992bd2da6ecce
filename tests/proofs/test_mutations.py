"""The mutation table: every conjunct of every invariant and every guard of every action is needed by some theorem.

A mutant takes one formula away from the obligations: a conjunct from what is assumed and what is to be shown, a guard from what is
assumed. If everything were still proved, the formula would be decoration.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache

import pytest

from settled.model import align, fifo, tracked
from settled.model.disciplines import RIGHT, PruneFence
from settled.model.properties import Contract
from settled.model.search.induction import Obligation, decide
from settled.model.search.solver import Z3
from settled.proofs import mamba
from settled.proofs.catalogue import THEOREMS
from settled.proofs.counters import COUNTS
from settled.proofs.fence import KEPT
from settled.proofs.residency import ANY_MASK, IN_ORDER, IN_USE, NEXT_STEP, SLOTS

SOLVER = Z3()
ACTIONS_WITHIN_A_GENERATION = (
    "schedule another step",
    "schedule the step",
    "process a stale step",
    "process a live step before the step",
    "process a live step",
    "process the step, live",
    "process the step, stale",
    "start with a prefix-cache hit",
)
Mutate = Callable[[Obligation], Obligation | None]

# The invariant of each theorem that is proved by induction, as conjuncts of its first part.
INVARIANTS = {
    "T1": ("in flight is the sum", "stale is the sum", "computed is what events say", "queue order"),
    "T2": COUNTS,
    "T3": IN_USE,
    "T4": NEXT_STEP,
    "A1": KEPT,
}


@cache
def claims_of(theorem: str, part_name: str = "") -> tuple[Obligation, ...]:
    """The claims of a part of the theorem, of the first part if none is named."""
    part = THEOREMS[theorem].part(part_name) if part_name else THEOREMS[theorem].parts[0]
    return tuple(obligation for obligation in part.build(part.discipline) if not obligation.is_cover)


def mutants_survive(theorem: str, mutate: Mutate, part_name: str = "") -> bool:
    """Whether every claim of the part that the mutation changes is proved all the same. `test_theorems.py` proves those it leaves alone."""
    mutated = [(claim, mutate(claim)) for claim in claims_of(theorem, part_name)]
    changed = [mutant for claim, mutant in mutated if mutant is not claim]
    assert changed, "the mutation changes nothing"
    return all(decide(mutant, SOLVER).holds for mutant in changed if mutant is not None)


def without_conjunct(name: str) -> Mutate:
    def mutate(claim: Obligation) -> Obligation | None:
        assert claim.conclusions is not None
        if name not in claim.conclusions and name not in claim.hypotheses:
            return claim
        conclusions = {key: term for key, term in claim.conclusions.items() if key != name}
        hypotheses = {key: term for key, term in claim.hypotheses.items() if key != name}
        return replace(claim, hypotheses=hypotheses, conclusions=conclusions) if conclusions else None

    return mutate


def without_guard(action: str, name: str) -> Mutate:
    def mutate(claim: Obligation) -> Obligation:
        if not claim.name.endswith(action) or f"guard: {name}" not in claim.hypotheses:
            return claim
        return replace(claim, hypotheses={key: term for key, term in claim.hypotheses.items() if key != f"guard: {name}"})

    return mutate


@pytest.mark.parametrize(("theorem", "conjunct"), [(key, name) for key, names in INVARIANTS.items() for name in names])
def test_every_conjunct_is_needed(theorem: str, conjunct: str) -> None:
    assert not mutants_survive(theorem, without_conjunct(conjunct))


@pytest.mark.parametrize("conjunct", [*IN_ORDER, "every writer is ordered after the step"])
def test_every_conjunct_and_the_assumption_are_needed_without_a_fence(conjunct: str) -> None:
    assert not mutants_survive("T3", without_conjunct(conjunct), "no fence, no load, any shrinking mask")


@pytest.mark.parametrize("conjunct", mamba.conjuncts(align.symbolic_align(), align.AlignSystem(RIGHT)))
def test_every_conjunct_about_slots_is_needed(conjunct: str) -> None:
    assert not all(mutants_survive(theorem, without_conjunct(conjunct), SLOTS) for theorem in ("T3", "T4"))


@pytest.mark.parametrize("theorem", INVARIANTS)
def test_the_invariants_are_complete_here(theorem: str) -> None:
    """The table above lists what the theorem's induction step really shows."""
    part = THEOREMS[theorem].parts[0]
    initial = next(obligation for obligation in part.build(part.discipline) if obligation.name == "initial state")
    assert tuple(initial.conclusions or ()) == tuple(sorted(INVARIANTS[theorem], key=list(initial.conclusions or ()).index))
    assert set(initial.conclusions or ()) == set(INVARIANTS[theorem])


def guards() -> Iterator[tuple[str, str, str]]:
    for fifo_action in fifo.actions(fifo.symbolic_fifo(), RIGHT):
        yield from (("fifo", fifo_action.name, name) for name in fifo_action.guard)
    for action in tracked.actions(tracked.symbolic_state(), tracked.System(ANY_MASK, RIGHT)):
        yield from (("tracked", action.name, name) for name in action.guard)


@pytest.mark.parametrize(("system", "action", "guard"), list(guards()))
def test_every_guard_is_needed(system: str, action: str, guard: str) -> None:
    """Without it some theorem about the system fails: what a guard rules out would really break something."""
    theorems = ("T1",) if system == "fifo" else ("T2", "T3", "T4")
    assert not all(mutants_survive(theorem, without_guard(action, guard)) for theorem in theorems)


def slot_guards() -> Iterator[tuple[str, str]]:
    for action in align.actions(align.symbolic_align(), align.AlignSystem(RIGHT)):
        yield from ((action.name, name) for name in action.guard)


@pytest.mark.parametrize(("action", "guard"), list(slot_guards()))
def test_every_guard_on_slots_is_needed(action: str, guard: str) -> None:
    assert not all(mutants_survive(theorem, without_guard(action, guard), SLOTS) for theorem in ("T3", "T4"))


@pytest.mark.parametrize("assumption", ["0 <= first <= last", "slots >= 0"])
def test_every_assumption_about_slots_is_needed(assumption: str) -> None:
    assert not all(mutants_survive(theorem, without_conjunct(assumption), SLOTS) for theorem in ("T3", "T4"))


# What each theorem concludes of every reachable state; without one of them the theorem would say less than its sentence.
PROPERTIES = {
    "T1": {
        "counters_symmetric",
        "idle exactly when nothing is in flight",
        "stale tokens are in flight",
        "the oldest step is stale exactly when stale > 0",
    },
    "T2": {
        "the oldest live step starts at p",
        "with none, the next step starts at p",
        "max(0, C - F) <= p",
        *(f"p does not fall: {action}" for action in ACTIONS_WITHIN_A_GENERATION),
    },
    "T3": {f"{name}, {contract}" for name in ("read_resident", "write_owned") for contract in Contract} | {"single_owner"},
    "T4": {"rollback_resident"},
    "T11": set(),
    "T12": {"read_resident", "write_owned", "the connector is shown what is needed from p on"},
    "A1": {f"kept in flight, {contract}" for contract in Contract} | {"single_owner"},
    "T5": {"kept blocks are read"},
    "T6": {"p = C", "max(0, C - F) = C", "the same blocks are freed"},
}


@pytest.mark.parametrize("theorem", PROPERTIES)
def test_the_theorem_concludes_what_it_says(theorem: str) -> None:
    part = THEOREMS[theorem].parts[0]
    claims = {obligation.name for obligation in part.build(part.discipline) if not obligation.is_cover}
    actions = {action.name for action in tracked.actions(tracked.symbolic_state(), tracked.System(ANY_MASK, RIGHT))}
    fifo_actions = {action.name for action in fifo.actions(fifo.symbolic_fifo(), RIGHT)}
    assert claims - actions - fifo_actions - {"initial state"} == PROPERTIES[theorem]


def test_after_every_event_write_owned_holds_under_each_contract() -> None:
    claims = [o for o in THEOREMS["T11"].parts[0].build(RIGHT) if not o.is_cover]
    actions = {action.name for action in tracked.actions(tracked.symbolic_state(), tracked.System(ANY_MASK, RIGHT))}
    assert {claim.name for claim in claims} == actions
    assert all(set(claim.conclusions or ()) == {f"write_owned, {contract}" for contract in Contract} for claim in claims)


@pytest.mark.parametrize("conjunct", ["row", "fence", "given away after use", "single owner", "row is the table's"])
def test_the_fence_theorem_rests_on_the_invariant(conjunct: str) -> None:
    assert not mutants_survive("T11", without_conjunct(conjunct))


@pytest.mark.parametrize("conjunct", ["pruned", "resident", "row", "single owner"])
def test_the_finish_theorem_rests_on_the_invariants(conjunct: str) -> None:
    assert not mutants_survive("T12", without_conjunct(conjunct))


def test_what_a_row_is_made_of_rests_on_the_counts() -> None:
    """On the settled count the needless part needs 0 <= stale <= in flight; on the computed count it needs nothing."""
    rows = THEOREMS["A1"].part("rows, any shrinking mask")
    claims = [o for o in rows.build(RIGHT) if not o.is_cover and o.name == "schedule the step"]
    assert all(decide(claim, SOLVER).holds for claim in claims)
    mutants = [without_conjunct("counts")(claim) for claim in claims]
    assert not all(decide(mutant, SOLVER).holds for mutant in mutants if mutant is not None)


def test_a_prune_fence_that_lets_go_too_early_is_noticed() -> None:
    """Without the fence the same prune fails at the conjunct that says what is kept."""
    part = THEOREMS["A1"].part("pool fence, any mask")
    unfenced = replace(part.discipline, prune_fence=PruneFence.NONE)
    failed = {name for claim in part.build(unfenced) if not claim.is_cover for name in decide(claim, SOLVER).failed}
    assert failed == {"kept in use"}


def test_a_kept_block_is_read_by_a_query_to_come() -> None:
    (claim,) = [o for o in THEOREMS["T5"].parts[0].build(RIGHT) if not o.is_cover]
    assert set(claim.conclusions or ()) == {"the token is in the block", "the query is to come", "the query reads the token"}


@pytest.mark.parametrize("assumption", ["0 <= first <= token <= last", "lookahead >= 0"])
def test_every_assumption_about_the_constants_is_needed(assumption: str) -> None:
    assert not all(mutants_survive(theorem, without_conjunct(assumption)) for theorem in ("T3", "T4"))


def test_the_shrinking_of_needed_sets_is_needed() -> None:
    assert not mutants_survive("T3", without_conjunct("needed-sets shrink"))
    assert not mutants_survive("T4", without_conjunct("needed-sets shrink"))
    assert not mutants_survive("T1", without_conjunct("every step has a token"))
