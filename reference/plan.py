"""Scripted steps: what a plan may ask for, checked before anything moves."""

from __future__ import annotations

from typing import NamedTuple

from settled.reference.config import EngineConfig
from settled.reference.request import Request


class PlanError(ValueError):
    """The plan asks for a step that the scheduler could never choose; the message says which request and why."""


class HitError(PlanError):
    """The cache does not serve the `hit` tokens that the plan takes for `request_id`."""

    def __init__(self, request_id: str, hit: int, num_hit_tokens: int) -> None:
        super().__init__(f"request {request_id!r}: a hit of {hit} tokens, the cache has {num_hit_tokens}")
        self.request_id, self.hit = request_id, hit


class PlannedStep(NamedTuple):
    """`tokens` with `drafts` among them. `hit`: tokens that a starting request takes from the cache; None: all it finds. `external`:
    tokens after them that a load within the step brings.
    """

    tokens: int
    drafts: int
    hit: int | None = None
    external: int = 0


def check_planned_tokens(request: Request, step: PlannedStep, num_computed_tokens: int, config: EngineConfig) -> None:
    """A prefill chunk computes known tokens only; a decode step computes all that is left, and then its drafts."""
    left = request.num_tokens + request.num_output_placeholders - num_computed_tokens
    who = f"request {request.request_id!r}"
    if step.tokens < 1 or step.drafts < 0:
        raise PlanError(f"{who}: a step has at least 1 token and no negative drafts, not {step}")
    if num_computed_tokens + step.tokens >= config.max_model_len:
        raise PlanError(f"{who}: the step ends past the maximum length of {config.max_model_len} tokens")
    if step.drafts == 0:
        if step.tokens > left:
            raise PlanError(f"{who}: {step.tokens} tokens without drafts, but {left} are left to compute")
        return
    if request.is_prefill_chunk:
        raise PlanError(f"{who}: {step.drafts} drafts in a prefill chunk")
    if step.drafts > config.num_speculative_tokens:
        raise PlanError(f"{who}: {step.drafts} drafts, at most {config.num_speculative_tokens} are proposed")
    if step.tokens != left + step.drafts:
        raise PlanError(f"{who}: {step.tokens} tokens, but {left} are left to compute and {step.drafts} are drafts")


def check_planned_hit(request: Request, hit: int | None, num_hit_tokens: int) -> None:
    """The cache must serve exactly the hit that the script took. Raises HitError."""
    if hit is not None and hit != num_hit_tokens:
        raise HitError(request.request_id, hit, num_hit_tokens)
