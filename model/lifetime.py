"""The lifetime of a step and of a table entry: what each event does to them, as pure functions over small values.

`tracked.py` composes these functions for one arbitrary step and one arbitrary block among any number, for induction;
`explicit.py` composes the same functions for every step of a bounded trace. Positions and counts are in tokens.
"""

from __future__ import annotations

from typing import NamedTuple

from settled.model.algebra import Bool, BoolTerm, Int, IntTerm, as_bool, as_int, both, either, negate, select
from settled.model.counters import Counters
from settled.model.kinds import Kind

# ---- a step ----------------------------------------------------------------------------------------------------------


class Step(NamedTuple):
    """One request's part in a step.

    `start` is its true start: what it was scheduled at, less the tokens rejected since by earlier steps of its generation. `ahead`
    counts the tokens of the unprocessed steps of its own generation before it.
    """

    unprocessed: Bool
    stale: Bool
    start: Int
    tokens: Int
    drafts: Int
    ahead: Int


def dispatch(counters: Counters, tokens: Int, drafts: Int) -> Step:
    """The step that a schedule makes, from the counters before it."""
    ahead = as_int(counters.in_flight) - counters.stale
    return Step(True, False, counters.computed, tokens, drafts, ahead)


def is_live(step: Step) -> BoolTerm:
    """Unprocessed, and of the present generation."""
    return both(step.unprocessed, negate(step.stale))


def is_stale(step: Step) -> BoolTerm:
    """Unprocessed, but its generation is over: its output will not be applied."""
    return both(step.unprocessed, step.stale)


def after_earlier_output(step: Step, tokens: Int, rejected: Int, *, same_generation: Bool) -> Step:
    """The step once the output of an earlier one was processed.

    What an earlier step of the same generation rejects moves it down, on the device too, whether or not the generation has ended since.
    """
    concerned = both(step.unprocessed, same_generation)
    return step._replace(
        start=select(concerned, as_int(step.start) - rejected, step.start),
        ahead=select(concerned, as_int(step.ahead) - tokens, step.ahead),
    )


def after_generation(step: Step) -> Step:
    """The step once its generation ended, if it was unprocessed then."""
    return step._replace(stale=either(step.stale, step.unprocessed))


def reads(step: Step, kind: Kind, token: Int) -> BoolTerm:
    """Whether the step reads what is kept for `token`."""
    return both(step.unprocessed, kind.step_reads(step.start, step.tokens, token))


def writes(step: Step, kind: Kind, token: Int, lookahead: Int) -> BoolTerm:
    """Whether the step may write the slot of `token`."""
    return both(step.unprocessed, kind.step_writes(step.start, step.tokens, token, lookahead))


# ---- a table entry ---------------------------------------------------------------------------------------------------


class Entry(NamedTuple):
    """The entry of one block in a request's table, in the present generation: holds a block, or was pruned to null."""

    held: Bool
    pruned: Bool


EMPTY = Entry(held=False, pruned=False)


def prune(entry: Entry, frees: Bool) -> Entry:
    """The entry after a prune that frees its block or not."""
    return Entry(held=both(entry.held, negate(frees)), pruned=either(entry.pruned, frees))


def needs_block(entry: Entry, first: Int, end: Int) -> BoolTerm:
    """Whether slots for the positions below `end` need a fresh block at the entry whose first token is `first`."""
    return both(negate(entry.held), negate(entry.pruned), as_int(first) < end)


def allocate(entry: Entry, first: Int, end: Int) -> Entry:
    """The entry after slots were made for the positions below `end`."""
    return entry._replace(held=either(entry.held, needs_block(entry, first, end)))


def hit(first: Int, hit_tokens: Int, skipped: Bool) -> Entry:
    """The entry after a prefix-cache hit of `hit_tokens` whole blocks: the cached block, or null where the lookup skips it."""
    covered = as_int(first) < hit_tokens
    return Entry(held=both(covered, negate(skipped)), pruned=both(covered, skipped))


# ---- a physical block ------------------------------------------------------------------------------------------------


class Block(NamedTuple):
    """A block of the pool: its reference count, and whether it is in the free queue."""

    references: Int
    free: Bool


def take(block: Block, taken: Bool) -> Block:
    """One more reference, if `taken`; a block with a reference is not free."""
    return Block(as_int(block.references) + one(taken), both(block.free, negate(taken)))


def give_up(block: Block, released: Bool) -> Block:
    """One reference fewer, if `released`; free exactly when none is left."""
    references = as_int(block.references) - one(released)
    return Block(references, either(both(negate(released), block.free), both(released, references == 0)))


def one(condition: Bool) -> IntTerm:
    """1 if the condition holds, else 0."""
    return select(as_bool(condition), 1, 0)
