"""Every scenario of the corpus is caught, every twin is clean, and no row is left out in silence."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from settled.model.disciplines import RIGHT
from settled.model.events import Finish, Release
from settled.model.properties import Contract, Property
from settled.proofs.corpus.loading import folder, load
from settled.proofs.corpus.rows import Case, Choice, Corpus, Mark, Rows, Scenario, Script, StateColumn
from settled.proofs.corpus.running import Outcome, Status, run_cases, trace_of, try_scenario
from settled.proofs.report.corpus import exit_of, recall_lines
from settled.proofs.runner import Exit

BUGS = Path(__file__).parents[1] / "data" / "bugs"
CORPUS = load(BUGS)
SCENARIOS = [(case, scenario) for case in CORPUS.cases for scenario in case.scenarios]


def case_of(row_id: str) -> Case:
    return next(case for case in CORPUS.cases if case.row.id.endswith(row_id))


@pytest.mark.parametrize(("case", "scenario"), SCENARIOS, ids=[scenario.source.replace(".json", "") for _, scenario in SCENARIOS])
def test_a_scenario_is_caught_and_its_twin_is_clean(case: Case, scenario: Scenario) -> None:
    tried = try_scenario(scenario)
    assert tried.violation is not None
    assert tried.violation.property is scenario.property
    assert tried.twin_problems == ()
    assert tried.status is Status.CAUGHT
    assert tried.twin.result(scenario.property).count == 0
    assert case.title
    assert scenario.mapping


def test_the_index_has_every_row_and_none_is_unaccounted_for() -> None:
    assert len(CORPUS.cases) == 147
    assert CORPUS.families == ("F1", "F2", "F7", "F9")
    for case in CORPUS.cases:
        assert bool(case.scenarios) != bool(case.reason), case.row.id
    taken_up = [case for case in CORPUS.cases if case.row.family in CORPUS.families]
    assert sum(case.row.mark is Mark.CATCHABLE for case in taken_up) == 26
    assert not any("not taken up" in case.reason for case in taken_up)


def test_the_scripts_tell_the_monitor_nothing_of_the_discipline() -> None:
    """The trace comes from the reference, whose name is all that its config tells."""
    for _, scenario in SCENARIOS:
        if isinstance(scenario.broken, Script):
            config = trace_of(scenario.broken)[0]
            assert config.engine == "settled.reference"  # type: ignore[attr-defined]


# ---- the checker, checked --------------------------------------------------------------------------------------------


def scripts(*, of_discipline: bool) -> list[tuple[Scenario, Choice]]:
    """Those that run on the reference, with what is broken; `of_discipline`: not the worker or what is retained."""
    played = [(scenario, scenario.broken.choice) for _, scenario in SCENARIOS if isinstance(scenario.broken, Script)]
    return [(scenario, choice) for scenario, choice in played if (choice.discipline is not RIGHT) is of_discipline]


def healed(scenario: Scenario, choice: Choice) -> Scenario:
    """The scenario with another choice in place of the broken one."""
    assert isinstance(scenario.broken, Script)
    return replace(scenario, broken=replace(scenario.broken, choice=choice))


@pytest.mark.parametrize(("scenario", "choice"), scripts(of_discipline=True), ids=lambda value: getattr(value, "source", ""))
def test_a_scenario_under_the_right_discipline_is_reported_as_missed(scenario: Scenario, choice: Choice) -> None:
    assert try_scenario(healed(scenario, replace(choice, discipline=RIGHT))).status is Status.MISSED


@pytest.mark.parametrize(("scenario", "choice"), scripts(of_discipline=False), ids=lambda value: getattr(value, "source", ""))
def test_a_scenario_with_the_repaired_worker_is_reported_as_missed(scenario: Scenario, choice: Choice) -> None:
    assert isinstance(scenario.repaired, Script)
    assert scenario.repaired.choice != choice
    assert try_scenario(healed(scenario, scenario.repaired.choice)).status is Status.MISSED


def test_choices_of_all_sorts_are_in_the_corpus() -> None:
    of_workers = [choice for _, choice in scripts(of_discipline=False)]
    assert {choice.rows for choice in of_workers} == set(Rows)
    assert {choice.state_column for choice in of_workers} == set(StateColumn)
    assert len({choice.discipline.name for _, choice in scripts(of_discipline=True)}) >= 9


@pytest.mark.parametrize("scenario", [scenario for _, scenario in SCENARIOS], ids=lambda scenario: scenario.source)
def test_a_twin_that_is_broken_is_reported(scenario: Scenario) -> None:
    tried = try_scenario(replace(scenario, repaired=scenario.broken))
    assert tried.status is Status.TWIN_NOT_CLEAN
    assert tried.twin_problems


def test_a_scenario_that_names_another_property_is_reported_as_missed() -> None:
    (scenario,) = case_of("13501").scenarios
    tried = try_scenario(replace(scenario, property=Property.COUNTERS_SYMMETRIC))
    assert tried.status is Status.MISSED
    assert tried.found == (Property.READ_RESIDENT,)


def test_a_twin_that_is_cut_short_is_not_clean() -> None:
    (scenario,) = case_of("13501").scenarios
    assert isinstance(scenario.repaired, Script)
    cut = replace(scenario, repaired=replace(scenario.repaired, events=scenario.repaired.events[:-1]))
    tried = try_scenario(cut)
    assert tried.status is Status.TWIN_NOT_CLEAN
    assert "tail" in " ".join(tried.twin_problems)


def test_a_twin_in_which_nothing_was_checked_is_not_clean() -> None:
    (scenario,) = case_of("13501").scenarios
    assert isinstance(scenario.repaired, Script)
    config, added, *_, end = scenario.repaired.events
    idle = replace(scenario, repaired=replace(scenario.repaired, events=(config, added, Finish(request="A", reason="abort"), end)))
    assert try_scenario(idle).twin_problems == ("no property was checked",)


def outcome(case: Case, scenario: Scenario) -> Outcome:
    return Outcome(case=case, tried=(try_scenario(scenario),))


def test_one_row_that_is_missed_costs_the_recall_and_the_exit_code() -> None:
    outcomes = run_cases(CORPUS.cases)
    assert exit_of(outcomes) is Exit.HOLDS
    caught = sum(outcome.status is Status.CAUGHT and outcome.case.row.mark is Mark.CATCHABLE for outcome in outcomes)
    assert recall_lines(CORPUS, outcomes)[0].startswith(f"caught {caught} of 26 catchable rows of F1, F2, F7, F9, ")
    position = next(index for index, outcome in enumerate(outcomes) if outcome.case.row.id.endswith("13501"))
    (scenario,) = outcomes[position].case.scenarios
    outcomes[position] = outcome(outcomes[position].case, replace(scenario, property=Property.COUNTERS_SYMMETRIC))
    assert exit_of(outcomes) is Exit.VIOLATED
    assert recall_lines(CORPUS, outcomes)[0].startswith(f"caught {caught - 1} of 26 ")


def test_a_row_is_caught_only_if_all_its_scenarios_are() -> None:
    case = case_of("vllm#47728")
    good, bad = case.scenarios[0], replace(case.scenarios[1], property=Property.COUNTERS_SYMMETRIC)
    assert Outcome(case=case, tried=(try_scenario(good), try_scenario(bad))).status is Status.MISSED


# ---- exact numbers ---------------------------------------------------------------------------------------------------


def releases(row_id: str) -> list[Release]:
    scenario = case_of(row_id).scenarios[0]
    return [event for event in trace_of(scenario.broken) if isinstance(event, Release) and event.cause == "window"]


def test_positions_158_and_159_free_block_0_under_a_step_that_reads_token_31() -> None:
    (scenario,) = case_of("13501").scenarios
    violation = try_scenario(scenario).violation
    assert violation is not None
    assert (violation.index, violation.needed) == (0, (31, 31))
    assert [release.indices for release in releases("13501")] == [(0,)]


def test_rounding_up_frees_the_block_in_which_a_window_of_4096_begins() -> None:
    (scenario,) = case_of("967").scenarios
    violation = try_scenario(scenario).violation
    assert violation is not None
    assert (violation.index, violation.needed) == (352, (11265, 11295))


def test_the_first_fault_of_the_fix_is_seen_without_a_connector_only_as_a_rollback() -> None:
    fault_in_flight, fault_of_rollback = case_of("vllm#47728").scenarios
    without = try_scenario(replace(fault_in_flight, contract=Contract.STREAM_ORDER))
    assert without.status is Status.MISSED
    assert try_scenario(fault_of_rollback).found == (Property.ROLLBACK_RESIDENT,)


def test_the_corpus_is_found_in_a_checkout() -> None:
    assert folder() == BUGS
    assert isinstance(load(folder()), Corpus)
