"""The weakest link of an unbounded proof is its environment: does it allow all that a real engine does?

Every event of random multi-request runs of the reference is projected on random tracked constants, and the very transition relation
that was proved, guards and successor states, is evaluated on it.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import pytest
from projection import Constants, Moment, project

from settled.model import events as ev
from settled.model import tracked
from settled.model.algebra import Term, as_bool, as_int
from settled.model.disciplines import CEIL, NO_FENCE, OPTIMISTIC, RIGHT, UNDRAINED, VLLM, Discipline
from settled.model.explicit import leaves
from settled.model.interpret import compile_terms
from settled.model.kinds import kind_of
from settled.model.specs import KVCacheSpec
from settled.reference.workload import random_workload, run_workload

STATE = [symbol.args[0] for symbol in leaves(tracked.symbolic_state())]
CHOICES = ["tokens", "drafts", "rejected", "hit", "prunes", "picks_b", "ordered", "waits"]
CONSTANTS = ["token", "first", "last", "lookahead"]
NO_CHOICE: dict[str, Any] = {name: False if name in ("prunes", "picks_b", "ordered", "waits") else 0 for name in CHOICES}


@cache
def compiled_actions(spec: KVCacheSpec, discipline: Discipline) -> dict[str, tuple[list[str], Callable[..., tuple[Any, ...]]]]:
    """Per action the names of its guards, and a function that gives the guards and the successor state on integers."""
    kind = kind_of(spec)
    assert kind is not None
    actions = tracked.actions(tracked.symbolic_state(), tracked.System(kind, discipline))
    return {
        action.name: (
            list(action.guard),
            compile_terms([*action.guard.values(), *map(_term, leaves(action.after))], [*STATE, *CHOICES, *CONSTANTS]),
        )
        for action in actions
    }


def _term(value: Any) -> Term:
    return as_bool(value) if isinstance(value, bool) or not isinstance(value, int) and type(value).__name__ == "BoolTerm" else as_int(value)


def disagreement(moment: Moment, spec: KVCacheSpec, constants: Constants, discipline: Discipline) -> str | None:
    """Why the relation does not allow the moment; None if it does."""
    names, evaluate = compiled_actions(spec, discipline)[moment.action]
    first = constants.index * spec.block_size
    values = {
        **moment.before,
        **NO_CHOICE,
        **moment.choices,
        "token": constants.token,
        "first": first,
        "last": first + spec.block_size - 1,
        "lookahead": constants.lookahead,
    }
    results = evaluate(*(values[name] for name in [*STATE, *CHOICES, *CONSTANTS]))
    for name, holds in zip(names, results, strict=False):
        if not holds:
            return f"line {moment.line}, {moment.action}: the guard {name!r} does not hold in {moment.before} for {moment.choices}"
    expected = dict(zip(STATE, results[len(names) :], strict=True))
    wrong = {name: (moment.after[name], value) for name, value in expected.items() if moment.after[name] != value}
    return f"line {moment.line}, {moment.action} {moment.choices}: (engine, relation) differ in {wrong}" if wrong else None


def random_constants(events: list[ev.Event], rng: random.Random, count: int) -> Iterator[Constants]:
    """Constants that have something to do with the run: a scheduled step, a token about its window, a block of its row, or any."""
    config = events[0]
    assert isinstance(config, ev.Config)
    scheduled = [(event.step, entry) for event in events if isinstance(event, ev.Schedule) for entry in event.requests]
    owned: dict[tuple[str, int, int], list[int]] = {}
    for event in events:
        if isinstance(event, ev.Allocate | ev.Touch):
            for offset, block in enumerate(event.blocks):
                owned.setdefault((event.request, event.group, event.first_index + offset), []).append(block)
    for _ in range(count):
        step, entry = rng.choice(scheduled)
        group = rng.randrange(len(config.groups))
        size = config.groups[group].block_size
        token = max(0, min(entry.start + entry.tokens - rng.randrange(0, 3 * size + 4), (config.max_model_len or 1) - 1))
        own = owned.get((entry.request, group, token // size), [])
        block = rng.choice(own) if own and rng.random() < 0.8 else rng.randrange(1, config.num_blocks)
        yield Constants(entry.request, group, step, token, block, token // size, config.num_lookahead_tokens)


def check_runs(seeds: range, discipline: Discipline, relation: Discipline, *, steps: int = 120) -> tuple[Counter[str], list[str]]:
    """Runs, projects, evaluates: how often each action was seen, and the disagreements."""
    seen: Counter[str] = Counter()
    problems = []
    for seed in seeds:
        events: list[ev.Event] = []
        run_workload(random_workload(seed), discipline=discipline, steps=steps, sink=events.append)
        config = events[0]
        assert isinstance(config, ev.Config)
        for constants in random_constants(events, random.Random(seed), 6):
            for moment in project(events, constants):
                seen[moment.action] += 1
                problem = disagreement(moment, config.groups[constants.group], constants, relation)
                if problem is not None:
                    problems.append(f"seed {seed}, {constants}: {problem}")
    return seen, problems


@pytest.mark.parametrize("discipline", [RIGHT, VLLM], ids=lambda discipline: discipline.name)
def test_every_event_of_the_reference_satisfies_the_proved_relation(discipline: Discipline) -> None:
    seen, problems = check_runs(range(100), discipline, discipline)
    assert not problems, "\n".join(problems[:3])
    names = {action.name for action in tracked.actions(tracked.symbolic_state(), tracked.System(_any_kind(), discipline))}
    assert set(seen) == names, "every action of the environment must occur, or the test says nothing about it"
    assert min(seen.values()) >= 20
    assert sum(seen.values()) > 20_000


@pytest.mark.parametrize("broken", [OPTIMISTIC, CEIL, NO_FENCE, UNDRAINED], ids=lambda discipline: discipline.name)
def test_a_broken_engine_is_told_apart(broken: Discipline) -> None:
    """The relation of the right discipline does not cover an engine with another one: the comparison can fail."""
    try:
        _, problems = check_runs(range(25), broken, RIGHT)
    except AssertionError:
        return  # the bookkeeping itself notices that counters went wrong
    assert problems


def _any_kind() -> Any:
    from settled.model.kinds import FullAttention

    return FullAttention()
