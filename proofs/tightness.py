"""Theorem 5: the rule is tight. What it keeps, some continuation reads; what it may free, a prune frees."""

from __future__ import annotations

from functools import partial

from settled.model import counters as count
from settled.model import tracked
from settled.model.algebra import BoolTerm, IntTerm, as_int, both, int_variable, maximum, negate, select
from settled.model.counters import Counters
from settled.model.disciplines import RIGHT, VLLM, Discipline
from settled.model.kinds import in_block
from settled.model.properties import Property
from settled.model.search.induction import Obligation, with_axiom
from settled.model.tracked import System
from settled.proofs import mamba
from settled.proofs.masks import CASES, FREEING, Case
from settled.proofs.theorem import Killer, Part, Theorem


def _tight(case: Case, discipline: Discipline) -> list[Obligation]:
    """A witness: the last token of a block that is all settled, else its first token from p on; read by the query at p or its own. A
    block that is kept for its prefix has its first token for one."""
    counters = Counters(int_variable("computed"), int_variable("in_flight"), int_variable("stale"))
    first, last, length = int_variable("first"), int_variable("last"), int_variable("model length")
    p = count.settled(counters)
    basis = count.free_basis(counters, discipline.free_basis)
    token = select(first < case.prefix, first, select(last < p, last, maximum(first, p)))
    query = maximum(p, token)
    hypotheses = {
        **case.assumptions,
        "counts": both(counters.stale >= 0, counters.in_flight >= counters.stale, p >= 0),
        "unfinished: p < model length": p < length,
        "the block holds a position below the model length": both(first >= 0, first <= last, first < length),
        "the rule keeps the block": negate(case.kind.frees_block(first, last, basis, discipline.rounding)),
        "but not in the stated gap": negate(both(_is_unneeded(case, first, last, p), case.gap(last, p))),
    }
    conclusions = {
        "the token is in the block": in_block(token, first, last),
        "the query is to come": both(query >= p, query < length),
        "the query reads the token": case.kind.reads(query, token),
    }
    obligations = [Obligation("kept blocks are read", hypotheses, conclusions), Obligation("cover: a block is kept", hypotheses)]
    return with_axiom(obligations, case.kind.axiom)


def _is_unneeded(case: Case, first: IntTerm, last: IntTerm, p: IntTerm) -> BoolTerm:
    """Whether the mask lets a whole block go: its first and its last token, since what may go has no hole (T3)."""
    return both(case.kind.may_free(first, p), case.kind.may_free(last, p))


def _held_bounded(case: Case, discipline: Discipline) -> list[Obligation]:
    """Right after a request's own prune, it holds no whole block of which the mask needs nothing from p on, but in the stated gap."""
    system, state = System(case.kind, discipline), tracked.symbolic_state()
    p = count.settled(state.counters)
    unneeded = both(_is_unneeded(case, system.first, system.last, p), negate(case.gap(system.last, p)))
    hypotheses = {
        **system.assumptions(),
        **case.assumptions,
        "counts": both(as_int(state.counters.stale) >= 0, as_int(state.counters.in_flight) >= state.counters.stale, p >= 0),
        "the request prunes now": tracked.PRUNES,
    }
    obligations = [
        Obligation(action.name, {**hypotheses, **action.guard}, {Property.HELD_BOUNDED: negate(both(action.after.entry.held, unneeded))})
        for action in tracked.actions(state, system)
        if action.name in tracked.PRUNING
    ]
    return with_axiom(obligations, case.kind.axiom)


TIGHT = Theorem(
    key="T5",
    name="tightness",
    sentence=(
        "For an unfinished request below the maximum model length, any block that the rule keeps and that holds a position below that "
        "length is read by some continuation: no rule frees more. Right after its own prune a request holds no whole block that the mask "
        "does not need from p on. The gap: extra retained tokens of a sliding window, and one key more than the mask needs in R-SWA, "
        "are kept, and exactly those (the admission cap is another theorem's). Mamba align: of a block below that of the last position."
    ),
    assumptions=(
        "the continuation: the step that starts at p runs (T2), then steps of one token each up to the query",
        "window >= 1, chunk >= 1, 0 <= stale <= in flight, p >= 0 (T2)",
        "the request prunes at every schedule, before it allocates",
        "mamba align: no drafts (with them the block of the last settled token may be kept though its state stands in a slot behind it)",
    ),
    parts=(
        *(Part(title, RIGHT, partial(_tight, case)) for title, case in CASES.items()),
        *(Part(f"held_bounded, {title}", RIGHT, partial(_held_bounded, case)) for title, case in CASES.items()),
        Part("mamba align", RIGHT, mamba.tight),
        Part("held_bounded, mamba align", RIGHT, mamba.held_bounded),
    ),
    killers=(
        *(Killer(VLLM, title, "kept blocks are read", "the query reads the token") for title in FREEING),
        Killer(VLLM, "mamba align", "kept blocks are read", "the state is in the block"),
        *(Killer(VLLM, f"held_bounded, {title}", "schedule another step", Property.HELD_BOUNDED) for title in FREEING),
    ),
)
