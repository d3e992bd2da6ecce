"""A state machine for Hypothesis: it decides, the reference engine does, the monitor judges, and the books are counted once more.

    class TestMine(EngineMachine.TestCase):
        settings = settings(max_examples=200)

    TestMine = engine_machine(discipline=MINE, kinds=["sliding_window"]).TestCase

There is a rule for each sort of decision that `settled.reference.decisions` knows, but for the drain.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, cast

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from settled.model.disciplines import RIGHT, Discipline
from settled.model.events import NULL_BLOCK, Config, Event
from settled.model.monitor import Monitor
from settled.model.properties import Contract
from settled.proofs.fuzzing.strategies import engine_configs
from settled.reference.config import EngineConfig
from settled.reference.decisions import DRAIN, SORTS, Decision, Player, Sort
from settled.reference.engine import Engine


class ViolationError(AssertionError):
    """A property is violated; the message says which and how."""


class BooksError(AssertionError):
    """Engine, monitor and a plain recount do not agree; the message says where."""


class EngineMachine(RuleBasedStateMachine):
    """Drives one engine. Subclass it with another `contract` or `configs`, or take one from `engine_machine`."""

    contract = Contract.SETTLED
    configs: st.SearchStrategy[EngineConfig] = engine_configs()

    def __init__(self) -> None:
        super().__init__()
        self.player: Player | None = None
        self.monitor: Monitor | None = None
        self.lines = 0
        self.violations: list[str] = []

    @initialize(data=st.data())
    def start(self, data: st.DataObject) -> None:
        """Builds the engine."""
        self.player = Player(data.draw(self.configs, "configuration"), self._listen)

    def _listen(self, event: Event) -> None:
        self.lines += 1
        if isinstance(event, Config):
            self.monitor = Monitor(event, self.contract)
        assert self.monitor is not None
        self.violations += [f"{found.property}: {found.sentence()}" for found in self.monitor.feed(self.lines, event)]

    def take(self, decision: Decision) -> None:
        """Takes a decision and judges it."""
        assert self.player is not None
        self.player.take(decision)
        self.judge()

    def judge(self) -> None:
        """Raises ViolationError if anything was violated."""
        if self.violations:
            raise ViolationError("; ".join(self.violations))

    @invariant()
    @precondition(lambda self: self.player is not None)
    def books_agree(self) -> None:
        """The engine's own counts are those of the monitor and of a plain recount."""
        assert self.player is not None
        assert self.monitor is not None
        recount(self.player.engine, self.monitor)

    def teardown(self) -> None:
        """Drains the engine: whatever was decided, all blocks come back."""
        if self.player is None or self.violations:
            return
        self.player.take(DRAIN)
        self.player.end()
        self.judge()
        if not self.player.engine.is_idle or any(self.player.engine.pool_snapshot()):
            raise BooksError("a drained engine still holds blocks")


def recount(engine: Engine, monitor: Monitor | None = None) -> None:
    """Counts tokens and references again, by hand. Raises BooksError where the engine or the monitor counts otherwise."""
    references: Counter[int] = Counter()
    scheduler = engine.scheduler
    for request_id in (*scheduler.requests, *scheduler.draining):
        seen = engine.inspect(request_id)
        in_flight = sum(step.tokens for step in seen.unprocessed)
        stale = sum(step.tokens for step in seen.unprocessed if step.generation != seen.generation)
        told = (seen.computed, seen.in_flight, seen.stale)
        if request_id in scheduler.requests and told[1:] != (in_flight, stale):
            raise BooksError(f"request {request_id}: the engine counts {told[1:]} in flight and stale, there are {(in_flight, stale)}")
        if monitor is not None and request_id in scheduler.requests and monitor.counters(request_id) != told:
            raise BooksError(f"request {request_id}: the engine counts {told}, the monitor {monitor.counters(request_id)}")
        references.update(block for table in seen.table for block in table if block != NULL_BLOCK)
    references.update(block.block_id for free in scheduler.fence for table in free.tables for block in table.blocks)
    manager = scheduler.kv_cache_manager
    others = (*scheduler.remote.transfers.pinned_blocks(), *manager.preparation.held_blocks(), *manager.block_pool.blocks_aside())
    references.update(block.block_id for block in others)
    held = {block: count for block, count in enumerate(engine.pool_snapshot()) if count}
    if held != references:
        raise BooksError(f"the pool counts the references {held}, tables, fence and pins have {dict(references)}")


def engine_machine(*, discipline: Discipline = RIGHT, contract: Contract = Contract.SETTLED, **space: Any) -> type[EngineMachine]:
    """A machine for a discipline and a contract; the other arguments are those of `engine_configs`."""
    configs = engine_configs(discipline=discipline, **space)
    return cast(
        type[EngineMachine], type(f"EngineMachine[{discipline.name}]", (EngineMachine,), {"contract": contract, "configs": configs})
    )


def _rule_of(name: str, sort: Sort) -> Callable[..., None]:
    """A rule that takes the sort's arguments by name."""

    def decide(self: EngineMachine, **values: int) -> None:
        self.take(Decision(name, tuple([values[argument.name] for argument in sort.arguments])))

    decide.__name__, decide.__doc__ = name, sort.meaning
    drawn: dict[str, Any] = {argument.name: st.sampled_from(sorted_once(argument.values)) for argument in sort.arguments}
    is_possible: Any = precondition(lambda self: self.player is not None and sort.is_possible(self.player))
    make: Any = rule(**drawn)
    return cast(Callable[..., None], make(is_possible(decide)))


def sorted_once(values: Sequence[int]) -> list[int]:
    """Each value once, the simplest first."""
    return list(dict.fromkeys(values))


for _name, _sort in SORTS.items():
    if _name == DRAIN.name:
        continue  # teardown does it; as often as other rules, it would leave nothing to look at
    setattr(EngineMachine, _name, _rule_of(_name, _sort))
