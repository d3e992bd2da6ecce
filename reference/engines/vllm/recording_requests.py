"""What happens to requests: they come, find a prefix, are preempted, lose what a load brought, end."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

from settled.model.events import Add, Computed, ComputedCause, Finish, FinishReason, Preempt, ReleaseCause
from settled.reference.engines.vllm.recording_blocks import BlockRecorder
from settled.reference.engines.vllm.recording_live import KnownRequest, Recording

_REASONS: dict[str, FinishReason] = {
    "FINISHED_LENGTH_CAPPED": "length",
    "FINISHED_IGNORED": "length",
    "FINISHED_ABORTED": "abort",
    "FINISHED_ERROR": "error",
}


def _reason(request: Any) -> FinishReason:
    return _REASONS.get(request.status.name, "stop")


def _cause_of_finish(request: Any) -> ReleaseCause:
    return "abort" if _reason(request) == "abort" else "finish"


class RequestRecorder:
    """Wraps the scheduler's methods that change a request outside of schedule and process.

    `affected` are the requests whose output of the step that is being processed is not read, since a load within it has failed.
    `counters` keeps the counters of those whose output was taken in before something else changed them.
    """

    def __init__(self, recording: Recording, blocks: BlockRecorder, *, preempts_inline: bool, counts_when_loaded: bool) -> None:
        self.affected: set[str] = set()
        self.counters: dict[str, tuple[int, int, int]] = {}
        self._recording = recording
        self._blocks = blocks
        self._local_hit: tuple[str, int] | None = None  # a request that a connector is about to be told of, and its hit in tokens
        self._loads_beside: set[str] = set()  # requests for which it has offered a load beside the steps
        self._pending_loads: dict[str, tuple[int, int]] = {}  # local and external tokens that are counted once the load is there
        self._is_resetting = False
        scheduler, patches = recording.scheduler, recording.patches
        patches.wrap(scheduler, "add_request", self._around_add)
        patches.wrap(scheduler, "_free_request", self._around_free_request)
        patches.wrap(scheduler, "_free_blocks", recording.because(_cause_of_finish))
        patches.wrap(scheduler, "_connector_finished", recording.because(lambda request: "connector_finish"))
        patches.wrap_if_present(scheduler, "_preempt_request", self._around_preempt)
        patches.wrap_if_present(scheduler, "_update_waiting_for_remote_kv", self._around_loaded)
        patches.wrap_if_present(scheduler, "_update_requests_with_invalid_blocks", self._around_invalid_blocks)
        patches.wrap_if_present(scheduler, "_handle_failed_recving", self._around_failed_recving)
        patches.wrap_if_present(scheduler, "_handle_stopped_request", self._around_stopped)
        patches.wrap(scheduler, "reset_prefix_cache", self._around_reset)
        patches.wrap(scheduler.kv_cache_manager, "allocate_slots", self._around_allocate_slots)
        if preempts_inline:
            patches.wrap(scheduler.kv_cache_manager, "free", self._around_free_inline)
        if scheduler.connector is not None:
            patches.wrap(scheduler.connector, "update_state_after_alloc", self._around_update_state_after_alloc)
            if counts_when_loaded:
                patches.wrap(scheduler.connector, "get_num_new_matched_tokens", self._around_matched)

    def _known(self, request: Any) -> KnownRequest:
        return self._recording.requests.by_id[request.request_id]

    def _computed(
        self, request: Any, cause: ComputedCause, *, stale: bool = False, local: int | None = None, external: int | None = None
    ) -> None:
        known = self._known(request)
        if stale:
            known.last_stale_step = self._recording.last_step
        self._recording.emit(
            Computed(request=known.name, computed=request.num_computed_tokens, cause=cause, stale=stale, local=local, external=external)
        )

    # ---- they come ---------------------------------------------------------------------------------------------------

    def _around_add(self, original: Any) -> Any:
        def add_request(request: Any, *args: Any, **kwargs: Any) -> Any:
            if request.request_id not in self._recording.scheduler.requests:  # otherwise it is more input for one that is there
                known = self._recording.requests.add(request)
                self._recording.emit(Add(request=known.name, prompt_tokens=request.num_prompt_tokens, max_tokens=request.max_tokens))
            return original(request, *args, **kwargs)

        return add_request

    def _around_allocate_slots(self, original: Any) -> Any:
        blocks, has_connector = self._blocks, self._recording.scheduler.connector is not None

        def allocate_slots(request: Any, num_new_tokens: int, num_new_computed_tokens: int = 0, *args: Any, **kwargs: Any) -> Any:
            blocks.admitted = request.request_id
            new_blocks = original(request, num_new_tokens, num_new_computed_tokens, *args, **kwargs)
            blocks.admitted = None
            if new_blocks is not None:
                if has_connector:
                    self._local_hit = (request.request_id, num_new_computed_tokens)
                elif num_new_computed_tokens:
                    self._hit(request, num_new_computed_tokens, 0)
            return new_blocks

        return allocate_slots

    def _around_update_state_after_alloc(self, original: Any) -> Any:
        def update_state_after_alloc(request: Any, blocks: Any, num_external_tokens: int, *args: Any, **kwargs: Any) -> Any:
            local_hit, self._local_hit = self._local_hit, None
            if local_hit is not None and local_hit[0] == request.request_id and local_hit[1] + num_external_tokens:
                if request.request_id in self._loads_beside and num_external_tokens:
                    self._pending_loads[request.request_id] = (local_hit[1], num_external_tokens)
                else:
                    self._hit(request, local_hit[1], num_external_tokens)
            self._loads_beside.discard(request.request_id)
            return original(request, blocks, num_external_tokens, *args, **kwargs)

        return update_state_after_alloc

    def _around_matched(self, original: Any) -> Any:
        def get_num_new_matched_tokens(request: Any, num_computed_tokens: int) -> Any:
            offered = original(request, num_computed_tokens)
            if offered[1]:
                self._loads_beside.add(request.request_id)
            return offered

        return get_num_new_matched_tokens

    def _hit(self, request: Any, num_local_tokens: int, num_external_tokens: int) -> None:
        """What it need not compute, told where its blocks have just been taken; the scheduler counts it a few lines later."""
        self._recording.emit(
            Computed(
                request=self._known(request).name,
                computed=request.num_computed_tokens + num_local_tokens + num_external_tokens,
                cause="external" if num_external_tokens else "hit",
                stale=False,
                local=num_local_tokens,
                external=num_external_tokens or None,
            )
        )

    # ---- loads -------------------------------------------------------------------------------------------------------

    def _around_loaded(self, original: Any) -> Any:
        def update_waiting_for_remote_kv(request: Any, *args: Any, **kwargs: Any) -> Any:
            former, self._recording.cause = self._recording.cause, "preempt"  # a load that brought nothing: it starts over
            before = request.num_computed_tokens
            try:
                result = original(request, *args, **kwargs)
            finally:
                self._recording.cause = former
            if request.num_computed_tokens != before:
                self._loaded(request)
            return result

        return update_waiting_for_remote_kv

    def _loaded(self, request: Any) -> None:
        pending = self._pending_loads.pop(request.request_id, None)
        if pending is not None:
            self._computed(request, "external", local=pending[0], external=pending[1])
        else:
            self._computed(request, "last_token" if request.num_computed_tokens == request.num_tokens - 1 else "replay")

    def _around_invalid_blocks(self, original: Any) -> Any:
        def update_requests_with_invalid_blocks(requests: Iterable[Any], *args: Any, **kwargs: Any) -> Any:
            asked = list(requests)
            before = [request.num_computed_tokens for request in asked]
            result = original(asked, *args, **kwargs)
            self.affected |= set(result[0])
            self._tell_failed(asked, before)
            return result

        return update_requests_with_invalid_blocks

    def _around_failed_recving(self, original: Any) -> Any:
        def handle_failed_recving(failed_req_ids: Any) -> Any:
            requests = self._recording.scheduler.requests
            asked = [requests[request_id] for request_id in sorted(failed_req_ids) if request_id in requests]
            before = [request.num_computed_tokens for request in asked]
            result = original(failed_req_ids)
            self._tell_failed(asked, before)
            return result

        return handle_failed_recving

    def _tell_failed(self, requests: list[Any], before: list[int]) -> None:
        for request, former in zip(requests, before, strict=True):
            if request.num_computed_tokens != former:
                self._computed(request, "load_failed")

    # ---- they start over ---------------------------------------------------------------------------------------------

    def _around_preempt(self, original: Any) -> Any:
        def preempt_request(request: Any, *args: Any, **kwargs: Any) -> Any:
            is_dropped = self._is_resetting or bool(kwargs.get("drop_stale_output"))
            if getattr(request, "drop_stale_output", False) and request.num_stale_output_tokens > 0:
                is_dropped = True  # what was dropped stays dropped
            self._preempted(request, "drop" if is_dropped else "deliver")
            former, self._recording.cause = self._recording.cause, "preempt"
            try:
                return original(request, *args, **kwargs)
            finally:
                self._recording.cause = former

        return preempt_request

    def _around_free_inline(self, original: Any) -> Any:
        """To free a request that has not finished is to preempt it, where no method does that."""

        def free(request: Any) -> Any:
            if self._recording.cause is not None:
                return original(request)
            self._preempted(request, "deliver")
            self._recording.cause = "preempt"
            try:
                return original(request)
            finally:
                self._recording.cause = None

        return free

    def _preempted(self, request: Any, output: Literal["deliver", "drop"]) -> None:
        known = self._known(request)
        known.last_stale_step = self._recording.last_step
        self._recording.emit(Preempt(request=known.name, output=output))

    def _around_reset(self, original: Any) -> Any:
        def reset_prefix_cache(*args: Any, **kwargs: Any) -> Any:
            self._is_resetting = True
            try:
                return original(*args, **kwargs)
            finally:
                self._is_resetting = False

        return reset_prefix_cache

    def _around_stopped(self, original: Any) -> Any:
        """A session's turn is over: what is in flight is dropped, and the count goes back to what is certain."""

        def handle_stopped_request(request: Any) -> bool:
            before = self.counters[request.request_id] = counters_of(request)
            is_over: bool = original(request)
            if not is_over or counters_of(request) != before:
                self._computed(request, "session", stale=True)
            return is_over

        return handle_stopped_request

    # ---- they end ----------------------------------------------------------------------------------------------------

    def _around_free_request(self, original: Any) -> Any:
        def free_request(request: Any, *args: Any, **kwargs: Any) -> Any:
            known = self._known(request)
            known.is_finished = True
            self._loads_beside.discard(request.request_id)
            self._pending_loads.pop(request.request_id, None)
            known.last_stale_step = self._recording.last_step
            self._recording.emit(Finish(request=known.name, reason=_reason(request)))
            former, self._recording.cause = self._recording.cause, _cause_of_finish(request)
            try:
                return original(request, *args, **kwargs)
            finally:
                self._recording.cause = former
                self._recording.requests.forget_if_gone(known)

        return free_request


def counters_of(request: Any) -> tuple[int, int, int]:
    """Tokens computed, in flight and stale, as the release counts them; 0 for what it does not count."""
    return (
        request.num_computed_tokens,
        getattr(request, "num_in_flight_tokens", 0),
        getattr(request, "num_stale_output_tokens", 0),
    )
