"""Workloads as plain data: what hosts and models do to an engine, whichever it is.

An operation never says what the engine does with its blocks. What cannot be done in the present state is left out, so a workload without
one of its operations is a workload as well.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from zlib import crc32

from settled.reference.engines.protocol import Ending, Engine, NewRequest, Offer, Outcome, StepRequest
from settled.reference.engines.setup import EngineSetup

VOCABULARY_SIZE = 1000  # tokens; below FIRST_TOKEN are special ones
FIRST_TOKEN = 10
STOP_TOKEN = 2
_PRIME = 983  # two families' prompts differ at every position


def family_token(family: int, position: int) -> int:
    """The token at a position of a family of prompts; families below 983 differ at every position."""
    return FIRST_TOKEN + (family * 37 + position * 7) % _PRIME


@dataclass(frozen=True, slots=True)
class Add:
    """Adds a request. Its prompt has `prompt_tokens` tokens, of which the first `shared_tokens` are those of every prompt of `family`."""

    request_id: str
    prompt_tokens: int
    max_tokens: int
    family: int = 0
    shared_tokens: int = 0
    offer: Offer | None = None
    is_stored: bool = False


@dataclass(frozen=True, slots=True)
class Abort:
    """Ends a request, running or waiting."""

    request_id: str


@dataclass(frozen=True, slots=True)
class Schedule:
    """Dispatches the next step, if the pipeline takes one more."""


@dataclass(frozen=True, slots=True)
class Process:
    """Takes in the output of the oldest unprocessed step. Its request number i (counted over those with drafts) rejects
    `rejected[i % len]` drafts, all if it has fewer; those whose numbers are in `stops` (counted over all that sample) end."""

    rejected: tuple[int, ...] = (0,)
    stops: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Report:
    """The part of a transfer number `which`, counted over those unreported (`again`: those reported before), ends."""

    which: int = 0
    ending: Ending = Ending.GOOD
    again: bool = False


Operation = Add | Abort | Schedule | Process | Report


@dataclass(frozen=True, slots=True)
class Workload:
    """A setup and what is done with it, in order. A run ends by serving what is left, until the engine is idle."""

    setup: EngineSetup
    operations: tuple[Operation, ...]


def play(engine: Engine, operation: Operation) -> bool:
    """Does what an operation asks, if it can be done; whether it could."""
    match operation:  # the most frequent first
        case Schedule():
            return engine.num_unprocessed_steps < engine.max_in_flight_steps and engine.schedule()
        case Process():
            if not engine.num_unprocessed_steps:
                return False
            engine.process(_chooser(operation))
        case Add():
            if operation.request_id in engine.unfinished_requests():
                return False
            engine.add_request(_request(operation))
        case Abort():
            if operation.request_id not in engine.unfinished_requests():
                return False
            engine.abort(operation.request_id)
        case Report():
            parts = [part for part in engine.transfers() if part.is_reported == operation.again]
            if not parts:
                return False
            engine.report(parts[operation.which % len(parts)], operation.ending)
    return True


def prompt_of(add: Add) -> tuple[int, ...]:
    """The token ids. What a prompt does not share depends on the request's id alone."""
    shared = min(add.shared_tokens, add.prompt_tokens)
    own = 100 + crc32(add.request_id.encode()) % 800
    family = tuple([family_token(add.family, position) for position in range(shared)])
    return family + tuple([family_token(own, position) for position in range(shared, add.prompt_tokens)])


def _request(add: Add) -> NewRequest:
    return NewRequest(add.request_id, prompt_of(add), add.max_tokens, add.offer, add.is_stored)


def _chooser(process: Process) -> Callable[[StepRequest], Outcome]:
    with_drafts = sampling = 0

    def choose(request: StepRequest) -> Outcome:
        nonlocal with_drafts, sampling
        accepted = request.drafts
        if request.drafts and process.rejected:
            accepted = max(0, request.drafts - process.rejected[with_drafts % len(process.rejected)])
            with_drafts += 1
        sampling += 1
        return Outcome(accepted, stop=sampling - 1 in process.stops)

    return choose
