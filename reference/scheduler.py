"""The scheduler: which request computes how many tokens in the next step, and what an output changes.

Synchronous scheduling is a pipeline of depth 1. At a greater depth, steps are scheduled while earlier ones are unprocessed:
counts move at schedule, tokens to be sampled are placeholders, and a rejection takes counts back under later steps.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence

from settled.model.disciplines import StaleOutput
from settled.model.events import FinishReason, PerGroup, ProcessedRequest, ReleaseCause
from settled.reference.config import EngineConfig, StaleOutputMode
from settled.reference.connector import KVConnector
from settled.reference.fence import Fence
from settled.reference.kv_cache_manager import SETTLED, KVCacheManager, free_basis_tokens
from settled.reference.outputs import Settlement, can_cache_output, check_model_output, settle_output
from settled.reference.prefix_cache import CacheHit
from settled.reference.recorder import Recorder
from settled.reference.remote_kv import RemoteKV
from settled.reference.request import FINISHED, RUNNING, Request, RequestStatus, RequestStep, StepOutput
from settled.reference.scripted_schedule import Plan, ScriptedSchedule
from settled.reference.transfers import Completion

Drafter = Callable[[Request], int]


class SchedulerError(RuntimeError):
    """A call that does not fit the scheduler's state: a full pipeline, a step out of order, an unknown request."""


class Scheduler:
    """First come, first served. `drafter` says how many drafts the next decode step of a request brings, if not the maximum."""

    def __init__(self, config: EngineConfig, *, connector: KVConnector | None = None, drafter: Drafter | None = None) -> None:
        self.config = config
        self.discipline = config.discipline
        self.connector = connector
        self.drafter = drafter
        self.kv_cache_manager = KVCacheManager(config)
        self.requests: dict[str, Request] = {}  # unfinished
        self.draining: dict[str, Request] = {}  # finished, with unprocessed steps
        self.waiting: deque[Request] = deque()
        self.loading: list[Request] = []  # wait with blocks, for a load or, once it is over, for a step
        self.running: list[Request] = []
        self.fence = Fence(max_frees_per_step=config.max_num_seqs)
        self.num_steps_scheduled = 0  # non-empty steps; the sequence number of the last
        self.num_steps_processed = 0
        self.num_preemptions = 0
        self.next_step = 0  # the number that the trace shows
        self.remote = RemoteKV(self)
        self.scripted = ScriptedSchedule(self)

    @property
    def recorder(self) -> Recorder | None:
        return self.kv_cache_manager.block_pool.recorder

    # ---- requests ----------------------------------------------------------------------------------------------------

    def add_request(self, request: Request) -> None:
        """Queues a request. Raises SchedulerError for an id in use or a length that the engine cannot serve."""
        request_id = request.request_id
        if request_id in self.requests or request_id in self.draining:
            raise SchedulerError(f"request id {request_id!r} is in use")
        if not 1 <= request.num_prompt_tokens < self.config.max_model_len:
            raise SchedulerError(
                f"request {request_id!r}: a prompt of {request.num_prompt_tokens} tokens; expected 1 to {self.config.max_model_len - 1}"
            )
        if request.max_tokens is not None and request.max_tokens < 1:
            raise SchedulerError(f"request {request_id!r}: max_tokens must be at least 1, not {request.max_tokens}")
        self.requests[request_id] = request
        self.waiting.append(request)
        if self.recorder is not None:
            self.recorder.add(request)

    def abort_request(self, request_id: str) -> None:
        """Ends a request wherever it is; its steps in flight run on. Raises SchedulerError if it is not there."""
        self._finish(self.known_request(request_id), "abort")

    def preempt(self, request_id: str, output: StaleOutputMode | None = None) -> None:
        """Takes a request's blocks and puts it back in front of the queue. Raises SchedulerError if it has none to give."""
        request = self.known_request(request_id)
        if request.status is RUNNING:
            self.running.remove(request)
        elif request.status is RequestStatus.WAITING_FOR_REMOTE_KVS:
            self.loading.remove(request)
        else:
            raise SchedulerError(f"request {request_id!r} is {request.status.value}: only one that has blocks is preempted")
        self._preempt_request(request, self.config.stale_output_mode if output is None else output)

    def known_request(self, request_id: str) -> Request:
        request = self.requests.get(request_id)
        if request is None:
            raise SchedulerError(f"no unfinished request {request_id!r}")
        return request

    # ---- schedule ----------------------------------------------------------------------------------------------------

    def schedule(self, plan: Plan | None = None) -> StepOutput | None:
        """Dispatches the next step; None when nothing can be scheduled. `plan`, for scripted runs, names exactly the
        requests of the step and their (tokens, drafts); PlanError says what of it is not legal, and leaves all as it was.
        """
        if self.num_steps_scheduled - self.num_steps_processed >= self.config.max_in_flight_steps:
            raise SchedulerError(f"{self.config.max_in_flight_steps} steps are unprocessed: the pipeline is full")
        entries: list[RequestStep] = []
        self.kv_cache_manager.new_step_starts()
        if plan is not None:
            self.scripted.schedule(plan, entries)
        else:
            budget, was_blocked = self._schedule_running(entries)
            if not was_blocked and self.loading:
                budget, was_blocked = self._schedule_loaded(entries, budget)
            if not was_blocked:
                self._schedule_waiting(entries, budget)
        return self._dispatch(entries) if entries else None

    def _schedule_running(self, entries: list[RequestStep]) -> tuple[int, bool]:
        """Returns the tokens left in the budget, and whether the pool ran short: then nobody is admitted in this step."""
        budget = self.config.max_num_batched_tokens
        preemptions_before = self.num_preemptions
        index = 0
        while index < len(self.running) and budget > 0:
            request = self.running[index]
            tokens = self._num_new_tokens(request, budget)
            if tokens > 0:
                new_blocks = self._allocate_or_preempt(request, tokens)
                if new_blocks is None:
                    return budget, True
                entries.append(self.step_of(request, tokens, new_blocks, resumed=False))
                budget -= tokens
            index += 1
        return budget, self.num_preemptions > preemptions_before

    def _num_new_tokens(self, request: Request, budget: int) -> int:
        """Tokens that a running request computes next, drafts included; 0 or less when it has to wait for outputs."""
        if self._will_finish(request):
            return 0
        wanted = request.num_unscheduled_tokens + request.num_draft_tokens
        # The last position below the maximum length is never computed: the token there ends the request.
        tokens = min(self._chunk(wanted), budget, self.config.max_model_len - request.num_computed_tokens - 1)
        return self.kv_cache_manager.clip_chunk(request, request.num_computed_tokens, tokens)

    def _chunk(self, num_tokens: int) -> int:
        threshold = self.config.long_prefill_token_threshold
        return threshold if 0 < threshold < num_tokens else num_tokens

    def _will_finish(self, request: Request) -> bool:
        """Whether the steps in flight reach max_tokens even if all of their drafts are rejected.

        Of the placeholders one token is certain. Several steps in flight make it more, which vLLM does not count either.
        """
        if request.max_tokens is None or request.num_output_placeholders == 0:
            return False
        return request.num_tokens + 1 >= request.num_prompt_tokens + request.max_tokens

    def _allocate_or_preempt(self, request: Request, tokens: int) -> PerGroup | None:
        """Slots for a running request, at the cost of those that came last; None if it has to wait, or was itself the last."""
        while True:
            new_blocks = self.allocate_slots(request, tokens)
            if new_blocks is not None:
                return new_blocks
            if self._reclaim_loaded():
                continue
            victim = self.running[-1]
            if victim is request and self._is_loading:
                return None  # a load holds blocks and will be over: its request can wait better than one that runs
            if not self._blocks_can_be_freed(victim) and not self.discipline.preempts_fenced:
                return None  # its blocks would wait behind the fence: preempting it gives nothing now
            self.running.pop()
            self._preempt_request(victim, self.config.stale_output_mode)
            if victim is request:
                return None

    def allocate_slots(self, request: Request, tokens: int) -> PerGroup | None:
        return self.kv_cache_manager.allocate_slots(
            request,
            tokens,
            num_lookahead_tokens=self.config.num_lookahead_tokens,
            prunes=self.discipline.prunes_with_drafts or tokens <= request.num_unscheduled_tokens,
            delay_cache_blocks=request.pending_load is not None,
        )

    # ---- requests whose prefix was loaded ----------------------------------------------------------------------------

    @property
    def _is_loading(self) -> bool:
        return any(request.pending_load is not None for request in self.loading)

    def _schedule_loaded(self, entries: list[RequestStep], budget: int) -> tuple[int, bool]:
        """Starts those whose load is over, before others that have no blocks yet. Returns what `_schedule_running` returns."""
        for request in [request for request in self.loading if request.pending_load is None]:
            if budget <= 0 or len(self.running) >= self.config.max_num_seqs:
                break
            if request.status is not RequestStatus.WAITING_FOR_REMOTE_KVS or not request.is_ready:
                continue  # its blocks were taken just now, or stale output may sample what would be next
            wanted = self._chunk(request.num_tokens - request.num_computed_tokens)
            if wanted > budget and not self.config.enable_chunked_prefill:
                break
            tokens = min(wanted, budget)
            new_blocks = self.allocate_slots(request, tokens)
            while new_blocks is None and not self.running and self._reclaim_loaded(keep=request):
                new_blocks = self.allocate_slots(request, tokens)
            if new_blocks is None:
                return budget, True
            self.loading.remove(request)
            entries.append(self.start_running(request, tokens))
            budget -= tokens
        return budget, False

    def _reclaim_loaded(self, keep: Request | None = None) -> bool:
        """Takes the blocks of the request that was loaded last and has not run since: it loses no work of its own."""
        for request in reversed(self.loading):
            if request is not keep and request.pending_load is None and self._blocks_can_be_freed(request):
                self.loading.remove(request)
                self._preempt_request(request, self.config.stale_output_mode)
                return True
        return False

    def give_up_load(self, request: Request) -> None:
        """A load failed, and nothing that it should have brought can be used: the request waits again, without blocks."""
        self.loading.remove(request)
        request.status = RequestStatus.PREEMPTED if request.num_preemptions else RequestStatus.WAITING
        self.kv_cache_manager.free(request.request_id, "preempt")
        self.waiting.appendleft(request)

    def preempt_after_failed_load(self, request: Request) -> None:
        """A load within a step failed, and the request cannot compute on with the blocks that it has."""
        self.running.remove(request)
        self._preempt_request(request, StaleOutputMode.DROP)

    # ---- requests without blocks -------------------------------------------------------------------------------------

    def _schedule_waiting(self, entries: list[RequestStep], budget: int) -> None:
        skipped: list[Request] = []
        while self.waiting and budget > 0 and len(self.running) < self.config.max_num_seqs:
            request = self.waiting[0]
            if not request.is_ready:
                skipped.append(self.waiting.popleft())
                continue
            prefix = self.remote.get_computed_blocks(request)
            if prefix is None:
                skipped.append(self.waiting.popleft())
            elif prefix.is_async:
                if not self.remote.start_load(request, prefix.hit, prefix.num_external_tokens, has_running=bool(self.running)):
                    break
                self.loading.append(self.waiting.popleft())
            else:
                entry = self._admit(request, prefix.hit, prefix.num_external_tokens, budget)
                if entry is None and prefix.hit.tails:
                    # The block that is copied is held beside its copy: a pool that only just holds the request has none to spare.
                    entry = self._admit(request, self.kv_cache_manager.without_tails(request, prefix.hit), 0, budget)
                if entry is None:
                    break
                entries.append(entry)
                budget -= entry.tokens
        self.waiting.extendleft(reversed(skipped))

    def _admit(self, request: Request, hit: CacheHit, num_external_tokens: int, budget: int) -> RequestStep | None:
        """Moves the first waiting request to the running ones, if the pool can hold its whole prefill."""
        assert request is self.waiting[0]
        assert request.num_computed_tokens == 0
        start = hit.num_tokens + num_external_tokens
        wanted = self._chunk(request.num_tokens - start)
        if wanted > budget and not self.config.enable_chunked_prefill:
            return None
        tokens = self.kv_cache_manager.clip_chunk(request, start, min(wanted, budget))
        if tokens == 0:
            return None
        new_blocks = self.kv_cache_manager.allocate_slots(
            request,
            tokens,
            hit=hit,
            num_external_tokens=num_external_tokens,
            num_lookahead_tokens=self.config.num_lookahead_tokens,
            delay_cache_blocks=num_external_tokens > 0,
            full_sequence_must_fit=True,
            keep_watermark=bool(self.running),
        )
        if new_blocks is None:
            return None
        self.waiting.popleft()
        return self.start_after_prefix(request, tokens, hit.num_tokens, num_external_tokens)

    def start_after_prefix(self, request: Request, tokens: int, num_hit_tokens: int, num_external_tokens: int) -> RequestStep:
        """Starts a request at the end of what it has found."""
        request.num_computed_tokens = num_hit_tokens + num_external_tokens
        if request.num_computed_tokens > 0 and self.recorder is not None:
            self.recorder.hit(request.request_id, num_hit_tokens, num_external_tokens)
        entry = self.start_running(request, tokens)
        entry.external_tokens = num_external_tokens
        return entry

    def start_running(self, request: Request, tokens: int) -> RequestStep:
        request.status = RUNNING
        self.running.append(request)
        # The worker knows nothing of this generation's table: it gets all of it.
        block_ids = self.kv_cache_manager.get_block_ids(request.request_id)
        return self.step_of(request, tokens, block_ids, resumed=request.num_preemptions > 0)

    def step_of(self, request: Request, tokens: int, new_blocks: PerGroup, *, resumed: bool) -> RequestStep:
        start, more_than_known = request.num_computed_tokens, tokens - request.num_unscheduled_tokens
        drafts = more_than_known if more_than_known > 0 else 0
        return RequestStep(
            request=request,
            step=self.next_step,
            start=start,
            tokens=tokens,
            drafts=drafts,
            samples=more_than_known >= 0,
            new_blocks=new_blocks,
            resumed=resumed,
            generation=request.generation,
            indices=self.kv_cache_manager.step_indices(request, start, tokens, drafts),
        )

    def _dispatch(self, entries: Sequence[RequestStep]) -> StepOutput:
        """Advances the counters of everyone in the step: from here on the host counts its tokens as computed."""
        self.num_steps_scheduled += 1
        self.kv_cache_manager.num_steps_scheduled = self.num_steps_scheduled
        step = StepOutput(step=self.next_step, sequence=self.num_steps_scheduled, entries=tuple(entries))
        self.next_step += 1
        if self.connector is not None:
            self._start_transfers(step)
        self.kv_cache_manager.preparation.dispatch(step.step, step.sequence, (entry.request.request_id for entry in entries))
        for entry in entries:
            request = entry.request
            request.num_computed_tokens += entry.tokens
            request.num_in_flight_tokens += entry.tokens
            request.unprocessed.append(entry)
            if request.last_step_sequence == 0:
                request.first_step_sequence = step.sequence
            request.last_step_sequence = step.sequence
            request.is_prefill_chunk = not entry.samples
            request.num_draft_tokens = 0
            if entry.samples:
                request.num_output_placeholders += 1 + entry.drafts
                request.num_draft_tokens = self._num_drafts(request)
            assert len(request.unprocessed) <= self.config.max_in_flight_steps
        if self.recorder is not None:
            self.recorder.schedule(step)
        return step

    def _start_transfers(self, step: StepOutput) -> None:
        assert self.connector is not None
        for entry in step.entries:
            if entry.external_tokens > 0:
                self.remote.start_step_load(entry, self.connector.num_workers)
        self.remote.store_settled(step.entries)

    def _num_drafts(self, request: Request) -> int:
        if self.drafter is None or self.config.num_speculative_tokens == 0:
            return self.config.num_speculative_tokens
        return max(0, min(self.drafter(request), self.config.num_speculative_tokens))

    # ---- process -----------------------------------------------------------------------------------------------------

    def update_from_output(
        self, step: StepOutput, model_output: Mapping[str, Sequence[int]], completions: Sequence[Completion] = ()
    ) -> None:
        """Takes in the output of the oldest unprocessed step: sampled token ids by request (none: may be left out), and what workers
        report of transfers. Loads within the step are over with it.

        Raises SchedulerError for another step, ModelOutputError for more or fewer tokens than the step can sample, TransferError for
        a completion that does not fit.
        """
        if step.sequence != self.num_steps_processed + 1 or step.sequence > self.num_steps_scheduled:
            raise SchedulerError(f"step {step.step} is not the oldest unprocessed one")
        outputs = [(entry, model_output.get(entry.request.request_id, ())) for entry in step.entries]
        for entry, token_ids in outputs:
            check_model_output(entry, token_ids)
        if self.connector is not None:
            self.remote.update_from_workers(completions)
            self.remote.step_is_over(step.entries)
        self.num_steps_processed += 1
        stale_output, max_model_len = self.discipline.stale_output, self.config.max_model_len
        settled = [settle_output(entry, token_ids, stale_output, max_model_len) for entry, token_ids in outputs]
        if self.recorder is not None:
            self.recorder.process(step.step, _processed(step.entries, settled))
        # All that this step and earlier ones write is written, and read: what waited for it may go.
        self.kv_cache_manager.block_pool.step_processed(step.sequence)
        self.kv_cache_manager.preparation.processed(step.sequence)
        for free in self.fence.step_processed(step.sequence):
            self.kv_cache_manager.free_deferred(free.request_id, free.tables)
        for entry, settlement in zip(step.entries, settled, strict=True):
            self._follow_up(entry.request, settlement)

    def update_from_workers(self, completions: Sequence[Completion]) -> None:
        """Takes in what workers report between outputs. Raises TransferError."""
        self.remote.update_from_workers(completions)

    def _follow_up(self, request: Request, settlement: Settlement) -> None:
        if request.is_finished:
            if not request.unprocessed:
                self.draining.pop(request.request_id, None)
            return
        if self.config.enable_prefix_caching and can_cache_output(request, settlement):
            final_tokens = free_basis_tokens(SETTLED, *request.counters)
            self.kv_cache_manager.cache_blocks(request, max(0, min(final_tokens, request.num_tokens)))
        if settlement.finish_reason is not None:
            self._finish(request, settlement.finish_reason)

    # ---- preemption and finish ---------------------------------------------------------------------------------------

    def _preempt_request(self, request: Request, output: StaleOutputMode) -> None:
        """The request has left `running`. Its count restarts at 0; what is in flight comes back for nothing, or as tokens."""
        drop = output is StaleOutputMode.DROP or (request.drop_stale_output and request.num_stale_output_tokens > 0)
        # Dropped output has been sampled again by the time it comes back; an undrained count or a flag would hold the request for ever.
        request.drop_stale_output = drop or self.discipline.stale_output in (StaleOutput.UNDRAINED, StaleOutput.FLAG)
        if self.recorder is not None:
            mode = StaleOutputMode.DROP if request.drop_stale_output else StaleOutputMode.DELIVER
            self.recorder.preempt(request.request_id, mode)
        self._free_request_blocks(request, "preempt")
        request.last_step_sequence = 0
        request.status = RequestStatus.PREEMPTED
        request.start_over()
        request.num_preemptions += 1
        if self.discipline.stale_output is StaleOutput.FLAG:
            request.num_stale_output_tokens = 1
        elif self.discipline.preempt_marks_stale:
            request.mark_stale()
        self.num_preemptions += 1
        self.waiting.appendleft(request)

    def _finish(self, request: Request, reason: FinishReason) -> None:
        """Ends a request; the connector is shown its table, pruned, before the blocks go."""
        if request.status is RUNNING:
            self.running.remove(request)
        elif request.status is RequestStatus.WAITING_FOR_REMOTE_KVS:
            self.loading.remove(request)
        else:
            self.waiting.remove(request)
        request.status = FINISHED
        del self.requests[request.request_id]
        if request.unprocessed:
            self.draining[request.request_id] = request
        if self.recorder is not None:
            self.recorder.finish(request.request_id, reason)
        store = self.remote.show_finished(request) if self.connector is not None else None
        self._free_request_blocks(request, "abort" if reason == "abort" else "finish", store)

    def _free_request_blocks(self, request: Request, cause: ReleaseCause, store: int | None = None) -> None:
        """Frees all blocks of a request, once no step and no transfer touches them; `store`: one that reads them all."""
        jobs = [job for job in (request.pending_load, store) if job is not None]
        request.pending_load = None
        is_fenced = self.discipline.fence and request.last_step_sequence > self.num_steps_processed
        if not is_fenced and not jobs:
            self.kv_cache_manager.free(request.request_id, cause)
            return
        tables = self.kv_cache_manager.pop_blocks_for_free(request.request_id)
        if any(table.blocks for table in tables):
            self.fence.defer(request.request_id, tables, sequence=request.last_step_sequence if is_fenced else 0, jobs=jobs)

    def _blocks_can_be_freed(self, request: Request) -> bool:
        if request.pending_load is not None:
            return False
        return not self.discipline.fence or request.last_step_sequence <= self.num_steps_processed


def _processed(entries: Iterable[RequestStep], settled: Iterable[Settlement]) -> tuple[ProcessedRequest, ...]:
    return tuple(
        [
            ProcessedRequest(
                entry.request.request_id,
                settlement.sampled,
                settlement.rejected,
                # Nobody relies on the counters of a finished request any more (vLLM has forgotten it), so they are not told.
                None if entry.request.is_finished else entry.request.counters,
            )
            for entry, settlement in zip(entries, settled, strict=True)
        ]
    )
