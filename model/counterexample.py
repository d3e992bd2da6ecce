"""A solver's trace told as events: the numbers of a shortest violation become a trace in schema v1, with tables and blocks.

The engine's choices come from the solver, and every formula from the model: this file evaluates the same transitions on integers, for
each entry of the table instead of one, and keeps a pool whose free queue has vLLM's order.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass

from settled.model import counters as count
from settled.model.algebra import IntTerm, Term, constant_value
from settled.model.counters import Counters
from settled.model.disciplines import Discipline, FreeBasis, Rounding
from settled.model.events import (
    SCHEMA_VERSION,
    Add,
    Allocate,
    Computed,
    Config,
    End,
    Event,
    Finish,
    Preempt,
    Process,
    ProcessedRequest,
    Release,
    ReleaseCause,
    Schedule,
    ScheduledRequest,
    Touch,
)
from settled.model.explicit import Choice, Move
from settled.model.kinds import SlidingWindow, ceil_div
from settled.model.search.bounded import Shortest
from settled.model.specs import SlidingWindowSpec

REQUEST = "A"
NUM_BLOCKS = 16


def events_of(shortest: Shortest, discipline: Discipline) -> list[Event]:
    """The trace: a config, the request, and what each choice does. Raises IndexError if the trace needs more than 15 blocks."""
    return list(_Narrator(shortest, discipline).events())


@dataclass
class _Unprocessed:
    """A step in the queue, as the narrator needs it (tokens)."""

    number: int
    start: int
    tokens: int
    drafts: int


class _Narrator:
    """Plays the choices on a table of blocks."""

    def __init__(self, shortest: Shortest, discipline: Discipline) -> None:
        self.shortest, self.discipline = shortest, discipline
        self.kind = SlidingWindow(shortest.window)
        self.counters = Counters(0, 0, 0)
        self.table: list[int] = []
        self.queue: deque[_Unprocessed] = deque()
        self.free = deque(range(1, NUM_BLOCKS))
        self.references: Counter[int] = Counter()
        self.cached: list[int] = []  # the prompt's full blocks, in order, once computed
        self.deferred: deque[tuple[int, list[int]]] = deque()  # (last step to wait for, table)
        self.row_length = 0
        self.resumed = False
        self.steps = 0
        self.prefix_caching = any(choice.hit for choice in shortest.choices)

    def events(self) -> Iterator[Event]:
        yield self._config()
        yield Add(request=REQUEST, prompt_tokens=self.shortest.prompt)
        for choice in self.shortest.choices:
            match choice.move:
                case Move.SCHEDULE:
                    yield from self._schedule(choice)
                case Move.PROCESS:
                    yield from self._process(choice)
                case Move.PREEMPT:
                    yield Preempt(request=REQUEST, output="drop")
                    yield from self._give_up_table("preempt")
                    self.resumed = True
                case Move.FINISH:
                    yield Finish(request=REQUEST, reason="abort")
                    if self.shortest.connector:
                        yield from self._prune(self.discipline.finish_basis, "connector_finish")
                    yield from self._give_up_table("abort")
        yield End(idle=False)

    def _config(self) -> Config:
        schedules = [choice for choice in self.shortest.choices if choice.move == Move.SCHEDULE]
        return Config(
            schema=SCHEMA_VERSION,
            engine=f"counterexample ({self.discipline.name})",
            num_blocks=NUM_BLOCKS,
            max_in_flight_steps=max(1, len(schedules)),
            max_batched_tokens=max([1, *(_number(choice.tokens) for choice in schedules)]),
            num_draft_tokens=max([0, *(_number(choice.drafts) for choice in schedules)]),
            prefix_caching=self.prefix_caching,
            kv_consumer=True,
            groups=(SlidingWindowSpec(block_size=self.shortest.block_size, window=self.shortest.window),),
            records=("counters",),
        )

    # ---- schedule ----------------------------------------------------------------------------------------------------

    def _schedule(self, choice: Choice) -> Iterator[Event]:
        tokens, drafts, hit = _number(choice.tokens), _number(choice.drafts), _number(choice.hit)
        if hit:
            yield from self._hit(hit)
        else:
            yield from self._prune(self.discipline.free_basis, "window")
        start = _number(self.counters.computed)
        yield from self._allocate(start + tokens)
        self.counters = _numbers(count.schedule(self.counters, tokens))
        self.steps += 1
        self.queue.append(_Unprocessed(self.steps, start, tokens, drafts))
        known = min(start + tokens, self.shortest.prompt) // self.shortest.block_size
        self.cached += [block for block in self.table[len(self.cached) : known] if self.prefix_caching]
        resumed, self.resumed = self.resumed, False
        new_blocks = self.table[0 if resumed else self.row_length :]
        self.row_length = len(self.table)
        entry = ScheduledRequest(
            request=REQUEST,
            start=start,
            tokens=tokens,
            drafts=drafts,
            new_blocks=(tuple(new_blocks),),
            resumed=resumed,
            counters=self._counters(),
        )
        yield Schedule(step=self.steps, requests=(entry,))

    def _hit(self, hit: int) -> Iterator[Event]:
        """The prefix of `hit` tokens enters the table; entries that the mask does not need any more stay null."""
        size = self.shortest.block_size
        for index, block in enumerate(self.cached[: hit // size]):
            skipped = self.kind.frees_block(index * size, (index + 1) * size - 1, hit, Rounding.FLOOR)
            self.table.append(0 if _truth(skipped) else block)
        touched = tuple(block for block in self.table if block)
        for block in touched:
            if self.references[block] == 0:
                self.free.remove(block)
            self.references[block] += 1
        self.counters = _numbers(count.resume(self.counters, hit))
        if touched:
            yield Touch(request=REQUEST, group=0, first_index=self.table.index(touched[0]), blocks=touched)
        yield Computed(request=REQUEST, computed=hit, cause="hit", stale=False, local=hit)

    def _allocate(self, end: int) -> Iterator[Event]:
        first = len(self.table)
        blocks = tuple(self.free.popleft() for _ in range(first, _number(ceil_div(end, self.shortest.block_size))))
        self.table += blocks
        self.references.update(blocks)
        if blocks:
            yield Allocate(request=REQUEST, group=0, first_index=first, blocks=blocks)

    # ---- release -----------------------------------------------------------------------------------------------------

    def _prune(self, basis: FreeBasis, cause: ReleaseCause) -> Iterator[Event]:
        size = self.shortest.block_size
        settled = count.free_basis(self.counters, basis)
        indices = tuple(
            index
            for index, block in enumerate(self.table)
            if block and _truth(self.kind.frees_block(index * size, (index + 1) * size - 1, settled, self.discipline.rounding))
        )
        if indices:
            yield self._release(indices, [self.table[index] for index in indices], cause)
            for index in indices:
                self.table[index] = 0

    def _give_up_table(self, cause: ReleaseCause) -> Iterator[Event]:
        self.counters = _numbers(count.preempt(self.counters, self.discipline))
        table, self.table, self.row_length = self.table, [], 0
        if self.discipline.fence and self.queue:
            self.deferred.append((self.steps, table))
        else:
            yield from self._release_table(table, cause)

    def _release_table(self, table: list[int], cause: ReleaseCause) -> Iterator[Event]:
        indices = tuple(index for index, block in enumerate(table) if block)
        if indices:
            yield self._release(indices, [table[index] for index in indices], cause)

    def _release(self, indices: tuple[int, ...], blocks: list[int], cause: ReleaseCause) -> Release:
        """Blocks that the prefix cache knows go to the tail of the free queue, the others to its head; the last of a table first."""
        self.references.subtract(blocks)
        freed = [block for block in blocks if self.references[block] == 0]
        self.free.extendleft(block for block in freed if block not in self.cached)
        self.free.extend(block for block in reversed(freed) if block in self.cached)
        return Release(request=REQUEST, group=0, indices=indices, blocks=tuple(blocks), cause=cause, freed=tuple(freed))

    # ---- process -----------------------------------------------------------------------------------------------------

    def _process(self, choice: Choice) -> Iterator[Event]:
        step = self.queue.popleft()
        rejected = _number(choice.rejected)
        self.counters = _numbers(count.process(self.counters, step.tokens, rejected, self.discipline))
        samples = step.start + step.tokens >= self.shortest.prompt
        output = ProcessedRequest(
            request=REQUEST,
            sampled=1 + step.drafts - rejected if samples else 0,
            rejected=rejected,
            counters=self._counters(),
        )
        yield Process(step=step.number, requests=(output,))
        while self.deferred and self.deferred[0][0] <= step.number:
            yield from self._release_table(self.deferred.popleft()[1], "deferred")

    def _counters(self) -> tuple[int, int, int]:
        return (_number(self.counters.computed), _number(self.counters.in_flight), _number(self.counters.stale))


def _number(value: IntTerm | int) -> int:
    number = constant_value(value) if isinstance(value, Term) else value
    assert number is not None
    return int(number)


def _numbers(counters: Counters) -> Counters:
    return Counters(*(_number(value) for value in counters))


def _truth(term: Term) -> bool:
    truth = constant_value(term)
    assert truth is not None
    return bool(truth)
