"""The system of Mamba's slots against the reference: every event of random runs, seen through one index of a request's table and one step.

Tables and rows are kept by plain bookkeeping over the events; the model's own actions, evaluated on integers, must allow each event and
lead to what the tables and rows then hold.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from settled.model import align
from settled.model import events as ev
from settled.model.algebra import Term, as_bool, as_int, both
from settled.model.align import Align, AlignSystem, SlotStep
from settled.model.disciplines import OPTIMISTIC, RIGHT, VLLM, Discipline
from settled.model.interpret import compile_terms
from settled.model.specs import MambaSpec
from settled.model.trace_io import read_trace
from settled.model.values import leaves
from settled.reference.workload import random_workload, run_workload

STATE = align.symbolic_align()
SYSTEM = AlignSystem(RIGHT)
NAMES = [leaf.args[0] for leaf in leaves(STATE)]
CHOICES = ["tokens", "drafts", "rejected", "hit", "running slot", "prunes"]
CONSTANTS = ["first", "last", "slots", "drafts a step"]


def _compiled(*terms: Any) -> Callable[..., tuple[Any, ...]]:
    made = [term if isinstance(term, Term) else as_bool(term) if isinstance(term, bool) else as_int(term) for term in terms]
    return compile_terms(made, [*NAMES, *CHOICES, *CONSTANTS])


ACTIONS = {a.name: (list(a.guard), _compiled(both(), *a.guard.values()), _compiled(*leaves(a.after))) for a in align.actions(STATE, SYSTEM)}
USES = _compiled(align.may_read(STATE.step, SYSTEM), align.may_write(STATE.step, SYSTEM))


@dataclass
class Unprocessed:
    """A step of the request: its number, tokens, drafts, and which generation it is of."""

    number: int
    tokens: int
    drafts: int
    generation: int


@dataclass
class Follower:
    """One request's table of one group, at one index, with one tracked step."""

    request: str
    group: int
    spec: MambaSpec
    index: int
    step: int
    state: Align = align.NO_TABLE
    table: list[int] = field(default_factory=list)
    row: list[int] = field(default_factory=list)
    queue: list[Unprocessed] = field(default_factory=list)
    begun: bool = False
    generation: int = 0
    tracked_generation: int = -1
    seen: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)

    def take(self, event: ev.Event) -> None:
        match event:
            case ev.Allocate() | ev.Touch() if self._is_mine(event):
                missing = event.first_index - len(self.table)
                self.table += [0] * missing
                self.table[event.first_index :] = event.blocks
            case ev.Move() if self._is_mine(event):
                self.table += [0] * (event.to_index + 1 - len(self.table))
                self.table[event.to_index], self.table[event.from_index] = event.block, 0
            case ev.Release() if self._is_mine(event) and event.cause == "window":
                for index in event.indices:
                    self.table[index] = 0
            case ev.Schedule():
                for entry in event.requests:
                    if entry.request == self.request:
                        self._schedule(event.step, entry)
            case ev.Process():
                for output in event.requests:
                    if output.request == self.request:
                        self._process(event.step, output.rejected)
            case ev.Preempt() | ev.Finish() if event.request == self.request:
                self._end()

    def _is_mine(self, event: Any) -> bool:
        return bool(event.request == self.request and event.group == self.group)

    def _schedule(self, number: int, entry: ev.ScheduledRequest) -> None:
        fresh = entry.new_blocks[self.group]
        self.row = list(fresh) if entry.resumed else [*self.row, *fresh]
        end, size = entry.start + entry.tokens, self.spec.block_size
        running = (-(-end // size) - 1) * size
        kind = "schedule" if self.begun else "start"
        chosen = {"tokens": entry.tokens, "drafts": entry.drafts, "running slot": running, "hit": 0 if self.begun else entry.start}
        self.begun = True
        self.queue.append(Unprocessed(number, entry.tokens, entry.drafts, self.generation))
        if number == self.step:
            self.tracked_generation = self.generation
        self._act(f"{kind} the step" if number == self.step else f"{kind} another step", chosen)
        self._compare(number == self.step)

    def _process(self, number: int, rejected: int) -> None:
        step = self.queue.pop(0)
        assert step.number == number
        chosen = {
            "tokens": step.tokens,
            "drafts": step.drafts,
            "rejected": min(rejected, step.drafts),
        }  # what a stop trims is not computed on
        tracked = self.state.step
        stale, before = step.generation < self.generation, tracked.unprocessed and step.generation == self.tracked_generation
        if number == self.step:
            self._act("process the step, stale" if stale else "process the step", chosen)
        elif not stale:
            self._act("process a step before the step" if before else "process another step", chosen)
        elif before:
            self._act("process a stale step before the step", chosen)

    def _end(self) -> None:
        self._act("preempt, finish or abort", {})
        self.table, self.begun = [], False
        self.generation += 1

    def _act(self, name: str, chosen: dict[str, int]) -> None:
        guards, evaluate, after = ACTIONS[name]
        values = self._values(chosen)
        self.seen[name] += 1
        for guard, holds in zip(guards, evaluate(*values)[1:], strict=True):
            if not holds:
                self.problems.append(f"{name} {chosen}: the guard {guard!r} does not hold in {self.state}")
        numbers = after(*values)
        *counts, held, named = numbers[:7]
        self.state = Align(*counts, held=bool(held), named=bool(named), step=SlotStep._make(numbers[7:]))
        step = self.state.step
        if step.unprocessed and any(USES(*self._values({}))):
            self.seen["used"] += 1
            if not step.row_held:
                self.problems.append(f"{name} {chosen}: a slot that may be used is null in {self.state}")

    def _values(self, chosen: dict[str, int]) -> list[Any]:
        size = self.spec.block_size
        choices = {"tokens": 1, "drafts": 0, "rejected": 0, "hit": 0, "running slot": 0, "prunes": 1, **chosen}
        slots = self.spec.num_speculative_blocks
        return [
            *leaves(self.state),
            *(choices[name] for name in CHOICES),
            self.index * size,
            (self.index + 1) * size - 1,
            slots * size,
            slots,
        ]

    def _compare(self, is_tracked: bool) -> None:
        """The table and the row at the index, and where the table ends, after a schedule."""
        held = self.index < len(self.table) and self.table[self.index] != 0
        named = self.index < len(self.row) and self.row[self.index] != 0
        told = {"held": held, "named": named, "edge": len(self.table) * self.spec.block_size}
        if is_tracked:
            told["row"] = named
        mine = {"held": self.state.held, "named": self.state.named, "edge": self.state.edge, "row": self.state.step.row_held}
        wrong = {name: (value, mine[name]) for name, value in told.items() if value != mine[name]}
        if wrong:
            self.problems.append(f"(engine, model) differ in {wrong}: {self.table}, {self.state}")


def _by_request(events: Iterable[ev.Event]) -> dict[str, list[ev.Event]]:
    """The events that speak of each request, in order."""
    about: dict[str, list[ev.Event]] = defaultdict(list)
    for event in events:
        if isinstance(event, ev.Schedule | ev.Process):
            for part in event.requests:
                about[part.request].append(event)
        elif isinstance(event, ev.Allocate | ev.Touch | ev.Move | ev.Release | ev.Preempt | ev.Finish):
            about[event.request].append(event)
    return about


def follow(seeds: range, discipline: Discipline) -> tuple[Counter[str], list[str]]:
    """Random runs whose drafts fit a block, each through several indices and steps: what was met, and where the two differ."""
    seen: Counter[str] = Counter()
    problems: list[str] = []
    for seed in seeds:
        workload = random_workload(seed, kinds=("full", "mamba align"))
        specs = list(enumerate(workload.config.groups))
        groups = [(g, spec) for g, spec in specs if isinstance(spec, MambaSpec) and spec.block_size > spec.num_speculative_blocks]
        if not groups:
            continue
        events: list[ev.Event] = []
        run_workload(workload, discipline=discipline, steps=60, sink=events.append)
        seen["move"] += sum(isinstance(event, ev.Move) for event in events)
        about = _by_request(events)
        rng = random.Random(seed)
        scheduled = [(event.step, entry.request) for event in events if isinstance(event, ev.Schedule) for entry in event.requests]
        for step, request in rng.sample(scheduled, min(12, len(scheduled))):
            group, spec = rng.choice(groups)
            follower = Follower(request, group, spec, rng.randint(0, 6), step)
            for event in about[request]:
                follower.take(event)
            seen += follower.seen
            problems += follower.problems
    return seen, problems


@pytest.mark.parametrize("discipline", [RIGHT, VLLM], ids=lambda discipline: discipline.name)
def test_the_system_of_slots_follows_the_reference(discipline: Discipline) -> None:
    seen, problems = follow(range(150), discipline)
    assert not problems, "\n".join(problems[:3])
    assert {name: seen[name] for name in [*ACTIONS, "used", "move"] if seen[name] < 10} == {}


def test_an_engine_that_frees_too_early_is_told_apart() -> None:
    assert follow(range(60), OPTIMISTIC)[1]


# ---- how many slots are held -----------------------------------------------------------------------------------------


def most_held(events: Iterable[ev.Event], group: int) -> int:
    """The most blocks that one request's table holds in a group, by the block events alone."""
    tables: dict[str, set[int]] = defaultdict(set)
    most = 0
    for event in events:
        match event:
            case ev.Allocate() | ev.Touch() if event.group == group:
                tables[event.request] |= set(event.blocks) - {0}
                most = max(most, len(tables[event.request]))
            case ev.Release() if event.group == group:
                tables[event.request] -= set(event.blocks)
            case ev.Preempt() | ev.Finish():
                tables[event.request] = set()  # a fence may keep its blocks, but not as a table's
    return most


@pytest.mark.slow
def test_a_table_holds_a_slot_for_each_step_in_flight_one_to_start_from_and_those_for_drafts() -> None:
    """1 + D + K at most, which is reached. vLLM sizes for 2 + K, which is what a synchronous engine holds."""
    beyond_drafts: dict[int, int] = defaultdict(int)
    for seed in range(400):
        workload = random_workload(seed, kinds=("full", "mamba align"))
        groups = [(g, spec) for g, spec in enumerate(workload.config.groups) if isinstance(spec, MambaSpec)]
        fitting = [(g, spec.num_speculative_blocks) for g, spec in groups if spec.block_size > spec.num_speculative_blocks]
        if fitting:
            events: list[ev.Event] = []
            run_workload(workload, discipline=RIGHT, steps=40, sink=events.append)
            depth = workload.config.max_in_flight_steps
            beyond_drafts[depth] = max(beyond_drafts[depth], *(most_held(events, g) - drafts for g, drafts in fitting))
    assert beyond_drafts == {depth: 1 + depth for depth in (1, 2, 3, 4)}


@pytest.mark.parametrize("release", ["0.26.0", "0.29.0", "0.33.0"])
def test_real_releases_hold_one_slot_more_than_they_size_for(release: str) -> None:
    """K = 3 and two steps in flight: 6 blocks, and 2 + K is 5. The affected 0.25.1 freed earlier and held 5."""
    assert most_held(recorded(release), 1) == 6
    assert most_held(recorded("0.25.1"), 1) == 5


def recorded(release: str) -> list[ev.Event]:
    path = Path(__file__).parents[1] / "data" / "traces" / f"v{release}-mamba-align-spec.ndjson"
    with path.open("rb") as lines:
        return [event for _, event in read_trace(lines)]
