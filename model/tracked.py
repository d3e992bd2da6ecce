"""One arbitrary request, one of its steps, one of its table entries and one block of the pool, among any number of each.

The environment that `actions` describes may do whatever the rules allow: any number of other steps of the request come and go
around the tracked step, other requests allocate, hit, and release. What is invariant here holds for every request, step, token
and block, at any pipeline depth and after any number of events. `tests/agreement` checks that it over-approximates the reference:
each event of random runs, projected on arbitrary constants, satisfies `guard` and `after` of one of these actions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from settled.model import counters as count
from settled.model import lifetime
from settled.model.algebra import (
    Bool,
    BoolTerm,
    Int,
    IntTerm,
    as_bool,
    as_int,
    bool_variable,
    both,
    either,
    implies,
    int_variable,
    negate,
    select,
)
from settled.model.counters import Counters
from settled.model.disciplines import Discipline, FreeBasis, PruneFence
from settled.model.kinds import Kind
from settled.model.lifetime import Block, Entry, Step


class Tracked(NamedTuple):
    """The state. `b` is the tracked block; the entry and the row are those of the block that holds the tracked token."""

    counters: Counters
    step: Step
    entry: Entry  # of the request's table, in the present generation
    entry_is_b: Bool
    row_held: Bool  # the step's row, as it stood at its schedule, has a block for the token
    row_is_b: Bool
    fenced: Bool  # the table has given the row's block up, but the reference is kept aside for the step
    stale_ahead: Int  # of a stale step: tokens of unprocessed steps of earlier generations, which come before its own
    ended_settled: Int  # of a stale step: what would be settled of its generation, had that not ended
    block: Block  # b
    others: Int  # references on b by anybody but the present generation and the step's fence
    unordered: Bool  # since the step was scheduled, b was given to a writer that is not ordered after the step
    unwaited: Bool  # ... to a writer that did not wait for the block's event


@dataclass(frozen=True)
class System:
    """What is fixed: the kind, the discipline, the tracked token, its block's first and last token, the lookahead slots.

    Any block size and any table index are one pair `first <= token <= last`.
    """

    kind: Kind
    discipline: Discipline
    token: IntTerm = field(default_factory=lambda: int_variable("token"))
    first: IntTerm = field(default_factory=lambda: int_variable("first"))
    last: IntTerm = field(default_factory=lambda: int_variable("last"))
    lookahead: IntTerm = field(default_factory=lambda: int_variable("lookahead"))
    drafts_max: IntTerm = field(default_factory=lambda: int_variable("drafts a step"))

    def frees(self, counters: Counters, basis: FreeBasis) -> BoolTerm:
        """Whether a prune frees the tracked entry's block."""
        relied_on = count.free_basis(counters, basis, self.drafts_max)
        return self.kind.frees_block(self.first, self.last, relied_on, self.discipline.rounding)

    def reads(self, step: Step) -> BoolTerm:
        return lifetime.reads(step, self.kind, self.token)

    def assumptions(self) -> dict[str, BoolTerm]:
        """What every theorem about the system assumes of the constants."""
        return {
            "0 <= first <= token <= last": both(self.first >= 0, self.first <= self.token, self.token <= self.last),
            "lookahead >= 0": self.lookahead >= 0,
        }


@dataclass(frozen=True)
class Action:
    """An event, as the tracked state sees it: it can happen if every condition of `guard` holds, and leads to `after`."""

    name: str
    guard: Mapping[str, BoolTerm]
    after: Tracked


def symbolic_state() -> Tracked:
    """A state whose every component is a variable, named as the component."""
    return Tracked(
        Counters(int_variable("computed"), int_variable("in_flight"), int_variable("stale")),
        Step(
            bool_variable("step.unprocessed"),
            bool_variable("step.stale"),
            int_variable("step.start"),
            int_variable("step.tokens"),
            int_variable("step.drafts"),
            int_variable("step.ahead"),
        ),
        Entry(bool_variable("entry.held"), bool_variable("entry.pruned")),
        bool_variable("entry_is_b"),
        bool_variable("row_held"),
        bool_variable("row_is_b"),
        bool_variable("fenced"),
        int_variable("stale_ahead"),
        int_variable("ended_settled"),
        Block(int_variable("b.references"), bool_variable("b.free")),
        int_variable("others"),
        bool_variable("unordered"),
        bool_variable("unwaited"),
    )


INITIAL = Tracked(
    Counters(0, 0, 0),
    step=Step(False, False, 0, 0, 0, 0),
    entry=lifetime.EMPTY,
    entry_is_b=False,
    row_held=False,
    row_is_b=False,
    fenced=False,
    stale_ahead=0,
    ended_settled=0,
    block=Block(0, True),
    others=0,
    unordered=False,
    unwaited=False,
)


# ---- the actions -----------------------------------------------------------------------------------------------------

# What an event may choose. `prunes`: the engine prunes the entry now, if its rule frees it. `picks_b`: a fresh block or a hit is b.
# `same`: a stale output is of the generation of the tracked step.
TOKENS, DRAFTS, REJECTED, HIT = (int_variable(name) for name in ("tokens", "drafts", "rejected", "hit"))
PRUNES, PICKS_B, SAME, ORDERED, WAITS = (bool_variable(name) for name in ("prunes", "picks_b", "same", "ordered", "waits"))


# The actions in which the request may prune its own table.
PRUNING = ("schedule another step", "schedule the step", "prune before a connector's finish")


def actions(state: Tracked, system: System) -> list[Action]:
    """Every event, from a state."""
    return [
        *_schedules(state, system),
        *_processes(state, system),
        _end_of_generation(state, system),
        _resume(state, system),
        _connector_prune(state, system),
        *_others(state),
    ]


def _schedules(state: Tracked, system: System) -> list[Action]:
    step = state.step
    placed = _allocate(_prune(state, system, system.kind.prune_basis(system.discipline)), system)
    placed = placed._replace(counters=count.schedule(state.counters, TOKENS))
    guard = {"tokens >= 1": TOKENS >= 1}
    tracked = placed._replace(
        step=lifetime.dispatch(state.counters, TOKENS, DRAFTS),
        row_held=placed.entry.held,
        row_is_b=placed.entry_is_b,
        unordered=False,
        unwaited=False,
    )
    drafts = {"0 <= drafts <= tokens": both(DRAFTS >= 0, DRAFTS <= TOKENS)}
    return [
        Action("schedule another step", guard, placed),
        Action("schedule the step", {**guard, **drafts, "not in flight": negate(step.unprocessed)}, tracked),
    ]


def _prune(state: Tracked, system: System, basis: FreeBasis) -> Tracked:
    """The request frees the entry's block, if the engine prunes now and its rule frees it.

    Behind a prune fence the table forgets the block, and the reference is kept: for the step if that was scheduled before and its row
    names it, for somebody's step in any other case, of which the environment says no more.
    """
    frees = both(PRUNES, system.frees(state.counters, basis))
    released = both(frees, state.entry_is_b)
    pruned = state._replace(entry=lifetime.prune(state.entry, frees), entry_is_b=both(state.entry_is_b, negate(frees)))
    if system.discipline.prune_fence is PruneFence.NONE:
        return pruned._replace(block=lifetime.give_up(state.block, released))
    kept = both(frees, state.entry.held, lifetime.is_live(state.step), state.row_held)
    moved_on = both(released, negate(kept))
    return pruned._replace(fenced=either(state.fenced, kept), others=as_int(state.others) + lifetime.one(moved_on))


def _allocate(state: Tracked, system: System) -> Tracked:
    """Slots for `TOKENS` more tokens and the lookahead; the fresh block may be b, if b is free."""
    end = as_int(state.counters.computed) + TOKENS + system.lookahead
    fresh = lifetime.needs_block(state.entry, system.first, end)
    takes_b = both(fresh, PICKS_B, state.block.free)
    return state._replace(
        entry=lifetime.allocate(state.entry, system.first, end),
        entry_is_b=either(state.entry_is_b, takes_b),
        block=lifetime.take(state.block, takes_b),
    )


def _processes(state: Tracked, system: System) -> list[Action]:
    """Outputs are read in schedule order: first the stale ones, then the live ones."""
    step, counters = state.step, state.counters
    none_stale, ahead = as_int(counters.stale) == 0, as_int(step.ahead)
    rejections = both(REJECTED >= 0, REJECTED <= TOKENS)

    def another(of_its_generation: bool) -> Tracked:
        return state._replace(
            counters=count.process(counters, TOKENS, REJECTED, system.discipline),
            step=lifetime.after_earlier_output(step, TOKENS, REJECTED, same_generation=of_its_generation),
        )

    over = state._replace(counters=count.process(counters, step.tokens, REJECTED, system.discipline), step=step._replace(unprocessed=False))
    own = _leave_fence(over)
    return [
        _process_stale(state, system),
        Action(
            "process a live step before the step",
            {
                "stale ones first": none_stale,
                "before the step": both(lifetime.is_live(step), ahead >= TOKENS),
                "rejections": rejections,
            },
            another(of_its_generation=True),
        ),
        Action(
            "process a live step",
            {
                "stale ones first": none_stale,
                "not in flight": negate(step.unprocessed),
                "tokens <= in flight": as_int(counters.in_flight) >= TOKENS,
                "rejections": rejections,
            },
            another(of_its_generation=False),
        ),
        Action(
            "process the step, live",
            {
                "live": lifetime.is_live(step),
                "stale ones first": none_stale,
                "rejections": both(REJECTED >= 0, REJECTED <= step.drafts),
            },
            own,
        ),
        Action("process the step, stale", {"stale": lifetime.is_stale(step)}, own),
    ]


def _process_stale(state: Tracked, system: System) -> Action:
    """A stale output: it may be of the ended generation of the tracked step, which it then moves, or of an earlier one."""
    step, counters = state.step, state.counters
    same = both(lifetime.is_stale(step), SAME)
    earlier = both(lifetime.is_stale(step), negate(SAME))
    before = both(implies(same, as_int(step.ahead) >= TOKENS), implies(earlier, as_int(state.stale_ahead) >= TOKENS))
    return Action(
        "process a stale step",
        {
            "tokens <= stale": as_int(counters.stale) >= TOKENS,
            "before the step": before,
            "rejections": both(REJECTED >= 0, REJECTED <= TOKENS),
        },
        state._replace(
            counters=count.process(counters, TOKENS, REJECTED, system.discipline),
            step=lifetime.after_earlier_output(step, TOKENS, REJECTED, same_generation=same),
            stale_ahead=select(earlier, as_int(state.stale_ahead) - TOKENS, state.stale_ahead),
            ended_settled=select(same, as_int(state.ended_settled) + TOKENS - REJECTED, state.ended_settled),
        ),
    )


def _leave_fence(state: Tracked) -> Tracked:
    """The step is over; from here on the environment may let go of the fenced reference."""
    handed_over = both(state.fenced, state.row_is_b)
    return state._replace(fenced=False, others=as_int(state.others) + lifetime.one(handed_over))


def _end_of_generation(state: Tracked, system: System) -> Action:
    """Preemption, and the end of the request, after which it is just never scheduled again: the whole table goes, behind the fence."""
    ended = state._replace(
        counters=count.preempt(state.counters, system.discipline),
        step=lifetime.after_generation(state.step),
        entry=lifetime.EMPTY,
        entry_is_b=False,
        stale_ahead=select(lifetime.is_live(state.step), state.counters.stale, state.stale_ahead),
        ended_settled=select(lifetime.is_live(state.step), count.settled(state.counters), state.ended_settled),
    )
    if system.discipline.fence:
        kept = both(lifetime.is_live(state.step), state.row_held, state.entry.held)
        moved_on = both(state.entry_is_b, negate(kept))
        ended = ended._replace(fenced=either(state.fenced, kept), others=as_int(state.others) + lifetime.one(moved_on))
    else:
        ended = ended._replace(block=lifetime.give_up(state.block, state.entry_is_b))
    return Action("preempt, finish or abort", {}, ended)


def _resume(state: Tracked, system: System) -> Action:
    """A generation starts with a prefix-cache hit; b may be among the blocks hit, free or in use."""
    counters = state.counters
    skipped = both(PRUNES, system.kind.may_free(system.token, HIT))  # the lookup may leave out what the mask lets go
    entry = lifetime.hit(system.first, HIT, skipped)
    takes_b = both(entry.held, PICKS_B)
    return Action(
        "start with a prefix-cache hit",
        {
            "nothing computed": as_int(counters.computed) == 0,
            "empty table": negate(either(state.entry.held, state.entry.pruned)),
            "hit of whole blocks": both(HIT >= 0, either(HIT <= system.first, HIT > system.last)),
        },
        state._replace(counters=count.resume(counters, HIT), entry=entry, entry_is_b=takes_b, block=lifetime.take(state.block, takes_b)),
    )


def _connector_prune(state: Tracked, system: System) -> Action:
    """The prune before a finished request's table is shown to a connector."""
    return Action(
        "prune before a connector's finish",
        {},
        _prune(state, system, system.discipline.finish_basis),
    )


def _others(state: Tracked) -> list[Action]:
    """Other requests, and fences that are none of the step's business."""
    others = as_int(state.others)
    given_away = state._replace(
        block=lifetime.take(state.block, True),
        others=others + 1,
        unordered=either(state.unordered, negate(ORDERED)),
        unwaited=either(state.unwaited, negate(WAITS)),
    )
    return [
        Action("another request allocates b", {"b is free": as_bool(state.block.free)}, given_away),
        Action(
            "another request hits b",
            {},
            state._replace(block=lifetime.take(state.block, True), others=others + 1),
        ),
        Action(
            "another request releases b",
            {"it holds b": others >= 1},
            state._replace(block=lifetime.give_up(state.block, True), others=others - 1),
        ),
    ]
