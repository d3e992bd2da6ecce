"""Whether requests finish: two small runs on the reference, both accepted at start-up. Runs, not proofs: theorem 9 is to come.

The first has two requests that fill the pool between them, so that one must give way. The second has one request of maximum length in the
smallest pool that start-up sizing accepts under the discipline.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from settled.model.disciplines import Discipline
from settled.model.events import Release
from settled.model.specs import FullAttentionSpec, SlidingWindowSpec
from settled.reference.admission import blocks_for_one_request
from settled.reference.config import EngineConfig, StaleOutputMode
from settled.reference.engine import Engine
from settled.reference.scheduler import SchedulerError

STEPS_MAX = 200

_TWO_REQUESTS = EngineConfig(
    groups=(FullAttentionSpec(block_size=2),),
    num_blocks=4,
    max_in_flight_steps=2,
    max_num_batched_tokens=8,
    max_num_seqs=2,
    max_model_len=6,
    stale_output_mode=StaleOutputMode.DROP,
)
_ONE_REQUEST = EngineConfig(
    groups=(SlidingWindowSpec(block_size=4, window=2),),
    num_blocks=2,
    max_in_flight_steps=1,
    max_num_batched_tokens=9,
    max_num_seqs=1,
    max_model_len=12,
)


@dataclass(frozen=True)
class Progress:
    """Steps until all is done, per run; None if it was not within STEPS_MAX steps, or nothing could move."""

    two_requests: int | None
    smallest_pool: int | None

    @property
    def finishes(self) -> bool:
        return self.two_requests is not None and self.smallest_pool is not None


@dataclass(frozen=True)
class TwoRequests:
    """The first run: its steps, how often a request was preempted, and how many blocks those preemptions returned at once."""

    steps: int | None
    preemptions: int
    freed_by_preempting: int


def progress(discipline: Discipline) -> Progress:
    """Both runs under a discipline."""
    one = replace(_ONE_REQUEST, discipline=discipline)
    engine = Engine(replace(one, num_blocks=1 + blocks_for_one_request(one)))
    engine.add_request("a", one.max_model_len - 1)
    return Progress(two_requests(discipline).steps, _steps(engine))


def two_requests(discipline: Discipline) -> TwoRequests:
    """The first run under a discipline."""
    releases: list[Release] = []
    engine = Engine(
        replace(_TWO_REQUESTS, discipline=discipline), lambda event: releases.append(event) if isinstance(event, Release) else None
    )
    engine.add_request("a", 2)
    engine.add_request("b", 2)
    steps = _steps(engine)
    freed = sum(len(release.freed) for release in releases if release.cause == "preempt")
    return TwoRequests(steps, engine.scheduler.num_preemptions, freed)


def _steps(engine: Engine) -> int | None:
    try:
        return engine.run_to_idle(steps_max=STEPS_MAX)
    except SchedulerError:  # no request can move, or too many steps
        return None
