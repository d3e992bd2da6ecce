"""Runs a script of events on the real engine: a counterexample of the solver becomes what the allocator does under it.

The script says who is added, what each step carries, what its outputs reject, who is preempted or ends, what is loaded and stored, and
which of it fails. Which blocks move, and when, is the engine's own doing: block events of the script are passed over, and the answer is
the engine's own trace. What a failed load leaves is the engine's own doing too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import lcm

from settled.model.disciplines import RIGHT, Discipline
from settled.model.events import (
    Add,
    Allocate,
    Computed,
    Config,
    End,
    Event,
    Finish,
    Load,
    Loaded,
    Preempt,
    Process,
    ProcessedRequest,
    Schedule,
    ScheduledRequest,
    State,
    Store,
    Stored,
    Touch,
)
from settled.reference.admission import blocks_for_one_request
from settled.reference.config import EngineConfig, StaleOutputMode
from settled.reference.engine import Engine, Outcome, default_prompt, fake_token
from settled.reference.managers import cdiv
from settled.reference.plan import HitError, PlanError, PlannedStep
from settled.reference.request import RequestStatus, RequestStep
from settled.reference.scheduler import SchedulerError
from settled.reference.scripted_connector import ScriptedConnector, ScriptedTransfers
from settled.reference.transfers import TransferError

_DECISIONS = (Add, Computed, Preempt, Finish, Schedule, Process, End)
_OWN_DOING = ("load_failed", "last_token")  # causes of a count that follows from what the script says of a load


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
    connector = ScriptedConnector() if config.kv_consumer or needs.has_transfers else None
    engine = Engine(_engine_config(config, needs, warm, discipline), connector=connector)
    _warm_up(engine, needs, warm)
    recorded: list[Event] = []
    engine.start_recording(recorded.append, first_step=needs.first_step)
    run = _Replay(engine, script, connector or ScriptedConnector())
    run.connector.stores_at_finish.update(needs.stores_at_finish)
    for index in range(1, len(script)):
        try:
            run.take(index)
        except HitError:
            raise
        except (PlanError, SchedulerError, TransferError) as error:
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
    has_transfers: bool = False
    has_loads: bool = False
    transfers_wait: bool = False  # a load names steps that it waits for
    loaded_blocks: int = 0  # of all loads
    stores_at_finish: dict[str, int] = field(default_factory=dict)  # handles, by request


def _survey(script: Sequence[Event]) -> _Needs:
    needs = _Needs()
    seen_step = False
    without_step: set[str] = set()  # requests whose generation has no step yet
    finished: set[str] = set()
    for index, event in enumerate(script):
        if isinstance(event, Add):
            needs.prompts[event.request] = event.prompt_tokens
            needs.longest = max(needs.longest, event.prompt_tokens)
            without_step.add(event.request)
        elif isinstance(event, Preempt):
            without_step.add(event.request)
        elif isinstance(event, Computed):
            if event.cause in _OWN_DOING:
                continue
            if event.cause not in ("hit", "external", "unknown") or event.stale:
                raise ReplayError(f"event {index} (computed): cause {event.cause!r} cannot be replayed yet")
            needs.has_hits |= (event.local or 0 if event.cause == "external" else event.computed) > 0
            needs.has_loads |= event.cause == "external"
            needs.longest = max(needs.longest, event.computed)
            without_step.discard(event.request)
        elif isinstance(event, Load | Store):
            needs.has_transfers = True
            needs.has_loads |= isinstance(event, Load)
            needs.loaded_blocks += sum(map(len, event.blocks)) if isinstance(event, Load) else 0
            needs.transfers_wait |= isinstance(event, Load) and event.step is None and bool(event.after)
            if isinstance(event, Store) and event.request in finished:
                needs.stores_at_finish[event.request] = event.handles
        elif isinstance(event, Finish):
            finished.add(event.request)
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
    if needs.has_loads and not config.kv_consumer:
        raise ReplayError("event 0 (config): the script loads into pool blocks, but kv_consumer is off")
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
        connector=config.kv_consumer or needs.has_transfers,
        transfers_wait=needs.transfers_wait,
        discipline=discipline,
    )
    enough = 1 + blocks_for_one_request(engine_config)
    if warm:
        # Nothing that the warm-up leaves in the cache may be reused before the script has hit it.
        tokens = needs.slots + sum(warm.values())
        parts = needs.parts * (1 + config.num_lookahead_tokens) + 2 * len(warm)
        enough += sum(cdiv(tokens, spec.block_size) + parts for spec in config.groups)
    # A load that the script tells before a step starts before that step prunes.
    return replace(engine_config, num_blocks=max(engine_config.num_blocks, enough) + needs.loaded_blocks)


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

    def __init__(self, engine: Engine, script: Sequence[Event], connector: ScriptedConnector) -> None:
        self.engine = engine
        self.script = script
        self.connector = connector
        self.transfers = ScriptedTransfers(connector, len(engine.config.groups))
        self.hits: dict[str, int] = {}  # announced by a computed event, for the request's next first step
        self.external: dict[str, int] = {}  # likewise, tokens that a load brings
        self.preempted_by_engine: set[str] = set()  # the script tells it, the engine does it when a load within a step fails

    def take(self, index: int) -> None:
        event = self.script[index]
        if isinstance(event, Config):
            raise ReplayError(f"event {index}: a second config")
        if isinstance(event, Add):
            self.engine.add_request(event.request, event.prompt_tokens, max_tokens=event.max_tokens)
        elif isinstance(event, Computed):
            self._computed(index, event)
        elif isinstance(event, Preempt):
            self._preempt(index, event)
        elif isinstance(event, Allocate | Touch):
            self.transfers.placed(event)
        elif isinstance(event, Load):
            self.transfers.awaits(event)
            self.transfers.pair()
            self.connector.num_workers = event.handles  # if it comes with the next step
        elif isinstance(event, Store):
            self._store(index, event)
        elif isinstance(event, Loaded | Stored):
            self._done(index, event)
        elif isinstance(event, Schedule):
            if event.requests:
                self.engine.schedule({entry.request: self._planned(entry) for entry in event.requests})
        elif isinstance(event, Process):
            self._process(index, event)
        elif isinstance(event, Finish):
            self._finish(index, event)
        elif isinstance(event, End):
            self.engine.end_recording()

    # ---- transfers ---------------------------------------------------------------------------------------------------

    def _computed(self, index: int, event: Computed) -> None:
        request = event.request
        if event.cause in _OWN_DOING:
            if event.stale and event.computed == 0 and self._is_preempted_next(index, request):
                self.preempted_by_engine.add(request)
        elif event.cause != "external":
            self.hits[request] = event.computed
        else:
            local = event.local or 0
            handles = self._handles_of_load(index, request)
            if handles is None:
                self.hits[request], self.external[request] = local, event.computed - local
            else:
                self.engine.scheduler.scripted.load(request, event.computed - local, hit=local, handles=handles)

    def _is_preempted_next(self, index: int, request: str) -> bool:
        """Not if it was preempted before: then only its stale output is dropped."""
        following = self.script[index + 1 : index + 2]
        return any(isinstance(event, Preempt) and event.request == request for event in following)

    def _handles_of_load(self, index: int, request: str) -> int | None:
        """Of the asynchronous load that a computed event announces; None if what it brings comes within the step that follows. A load
        of tokens that no later query reads has no event of its own.
        """
        for event in self.script[index + 1 :]:
            if isinstance(event, Load) and event.request == request:
                return event.handles if event.step is None else None
            if isinstance(event, Schedule) and any(entry.request == request for entry in event.requests):
                return None
            if isinstance(event, _DECISIONS) and not isinstance(event, Computed):
                break
        return 1

    def _preempt(self, index: int, event: Preempt) -> None:
        if event.request in self.preempted_by_engine:
            self.preempted_by_engine.remove(event.request)
        else:
            self.engine.preempt(event.request, self._output_mode(index, event))

    def _store(self, index: int, event: Store) -> None:
        """A finished request's store has been started; one of a running request starts with the next step, if that carries it."""
        self.transfers.awaits(event)
        request = self.engine.scheduler.requests.get(event.request)
        span = self.transfers.span(event, self.engine.scheduler.remote.block_sizes)
        if request is not None:
            if span is None:
                raise ReplayError(f"event {index} (store): the script has not put the blocks of {event.request!r} into its table")
            if self._is_in_next_step(index, event.request):
                self.connector.stores[event.request] = (span[1], event.handles)
            else:
                self.connector.num_workers = event.handles
                self.engine.scheduler.remote.start_store(request, *span)
        self.transfers.pair()

    def _is_in_next_step(self, index: int, request: str) -> bool:
        for event in self.script[index + 1 :]:
            if isinstance(event, Schedule):
                return any(entry.request == request for entry in event.requests)
            if isinstance(event, _DECISIONS) and not isinstance(event, Computed):
                break
        return False

    def _done(self, index: int, event: Loaded | Stored) -> None:
        """Workers report with the next output if that is what comes next, and between outputs otherwise."""
        completion = self.transfers.completion(event)
        if completion is None:
            return
        if self._is_process_next(index):
            self.connector.reports.append(completion)
        else:
            self.engine.scheduler.update_from_workers((completion,))

    def _is_process_next(self, index: int) -> bool:
        starts_over: set[str] = set()  # after a load that fails now
        for event in self.script[index + 1 :]:
            if isinstance(event, Process):
                return True
            if isinstance(event, Computed) and event.cause in _OWN_DOING:
                starts_over.add(event.request)
            elif isinstance(event, _DECISIONS) and not (isinstance(event, Preempt) and event.request in starts_over):
                break
        return False

    # ---- steps -------------------------------------------------------------------------------------------------------

    def _planned(self, entry: ScheduledRequest) -> PlannedStep:
        request = self.engine.scheduler.requests.get(entry.request)
        if request is not None and request.status in (RequestStatus.RUNNING, RequestStatus.WAITING_FOR_REMOTE_KVS):
            return PlannedStep(entry.tokens, entry.drafts)
        external = self.external.pop(entry.request, 0)
        return PlannedStep(entry.tokens, entry.drafts, hit=self.hits.pop(entry.request, entry.start - external), external=external)

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
