"""An invariant that nobody wrote: Spacer finds one for the settled basis by itself, and plain queries verify it again.

The system is the tracked environment with what the question does not need held fixed: one arbitrary step and one arbitrary token of a
sliding window, any depth, no preemption. The bad state: a live step reads a token whose block was pruned.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from settled.model import lifetime, tracked
from settled.model.algebra import BoolTerm, IntTerm, Term, as_bool, as_int, both, int_variable, negate, substitute
from settled.model.disciplines import Discipline
from settled.model.kinds import SlidingWindow
from settled.model.search.induction import Obligation
from settled.model.search.solver import HornAnswer, HornRule, find_invariant
from settled.model.tracked import Action, System, Tracked
from settled.model.values import leaves, rebuild

KEPT = ("computed", "in_flight", "step.unprocessed", "step.start", "step.tokens", "step.ahead", "entry.pruned")
ACTIONS = (
    "schedule another step",
    "schedule the step",
    "process a live step before the step",
    "process a live step",
    "process the step, live",
)
_TOKEN, _WINDOW = int_variable("token"), int_variable("window")


@dataclass(frozen=True)
class Core:
    """The reduced system: its state, the actions on it, and what must not happen."""

    state: Tracked
    variables: tuple[IntTerm | BoolTerm, ...]
    actions: tuple[Action, ...]
    assumption: BoolTerm
    bad: BoolTerm

    def values(self, state: Tracked) -> dict[str, Term]:
        """The kept components of a state, by the name of their variable."""
        named = zip(leaves(tracked.symbolic_state()), leaves(state), strict=True)
        return {symbol.args[0]: _term(value) for symbol, value in named if symbol.args[0] in KEPT}


def core(discipline: Discipline) -> Core:
    """The reduced system under a discipline; a block of one token, since one token is what is read."""
    system = System(SlidingWindow(_WINDOW), discipline, token=_TOKEN, first=_TOKEN, last=_TOKEN, lookahead=as_int(0))
    full = tracked.symbolic_state()
    fixed = zip(leaves(full), leaves(tracked.INITIAL), strict=True)
    state = rebuild(full, (symbol if symbol.args[0] in KEPT else start for symbol, start in fixed))
    variables = tuple(symbol for symbol in leaves(full) if symbol.args[0] in KEPT)
    actions = tuple(action for action in tracked.actions(state, system) if action.name in ACTIONS)
    bad = both(lifetime.is_live(state.step), system.reads(state.step), state.entry.pruned)
    return Core(state, variables, actions, both(_TOKEN >= 0, _WINDOW >= 1), bad)


def ask_spacer(system: Core) -> HornAnswer:
    """Spacer's answer: unsat with an invariant, or sat if a bad state is reachable."""
    return find_invariant(
        system.variables,
        (_TOKEN, _WINDOW),
        (tracked.TOKENS, tracked.DRAFTS, tracked.REJECTED, tracked.PRUNES, tracked.PICKS_B),
        assumption=system.assumption,
        initial=system.values(tracked.INITIAL),
        rules=[HornRule(both(*action.guard.values()), system.values(action.after)) for action in system.actions],
        bad=system.bad,
    )


def verify(system: Core, found: tuple[BoolTerm, ...]) -> list[Obligation]:
    """The obligations that what Spacer found is an invariant and excludes the bad states, for any solver."""
    before = {f"found {number}": conjunct for number, conjunct in enumerate(found, start=1)}
    assumed = {"assumption": system.assumption}

    def after(values: Mapping[str, Term]) -> dict[str, BoolTerm]:
        return {name: substitute(conjunct, values) for name, conjunct in before.items()}

    covers = [Obligation(f"cover: {action.name}", {**assumed, **before, **action.guard}) for action in system.actions]
    return [
        *covers,
        Obligation("initial state", assumed, after(system.values(tracked.INITIAL))),
        *(Obligation(action.name, {**assumed, **before, **action.guard}, after(system.values(action.after))) for action in system.actions),
        Obligation("no bad state", {**assumed, **before}, {"no bad state": negate(system.bad)}),
    ]


def _term(value: IntTerm | BoolTerm | int | bool) -> Term:
    return as_bool(value) if isinstance(value, bool | BoolTerm) else as_int(value)
