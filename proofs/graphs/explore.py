"""Every state that an engine reaches from its first one, breadth first, whatever the host and the model decide."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import product
from typing import TYPE_CHECKING, Any

from settled.model.events import Event, Finish, Preempt, Process, Release, Schedule
from settled.proofs.graphs.states import State, freeze, state_of, thaw
from settled.reference.config import EngineConfig
from settled.reference.engine import Engine, Outcome
from settled.reference.recorder import Recorder

if TYPE_CHECKING:
    import networkx

Do = Callable[[Engine], object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """A small engine and its requests, (prompt tokens, most output tokens) each, all there from the start. Ids are r0, r1, ..."""

    config: EngineConfig
    requests: tuple[tuple[int, int], ...]


@dataclass(slots=True)
class StateGraph:
    """`graph` has a node a state, numbered in the order of discovery from 0; an edge has a `label`: what was decided and what came of it.

    `is_complete` is False when there are more states than were allowed. `stuck` are the states from which nothing leads on although
    requests are unfinished; `done` those in which none is left.
    """

    graph: networkx.DiGraph[int]
    first: bytes
    is_complete: bool = True
    stuck: list[int] = field(default_factory=list)
    done: list[int] = field(default_factory=list)
    came_from: dict[int, tuple[int, int]] = field(default_factory=dict)  # the state before, and which of its decisions it was

    def engine(self, node: int) -> Engine:
        """An engine in that state, by a shortest way."""
        way = []
        while node in self.came_from:
            node, decision = self.came_from[node]
            way.append(decision)
        engine = thaw(self.first)
        for decision in reversed(way):
            _, do = _moves(engine)[decision]
            do(engine)
        return engine

    def way_to(self, node: int) -> list[str]:
        """The labels on a shortest way to a state."""
        labels = []
        while node in self.came_from:
            before, _ = self.came_from[node]
            labels.append(str(self.graph.edges[before, node]["label"]))
            node = before
        return labels[::-1]

    def circles(self) -> list[Circle]:
        """The strongly connected parts with more than one state: in each, the engine can go on for ever and get nowhere."""
        import networkx

        parts = [part for part in networkx.strongly_connected_components(self.graph) if len(part) > 1]
        return sorted((self._circle(part) for part in parts), key=lambda circle: circle.states[0])

    def _circle(self, part: set[int]) -> Circle:
        import networkx

        inside: Any = self.graph.subgraph(part)
        labels = [str(inside.edges[edge[:2]]["label"]) for edge in networkx.find_cycle(inside, min(part))]
        has_exit = any(target not in part for node in part for target in self.graph.successors(node))
        return Circle(tuple(sorted(part)), tuple(labels), has_exit)


@dataclass(frozen=True, slots=True)
class Circle:
    """States that lead to each other. No token is gained on the way round, for known tokens are a part of the state. `labels`: one way
    round. Without an exit no request can finish any more, whatever is decided."""

    states: tuple[int, ...]
    labels: tuple[str, ...]
    has_exit: bool


# ---- what can be decided ---------------------------------------------------------------------------------------------


def _schedules(engine: Engine) -> Iterator[tuple[str, Do]]:
    if engine.can_schedule and engine.scheduler.requests:
        yield "schedule", lambda copy: copy.schedule()


def _processes(engine: Engine) -> Iterator[tuple[str, Do]]:
    """Every combination of accepted drafts of the oldest step."""
    if not engine.unprocessed:
        return
    sampling = [entry for entry in engine.unprocessed[0].entries if entry.samples]
    for accepted in product(*(range(entry.drafts + 1) for entry in sampling)):
        yield "process", _process({entry.request.request_id: Outcome(count) for entry, count in zip(sampling, accepted, strict=True)})


def _process(outcomes: dict[str, Outcome]) -> Do:
    return lambda engine: engine.process(lambda entry: outcomes[entry.request.request_id])


# Aborts are left out: they always lead on.
MOVES: tuple[Callable[[Engine], Iterator[tuple[str, Do]]], ...] = (_schedules, _processes)


def explore(scenario: Scenario, *, states_max: int = 20_000) -> StateGraph:
    """All states, or the first `states_max`. Raises ConfigError, SchedulerError for a scenario that cannot be."""
    import networkx

    first = Engine(scenario.config)
    for number, (prompt_tokens, max_tokens) in enumerate(scenario.requests):
        first.add_request(f"r{number}", prompt_tokens, max_tokens=max_tokens)
    found = StateGraph(networkx.DiGraph(), freeze(first))
    found.graph.add_node(0)
    numbers: dict[State, int] = {state_of(first): 0}
    frontier = deque([(0, found.first)])
    while frontier:
        node, frozen = frontier.popleft()
        engine = thaw(frozen)
        leads_on = False
        for decision, (name, do) in enumerate(_moves(engine)):
            copy = thaw(frozen)
            label = label_of(name, _recorded(copy, do))
            target = numbers.setdefault(state_of(copy), len(numbers))
            if target == node:
                continue
            leads_on = True
            if target not in found.graph:
                if len(numbers) > states_max:
                    found.is_complete = False
                    return found
                found.came_from[target] = (node, decision)
                frontier.append((target, freeze(copy)))
            if not found.graph.has_edge(node, target):
                found.graph.add_edge(node, target, label=label)
        if engine.scheduler.requests and not leads_on:
            found.stuck.append(node)
        elif engine.is_idle:
            found.done.append(node)
    return found


def _moves(engine: Engine) -> list[tuple[str, Do]]:
    return [move for moves in MOVES for move in moves(engine)]


def _recorded(engine: Engine, do: Do) -> list[Event]:
    """The events of one decision. Recording proper would need an idle engine to start from."""
    events: list[Event] = []
    pool = engine.scheduler.kv_cache_manager.block_pool
    pool.recorder = Recorder(events.append)
    do(engine)
    pool.recorder = None
    return events


def label_of(name: str, events: list[Event]) -> str:
    """A decision and what came of it, in a line."""
    told = []
    for event in events:
        match event:
            case Schedule():
                told += [f"{entry.request} [{entry.start}, {entry.start + entry.tokens})" for entry in event.requests]
            case Process():
                told += [
                    f"{entry.request} +{entry.sampled}" + (f" -{entry.rejected}" if entry.rejected else "") for entry in event.requests
                ]
            case Preempt():
                told.append(f"{event.request} preempted")
            case Finish():
                told.append(f"{event.request} finished")
            case Release(cause="deferred"):
                told.append(f"{len(event.freed)} blocks of {event.request} let go")
    return f"{name}: {', '.join(told)}" if told else name
