"""A recorded run, seen through one arbitrary request, step, token and block: the states and the actions of the tracked environment.

Nothing here uses the model's formulas. Tables, rows, holders and counters are kept by plain bookkeeping over the events, and the counters
are compared with those that the engine recorded. What comes out are `Moment`s: the state before, the action's name with what it chose,
and the state after; the test evaluates the proved transition relation on them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from settled.model import events as ev
from settled.reference.pool import PRUNE_FENCE

_OF_ALLOCATION = (ev.Allocate, ev.Touch, ev.Computed)
_Holder = tuple[str, int, int, int]  # request, generation, group, index; or the fence, and which prune


@dataclass(frozen=True)
class Constants:
    """What is tracked. `index` is the table index of the token's block in `group`."""

    request: str
    group: int
    step: int
    token: int
    block: int
    index: int
    lookahead: int


@dataclass(frozen=True)
class Moment:
    """One action: its name, its choices, the projected states around it, and the line of the trace that it comes from."""

    line: int
    action: str
    choices: dict[str, Any]
    before: dict[str, Any]
    after: dict[str, Any]


@dataclass
class InFlight:
    """An unprocessed step of the tracked request (tokens)."""

    number: int
    start: int
    tokens: int
    drafts: int
    generation: int
    stale: bool = False


@dataclass
class Projection:
    """The bookkeeping. `table`: the present generation's entries; `holders`: references on the block by anybody."""

    constants: Constants
    computed: int = 0
    finished: bool = False
    queue: list[InFlight] = field(default_factory=list)
    table: dict[int, int | None] = field(default_factory=dict)
    holders: Counter[_Holder] = field(default_factory=Counter)
    generation: Counter[str] = field(default_factory=Counter)
    row: tuple[bool, bool] = (False, False)  # held, is b
    stale_ahead: int = 0
    ended_settled: int = 0
    unordered: bool = False
    unwaited: bool = False
    kept: bool = False  # the table gave the row's block up while the step was in flight, and a fence keeps it
    prune_fence: bool = False  # what is pruned waits
    pinned: Counter[int] = field(default_factory=Counter)  # pruned blocks that wait, told before their release
    aside: int = 0  # prunes of the block, all told: each becomes a holder of its own
    last_step: dict[str, int] = field(default_factory=lambda: {"start": 0, "tokens": 0, "drafts": 0, "ahead": 0})
    step_was_stale: bool = False
    moments: list[Moment] = field(default_factory=list)
    line: int = 0

    # ---- the state -------------------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        constants = self.constants
        step = next((entry for entry in self.queue if entry.number == constants.step), None)
        entry_block = self.table.get(constants.index)
        is_b = entry_block == constants.block
        fenced = bool(step and self.kept)
        mine = int(is_b) + int(fenced and self.row[1])
        references = sum(self.holders.values())
        return {
            "computed": self.computed,
            "in_flight": sum(entry.tokens for entry in self.queue),
            "stale": sum(entry.tokens for entry in self.queue if entry.stale),
            "step.unprocessed": step is not None,
            "step.stale": step.stale if step else self.step_was_stale,
            "step.start": step.start if step else self.last_step["start"],
            "step.tokens": step.tokens if step else self.last_step["tokens"],
            "step.drafts": step.drafts if step else self.last_step["drafts"],
            "step.ahead": self._ahead(step) if step else self.last_step["ahead"],
            "entry.held": entry_block is not None,
            "entry.pruned": constants.index in self.table and entry_block is None,
            "entry_is_b": is_b,
            "row_held": self.row[0],
            "row_is_b": self.row[1],
            "fenced": fenced,
            "stale_ahead": self.stale_ahead,
            "ended_settled": self.ended_settled,
            "b.references": references,
            "b.free": references == 0,
            "others": references - mine,
            "unordered": self.unordered,
            "unwaited": self.unwaited,
        }

    def _ahead(self, step: InFlight) -> int:
        before = self.queue[: self.queue.index(step)]
        return sum(entry.tokens for entry in before if entry.generation == step.generation)

    def _act(self, action: str, choices: dict[str, Any], before: dict[str, Any]) -> None:
        self.moments.append(Moment(self.line, action, choices, before, self.state()))

    # ---- what happens ----------------------------------------------------------------------------------------------

    def schedule(self, entry: ev.ScheduledRequest | None, number: int, segment: Sequence[ev.Event]) -> None:
        """One allocation of the tracked request: its prune, its hit, its fresh blocks, and the step if it is scheduled."""
        constants = self.constants
        hit = [event for event in segment if isinstance(event, ev.Computed)]
        pruned = {index for event in segment if isinstance(event, ev.Release) and event.group == constants.group for index in event.indices}
        if hit:
            self._start_with_hit(hit[0].computed, segment)
        if entry is None:
            self._prune(pruned)
            self._environment(segment, allocations=True)
            return
        if constants.index in pruned and self._takes_elsewhere(segment):
            self._prune(pruned)  # what this very prune frees goes out again at once: the prune comes first
            pruned = set()
        # The tracked group's other blocks, and those of other groups, are the environment's doing; they come first.
        self._environment(segment, allocations=True)
        if constants.index in pruned and self.prune_fence and not self.pinned[constants.block]:
            self._prune(pruned)  # nothing is in flight: the block goes back before the schedule
            pruned = set()
        before = self.state()
        self._forget(pruned)
        fresh = self._fresh(segment)
        self._note_step(entry, number)
        choices = {
            "tokens": entry.tokens,
            "drafts": entry.drafts,
            "prunes": constants.index in pruned,
            "picks_b": fresh.get(constants.index) == constants.block,
        }
        self._act("schedule the step" if number == constants.step else "schedule another step", choices, before)

    def _start_with_hit(self, tokens: int, segment: Sequence[ev.Event]) -> None:
        constants = self.constants
        touched = {
            event.first_index + offset: block
            for event in segment
            if isinstance(event, ev.Touch) and event.group == constants.group
            for offset, block in enumerate(event.blocks)
        }
        for event in segment:
            if isinstance(event, ev.Touch):
                self._touch_others(event)
        before = self.state()
        covered = range(tokens // self.block_size)
        self.table = {index: touched.get(index) for index in covered}
        if touched.get(constants.index) == constants.block:
            self.holders[self._own_key()] += 1
        self.computed = tokens
        skips = constants.index in covered and constants.index not in touched
        choices = {"hit": tokens, "prunes": skips, "picks_b": touched.get(constants.index) == constants.block}
        self._act("start with a prefix-cache hit", choices, before)

    block_size: int = 1

    def _own_key(self) -> tuple[str, int, int, int]:
        constants = self.constants
        return (constants.request, self.generation[constants.request], constants.group, constants.index)

    def _touch_others(self, event: ev.Touch) -> None:
        for offset, block in enumerate(event.blocks):
            index = event.first_index + offset
            key = (event.request, self.generation[event.request], event.group, index)
            if block == self.constants.block and key != self._own_key():
                before = self.state()
                self.holders[key] += 1
                self._act("another request hits b", {}, before)

    def _takes_elsewhere(self, segment: Sequence[ev.Event]) -> bool:
        """Whether the block is allocated to another entry of the request."""
        constants = self.constants
        return any(
            isinstance(event, ev.Allocate)
            and constants.block in event.blocks
            and (event.group, event.first_index + event.blocks.index(constants.block)) != (constants.group, constants.index)
            for event in segment
        )

    def _prune(self, pruned: set[int]) -> None:
        """A prune by itself; behind a fence the block goes to the fence first, and at once from there if nothing is in flight."""
        before = self.state()
        freed = self._forget(pruned)
        self._act("prune before a connector's finish", {"prunes": self.constants.index in pruned}, before)
        if freed is not None:
            self._let_go(freed)

    def _forget(self, pruned: set[int]) -> _Holder | None:
        """Nulls entries; the holder that the tracked block's reference passed to, if a fence let it go at once."""
        constants = self.constants
        entry_block = self.table.get(constants.index)
        for index in pruned:
            self.table[index] = None
        if constants.index not in pruned:
            return None
        if not self.prune_fence:
            self.holders.pop(self._own_key(), None)
            return None
        step = next((entry for entry in self.queue if entry.number == constants.step), None)
        self.kept |= bool(step and not step.stale and self.row[0] and entry_block is not None)
        if entry_block != constants.block:
            return None
        holder = self._set_aside(self._own_key())
        return None if self._was_pinned(constants.block) else holder

    def _set_aside(self, key: _Holder) -> _Holder:
        """The reference passes to the fence."""
        self.aside += 1
        holder = (PRUNE_FENCE, self.aside, 0, 0)
        self.holders[holder] = self.holders.pop(key)
        return holder

    def _was_pinned(self, block: int) -> bool:
        is_pinned = self.pinned[block] > 0
        self.pinned[block] -= is_pinned
        return is_pinned

    def pin(self, event: ev.Hold) -> None:
        """Blocks of prunes that are told next, and that wait."""
        assert self.prune_fence
        self.pinned.update(event.blocks)

    def drop(self, event: ev.Drop) -> None:
        """The steps before a prune are processed: its blocks leave the fence."""
        for block in event.blocks:
            if block == self.constants.block:
                self._let_go(min(key for key in self.holders if key[0] == PRUNE_FENCE))

    def _let_go(self, holder: _Holder) -> None:
        before = self.state()
        self.holders.pop(holder)
        self._act("another request releases b", {}, before)

    def _fresh(self, segment: Sequence[ev.Event]) -> dict[int, int]:
        fresh = {
            event.first_index + offset: block
            for event in segment
            if isinstance(event, ev.Allocate) and event.group == self.constants.group
            for offset, block in enumerate(event.blocks)
        }
        self.table.update(fresh)
        if fresh.get(self.constants.index) == self.constants.block:
            self.holders[self._own_key()] += 1
        return fresh

    def _note_step(self, entry: ev.ScheduledRequest, number: int) -> None:
        assert entry.start == self.computed, f"line {self.line}: start {entry.start}, but {self.computed} tokens are computed"
        self.queue.append(InFlight(number, entry.start, entry.tokens, entry.drafts, self.generation[self.constants.request]))
        self.computed += entry.tokens
        if number == self.constants.step:
            block = self.table.get(self.constants.index)
            self.row = (block is not None, block == self.constants.block)
            self.kept = self.unordered = self.unwaited = False

    def process(self, output: ev.ProcessedRequest, number: int) -> None:
        before = self.state()
        entry = self.queue.pop(0)
        assert entry.number == number, f"line {self.line}: step {number} is processed before step {entry.number}"
        if not entry.stale:
            self.computed -= output.rejected
        for later in self.queue:
            if later.generation == entry.generation:
                later.start -= output.rejected
        same = self._move_ghosts(entry, output.rejected)
        if number == self.constants.step:
            self.last_step = {"start": entry.start, "tokens": entry.tokens, "drafts": entry.drafts, "ahead": 0}
            self.step_was_stale = entry.stale
            action = "process the step, stale" if entry.stale else "process the step, live"
        elif entry.stale:
            action = "process a stale step"
        elif before["step.unprocessed"] and not before["step.stale"]:
            action = "process a live step before the step"
        else:
            action = "process a live step"
        self._act(action, {"tokens": entry.tokens, "rejected": output.rejected, "same": same}, before)
        if output.counters is not None and not self.finished:
            after = self.moments[-1].after
            expected = (after["computed"], after["in_flight"], after["stale"])
            assert output.counters == expected, f"line {self.line}: recorded {output.counters}, projected {expected}"

    def _move_ghosts(self, processed: InFlight, rejected: int) -> bool:
        """What the proof remembers of a stale step's generation; whether the processed step is of it."""
        step = next((entry for entry in self.queue if entry.number == self.constants.step), None)
        if step is None or not step.stale:
            return False
        same = step.generation == processed.generation
        if same:
            self.ended_settled += processed.tokens - rejected
        else:
            self.stale_ahead -= processed.tokens
        return same

    def end_generation(self, *, finished: bool) -> None:
        before = self.state()
        if before["step.unprocessed"] and not before["step.stale"]:
            self.kept |= self.row[0] and before["entry.held"]
            self.stale_ahead, self.ended_settled = before["stale"], before["computed"] - before["in_flight"] + before["stale"]
        self.generation[self.constants.request] += 1  # the old entries keep their holders: the fence, or a release to come
        self.computed, self.table = 0, {}
        for entry in self.queue:
            entry.stale = True
        self.finished = finished
        self._act("preempt, finish or abort", {}, before)

    # ---- everybody else --------------------------------------------------------------------------------------------

    def _environment(self, segment: Sequence[ev.Event], *, allocations: bool) -> None:
        """What the tracked request does elsewhere than at the tracked entry, as another holder would."""
        for event in segment:
            match event:
                case ev.Allocate() if allocations:
                    self._take(event, "another request allocates b", self._how_it_writes())
                case ev.Release():
                    self.release(event)

    def _take(self, event: ev.Allocate | ev.Touch, action: str, choices: dict[str, Any]) -> None:
        constants = self.constants
        for offset, block in enumerate(event.blocks):
            index = event.first_index + offset
            mine = event.request == constants.request and event.group == constants.group and index == constants.index
            if block == constants.block and not mine:
                before = self.state()
                self.holders[event.request, self.generation[event.request], event.group, index] += 1
                self.unordered |= not choices.get("ordered", True)
                self.unwaited |= not choices.get("waits", True)
                self._act(action, choices, before)

    def _how_it_writes(self) -> dict[str, bool]:
        """Runs have no loads, so who writes is a step in order; that it were not is made up, a different way on different lines."""
        return {"ordered": self.line % 3 != 0, "waits": self.line % 5 != 0}

    def others_take(self, event: ev.Allocate | ev.Touch) -> None:
        if isinstance(event, ev.Allocate):
            self._take(event, "another request allocates b", self._how_it_writes())
        else:
            self._take(event, "another request hits b", {})

    def release(self, event: ev.Release) -> None:
        """References given up elsewhere than by the tracked entry's own prune."""
        constants = self.constants
        for index, block in zip(event.indices, event.blocks, strict=True):
            own_prune = (event.request, event.group, index) == (constants.request, constants.group, constants.index)
            if block != constants.block or (own_prune and event.cause in ("window", "connector_finish")):
                continue
            key = min(key for key in self.holders if (key[0], key[2], key[3]) == (event.request, event.group, index))
            if event.cause in ("window", "connector_finish") and self._was_pinned(block):
                self._set_aside(key)
            else:
                self._let_go(key)


def project(events: Sequence[ev.Event], constants: Constants, *, prune_fence: bool = False) -> list[Moment]:
    """The moments of a recorded run, for one choice of what is tracked. `prune_fence`: the engine has one."""
    config = events[0]
    assert isinstance(config, ev.Config)
    projection = Projection(constants, block_size=config.groups[constants.group].block_size, prune_fence=prune_fence)
    lines = list(enumerate(events, start=1))
    position = 1
    while position < len(lines):
        position = _take_one(projection, lines, position)
    return projection.moments


def _take_one(projection: Projection, lines: Sequence[tuple[int, ev.Event]], position: int) -> int:
    constants = projection.constants
    line, event = lines[position]
    projection.line = line
    if _belongs(event, constants.request):
        segment, position = _segment(projection, lines, position, constants.request)
        entry, number = _scheduled(lines, position, constants.request)
        projection.schedule(entry, number, segment)
        return position
    match event:
        case ev.Schedule():
            for entry in event.requests:
                if entry.request == constants.request and not any(step.number == event.step for step in projection.queue):
                    projection.schedule(entry, event.step, ())
        case ev.Process():
            for output in event.requests:
                if output.request == constants.request:
                    projection.process(output, event.step)
        case ev.Preempt() | ev.Finish() if event.request == constants.request:
            position = _end(projection, lines, position, event)
        case ev.Preempt() | ev.Finish():
            projection.generation[event.request] += 1
        case ev.Allocate() | ev.Touch():
            projection.others_take(event)
        case ev.Release():
            projection.release(event)
        case ev.Hold(holder=holder) if holder == PRUNE_FENCE:
            projection.pin(event)
        case ev.Drop(holder=holder) if holder == PRUNE_FENCE:
            projection.drop(event)
    return position + 1


def _belongs(event: ev.Event, request: str) -> bool:
    """Whether the event is part of an allocation of the request."""
    if isinstance(event, ev.Release):
        return event.request == request and event.cause == "window"
    return isinstance(event, _OF_ALLOCATION) and event.request == request


def _segment(projection: Projection, lines: Sequence[tuple[int, ev.Event]], position: int, request: str) -> tuple[list[ev.Event], int]:
    """The events of one allocation, and the position after them; cache events are between them."""
    segment: list[ev.Event] = []
    pins: list[ev.Hold] = []
    while position < len(lines):
        event = lines[position][1]
        if _belongs(event, request):
            segment.append(event)
        elif isinstance(event, ev.Hold) and event.holder == PRUNE_FENCE:
            pins.append(event)
        elif not isinstance(event, ev.Cache | ev.Evict):
            break
        position += 1
    for pin in pins:
        projection.pin(pin)
    return segment, position


def _scheduled(lines: Sequence[tuple[int, ev.Event]], position: int, request: str) -> tuple[ev.ScheduledRequest | None, int]:
    """The request's part in the schedule that ends this call, if no other allocation of it comes before."""
    for _, event in islice(lines, position, None):
        if isinstance(event, ev.Schedule):
            entry = next((entry for entry in event.requests if entry.request == request), None)
            return entry, event.step
        if _belongs(event, request) or isinstance(event, ev.Process | ev.Finish | ev.End):
            return None, -1
        if isinstance(event, ev.Preempt) and event.request == request:
            return None, -1
    return None, -1


def _end(projection: Projection, lines: Sequence[tuple[int, ev.Event]], position: int, event: ev.Preempt | ev.Finish) -> int:
    """The end of a generation; a finish comes after the prune that a connector asks for, which the trace shows after it."""
    if isinstance(event, ev.Preempt):
        projection.end_generation(finished=False)
        return position
    pruned: set[int] = set()
    while position + 1 < len(lines):
        release = lines[position + 1][1]
        if isinstance(release, ev.Hold) and release.holder == PRUNE_FENCE:
            projection.pin(release)
            position += 1
            continue
        if not (isinstance(release, ev.Release) and release.cause == "connector_finish"):
            break
        if release.group == projection.constants.group:
            pruned.update(release.indices)
        projection.release(release)
        position += 1
    projection._prune(pruned)
    projection.end_generation(finished=True)
    return position
