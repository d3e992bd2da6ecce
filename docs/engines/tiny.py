"""A whole engine behind the protocol of `settled hunt`: one window, one request at a time, no cache, no drafts, no connector.

`frees_on="computed"` makes the mistake of #47728, `frees_on="settled"` does not. `docs/engines.md` explains it part by part.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from settled.model import events as ev
from settled.model.specs import SlidingWindowSpec
from settled.reference.engines.protocol import Anomaly, Chooser, Ending, Engine, NewRequest, Sink, StepRequest, TransferPart
from settled.reference.engines.setup import EngineSetup, SetupError

Basis = Literal["computed", "settled"]


@dataclass
class Request:
    """Counts are in tokens; `table` has a block id for each index, the null block where nothing is kept."""

    request_id: str
    prompt: int
    end: int  # tokens that will be computed: the last one sampled never is
    computed: int = 0
    in_flight: int = 0
    table: list[int] = field(default_factory=list)
    is_finished: bool = False


class TinyEngine:
    """Dispatches up to two steps before it reads the first one's output."""

    name = "tiny 1.0"

    def __init__(self, setup: EngineSetup, sink: Sink | None, frees_on: Basis) -> None:
        self.setup, self.frees_on = setup, frees_on
        self.max_in_flight_steps = 2 if setup.async_scheduling else 1
        self.spec = window_of(setup)
        self.emit: Sink = sink or (lambda event: None)
        self.free = deque(range(1, setup.num_blocks))
        self.requests: dict[str, Request] = {}
        self.steps: deque[tuple[int, Request, int, bool]] = deque()  # number, request, tokens, whether it samples
        self.num_steps = 0
        self.emit(
            ev.Config(
                schema=ev.SCHEMA_VERSION,
                engine=self.name,
                num_blocks=setup.num_blocks,
                max_in_flight_steps=self.max_in_flight_steps,
                max_batched_tokens=setup.max_num_batched_tokens,
                num_draft_tokens=0,
                prefix_caching=False,
                kv_consumer=False,
                groups=(self.spec,),
            )
        )

    # ---- what hosts and models do ------------------------------------------------------------------------------------

    def add_request(self, request: NewRequest) -> None:
        prompt = len(request.prompt_token_ids)
        if prompt >= self.setup.max_model_len:
            raise SetupError(f"a prompt of {prompt} tokens; expected fewer than {self.setup.max_model_len}")
        end = min(prompt + request.max_tokens, self.setup.max_model_len) - 1
        self.requests[request.request_id] = Request(request.request_id, prompt, end)
        self.emit(ev.Add(request=request.request_id, prompt_tokens=prompt))

    def abort(self, request_id: str) -> None:
        self._finish(self.requests[request_id], "abort")

    def unfinished_requests(self) -> Sequence[str]:
        return tuple(self.requests)

    @property
    def num_unprocessed_steps(self) -> int:
        return len(self.steps)

    def schedule(self) -> bool:
        request = next((each for each in self.requests.values() if each.computed < each.end), None)
        if request is None:
            return False
        left = request.prompt - request.computed
        tokens = min(left, self.setup.max_num_batched_tokens) if left > 0 else 1
        self._prune(request)
        missing = -(-(request.computed + tokens) // self.spec.block_size) - len(request.table)
        if missing > len(self.free):
            return False
        fresh = tuple(self.free.popleft() for _ in range(missing))
        if fresh:
            self.emit(ev.Allocate(request=request.request_id, group=0, first_index=len(request.table), blocks=fresh))
            request.table += fresh
        scheduled = ev.ScheduledRequest(request.request_id, request.computed, tokens, 0, (fresh,), resumed=False)
        self.emit(ev.Schedule(step=self.num_steps, requests=(scheduled,)))
        request.computed += tokens
        request.in_flight += tokens
        self.steps.append((self.num_steps, request, tokens, request.computed >= request.prompt))
        self.num_steps += 1
        return True

    def process(self, choose: Chooser) -> None:
        step, request, tokens, samples = self.steps.popleft()
        request.in_flight -= tokens
        samples = samples and not request.is_finished
        stops = samples and choose(StepRequest(request.request_id, tokens, 0, samples)).stop
        self.emit(ev.Process(step=step, requests=(ev.ProcessedRequest(request.request_id, int(samples), 0),)))
        if request.is_finished:
            self._give_back(request, "deferred")
        elif stops or request.computed - request.in_flight == request.end:
            self._finish(request, "stop" if stops else "length")

    def transfers(self) -> Sequence[TransferPart]:
        return ()

    def report(self, part: TransferPart, ending: Ending) -> None:
        raise SetupError("there are no transfers")

    # ---- blocks ------------------------------------------------------------------------------------------------------

    def _prune(self, request: Request) -> None:
        """What lies behind the window of the next token, by the count that the engine relies on."""
        basis = request.computed if self.frees_on == "computed" else request.computed - request.in_flight
        whole = max(0, basis - self.spec.window + 1) // self.spec.block_size
        self._release(request, [index for index in range(whole) if request.table[index] != ev.NULL_BLOCK], "window")

    def _finish(self, request: Request, reason: ev.FinishReason) -> None:
        """The table waits for the steps in flight."""
        request.is_finished = True
        del self.requests[request.request_id]
        self.emit(ev.Finish(request=request.request_id, reason=reason))
        self._give_back(request, "abort" if reason == "abort" else "finish")

    def _give_back(self, request: Request, cause: ev.ReleaseCause) -> None:
        if not request.in_flight:
            self._release(request, [index for index, block in enumerate(request.table) if block != ev.NULL_BLOCK], cause)

    def _release(self, request: Request, indices: list[int], cause: ev.ReleaseCause) -> None:
        if not indices:
            return
        blocks = tuple(request.table[index] for index in indices)
        for index in indices:
            request.table[index] = ev.NULL_BLOCK
        self.free.extend(blocks)
        name, gone = request.request_id, tuple(indices)
        self.emit(ev.Release(request=name, group=0, indices=gone, blocks=blocks, cause=cause, freed=blocks))

    # ---- inspection --------------------------------------------------------------------------------------------------

    def inspect(self) -> Sequence[Anomaly]:
        lost = self.setup.num_blocks - 1 - len(self.free)
        return [Anomaly("single_owner", "blocks in use at idle", f"{lost} blocks are in use at idle")] if self.is_idle and lost else []

    def hindrance(self) -> str:
        return ""

    @property
    def is_idle(self) -> bool:
        return not self.requests and not self.steps

    def end(self) -> None:
        self.emit(ev.End(idle=self.is_idle))


def window_of(setup: EngineSetup) -> SlidingWindowSpec:
    """The setup's one group. Raises SetupError for all that this engine does not have."""
    (spec, *more) = setup.groups
    other = more or setup.connector or setup.enable_prefix_caching or setup.num_speculative_tokens or setup.pipeline_parallel_size > 1
    if other or not isinstance(spec, SlidingWindowSpec) or spec.extra_retained or set(dict(setup.extra)) - {"speculative_method"}:
        raise SetupError("tiny: one sliding window, nothing else")
    return spec


class TinyFactory:
    """Builds engines of one kind."""

    def __init__(self, frees_on: Basis = "settled") -> None:
        self.name, self.frees_on = TinyEngine.name, frees_on

    def create(self, setup: EngineSetup, sink: Sink | None, *, inspects: bool = True) -> Engine:
        return TinyEngine(setup, sink, self.frees_on)

    def min_num_blocks(self, setup: EngineSetup) -> int:
        return 1 - (-setup.max_model_len // window_of(setup).block_size)
