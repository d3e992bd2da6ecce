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
from settled.model.disciplines import Discipline, Rounding
from settled.model.kinds import Kind, in_block
from settled.model.lifetime import Entry, Step
from settled.model.properties import Property
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
    lost: Bool  # that block was released since
    given_away: Bool  # and given to somebody else


class Explicit(NamedTuple):
    """The state, the oldest unprocessed step first.

    `expected` is what the computed count should be; `cached` how many tokens of the prompt the prefix cache knows from this request.
    """

    counters: Counters
    expected: Int
    cached: Int
    finished: Bool
    generation: Int
    entry: Entry
    slots: Int  # tokens for which the table has entries, null ones included
    skipped: Int  # tokens below the lowest entry that holds a block
    over: Bool
    queue: tuple[Slot, ...]
    judged: Bool  # the last event was a schedule or a process, which show the counters
    rolled_back: Bool  # the last event rolled tokens back


@dataclass(frozen=True)
class Setting:
    """What is fixed: the kind, the discipline, the prompt, the tracked token and its block, whether a connector sees finished tables.

    `drafts_max`: drafts a step at most. `block_size` is asked for by `held_bounded` alone, which counts blocks.
    """

    kind: Kind
    discipline: Discipline
    connector: bool
    prompt: IntTerm = field(default_factory=lambda: int_variable("prompt"))
    token: IntTerm = field(default_factory=lambda: int_variable("token"))
    first: IntTerm = field(default_factory=lambda: int_variable("first"))
    last: IntTerm = field(default_factory=lambda: int_variable("last"))
    drafts_max: IntTerm = field(default_factory=lambda: int_variable("drafts a step"))

    @property
    def block_size(self) -> IntTerm:
        """Tokens a block."""
        return self.last - self.first + 1

    def frees(self, counters: Counters, basis: FreeBasis) -> BoolTerm:
        """Whether a prune on the basis frees the tracked entry's block."""
        return self.frees_block(self.first, self.last, counters, basis)

    def frees_block(self, first: Int, last: Int, counters: Counters, basis: FreeBasis) -> BoolTerm:
        """Whether it frees the block of the tokens `first` to `last`."""
        return self.kind.frees_block(first, last, count.free_basis(counters, basis, self.drafts_max), self.discipline.rounding)

    def assumptions(self) -> dict[str, BoolTerm]:
        return {
            "prompt >= 1": self.prompt >= 1,
            "the token is in its block": both(self.first >= 0, in_block(self.token, self.first, self.last)),
        }


_NO_SLOT = Slot(Step(False, False, 0, 0, 0, 0), 0, False, False, False)


def initial(slots: int) -> Explicit:
    """A request that was just added, and a queue with room for `slots` steps."""
    return Explicit(Counters(0, 0, 0), 0, 0, False, 0, lifetime.EMPTY, (_NO_SLOT,) * slots, False, False)


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
    }
    return either(*(both(move == option, condition) for option, condition in options.items()))


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
        hit >= 0,
        implies(hit > 0, both(fresh, whole_blocks)),
        either(chunk, decode),
    )


def after(state: Explicit, choice: Choice, setting: Setting) -> Explicit:
    """The state after the choice."""
    move = as_int(choice.move)
    outcomes = {
        Move.SCHEDULE: _schedule(state, choice, setting),
        Move.PROCESS: _process(state, choice, setting),
        Move.PREEMPT: _preempt(state, setting),
        Move.FINISH: _finish(state, setting),
    }
    options = list(outcomes.items())
    return reduce(lambda rest, option: choose(move == option[0], option[1], rest), options[:-1], options[-1][1])


def _schedule(state: Explicit, choice: Choice, setting: Setting) -> Explicit:
    hit = as_int(choice.hit)
    begun = state._replace(
        counters=choose(hit > 0, count.resume(state.counters, hit), state.counters),
        expected=as_int(state.expected) + hit,
    )
    frees = setting.kind.frees_block(
        setting.first, setting.last, count.free_basis(begun.counters, setting.discipline.free_basis), setting.discipline.rounding
    )
    # What a hit skips never enters the table; what is in the table is pruned.
    pruned = _prune(begun, both(hit == 0, frees))
    skipped = setting.kind.frees_block(setting.first, setting.last, hit, Rounding.FLOOR)
    found = lifetime.hit(setting.first, hit, skipped)
    entry = choose(hit > 0, found, pruned.entry)
    end = as_int(begun.counters.computed) + choice.tokens
    entry = lifetime.allocate(entry, setting.first, end)
    slot = Slot(lifetime.dispatch(begun.counters, choice.tokens, choice.drafts), begun.generation, entry.held, False)
    return pruned._replace(
        counters=count.schedule(begun.counters, choice.tokens),
        expected=as_int(begun.expected) + choice.tokens,
        cached=maximum(state.cached, minimum(end, setting.prompt)),
        entry=entry,
        queue=_append(pruned.queue, slot),
        judged=True,
        rolled_back=False,
    )


def _append(queue: tuple[Slot, ...], slot: Slot) -> tuple[Slot, ...]:
    """The queue with the slot in its first free place."""
    taken = [as_bool(place.step.unprocessed) for place in queue]
    first_free = [both(negate(here), *taken[:index]) for index, here in enumerate(taken)]
    return tuple(choose(free, slot, place) for free, place in zip(first_free, queue, strict=True))


def _prune(state: Explicit, frees: BoolTerm) -> Explicit:
    """Prunes the entry: every live unprocessed step loses the block of its row."""
    released = both(frees, state.entry.held)
    return state._replace(entry=lifetime.prune(state.entry, frees), queue=_lose(state.queue, released))


def _lose(queue: tuple[Slot, ...], released: BoolTerm) -> tuple[Slot, ...]:
    return tuple(slot._replace(lost=either(slot.lost, both(lifetime.is_live(slot.step), released))) for slot in queue)


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
        rolled_back=rejected > 0,
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
        queue=tuple(slot._replace(step=lifetime.after_generation(slot.step)) for slot in kept.queue),
        judged=False,
        rolled_back=False,
    )


def _finish(state: Explicit, setting: Setting) -> Explicit:
    if setting.connector:
        basis = count.free_basis(state.counters, setting.discipline.finish_basis)
        state = _prune(state, setting.kind.frees_block(setting.first, setting.last, basis, setting.discipline.rounding))
    return _preempt(state, setting)._replace(finished=True)


# ---- the properties --------------------------------------------------------------------------------------------------


def violated(state: Explicit, setting: Setting, prop: Property) -> BoolTerm:
    """Whether the state violates the property under the settled contract."""
    match prop:
        case Property.READ_RESIDENT:
            return either(*(both(lifetime.reads(s.step, setting.kind, setting.token), _is_gone(s)) for s in state.queue))
        case Property.ROLLBACK_RESIDENT:
            computed = as_int(state.counters.computed)
            read = both(setting.token < computed, setting.kind.reads(computed, setting.token))
            return both(state.rolled_back, negate(state.finished), read, negate(state.entry.held))
        case Property.COUNTERS_SYMMETRIC:
            return both(state.judged, negate(state.finished), negate(_counters_agree(state)))
        case _:
            raise NotImplementedError(f"{prop} is not refuted by bounded model checking")


def _is_gone(slot: Slot) -> BoolTerm:
    return either(slot.lost, negate(slot.row_held))


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
