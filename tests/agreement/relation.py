"""The proved relation, evaluated on integers: does it allow a moment of a recorded run, and does the engine prune what it says?"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from typing import Any

from projection import Constants, Moment, project

from settled.model import events as ev
from settled.model import tracked
from settled.model.algebra import BoolTerm, Term, as_bool, as_int, both
from settled.model.disciplines import Discipline
from settled.model.values import leaves
from settled.model.interpret import compile_terms
from settled.model.kinds import kind_of
from settled.model.specs import KVCacheSpec
from settled.reference.workload import random_workload, run_workload

STATE = [symbol.args[0] for symbol in leaves(tracked.symbolic_state())]
CHOICES = ["tokens", "drafts", "rejected", "hit", "prunes", "picks_b", "same", "ordered", "waits"]
CONSTANTS = ["token", "first", "last", "lookahead"]
NO_CHOICE: dict[str, Any] = {name: False if name in ("prunes", "picks_b", "same", "ordered", "waits") else 0 for name in CHOICES}
Compiled = tuple[list[str], Callable[..., tuple[Any, ...]]]


@cache
def compiled_actions(spec: KVCacheSpec, discipline: Discipline) -> dict[str, Compiled]:
    """Per action the names of its guards, and a function to the guards, whether a prune frees the entry, and the successor state."""
    kind = kind_of(spec)
    assert kind is not None
    state, system = tracked.symbolic_state(), tracked.System(kind, discipline)
    frees = both(state.entry.held, system.frees(state.counters, discipline.free_basis))
    return {
        action.name: (
            list(action.guard),
            compile_terms([*action.guard.values(), frees, *map(_term, leaves(action.after))], [*STATE, *CHOICES, *CONSTANTS]),
        )
        for action in tracked.actions(state, system)
    }


def _term(value: Any) -> Term:
    return as_bool(value) if isinstance(value, bool | BoolTerm) else as_int(value)


def disagreement(moment: Moment, spec: KVCacheSpec, constants: Constants, discipline: Discipline) -> str | None:
    """Why the relation does not allow the moment, or why the engine pruned something else; None if they agree."""
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
    *guards, frees = (results := evaluate(*(values[name] for name in [*STATE, *CHOICES, *CONSTANTS])))[: len(names) + 1]
    where = f"line {moment.line}, {moment.action} {moment.choices}"
    for name, holds in zip(names, guards, strict=True):
        if not holds:
            return f"{where}: the guard {name!r} does not hold in {moment.before}"
    if moment.action.startswith("schedule") and frees != moment.choices["prunes"]:
        return f"{where}: the engine {'prunes' if moment.choices['prunes'] else 'does not prune'} the entry, the formula says otherwise"
    expected = dict(zip(STATE, results[len(names) + 1 :], strict=True))
    wrong = {name: (moment.after[name], value) for name, value in expected.items() if moment.after[name] != value}
    return f"{where}: (engine, relation) differ in {wrong}" if wrong else None


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


def check_runs(seeds: Iterable[int], discipline: Discipline, relation: Discipline, *, steps: int = 120) -> tuple[Counter[str], list[str]]:
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
