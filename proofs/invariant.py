"""The joint invariant of the tracked environment, one named conjunct for each reason why it holds."""

from __future__ import annotations

from collections.abc import Callable, Collection

from settled.model import counters as count
from settled.model import lifetime, tracked
from settled.model.algebra import BoolTerm, as_bool, as_int, both, either, implies, negate
from settled.model.disciplines import Discipline
from settled.model.kinds import Kind
from settled.model.search.induction import Named, Obligation, Transition, inductive, with_axiom
from settled.model.tracked import System, Tracked
from settled.model.tracked_properties import single_owner

Properties = Callable[[Tracked, System], Named]


def conjuncts(state: Tracked, system: System) -> dict[str, BoolTerm]:
    """All conjuncts; a theorem names those that it needs, and `tests/proofs/test_mutations.py` drops each of these."""
    return {**_counts(state), **_table(state, system), **_row(state, system), **_pool(state, system)}


def _counts(state: Tracked) -> dict[str, BoolTerm]:
    """What the counters say of the tracked step."""
    step, settled = state.step, count.settled(state.counters)
    in_flight, stale = as_int(state.counters.in_flight), as_int(state.counters.stale)
    ahead, tokens, stale_ahead = as_int(step.ahead), as_int(step.tokens), as_int(state.stale_ahead)
    shape = both(tokens >= 1, as_int(step.drafts) <= tokens, ahead >= 0)
    return {
        "counts": both(stale >= 0, in_flight >= stale, settled >= 0),
        "live step": implies(
            lifetime.is_live(step), both(shape, as_int(step.start) == settled + ahead, ahead + tokens <= in_flight - stale)
        ),
        "stale step": implies(
            lifetime.is_stale(step),
            both(shape, as_int(step.start) == as_int(state.ended_settled) + ahead, stale_ahead >= 0, stale_ahead + ahead + tokens <= stale),
        ),
    }


def _table(state: Tracked, system: System) -> dict[str, BoolTerm]:
    """What the table holds: a pruned token is settled and not needed, anything else is there."""
    computed = as_int(state.counters.computed)
    kept = both(system.token < computed, negate(state.entry.pruned))
    return {
        "pruned": implies(state.entry.pruned, system.kind.may_free(system.token, count.settled(state.counters))),
        "resident": implies(kept, state.entry.held),
        "pruned is null": implies(state.entry.pruned, negate(state.entry.held)),
    }


def _row(state: Tracked, system: System) -> dict[str, BoolTerm]:
    """What the row of the tracked step names: what the table holds, or what the fence keeps."""
    step = state.step
    live = both(lifetime.is_live(step), negate(state.entry.pruned))
    same_block = as_bool(state.entry_is_b) == as_bool(state.row_is_b)
    out_of_need = either(_is_beyond(state, system), _is_unneeded(state, system))
    return {
        "row": implies(both(step.unprocessed, negate(out_of_need)), state.row_held),
        "row is the table's": implies(both(live, state.row_held), both(state.entry.held, same_block)),
        "fence": implies(both(lifetime.is_stale(step), state.row_held), either(state.fenced, out_of_need)),
        "fence ends with the step": implies(state.fenced, both(step.unprocessed, state.row_held, either(step.stale, state.entry.pruned))),
        "kept in use": implies(both(step.unprocessed, state.row_held), either(state.fenced, both(negate(step.stale), state.entry.held))),
    }


def _is_unneeded(state: Tracked, system: System) -> BoolTerm:
    """Whether the step's generation has no more need of the token: pruned, or prunable at what was settled of it."""
    step = state.step
    ended = both(step.stale, system.kind.may_free(system.token, state.ended_settled))
    return either(ended, both(negate(step.stale), state.entry.pruned))


def _is_beyond(state: Tracked, system: System) -> BoolTerm:
    """Whether the tracked token lies past all that the step may write; rejections only move the step away from it."""
    step = state.step
    return system.token >= as_int(step.start) + step.tokens + system.lookahead


def _pool(state: Tracked, system: System) -> dict[str, BoolTerm]:
    """Who holds block b, and that nobody was given it while the step still uses it."""
    step = state.step
    given_away = both(step.unprocessed, state.row_is_b, either(state.unordered, state.unwaited))
    never_there = both(lifetime.is_live(step), negate(state.row_held))
    out_of_use = either(_is_unneeded(state, system), both(step.stale, _is_beyond(state, system)), never_there)
    return {
        "entry of b is held": implies(state.entry_is_b, state.entry.held),
        "single owner": single_owner(state),
        "given away after use": implies(given_away, out_of_use),
        "never given away in use": negate(both(given_away, state.row_held)),
        "every writer is ordered": implies(step.unprocessed, negate(either(state.unordered, state.unwaited))),
    }


def induction(
    kind: Kind,
    discipline: Discipline,
    *,
    assumptions: Named,
    only: Collection[str],
    properties: Properties,
) -> list[Obligation]:
    """The obligations that the conjuncts named in `only` are invariant under every action, and imply the properties."""
    system, state = System(kind, discipline), tracked.symbolic_state()

    def chosen(of: Tracked) -> dict[str, BoolTerm]:
        return {name: term for name, term in conjuncts(of, system).items() if name in only}

    obligations = inductive(
        assumptions={**system.assumptions(), **assumptions},
        initial=chosen(tracked.INITIAL),
        conjuncts=chosen(state),
        transitions=[Transition(action.name, action.guard, chosen(action.after)) for action in tracked.actions(state, system)],
        properties=properties(state, system),
    )
    return with_axiom(obligations, kind.axiom)
