"""vLLM's scheduler behind the engine protocol: it is driven as EngineCore's loop drives it, with a model that is told what to sample.

A step that schedules no tokens is executed as well, as the loop does: workers take its connector's metadata and report transfers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from settled.reference.engines.operations import FIRST_TOKEN, STOP_TOKEN, VOCABULARY_SIZE
from settled.reference.engines.protocol import Anomaly, Chooser, Ending, NewRequest, Sink, StepRequest, TransferPart
from settled.reference.engines.setup import EngineSetup, SetupError
from settled.reference.engines.vllm.inspection import Inspector
from settled.reference.engines.vllm.inspection_progress import hindrance
from settled.reference.engines.vllm.recording import SchedulerRecorder
from settled.reference.engines.vllm.releases import Release, installed_release
from settled.reference.engines.vllm.startup import min_num_blocks, start
from settled.reference.engines.vllm.steps import Step, check_drafts, outputs_module, sampled_token_ids, step_of
from settled.reference.engines.vllm.workers import workers_of


class VllmFactory:
    """Engines of the installed release. Raises SetupError if there is none."""

    def __init__(self) -> None:
        self.release: Release = installed_release()
        self.name = self.release.name

    def create(self, setup: EngineSetup, sink: Sink | None, *, inspects: bool = True) -> VllmEngine:
        """A fresh engine; without a sink nothing is recorded. `inspects`: it listens to its admission gate, which `inspect` needs.

        Raises SetupError for what the release does not accept.
        """
        return VllmEngine(setup, self.release, sink, inspects=inspects)

    def min_num_blocks(self, setup: EngineSetup) -> int:
        """The smallest pool, null block counted, that the release's own start-up check accepts; `setup.num_blocks` is ignored."""
        return min_num_blocks(setup, self.release)


class VllmEngine:
    """A live scheduler of the installed release, and its pipeline of dispatched steps."""

    def __init__(self, setup: EngineSetup, release: Release, sink: Sink | None, *, inspects: bool = True) -> None:
        started = start(setup, release)
        self.name = release.name
        self.setup = setup
        self.release = release
        self.vllm_config = started.vllm_config
        self.scheduler: Any = started.scheduler
        self.max_in_flight_steps = started.max_in_flight_steps
        self._check_drafts_beneath_the_recorder()
        self.recorder: SchedulerRecorder | None = None
        if sink is not None:
            self.recorder = SchedulerRecorder(
                self.scheduler, self.vllm_config, sink, engine=release.name, max_in_flight_steps=self.max_in_flight_steps
            )
        self.workers = workers_of(self.scheduler, release, self.recorder)
        self._inspector = Inspector(self.scheduler) if inspects else None
        self._hasher = started.hasher
        self._unprocessed: deque[Step] = deque()
        self._steps = 0  # scheduled so far
        self._seen: set[str] = set()
        # Asynchronous scheduling counts on drafts that it never sees; otherwise the loop hands those of a step over once it is dispatched.
        self._handed_drafts = setup.num_speculative_tokens if not self.vllm_config.scheduler_config.async_scheduling else 0
        self._awaits_drafts: Step | None = None  # of this step, until the oldest has been taken in

    def _check_drafts_beneath_the_recorder(self) -> None:
        """A step whose drafts have no token is the engine's fault, before anything impossible is recorded."""
        original = self.scheduler.schedule

        def schedule(*args: Any, **kwargs: Any) -> Any:
            output = original(*args, **kwargs)
            check_drafts(output)
            return output

        self.scheduler.schedule = schedule

    # ---- requests ----------------------------------------------------------------------------------------------------

    def add_request(self, request: NewRequest) -> None:
        """Raises SetupError for what vLLM's input processor refuses: an id again, a prompt that leaves no room for a token."""
        if request.request_id in self._seen:
            raise SetupError(f"request id {request.request_id!r} is used twice")
        if not 1 <= len(request.prompt_token_ids) < self.setup.max_model_len:
            raise SetupError(
                f"request {request.request_id!r}: a prompt of {len(request.prompt_token_ids)} tokens; "
                f"expected 1 to {self.setup.max_model_len - 1}"
            )
        if request.max_tokens < 1:
            raise SetupError(f"request {request.request_id!r}: max_tokens must be at least 1, not {request.max_tokens}")
        self._seen.add(request.request_id)
        self.workers.expect(request)
        self.scheduler.add_request(self._vllm_request(request))

    def _vllm_request(self, request: NewRequest) -> Any:
        from vllm.v1.request import Request

        optional: dict[str, Any] = {"eos_token_id": None} if self.release.has("eos_on_request") else {}
        return Request(
            request_id=request.request_id,
            prompt_token_ids=list(request.prompt_token_ids),
            sampling_params=_sampling_params(request.max_tokens),
            pooling_params=None,
            arrival_time=float(len(self._seen)),
            block_hasher=self._hasher,
            **optional,
        )

    def abort(self, request_id: str) -> None:
        """Ends an unfinished request, as a client that disconnects does."""
        from vllm.v1.request import RequestStatus

        if request_id not in self.unfinished_requests():
            raise SetupError(f"no unfinished request {request_id!r}")
        self.scheduler.finish_requests(request_id, RequestStatus.FINISHED_ABORTED)

    def unfinished_requests(self) -> Sequence[str]:
        """Ids of all that are not finished, the oldest first."""
        return [request_id for request_id, request in self.scheduler.requests.items() if not request.is_finished()]

    # ---- steps -------------------------------------------------------------------------------------------------------

    @property
    def num_unprocessed_steps(self) -> int:
        return len(self._unprocessed)

    def schedule(self) -> bool:
        """Dispatches the next step; False if it has no tokens. Raises SetupError if the pipeline is full.

        A step without tokens waits for its turn behind earlier ones, as in the loop's queue. If only such are left, they are over at once.
        """
        if len(self._unprocessed) >= self.max_in_flight_steps:
            raise SetupError(f"{self.max_in_flight_steps} steps are unprocessed: the pipeline is full")
        if not (self.scheduler.running or self.scheduler.has_requests() or self.workers.has_news):
            return False
        self._steps += 1
        self.workers.step_starts(self._steps)
        output = self.scheduler.schedule()
        step = step_of(self._steps, output, self.scheduler.requests)
        self.workers.dispatch(step)
        self._unprocessed.append(step)
        if step.rows:
            if self._handed_drafts:
                self._hand_drafts(step)
            return True
        if not any(each.rows for each in self._unprocessed):
            while self._unprocessed:
                self.process(_no_rows)
        return False

    def process(self, choose: Chooser) -> None:
        """Takes in the output of the oldest unprocessed step: `choose` is asked about each request of it that samples.

        That includes requests that have finished or were preempted since: the device does not know.
        """
        if not self._unprocessed:
            raise SetupError("no step is unprocessed")
        step = self._unprocessed.popleft()
        output = _model_runner_output(step, [self._sample(row, step, choose) for row in step.rows], self.release)
        self.workers.attach(step, output)
        self.scheduler.update_from_output(step.scheduler_output, output)
        self.workers.taken_in(step)
        if self._awaits_drafts is not None:
            self._propose(self._awaits_drafts)
            self._awaits_drafts = None

    def _sample(self, row: StepRequest, step: Step, choose: Chooser) -> list[int]:
        """Token ids. The model is greedy: each follows from the one before, so that a token sampled again is the same."""
        if not row.samples:
            return []
        outcome = choose(row)
        if not 0 <= outcome.accepted <= row.drafts:
            raise SetupError(f"request {row.request_id!r}: {outcome.accepted} of {row.drafts} drafts accepted")
        token = step.last_tokens[row.request_id]
        request = self.scheduler.requests.get(row.request_id)
        if request is not None:
            token = request.all_token_ids[-1]
        token_ids = []
        for _ in range(outcome.accepted + 1):
            token = _next_token(token)
            token_ids.append(token)
        if outcome.stop:
            token_ids[-1] = STOP_TOKEN
        return token_ids

    def _hand_drafts(self, step: Step) -> None:
        """As EngineCore.post_step: it asks the workers for the drafts of the step just dispatched, which they answer when they have
        executed it. Only a full pipeline has the oldest step's output taken in before. So with several stages the scheduler knows the
        drafts of a step before it knows what the step has sampled.
        """
        if len(self._unprocessed) < self.max_in_flight_steps:
            self._propose(step)
        else:
            self._awaits_drafts = step

    def _propose(self, step: Step) -> None:
        request_ids = [row.request_id for row in step.rows]
        drafts = [[FIRST_TOKEN] * self._handed_drafts for _ in request_ids]
        self.scheduler.update_draft_token_ids(outputs_module().DraftTokenIds(request_ids, drafts))

    # ---- transfers ---------------------------------------------------------------------------------------------------

    def transfers(self) -> Sequence[TransferPart]:
        """Parts that the mock connector may report at any time, the oldest first."""
        return self.workers.parts()

    def report(self, part: TransferPart, ending: Ending) -> None:
        """A worker is through: it says so with the next output of a step that was scheduled since it heard of the transfer."""
        self.workers.report(part, ending)

    # ---- state -------------------------------------------------------------------------------------------------------

    def inspect(self) -> Sequence[Anomaly]:
        """Compares the live objects with each other and with the unprocessed steps; at idle also looks for what requests left behind.

        Raises RuntimeError, the harness's fault, where they agree, and what was recorded of them says something else, and SetupError if the
        engine was not created for it.
        """
        if self._inspector is None:
            raise SetupError("the engine was created without inspections")
        if self.is_idle:
            found = self._inspector.at_idle()
        else:
            found = self._inspector.inspect([{row.request_id: row.tokens for row in step.rows} for step in self._unprocessed])
        if self.recorder is not None and not found:
            self._compare_recorded(self.recorder)
        return found

    def _compare_recorded(self, recorder: SchedulerRecorder) -> None:
        """A verdict on a trace that misses an event is worth nothing."""
        if recorder.unattributed:
            raise RuntimeError(f"the recorder cannot explain what the pool did: {recorder.unattributed[0]}")
        recorded = recorder.references()
        for block in self.scheduler.kv_cache_manager.block_pool.blocks:
            if block.ref_cnt != recorded[block.block_id] and not block.is_null:
                raise RuntimeError(f"block {block.block_id} has {block.ref_cnt} references, {recorded[block.block_id]} by the events")

    def hindrance(self) -> str:
        """What becomes of the oldest request, and what is plain about it."""
        return hindrance(self.scheduler)

    @property
    def is_idle(self) -> bool:
        """No request, no unprocessed step, no transfer, nothing deferred.

        Nor a finished request that workers have not been told of: an empty step still does that.
        """
        return (
            not self.scheduler.requests
            and not self.scheduler.has_requests()
            and not self._unprocessed
            and self.workers.is_idle
            and not getattr(self.scheduler, "deferred_frees", ())
        )

    def end(self) -> None:
        """Ends the recording. What it replaced in the scheduler is put back."""
        if self.recorder is not None:
            self.recorder.end(self.is_idle)
            self.recorder.detach()
        del self.scheduler.schedule
        self.scheduler.shutdown()


def _next_token(token: int) -> int:
    """Goes on as prompts of a family do (operations.family_token), so that what one request generates another's prompt may hold."""
    return FIRST_TOKEN + (token - FIRST_TOKEN + 7) % (VOCABULARY_SIZE - 17)


def _no_rows(row: StepRequest) -> Any:
    raise SetupError(f"a step without tokens samples {row.request_id!r}")


@lru_cache(maxsize=256)
def _sampling_params(max_tokens: int) -> Any:
    """Requests share them: after its input processor vLLM only reads them."""
    from vllm.sampling_params import SamplingParams

    return SamplingParams(max_tokens=max_tokens, ignore_eos=True, stop_token_ids=[STOP_TOKEN])


def _model_runner_output(step: Step, sampled: list[list[int]], release: Release) -> Any:
    request_ids = [row.request_id for row in step.rows]
    return outputs_module().ModelRunnerOutput(
        req_ids=request_ids,
        req_id_to_index={request_id: index for index, request_id in enumerate(request_ids)},
        sampled_token_ids=sampled_token_ids(sampled, release),
        logprobs=None,
        prompt_logprobs_dict={},
        pooler_output=[],
    )
