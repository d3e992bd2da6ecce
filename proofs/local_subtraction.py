"""Theorem 7: the local subtraction, C less a step's drafts, by which vLLM's Mamba manager used to free; and the same for a window."""

from __future__ import annotations

from functools import partial

from settled.model import counters as count
from settled.model.algebra import BoolTerm, IntTerm, as_int, both, implies, int_variable
from settled.model.counters import Counters
from settled.model.disciplines import LOCAL_SUBTRACTION, MAMBA_LOCAL, RIGHT, Discipline
from settled.model.kinds import MambaAlign, SlidingWindow, in_block
from settled.model.search.induction import Named, Obligation
from settled.proofs.masks import CASES, WINDOW, Case, claim
from settled.proofs.theorem import Killer, Part, Theorem

_DRAFTS = int_variable("K")
_TOKEN, _FIRST, _LAST = int_variable("token"), int_variable("first"), int_variable("last")
_COUNTERS = Counters(int_variable("computed"), int_variable("in_flight"), int_variable("stale"))
_P = count.settled(_COUNTERS)
_LIVE = as_int(_COUNTERS.in_flight) - _COUNTERS.stale
_MAMBA = Case(MambaAlign())
_SLIDING = CASES["sliding window"]
_NOTHING_EXTRA = Case(SlidingWindow(WINDOW), {"window >= 1": WINDOW >= 1})


def _assumed(case: Case) -> Named:
    return {
        **case.assumptions,
        "counts": both(as_int(_COUNTERS.stale) >= 0, _LIVE >= 0, _P >= 0),
        "K >= 0": _DRAFTS >= 0,
        "the block holds the token": both(_FIRST >= 0, in_block(_TOKEN, _FIRST, _LAST)),
    }


def _safe(case: Case, discipline: Discipline) -> list[Obligation]:
    """While no more than K tokens are in flight the subtraction takes off enough; at F = 0 it frees nothing that settled would keep."""
    frees, settled_frees = _frees(case, discipline), case.kind.frees_block(_FIRST, _LAST, _P, discipline.rounding)
    idle = {**_assumed(case), "F = 0": both(as_int(_COUNTERS.in_flight) == 0, as_int(_COUNTERS.stale) == 0)}
    few = {**_assumed(case), "F - stale <= K": _LIVE <= _DRAFTS}
    return [
        claim("at F = 0 settled frees all that the subtraction frees", idle, implies(frees, settled_frees)),
        claim("with at most K in flight no needed token goes", few, implies(frees, case.kind.may_free(_TOKEN, _P))),
    ]


def _any_depth(case: Case, discipline: Discipline) -> list[Obligation]:
    return [claim(_ANY, _assumed(case), implies(_frees(case, discipline), case.kind.may_free(_TOKEN, _P)))]


def _unsafe(case: Case, oldest: IntTerm, discipline: Discipline) -> list[Obligation]:
    """As soon as more than K tokens are in flight, a block that ends with the oldest token that the query at p reads goes.

    One decode step of K + 1 tokens is enough, and so is a chunk of a prompt.
    """
    many = {
        **_assumed(case),
        "F - stale > K": _LIVE > _DRAFTS,
        "the block ends with the oldest needed token": both(_LAST == oldest, oldest >= 0),
    }
    needed = case.kind.step_reads(_P, 1, _LAST)
    decode = {**many, "one decode step": both(_LIVE == _DRAFTS + 1, as_int(_COUNTERS.stale) == 0)}
    return [
        claim("with more than K in flight a needed block goes", many, both(_frees(case, discipline), needed)),
        Obligation("cover: one decode step of K + 1 tokens", decode),
    ]


def _frees(case: Case, discipline: Discipline) -> BoolTerm:
    basis = discipline.free_basis if discipline.state_basis is None else discipline.state_basis
    return case.kind.frees_block(_FIRST, _LAST, count.free_basis(_COUNTERS, basis, _DRAFTS), discipline.rounding)


_ANY = "whatever is in flight no needed token goes"

LOCALLY_SUBTRACTED = Theorem(
    key="T7",
    name="local subtraction",
    sentence=(
        "Freeing on max(0, C - K), K drafts a step, as vLLM's Mamba manager did by itself, is safe while at most K tokens are in "
        "flight; at F = 0 the settled count frees at least as much. With more than K in flight (a chunk of a prompt, or one decode step "
        "of K + 1 tokens) it frees a block that the next step reads; so it does for a sliding window. Settled subsumes it."
    ),
    assumptions=("0 <= stale <= in flight, p >= 0 (T2)", "K >= 0, window >= 1; extra_retained = 0 where a needed block goes"),
    parts=(
        Part("mamba", MAMBA_LOCAL, partial(_safe, _MAMBA)),
        Part("sliding window", LOCAL_SUBTRACTION, partial(_safe, _SLIDING)),
        Part("mamba, more in flight", MAMBA_LOCAL, partial(_unsafe, _MAMBA, _P - 1)),
        Part("sliding window, more in flight", LOCAL_SUBTRACTION, partial(_unsafe, _NOTHING_EXTRA, _P - WINDOW + 1)),
        Part("mamba, settled", RIGHT, partial(_any_depth, _MAMBA)),
        Part("sliding window, settled", RIGHT, partial(_any_depth, _SLIDING)),
    ),
    killers=(
        Killer(MAMBA_LOCAL, "mamba, settled", _ANY, _ANY),
        Killer(LOCAL_SUBTRACTION, "sliding window, settled", _ANY, _ANY),
    ),
)
