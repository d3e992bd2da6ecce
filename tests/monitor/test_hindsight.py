"""The online monitor finds exactly what a plain reading with hindsight finds: true starts known in advance, token by token.

The reading below shares nothing with the monitor but the events. It counts, on the recorded traces, each loss of a table entry by an
unprocessed step that reads or writes one of its tokens.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from settled.model import events as ev
from settled.model.monitor import Monitor
from settled.model.properties import Contract, Property
from settled.model.specs import ChunkedLocalAttentionSpec, KVCacheSpec, MambaSpec, SlidingWindowSpec
from settled.model.trace_io import read_trace

TRACES = sorted((Path(__file__).parent.parent / "data" / "traces").glob("*.ndjson"))
Part = tuple[int, str]  # step, request


def _true_starts(trace: list[ev.Event]) -> dict[Part, int]:
    starts: dict[Part, int] = {}
    live: dict[str, list[int]] = {}  # steps of the present generation, in flight
    for event in trace:
        match event:
            case ev.Schedule():
                for part in event.requests:
                    starts[event.step, part.request] = part.start
                    live.setdefault(part.request, []).append(event.step)
            case ev.Preempt() | ev.Finish():
                live[event.request] = []
            case ev.Process():
                for done in event.requests:
                    if event.step in live[done.request]:
                        live[done.request].remove(event.step)
                        for step in live[done.request]:
                            starts[step, done.request] -= done.rejected
    return starts


def _keeps(spec: KVCacheSpec, start: int, token: int) -> bool:
    """Whether the query at `start` reads an earlier token."""
    if isinstance(spec, SlidingWindowSpec):
        return start - spec.window < token
    if isinstance(spec, ChunkedLocalAttentionSpec):
        return token // spec.chunk == start // spec.chunk
    return True


def _states(trace: list[ev.Event], spec: MambaSpec) -> dict[Part, tuple[set[int], set[int]]]:
    """The table indices that each step of a state kind reads, and writes, with all outputs known in advance."""
    outputs = {(event.step, done.request): done.rejected for event in trace if isinstance(event, ev.Process) for done in event.requests}
    used: dict[Part, tuple[set[int], set[int]]] = {}
    left: dict[str, set[int]] = {}  # where the last step of a generation left what the next one reads
    size, spare = spec.block_size, spec.num_speculative_blocks
    for event in trace:
        if isinstance(event, ev.Preempt | ev.Finish):
            left.pop(event.request, None)
        for part in event.requests if isinstance(event, ev.Schedule) else ():
            end, accepted = part.start + part.tokens, part.drafts - outputs.get((event.step, part.request), 0)
            if spec.mode == "none":
                used[event.step, part.request] = set(range(1 + spare)), set(range(1 + spare))
                continue
            read = left.get(part.request, {(part.start - 1) // size} if part.start else set())
            written = {(end - 1) // size + draft for draft in range(part.drafts + 1)}
            left[part.request] = {(end - 1) // size, (end - 1) // size + accepted}
            for full in range(end - part.drafts, end - part.drafts + accepted + 1):
                if full % size == 0:
                    written.add(full // size - 1)
                    if full == end:
                        left[part.request] = {(end - 1) // size}
            used[event.step, part.request] = read, written
    return used


class Hindsight:
    """Counts losses per (property, cause)."""

    def __init__(self, trace: list[ev.Event], contract: Contract) -> None:
        config = trace[0]
        assert isinstance(config, ev.Config)
        self.groups, self.contract, self.starts = config.groups, contract, _true_starts(trace)
        self.states = {group: _states(trace, spec) for group, spec in enumerate(config.groups) if isinstance(spec, MambaSpec)}
        self.lengths: dict[tuple[str, int], int] = {}  # of tables that have fresh blocks
        self.found: Counter[tuple[str, str]] = Counter()
        self.held: dict[tuple[str, int, int], int] = {}  # request, group, index → block
        self.released: dict[tuple[str, int, int], tuple[str, int]] = {}  # → cause, computed count then
        self.rows: dict[str, list[list[int]]] = {}
        self.in_flight: dict[Part, tuple[int, list[list[int]]]] = {}  # → tokens, rows
        self.lost: dict[Part, set[tuple[int, int]]] = {}  # entries released since the schedule
        self.computed: dict[str, int] = {}
        for event in trace[1:]:
            getattr(self, f"_{event.name}", lambda event: None)(event)

    def _needs(self, part: Part, group: int, index: int) -> tuple[bool, bool]:
        if group in self.states:
            read, to_write = self.states[group][part]
            return index in read, index in to_write
        start, (tokens, _), spec = self.starts[part], self.in_flight[part], self.groups[group]
        block = range(index * spec.block_size, (index + 1) * spec.block_size)
        written = any(start <= token < start + tokens for token in block)
        return written or any(token < start and _keeps(spec, start, token) for token in block), written

    def _lose(self, block: int, how: str, *, harms_writes: bool) -> None:
        for part, entries in self.lost.items():
            for group, index in entries:
                if self.in_flight[part][1][group][index] == block:
                    cause = f"{how}[{self.released[part[1], group, index][0]}]"
                    reads, writes = self._needs(part, group, index)
                    self.found["read_resident", cause] += reads
                    self.found["write_owned", cause] += writes and harms_writes

    def _schedule(self, event: ev.Schedule) -> None:
        for entry in event.requests:
            name, part = entry.request, (event.step, entry.request)
            rows = self.rows.get(name, [[] for _ in self.groups])
            self.rows[name] = [list(new) if entry.resumed else row + list(new) for row, new in zip(rows, entry.new_blocks, strict=True)]
            self.computed[name] = entry.start + entry.tokens
            self.in_flight[part] = entry.tokens, self.rows[name]
            self.lost[part] = set()
            for group, row in enumerate(self.rows[name]):
                for index, block in enumerate(row):
                    if self.held.get((name, group, index)) != block and not (block and self._moved(name, group, block)):
                        self._absent(part, group, index)

    def _absent(self, part: Part, group: int, index: int) -> None:
        reads, writes = self._needs(part, group, index)
        cause, computed = self.released.get((part[1], group, index), ("never released", 0))
        last = (index + 1) * self.groups[group].block_size - 1
        kept = last == computed - 1 if group in self.states else _keeps(self.groups[group], computed, last)
        name = "rollback_resident" if last < computed and not kept else "read_resident"
        self.found[name, f"released_before_schedule[{cause}]"] += reads
        self.found["write_owned", f"released_before_schedule[{cause}]"] += writes

    def _process(self, event: ev.Process) -> None:
        for done in event.requests:
            part = event.step, done.request
            del self.in_flight[part], self.lost[part]
            self.computed[done.request] -= done.rejected

    def _preempt(self, event: ev.Preempt) -> None:
        self.computed[event.request] = 0
        self._forget(event)

    def _finish(self, event: ev.Finish) -> None:
        self._forget(event)

    def _forget(self, event: ev.Preempt | ev.Finish) -> None:
        for group in range(len(self.groups)):
            self.lengths.pop((event.request, group), None)

    def _moved(self, name: str, group: int, block: int) -> bool:
        """Whether a request of a state kind holds a block somewhere."""
        return group in self.states and block in [held for key, held in self.held.items() if key[:2] == (name, group)]

    def _allocate(self, event: ev.Allocate) -> None:
        self._move_speculative_blocks(event)
        for index, block in enumerate(event.blocks, start=event.first_index):
            self.held[event.request, event.group, index] = block
            if self.contract is Contract.SETTLED:
                self._lose(block, "reallocated", harms_writes=True)

    def _move_speculative_blocks(self, event: ev.Allocate) -> None:
        """They go where they come directly before the fresh block, past the running index."""
        spec, key = self.groups[event.group], (event.request, event.group)
        end = event.first_index + len(event.blocks)
        if isinstance(spec, MambaSpec) and spec.mode == "align":
            running, length = end - 1 - spec.num_speculative_blocks, self.lengths.get(key)
            below = [] if length is None else [index for index in range(length - spec.num_speculative_blocks, length) if index < running]
            for index, to_index in zip(below, range(event.first_index - len(below), event.first_index), strict=True):
                self.held[(*key, to_index)] = self.held.pop((*key, index))
            self.lengths[key] = end

    def _touch(self, event: ev.Touch) -> None:
        for index, block in enumerate(event.blocks, start=event.first_index):
            self.held[event.request, event.group, index] = block

    def _release(self, event: ev.Release) -> None:
        for index, block in zip(event.indices, event.blocks, strict=True):
            del self.held[event.request, event.group, index]
            seen = {index, *(at for at, other in enumerate(self.rows.get(event.request, [[]] * 9)[event.group]) if other == block)}
            for at in seen:
                self.released[event.request, event.group, at] = event.cause, self.computed.get(event.request, 0)
                for (step, name), (_, rows) in self.in_flight.items():
                    if name == event.request and at < len(rows[event.group]) and rows[event.group][at] == block:
                        self.lost[step, name].add((event.group, at))
        if self.contract is Contract.SETTLED:
            for block in event.freed:
                self._lose(block, "freed", harms_writes=False)

    def _load(self, event: ev.Load) -> None:
        for blocks in event.blocks:
            for block in blocks:
                self._lose(block, "loaded_over", harms_writes=True)


@pytest.mark.parametrize("contract", [Contract.SETTLED, Contract.STREAM_ORDER])
@pytest.mark.parametrize("path", TRACES, ids=lambda path: path.name)
def test_online_and_hindsight_agree_in_every_count(path: Path, contract: Contract) -> None:
    with path.open("rb") as lines:
        trace = [event for _, event in read_trace(lines, path.name)]
    config: Any = trace[0]
    monitor = Monitor(config, contract)
    for line, event in enumerate(trace, start=1):
        monitor.feed(line, event)
    names = (Property.READ_RESIDENT, Property.ROLLBACK_RESIDENT, Property.WRITE_OWNED)
    results = [monitor.finish().result(name) for name in names]
    online = {(str(result.property), cause): count for result in results for cause, count in result.causes.items()}
    # What a rollback alone breaks, before any step reads it, is no loss by a step.
    online = {key: count for key, count in online.items() if not key[1].startswith("released_before_rollback")}
    assert online == +Hindsight(trace, contract).found
