"""Steps: what the scheduler dispatches, and what becomes of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from settled.model.events import Computed, Copy, Event, PerGroup, Process, ProcessedRequest, Schedule, ScheduledRequest, Zero
from settled.reference.engines.vllm.recording_blocks import BlockRecorder
from settled.reference.engines.vllm.recording_live import KnownRequest, Recording
from settled.reference.engines.vllm.recording_requests import RequestRecorder


@dataclass(slots=True, eq=False)
class StepEntry:
    """A request's part in an unprocessed step, with the worker's rows as they stood when it was scheduled."""

    known: KnownRequest
    start: int
    tokens: int
    drafts: int
    rows: list[list[int]]
    lengths: tuple[int, ...]


@dataclass(slots=True, eq=False)
class OpenStep:
    """A step that is not processed yet. `output` is vLLM's, kept so that its identity stays its own."""

    step: int
    output: Any
    entries: list[StepEntry]


class StepRecorder:
    """Wraps `schedule` and `update_from_output`. Steps are numbered from 0; `unprocessed` has them in schedule order."""

    def __init__(self, recording: Recording, blocks: BlockRecorder, requests: RequestRecorder, *, counts_stale: bool) -> None:
        self.unprocessed: dict[int, OpenStep] = {}  # by the identity of vLLM's output
        self._recording = recording
        self._blocks = blocks
        self._requests = requests
        self._counts_stale = counts_stale
        self._no_blocks: PerGroup = tuple([()] * len(blocks.managers))
        recording.patches.wrap(recording.scheduler, "schedule", self._around_schedule)
        recording.patches.wrap(recording.scheduler, "update_from_output", self._around_update_from_output)

    # ---- schedule ----------------------------------------------------------------------------------------------------

    def _around_schedule(self, original: Any) -> Any:
        def schedule(*args: Any, **kwargs: Any) -> Any:
            output = original(*args, **kwargs)
            self._scheduled(output)
            return output

        return schedule

    def _scheduled(self, output: Any) -> None:
        self._recording.last_step += 1
        step = OpenStep(self._recording.last_step, output, [])
        self.unprocessed[id(output)] = step
        self._prepared(step)
        rows = self._rows_told(output)
        drafts = output.scheduled_spec_decode_tokens
        by_id = self._recording.requests.by_id
        requests = []
        for request_id, tokens in output.num_scheduled_tokens.items():
            known = by_id[request_id]
            start, new_blocks, resumed = rows[request_id]
            num_drafts = len(drafts[request_id]) if request_id in drafts else 0
            self._extend_rows(known, new_blocks, resumed=resumed)
            known.num_unprocessed_steps += 1
            step.entries.append(StepEntry(known, start, tokens, num_drafts, known.rows, known.lengths))
            counters = None
            if self._counts_stale:
                request = known.request
                counters = (request.num_computed_tokens, request.num_in_flight_tokens, request.num_stale_output_tokens)
            requests.append(
                ScheduledRequest(
                    request=known.name,
                    start=start,
                    tokens=tokens,
                    drafts=num_drafts,
                    new_blocks=new_blocks,
                    resumed=resumed,
                    counters=counters,
                )
            )
        self._recording.emit(Schedule(step=step.step, requests=tuple(requests)))

    def _prepared(self, step: OpenStep) -> None:
        """What the device does before the step: zeroes and copies."""
        zeroed = getattr(step.output, "new_block_ids_to_zero", None)
        if zeroed:
            self._recording.emit(Zero(step=step.step, blocks=tuple(zeroed)))
        for copy in getattr(step.output, "kv_cache_block_copies", None) or ():
            group = self._blocks.copy_groups.pop(copy.dst_block_id, 0)
            self._recording.emit(Copy(step=step.step, group=group, source=copy.src_block_id, target=copy.dst_block_id))

    def _rows_told(self, output: Any) -> dict[str, tuple[int, PerGroup, bool]]:
        """Per request: its start, and the blocks that the worker is told to append to its rows, or to replace them with."""
        by_id = self._recording.requests.by_id
        rows: dict[str, tuple[int, PerGroup, bool]] = {}
        for new in output.scheduled_new_reqs:
            # A worker that knows the request already gets its rows anew.
            rows[new.req_id] = (new.num_computed_tokens, tuple(map(tuple, new.block_ids)), by_id[new.req_id].is_on_worker)
        cached = output.scheduled_cached_reqs
        resumed = getattr(cached, "resumed_req_ids", None)
        if resumed is None:  # a flag for each
            resumed = {name for name, flag in zip(cached.req_ids, cached.resumed_from_preemption, strict=True) if flag}
        for name, start, blocks in zip(cached.req_ids, cached.num_computed_tokens, cached.new_block_ids, strict=True):
            rows[name] = (start, self._no_blocks if blocks is None else tuple(map(tuple, blocks)), name in resumed)
        return rows

    def _extend_rows(self, known: KnownRequest, new_blocks: PerGroup, *, resumed: bool) -> None:
        """Steps in flight keep the rows that they have, at the length that they had."""
        if resumed or not known.is_on_worker:
            known.is_on_worker = True
            known.rows = [list(blocks) for blocks in new_blocks]
        elif any(new_blocks):
            for row, blocks in zip(known.rows, new_blocks, strict=True):
                row += blocks
        else:
            return
        known.lengths = tuple(map(len, known.rows))

    # ---- process -----------------------------------------------------------------------------------------------------

    def _around_update_from_output(self, original: Any) -> Any:
        def update_from_output(scheduler_output: Any, model_runner_output: Any, *args: Any, **kwargs: Any) -> Any:
            step = self.unprocessed.get(id(scheduler_output))
            if step is None:
                return original(scheduler_output, model_runner_output, *args, **kwargs)
            self._skip_empty_before(step)
            outcomes = self._outcomes(step, model_runner_output)
            # The counters after the output are known when the scheduler is through; what it does besides comes after it.
            recording = self._recording
            later: list[Event] = []
            emit, recording.emit = recording.emit, later.append
            self._requests.affected.clear()
            self._requests.counters.clear()
            try:
                return original(scheduler_output, model_runner_output, *args, **kwargs)
            finally:
                recording.emit = emit
                self._processed(step, outcomes, later)

        return update_from_output

    def _skip_empty_before(self, step: OpenStep) -> None:
        """Empty steps for which no output was read: there was none."""
        for key, earlier in list(self.unprocessed.items()):
            if earlier is step or earlier.entries:
                break
            del self.unprocessed[key]
            self._recording.emit(Process(step=earlier.step, requests=()))

    def _outcomes(self, step: OpenStep, output: Any) -> list[_Outcome]:
        """What the model made of each request. Taken before the scheduler reads it, since it cuts the lists off where a request stops."""
        sampled_ids, index_of = output.sampled_token_ids, output.req_id_to_index
        requests = self._recording.scheduler.requests
        outcomes = []
        for entry in step.entries:
            request_id = entry.known.request.request_id
            index = index_of.get(request_id)
            tokens = sampled_ids[index] if index is not None and len(sampled_ids) else ()
            is_read = requests.get(request_id) is entry.known.request and not entry.known.is_finished
            outcomes.append(_Outcome(tokens, len(tokens), entry.known.request.num_computed_tokens, is_read))
        return outcomes

    def _processed(self, step: OpenStep, outcomes: list[_Outcome], later: list[Event]) -> None:
        del self.unprocessed[id(step.output)]
        requests, emit = self._requests, self._recording.emit
        processed = []
        for entry, outcome in zip(step.entries, outcomes, strict=True):
            known = entry.known
            known.num_unprocessed_steps -= 1
            request_id = known.request.request_id
            rejected = 0
            if entry.drafts and request_id not in requests.affected:
                rejected = _rejected(entry, outcome)
            counters = None
            if self._counts_stale and outcome.is_read:
                request = known.request
                counters = requests.counters.get(request_id) or (
                    request.num_computed_tokens,
                    request.num_in_flight_tokens,
                    request.num_stale_output_tokens,
                )
            processed.append(ProcessedRequest(request=known.name, sampled=outcome.sampled, rejected=rejected, counters=counters))
            if known.is_finished:
                self._recording.requests.forget_if_gone(known)
        # A count that a failed load takes back is taken back before the output is read.
        failed = [event for event in later if isinstance(event, Computed) and event.cause == "load_failed"]
        for taken_back in failed:
            emit(taken_back)
        emit(Process(step=step.step, requests=tuple(processed)))
        for event in later:
            if not (failed and isinstance(event, Computed) and event.cause == "load_failed"):
                emit(event)


@dataclass(slots=True, eq=False)
class _Outcome:
    """What a step gave one request. `tokens` is the model's own list; `is_read`: the scheduler takes it in."""

    tokens: Any
    sampled: int
    computed_before: int
    is_read: bool


def _rejected(entry: StepEntry, outcome: _Outcome) -> int:
    """The drafts that the model did not accept; and those cut off at a stop, where the release takes them back too."""
    if not outcome.sampled:
        return 0
    rejected = max(0, entry.drafts - (outcome.sampled - 1))
    with_trimmed = rejected + outcome.sampled - len(outcome.tokens)
    rolled_back = outcome.computed_before - entry.known.request.num_computed_tokens
    return with_trimmed if rolled_back == with_trimmed else rejected
