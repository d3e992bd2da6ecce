"""The counters of each request against the steps that are unprocessed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any

from settled.reference.engines.protocol import Anomaly
from settled.reference.engines.vllm.inspection_view import View, in_flight, stale

COUNTERS_SYMMETRIC = "counters_symmetric"

Steps = Sequence[Mapping[str, int]]
"""Tokens of each request of each unprocessed step, the oldest step first."""


def counters(view: View, steps: Steps) -> Iterator[Anomaly]:
    """A request's tokens in flight are those of its unprocessed steps; the stale ones are of the oldest; what is settled, it has."""
    for request_id, request in view.requests.items():
        tokens = [step[request_id] for step in steps if request_id in step]
        yield from _in_flight(request, tokens)
        if not request.is_finished():
            yield from _settled(request, tokens)


def _in_flight(request: Any, tokens: Sequence[int]) -> Iterator[Anomaly]:
    of_steps, counted, counted_stale = sum(tokens), in_flight(request), stale(request)
    if counted is not None and counted != of_steps:
        what = f"request {request.request_id} counts {counted} tokens in flight, and its {len(tokens)} unprocessed steps have {of_steps}"
        yield Anomaly(COUNTERS_SYMMETRIC, "in_flight", what)
    elif counted_stale is not None and counted_stale not in (0, *accumulate(tokens)):
        what = f"request {request.request_id} counts {counted_stale} stale tokens, no sum over its oldest steps {list(tokens)}"
        yield Anomaly(COUNTERS_SYMMETRIC, "stale", what)


def _settled(request: Any, tokens: Sequence[int]) -> Iterator[Anomaly]:
    """What is settled, the request has: steps in flight run ahead of its tokens by what they sample themselves."""
    computed, ahead, counted_stale = request.num_computed_tokens, in_flight(request) or 0, stale(request)
    # Before 0.29 nothing tells which tokens in flight are stale: then what is settled lies between these two.
    least, most = (computed - ahead, computed) if counted_stale is None else [computed - (ahead - counted_stale)] * 2
    if most < 0 or least > request.num_tokens:
        what = (
            f"request {request.request_id} counts {computed} computed tokens, {ahead} tokens in flight, {counted_stale or 0} of them stale"
        )
        yield Anomaly(COUNTERS_SYMMETRIC, "computed", f"{what}, and has {request.num_tokens} tokens")
    placeholders = getattr(request, "num_output_placeholders", 0)
    if placeholders < 0 or (placeholders and not tokens):
        what = f"request {request.request_id} awaits {placeholders} tokens of {len(tokens)} unprocessed steps"
        yield Anomaly(COUNTERS_SYMMETRIC, "placeholders", what)


def sequence(view: View, steps: Steps) -> Iterator[Anomaly]:
    """Where steps are numbered for the fence, as many are scheduled and not processed as are unprocessed."""
    if not getattr(view.scheduler, "defer_block_free", False):
        return
    scheduled, processed = view.scheduler.sched_step_seq, view.scheduler.processed_step_seq
    unprocessed = len([step for step in steps if step])
    if scheduled - processed != unprocessed:
        what = f"{scheduled} steps are counted as scheduled and {processed} as processed, and {unprocessed} are unprocessed"
        yield Anomaly(COUNTERS_SYMMETRIC, "step_sequence", what)
