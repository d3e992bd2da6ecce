"""A dispatched step, as the worker sees it: what it computes for each request, and which of them sample."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from settled.reference.engines.protocol import StepRequest


@dataclass(frozen=True, slots=True)
class Step:
    """`number` counts the calls of schedule. `rows` are in the order in which the scheduler lists them; a step without any is executed too.

    `last_tokens`: of each request the last token id known when it was scheduled.
    """

    number: int
    scheduler_output: Any
    rows: tuple[StepRequest, ...]
    last_tokens: dict[str, int]


def step_of(number: int, output: Any, requests: Mapping[str, Any]) -> Step:
    """The step that a SchedulerOutput describes, seen right after schedule()."""
    drafts = output.scheduled_spec_decode_tokens
    joining = {new.req_id for new in output.scheduled_new_reqs} | _resumed(output)
    rows = []
    last_tokens = {}
    for request_id, tokens in output.num_scheduled_tokens.items():
        request = requests[request_id]
        # Schedule has counted the step's tokens already. A request in decode has placeholders for what earlier steps sample, and each of
        # its steps samples; another's does if it reaches the last known token.
        samples = request.num_computed_tokens >= request.num_tokens
        # A joining request may be padded to the length of a decode step (from 0.29 on). No model has drafted those, none accepts them.
        acceptable = 0 if request_id in joining else len(drafts.get(request_id, ()))
        rows.append(StepRequest(request_id, tokens, acceptable, samples))
        last_tokens[request_id] = request.all_token_ids[-1]
    return Step(number, output, tuple(rows), last_tokens)


def _resumed(output: Any) -> set[str]:
    """Requests that join again after a preemption."""
    return set(output.scheduled_cached_reqs.resumed_req_ids)
