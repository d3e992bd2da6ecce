"""Theorem 5: the rule is tight. What it keeps, some continuation reads; what it may free, a prune frees."""

from __future__ import annotations

from settled.model import counters as count
from settled.model import tracked
from settled.model.algebra import as_int, both, int_variable, maximum, negate, select
from settled.model.counters import Counters
from settled.model.disciplines import RIGHT, VLLM, Discipline
from settled.model.kinds import Kind, SlidingWindow, in_block
from settled.model.properties import Property
from settled.model.search.induction import Obligation
from settled.model.tracked import System
from settled.proofs.masks import FULL_ATTENTION
from settled.proofs.theorem import Killer, Part, Theorem

_WINDOW = SlidingWindow(int_variable("window"))


def _tight(kind: Kind, discipline: Discipline) -> list[Obligation]:
    """A witness: the last token of a block that is all settled, else its first token from p on; read by the query at p or its own."""
    counters = Counters(int_variable("computed"), int_variable("in_flight"), int_variable("stale"))
    first, last, length = int_variable("first"), int_variable("last"), int_variable("model length")
    p = count.settled(counters)
    basis = count.free_basis(counters, discipline.free_basis)
    token = select(last < p, last, maximum(first, p))
    query = maximum(p, token)
    hypotheses = {
        "window >= 1": int_variable("window") >= 1,
        "counts": both(counters.stale >= 0, counters.in_flight >= counters.stale, p >= 0),
        "unfinished: p < model length": p < length,
        "the block holds a position below the model length": both(first >= 0, first <= last, first < length),
        "the rule keeps the block": negate(kind.frees_block(first, last, basis, discipline.rounding)),
    }
    conclusions = {
        "the token is in the block": in_block(token, first, last),
        "the query is to come": both(query >= p, query < length),
        "the query reads the token": kind.reads(query, token),
    }
    return [Obligation("kept blocks are read", hypotheses, conclusions), Obligation("cover: a block is kept", hypotheses)]


def _held_bounded(kind: Kind, discipline: Discipline) -> list[Obligation]:
    """Right after a request's own prune, it holds no whole block of which the mask needs nothing from p on."""
    system, state = System(kind, discipline), tracked.symbolic_state()
    p = count.settled(state.counters)
    unneeded = both(kind.may_free(system.first, p), kind.may_free(system.last, p))
    hypotheses = {
        **system.assumptions(),
        "window >= 1": int_variable("window") >= 1,
        "counts": both(as_int(state.counters.stale) >= 0, as_int(state.counters.in_flight) >= state.counters.stale, p >= 0),
        "the request prunes now": tracked.PRUNES,
    }
    return [
        Obligation(action.name, {**hypotheses, **action.guard}, {Property.HELD_BOUNDED: negate(both(action.after.entry.held, unneeded))})
        for action in tracked.actions(state, system)
        if action.name in tracked.PRUNING
    ]


TIGHT = Theorem(
    key="T5",
    name="tightness",
    sentence=(
        "For an unfinished request below the maximum model length and extra_retained = 0, any block that the rule keeps and that holds a "
        "position below that length is read by some continuation: no rule frees more. Right after its own prune a request holds no "
        "whole block that the mask does not need from p on (the admission cap is another theorem's)."
    ),
    assumptions=(
        "the continuation: the step that starts at p runs (T2), then steps of one token each up to the query",
        "extra_retained = 0, window >= 1, 0 <= stale <= in flight, p >= 0 (T2)",
        "the request prunes at every schedule, before it allocates",
    ),
    parts=(
        Part("sliding window", RIGHT, lambda discipline: _tight(_WINDOW, discipline)),
        Part("full attention", RIGHT, lambda discipline: _tight(FULL_ATTENTION, discipline)),
        Part("held_bounded, sliding window", RIGHT, lambda discipline: _held_bounded(_WINDOW, discipline)),
        Part("held_bounded, full attention", RIGHT, lambda discipline: _held_bounded(FULL_ATTENTION, discipline)),
    ),
    killers=(
        Killer(VLLM, "sliding window", "kept blocks are read", "the query reads the token"),
        Killer(VLLM, "held_bounded, sliding window", "schedule another step", Property.HELD_BOUNDED),
    ),
)
