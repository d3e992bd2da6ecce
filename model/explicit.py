"""One request with every one of its steps spelled out: the system that bounded model checking unrolls.

It composes the same functions as `tracked.py`, but nothing is left to an environment: the unprocessed steps stand in a queue with as
many slots as the trace has events, so the pipeline depth is not bounded by anything but the length. A step is what an engine
schedules: a chunk of the prompt without drafts, or one token with its drafts. One table entry is followed, that of a block given by its
first and last token, so one query covers every block size and every table index.

A block that a step lost may be given away: to the request's own next fresh entry, or, as the last event, to another request.

What it leaves out: other requests before that (a hit finds only what this request computed), hits of the whole prompt (vLLM computes
its last token again), chunks that compute outputs again after a preemption, loads. `tests/agreement` checks that it follows the reference.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from functools import reduce
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
    both,
    either,
    implies,
    int_variable,
    maximum,
    minimum,
    negate,
    select,
)
from settled.model.counters import Counters
from settled.model.disciplines import Discipline, FreeBasis, PruneFence, Rounding
from settled.model.kinds import Kind, MambaAlign, SlidingWindow, in_block
from settled.model.lifetime import Entry, Step
from settled.model.properties import Contract, Property
from settled.model.values import choose

# The same in one line, for whoever claims that a trace is a shortest one.
SCOPE = "one request, steps as vLLM makes them, hits on its own blocks only"


class Move(IntEnum):
    """What happens next."""

    SCHEDULE = 0
    PROCESS = 1
    PREEMPT = 2
    FINISH = 3
    ANOTHER = 4  # another request takes one fresh block; nothing comes after it


class Choice(NamedTuple):
    """One event's choices; each move reads its own. `hit`: tokens found in the prefix cache, at the start of a generation only.

    `slots`: tokens for which the table has blocks after a schedule that takes fresh ones.
    """

    move: Int
    tokens: Int
    drafts: Int
    hit: Int
    rejected: Int
    slots: Int = 0


class Slot(NamedTuple):
    """One place in the queue of unprocessed steps."""

    step: Step
    generation: Int
    row_held: Bool  # its row has a block for the tracked token
    early: Bool  # it has none, and not because of a rollback: the block went, or was never there, while the computed count needed it
    lost: Bool  # the block of the row was released since
    given_away: Bool  # and given to somebody else


class Explicit(NamedTuple):
    """The state, the oldest unprocessed step first.

    `expected` is what the computed count should be; `cached` how many tokens of the prompt the prefix cache knows from this request.
    """

    counters: Counters
    expected: Int
    cached: Int
    finished: Bool
    over: Bool  # another request has come: nothing is to follow
    generation: Int
    entry: Entry
    slots: Int  # tokens for which the table has entries, null ones included
    skipped: Int  # tokens that prunes or a hit have passed
    early: Bool  # the entry's block went while the computed count still needed it
    queue: tuple[Slot, ...]
    judged: Bool  # the last event was a schedule or a process, which show the counters
    rolled_back: Bool  # the last event rolled tokens back
    scheduled: Bool  # the last event was a schedule, before which a request prunes


@dataclass(frozen=True)
class Setting:
    """What is fixed: the kind, the discipline, the prompt, the tracked token and its block, whether a connector sees finished tables.

    `drafts_max`: drafts a step at most; `in_flight_max`: tokens in flight at most.
    """

    kind: Kind
    discipline: Discipline
    connector: bool
    prompt: IntTerm = field(default_factory=lambda: int_variable("prompt"))
    token: IntTerm = field(default_factory=lambda: int_variable("token"))
    first: IntTerm = field(default_factory=lambda: int_variable("first"))
    last: IntTerm = field(default_factory=lambda: int_variable("last"))
    drafts_max: IntTerm = field(default_factory=lambda: int_variable("drafts a step"))
    in_flight_max: IntTerm = field(default_factory=lambda: int_variable("tokens in flight at most"))

    @property
    def block_size(self) -> IntTerm:
        """Tokens a block."""
        return self.last - self.first + 1

    def frees(self, counters: Counters, basis: FreeBasis) -> BoolTerm:
        """Whether a prune on the basis frees the tracked entry's block."""
        relied_on = count.free_basis(counters, basis, self.drafts_max)
        return self.kind.frees_block(self.first, self.last, relied_on, self.discipline.rounding)

    def assumptions(self) -> dict[str, BoolTerm]:
        return {
            "prompt >= 1": self.prompt >= 1,
            "the token is in its block": both(self.first >= 0, in_block(self.token, self.first, self.last)),
            # Without drafts the basis less the drafts is just the computed count, and says nothing of its own.
            "drafts a step": self.drafts_max >= (1 if self._takes_drafts_off else 0),
            "a step with all its drafts fits": self.in_flight_max > self.drafts_max,
        }

    @property
    def keeps_states(self) -> bool:
        """Whether the kind keeps a state: then steps have no drafts, whose slots move about in the table, which is not modelled here."""
        return isinstance(self.kind, MambaAlign)

    @property
    def _takes_drafts_off(self) -> bool:
        return self.kind.prune_basis(self.discipline) is FreeBasis.LESS_DRAFTS


_NO_SLOT = Slot(Step(False, False, 0, 0, 0, 0), 0, False, False, False, False)


def initial(slots: int) -> Explicit:
    """A request that was just added, and a queue with room for `slots` steps."""
    return Explicit(Counters(0, 0, 0), 0, 0, False, False, 0, lifetime.EMPTY, 0, 0, False, (_NO_SLOT,) * slots, False, False, False)


def guard(state: Explicit, choice: Choice, setting: Setting) -> BoolTerm:
    """Whether the choice can be made."""
    move = as_int(choice.move)
    options = {
        Move.SCHEDULE: _can_schedule(state, choice, setting),
        Move.PROCESS: both(
            state.queue[0].step.unprocessed,
            as_int(choice.rejected) >= 0,
            as_int(choice.rejected) <= state.queue[0].step.drafts,
        ),
        Move.PREEMPT: both(negate(state.finished), as_int(state.counters.computed) > 0),
        Move.FINISH: negate(state.finished),
        Move.ANOTHER: as_bool(True),
    }
    return both(negate(state.over), either(*(both(move == option, condition) for option, condition in options.items())))


def _can_schedule(state: Explicit, choice: Choice, setting: Setting) -> BoolTerm:
    """A prompt chunk has no drafts; after the prompt a step is one token and its drafts."""
    tokens, drafts, hit = as_int(choice.tokens), as_int(choice.drafts), as_int(choice.hit)
    counters = state.counters
    start = as_int(counters.computed) + hit
    live = either(*(lifetime.is_live(slot.step) for slot in state.queue))
    fresh = both(as_int(counters.computed) == 0, negate(live), negate(state.entry.held), hit < setting.prompt, hit <= state.cached)
    whole_blocks = either(hit <= setting.first, hit > setting.last)
    chunk = both(start + tokens <= setting.prompt, drafts == 0)
    decode = both(start >= setting.prompt, tokens == drafts + 1)
    return both(
        negate(state.finished),
        negate(state.queue[-1].step.unprocessed),
        tokens >= 1,
        drafts >= 0,
        drafts <= (0 if setting.keeps_states else setting.drafts_max),
        as_int(counters.in_flight) + tokens <= setting.in_flight_max,
        hit >= 0,
        implies(hit > 0, both(fresh, whole_blocks)),
        either(chunk, decode),
        _grows_by_blocks(state, choice, setting),
    )


def _grows_by_blocks(state: Explicit, choice: Choice, setting: Setting) -> BoolTerm:
    """Fresh blocks cover the step, and no block more than that. What they cover is a choice, so that no block size need be divided by."""
    end = as_int(state.counters.computed) + choice.hit + choice.tokens
    grown = as_int(choice.slots)
    return implies(end > _slots_before(state, choice), both(grown >= end, grown < end + setting.block_size))


def _slots_before(state: Explicit, choice: Choice) -> IntTerm:
    """The table's slots, tokens, before a schedule takes fresh blocks."""
    return maximum(state.slots, choice.hit)


def after(state: Explicit, choice: Choice, setting: Setting) -> Explicit:
    """The state after the choice."""
    move = as_int(choice.move)
    outcomes = {
        Move.SCHEDULE: _schedule(state, choice, setting),
        Move.PROCESS: _process(state, choice, setting),
        Move.PREEMPT: _preempt(state, setting),
        Move.FINISH: _finish(state, setting),
        Move.ANOTHER: state._replace(queue=_give_away(state.queue, True), over=True, judged=False, rolled_back=False, scheduled=False),
    }
    options = list(outcomes.items())
    return reduce(lambda rest, option: choose(move == option[0], option[1], rest), options[:-1], options[-1][1])


def _schedule(state: Explicit, choice: Choice, setting: Setting) -> Explicit:
    hit = as_int(choice.hit)
    begun = state._replace(
        counters=choose(hit > 0, count.resume(state.counters, hit), state.counters),
        expected=as_int(state.expected) + hit,
        slots=_slots_before(state, choice),
    )
    # What a hit skips never enters the table; what is in the table is pruned.
    basis = setting.kind.prune_basis(setting.discipline)
    prunes = either(as_bool(setting.discipline.prunes_with_drafts), as_int(choice.drafts) == 0)
    pruned = _prune(begun, both(hit == 0, prunes, setting.frees(begun.counters, basis)), setting)
    skipped = setting.kind.frees_block(setting.first, setting.last, hit, Rounding.FLOOR)
    found = lifetime.hit(setting.first, hit, skipped)
    early = either(pruned.early, both(hit > 0, found.pruned))
    placed = _allocate(pruned._replace(entry=choose(hit > 0, found, pruned.entry), early=early), choice, setting)
    step = lifetime.dispatch(begun.counters, choice.tokens, choice.drafts)
    slot = Slot(step, begun.generation, placed.entry.held, placed.early, False, False)
    end = as_int(begun.counters.computed) + choice.tokens
    return placed._replace(
        counters=count.schedule(begun.counters, choice.tokens),
        expected=as_int(begun.expected) + choice.tokens,
        cached=maximum(state.cached, minimum(end, setting.prompt)),
        skipped=_skipped(state, choice, begun.counters, setting),
        queue=_append(placed.queue, slot),
        judged=True,
        rolled_back=False,
        scheduled=True,
    )


def _skipped(state: Explicit, choice: Choice, counters: Counters, setting: Setting) -> IntTerm:
    """Tokens below the lowest block that is held after a schedule, up to the rounding; never fewer than before.

    Nulls at allocation do not count: held blocks may stand below them.
    """
    hit, kind = as_int(choice.hit), setting.kind
    relied_on = count.free_basis(counters, kind.prune_basis(setting.discipline), setting.drafts_max)
    return maximum(state.skipped, select(hit > 0, kind.skipped_tokens(hit), kind.skipped_tokens(relied_on)))


def _allocate(state: Explicit, choice: Choice, setting: Setting) -> Explicit:
    """Blocks for the step's tokens, where its kind takes them; a fresh one may be what a step has lost."""
    start = as_int(state.counters.computed)
    end = start + choice.tokens
    first, last = setting.first, setting.last
    wanted = setting.kind.takes_block(first, last, start, end)
    reached = lifetime.needs_block(state.entry, first, end)
    null = both(reached, negate(wanted))
    if setting.discipline.nulls_at_allocation:
        null = either(null, both(reached, setting.kind.frees_block(first, last, end - 1, Rounding.FLOOR)))
    entry = state.entry._replace(
        held=either(state.entry.held, both(reached, negate(null))),
        pruned=either(state.entry.pruned, null),
    )
    fresh = end > state.slots
    return state._replace(
        entry=entry,
        early=either(state.early, null),
        slots=select(fresh, choice.slots, state.slots),
        queue=_give_away(state.queue, fresh),
    )


def _append(queue: tuple[Slot, ...], slot: Slot) -> tuple[Slot, ...]:
    """The queue with the slot in its first free place."""
    taken = [as_bool(place.step.unprocessed) for place in queue]
    first_free = [both(negate(here), *taken[:index]) for index, here in enumerate(taken)]
    return tuple(choose(free, slot, place) for free, place in zip(first_free, queue, strict=True))


def _prune(state: Explicit, frees: BoolTerm, setting: Setting) -> Explicit:
    """Prunes the entry: every live unprocessed step loses the block of its row, unless a prune fence keeps it."""
    released = both(frees, state.entry.held)
    is_kept = setting.discipline.prune_fence is not PruneFence.NONE
    queue = state.queue if is_kept else _lose(state.queue, released)
    early = both(released, negate(setting.kind.may_free(setting.token, state.counters.computed)))
    return state._replace(entry=lifetime.prune(state.entry, frees), early=either(state.early, early), queue=queue)


def _lose(queue: tuple[Slot, ...], released: BoolTerm) -> tuple[Slot, ...]:
    return tuple(slot._replace(lost=either(slot.lost, both(lifetime.is_live(slot.step), released))) for slot in queue)


def _give_away(queue: tuple[Slot, ...], taken: Bool) -> tuple[Slot, ...]:
    """A fresh block is taken, which may be any that a step has lost: the free queue hands out first what came back last."""
    return tuple(slot._replace(given_away=either(slot.given_away, both(slot.lost, taken))) for slot in queue)


def _process(state: Explicit, choice: Choice, setting: Setting) -> Explicit:
    head, *rest = state.queue
    step, rejected = head.step, as_int(choice.rejected)
    live = lifetime.is_live(step)
    moved = [_moved(slot, head, rejected) for slot in rest]
    return state._replace(
        counters=count.process(state.counters, step.tokens, rejected, setting.discipline),
        expected=select(live, as_int(state.expected) - rejected, state.expected),
        queue=(*moved, _NO_SLOT),
        judged=True,
        rolled_back=both(live, rejected > 0),
        scheduled=False,
    )


def _moved(slot: Slot, processed: Slot, rejected: Int) -> Slot:
    same_generation = as_int(slot.generation) == processed.generation
    step = lifetime.after_earlier_output(slot.step, processed.step.tokens, rejected, same_generation=same_generation)
    return slot._replace(step=step)


def _preempt(state: Explicit, setting: Setting) -> Explicit:
    kept = state if setting.discipline.fence else state._replace(queue=_lose(state.queue, as_bool(state.entry.held)))
    return kept._replace(
        counters=count.preempt(state.counters, setting.discipline),
        expected=0,
        generation=as_int(kept.generation) + 1,
        entry=lifetime.EMPTY,
        slots=0,
        skipped=0,
        early=False,
        queue=tuple(slot._replace(step=lifetime.after_generation(slot.step)) for slot in kept.queue),
        judged=False,
        rolled_back=False,
        scheduled=False,
    )


def _finish(state: Explicit, setting: Setting) -> Explicit:
    if setting.connector:
        state = _prune(state, setting.frees(state.counters, setting.discipline.finish_basis), setting)
    return _preempt(state, setting)._replace(finished=True)


# ---- the properties --------------------------------------------------------------------------------------------------


class Claim(NamedTuple):
    """What is asked: a property under a contract.

    `in_flight` asks for the half of `read_resident` and `write_owned` that speaks of what a step's row had when it was scheduled.
    """

    prop: Property
    contract: Contract = Contract.SETTLED
    in_flight: bool = False


def violated(state: Explicit, setting: Setting, claim: Claim) -> BoolTerm:
    """Whether the state violates the claim. Raises NotImplementedError for a property that this system cannot violate."""
    match claim.prop:
        case Property.READ_RESIDENT:
            # A row without the block because of a rollback is the affair of `rollback_resident`: this is how the monitor tells them apart.
            reading = [(lifetime.reads(s.step, setting.kind, setting.token), s.early, s.lost, s) for s in state.queue]
            return either(*(both(reads, _harms(s, early, lost, claim)) for reads, early, lost, s in reading))
        case Property.WRITE_OWNED:
            # A write into a block that nobody was given harms nobody: the monitor's reading again, and weaker than what is proved.
            writing = [(lifetime.writes(s.step, setting.kind, setting.token, 0), s.given_away, s) for s in state.queue]
            return either(*(both(writes, _harms(s, True, given_away, claim)) for writes, given_away, s in writing))
        case Property.ROLLBACK_RESIDENT:
            computed = as_int(state.counters.computed)
            read = both(setting.token < computed, setting.kind.reads(computed, setting.token))
            return both(state.rolled_back, negate(state.finished), read, negate(state.entry.held))
        case Property.COUNTERS_SYMMETRIC:
            return both(state.judged, negate(state.finished), negate(_counters_agree(state)))
        case Property.HELD_BOUNDED:
            unpruned = both(state.scheduled, state.entry.held, _is_below_need(state, setting))
            return either(unpruned, both(state.judged, negate(state.finished), _is_above_cap(state, setting)))
        case _:
            raise NotImplementedError(f"{claim.prop} is not refuted by bounded model checking")


def _harms(slot: Slot, absent_counts: Bool, taken: Bool, claim: Claim) -> BoolTerm:
    """Whether the contract calls it a violation that the row had no block, or that its block was taken. No writer here is out of order."""
    is_absent = both(negate(slot.row_held), absent_counts)
    is_taken = both(slot.row_held, taken) if claim.contract is Contract.SETTLED else as_bool(False)
    return is_taken if claim.in_flight else either(is_absent, is_taken)


def _is_below_need(state: Explicit, setting: Setting) -> BoolTerm:
    """Whether a prune on max(0, C - F) takes the block; a schedule, which comes between the prune and this state, leaves that as it was."""
    return setting.kind.frees_block(setting.first, setting.last, count.processed(state.counters), Rounding.FLOOR)


def _is_above_cap(state: Explicit, setting: Setting) -> BoolTerm:
    """Whether the table holds more blocks than the published cap, of a request far from the maximum length.

    Under a discipline whose prunes leave out a block this cannot be read off one entry: false, since a table above its cap then has such a
    block, below its need.

    The tracked block is the lowest that is held, so h = (slots - first) / B blocks are; `h > ceil(need / B) + 1` exactly when
    `need <= (h - 2) * B`, which needs no division.
    """
    kind, size = setting.kind, setting.block_size
    if not isinstance(kind, SlidingWindow):
        raise NotImplementedError(f"held_bounded is refuted for a sliding window only, not for {kind.name}")
    if not setting.discipline.prunes_in_full:
        return as_bool(False)
    lowest = both(setting.first <= as_int(state.skipped), as_int(state.skipped) <= setting.last)
    in_flight = setting.in_flight_max if setting.discipline.cap_counts_in_flight else as_int(0)
    need = as_int(kind.window) - 1 + kind.extra_retained + in_flight
    return both(lowest, need <= as_int(state.slots) - setting.first - size - size)


def _counters_agree(state: Explicit) -> BoolTerm:
    in_flight: IntTerm = as_int(0)
    stale: IntTerm = as_int(0)
    for slot in state.queue:
        in_flight = in_flight + select(as_bool(slot.step.unprocessed), slot.step.tokens, 0)
        stale = stale + select(lifetime.is_stale(slot.step), slot.step.tokens, 0)
    counters = state.counters
    return both(
        as_int(counters.computed) == state.expected,
        as_int(counters.in_flight) == in_flight,
        as_int(counters.stale) == stale,
    )
