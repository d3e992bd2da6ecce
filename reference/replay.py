"""Runs a script of events on the real engine: a counterexample of the solver becomes what the allocator does under it.

The script says who is added, what each step carries, what its outputs reject, who is preempted or ends. Which blocks move, and
when, is the engine's own doing: block events of the script are passed over, and the answer is the engine's own trace.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import lcm

from settled.model.disciplines import RIGHT, Discipline
from settled.model.events import (
    Add,
    Computed,
    Config,
    End,
    Event,
    Finish,
    Preempt,
    Process,
    ProcessedRequest,
    Schedule,
    ScheduledRequest,
    State,
)
from settled.reference.admission import blocks_for_one_request
from settled.reference.config import EngineConfig, StaleOutputMode
from settled.reference.engine import Engine, Outcome, default_prompt, fake_token
from settled.reference.managers import cdiv
from settled.reference.plan import HitError, PlanError, PlannedStep
from settled.reference.request import RequestStatus, RequestStep
from settled.reference.scheduler import SchedulerError

_DECISIONS = (Add, Computed, Preempt, Finish, Schedule, Process, End)


class ReplayError(ValueError):
    """The script cannot be run on the engine; the message names the event, counted from 0, and says why."""


def replay(events: Iterable[Event], discipline: Discipline = RIGHT) -> list[Event]:
    """The events that the engine emits when it takes the decisions of `events` under `discipline`.

    A script may leave out what the engine needs to run: a maximum length, a pool that holds one request of that length, a
    prefix cache that serves its hits. The first two are chosen large enough. A hit that the script's own requests do not
    leave in the cache is served by an unrecorded warm-up request with the same tokens; the answer then has a `state` line
    with what is cached. Raises ReplayError.
    """
    script = list(events)
    if not script or not isinstance(script[0], Config):
        raise ReplayError("event 0: a script starts with its config")
    needs = _survey(script)
    warm: dict[str, int] = {}  # longest hit by request, tokens
    while True:
        try:
            return _attempt(script, script[0], needs, warm, discipline)
        except HitError as error:
            if warm.get(error.request_id, 0) >= error.hit:
                raise ReplayError(str(error)) from error
            warm[error.request_id] = error.hit  # grows with every attempt, and the script has only so many hits


def _attempt(script: Sequence[Event], config: Config, needs: _Needs, warm: Mapping[str, int], discipline: Discipline) -> list[Event]:
    engine = Engine(_engine_config(config, needs, warm, discipline))
    _warm_up(engine, needs, warm)
    recorded: list[Event] = []
    engine.start_recording(recorded.append, first_step=needs.first_step)
    run = _Replay(engine, script)
    for index in range(1, len(script)):
        try:
            run.take(index)
        except HitError:
            raise
        except (PlanError, SchedulerError) as error:
            raise ReplayError(f"event {index} ({script[index].name}): {error}") from error
    return recorded


@dataclass(slots=True)
class _Needs:
    """What the script asks of the engine: lengths in tokens, requests at a time."""

    prompts: dict[str, int] = field(default_factory=dict)
    has_hits: bool = False
    longest: int = 1  # position after the last token that any step computes
    batch: int = 1  # tokens of the largest step
    slots: int = 0  # tokens of all steps
    parts: int = 0  # requests in all steps
    first_step: int = 0


def _survey(script: Sequence[Event]) -> _Needs:
    needs = _Needs()
    seen_step = False
    without_step: set[str] = set()  # requests whose generation has no step yet
    for index, event in enumerate(script):
        if isinstance(event, Add):
            needs.prompts[event.request] = event.prompt_tokens
            needs.longest = max(needs.longest, event.prompt_tokens)
            without_step.add(event.request)
        elif isinstance(event, Preempt):
            without_step.add(event.request)
        elif isinstance(event, Computed):
            if event.cause not in ("hit", "unknown") or event.stale:
                raise ReplayError(f"event {index} (computed): cause {event.cause!r} cannot be replayed yet")
            needs.has_hits |= event.computed > 0
        elif isinstance(event, Schedule):
            if not seen_step:
                needs.first_step, seen_step = event.step, True
            needs.batch = max(needs.batch, sum(entry.tokens for entry in event.requests))
            for entry in event.requests:
                needs.longest = max(needs.longest, entry.start + entry.tokens)
                needs.slots += entry.tokens
                needs.parts += 1
                if entry.request in without_step:
                    # A first step that starts above 0 implies a hit, whether the script announces it or not.
                    needs.has_hits |= entry.start > 0
                    without_step.remove(entry.request)
        elif isinstance(event, State):
            raise ReplayError(f"event {index} (state): a script starts with an idle engine")
    return needs


def _engine_config(config: Config, needs: _Needs, warm: Mapping[str, int], discipline: Discipline) -> EngineConfig:
    """The script's configuration; what it leaves open has room for what it does, and 2 tokens more for the last output."""
    if needs.has_hits and not config.prefix_caching:
        raise ReplayError("event 0 (config): the script has prefix hits, but prefix caching is off")
    max_model_len = config.max_model_len or needs.longest + config.num_draft_tokens + 2
    engine_config = EngineConfig(
        groups=tuple(replace(spec, cap=None) for spec in config.groups),
        num_blocks=config.num_blocks if config.num_blocks >= 2 else 2,
        max_in_flight_steps=config.max_in_flight_steps,
        max_num_batched_tokens=max(config.max_batched_tokens, needs.batch),
        max_num_seqs=max(1, len(needs.prompts)),
        num_speculative_tokens=config.num_draft_tokens,
        num_lookahead_tokens=config.num_lookahead_tokens,
        max_model_len=max_model_len,
        enable_prefix_caching=config.prefix_caching,
        kv_consumer=config.kv_consumer,
        connector=config.kv_consumer,
        discipline=discipline,
    )
    enough = 1 + blocks_for_one_request(engine_config)
    if warm:
        # Nothing that the warm-up leaves in the cache may be reused before the script has hit it.
        tokens = needs.slots + sum(warm.values())
        parts = needs.parts * (1 + config.num_lookahead_tokens) + 2 * len(warm)
        enough += sum(cdiv(tokens, spec.block_size) + parts for spec in config.groups)
    return replace(engine_config, num_blocks=max(engine_config.num_blocks, enough))


def _warm_up(engine: Engine, needs: _Needs, warm: Mapping[str, int]) -> None:
    """Computes the tokens of every hit once, so that the cache has them; one more token, for a hit leaves one to compute."""
    alignment = lcm(*(spec.block_size for spec in engine.config.groups))
    for request_id, hit in warm.items():
        if hit % alignment != 0:
            raise ReplayError(f"request {request_id!r}: a hit of {hit} tokens is no multiple of {alignment}")
        prompt = default_prompt(request_id, needs.prompts.get(request_id, 1))
        outputs = [fake_token(prompt, position) for position in range(len(prompt), hit + 1)]
        engine.add_request(f"warm-up of {request_id}", (*prompt, *outputs)[: hit + 1], max_tokens=1)
        engine.run_to_idle()


class _Replay:
    """The engine and the place in the script."""

    def __init__(self, engine: Engine, script: Sequence[Event]) -> None:
        self.engine = engine
        self.script = script
        self.hits: dict[str, int] = {}  # announced by a computed event, for the request's next first step

    def take(self, index: int) -> None:
        event = self.script[index]
        if isinstance(event, Config):
            raise ReplayError(f"event {index}: a second config")
        if isinstance(event, Add):
            self.engine.add_request(event.request, event.prompt_tokens, max_tokens=event.max_tokens)
        elif isinstance(event, Computed):
            self.hits[event.request] = event.computed
        elif isinstance(event, Preempt):
            self.engine.preempt(event.request, self._output_mode(index, event))
        elif isinstance(event, Schedule):
            if event.requests:
                self.engine.schedule({entry.request: self._planned(entry) for entry in event.requests})
        elif isinstance(event, Process):
            self._process(index, event)
        elif isinstance(event, Finish):
            self._finish(index, event)
        elif isinstance(event, End):
            self.engine.end_recording()

    def _planned(self, entry: ScheduledRequest) -> PlannedStep:
        request = self.engine.scheduler.requests.get(entry.request)
        if request is not None and request.status is RequestStatus.RUNNING:
            return PlannedStep(entry.tokens, entry.drafts)
        return PlannedStep(entry.tokens, entry.drafts, hit=self.hits.pop(entry.request, entry.start))

    def _output_mode(self, index: int, event: Preempt) -> StaleOutputMode:
        """As the script says; if it does not, drop where the request resumes before its stale output has come back."""
        if event.output is not None:
            return StaleOutputMode(event.output)
        steps_left = sum(any(entry.request.request_id == event.request for entry in step.entries) for step in self.engine.unprocessed)
        for later in self.script[index + 1 :]:
            if isinstance(later, Process) and any(entry.request == event.request for entry in later.requests):
                steps_left -= 1
            elif isinstance(later, Schedule) and any(entry.request == event.request for entry in later.requests):
                return StaleOutputMode.DROP if steps_left > 0 else StaleOutputMode.DELIVER
        return StaleOutputMode.DELIVER

    def _process(self, index: int, event: Process) -> None:
        outputs = {entry.request: entry for entry in event.requests}
        stopped = self._stopped_by(index)
        if not self.engine.unprocessed:
            raise ReplayError(f"event {index} (process): no step is unprocessed")
        for entry in self.engine.unprocessed[0].entries:
            if entry.request.request_id in stopped and not entry.samples:
                raise ReplayError(f"event {index} (process): {entry.request.request_id!r} stops, but the step samples nothing")
        self.engine.process(lambda entry: _outcome(entry, outputs.get(entry.request.request_id), stopped))

    def _stopped_by(self, index: int) -> set[str]:
        """Requests with a stop between this process event and the next decision of another sort. Lengths stop by themselves."""
        stopped: set[str] = set()
        for event in self.script[index + 1 :]:
            if isinstance(event, Finish):
                if event.reason == "stop":
                    stopped.add(event.request)
            elif isinstance(event, _DECISIONS):
                break
        return stopped

    def _finish(self, index: int, event: Finish) -> None:
        if event.reason == "abort":
            self.engine.abort(event.request)
        elif event.request in self.engine.scheduler.requests:
            raise ReplayError(f"event {index} (finish): no output stopped {event.request!r}")


def _outcome(entry: RequestStep, output: ProcessedRequest | None, stopped: set[str]) -> Outcome:
    """An output accepts the drafts that it does not reject."""
    rejected = output.rejected if output is not None else 0
    accepted = max(0, entry.drafts - rejected)
    return Outcome(accepted, stop=entry.request.request_id in stopped)
