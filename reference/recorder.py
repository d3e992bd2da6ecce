"""Turns what the engine does into events of the trace schema. Without a recorder the engine only checks for None."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

from settled.model.events import (
    SCHEMA_VERSION,
    Add,
    After,
    Allocate,
    Cache,
    CacheEntry,
    Computed,
    ComputedCause,
    Config,
    Copy,
    Drop,
    End,
    Event,
    Evict,
    Finish,
    FinishReason,
    Hold,
    Load,
    Loaded,
    Move,
    PerGroup,
    Preempt,
    Process,
    ProcessedRequest,
    Release,
    ReleaseCause,
    Schedule,
    ScheduledRequest,
    State,
    Store,
    Stored,
    Touch,
    Zero,
)
from settled.reference.config import EngineConfig, StaleOutputMode
from settled.reference.request import Request, RequestStep, StepOutput

Sink = Callable[[Event], None]


class Recorder:
    """One method a thing that happens; each hands one event to the sink, at the moment at which the host sees it."""

    def __init__(self, sink: Sink) -> None:
        self.emit = sink

    # ---- set-up ------------------------------------------------------------------------------------------------------

    def config(self, config: EngineConfig) -> None:
        self.emit(
            Config(
                schema=SCHEMA_VERSION,
                engine="settled.reference",
                num_blocks=config.num_blocks,
                max_in_flight_steps=config.max_in_flight_steps,
                max_batched_tokens=config.max_num_batched_tokens,
                num_draft_tokens=config.num_speculative_tokens,
                prefix_caching=config.enable_prefix_caching,
                kv_consumer=config.kv_consumer,
                groups=config.groups,
                num_lookahead_tokens=config.num_lookahead_tokens,
                max_model_len=config.max_model_len,
                records=("counters", "content", "holds", "copies", "zero", "order"),
            )
        )

    def warm_cache(self, cached: tuple[CacheEntry, ...]) -> None:
        """The recording starts on an idle engine whose prefix cache is not empty."""
        self.emit(State(requests=(), unprocessed=(), tables={}, cached=cached))

    def end(self, idle: bool) -> None:
        self.emit(End(idle=idle))

    # ---- requests ----------------------------------------------------------------------------------------------------

    def add(self, request: Request) -> None:
        self.emit(Add(request=request.request_id, prompt_tokens=request.num_prompt_tokens, max_tokens=request.max_tokens))

    def hit(self, request_id: str, num_local_tokens: int, num_external_tokens: int = 0) -> None:
        """A prefix that need not be computed: in the cache, or brought by a load that starts next."""
        self.emit(
            Computed(
                request=request_id,
                computed=num_local_tokens + num_external_tokens,
                cause="external" if num_external_tokens else "hit",
                stale=False,
                local=num_local_tokens,
                external=num_external_tokens or None,
            )
        )

    def computed(self, request_id: str, num_tokens: int, cause: ComputedCause, *, stale: bool = False) -> None:
        self.emit(Computed(request=request_id, computed=num_tokens, cause=cause, stale=stale))

    def preempt(self, request_id: str, output: StaleOutputMode) -> None:
        self.emit(Preempt(request=request_id, output=output.value))

    def finish(self, request_id: str, reason: FinishReason) -> None:
        self.emit(Finish(request=request_id, reason=reason))

    # ---- steps -------------------------------------------------------------------------------------------------------

    def schedule(self, step: StepOutput) -> None:
        """Called after the counters have advanced."""
        self.emit(Schedule(step=step.step, requests=tuple([_scheduled(entry) for entry in step.entries])))

    def process(self, step: int, requests: tuple[ProcessedRequest, ...]) -> None:
        self.emit(Process(step=step, requests=requests))

    # ---- blocks ------------------------------------------------------------------------------------------------------

    def allocate(self, request_id: str, group: int, first_index: int, blocks: tuple[int, ...]) -> None:
        self.emit(Allocate(request=request_id, group=group, first_index=first_index, blocks=blocks))

    def move(self, request_id: str, group: int, from_index: int, to_index: int, block: int) -> None:
        self.emit(Move(request=request_id, group=group, from_index=from_index, to_index=to_index, block=block))

    def touch(self, request_id: str, group: int, first_index: int, blocks: tuple[int, ...]) -> None:
        self.emit(Touch(request=request_id, group=group, first_index=first_index, blocks=blocks))

    def release(
        self,
        request_id: str,
        group: int,
        indices: Sequence[int],
        blocks: Sequence[int],
        cause: ReleaseCause,
        freed: Sequence[int],
    ) -> None:
        self.emit(
            Release(
                request=request_id,
                group=group,
                indices=tuple(indices),
                blocks=tuple(blocks),
                cause=cause,
                freed=tuple(freed),
            )
        )

    def hold(self, holder: str, blocks: Sequence[int], *, kind: Literal["pin", "copy"] = "pin") -> None:
        self.emit(Hold(holder=holder, kind=kind, blocks=tuple(blocks)))

    def drop(self, holder: str, blocks: Sequence[int], freed: Sequence[int]) -> None:
        self.emit(Drop(holder=holder, blocks=tuple(blocks), freed=tuple(freed)))

    def copy(self, step: int, group: int, source: int, target: int) -> None:
        self.emit(Copy(step=step, group=group, source=source, target=target))

    def zero(self, step: int, blocks: Sequence[int]) -> None:
        self.emit(Zero(step=step, blocks=tuple(blocks)))

    # ---- transfers ---------------------------------------------------------------------------------------------------

    def load(self, job: int, request_id: str, blocks: PerGroup, handles: int, step: int | None, after: tuple[After, ...]) -> None:
        self.emit(Load(job=job, request=request_id, blocks=blocks, handles=handles, step=step, after=after))

    def store(self, job: int, request_id: str, blocks: PerGroup, handles: int, step: int | None, after: tuple[After, ...]) -> None:
        self.emit(Store(job=job, request=request_id, blocks=blocks, handles=handles, step=step, after=after))

    def loaded(self, job: int, handle: int | None, failed: PerGroup | None, cancelled: bool) -> None:
        self.emit(Loaded(job=job, ok=_is_ok(failed, cancelled), handle=handle, failed=failed, cancelled=cancelled or None))

    def stored(self, job: int, handle: int | None, failed: PerGroup | None, cancelled: bool) -> None:
        self.emit(Stored(job=job, ok=_is_ok(failed, cancelled), handle=handle, failed=failed, cancelled=cancelled or None))

    # ---- the prefix cache --------------------------------------------------------------------------------------------

    def cache(self, entries: tuple[CacheEntry, ...]) -> None:
        self.emit(Cache(entries=entries))

    def evict(self, entries: tuple[CacheEntry, ...]) -> None:
        self.emit(Evict(entries=entries))


def _scheduled(entry: RequestStep) -> ScheduledRequest:
    request, indices = entry.request, entry.indices
    # Only what is certain: a reader takes them for what the step does, whatever is rejected.
    is_known = indices is not None and indices.known
    return ScheduledRequest(
        request.request_id,
        entry.start,
        entry.tokens,
        entry.drafts,
        entry.new_blocks,
        entry.resumed,
        (request.num_computed_tokens, request.num_in_flight_tokens, request.num_stale_output_tokens),
        indices.reads if indices is not None and is_known else None,
        indices.writes if indices is not None and is_known else None,
    )


def _is_ok(failed: PerGroup | None, cancelled: bool) -> bool:
    return not cancelled and not (failed and any(failed))
