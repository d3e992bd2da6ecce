"""The properties of `properties.py`, stated for the tracked constants: true of all of them, true of every request, step and block."""

from __future__ import annotations

from settled.model import lifetime
from settled.model.algebra import BoolTerm, as_bool, as_int, both, either, implies, negate
from settled.model.lifetime import one
from settled.model.properties import Contract
from settled.model.tracked import System, Tracked


def is_referenced(state: Tracked) -> BoolTerm:
    """The request's own reference on the block that the step's row names for the token is still there: in the table, or kept aside."""
    own = either(both(negate(state.step.stale), state.entry_is_b), state.fenced)
    return both(state.row_held, implies(state.row_is_b, both(own, negate(is_in_pool(state)))))


def is_in_pool(state: Tracked) -> BoolTerm:
    """b may be given to anyone."""
    return either(state.block.free, as_int(state.block.references) < 1)


def is_intact(state: Tracked, contract: Contract) -> BoolTerm:
    """Whether a step may still rely on the tracked block of its row under a contract."""
    match contract:
        case Contract.SETTLED:
            return is_referenced(state)
        case Contract.STREAM_ORDER:
            return both(state.row_held, negate(both(state.row_is_b, state.unordered)))
        case Contract.EVENT:
            return both(state.row_held, negate(both(state.row_is_b, state.unwaited)))


def read_resident(state: Tracked, system: System, contract: Contract) -> BoolTerm:
    """If the step is unprocessed and reads the token, its block is not null, not free and not someone else's."""
    return implies(system.reads(state.step), is_intact(state, contract))


def write_owned(state: Tracked, system: System, contract: Contract) -> BoolTerm:
    """If the step is unprocessed and may write the token's slot, its request has not lost the block."""
    return implies(lifetime.writes(state.step, system.kind, system.token, system.lookahead), is_intact(state, contract))


def kept_in_flight(state: Tracked, system: System, contract: Contract) -> BoolTerm:
    """The half of `read_resident` and `write_owned` that speaks of what happens from schedule to process.

    What the step's row had when it was scheduled, and the step reads or may write, it does not lose. That the row had all that the
    step needs is the other half, which a rollback breaks.
    """
    uses = either(system.reads(state.step), lifetime.writes(state.step, system.kind, system.token, system.lookahead))
    return implies(both(uses, state.row_held), is_intact(state, contract))


def rollback_resident(state: Tracked, system: System) -> BoolTerm:
    """What the next step, which starts at the computed count, reads is resident: in the table, and not in the pool."""
    computed = as_int(state.counters.computed)
    read = both(system.token < computed, system.kind.reads(computed, system.token))
    return implies(read, both(state.entry.held, implies(state.entry_is_b, negate(is_in_pool(state)))))


def single_owner(state: Tracked) -> BoolTerm:
    """b's reference count equals its holders, and b is free exactly at zero."""
    holders = as_int(state.others) + one(state.entry_is_b) + one(both(state.fenced, state.row_is_b))
    references = as_int(state.block.references)
    return both(references == holders, as_int(state.others) >= 0, as_bool(state.block.free) == (references == 0))
