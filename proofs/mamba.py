"""State kinds: what theorems 3 to 5 say of Mamba's slots.

A request's blocks belong to it as those of a sliding window of two tokens with K blocks of lookahead: that the free rule, the places of
the slots, and moves are no more than that window's is `as_a_window`, and theorems 3 and 4 then say that no block is lost. What that leaves
open, that the slots which a step uses are not null, is an invariant of its own (`slots`).
"""

from __future__ import annotations

from collections.abc import Callable

from settled.model import align
from settled.model import counters as count
from settled.model.algebra import BoolTerm, IntTerm, as_int, both, either, implies, int_variable, maximum, negate
from settled.model.align import Align, AlignSystem
from settled.model.counters import Counters
from settled.model.disciplines import Discipline
from settled.model.kinds import FullAttention, MambaAlign, MambaNone, SlidingWindow, in_block, needed_sets_shrink
from settled.model.properties import Property
from settled.model.search.induction import Named, Obligation, Transition, inductive
from settled.model.search.quotients import ordered
from settled.proofs.masks import NO_MORE, claim

MAMBA_ALIGN, WINDOW_OF_TWO = MambaAlign(), SlidingWindow(2)
_FIRST, _LAST, _BASIS, _TOKEN = (int_variable(name) for name in ("first", "last", "p", "token"))
_START, _TOKENS, _DRAFTS = (int_variable(name) for name in ("start", "tokens", "drafts"))
_BLOCK = {"0 <= first <= last": both(_FIRST >= 0, _FIRST <= _LAST), "p >= 0": _BASIS >= 0}


# ---- slots -----------------------------------------------------------------------------------------------------------


def conjuncts(state: Align, system: AlignSystem) -> dict[str, BoolTerm]:
    """Why the slots that a step uses are there, for one index of the table."""
    step = state.step
    computed, in_flight, rejectable = as_int(state.computed), as_int(state.in_flight), as_int(state.rejectable)
    lowest, edge = computed - rejectable, as_int(state.edge)  # what may be left of the computed count
    start, below = as_int(step.start), as_int(step.start) - step.rejectable_ahead
    unprocessed, has_table = step.unprocessed, edge > 0
    ahead = both(as_int(step.rejectable_ahead) >= 0, as_int(step.rejectable_ahead) <= step.ahead)
    return {
        "counts": both(rejectable >= 0, rejectable <= in_flight, in_flight <= computed),
        "last end": both(computed <= state.last_end, implies(in_flight > 0, computed == state.last_end)),
        "slots behind the last end": implies(has_table, as_int(state.last_end) - 1 + system.slots < edge),
        "no table, nothing computed": implies(edge <= 0, both(edge == 0, computed == 0, negate(state.held))),
        "held": implies(both(has_table, system.last >= lowest - 1, system.first < edge), state.held),
        "held is named": implies(state.held, state.named),
        "step": implies(unprocessed, both(ahead, start <= step.before_end, as_int(step.tokens) > step.drafts, as_int(step.drafts) >= 0)),
        "row, to read": implies(both(unprocessed, start > 0, system.last >= below - 1, system.first < step.reads_below), step.row_held),
        "before the row's end": implies(both(unprocessed, start > 0), as_int(step.before_end) - 1 + step.before_slots < step.reads_below),
        "row, to write": implies(
            both(unprocessed, system.last >= below + step.tokens - step.drafts - 1, system.first < step.writes_below), step.row_held
        ),
        "before the row's new end": implies(unprocessed, start + step.tokens - 1 + system.slots < step.writes_below),
    }


def used_slots(discipline: Discipline) -> list[Obligation]:
    """Theorem 3: every slot that a step may read or write is a block and not null, in the row with which it was scheduled."""
    return _slots(
        discipline,
        lambda state, system: {
            Property.READ_RESIDENT: implies(align.may_read(state.step, system), state.step.row_held),
            Property.WRITE_OWNED: implies(align.may_write(state.step, system), state.step.row_held),
        },
    )


def next_slots(discipline: Discipline) -> list[Obligation]:
    """Theorem 4: whatever is rejected, every slot that the next step may read is in the table."""
    return _slots(discipline, lambda state, system: {Property.ROLLBACK_RESIDENT: implies(align.next_may_read(state, system), state.held)})


def _slots(discipline: Discipline, properties: Callable[[Align, AlignSystem], Named]) -> list[Obligation]:
    system, state = AlignSystem(discipline), align.symbolic_align()
    return inductive(
        assumptions=system.assumptions(),
        initial=conjuncts(align.NO_TABLE, system),
        conjuncts=conjuncts(state, system),
        transitions=[Transition(action.name, action.guard, conjuncts(action.after, system)) for action in align.actions(state, system)],
        properties=properties(state, system),
    )


# ---- ownership: a window of two tokens -------------------------------------------------------------------------------


def as_a_window(discipline: Discipline) -> list[Obligation]:
    """Theorem 3 for a sliding window of two tokens speaks of state slots as well.

    A table holds a block at an index when that window's does, or null. What a step uses lies in what that window's step reads or writes,
    with K blocks of lookahead; a block that moves goes up, so that what frees it at its new index could free it at the old one.
    """
    block_size, drafts_max, up = int_variable("B"), int_variable("K"), int_variable("up")
    accepted, rejected = int_variable("accepted"), int_variable("rejected")
    sizes = {**_BLOCK, "B >= 1": block_size >= 1, "a token and drafts": both(_DRAFTS >= 0, _DRAFTS < _TOKENS), "K >= 0": drafts_max >= 0}
    newest, end = _START + rejected - 1, _START + _TOKENS
    read = {
        "a step before": both(_START >= 1, accepted >= 0, rejected >= 0, accepted + rejected <= drafts_max),
        "the slot that it reads": both(newest <= _LAST, _FIRST <= newest + accepted * block_size),
        "products of B are ordered": both(
            ordered(block_size, (accepted + rejected, drafts_max), (0, rejected)), rejected <= rejected * block_size
        ),
    }
    written = {
        "start >= 0": _START >= 0,
        "a slot that it writes": both(end - _DRAFTS - 1 <= _LAST, _FIRST <= end - 1 + drafts_max * block_size),
    }
    freed, freed_above = (MAMBA_ALIGN.frees_block(_FIRST + by, _LAST + by, _BASIS, discipline.rounding) for by in (as_int(0), up))
    return [
        claim(
            "the skip formula is that of a window of two",
            _BLOCK,
            freed == WINDOW_OF_TWO.frees_block(_FIRST, _LAST, _BASIS, discipline.rounding),
        ),
        claim(
            "a state that a query reads lies in its window of two",
            _BLOCK,
            implies(MAMBA_ALIGN.reads(_BASIS, _TOKEN), WINDOW_OF_TWO.reads(_BASIS, _TOKEN)),
        ),
        claim(
            "a slot that a step reads lies in what the window's step uses",
            {**sizes, **read},
            _is_used_by_window(drafts_max * block_size, maximum(_FIRST, _START - 1)),
        ),
        claim("so does a slot that it writes", {**sizes, **written}, _is_used_by_window(drafts_max * block_size, maximum(_FIRST, _START))),
        claim("what is freed above could be freed below", {**_BLOCK, "moves go up": up >= 0}, implies(freed_above, freed)),
    ]


def _is_used_by_window(lookahead: IntTerm, token: IntTerm) -> BoolTerm:
    """Whether the window's step reads or writes that token, and the token is in the block."""
    reads = WINDOW_OF_TWO.step_reads(_START, _TOKENS, token)
    return both(in_block(token, _FIRST, _LAST), either(reads, WINDOW_OF_TWO.step_writes(_START, _TOKENS, token, lookahead)))


# ---- without drafts, and overwritten in place ------------------------------------------------------------------------


def align_lemmas(discipline: Discipline) -> list[Obligation]:
    """The mask of `align`: one state a query."""
    later, query, end = int_variable("later query"), int_variable("query"), int_variable("end")
    frees = MAMBA_ALIGN.frees_block(_FIRST, _LAST, _BASIS, discipline.rounding)
    block = {**_BLOCK, "the block holds the token": in_block(_TOKEN, _FIRST, _LAST)}
    ends = both(MAMBA_ALIGN.may_free(_FIRST, _BASIS), MAMBA_ALIGN.may_free(_LAST, _BASIS))
    step = {**block, "a step": both(_START >= 0, _TOKENS >= 1, end == _START + _TOKENS)}
    return [
        claim("needed-sets shrink", {}, needed_sets_shrink(MAMBA_ALIGN, query, later, _TOKEN)),
        claim("a query reads no state after its own token", {"a later state": query <= _TOKEN}, negate(MAMBA_ALIGN.reads(query, _TOKEN))),
        claim(NO_MORE, block, implies(frees, MAMBA_ALIGN.may_free(_TOKEN, _BASIS))),
        claim("what may go has no hole", block, implies(ends, MAMBA_ALIGN.may_free(_TOKEN, _BASIS))),
        claim("and no less", block, frees == ends),
        claim(
            "a step reads what its first query reads",
            step,
            MAMBA_ALIGN.step_reads(_START, _TOKENS, _TOKEN) == MAMBA_ALIGN.reads(_START, _TOKEN),
        ),
        claim(
            "and writes what the next step reads",
            step,
            MAMBA_ALIGN.step_writes(_START, _TOKENS, _TOKEN, 0) == MAMBA_ALIGN.reads(end, _TOKEN),
        ),
        claim(
            "into a block that it takes",
            step,
            implies(MAMBA_ALIGN.step_writes(_START, _TOKENS, _TOKEN, 0), MAMBA_ALIGN.takes_block(_FIRST, _LAST, _START, end)),
        ),
    ]


def none_lemmas(discipline: Discipline) -> list[Obligation]:
    """Mode `none`: the first step takes every slot, every step uses each, and none is freed before the whole request is.

    So theorems 3 and 4 for full attention, which frees nothing either, say that no slot is lost.
    """
    size, later, query, end = int_variable("block size"), int_variable("later query"), int_variable("query"), int_variable("end")
    kind = MambaNone(int_variable("slots"), size)
    fits = {
        **_BLOCK,
        "the block holds the token": in_block(_TOKEN, _FIRST, _LAST),
        "a block is as long as a request may be": both(size >= 1, _LAST >= size - 1, _BASIS <= size),
    }
    in_slots = {**fits, "the block is one of the slots": both(_LAST < int_variable("slots") * size)}
    full = FullAttention()
    as_full = either(full.step_reads(_START, _TOKENS, _TOKEN), full.step_writes(_START, _TOKENS, _TOKEN, as_int(kind.slots) * size))
    uses = both(kind.step_reads(_START, _TOKENS, _TOKEN), kind.step_writes(_START, _TOKENS, _TOKEN, 0))
    return [
        claim("needed-sets shrink", {"block size >= 1": size >= 1}, needed_sets_shrink(kind, query, later, _TOKEN)),
        claim("no block is freed", fits, negate(kind.frees_block(_FIRST, _LAST, _BASIS, discipline.rounding))),
        claim("every step uses every slot", in_slots, uses),
        claim("and the first step takes it", in_slots, kind.takes_block(_FIRST, _LAST, 0, end)),
        claim("full attention with as much lookahead uses it too", {**in_slots, "a step": both(_START >= 0, _TOKENS >= 1)}, as_full),
    ]


# ---- tightness -------------------------------------------------------------------------------------------------------


def tight(discipline: Discipline) -> list[Obligation]:
    """Without drafts: a block that is kept gets, or has, a state that a step to come reads, if a step ends there; save that of the last
    token, after which there is no step."""
    counters = Counters(int_variable("computed"), int_variable("in_flight"), int_variable("stale"))
    p, length = count.settled(counters), int_variable("model length")
    token = maximum(_FIRST, p - 1)
    basis = count.free_basis(counters, discipline.state_basis or discipline.free_basis)
    hypotheses = {
        "counts": both(as_int(counters.stale) >= 0, as_int(counters.in_flight) >= counters.stale, p >= 1),
        "unfinished: p < model length": p < length,
        "the block holds a position below the last": both(_FIRST >= 0, _FIRST <= _LAST, _FIRST < length - 1),
        "the rule keeps the block": negate(MAMBA_ALIGN.frees_block(_FIRST, _LAST, basis, discipline.rounding)),
    }
    conclusions = {
        "the state is in the block": in_block(token, _FIRST, _LAST),
        "the query is to come": both(token + 1 >= p, token + 1 < length),
        "the query reads the state": MAMBA_ALIGN.reads(token + 1, token),
    }
    return [Obligation("kept blocks are read", hypotheses, conclusions)]


def held_bounded(discipline: Discipline) -> list[Obligation]:
    """Right after its own prune a request holds no slot before that of its last settled token, drafts or not."""
    system, state = AlignSystem(discipline), align.symbolic_align()
    p = as_int(state.computed) - state.in_flight
    before = {**system.assumptions(), **conjuncts(state, system), "the request prunes now": align.PRUNES}
    return [
        Obligation(action.name, {**before, **action.guard}, {Property.HELD_BOUNDED: negate(both(action.after.held, system.last < p - 1))})
        for action in align.actions(state, system)
        if action.name.startswith("schedule")
    ]
