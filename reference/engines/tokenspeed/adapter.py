"""TokenSpeed's scheduler behind the engine protocol: `next_execution_plan` schedules, `advance` processes.

A plan names requests, tokens and block tables, and no positions of decode steps: those follow from what was sampled. The scheduler knows no
end of a request by itself: whoever drives it says so, with the output. Counters, the prefix cache and transfers are not recorded.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from itertools import chain, combinations
from typing import Any

from settled.model.events import (
    Add,
    Config,
    Copy,
    End,
    Event,
    Finish,
    FinishReason,
    PerGroup,
    Process,
    ProcessedRequest,
    ReleaseCause,
    Schedule,
    ScheduledRequest,
)
from settled.reference.engines.operations import FIRST_TOKEN, STOP_TOKEN
from settled.reference.engines.protocol import Anomaly, Chooser, Ending, EngineFailedError, NewRequest, Sink, StepRequest, TransferPart
from settled.reference.engines.setup import EngineSetup, SetupError
from settled.reference.engines.tokenspeed.configuration import group_id, min_num_blocks, start
from settled.reference.engines.tokenspeed.tables import Tables, entries

PACKAGE = "tokenspeed-scheduler"
_OF_CPP = (RuntimeError, ValueError, LookupError, ArithmeticError, MemoryError)  # what exceptions of C++ become; a TypeError is ours


@contextmanager
def _engine_called(function: str) -> Iterator[None]:
    """What comes out of the C++ scheduler is its own fault, which a traceback cannot tell: it has no frame there."""
    try:
        yield
    except _OF_CPP as error:
        raise EngineFailedError(f"Scheduler.{function}", str(error)) from error


class TokenSpeedFactory:
    """Engines of the installed release. Raises SetupError if there is none."""

    def __init__(self) -> None:
        try:
            self.name = f"tokenspeed {version(PACKAGE)}"
        except PackageNotFoundError:
            raise SetupError(f"{PACKAGE} is not installed in this environment") from None

    def create(self, setup: EngineSetup, sink: Sink | None, *, inspects: bool = True) -> TokenSpeedEngine:
        """A fresh engine; without a sink nothing is recorded. Raises SetupError for what the scheduler does not accept."""
        return TokenSpeedEngine(self.name, setup, sink)

    def min_num_blocks(self, setup: EngineSetup) -> int:
        """The smallest pool, null block counted, in which one request of the greatest length fits; `setup.num_blocks` is ignored."""
        return min_num_blocks(setup)


@dataclass(slots=True, eq=False)
class _Request:
    """What the adapter knows of an unfinished request. `computed` is counted at schedule, in tokens; `step_tokens` are in flight."""

    new: NewRequest
    computed: int = 0
    sampled: int = 0
    last_token: int = FIRST_TOKEN


@dataclass(frozen=True, slots=True)
class _Step:
    number: int
    rows: tuple[StepRequest, ...]
    request_ids: frozenset[str] = field(default=frozenset())


class TokenSpeedEngine:
    """A live scheduler, and the plans that it has made and not seen the output of."""

    def __init__(self, name: str, setup: EngineSetup, sink: Sink | None) -> None:
        self.name = name
        self.setup = setup
        self.max_in_flight_steps = 1 + int(setup.async_scheduling)
        self.scheduler = start(setup)
        self._sink = sink
        self._tables = Tables(len(setup.groups), sink)
        self._requests: dict[str, _Request] = {}
        self._seen: set[str] = set()
        self._held_back: dict[str, ReleaseCause] = {}  # finished requests whose blocks are still in use
        self._unprocessed: deque[_Step] = deque()
        self._steps = 0
        self._emit(
            Config(
                schema=1,
                engine=name,
                num_blocks=setup.num_blocks,
                max_in_flight_steps=self.max_in_flight_steps,
                max_batched_tokens=setup.max_num_batched_tokens,
                num_draft_tokens=setup.num_speculative_tokens,
                prefix_caching=setup.enable_prefix_caching,
                kv_consumer=False,
                groups=setup.groups,
                max_model_len=setup.max_model_len,
                records=("copies",),
            )
        )

    # ---- requests ----------------------------------------------------------------------------------------------------

    def add_request(self, request: NewRequest) -> None:
        """Raises SetupError for an id again, a prompt that leaves no room for a token, an offer."""
        import tokenspeed_scheduler as classes

        name, prompt = request.request_id, request.prompt_token_ids
        if name in self._seen:
            raise SetupError(f"request id {name!r} is used twice")
        if not 1 <= len(prompt) < self.setup.max_model_len or request.max_tokens < 1:
            raise SetupError(f"request {name!r}: {len(prompt)} prompt tokens and {request.max_tokens} more do not fit")
        if request.offer is not None or request.is_stored:
            raise SetupError(f"request {name!r}: there is no connector")
        self._seen.add(name)
        self._requests[name] = _Request(request, last_token=prompt[-1])
        self._emit(Add(request=name, prompt_tokens=len(prompt), max_tokens=request.max_tokens))
        spec = classes.RequestSpec()
        spec.request_id = name
        spec.tokens = list(prompt)
        spec.max_new_tokens = self._tokens_max(request)
        self.scheduler.submit_requests([spec])

    def _tokens_max(self, request: NewRequest) -> int:
        return min(request.max_tokens, self.setup.max_model_len - len(request.prompt_token_ids))

    def abort(self, request_id: str) -> None:
        """Ends an unfinished request."""
        import tokenspeed_scheduler as classes

        if request_id not in self._requests:
            raise SetupError(f"no unfinished request {request_id!r}")
        event = classes.ForwardEvent.Abort()
        event.request_id = request_id
        self._finish(request_id, "abort")
        self._advance([event])

    def unfinished_requests(self) -> Sequence[str]:
        """Ids of all that are not finished, the oldest first."""
        return list(self._requests)

    # ---- steps -------------------------------------------------------------------------------------------------------

    @property
    def num_unprocessed_steps(self) -> int:
        return len(self._unprocessed)

    def schedule(self) -> bool:
        """Asks for the next plan; False if it runs nothing. Raises SetupError if the pipeline is full."""
        if len(self._unprocessed) >= self.max_in_flight_steps:
            raise SetupError(f"{self.max_in_flight_steps} steps are unprocessed: the pipeline is full")
        with _engine_called("next_execution_plan"):
            plan = self.scheduler.next_execution_plan()
        for each in plan.aborts:
            self._finish(each.request_id, "error")
        rows, scheduled = [], []
        copies = [(group, *pair) for group in self._groups for pair in plan.pages_to_copy.get(group_id(group), ())]
        zeroed = [page for pages in plan.pages_to_zero.values() for page in pages]
        fresh = frozenset([*zeroed, *[target for _, _, target in copies]])
        batches = [batch for batch in plan.forward if batch.request_ids]
        told = [told for batch in batches for told in self._told(batch)]
        for name, _, _, tables in told:
            self._tables.release_gone(name, tables)
        self._release_held_back({name: tables for name, _, _, tables in told})
        for name, start_, tokens, tables in told:
            self._tables.take_new(name, tables, fresh)
            row, entry = self._scheduled(name, start_, tokens, tables)
            rows.append(row)
            scheduled.append(entry)
        if not rows:
            return False
        for group, source, target in copies:
            self._emit(Copy(step=self._steps, group=group, source=source, target=target))
        self._emit(Schedule(step=self._steps, requests=tuple(scheduled)))
        self._unprocessed.append(_Step(self._steps, tuple(rows), frozenset(row.request_id for row in rows)))
        self._steps += 1
        return True

    def _told(self, batch: Any) -> list[tuple[str, int | None, int, PerGroup]]:
        """Of each request: where a prefill chunk starts (None: a decode step), its tokens, its tables."""
        tables = batch.block_tables
        starts = [*batch.extend_prefix_lens, *[None] * (len(batch.request_ids) - batch.num_extends())]
        return [
            (name, starts[place], batch.input_lengths[place], tuple([entries(tables[group_id(group)][place]) for group in self._groups]))
            for place, name in enumerate(batch.request_ids)
        ]

    @property
    def _groups(self) -> range:
        return range(len(self.setup.groups))

    def _scheduled(self, name: str, start_: int | None, tokens: int, tables: PerGroup) -> tuple[StepRequest, ScheduledRequest]:
        """The worker is given whole tables with every plan: its rows are replaced each time."""
        request = self._requests[name]
        is_decode = start_ is None
        if start_ is not None:
            request.computed = start_
        drafts = tokens - 1 if is_decode else 0
        entry = ScheduledRequest(
            request=name, start=request.computed, tokens=tokens, drafts=drafts, new_blocks=tables, resumed=request.computed > 0
        )
        request.computed += tokens
        samples = is_decode or request.computed >= len(request.new.prompt_token_ids)
        return StepRequest(name, tokens, drafts, samples), entry

    def process(self, choose: Chooser) -> None:
        """Takes in the output of the oldest plan. Requests that are finished have one too: the device does not know."""
        if not self._unprocessed:
            raise SetupError("no step is unprocessed")
        step = self._unprocessed.popleft()
        processed, events, ended = [], [], []
        for row in step.rows:
            tokens = self._sample(row, choose)
            request = self._requests.get(row.request_id)
            rejected = 0
            if request is not None and tokens:
                rejected = row.drafts + 1 - len(tokens)
                request.computed -= rejected
                events.append(self._result(row.request_id, tokens))
                request.sampled += len(tokens)
                request.last_token = tokens[-1]
                if tokens[-1] == STOP_TOKEN or request.sampled >= self._tokens_max(request.new):
                    ended.append((row.request_id, "stop" if tokens[-1] == STOP_TOKEN else "length"))
            else:
                events.append(self._result(row.request_id, []))
            processed.append(ProcessedRequest(request=row.request_id, sampled=len(tokens), rejected=rejected))
        self._emit(Process(step=step.number, requests=tuple(processed)))
        for name, reason in ended:
            events.append(self._finished(name))
            self._finish(name, "stop" if reason == "stop" else "length")
        self._advance(events)

    def _sample(self, row: StepRequest, choose: Chooser) -> list[int]:
        """Token ids; no more than the request may still have."""
        if not row.samples:
            return []
        outcome = choose(row)
        if not 0 <= outcome.accepted <= row.drafts:
            raise SetupError(f"request {row.request_id!r}: {outcome.accepted} of {row.drafts} drafts accepted")
        request = self._requests.get(row.request_id)
        count, token = outcome.accepted + 1, FIRST_TOKEN
        if request is not None:
            count = min(count, self._tokens_max(request.new) - request.sampled)
            token = request.last_token
        token_ids = [FIRST_TOKEN + (token - FIRST_TOKEN + 7 * place) % 983 for place in range(1, count + 1)]
        if outcome.stop:
            token_ids[-1] = STOP_TOKEN
        return token_ids

    @staticmethod
    def _result(name: str, tokens: list[int]) -> Any:
        import tokenspeed_scheduler as classes

        event = classes.ForwardEvent.ExtendResult()
        event.request_id = name
        event.tokens = tokens
        return event

    @staticmethod
    def _finished(name: str) -> Any:
        import tokenspeed_scheduler as classes

        event = classes.ForwardEvent.Finish()
        event.request_id = name
        return event

    def _advance(self, events: Sequence[Any]) -> None:
        import tokenspeed_scheduler as classes

        execution = classes.ExecutionEvent()
        for event in events:
            execution.add_event(event)
        with _engine_called("advance"):
            self.scheduler.advance(execution)
        self._release_held_back({})

    # ---- what whole-request frees leave to see -----------------------------------------------------------------------

    def _finish(self, name: str, reason: FinishReason) -> None:
        if self._requests.pop(name, None) is not None:
            self._emit(Finish(request=name, reason=reason))
            self._held_back[name] = "abort" if reason == "abort" else "finish"

    def _release_held_back(self, told: Mapping[str, PerGroup]) -> None:
        """Whole tables of finished requests go when the scheduler counts fewer blocks in use than with them.

        Those go whose blocks explain the count: if more than one choice does, the one with the fewest whose steps are unprocessed, and of
        those the smallest. A table of which every block is shared leaves no mark: it goes as soon as no step needs it. `told`: tables of
        the plan that was just made.
        """
        in_flight = {name for step in self._unprocessed for name in step.request_ids}
        waiting = {name for name, cause in self._held_back.items() if cause != "abort" and name in in_flight}
        candidates = list(self._held_back)
        counted = self.scheduler.active_lcm_blocks()
        subsets = sorted(
            chain.from_iterable([combinations(candidates, count) for count in range(len(candidates) + 1)]),
            key=lambda names: len(waiting.intersection(names)),
        )
        gone = next((subset for subset in subsets if self._tables.num_held_after(told, subset) == counted), ())
        unseen = [name for name in candidates if name not in in_flight and self._leaves_no_mark(name, told, gone)]
        for name in dict.fromkeys([*gone, *unseen]):
            self._tables.release_all(name, self._held_back.pop(name))

    def _leaves_no_mark(self, name: str, told: Mapping[str, PerGroup], gone: Collection[str]) -> bool:
        return self._tables.num_held_after(told, gone) == self._tables.num_held_after(told, [*gone, name])

    # ---- transfers and state -----------------------------------------------------------------------------------------

    def transfers(self) -> Sequence[TransferPart]:
        """None: there is no connector."""
        return ()

    def report(self, part: TransferPart, ending: Ending) -> None:
        raise SetupError("there is no transfer to report")

    def inspect(self) -> Sequence[Anomaly]:
        """Whether the scheduler counts as many blocks in use as the tables of its plans name."""
        counted, held = self.scheduler.active_lcm_blocks(), self._tables.num_held
        if counted == held:
            return ()
        what = f"the scheduler counts {counted} blocks in use, and the tables of its plans name {held}"
        return (Anomaly("single_owner", "blocks_in_use", what),)

    def hindrance(self) -> str:
        return ""

    @property
    def is_idle(self) -> bool:
        """No request, no unprocessed step, no block in use."""
        return not self._requests and not self._unprocessed and not self._held_back

    def end(self) -> None:
        """Ends the recording."""
        self._emit(End(idle=self.is_idle))

    def _emit(self, event: Event) -> None:
        if self._sink is not None:
            self._sink(event)
