"""A step as a script wants it, and loads that a script starts: checked, and done as a whole or not at all."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from settled.reference.plan import PlanError, PlannedStep, check_planned_hit, check_planned_tokens
from settled.reference.prefix_cache import CacheHit
from settled.reference.request import Request, RequestStatus, RequestStep
from settled.reference.trial import all_or_nothing

if TYPE_CHECKING:
    from settled.reference.scheduler import Scheduler

Plan = Mapping[str, tuple[int, int] | PlannedStep]


class ScriptedSchedule:
    """Takes the place of the scheduler's own choice. Everything else is the scheduler's."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self.config = scheduler.config

    def schedule(self, plan: Plan, entries: list[RequestStep]) -> None:
        planned = {request_id: PlannedStep(*step) for request_id, step in plan.items()}
        total = sum(step.tokens for step in planned.values())
        if total > self.config.max_num_batched_tokens:
            raise PlanError(f"{total} tokens in one step; the batch takes {self.config.max_num_batched_tokens}")
        unknown = [request_id for request_id in planned if request_id not in self.scheduler.requests]
        if unknown:
            raise PlanError(f"no unfinished request {unknown[0]!r}")
        requests = [self.scheduler.requests[request_id] for request_id in planned]
        with all_or_nothing(
            self.scheduler.kv_cache_manager, requests, self.scheduler.running, self.scheduler.loading, self.scheduler.waiting
        ):
            for request, step in zip(requests, planned.values(), strict=True):
                has_blocks = request.status in (RequestStatus.RUNNING, RequestStatus.WAITING_FOR_REMOTE_KVS)
                entries.append(self._run_planned(request, step) if has_blocks else self._admit_planned(request, step))

    def _run_planned(self, request: Request, step: PlannedStep) -> RequestStep:
        check_planned_tokens(request, step, request.num_computed_tokens, self.config)
        if step.hit or step.external:
            raise PlanError(f"request {request.request_id!r} has blocks: a prefix hit and a load come before its first step")
        is_loaded = request.status is RequestStatus.WAITING_FOR_REMOTE_KVS
        if is_loaded:
            self._check_planned_start(request)
            if request.pending_load is not None:
                raise PlanError(f"request {request.request_id!r} waits for job {request.pending_load}, which loads its prefix")
        new_blocks = self.scheduler.allocate_slots(request, step.tokens)
        if new_blocks is None:
            raise PlanError(f"request {request.request_id!r}: the pool has no blocks for {step.tokens} more tokens")
        if is_loaded:
            self.scheduler.loading.remove(request)
            return self.scheduler.start_running(request, step.tokens)
        return self.scheduler.step_of(request, step.tokens, new_blocks, resumed=False)

    def _admit_planned(self, request: Request, step: PlannedStep) -> RequestStep:
        """Like the scheduler's own, but the script decides: it may overtake others, and the gate is not asked."""
        self._check_planned_start(request)
        hit = self.scheduler.kv_cache_manager.get_computed_blocks(request, step.hit)
        check_planned_hit(request, step.hit, hit.num_tokens)
        if step.external:
            self._check_planned_load(request, hit, step.external, at_most=request.num_tokens - 1)
        check_planned_tokens(request, step, hit.num_tokens + step.external, self.config)
        new_blocks = self.scheduler.kv_cache_manager.allocate_slots(
            request,
            step.tokens,
            hit=hit,
            num_external_tokens=step.external,
            num_lookahead_tokens=self.config.num_lookahead_tokens,
            delay_cache_blocks=step.external > 0,
        )
        if new_blocks is None:
            raise PlanError(f"request {request.request_id!r}: the pool has no blocks for its first {step.tokens} tokens")
        self.scheduler.waiting.remove(request)
        return self.scheduler.start_after_prefix(request, step.tokens, hit.num_tokens, step.external)

    def _check_planned_start(self, request: Request) -> None:
        if not request.is_ready:
            raise PlanError(f"request {request.request_id!r} waits for its stale output")
        if len(self.scheduler.running) >= self.config.max_num_seqs:
            raise PlanError(f"{self.config.max_num_seqs} requests run already")

    def _check_planned_load(self, request: Request, hit: CacheHit, num_external_tokens: int, *, at_most: int) -> None:
        if not self.scheduler.remote.can_load or self.scheduler.connector is None:
            raise PlanError(
                f"request {request.request_id!r}: this engine loads nothing (kv_consumer, connector, or the kinds of its groups)"
            )
        if hit.tails:
            raise PlanError(f"request {request.request_id!r}: a load follows a hit of whole blocks, not one of {hit.num_tokens} tokens")
        if not 1 <= num_external_tokens <= at_most - hit.num_tokens:
            raise PlanError(
                f"request {request.request_id!r}: a load of {num_external_tokens} tokens after {hit.num_tokens}; expected 1 to "
                f"{at_most - hit.num_tokens}"
            )

    def load(self, request_id: str, num_external_tokens: int, *, hit: int | None = None, handles: int = 1) -> int | None:
        """Starts an asynchronous load for a waiting request, after a hit of `hit` tokens (None: all that is cached).

        Returns its job, None if nothing of it is in the window of a later query. Raises PlanError, and then nothing has moved.
        """
        request = self.scheduler.known_request(request_id)
        if request not in self.scheduler.waiting or not request.is_ready:
            raise PlanError(f"request {request_id!r} does not wait for blocks, or waits for its stale output")
        found = self.scheduler.kv_cache_manager.get_computed_blocks(request, hit)
        check_planned_hit(request, hit, found.num_tokens)
        self._check_planned_load(request, found, num_external_tokens, at_most=request.num_tokens)
        if not self.scheduler.remote.start_load(request, found, num_external_tokens, handles=handles, is_gated=False):
            raise PlanError(f"request {request_id!r}: the pool has no blocks for {num_external_tokens} tokens to load")
        self.scheduler.waiting.remove(request)
        self.scheduler.loading.append(request)
        return request.pending_load
