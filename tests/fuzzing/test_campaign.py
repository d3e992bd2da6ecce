"""Campaigns: the same findings from the same seed, told at once, whoever does the runs, whatever interrupts them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from settled.model.disciplines import OPTIMISTIC, RIGHT, UNDRAINED, Discipline
from settled.model.properties import Contract
from settled.proofs.found_properties import ENGINE_FAULT
from settled.proofs.fuzzing import generating
from settled.proofs.fuzzing.campaign import Campaign, Plan, Progress, Told
from settled.proofs.fuzzing.coverage import BOUNDARY, DEPTH, POOL, Coverage, Feature
from settled.proofs.fuzzing.generating import RUNS_A_SHARD, ShardJob, tries
from settled.proofs.fuzzing.running import run_case
from settled.proofs.watching import Key
from settled.reference.decisions import Player
from settled.reference.decoder import EVERYTHING, decode


def campaign(discipline: Discipline = OPTIMISTIC, **plan: object) -> tuple[Progress, list[Told]]:
    told: list[Told] = []
    settings: dict[str, object] = {"contract": Contract.SETTLED, "runs": 25, **plan}
    done = Campaign(Plan(discipline=discipline, **settings), told.append, lambda progress: None).run()  # type: ignore[arg-type]
    return done, told


def test_every_finding_is_told_at_once_and_again_when_it_is_small() -> None:
    progress, told = campaign(UNDRAINED)
    keys = [each.entry.key for each in told if not each.is_shrunk]
    assert len(keys) == len(set(keys)) >= 1
    assert [each.is_shrunk for each in told] == [False, True] * len(keys)
    assert set(progress.entries) == set(keys)
    for each in told:
        assert each.entry.reproduces()
    for raw, small in zip(told[::2], told[1::2], strict=True):
        assert len(small.entry.case.decisions) <= len(raw.entry.case.decisions)


def test_the_same_seed_finds_the_same_and_processes_do_not_matter() -> None:
    one, told = campaign(UNDRAINED, runs=RUNS_A_SHARD + 10)
    two, told_by_two = campaign(UNDRAINED, runs=RUNS_A_SHARD + 10, jobs=2)
    assert told == told_by_two
    assert (one.runs, one.operations, one.events, one.coverage) == (two.runs, two.operations, two.events, two.coverage)
    assert one.runs == RUNS_A_SHARD + 10
    assert campaign(UNDRAINED, seed=1)[1] != told


def test_fewer_runs_are_the_beginning_of_more() -> None:
    few = [each.result.num_events for each in tries(ShardJob(3, 1, 10, EVERYTHING, Contract.SETTLED), Coverage())]
    more = [each.result.num_events for each in tries(ShardJob(3, 1, 20, EVERYTHING, Contract.SETTLED), Coverage())]
    assert few == more[:10]
    assert few != more[10:]


def test_what_is_known_is_not_told_again() -> None:
    first, _ = campaign(UNDRAINED, runs=10)
    again, told = campaign(UNDRAINED, runs=10, known=frozenset(first.entries))
    assert not told
    assert not again.entries
    assert again.operations_to_first == first.operations_to_first


def test_seconds_end_a_campaign() -> None:
    progress, _ = campaign(RIGHT, runs=None, seconds=0.0)
    assert progress.runs == 1


def test_a_right_discipline_finds_nothing_and_reaches_the_boundaries() -> None:
    progress, told = campaign(RIGHT, runs=100)
    assert not told
    assert not progress.undecided
    reached = set(progress.coverage)
    assert {Feature(DEPTH, str(depth)) for depth in (1, 2, 3, 4)} <= reached
    assert {Feature(POOL, str(free)) for free in (0, 1, 2)} <= reached
    assert {Feature(BOUNDARY, near) for near in ("-1", "0", "+1")} <= reached


def test_an_interrupt_while_shrinking_loses_nothing() -> None:
    told: list[Told] = []

    def tell(each: Told) -> None:
        told.append(each)
        if each.is_shrunk:
            raise KeyboardInterrupt

    running = Campaign(Plan(discipline=OPTIMISTIC, contract=Contract.SETTLED, runs=25), tell, lambda progress: None)
    with pytest.raises(KeyboardInterrupt):
        running.run()
    # The run has found two things; the second is told although nobody shrinks it any more.
    assert [each.is_shrunk for each in told] == [False, True, False]
    assert {each.entry.run for each in told} == {running.progress.runs - 1}
    assert set(running.progress.entries) == {told[0].entry.key, told[2].entry.key}
    assert running.progress.coverage


def test_an_interrupt_takes_in_what_the_workers_have_found() -> None:
    told: list[Told] = []

    def tick(progress: Progress) -> None:
        raise KeyboardInterrupt

    plan = Plan(discipline=UNDRAINED, contract=Contract.SETTLED, runs=3 * RUNS_A_SHARD, jobs=2, known=frozenset())
    running = Campaign(plan, told.append, tick)
    with pytest.raises(KeyboardInterrupt):
        running.run()
    assert told[0].entry.run < RUNS_A_SHARD
    assert running.progress.runs % RUNS_A_SHARD == 0
    assert all(each.entry.reproduces() for each in told)


def test_a_fault_of_the_engine_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: Player) -> None:
        raise AssertionError("planted\nmore")

    monkeypatch.setattr(Player, "end", fail)
    result = run_case(decode(b""))
    (found,) = result.found.values()
    assert found.key == Key(ENGINE_FAULT, "AssertionError", "")
    assert found.sentence == "the engine failed: AssertionError: planted"


def test_a_fault_of_the_engine_is_shrunk(monkeypatch: pytest.MonkeyPatch) -> None:
    take = Player.take

    def fail_at_preempt(self: Player, decision: object) -> bool:
        if take(self, decision) and decision.name == "preempt":  # type: ignore[arg-type, attr-defined]
            raise ZeroDivisionError
        return True

    monkeypatch.setattr(Player, "take", fail_at_preempt)
    _, told = campaign(RIGHT, runs=20)
    assert [decision.name for decision in told[-1].entry.case.decisions] == ["add", "schedule", "preempt"]
    assert told[-1].entry.key == Key(ENGINE_FAULT, "ZeroDivisionError", "")


def test_cases_that_reach_something_new_are_mutated(monkeypatch: pytest.MonkeyPatch) -> None:
    mutated = []
    mutate = generating._mutated
    monkeypatch.setattr(generating, "_mutated", lambda *arguments: mutated.append(case := mutate(*arguments)) or case)
    runs = list(tries(ShardJob(0, 0, 20, replace(EVERYTHING), Contract.SETTLED), Coverage()))
    assert len(mutated) == 5
    assert all(case in [each.case for each in runs] for case in mutated)
