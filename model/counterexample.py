"""A solver's trace told as events: the numbers of a shortest violation become a trace in schema v1, with tables and blocks.

The engine's choices come from the solver, and every formula from the model: this file evaluates the same transitions on integers, for
each entry of the table instead of one, and keeps a pool whose free queue has vLLM's order.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from settled.model import counters as count
from settled.model.algebra import IntTerm, Term, constant_value
from settled.model.caps import admission_cap
from settled.model.counters import Counters
from settled.model.disciplines import Discipline, FreeBasis, PruneFence, Rounding
from settled.model.events import (
    SCHEMA_VERSION,
    Add,
    Allocate,
    Computed,
    Config,
    Drop,
    End,
    Event,
    Finish,
    Hold,
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
from settled.model.properties import Property
from settled.model.search.bounded import Shortest
from settled.model.specs import MambaSpec, SlidingWindowSpec

REQUEST, ANOTHER = "A", "B"
NUM_BLOCKS = 16
PRUNE_FENCE = "prune fence"  # who holds pruned blocks that wait, as the reference names it


def events_of(shortest: Shortest, discipline: Discipline) -> list[Event]:
    """The trace: a config, the request, and what each choice does. Raises IndexError if the trace needs more than 15 blocks."""
    return list(_Narrator(shortest, discipline).events())


def decisions_of(shortest: Shortest, discipline: Discipline) -> list[Event]:
    """The config, the request and the steps, without blocks: of a state kind, of which the engine itself must tell where its states go."""
    steps = [choice for choice in shortest.choices if choice.move == Move.SCHEDULE]
    assert len(steps) == len(shortest.choices), "only schedules are told without blocks"
    drafts = shortest.drafts_max
    spec = MambaSpec(block_size=shortest.block_size, mode="align", num_speculative_blocks=drafts)
    config = Config(
        schema=SCHEMA_VERSION,
        engine=f"counterexample ({discipline.name})",
        num_blocks=NUM_BLOCKS,
        max_in_flight_steps=len(steps),
        max_batched_tokens=max(_number(choice.tokens) for choice in steps),
        num_draft_tokens=drafts,
        prefix_caching=False,
        kv_consumer=True,
        groups=(spec,),
    )
    events: list[Event] = [config, Add(request=REQUEST, prompt_tokens=shortest.prompt)]
    start = 0
    for number, choice in enumerate(steps, start=1):
        tokens = _number(choice.tokens)
        entry = ScheduledRequest(request=REQUEST, start=start, tokens=tokens, drafts=0, new_blocks=((),), resumed=False)
        events.append(Schedule(step=number, requests=(entry,)))
        start += tokens
    return [*events, End(idle=False)]


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
        assert isinstance(shortest.kind, SlidingWindow), "only a sliding window's trace is told"
        self.kind = shortest.kind
        self.window = _number(shortest.kind.window)
        self.counters = Counters(0, 0, 0)
        self.table: list[int] = []
        self.queue: deque[_Unprocessed] = deque()
        self.free = deque(range(1, NUM_BLOCKS))
        self.references: Counter[int] = Counter()
        self.cached: list[int] = []  # the prompt's full blocks, in order, once computed
        self.deferred: deque[tuple[int, list[int]]] = deque()  # (last step to wait for, table)
        self.aside: deque[tuple[int, list[int]]] = deque()  # (last step to wait for, pruned blocks)
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
                case Move.ANOTHER:
                    yield from self._another()
        yield End(idle=False)

    def _config(self) -> Config:
        """As deep a pipeline, as large a batch and as long a model as the trace needs; with the cap where the cap is in question."""
        schedules = [choice for choice in self.shortest.choices if choice.move == Move.SCHEDULE]
        depth, batch = _depth(self.shortest.choices), max([1, *(_number(choice.tokens) for choice in schedules)])
        size, length_max = self.shortest.block_size, None
        spec = SlidingWindowSpec(block_size=size, window=self.window)
        if self.shortest.violates.prop is Property.HELD_BOUNDED:
            length_max = self.shortest.prompt + sum(_number(choice.tokens) for choice in schedules) + 2
            in_flight_max = depth * batch if self.discipline.cap_counts_in_flight else 0
            spec = replace(spec, cap=_number(admission_cap(self.kind, size, in_flight_max, length_max)))
        return Config(
            schema=SCHEMA_VERSION,
            engine=f"counterexample ({self.discipline.name})",
            num_blocks=NUM_BLOCKS,
            max_in_flight_steps=depth,
            max_batched_tokens=batch,
            num_draft_tokens=self.shortest.drafts_max,
            max_model_len=length_max,
            prefix_caching=self.prefix_caching,
            kv_consumer=True,
            groups=(spec,),
            records=("counters",) if self.discipline.prune_fence is PruneFence.NONE else ("counters", "holds"),
        )

    # ---- schedule ----------------------------------------------------------------------------------------------------

    def _schedule(self, choice: Choice) -> Iterator[Event]:
        tokens, drafts, hit = _number(choice.tokens), _number(choice.drafts), _number(choice.hit)
        if hit:
            yield from self._hit(hit)
        elif self.discipline.prunes_with_drafts or not drafts:
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
            skipped = self._frees(index, hit, Rounding.FLOOR)
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
        length, size = len(self.table), self.shortest.block_size
        wanted = range(length, _number(ceil_div(end, size)))
        if self.discipline.nulls_at_allocation:
            nulls = [index for index in wanted if _truth(self._frees(index, end - 1, Rounding.FLOOR))]
            self.table += [0] * len(nulls)
            wanted = wanted[len(nulls) :]
        blocks = tuple(self.free.popleft() for _ in wanted)
        self.table += blocks
        self.references.update(blocks)
        if blocks:
            yield Allocate(request=REQUEST, group=0, first_index=wanted[0], blocks=blocks)

    def _frees(self, index: int, basis: IntTerm | int, rounding: Rounding) -> Term:
        """Whether a prune on the basis frees the block at the table index."""
        size = self.shortest.block_size
        return self.kind.frees_block(index * size, (index + 1) * size - 1, basis, rounding)

    def _another(self) -> Iterator[Event]:
        """Another request takes one block."""
        self.steps += 1
        block = self.free.popleft()
        yield Add(request=ANOTHER, prompt_tokens=1)
        yield Allocate(request=ANOTHER, group=0, first_index=0, blocks=(block,))
        entry = ScheduledRequest(request=ANOTHER, start=0, tokens=1, drafts=0, new_blocks=((block,),), resumed=False, counters=(1, 1, 0))
        yield Schedule(step=self.steps, requests=(entry,))

    # ---- release -----------------------------------------------------------------------------------------------------

    def _prune(self, basis: FreeBasis, cause: ReleaseCause) -> Iterator[Event]:
        relied_on = count.free_basis(self.counters, basis, self.shortest.drafts_max)
        indices = tuple(
            index for index, block in enumerate(self.table) if block and _truth(self._frees(index, relied_on, self.discipline.rounding))
        )
        if not indices:
            return
        blocks = [self.table[index] for index in indices]
        for index in indices:
            self.table[index] = 0
        if self.discipline.prune_fence is PruneFence.NONE or not self.queue:
            yield self._release(indices, blocks, cause)
            return
        self.aside.append((self.steps, blocks))
        yield Hold(holder=PRUNE_FENCE, kind="pin", blocks=tuple(reversed(blocks)))
        yield Release(request=REQUEST, group=0, indices=indices, blocks=tuple(blocks), cause=cause, freed=())

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
        freed = self._give_up(blocks)
        return Release(request=REQUEST, group=0, indices=indices, blocks=tuple(blocks), cause=cause, freed=tuple(freed))

    def _give_up(self, blocks: list[int]) -> list[int]:
        self.references.subtract(blocks)
        freed = [block for block in blocks if self.references[block] == 0]
        self.free.extendleft(block for block in freed if block not in self.cached)
        self.free.extend(block for block in reversed(freed) if block in self.cached)
        return freed

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
        while self.aside and self.aside[0][0] <= step.number:
            _, blocks = self.aside.popleft()
            yield Drop(holder=PRUNE_FENCE, blocks=tuple(blocks), freed=tuple(self._give_up(blocks)))
        while self.deferred and self.deferred[0][0] <= step.number:
            yield from self._release_table(self.deferred.popleft()[1], "deferred")

    def _counters(self) -> tuple[int, int, int]:
        return (_number(self.counters.computed), _number(self.counters.in_flight), _number(self.counters.stale))


def _depth(choices: Sequence[Choice]) -> int:
    """How many steps are unprocessed at a time, at most; at least 1."""
    unprocessed, depth = 0, 1
    for choice in choices:
        unprocessed += {Move.SCHEDULE: 1, Move.ANOTHER: 1, Move.PROCESS: -1}.get(Move(_number(choice.move)), 0)
        depth = max(depth, unprocessed)
    return depth


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
