"""A builder for hand-made traces: one call a line, defaults for what a test does not care about."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from settled.model import events as ev
from settled.model.monitor import Monitor, Report
from settled.model.properties import Contract, Property
from settled.model.specs import FullAttentionSpec, KVCacheSpec, SlidingWindowSpec
from settled.model.trace_io import encode_event

FULL = FullAttentionSpec(block_size=4)
WINDOW = SlidingWindowSpec(block_size=4, window=4)


class TraceBuilder:
    """A trace under construction; the config is line 1, so the first event is line 2."""

    def __init__(self, *groups: KVCacheSpec, **config: Any) -> None:
        defaults: dict[str, Any] = {
            "schema": 1,
            "engine": "hand-made",
            "num_blocks": 32,
            "max_in_flight_steps": 2,
            "max_batched_tokens": 64,
            "num_draft_tokens": 4,
            "prefix_caching": False,
            "kv_consumer": True,
        }
        self.config = ev.Config(**{**defaults, "groups": groups or (WINDOW,), **config})
        self.events: list[ev.Event] = [self.config]

    def put(self, event: ev.Event) -> TraceBuilder:
        self.events.append(event)
        return self

    def add(self, request: str = "A", prompt_tokens: int = 8) -> TraceBuilder:
        return self.put(ev.Add(request=request, prompt_tokens=prompt_tokens))

    def allocate(self, *blocks: int, request: str = "A", group: int = 0, first: int = 0, after: Any = None) -> TraceBuilder:
        return self.put(ev.Allocate(request=request, group=group, first_index=first, blocks=blocks, after=after))

    def touch(self, *blocks: int, request: str = "A", group: int = 0, first: int = 0) -> TraceBuilder:
        return self.put(ev.Touch(request=request, group=group, first_index=first, blocks=blocks))

    def release(
        self,
        blocks: dict[int, int],
        cause: Any = "window",
        *,
        request: str = "A",
        group: int = 0,
        freed: Iterable[int] | None = None,
    ) -> TraceBuilder:
        """`blocks` maps table indices to block ids; all of them are freed unless said otherwise."""
        ids = tuple(blocks.values())
        left = ids if freed is None else tuple(freed)
        return self.put(ev.Release(request=request, group=group, indices=tuple(blocks), blocks=ids, cause=cause, freed=left))

    def schedule(self, step: int, *entries: ev.ScheduledRequest) -> TraceBuilder:
        return self.put(ev.Schedule(step=step, requests=entries))

    def process(self, step: int, *outputs: ev.ProcessedRequest) -> TraceBuilder:
        return self.put(ev.Process(step=step, requests=outputs))

    def finish(self, request: str = "A", reason: Any = "stop") -> TraceBuilder:
        return self.put(ev.Finish(request=request, reason=reason))

    def load(self, job: int, *blocks: int, request: str = "B", **keys: Any) -> TraceBuilder:
        per_group = (blocks, *((),) * (len(self.config.groups) - 1))
        return self.put(ev.Load(job=job, request=request, blocks=per_group, **keys))

    def end(self, *, idle: bool = False) -> TraceBuilder:
        return self.put(ev.End(idle=idle))

    def judge(self, contract: Contract | str | None = None, properties: Iterable[Property] = tuple(Property)) -> Report:
        """The report of a fresh monitor on the trace as it stands."""
        monitor = Monitor(self.config, Contract(contract) if contract else None, properties)
        for line, event in enumerate(self.events, start=1):
            monitor.feed(line, event)
        return monitor.finish()

    def found(self, contract: Contract | str | None = None) -> dict[str, dict[str, int]]:
        """The violated properties with their causes."""
        return {str(result.property): result.causes for result in self.judge(contract).properties if result.causes}

    def text(self) -> str:
        return "".join(encode_event(event) + "\n" for event in self.events)


def entry(start: int, tokens: int, *new_blocks: Iterable[int], request: str = "A", drafts: int = 0, **keys: Any) -> ev.ScheduledRequest:
    """A scheduled request; `new_blocks` is a list a group, one empty list if nothing is said."""
    blocks = tuple(tuple(ids) for ids in new_blocks) or ((),)
    keys = {"resumed": False, **keys}
    return ev.ScheduledRequest(request=request, start=start, tokens=tokens, drafts=drafts, new_blocks=blocks, **keys)


def output(sampled: int = 1, rejected: int = 0, request: str = "A", **keys: Any) -> ev.ProcessedRequest:
    """A processed request."""
    return ev.ProcessedRequest(request=request, sampled=sampled, rejected=rejected, **keys)
