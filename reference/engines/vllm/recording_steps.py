"""Steps: what the scheduler dispatches, and what becomes of it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from settled.model.events import Computed, Copy, Event, Finish, PerGroup, Process, ProcessedRequest, Schedule, ScheduledRequest, Zero
from settled.reference.engines.vllm.recording_blocks import BlockRecorder
from settled.reference.engines.vllm.recording_live import KnownRequest, Recording
from settled.reference.engines.vllm.recording_requests import RequestRecorder

# What a step gave one request: the model's own list of tokens and its length, the computed count before, whether the scheduler takes it in.
_Outcome = tuple[Any, int, int, bool]
# What the worker is told of a request in a step: the start, blocks per group or None, whether they replace its rows.
_Row = tuple[int, Sequence[Sequence[int]] | None, bool]

# A request's part in an unprocessed step, and the worker's rows as they stood when it was scheduled: their lists, and their lengths.
StepEntry = tuple[KnownRequest, ScheduledRequest, list[list[int]], tuple[int, ...]]


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
        drafts = output.scheduled_spec_decode_tokens
        by_id, no_blocks = self._recording.requests.by_id, self._no_blocks
        requests = []
        told = self._rows_told(output)
        for (request_id, tokens), (start, blocks, resumed) in zip(output.num_scheduled_tokens.items(), told, strict=True):
            known = by_id[request_id]
            num_drafts = len(drafts[request_id]) if request_id in drafts else 0
            new_blocks = no_blocks if blocks is None else tuple(map(tuple, blocks))
            if resumed or blocks is not None or not known.is_on_worker:
                self._extend_rows(known, new_blocks, resumed=resumed)
            known.num_unprocessed_steps += 1
            counters = None
            if self._counts_stale:
                request = known.request
                counters = (request.num_computed_tokens, request.num_in_flight_tokens, request.num_stale_output_tokens)
            scheduled = ScheduledRequest(known.name, start, tokens, num_drafts, new_blocks, resumed, counters)
            step.entries.append((known, scheduled, known.rows, known.lengths))
            requests.append(scheduled)
        self._recording.emit(Schedule(step=step.step, requests=tuple(requests)))

    def _prepared(self, step: OpenStep) -> None:
        """What the device does before the step: zeroes and copies."""
        zeroed = getattr(step.output, "new_block_ids_to_zero", None)
        if zeroed:
            self._recording.emit(Zero(step=step.step, blocks=tuple(zeroed)))
        for copy in getattr(step.output, "kv_cache_block_copies", None) or ():
            group = self._blocks.copy_groups.pop(copy.dst_block_id, 0)
            self._recording.emit(Copy(step=step.step, group=group, source=copy.src_block_id, target=copy.dst_block_id))
            self._blocks.holders.copied(copy.src_block_id)

    def _rows_told(self, output: Any) -> Iterable[_Row]:
        """Of each request in the order of `num_scheduled_tokens`: its start, and the blocks that the worker is told to append to its rows
        (None: none), or to replace them with."""
        cached = output.scheduled_cached_reqs
        resumed = getattr(cached, "resumed_req_ids", None)
        if resumed is None:  # a flag for each
            resumed = {name for name, flag in zip(cached.req_ids, cached.resumed_from_preemption, strict=True) if flag}
        of_cached = zip(cached.num_computed_tokens, cached.new_block_ids, map(resumed.__contains__, cached.req_ids), strict=True)
        names = list(output.num_scheduled_tokens)
        if names == cached.req_ids:
            return of_cached
        rows: dict[str, _Row] = dict(zip(cached.req_ids, of_cached, strict=True))
        for new in output.scheduled_new_reqs:
            # A worker that knows the request already gets its rows anew.
            is_on_worker = self._recording.requests.by_id[new.req_id].is_on_worker
            rows[new.req_id] = (new.num_computed_tokens, new.block_ids, is_on_worker)
        return [rows[name] for name in names]

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
        if not len(sampled_ids):
            sampled_ids, index_of = (), {}
        outcomes: list[_Outcome] = []
        for known, _, _, _ in step.entries:
            request = known.request
            index = index_of.get(request.request_id)
            tokens = () if index is None else sampled_ids[index]
            outcomes.append((tokens, len(tokens), request.num_computed_tokens, not known.is_finished))
        return outcomes

    def _processed(self, step: OpenStep, outcomes: list[_Outcome], later: list[Event]) -> None:
        del self.unprocessed[id(step.output)]
        affected, counters_before = self._requests.affected, self._requests.counters
        # What a failed load takes back counts for nothing where it ends the request.
        failed = [event for event in later if isinstance(event, Computed) and event.cause == "load_failed"]
        ended = {event.request for event in later if isinstance(event, Finish)} if failed else frozenset()
        emit, forget_if_gone, counts_stale = self._recording.emit, self._recording.requests.forget_if_gone, self._counts_stale
        processed = []
        for (known, scheduled, _, _), outcome in zip(step.entries, outcomes, strict=True):
            request = known.request
            known.num_unprocessed_steps -= 1
            rejected = 0
            if scheduled.drafts and request.request_id not in affected:
                rejected = _rejected(request, scheduled.drafts, outcome)
            counters = None
            if counts_stale and outcome[3] and known.name not in ended:
                counters = (request.num_computed_tokens, request.num_in_flight_tokens, request.num_stale_output_tokens)
                if counters_before:
                    counters = counters_before.get(request.request_id, counters)
            processed.append(ProcessedRequest(known.name, outcome[1], rejected, counters))
            if known.is_finished:
                forget_if_gone(known)
        # A count that a failed load takes back is taken back before the output is read.
        for taken_back in failed:
            if taken_back.request not in ended:
                emit(taken_back)
        emit(Process(step=step.step, requests=tuple(processed)))
        for event in later:
            if not (failed and isinstance(event, Computed) and event.cause == "load_failed"):
                emit(event)


def _rejected(request: Any, drafts: int, outcome: _Outcome) -> int:
    """The drafts that the model did not accept; and those cut off at a stop, where the release takes them back too."""
    tokens, sampled, computed_before, _ = outcome
    if not sampled:
        return 0
    rejected = max(0, drafts - (sampled - 1))
    trimmed = sampled - len(tokens)
    if trimmed and computed_before - request.num_computed_tokens == rejected + trimmed:
        return rejected + trimmed
    return rejected
