"""A dispatched step, as the worker sees it: what it computes for each request, and which of them sample."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from settled.reference.engines.protocol import EngineFailedError, StepRequest
from settled.reference.engines.vllm.releases import Release


@cache
def outputs_module() -> Any:
    """The module of vLLM that has the classes of what workers answer; asked for at every step, where an import statement costs time."""
    import vllm.v1.outputs

    return vllm.v1.outputs


class DraftsWithoutTokenError(EngineFailedError):
    """A step carries drafts, and not the token before them: the model cannot check the first. What follows from it is meaningless."""


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
    joining = {new.req_id for new in output.scheduled_new_reqs} | _resumed(output) if drafts else ()
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


def check_drafts(output: Any) -> None:
    """A model checks each draft against what it makes of the token before, so a step with n drafts of a request has n + 1 tokens of it.

    Raises DraftsWithoutTokenError.
    """
    for request_id, drafts in output.scheduled_spec_decode_tokens.items():
        tokens = output.num_scheduled_tokens[request_id]
        if len(drafts) >= tokens:
            message = (
                f"request {request_id} has {len(drafts)} drafts in a step of {tokens} tokens, so the token before the first is missing"
            )
            raise DraftsWithoutTokenError("scheduler.py:schedule", message)


def sampled_token_ids(sampled: list[list[int]], release: Release) -> list[Any]:
    """As a ModelRunnerOutput of the release has them."""
    if not release.has("sampled_arrays"):
        return sampled
    import numpy

    return [numpy.array(token_ids, dtype=int) for token_ids in sampled]


def _resumed(output: Any) -> set[str]:
    """Requests that join again after a preemption."""
    cached = output.scheduled_cached_reqs
    if hasattr(cached, "resumed_req_ids"):
        return set(cached.resumed_req_ids)
    return {request_id for request_id, flag in zip(cached.req_ids, cached.resumed_from_preemption, strict=True) if flag}
