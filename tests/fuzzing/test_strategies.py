"""The public strategies: what they draw is accepted by the engine, and shrinks to what is smallest."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, Phase, find, given, settings

from settled.model.disciplines import CEIL, OPTIMISTIC
from settled.model.specs import FullAttentionSpec
from settled.proofs.fuzzing.running import run_case
from settled.proofs.fuzzing.strategies import engine_configs, scripts, workloads
from settled.reference.config import EngineConfig
from settled.reference.decisions import Decision, Player
from settled.reference.decoder import Case, ConfigSpace, decode
from settled.reference.engine import Engine

FIND = settings(
    max_examples=2000,
    derandomize=True,
    database=None,
    deadline=None,
    phases=[Phase.generate, Phase.shrink],
    suppress_health_check=list(HealthCheck),
)


# The same examples every time, however busy the machine is.
RUN = settings(derandomize=True, database=None, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@given(engine_configs())
@settings(RUN, max_examples=200)
def test_the_engine_accepts_every_configuration(config: EngineConfig) -> None:
    assert Engine(config).is_idle


@given(workloads())
@settings(RUN, max_examples=100)
def test_a_workload_violates_nothing_and_has_its_numbers(case: Case) -> None:
    assert not run_case(case).found
    assert decode(case.numbers)[:2] == case[:2]


def test_the_arguments_are_limits() -> None:
    configs = engine_configs(kinds=["full"], groups_max=1, block_sizes=[16, 32], max_in_flight_steps=1, discipline=CEIL)
    config = find(configs, lambda config: config.max_model_len > 20, settings=FIND)
    assert config.groups == (FullAttentionSpec(block_size=16),)
    assert (config.max_model_len, config.max_in_flight_steps, config.discipline) == (21, 1, CEIL)
    with pytest.raises(ValueError, match="'nonsense' is not one of"):
        engine_configs(kinds=["nonsense"])


def test_configurations_shrink_to_what_was_asked_for() -> None:
    config = find(engine_configs(), lambda config: len(config.groups) == 2 and config.num_speculative_tokens >= 2, settings=FIND)
    assert [spec.block_size for spec in config.groups] == [1, 1]
    assert (config.num_speculative_tokens, config.max_in_flight_steps, config.max_model_len) == (2, 1, 8)


def test_scripts_shrink_to_what_was_asked_for() -> None:
    script = find(scripts(), lambda script: sum(decision.name == "preempt" for decision in script) == 2, settings=FIND)
    assert script == (Decision("preempt", (0, 0)),) * 2
    assert find(scripts(decisions_max=3), lambda script: len(script) >= 3, settings=FIND) == (Decision("schedule", (0,)),) * 3


def test_a_script_fits_any_configuration() -> None:
    script = find(scripts(), lambda script: {"add", "process"} <= {decision.name for decision in script}, settings=FIND)
    player = Player(find(engine_configs(), lambda config: len(config.groups) == 3, settings=FIND))
    for decision in script:
        player.take(decision)
    assert player.added == 1


def test_a_planted_bug_shrinks_to_three_decisions() -> None:
    case = find(workloads(ConfigSpace(discipline=OPTIMISTIC)), lambda case: bool(run_case(case).found), settings=FIND)
    assert [decision.name for decision in case.decisions] == ["add", "schedule", "schedule"]
