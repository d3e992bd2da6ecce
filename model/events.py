"""The events of a trace, schema version 1, as plain values: what the recorder emits, the monitor reads, a counterexample is.

Positions and counts are in tokens, block ids are integers with 0 the null block, `group` is the index of a KV cache group,
"per group" is a tuple with one entry a group. A field with a default is an optional key of the schema. Reading and writing
NDJSON is `trace_io.py`'s job.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, TypeVar, dataclass_transform

from settled.model.specs import KVCacheSpec

SCHEMA_VERSION = 1
NULL_BLOCK = 0

Job = int | str
PerGroup = tuple[tuple[int, ...], ...]
ReleaseCause = Literal["window", "finish", "abort", "preempt", "connector_finish", "deferred"]
ComputedCause = Literal["hit", "external", "load_failed", "last_token", "replay", "session", "unknown"]
FinishReason = Literal["stop", "length", "abort", "error"]


_Class = TypeVar("_Class")


@dataclass_transform(kw_only_default=True, frozen_default=True)
def event(cls: type[_Class]) -> type[_Class]:
    """A frozen dataclass to the type checker, a plain one at run time: freezing would double the time that it takes to make an event."""
    return dataclass(slots=True, kw_only=True, unsafe_hash=True)(cls)


@dataclass_transform(frozen_default=True)
def part_of_step(cls: type[_Class]) -> type[_Class]:
    """The same for what is made once for each request of each step: by position, which takes half the time that keywords do."""
    return dataclass(slots=True, unsafe_hash=True)(cls)


@event
class Event:
    """Anything that stands on one line of a trace."""

    name: ClassVar[str]


# ---- set-up ----------------------------------------------------------------------------------------------------------


@event
class Config(Event):
    """The first line: what engine, what pool, what groups.

    `max_in_flight_steps` is the pipeline depth in steps; `kv_consumer` says that a connector may load into pool blocks;
    `records` names the event families present beyond tables and references.
    """

    name: ClassVar[str] = "config"
    schema: int
    engine: str
    num_blocks: int
    max_in_flight_steps: int
    max_batched_tokens: int
    num_draft_tokens: int
    prefix_caching: bool
    kv_consumer: bool
    groups: tuple[KVCacheSpec, ...]
    num_lookahead_tokens: int = 0
    max_model_len: int | None = None
    records: tuple[str, ...] = ()


@event
class RequestState:
    """A request's counters, in tokens, where a rotated trace begins."""

    request: str
    prompt_tokens: int
    computed: int
    in_flight: int
    stale: int


@event
class UnprocessedRequest:
    """One request of a step that was unprocessed where a rotated trace begins."""

    request: str
    start: int
    tokens: int
    drafts: int
    rows: PerGroup
    live: bool


@event
class UnprocessedStep:
    """A step that was unprocessed where a rotated trace begins."""

    step: int
    requests: tuple[UnprocessedRequest, ...]


@event
class CacheEntry:
    """A block's entry in the prefix cache: the tokens [start, end) of `request` that its hash stands for."""

    block: int
    group: int | None = None
    hash: str | int | None = None
    request: str | None = None
    start: int | None = None
    end: int | None = None


@event
class PendingJob:
    """A transfer that was under way where a rotated trace begins."""

    job: Job
    request: str
    blocks: PerGroup
    kind: Literal["load", "store"] = "load"
    handles: int = 1


@event
class State(Event):
    """The second line of a trace that starts in mid-run."""

    name: ClassVar[str] = "state"
    requests: tuple[RequestState, ...]
    unprocessed: tuple[UnprocessedStep, ...]
    tables: dict[str, PerGroup]
    holders: tuple[Hold, ...] = ()
    cached: tuple[CacheEntry, ...] = ()
    jobs: tuple[PendingJob, ...] = ()


@event
class Gap(Event):
    """The recorder lost `events` events; nothing is known until the next config and state."""

    name: ClassVar[str] = "gap"
    events: int


@event
class End(Event):
    """The trace is complete; with `idle`, leaks and counts left in flight are judged here."""

    name: ClassVar[str] = "end"
    idle: bool


# ---- requests --------------------------------------------------------------------------------------------------------


@event
class Add(Event):
    """A request arrives; `max_tokens` it may generate at most."""

    name: ClassVar[str] = "add"
    request: str
    prompt_tokens: int
    max_tokens: int | None = None


@event
class Computed(Event):
    """The computed count is set outside schedule and process; `stale` makes the request's unprocessed steps stale."""

    name: ClassVar[str] = "computed"
    request: str
    computed: int
    cause: ComputedCause
    stale: bool
    local: int | None = None
    external: int | None = None


@event
class Preempt(Event):
    """Computed becomes 0, the request's unprocessed steps become stale."""

    name: ClassVar[str] = "preempt"
    request: str
    output: Literal["deliver", "drop"] | None = None


@event
class Finish(Event):
    """The request is over. What it holds is given back by releases, now or once its steps are processed."""

    name: ClassVar[str] = "finish"
    request: str
    reason: FinishReason


# ---- steps -----------------------------------------------------------------------------------------------------------


@part_of_step
class ScheduledRequest:
    """One request of a step.

    `start`: computed tokens before the step, counted optimistically. `new_blocks`: per group the ids appended to the
    worker's table row (with `resumed` the row is replaced). `counters`: (computed, in flight, stale) after the event.
    `reads`, `writes`: per group the table indices, where the mask of the kind does not give them.
    """

    request: str
    start: int
    tokens: int
    drafts: int
    new_blocks: PerGroup
    resumed: bool
    counters: tuple[int, int, int] | None = None
    reads: PerGroup | None = None
    writes: PerGroup | None = None


@event
class After:
    """Work that the device waits for: a step or a transfer."""

    step: int | None = None
    job: Job | None = None


@event
class Schedule(Event):
    """A step is dispatched. `after`: what the device waits for before it."""

    name: ClassVar[str] = "schedule"
    step: int
    requests: tuple[ScheduledRequest, ...]
    after: tuple[After, ...] | None = None


@part_of_step
class ProcessedRequest:
    """One request of a processed step: tokens sampled, tokens rolled back, and (computed, in flight, stale) after it."""

    request: str
    sampled: int
    rejected: int
    counters: tuple[int, int, int] | None = None


@event
class Process(Event):
    """The host has read a step's output."""

    name: ClassVar[str] = "process"
    step: int
    requests: tuple[ProcessedRequest, ...]


# ---- blocks ----------------------------------------------------------------------------------------------------------


@event
class Allocate(Event):
    """Fresh blocks leave the pool and enter the table at first_index, first_index + 1, ..."""

    name: ClassVar[str] = "allocate"
    request: str
    group: int
    first_index: int
    blocks: tuple[int, ...]
    after: tuple[After, ...] | None = None


@event
class Touch(Event):
    """A prefix-cache hit: one more reference each."""

    name: ClassVar[str] = "touch"
    request: str
    group: int
    first_index: int
    blocks: tuple[int, ...]


@event
class Release(Event):
    """The request gives up its references; `freed` are the blocks with none left, back in the pool."""

    name: ClassVar[str] = "release"
    request: str
    group: int
    indices: tuple[int, ...]
    blocks: tuple[int, ...]
    cause: ReleaseCause
    freed: tuple[int, ...]


@event
class Hold(Event):
    """References held by others than requests."""

    name: ClassVar[str] = "hold"
    holder: str
    kind: Literal["pin", "copy"]
    blocks: tuple[int, ...]


@event
class Drop(Event):
    """A holder gives up its references; `freed` are the blocks with none left."""

    name: ClassVar[str] = "drop"
    holder: str
    blocks: tuple[int, ...]
    freed: tuple[int, ...]


@event
class Move(Event):
    """A block changes its table index; no reference changes, `from_index` becomes null."""

    name: ClassVar[str] = "move"
    request: str
    group: int
    from_index: int
    to_index: int
    block: int


@event
class Copy(Event):
    """A step copies a block before it runs, as copy-on-write does."""

    name: ClassVar[str] = "copy"
    step: int
    group: int
    source: int
    target: int
    after: tuple[After, ...] | None = None


@event
class Zero(Event):
    """A step overwrites blocks with zeroes before it runs."""

    name: ClassVar[str] = "zero"
    step: int
    blocks: tuple[int, ...]
    after: tuple[After, ...] | None = None


@event
class Cache(Event):
    """Blocks enter the prefix cache."""

    name: ClassVar[str] = "cache"
    entries: tuple[CacheEntry, ...]


@event
class Evict(Event):
    """Blocks leave the prefix cache."""

    name: ClassVar[str] = "evict"
    entries: tuple[CacheEntry, ...]


# ---- transfers -------------------------------------------------------------------------------------------------------


@event
class Transfer(Event):
    """From here on a connector may touch the blocks on its own stream; `step` orders it before that step's reads."""

    job: Job
    request: str
    blocks: PerGroup
    handles: int = 1
    step: int | None = None
    after: tuple[After, ...] | None = None


@event
class Load(Transfer):
    """A connector writes into the blocks."""

    name: ClassVar[str] = "load"


@event
class Store(Transfer):
    """A connector reads the blocks."""

    name: ClassVar[str] = "store"


@event
class TransferDone(Event):
    """The host learns that a handle is over; the blocks are reusable after the last."""

    job: Job
    ok: bool
    handle: int | str | None = None
    failed: PerGroup | None = None
    cancelled: bool | None = None


@event
class Loaded(TransferDone):
    """A handle of a load is over; `failed`: per group the blocks that were not written."""

    name: ClassVar[str] = "loaded"


@event
class Stored(TransferDone):
    """A handle of a store is over."""

    name: ClassVar[str] = "stored"


EVENT_BY_NAME: dict[str, type[Event]] = {
    event.name: event
    for event in (
        Config,
        State,
        Gap,
        End,
        Add,
        Computed,
        Preempt,
        Finish,
        Schedule,
        Process,
        Allocate,
        Touch,
        Release,
        Hold,
        Drop,
        Move,
        Copy,
        Zero,
        Cache,
        Evict,
        Load,
        Store,
        Loaded,
        Stored,
    )
}
