"""Hunts: everything is told at once and again when small, the same from the same seed, here or in a worker, and interrupts lose nothing."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from fake_engines import ChangedFactory, fails_to_process, finishes_nothing, never_schedules

from settled.model.disciplines import DISCIPLINES
from settled.model.properties import Contract
from settled.proofs.hunting import budget, campaign
from settled.proofs.hunting.campaign import Hunt, Plan, Progress, Told, WorkloadFailedError, unjudged
from settled.proofs.hunting.client import RemoteHunt
from settled.proofs.hunting.faults import HarnessError
from settled.proofs.hunting.finding import finding_as_dict, finding_of, rank, told_once
from settled.proofs.hunting.messages import plan_as_dict, plan_of, progress_as_dict, take_progress
from settled.proofs.watching import Found, Key
from settled.reference.engines.protocol import EngineFactory
from settled.reference.engines.reference_engine import ReferenceFactory
from settled.reference.engines.setup import SetupError

READ = Key("read_resident", "freed[window]", "sliding_window")
ROLLBACK = Key("rollback_resident", "released_before_schedule[window]", "sliding_window")


def plan_for(discipline: str, **settings: object) -> Plan:
    told: dict[str, object] = {"mix": "windows", "workloads": 40, **settings}
    return Plan(engine=f"reference=={discipline}", **told)  # type: ignore[arg-type]


def hunted(discipline: str, factory: EngineFactory | None = None, **settings: object) -> tuple[Progress, list[Told]]:
    told: list[Told] = []
    factory = factory or ReferenceFactory(DISCIPLINES[discipline])
    return Hunt(factory, plan_for(discipline, **settings), told.append, lambda progress: None).run(), told


@pytest.fixture(scope="module")
def optimistic() -> tuple[Progress, list[Told]]:
    """One hunt for those tests that only look at what it found."""
    return hunted("optimistic")


def test_every_finding_is_told_at_once_and_again_when_it_is_small() -> None:
    progress, told = hunted("optimistic", contract=Contract.SETTLED)
    keys = [each.finding.key for each in told if not each.is_shrunk]
    assert len(keys) == len(set(keys)) > 1
    assert sorted(keys) == sorted(each.finding.key for each in told if each.is_shrunk) == sorted(progress.findings)
    for key in keys:
        raw, small = (each.finding for each in told if each.finding.key == key)
        assert 0 < small.steps <= raw.steps
        assert small.trace
        assert progress.showing[key] >= 1


def test_of_some_properties_only_their_violations_are_findings() -> None:
    everything, _ = hunted("optimistic", contract=Contract.SETTLED)
    progress, told = hunted("optimistic", contract=Contract.SETTLED, properties=("rollback_resident", "single_owner"))
    assert {each.finding.key for each in told} == {key for key in everything.findings if key.property == "rollback_resident"}
    assert progress.showing == {key: times for key, times in everything.showing.items() if key.property == "rollback_resident"}
    assert {judged.property for judged in progress.verdicts} == {"rollback_resident", "single_owner"}
    assert 0 < len(progress.findings) < len(everything.findings)
    assert not hunted("optimistic", workloads=10, properties=("single_owner",))[0].findings


def test_what_is_asked_for_by_name_is_judged_or_said_not_to_be() -> None:
    """Of what no trace tells, a run sees some, and an inspection of live objects the rest: the first workload of 16 has one."""
    asked = ("engine_fault", "admission_gate", "write_owned")
    progress, _ = hunted("settled", workloads=3, properties=asked)
    times = {judged.property: times for judged, times in progress.verdicts.items() if judged.verdict == "holds"}
    assert times == {"engine_fault": 3, "admission_gate": 1, "write_owned": 3}
    assert not unjudged(plan_for("settled", properties=asked), progress)
    progress, _ = hunted("settled", first=1, workloads=3, properties=asked)
    assert unjudged(plan_for("settled", properties=asked), progress) == ["admission_gate"]


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_both_faults_become_three_steps(seed: int) -> None:
    """Fault 1 under `settled`, fault 2 under either contract."""
    with_consumer, _ = hunted("optimistic", contract=Contract.SETTLED, seed=seed, workloads=100)
    assert with_consumer.findings[READ].steps <= 3
    without, _ = hunted("optimistic", contract=Contract.STREAM_ORDER, seed=seed, workloads=100)
    for key in without.findings:  # a load is written without regard to steps
        assert key.property in ("rollback_resident", "write_owned") or key.cause.startswith("loaded_over[")
    assert without.findings[ROLLBACK].steps <= 3


def test_a_right_discipline_is_never_blamed() -> None:
    for discipline in ("settled", "vllm"):
        progress, told = hunted(discipline, mix="all", workloads=150)
        assert not told
        assert not progress.undecided
        assert progress.workloads == 150
        assert progress.seconds_to_first is None


def test_the_same_seed_finds_the_same_and_the_worker_as_well(optimistic: tuple[Progress, list[Told]]) -> None:
    here, told = optimistic
    again, told_again = hunted("optimistic")
    assert told == told_again
    told_there: list[Told] = []
    plan = plan_for("optimistic")
    there = RemoteHunt([sys.executable], os.environ, plan, told_there.append, lambda progress: None).run()
    assert told_there == told
    for name in ("workloads", "operations", "steps", "events", "showing", "coverage", "findings"):
        assert getattr(there, name) == getattr(again, name) == getattr(here, name)
    assert hunted("optimistic", seed=1)[1] != told


def test_one_workload_is_run_by_its_number(optimistic: tuple[Progress, list[Told]]) -> None:
    _, told = optimistic
    finding = told[0].finding
    assert finding.number > 0
    assert finding.command.endswith(f"--number {finding.number} --contract auto")
    _, again = hunted("optimistic", first=finding.number, workloads=1)
    both = [[each.finding for each in some if each.finding.key == finding.key] for some in (told, again)]
    assert both[0] == both[1]


def test_a_given_workload_is_run_whatever_the_mix(optimistic: tuple[Progress, list[Told]]) -> None:
    _, told = optimistic
    small = told[-1].finding
    progress, again = hunted("optimistic", workload=small.workload, path="some.json")
    assert progress.workloads == 1
    assert small.key in progress.findings
    assert again[-1].finding.command == "settled hunt reference==optimistic --workload some.json --contract auto"
    assert not hunted("settled", workload=small.workload)[1]


def test_seconds_end_a_hunt_and_nothing_is_shrunk_after_them(optimistic: tuple[Progress, list[Told]]) -> None:
    number = optimistic[1][0].finding.number
    progress, told = hunted("optimistic", workloads=None, seconds=0.0, first=number)
    assert progress.workloads == 1
    assert told
    assert not any(each.is_shrunk for each in told)


class Clock:
    """A clock that goes on by a fixed step with every run of a workload: what a hunt does by it is the same on every machine."""

    seconds = 0.0
    process_time = staticmethod(time.process_time)

    def monotonic(self) -> float:
        return self.seconds

    perf_counter = monotonic

    def costly(self, run: Callable[..., Any]) -> Callable[..., Any]:
        def ran(*arguments: Any, **limits: Any) -> Any:
            self.seconds += 0.01
            return run(*arguments, **limits)

        return ran


def test_seconds_are_spent_on_workloads_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """A third of them at most on shrinking, but for what the last one that began may take."""
    clock = Clock()
    for module in (campaign, budget):
        monkeypatch.setattr(module, "time", clock)
    for name in ("run_workload", "shown_by"):
        monkeypatch.setattr(campaign, name, clock.costly(getattr(campaign, name)))
    progress, told = hunted("optimistic", contract=Contract.SETTLED, workloads=None, seconds=3.0)
    assert 3.0 <= clock.seconds < 3.1
    assert 2.0 - 3.0 / campaign._FINDINGS_SHRUNK <= progress.seconds < 2.5
    assert any(each.is_shrunk for each in told)
    assert {each.finding.key for each in told} == set(progress.findings)


def test_what_trace_and_live_objects_both_show_is_one_finding() -> None:
    trace, objects = Key("held_bounded", "above_cap", "sliding_window"), Key("held_bounded", "inspected: above_cap[sliding_window]", "")
    other = Key("held_bounded", "inspected: below_need[full]", "")
    found = {key: Found(key, 0, 1, "") for key in (trace, objects, other)}
    assert set(told_once(found)) == {trace, other}
    assert set(told_once({objects: found[objects]})) == {objects}
    assert [rank(key) for key in (trace, objects)] == [0, 3]


def test_a_finding_reads_back(optimistic: tuple[Progress, list[Told]]) -> None:
    _, told = optimistic
    for each in told:
        assert finding_of(finding_as_dict(each.finding)) == each.finding


def test_plan_and_progress_read_back(optimistic: tuple[Progress, list[Told]]) -> None:
    progress, told = optimistic
    plan = replace(plan_for("optimistic"), contract=Contract.EVENT, workload=told[0].finding.workload, path="x", seconds=2.5)
    assert plan_of(plan_as_dict(plan)) == plan
    copy = Progress("other", findings=progress.findings)
    take_progress(copy, progress_as_dict(progress))
    assert copy == replace(progress, seconds=copy.seconds)


# ---- interrupts ------------------------------------------------------------------------------------------------------


def test_an_interrupt_while_shrinking_loses_nothing() -> None:
    told: list[Told] = []

    def tell(each: Told) -> None:
        told.append(each)
        if each.is_shrunk:
            raise KeyboardInterrupt

    plan = plan_for("optimistic", contract=Contract.SETTLED)
    hunt = Hunt(ReferenceFactory(DISCIPLINES["optimistic"]), plan, tell, lambda progress: None)
    with pytest.raises(KeyboardInterrupt):
        hunt.run()
    assert [each.is_shrunk for each in told] == [False] * (len(told) - 1) + [True]
    assert {each.finding.key for each in told} == set(hunt.progress.findings)


def test_an_interrupt_in_the_midst_of_shrinking_tells_the_smallest_so_far(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[Told] = []
    hunt = Hunt(ReferenceFactory(DISCIPLINES["optimistic"]), plan_for("optimistic"), told.append, lambda progress: None)
    shown_by, asked = hunt._shown_by, 0

    def interrupted(*arguments: object, **limits: object) -> object:
        nonlocal asked
        asked += 1
        if asked == 40:
            raise KeyboardInterrupt
        return shown_by(*arguments, **limits)  # type: ignore[arg-type]

    monkeypatch.setattr(hunt, "_shown_by", interrupted)
    with pytest.raises(KeyboardInterrupt):
        hunt.run()
    assert [each.is_shrunk for each in told] == [False, True]
    assert told[1].finding.steps < told[0].finding.steps


# ---- whose fault it is -----------------------------------------------------------------------------------------------


def test_a_fault_of_the_engine_is_found_once_and_shrunk() -> None:
    progress, told = hunted("settled", ChangedFactory(fails_to_process(AssertionError("planted"))))
    assert list(progress.findings) == [Key("engine_fault", "AssertionError in fake_engines.py:process", "")]
    assert [each.is_shrunk for each in told] == [False, True]
    assert (told[1].finding.steps, len(told[1].finding.workload.operations)) == (1, 1)
    assert progress.showing.total() == 40


@pytest.mark.parametrize("change", [never_schedules, finishes_nothing])
def test_a_stuck_engine_is_found_and_shrunk_to_one_request(change: object) -> None:
    progress, told = hunted("settled", ChangedFactory(change), workloads=3)  # type: ignore[arg-type]
    (key,) = progress.findings
    assert key.property == "admission_progress"
    (add,) = told[-1].finding.workload.operations
    assert (add.prompt_tokens, add.max_tokens) == (1, 1)  # type: ignore[union-attr]


def test_a_fault_of_the_harness_ends_the_hunt_with_its_workload() -> None:
    with pytest.raises(WorkloadFailedError, match="planted") as raised:
        hunted("settled", ChangedFactory(fails_to_process(SetupError("planted"))))
    assert raised.value.number == 0
    assert raised.value.workload.operations


def test_a_worker_that_cannot_start_says_why() -> None:
    def nothing(_each: object) -> None:
        return None

    elsewhere = replace(plan_for("settled"), engine="reference==nonsense")
    refused = RemoteHunt([sys.executable], os.environ, elsewhere, nothing, nothing)
    with pytest.raises(HarnessError, match="unknown discipline 'nonsense'"):
        refused.run()
    ended = RemoteHunt([sys.executable, "-c", "import sys; sys.exit('no luck')"], os.environ, plan_for("settled"), nothing, nothing)
    with pytest.raises(HarnessError, match=r"(?s)ended with code 1.*no luck"):
        ended.run()
