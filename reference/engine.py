"""The engine: a scheduler, a FIFO of unprocessed steps, and a model that samples what the caller decides."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple
from zlib import crc32

from settled.model.events import CacheEntry, PerGroup
from settled.reference.admission import check_pool_size, with_caps
from settled.reference.config import EngineConfig, StaleOutputMode
from settled.reference.connector import KVConnector, LastTableConnector
from settled.reference.recorder import Recorder, Sink
from settled.reference.request import EOS_TOKEN_ID, Request, RequestStep, StepOutput
from settled.reference.scheduler import Drafter, Scheduler, SchedulerError
from settled.reference.scripted_schedule import Plan


class Outcome(NamedTuple):
    """What the model makes of a step that samples: drafts accepted, and whether its last token stops the request."""

    accepted: int
    stop: bool = False


Chooser = Callable[[RequestStep], Outcome]


class StepSnapshot(NamedTuple):
    """An unprocessed step of one request. Counts are in tokens, as they stood when it was scheduled."""

    step: int
    start: int
    tokens: int
    drafts: int
    stale: bool
    generation: int


class RequestSnapshot(NamedTuple):
    """A request as the scheduler sees it. Counts are in tokens; `table`: per group the block ids, null as 0."""

    request: str
    status: str
    generation: int
    num_tokens: int
    computed: int
    in_flight: int
    stale: int
    table: PerGroup
    unprocessed: tuple[StepSnapshot, ...]


def accept_all(entry: RequestStep) -> Outcome:
    """The model agrees with every draft."""
    return Outcome(entry.drafts)


def default_prompt(request_id: str, num_tokens: int) -> tuple[int, ...]:
    """Token ids that follow from the request's id; two requests share no prefix."""
    seed = crc32(request_id.encode())
    return tuple([1 + (seed + 2654435761 * position) % 4294967291 for position in range(num_tokens)])


def fake_token(prompt_token_ids: Sequence[int], position: int) -> int:
    """What the model samples at a position: never the end of the sequence, and the same again after a preemption."""
    return 1 + (31 * position + 7 * prompt_token_ids[0]) % 997


class Engine:
    """`sink` gets every event from the start. Raises ConfigError when the pool cannot hold one request of maximum length.

    With `config.connector` and no connector given, a LastTableConnector is shown the finished requests.
    """

    def __init__(
        self,
        config: EngineConfig,
        sink: Sink | None = None,
        *,
        connector: KVConnector | None = None,
        drafter: Drafter | None = None,
    ) -> None:
        check_pool_size(config)
        self.config = with_caps(config)
        if connector is None and config.connector:
            connector = LastTableConnector()
        self.connector = connector
        self.scheduler = Scheduler(self.config, connector=connector, drafter=drafter)
        self.unprocessed: deque[StepOutput] = deque()  # at most the pipeline depth, which the scheduler enforces
        if sink is not None:
            self.start_recording(sink)

    # ---- requests ----------------------------------------------------------------------------------------------------

    def add_request(self, request_id: str, prompt: Sequence[int] | int, *, max_tokens: int | None = None) -> None:
        """`prompt`: token ids, or a number of tokens. Without `max_tokens` the request runs to the maximum length."""
        token_ids = default_prompt(request_id, prompt) if isinstance(prompt, int) else tuple(prompt)
        self.scheduler.add_request(Request(request_id, token_ids, max_tokens))

    def abort(self, request_id: str) -> None:
        """Ends a request, running or waiting. Raises SchedulerError if it is not there."""
        self.scheduler.abort_request(request_id)

    def preempt(self, request_id: str, output: StaleOutputMode | None = None) -> None:
        """Preempts a running request; `output` stands in for the configured stale output mode."""
        self.scheduler.preempt(request_id, output)

    # ---- steps -------------------------------------------------------------------------------------------------------

    @property
    def can_schedule(self) -> bool:
        """Whether the pipeline takes one more step."""
        return len(self.unprocessed) < self.config.max_in_flight_steps

    def schedule(self, plan: Plan | None = None) -> StepOutput | None:
        """Dispatches the next step; None when there is nothing to schedule."""
        step = self.scheduler.schedule(plan)
        if step is not None:
            self.unprocessed.append(step)
        return step

    def process(self, choose: Chooser = accept_all) -> StepOutput:
        """Takes in the output of the oldest unprocessed step. Raises SchedulerError when there is none."""
        if not self.unprocessed:
            raise SchedulerError("no step is unprocessed")
        step = self.unprocessed[0]
        model_output = {entry.request.request_id: sample(entry, choose(entry)) for entry in step.entries if entry.samples}
        completions = self.connector.get_finished(step) if self.connector is not None else ()
        self.scheduler.update_from_output(step, model_output, completions)
        self.unprocessed.popleft()
        return step

    def poll(self) -> int:
        """Takes in what the connector's workers report between two outputs; returns how many reports there were."""
        if self.connector is None:
            return 0
        completions = self.connector.get_finished(None)
        self.scheduler.update_from_workers(completions)
        return len(completions)

    def run_to_idle(self, choose: Chooser = accept_all, *, steps_max: int = 100_000) -> int:
        """Fills the pipeline, processes one step, and so on until nothing is left; returns the number of steps processed.

        Raises SchedulerError when the requests do not finish within `steps_max` steps, or nothing can move.
        """
        for steps in range(steps_max):
            stuck = 0
            while self.can_schedule and self.scheduler.requests and stuck < 2:
                # The first None may come from a request that made room by preempting itself.
                stuck = 0 if self.schedule() is not None else stuck + 1
            if not self.unprocessed:
                if not self.scheduler.requests:
                    return steps
                if self.poll():
                    continue
                raise SchedulerError(f"no step can be scheduled for {sorted(self.scheduler.requests)}")
            self.process(choose)
        raise SchedulerError(f"requests are left after {steps_max} steps: {sorted(self.scheduler.requests)}")

    @property
    def is_idle(self) -> bool:
        """No request, no unprocessed step, no transfer, nothing behind the fence."""
        scheduler = self.scheduler
        return not (scheduler.requests or self.unprocessed or scheduler.remote.transfers.under_way or len(scheduler.fence))

    # ---- recording ---------------------------------------------------------------------------------------------------

    def start_recording(self, sink: Sink, *, first_step: int = 0) -> None:
        """From here on `sink` gets every event, the config first; steps count from `first_step`. The engine must be idle."""
        if not self.is_idle:
            raise SchedulerError("recording starts on an idle engine")
        recorder = Recorder(sink)
        recorder.config(self.config)
        cached = self._cached_entries()
        if cached:
            recorder.warm_cache(cached)
        self.scheduler.next_step = first_step
        self.scheduler.kv_cache_manager.block_pool.recorder = recorder

    def end_recording(self) -> None:
        """The last event: the trace is complete."""
        recorder = self.scheduler.recorder
        if recorder is not None:
            recorder.end(self.is_idle)
        self.scheduler.kv_cache_manager.block_pool.recorder = None

    def _cached_entries(self) -> tuple[CacheEntry, ...]:
        return tuple(
            CacheEntry(block=block.block_id, group=block_hash.group, hash=block_hash.value)
            for block in self.scheduler.kv_cache_manager.block_pool.cached_blocks()
            for block_hash in (block.block_hash, block.partial_hash)
            if block_hash is not None
        )

    # ---- inspection --------------------------------------------------------------------------------------------------

    def inspect(self, request_id: str) -> RequestSnapshot:
        """The request as it stands; a finished one as long as it has unprocessed steps. Raises SchedulerError after that."""
        request = self.scheduler.requests.get(request_id) or self.scheduler.draining.get(request_id)
        if request is None:
            raise SchedulerError(f"no request {request_id!r}")
        steps = tuple(
            StepSnapshot(entry.step, entry.start, entry.tokens, entry.drafts, entry.stale, entry.generation)
            for entry in request.unprocessed
        )
        return RequestSnapshot(
            request=request_id,
            status=request.status.value,
            generation=request.generation,
            num_tokens=request.num_tokens,
            computed=request.num_computed_tokens,
            in_flight=request.num_in_flight_tokens,
            stale=request.num_stale_output_tokens,
            table=self.scheduler.kv_cache_manager.get_block_ids(request_id),
            unprocessed=steps,
        )

    def pool_snapshot(self) -> tuple[int, ...]:
        """The reference count of every block, by block id; the null block counts none."""
        return tuple([block.ref_cnt for block in self.scheduler.kv_cache_manager.block_pool.blocks])


def sample(entry: RequestStep, outcome: Outcome) -> list[int]:
    """The token ids that a step returns: what follows the known tokens, 1 + accepted of them."""
    request = entry.request
    first = request.num_tokens
    tokens = [fake_token(request.prompt_token_ids, first + offset) for offset in range(1 + outcome.accepted)]
    if outcome.stop:
        tokens[-1] = EOS_TOKEN_ID
    return tokens
