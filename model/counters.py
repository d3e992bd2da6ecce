"""The counters of a request and how events move them: computed C, in flight F, stale S, all in tokens.

`computed` advances when a step is scheduled and falls when its output is processed with rejections; `in_flight` counts the
tokens of scheduled, unprocessed steps; `stale` those of an earlier generation (vLLM: num_computed_tokens,
num_in_flight_tokens, num_stale_output_tokens). Source of every rule: vLLM's Scheduler._update_after_schedule,
update_from_output and _preempt_request.
"""

from __future__ import annotations

from typing import NamedTuple

from settled.model.algebra import Int, IntTerm, as_int, both, maximum, minimum, select
from settled.model.disciplines import Discipline, FreeBasis, StaleOutput


class Counters(NamedTuple):
    """Tokens computed, in flight and stale."""

    computed: Int
    in_flight: Int
    stale: Int


def settled(counters: Counters) -> IntTerm:
    """C - (F - S): the tokens that no event of this generation takes back."""
    return as_int(counters.computed) - (as_int(counters.in_flight) - counters.stale)


def processed(counters: Counters) -> IntTerm:
    """max(0, C - F): vLLM's processed_computed_tokens, which counts stale tokens against the new generation."""
    return maximum(as_int(counters.computed) - counters.in_flight, 0)


def free_basis(counters: Counters, basis: FreeBasis, drafts_max: Int | None = None) -> IntTerm:
    """The count on which a prune relies under a discipline. `drafts_max`: drafts a step, which LESS_DRAFTS takes off.

    Raises ValueError if they are needed and not given.
    """
    match basis:
        case FreeBasis.SETTLED:
            return settled(counters)
        case FreeBasis.PROCESSED:
            return processed(counters)
        case FreeBasis.COMPUTED:
            return as_int(counters.computed)
        case FreeBasis.LESS_DRAFTS:
            if drafts_max is None:
                raise ValueError(f"the basis {basis.value!r} takes the drafts a step off: expected their number")
            return maximum(as_int(counters.computed) - drafts_max, 0)


def schedule(counters: Counters, tokens: Int) -> Counters:
    """A step of `tokens` tokens is dispatched: it counts as computed at once."""
    return Counters(as_int(counters.computed) + tokens, as_int(counters.in_flight) + tokens, counters.stale)


def process(counters: Counters, tokens: Int, rejected: Int, discipline: Discipline) -> Counters:
    """The output of a step of `tokens` tokens, `rejected` of them rolled back, is read.

    Outputs come back in schedule order, so while any token is stale the output is a stale one. Then the rejections predate the
    reset of the computed count and must not apply.
    """
    computed, in_flight, stale = (as_int(count) for count in counters)
    is_stale = stale > 0
    match discipline.stale_output:
        case StaleOutput.DRAIN:
            rolled_back = select(is_stale, 0, rejected)
        case StaleOutput.APPLY:
            rolled_back = select(both(is_stale, computed <= 0), 0, rejected)
        case StaleOutput.UNDRAINED:
            undrained = Counters(computed, in_flight, stale)
            drained = Counters(computed - rejected, in_flight - tokens, stale)
            return Counters(*(select(is_stale, x, y) for x, y in zip(undrained, drained, strict=True)))
        case StaleOutput.FLAG:
            rolled_back = select(is_stale, 0, minimum(rejected, computed))
            return Counters(computed - rolled_back, in_flight - tokens, 0)
    return Counters(computed - rolled_back, in_flight - tokens, stale - select(is_stale, tokens, 0))


def preempt(counters: Counters, discipline: Discipline) -> Counters:
    """The request starts over: a new generation, in which all that is in flight is stale."""
    if discipline.stale_output is StaleOutput.FLAG:
        return Counters(0, counters.in_flight, 1)
    stale = counters.in_flight if discipline.preempt_marks_stale else counters.stale
    return Counters(0, counters.in_flight, stale)


def resume(counters: Counters, hit: Int) -> Counters:
    """A generation starts with `hit` tokens found in the prefix cache."""
    return Counters(hit, counters.in_flight, counters.stale)
