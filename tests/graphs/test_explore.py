"""State graphs: counts of small engines, stuck states, circles, and that no wrong merging of states hides one."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from settled.model.disciplines import RIGHT, VLLM
from settled.proofs.graphs.explore import Scenario, explore
from settled.proofs.graphs.scenarios import SCENARIOS
from settled.proofs.graphs.states import freeze, state_of, thaw
from settled.proofs.graphs.waiting import cycle_of, missing_blocks, wait_for_graph, why_stuck
from settled.reference.admission import blocks_for_one_request
from settled.reference.decoder import ConfigSpace, decode
from settled.reference.engine import Engine

RIGHT_ONES = [name for name, named in SCENARIOS.items() if named.is_right]


@pytest.mark.parametrize(
    ("name", "states", "transitions"), [("window", 23, 29), ("drafts", 49, 86), ("cache", 34, 43), ("full-drop", 70, 111)]
)
def test_a_right_engine_is_never_stuck(name: str, states: int, transitions: int) -> None:
    found = explore(SCENARIOS[name].scenario)
    assert (found.graph.number_of_nodes(), found.graph.number_of_edges()) == (states, transitions)
    assert found.is_complete
    assert not found.stuck
    assert not found.circles()
    assert found.done
    assert all(found.engine(node).is_idle for node in found.done)


def test_every_right_scenario_has_its_counts() -> None:
    assert set(RIGHT_ONES) == {"window", "drafts", "cache", "full-drop"}


@pytest.mark.parametrize("name", ["cap-stuck", "cap-circle", "preempt-fenced"])
def test_the_repaired_twin_of_a_wrong_engine_is_never_stuck(name: str) -> None:
    scenario = SCENARIOS[name].scenario
    config = replace(scenario.config, discipline=RIGHT)
    config = replace(config, num_blocks=max(config.num_blocks, 1 + blocks_for_one_request(config)))
    found = explore(Scenario(config=config, requests=scenario.requests))
    assert not found.stuck
    assert not found.circles()


def test_random_right_engines_are_never_stuck() -> None:
    rng = Random(11)
    space = ConfigSpace(groups_max=2, block_sizes=(1, 2, 4), max_in_flight_steps=3, num_speculative_tokens=1, max_model_len=12)
    for _ in range(12):
        config = replace(decode(rng.randbytes(40), replace(space, discipline=rng.choice((RIGHT, VLLM)))).config, connector=False)
        requests = tuple((rng.randint(1, config.max_model_len - 1), rng.randint(1, 4)) for _ in range(2))
        found = explore(Scenario(config=config, requests=requests), states_max=1000)
        assert not found.stuck, (config, requests)
        assert not found.circles(), (config, requests)


# ---- what is wrong ---------------------------------------------------------------------------------------------------


def test_a_request_that_never_fits_is_stuck() -> None:
    found = explore(SCENARIOS["cap-stuck"].scenario)
    assert found.stuck == [0]
    assert not found.done
    engine = found.engine(0)
    assert missing_blocks(engine)["r0"] == 1
    waits = wait_for_graph(engine)
    assert waits.edges["r0", "the pool"]["reason"] == "lacks 1 block, 2 free"
    assert waits.edges["r1", "r0"]["reason"] == "comes after it in the queue"
    assert cycle_of(waits) == []
    assert why_stuck(waits).startswith("no cycle, nobody can give it: r0 waits for the pool")


def test_a_request_that_preempts_itself_goes_round_for_ever() -> None:
    found = explore(SCENARIOS["cap-circle"].scenario)
    (circle,) = found.circles()
    assert circle.states == (1, 2, 3)
    assert circle.labels == ("process: r0 +0", "schedule: r0 preempted", "schedule: r0 [0, 4)")
    assert not circle.has_exit
    waits = wait_for_graph(found.engine(2))
    assert cycle_of(waits) == ["r0", "the pool"]
    assert why_stuck(waits) == ("a cycle: r0 waits for the pool (r0 lacks 1 block, 0 free); the pool waits for r0 (r0 holds 2 blocks)")
    assert found.way_to(2) == ["schedule: r0 [0, 4)", "process: r0 +0"]


def test_preempting_fenced_victims_lets_requests_start_over_for_ever() -> None:
    found = explore(SCENARIOS["preempt-fenced"].scenario)
    circle = found.circles()[0]
    assert circle.has_exit  # it takes an unlucky order of outputs to stay in it
    around = " ".join(circle.labels)
    assert "r0 preempted" in around
    assert "r1 preempted" in around
    assert "let go" in around  # what the fence kept comes back when it helps nobody any more
    names = {node for state in circle.states for node in wait_for_graph(found.engine(state)).nodes}
    assert {"the pool", "r0", "r1", "the fence of r0", "the fence of r1"} <= names


def test_a_cap_on_states_is_told() -> None:
    found = explore(SCENARIOS["full-drop"].scenario, states_max=10)
    assert not found.is_complete
    assert found.graph.number_of_nodes() == 10


# ---- states ----------------------------------------------------------------------------------------------------------


def engine_of(name: str) -> Engine:
    engine = Engine(SCENARIOS[name].scenario.config)
    for number, (prompt, limit) in enumerate(SCENARIOS[name].scenario.requests):
        engine.add_request(f"r{number}", prompt, max_tokens=limit)
    return engine


@pytest.mark.parametrize("name", list(SCENARIOS))
def test_a_copy_is_in_the_same_state_and_goes_on_the_same_way(name: str) -> None:
    engine = engine_of(name)
    for _ in range(4):
        copy = thaw(freeze(engine))
        assert state_of(copy) == state_of(engine)
        for each in (engine, copy):
            if each.can_schedule:
                each.schedule()
            elif each.unprocessed:
                each.process()
        assert state_of(copy) == state_of(engine)


def test_block_ids_and_preemptions_do_not_tell_states_apart_but_counters_do() -> None:
    one, other = engine_of("window"), engine_of("window")
    queue = other.scheduler.kv_cache_manager.block_pool.free_block_queue
    queue.append_n(queue.popleft_n(2))  # other ids come first
    for engine in (one, other):
        engine.schedule()
    assert one.inspect("r0").table != other.inspect("r0").table
    assert state_of(one) == state_of(other)
    other.scheduler.requests["r0"].num_preemptions += 1
    assert state_of(one) == state_of(other)
    other.scheduler.requests["r0"].num_in_flight_tokens -= 1
    assert state_of(one) != state_of(other)
