"""The proved relation, evaluated on integers: does it allow a moment of a recorded run, and does the engine prune what it says?"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import astuple, fields, replace
from functools import cache
from typing import Any

from projection import Constants, Moment, project

from settled.model import events as ev
from settled.model import tracked
from settled.model.algebra import BoolTerm, Term, as_bool, as_int, both, int_variable
from settled.model.disciplines import Discipline, PruneFence
from settled.model.interpret import compile_terms
from settled.model.kinds import Kind, kind_of
from settled.model.specs import KVCacheSpec
from settled.model.values import leaves
from settled.reference.workload import random_workload, run_workload, without_transfers

STATE = [symbol.args[0] for symbol in leaves(tracked.symbolic_state())]
CHOICES = ["tokens", "drafts", "rejected", "hit", "prunes", "picks_b", "same", "ordered", "waits"]
CONSTANTS = ["token", "first", "last", "lookahead"]
INPUTS = [*STATE, *CHOICES, *CONSTANTS]  # and the kind's numbers
NO_CHOICE: dict[str, Any] = {name: False if name in ("prunes", "picks_b", "same", "ordered", "waits") else 0 for name in CHOICES}
Compiled = tuple[list[str], Callable[..., tuple[Any, ...]]]


@cache
def compiled_actions(kind_type: type[Kind], discipline: Discipline) -> dict[str, Compiled]:
    """Per action the names of its guards, and a function to the guards, whether a prune frees the entry, and the successor state.

    The numbers of the kind (a window) are inputs, as they are symbols in the proofs: one compilation serves every spec.
    """
    numbers = [field.name for field in fields(kind_type)]  # type: ignore[arg-type]
    state, system = tracked.symbolic_state(), tracked.System(kind_type(*map(int_variable, numbers)), discipline)
    frees = both(state.entry.held, system.frees(state.counters, discipline.free_basis))
    return {
        action.name: (
            list(action.guard),
            compile_terms([*action.guard.values(), frees, *map(_term, leaves(action.after))], [*INPUTS, *numbers]),
        )
        for action in tracked.actions(state, system)
    }


def _term(value: Any) -> Term:
    return as_bool(value) if isinstance(value, bool | BoolTerm) else as_int(value)


def disagreement(moment: Moment, spec: KVCacheSpec, constants: Constants, discipline: Discipline) -> str | None:
    """Why the relation does not allow the moment, or why the engine pruned something else; None if they agree."""
    kind = kind_of(spec)
    assert kind is not None
    names, evaluate = compiled_actions(type(kind), discipline)[moment.action]
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
    *guards, frees = (results := evaluate(*[values[name] for name in INPUTS], *astuple(kind)))[: len(names) + 1]
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
    """Constants that have something to do with the run.

    A step, half of the time one that was in flight when its request's generation ended; a token about its window; a block of its row,
    or any. A quarter of the time a step, and a block of its row that was pruned while it was in flight.
    """
    config = events[0]
    assert isinstance(config, ev.Config)
    steps, outlived, pruned = _steps(events)
    owned: dict[tuple[str, int, int], list[int]] = {}
    for event in events:
        if isinstance(event, ev.Allocate | ev.Touch):
            for offset, block in enumerate(event.blocks):
                owned.setdefault((event.request, event.group, event.first_index + offset), []).append(block)
    for _ in range(count):
        if pruned and rng.random() < 0.25:
            (step, entry), release = rng.choice(pruned)
            index, block = release.indices[-1], release.blocks[-1]
            token = index * config.groups[release.group].block_size
            yield Constants(entry.request, release.group, step, token, block, index, config.num_lookahead_tokens)
            continue
        step, entry = rng.choice(outlived if outlived and rng.random() < 0.5 else steps)
        group = rng.randrange(len(config.groups))
        size = config.groups[group].block_size
        token = max(0, min(entry.start + entry.tokens - rng.randrange(0, 3 * size + 4), (config.max_model_len or 1) - 1))
        own = owned.get((entry.request, group, token // size), [])
        block = rng.choice(own) if own and rng.random() < 0.8 else rng.randrange(1, config.num_blocks)
        yield Constants(entry.request, group, step, token, block, token // size, config.num_lookahead_tokens)


Scheduled = tuple[int, ev.ScheduledRequest]


def _steps(events: list[ev.Event]) -> tuple[list[Scheduled], list[Scheduled], list[tuple[Scheduled, ev.Release]]]:
    """Every request's steps; those whose generation ended before they were processed; those in flight at a prune, with its release."""
    steps: list[Scheduled] = []
    pruned: list[tuple[Scheduled, ev.Release]] = []
    outlived: list[Scheduled] = []
    in_flight: dict[str, list[Scheduled]] = {}
    for event in events:
        match event:
            case ev.Schedule():
                for entry in event.requests:
                    steps.append((event.step, entry))
                    in_flight.setdefault(entry.request, []).append((event.step, entry))
            case ev.Process():
                for output in event.requests:
                    in_flight[output.request].pop(0)
            case ev.Preempt() | ev.Finish():
                outlived += in_flight.get(event.request, [])
            case ev.Release(cause="window") if in_flight.get(event.request):
                pruned.append((in_flight[event.request][-1], event))
    return steps, outlived, pruned


def cases(moment: Moment) -> Iterator[str]:
    """What makes a moment hard for the environment; each must be met for the comparison to mean something."""
    before, choices = moment.before, moment.choices
    in_flight = before["step.unprocessed"]
    stale = in_flight and before["step.stale"]
    live = in_flight and not stale
    if moment.action == "process a stale step" and stale:
        yield "an output of the stale step's own generation" if choices["same"] else "an output of an older generation"
    if moment.action == "start with a prefix-cache hit" and stale:
        yield "a hit while the step is stale"
        if choices["picks_b"] and before["fenced"] and before["row_is_b"]:
            yield "a hit of b while the fence keeps it"
    if moment.action == "preempt, finish or abort":
        if stale:
            yield "another generation ends while the step is stale"
        if live and before["stale"] > 0:
            yield "the step's generation ends behind stale output"
    if live and before["fenced"]:
        if moment.action == "process the step, live":
            yield "a step is processed whose block a prune fence kept"
        if moment.action == "preempt, finish or abort":
            yield "a generation ends while a prune fence keeps the step's block"
    if live and not before["fenced"] and moment.after["fenced"] and choices.get("prunes"):
        yield "a prune takes the block of a step in flight, which the fence keeps"
    if moment.action == "another request allocates b" and in_flight and before["row_is_b"]:
        yield "b is given away while the step is in flight"


def check_runs(
    seeds: Iterable[int], discipline: Discipline, relation: Discipline, *, steps: int = 120, eventful: bool = False
) -> tuple[Counter[str], list[str]]:
    """Runs, projects, evaluates: how often each action and each case was seen, and the disagreements.

    `eventful`: with many preemptions under deep pipelines.
    """
    seen: Counter[str] = Counter()
    problems = list(_problems(seeds, discipline, relation, seen, steps=steps, eventful=eventful))
    return seen, problems


def first_problem(seeds: Iterable[int], discipline: Discipline, relation: Discipline, *, steps: int = 120) -> str | None:
    """The first disagreement of the runs; None if there is none."""
    return next(_problems(seeds, discipline, relation, Counter(), steps=steps, eventful=False), None)


def _problems(
    seeds: Iterable[int], discipline: Discipline, relation: Discipline, seen: Counter[str], *, steps: int, eventful: bool
) -> Iterator[str]:
    for seed in seeds:
        events: list[ev.Event] = []
        # What the projection knows: these kinds, no transfers, hits that end between blocks.
        workload = without_transfers(random_workload(seed, kinds=("full", "sliding_window")))
        workload = replace(workload, config=replace(workload.config, hash_block_size=None))
        if eventful:
            workload = replace(workload, chance_preempt=0.15, chance_process=0.1)
        run_workload(workload, discipline=discipline, steps=steps, sink=events.append)
        config = events[0]
        assert isinstance(config, ev.Config)
        for constants in random_constants(events, random.Random(seed), 6):
            for moment in project(events, constants, prune_fence=discipline.prune_fence is not PruneFence.NONE):
                seen[moment.action] += 1
                seen.update(cases(moment))
                problem = disagreement(moment, config.groups[constants.group], constants, relation)
                if problem is not None:
                    yield f"seed {seed}, {constants}: {problem}"
