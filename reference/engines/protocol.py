"""What a hunt asks of an engine. The reference is one engine behind it; a real scheduler is driven just the same."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple, Protocol

from settled.model.events import Event, Job
from settled.reference.engines.setup import EngineSetup

Sink = Callable[[Event], None]


class Ending(StrEnum):
    """How a worker's part of a transfer ends."""

    GOOD = "good"
    FIRST_FAILED = "first_failed"  # of each group the first block
    ALL_FAILED = "all_failed"


@dataclass(frozen=True, slots=True)
class Offer:
    """What the mock connector has for a request: `tokens` at most (of its whole prompt, if it is as long), counted from its beginning.

    `is_async`: the load runs beside the steps and is reported later, by each of `workers`; otherwise it runs within the request's first
    step and ends with its output, as `ending` says.
    """

    tokens: int
    is_async: bool = True
    workers: int = 1
    ending: Ending = Ending.GOOD


@dataclass(frozen=True, slots=True)
class NewRequest:
    """A request to serve. `offer`: what the mock connector can load for it; `is_stored`: the mock stores all of it when it finishes."""

    request_id: str
    prompt_token_ids: tuple[int, ...]
    max_tokens: int
    offer: Offer | None = None
    is_stored: bool = False


class StepRequest(NamedTuple):
    """One request of a step whose output is taken in: tokens and drafts scheduled, and whether it samples."""

    request_id: str
    tokens: int
    drafts: int
    samples: bool


class Outcome(NamedTuple):
    """What the model makes of a request that samples: drafts accepted, and whether its last token ends the request."""

    accepted: int
    stop: bool = False


class TransferPart(NamedTuple):
    """A worker's part of an asynchronous transfer. One that is reported already may be reported again (`is_reported`)."""

    job: Job
    request_id: str
    is_load: bool
    worker: int
    is_reported: bool


class EngineFailedError(RuntimeError):
    """An engine that is not written in Python failed: its adapter raises this from what came out of it.

    `where`: the function that failed, as file:function or whatever its users call it.
    """

    def __init__(self, where: str, message: str) -> None:
        super().__init__(message)
        self.where = where


class Anomaly(NamedTuple):
    """What an inspection of the live objects finds wrong. `property`: the name of the property that says it must not be.

    `cause` tells one from another across workloads; `sentence` has the numbers.
    """

    property: str
    cause: str
    sentence: str


Chooser = Callable[[StepRequest], Outcome]


class Engine(Protocol):
    """A scheduler with its KV cache manager and connector, and the pipeline of steps that it has dispatched.

    Every method may raise what the engine raises: that is a finding. SetupError is the harness's fault, and so is whatever comes out of
    its own code. Events go to the sink that the engine was built with, the config first.
    """

    name: str
    """What the trace's config calls it, with its version: `vllm 0.33.0`."""
    setup: EngineSetup
    max_in_flight_steps: int
    """The deepest pipeline that the engine itself declares legal for the setup."""

    def add_request(self, request: NewRequest) -> None: ...

    def abort(self, request_id: str) -> None:
        """Ends an unfinished request."""

    def unfinished_requests(self) -> Sequence[str]:
        """Ids of all that are not finished, the oldest first."""

    @property
    def num_unprocessed_steps(self) -> int: ...

    def schedule(self) -> bool:
        """Dispatches the next step, as the engine chooses it; False if it has nothing to dispatch. Not beyond `max_in_flight_steps`."""

    def process(self, choose: Chooser) -> None:
        """Takes in the output of the oldest unprocessed step."""

    def transfers(self) -> Sequence[TransferPart]:
        """Parts that the mock connector may report at any time, the oldest first."""

    def report(self, part: TransferPart, ending: Ending) -> None:
        """A worker is through. It reaches the engine as soon as the engine takes reports in: at once, or with the next output."""

    def inspect(self) -> Sequence[Anomaly]:
        """Compares the live objects with each other: counts with holders, queues with blocks, counters with steps. Only of an engine that
        was created for it."""

    def hindrance(self) -> str:
        """What keeps requests from finishing although nothing new comes: words without numbers, which tell causes apart. "" if unknown."""

    @property
    def is_idle(self) -> bool:
        """No request, no unprocessed step, no transfer, nothing deferred."""

    def end(self) -> None:
        """Ends the recording. What the engine changed in its process is put back."""


class EngineFactory(Protocol):
    """Builds engines of one release."""

    name: str

    def create(self, setup: EngineSetup, sink: Sink | None, *, inspects: bool = True) -> Engine:
        """A fresh engine; without a sink nothing is recorded. `inspects`: it will be inspected, so it prepares for that, which may cost
        time at every step. Raises SetupError for what the release does not accept."""

    def min_num_blocks(self, setup: EngineSetup) -> int:
        """The smallest pool, null block counted, that the release's own start-up check accepts; `setup.num_blocks` is ignored."""
