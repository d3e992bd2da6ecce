"""Fences: theorem 11 of whole-request frees, theorem 12 of the prune before a connector's finish, and the fences behind a prune."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from functools import partial

from settled.model import counters as count
from settled.model import lifetime, tracked, tracked_properties
from settled.model.algebra import as_int, both, either, implies, negate
from settled.model.disciplines import CALLBACK, CEIL, NO_FENCE, OPTIMISTIC, POOL_FENCE, RAW_FINISH, RIGHT, Discipline
from settled.model.properties import Contract, Property
from settled.model.search.induction import Named, Obligation, with_axiom
from settled.model.tracked import Action, System, Tracked
from settled.proofs.invariant import conjuncts, induction
from settled.proofs.masks import CASES, Case
from settled.proofs.residency import GENERIC, IN_USE, NEXT_STEP
from settled.proofs.theorem import Killer, Part, Theorem

ENDS_A_GENERATION = "preempt, finish or abort"
FINISH_PRUNE = "prune before a connector's finish"
OWNED_BY_ANYONE = ("pruned is null", "row is the table's", "fence ends with the step", "entry of b is held", "single owner")
KEPT = (*OWNED_BY_ANYONE, "kept in use", "never given away in use")

# ---- one event from a state of the invariant -------------------------------------------------------------------------


def _steps(case: Case, discipline: Discipline, invariant: Collection[str], names: Iterable[str] = ()) -> list[tuple[Action, System, Named]]:
    """The actions of these names, all if none is named, each with the hypothesis that the state before it satisfies the invariant."""
    system, state = System(case.kind, discipline), tracked.symbolic_state()
    held = {name: term for name, term in conjuncts(state, system).items() if name in invariant}
    return [
        (
            action,
            system,
            {**system.assumptions(), **case.assumptions, **held, **{f"guard: {name}": term for name, term in action.guard.items()}},
        )
        for action in tracked.actions(state, system)
        if not names or action.name in names
    ]


def _write_owned(state: Tracked, system: System) -> Named:
    return {f"{Property.WRITE_OWNED}, {contract}": tracked_properties.write_owned(state, system, contract) for contract in Contract}


# ---- theorem 11 ------------------------------------------------------------------------------------------------------


def _survives(case: Case, discipline: Discipline) -> list[Obligation]:
    """What the step writes is still its request's after every event: the end of its generation, what follows, loads over free blocks."""
    obligations = [
        Obligation(action.name, hypotheses, _write_owned(action.after, system))
        for action, system, hypotheses in _steps(case, discipline, IN_USE)
    ]
    return with_axiom(obligations, case.kind.axiom)


def _frees_nothing(case: Case, discipline: Discipline) -> list[Obligation]:
    """The end of a generation under a step in flight gives no block that the step's row names back: preempting such a victim is useless."""
    state = tracked.symbolic_state()
    ((action, _, hypotheses),) = _steps(case, discipline, IN_USE, [ENDS_A_GENERATION])
    victim = {"a step in flight uses b": both(lifetime.is_live(state.step), state.entry_is_b)}
    unchanged = both(
        as_int(action.after.block.references) == state.block.references,
        negate(both(action.after.block.free, negate(state.block.free))),
    )
    return with_axiom([Obligation(_NOTHING, {**hypotheses, **victim}, {_NOTHING: unchanged})], case.kind.axiom)


_NOTHING = "no reference goes, no block is free"
_SURVIVES, _USELESS = "any shrinking mask", "preempting under steps in flight"

FENCED = Theorem(
    key="T11",
    name="fence",
    sentence=(
        "With a KV consumer, which loads into free blocks out of order, a finish, a preemption or an abort under steps in flight keeps "
        "write_owned, since the whole table waits behind the fence; without the fence it does not. Preempting a request whose blocks would "
        "wait frees nothing at once (vLLM #49674)."
    ),
    assumptions=("the invariant of T3, and what T3 assumes",),
    parts=(Part(_SURVIVES, RIGHT, partial(_survives, GENERIC)), Part(_USELESS, RIGHT, partial(_frees_nothing, GENERIC))),
    killers=(
        Killer(NO_FENCE, _SURVIVES, ENDS_A_GENERATION, f"{Property.WRITE_OWNED}, {Contract.SETTLED}"),
        Killer(NO_FENCE, _USELESS, _NOTHING, _NOTHING),
    ),
)


# ---- theorem 12 ------------------------------------------------------------------------------------------------------


def _finish_prune(case: Case, discipline: Discipline) -> list[Obligation]:
    """The prune takes nothing that a step in flight uses, and leaves the connector every key that the mask needs from p on."""
    ((action, system, hypotheses),) = _steps(case, discipline, {*IN_USE, *NEXT_STEP}, [FINISH_PRUNE])
    after, before = action.after, tracked.symbolic_state()
    p = count.settled(after.counters)
    needed = both(system.token < as_int(after.counters.computed), negate(case.kind.may_free(system.token, p)))
    conclusions = {
        Property.READ_RESIDENT: tracked_properties.read_resident(after, system, Contract.SETTLED),
        Property.WRITE_OWNED: tracked_properties.write_owned(after, system, Contract.SETTLED),
        _SHOWN: implies(needed, after.entry.held),
    }
    goes = {**hypotheses, "a block goes under a step in flight": both(before.step.unprocessed, before.entry_is_b, negate(after.entry_is_b))}
    obligations = [
        *(Obligation(name, hypotheses, {name: term}) for name, term in conclusions.items()),
        Obligation("cover: a block goes under a step in flight", goes),
    ]
    return with_axiom(obligations, case.kind.axiom)


_SHOWN = "the connector is shown what is needed from p on"

FINISH_PRUNED = Theorem(
    key="T12",
    name="finish prune",
    sentence=(
        "The prune before a connector is shown a finished request's table uses the settled count: no step in flight loses a block that it "
        "reads or writes, and the table shows every block that is needed from p on. On the raw computed count all three fail."
    ),
    assumptions=("the invariants of T3 and T4, and what they assume",),
    parts=(
        Part("any shrinking mask", RIGHT, partial(_finish_prune, GENERIC)),
        Part("sliding window", RIGHT, partial(_finish_prune, CASES["sliding window"])),
    ),
    killers=(
        *(Killer(RAW_FINISH, "any shrinking mask", name, name) for name in (Property.READ_RESIDENT, Property.WRITE_OWNED, _SHOWN)),
        Killer(CEIL, "sliding window", _SHOWN, _SHOWN),
    ),
)


# ---- fences behind a prune -------------------------------------------------------------------------------------------


def kept(case: Case, discipline: Discipline) -> list[Obligation]:
    """What the row of a step had when it was scheduled is there until the step is processed, whatever the prune relied on."""
    return induction(case.kind, discipline, assumptions=case.assumptions, only=KEPT, properties=_kept_in_flight)


def _kept_in_flight(state: Tracked, system: System) -> Named:
    claims = {f"{KEPT_IN_FLIGHT}, {contract}": tracked_properties.kept_in_flight(state, system, contract) for contract in Contract}
    return {**claims, Property.SINGLE_OWNER: tracked_properties.single_owner(state)}


def rows(case: Case, discipline: Discipline) -> list[Obligation]:
    """A row is made of all that no prune took, and a prune takes nothing that a query at the computed count reads."""
    state = tracked.symbolic_state()
    obligations = []
    for action, system, hypotheses in _steps(case, discipline, ("counts",), tracked.PRUNING):
        goes = both(action.after.entry.pruned, negate(state.entry.pruned))
        needless = implies(goes, case.kind.may_free(system.token, state.counters.computed))
        obligations.append(Obligation(action.name, hypotheses, {_NEEDLESS: needless}))
        if action.name == "schedule the step":
            beyond = system.token >= as_int(state.counters.computed) + tracked.TOKENS + system.lookahead
            complete = either(action.after.row_held, action.after.entry.pruned, beyond)
            obligations.append(Obligation(_COMPLETE, hypotheses, {_COMPLETE: complete}))
    return with_axiom(obligations, case.kind.axiom)


KEPT_IN_FLIGHT = "kept in flight"
_NEEDLESS = "what a prune takes, no query at the computed count reads"
_COMPLETE = "the row has all that no prune took"
_ROWS = "rows, sliding window"

PRUNE_FENCED = Theorem(
    key="A1",
    name="fences behind a prune",
    sentence=(
        "A prune on the computed count whose blocks wait for the steps scheduled before it, in the pool (vLLM #47653) or for a callback, "
        "repairs fault 1: no unprocessed step loses a block that its row had, for any mask at all, so read_resident and the half of "
        "write_owned that speaks of steps in flight hold. It does not repair fault 2, the rollback: T4 is killed by both, and "
        "`settled refute pool-fence` shows a shortest trace."
    ),
    assumptions=(
        "what T3 assumes",
        "a read of an entry that was null when the step was scheduled is rollback_resident's, if only a rollback made it needed",
    ),
    parts=(
        Part("pool fence, any mask", POOL_FENCE, partial(kept, GENERIC)),
        Part("callback, any mask", CALLBACK, partial(kept, GENERIC)),
        Part("rows, any shrinking mask", POOL_FENCE, partial(rows, GENERIC)),
        Part(_ROWS, POOL_FENCE, partial(rows, CASES["sliding window"])),
    ),
    killers=(
        Killer(OPTIMISTIC, "pool fence, any mask", "schedule another step", "kept in use"),
        Killer(OPTIMISTIC, "callback, any mask", FINISH_PRUNE, "kept in use"),
        Killer(CEIL, _ROWS, "schedule the step", _NEEDLESS),
    ),
)
