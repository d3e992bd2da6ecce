"""What a prune before a connector's finish can break at most, whatever its basis.

A request that sees one is finished: it is not scheduled again, so nothing is rolled back for it, and the rows of its steps in flight are
made. What is left to lose is a block of such a row, and that is the affair of theorem 12 alone.
"""

from __future__ import annotations

from collections.abc import Sequence

from settled.model import counters as count
from settled.model import tracked
from settled.model.algebra import BoolTerm, as_int, both, either, implies, negate, select
from settled.model.disciplines import Discipline
from settled.model.search.induction import Named, Obligation, with_axiom
from settled.model.tracked import System, Tracked
from settled.proofs.fence import FINISH_PRUNE
from settled.proofs.invariant import conjuncts
from settled.proofs.masks import Case
from settled.proofs.residency import IN_ORDER, NO_LOAD, in_order, in_order_use, rollback

_OF_UNFINISHED = ("schedule another step", "schedule the step", "start with a prefix-cache hit")
_ROW = "row, whatever the table has"


def rollback_unfinished(case: Case, discipline: Discipline) -> list[Obligation]:
    """Theorem 4 for a request that is not finished yet."""
    return _before_the_finish(rollback(case, discipline))


def in_order_to_the_end(case: Case, discipline: Discipline) -> list[Obligation]:
    """Without writers out of order: theorem 3 up to the finish, then that the rows which are made by then stay as good without it."""
    system, state = System(case.kind, discipline), tracked.symbolic_state()
    assumed = {**system.assumptions(), **case.assumptions, **NO_LOAD}
    before = {name: term for name, term in conjuncts(state, system).items() if name in IN_ORDER}
    finished = {**assumed, **_kept(state, system)}
    obligations = [Obligation("at the finish", {**assumed, **before}, {_ROW: _row(state, system)})]
    for action in tracked.actions(state, system):
        if action.name not in _OF_UNFINISHED:
            guards = {f"guard: {name}": term for name, term in action.guard.items()}
            obligations.append(Obligation(f"finished: {action.name}", {**finished, **guards}, _kept(action.after, system)))
    obligations += [Obligation(f"finished: {name}", finished, {name: term}) for name, term in in_order_use(state, system).items()]
    return [*_before_the_finish(in_order(case, discipline)), *with_axiom(obligations, case.kind.axiom)]


def _before_the_finish(obligations: Sequence[Obligation]) -> list[Obligation]:
    return [obligation for obligation in obligations if obligation.name.removeprefix("cover: ") != FINISH_PRUNE]


def _kept(state: Tracked, system: System) -> Named:
    """The invariant of a finished request; what its table has plays no part."""
    others = {name: term for name, term in conjuncts(state, system).items() if name in IN_ORDER and name not in ("pruned", "row")}
    return {**others, _ROW: _row(state, system)}


def _row(state: Tracked, system: System) -> BoolTerm:
    """The step's row has a block for every token that its generation needs from what is settled of it on."""
    step = state.step
    settled = select(step.stale, state.ended_settled, count.settled(state.counters))
    beyond = system.token >= as_int(step.start) + step.tokens + system.lookahead
    unneeded = either(beyond, system.kind.may_free(system.token, settled))
    return implies(both(step.unprocessed, negate(unneeded)), state.row_held)
