"""Theorems 1, 2 and 6: what the counters of a request mean."""

from __future__ import annotations

from functools import partial

from settled.model import counters as count
from settled.model import fifo, lifetime, tracked
from settled.model.algebra import BoolTerm, as_int, both, implies, int_variable
from settled.model.disciplines import CEIL, RIGHT, STALE_APPLIED, STALE_UNMARKED, UNDRAINED, Discipline, Rounding
from settled.model.kinds import AnyShrinking, Axiom, MambaAlign
from settled.model.search.induction import Named, Obligation, Transition, inductive, with_axiom
from settled.model.tracked import System, Tracked
from settled.proofs.invariant import conjuncts, induction
from settled.proofs.masks import CASES, Case
from settled.proofs.theorem import Killer, Part, Theorem

COUNTS = ("counts", "live step", "stale step")
_ENDS_A_GENERATION = "preempt, finish or abort"


IN_ORDER_OUTPUT = (
    "outputs are processed in schedule order, stale ones before live ones",
    "a step has at least one token, and its output rejects at most its drafts (of another step: at most its tokens)",
)

# ---- theorem 1 -------------------------------------------------------------------------------------------------------


def prefix_sums(discipline: Discipline) -> list[Obligation]:
    state = fifo.symbolic_fifo()
    obligations = inductive(
        assumptions={},
        initial=_fifo_invariant(fifo.EMPTY),
        conjuncts=_fifo_invariant(state),
        transitions=[Transition(action.name, action.guard, _fifo_invariant(action.after)) for action in fifo.actions(state, discipline)],
        properties=_fifo_properties(state),
    )
    return with_axiom(obligations, Axiom(fifo.SYMBOL, "every step has a token", fifo.increases))


def _fifo_invariant(state: fifo.Fifo) -> dict[str, BoolTerm]:
    head, tail, boundary = as_int(state.head), as_int(state.tail), as_int(state.boundary)
    return {**fifo.agree(state), "queue order": both(head <= boundary, boundary <= tail)}


def _fifo_properties(state: fifo.Fifo) -> Named:
    head, tail = as_int(state.head), as_int(state.tail)
    in_flight, stale = as_int(state.counters.in_flight), as_int(state.counters.stale)
    return {
        "counters_symmetric": both(*fifo.agree(state).values()),
        "idle exactly when nothing is in flight": (head == tail) == (in_flight == 0),
        "stale tokens are in flight": both(stale >= 0, stale <= in_flight),
        "the oldest step is stale exactly when stale > 0": (stale > 0) == (head < state.boundary),
    }


COUNTERS_SYMMETRIC = Theorem(
    key="T1",
    name="counters_symmetric",
    sentence=(
        "In flight is the sum of the tokens of the unprocessed steps and stale of those of ended generations, through rejection, "
        "preemption, finish and abort; 0 exactly when idle."
    ),
    assumptions=("every step has at least one token", "outputs are processed in schedule order"),
    parts=(Part("prefix sums over the queue", RIGHT, prefix_sums),),
    killers=(
        Killer(UNDRAINED, "prefix sums over the queue", "process", "in flight is the sum"),
        Killer(STALE_APPLIED, "prefix sums over the queue", "process", "computed is what events say"),
        Killer(STALE_UNMARKED, "prefix sums over the queue", "preempt, finish or abort", "stale is the sum"),
    ),
)


# ---- theorem 2 -------------------------------------------------------------------------------------------------------


def _true_start(discipline: Discipline) -> list[Obligation]:
    kind = AnyShrinking(int_variable("token"))
    obligations = induction(kind, discipline, assumptions={}, only=COUNTS, properties=_start_properties)
    return [*obligations, *_never_falls(System(kind, discipline))]


def _start_properties(state: Tracked, system: System) -> Named:
    step, settled = state.step, count.settled(state.counters)
    oldest = both(lifetime.is_live(step), as_int(step.ahead) == 0)
    no_live = as_int(state.counters.in_flight) == state.counters.stale
    return {
        "the oldest live step starts at p": implies(oldest, as_int(step.start) == settled),
        "with none, the next step starts at p": implies(no_live, as_int(state.counters.computed) == settled),
        "max(0, C - F) <= p": count.processed(state.counters) <= settled,
    }


def _never_falls(system: System) -> list[Obligation]:
    """p does not fall by any action within a generation."""
    state = tracked.symbolic_state()
    before = {name: term for name, term in conjuncts(state, system).items() if name in COUNTS}
    return [
        Obligation(
            f"p does not fall: {action.name}",
            {**system.assumptions(), **before, **{f"guard: {name}": term for name, term in action.guard.items()}},
            {"p does not fall": count.settled(action.after.counters) >= count.settled(state.counters)},
        )
        for action in tracked.actions(state, system)
        if action.name != _ENDS_A_GENERATION and action.after.counters is not state.counters
    ]


SETTLED_IS_TRUE_START = Theorem(
    key="T2",
    name="settled",
    sentence=(
        "p = C - (F - stale) is the true start of the oldest unprocessed live step, of the next step if there is none; it never falls "
        "within a generation; max(0, C - F) is at most p."
    ),
    assumptions=(*IN_ORDER_OUTPUT, "a hit comes at computed = 0"),
    parts=(Part("any step", RIGHT, _true_start),),
    killers=(
        Killer(STALE_APPLIED, "any step", "process a stale step", "live step"),
        Killer(STALE_APPLIED, "any step", "p does not fall: process a stale step", "p does not fall"),
    ),
)


# ---- theorem 6 -------------------------------------------------------------------------------------------------------


def _synchronous(case: Case, discipline: Discipline) -> list[Obligation]:
    """With nothing in flight, the discipline frees exactly what a synchronous engine frees on the computed count."""

    def properties(state: Tracked, system: System) -> Named:
        idle = as_int(state.counters.in_flight) == 0
        return {
            "p = C": implies(idle, count.settled(state.counters) == state.counters.computed),
            "max(0, C - F) = C": implies(idle, count.processed(state.counters) == state.counters.computed),
            _SAME: implies(idle, _frees_the_same(case, state, system)),
        }

    return induction(case.kind, discipline, assumptions=case.assumptions, only=COUNTS, properties=properties)


def _synchronous_frees(case: Case, discipline: Discipline) -> list[Obligation]:
    """The same of the freed blocks, for another kind; the counters do not depend on it."""
    system, state = System(case.kind, discipline), tracked.symbolic_state()
    counts = {"counts": conjuncts(state, system)["counts"], "nothing in flight": as_int(state.counters.in_flight) == 0}
    obligation = Obligation(_SAME, {**system.assumptions(), **case.assumptions, **counts}, {_SAME: _frees_the_same(case, state, system)})
    return with_axiom([obligation], case.kind.axiom)


def _frees_the_same(case: Case, state: Tracked, system: System) -> BoolTerm:
    synchronous = case.kind.frees_block(system.first, system.last, state.counters.computed, Rounding.FLOOR)
    return system.frees(state.counters, system.discipline.free_basis) == synchronous


_SAME = "the same blocks are freed"
_FIRST_KIND = "sliding window"

SYNCHRONOUS_UNCHANGED = Theorem(
    key="T6",
    name="synchronous",
    sentence=(
        "Whenever nothing is in flight the settled, the processed and the computed count are equal, so a synchronous engine frees exactly "
        "the blocks that it freed before the fix."
    ),
    assumptions=("no load is pending (loads are not modelled yet)",),
    parts=(
        Part(_FIRST_KIND, RIGHT, partial(_synchronous, CASES[_FIRST_KIND])),
        *(Part(title, RIGHT, partial(_synchronous_frees, case)) for title, case in CASES.items() if title != _FIRST_KIND),
        Part("mamba align", RIGHT, partial(_synchronous_frees, Case(MambaAlign()))),
    ),
    killers=(Killer(CEIL, _FIRST_KIND, _SAME, _SAME),),
)
