"""Loads and stores of any connector, as the scheduler sees them. What a connector does on its own, it does not tell.

What is exact: which request loads or stores, when a load may begin at the earliest, when the scheduler learns that a transfer is over,
and which blocks failed. What is an approximation:

- A load is taken to write into every block that covers one of its external tokens, from the moment at which the scheduler tells the
  connector of these blocks; a connector may begin later, or find some tokens elsewhere.
- A store is seen only where the connector asks to keep a finished request's blocks, and is taken to read all of them until it reports.
  Stores of requests that still run (an offloading connector's, say) are not seen.
- The workers of an asynchronous transfer are one handle: vLLM's executor reports it once all are through.
- No order of the device is known, so none is recorded.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from settled.model.events import NULL_BLOCK, Job
from settled.reference.engines.vllm.recording import SchedulerRecorder
from settled.reference.engines.vllm.recording_live import Patches


@dataclass(slots=True, eq=False)
class _Loading:
    """A load under way. `step`: the step within which a synchronous one runs. `failed`: blocks of which that is known already."""

    job: Job
    blocks: list[list[int]]
    step: int | None
    failed: set[int] = field(default_factory=set)


class ObservedTransfers:
    """Wraps a live scheduler's connector, outside of what the recorder wraps; `patches` puts it back."""

    def __init__(self, scheduler: Any, recorder: SchedulerRecorder, patches: Patches) -> None:
        self._scheduler, self._recorder = scheduler, recorder
        self._matched: dict[str, tuple[int, bool]] = {}  # request -> tokens that it has without a load; whether the load is asynchronous
        self._loading: dict[str, _Loading] = {}
        self._storing: dict[str, Job] = {}
        patches.wrap(scheduler.connector, "get_num_new_matched_tokens", self._around_matched)
        patches.wrap(scheduler.connector, "update_state_after_alloc", self._around_allocated)
        patches.wrap(scheduler, "_connector_finished", self._around_finished)
        patches.wrap(scheduler, "update_from_output", self._around_update_from_output)

    # ---- they begin --------------------------------------------------------------------------------------------------

    def _around_matched(self, original: Any) -> Any:
        def get_num_new_matched_tokens(request: Any, num_computed_tokens: int, *args: Any, **kwargs: Any) -> Any:
            tokens, is_async = found = original(request, num_computed_tokens, *args, **kwargs)
            if tokens:
                self._matched[request.request_id] = (num_computed_tokens, is_async)
            return found

        return get_num_new_matched_tokens

    def _around_allocated(self, original: Any) -> Any:
        def update_state_after_alloc(request: Any, blocks: Any, num_external_tokens: int, *args: Any, **kwargs: Any) -> Any:
            result = original(request, blocks, num_external_tokens, *args, **kwargs)
            if num_external_tokens:
                self._load(request.request_id, num_external_tokens)
            return result

        return update_state_after_alloc

    def _load(self, request_id: str, num_external_tokens: int) -> None:
        start, is_async = self._matched.pop(request_id)
        blocks = self._covering(request_id, start, start + num_external_tokens)
        if not any(blocks):
            return
        step = None if is_async else self._recorder.next_step
        self._loading[request_id] = _Loading(self._recorder.load_started(request_id, blocks, step=step), blocks, step)

    def _covering(self, request_id: str, start: int, end: int) -> list[list[int]]:
        """Per group the blocks of a request that hold a token of [start, end)."""
        manager = self._scheduler.kv_cache_manager
        sizes = [single.block_size for single in manager.coordinator.single_type_managers]
        tables = zip(manager.get_block_ids(request_id), sizes, strict=True)
        return [[block for block in table[start // size : -(-end // size)] if block != NULL_BLOCK] for table, size in tables]

    def _around_finished(self, original: Any) -> Any:
        def connector_finished(request: Any, *args: Any, **kwargs: Any) -> Any:
            self._matched.pop(request.request_id, None)  # of one that ends before there was room for its load
            keeps_blocks, _ = told = original(request, *args, **kwargs)
            if keeps_blocks:
                tables = self._scheduler.kv_cache_manager.get_block_ids(request.request_id)
                blocks = [[block for block in table if block != NULL_BLOCK] for table in tables]
                if any(blocks):
                    self._storing[request.request_id] = self._recorder.store_started(request.request_id, blocks)
            return told

        return connector_finished

    # ---- they end ----------------------------------------------------------------------------------------------------

    def _around_update_from_output(self, original: Any) -> Any:
        """What workers report with an output is told before the output: the scheduler acts on it at once."""

        def update_from_output(scheduler_output: Any, model_runner_output: Any, *args: Any, **kwargs: Any) -> Any:
            reported = getattr(model_runner_output, "kv_connector_output", None)
            if reported is not None:
                self._note_failures(set(reported.invalid_block_ids or ()), getattr(reported, "failed_recving", ()))
                self._loads_over(reported.finished_recving or ())
                self._stores_over(reported.finished_sending or ())
            self._loads_over(self._loads_within(scheduler_output))
            return original(scheduler_output, model_runner_output, *args, **kwargs)

        return update_from_output

    def _note_failures(self, invalid: set[int], failed_requests: Iterable[str]) -> None:
        """A failure may be reported before the end of its load: block by block, or for a whole request (by 0.33)."""
        failed_requests = set(failed_requests)
        if invalid or failed_requests:
            for request_id, loading in self._loading.items():
                blocks = {block for group in loading.blocks for block in group}
                loading.failed |= blocks if request_id in failed_requests else blocks & invalid

    def _loads_within(self, scheduler_output: Any) -> list[str]:
        """The synchronous loads of a step: over when its output is there."""
        step = self._recorder.step_of(scheduler_output)
        return [name for name, loading in self._loading.items() if loading.step is not None and loading.step == step]

    def _loads_over(self, request_ids: Iterable[str]) -> None:
        for request_id in sorted(request_ids):
            loading = self._loading.pop(request_id, None)
            if loading is not None:
                failed = [[block for block in blocks if block in loading.failed] for blocks in loading.blocks]
                self._recorder.transfer_done(loading.job, ok=not loading.failed, failed=failed if loading.failed else None)

    def _stores_over(self, request_ids: Iterable[str]) -> None:
        for request_id in sorted(request_ids):
            job = self._storing.pop(request_id, None)
            if job is not None:
                self._recorder.transfer_done(job, ok=True)
