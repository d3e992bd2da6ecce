"""Every byte string is a run, the same one every time, and near the boundaries."""

from __future__ import annotations

import subprocess
import sys
import time
from dataclasses import replace
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from settled.model.disciplines import OPTIMISTIC
from settled.model.specs import SlidingWindowSpec
from settled.proofs.fuzzing.machine import recount
from settled.reference.admission import blocks_for_one_request
from settled.reference.decisions import DRAIN, SORTS, Decision, Player, boundary_lengths
from settled.reference.decoder import CODES, KINDS, Case, ConfigSpace, decode, encode, with_decisions

# The same examples every time, however busy the machine is.
RUN = settings(derandomize=True, database=None, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def cases(count: int, seed: int = 0) -> list[Case]:
    rng = Random(seed)
    return [decode(rng.randbytes(rng.randint(0, 500))) for _ in range(count)]


@given(st.binary(max_size=300))
@settings(RUN, max_examples=150)
def test_every_byte_string_is_a_run(data: bytes) -> None:
    case = decode(data)
    player = Player(case.config)
    for decision in (*case.decisions, DRAIN):
        player.take(decision)
        recount(player.engine)
    assert player.engine.is_idle
    assert not any(player.engine.pool_snapshot())


@given(st.binary(max_size=200))
@settings(RUN, max_examples=200)
def test_what_was_taken_decodes_to_the_same(data: bytes) -> None:
    case = decode(data)
    assert decode(case.numbers) == case
    assert with_decisions(case, case.decisions).decisions == case.decisions
    assert decode(with_decisions(case, case.decisions).numbers)[:2] == case[:2]


def test_no_bytes_are_the_simplest_case() -> None:
    case = decode(b"")
    assert case.decisions == ()
    assert case.config.groups == (SlidingWindowSpec(block_size=1, window=1),)
    assert (case.config.max_in_flight_steps, case.config.num_speculative_tokens) == (1, 0)


def test_other_decisions_leave_the_configuration() -> None:
    case = cases(1, seed=3)[0]
    other = with_decisions(case, [Decision("add", (0, 0, 0)), Decision("drain")])
    assert decode(other.numbers) == Case(case.config, (Decision("add", (0, 0, 0)), Decision("drain")), other.numbers)


def test_each_sort_has_a_code_and_its_numbers_are_bytes() -> None:
    assert set(CODES) == set(SORTS)
    for name, sort in SORTS.items():
        last = Decision(name, tuple(argument.values[-1] for argument in sort.arguments))
        assert len(encode(last)) == 1 + len(sort.arguments)


def test_a_decision_that_nothing_decodes_to_is_refused() -> None:
    with pytest.raises(ValueError, match="not in"):
        encode(Decision("nonsense"))
    with pytest.raises(ValueError, match="not in"):
        encode(Decision("preempt", (0, 7)))


def test_configurations_are_near_the_boundaries() -> None:
    configs = [case.config for case in cases(300)]
    spare = [config.num_blocks - 1 - blocks_for_one_request(replace(config, num_blocks=2)) for config in configs]
    assert min(spare) == 0
    assert spare.count(0) > 30
    assert spare.count(1) > 30
    windows = [spec for config in configs for spec in config.groups if isinstance(spec, SlidingWindowSpec)]
    assert all(min(spec.window % spec.block_size, -spec.window % spec.block_size) <= 2 for spec in windows)
    assert {(spec.window - 1) % spec.block_size == 0 for spec in windows} == {True, False}
    assert {config.max_in_flight_steps for config in configs} == {1, 2, 3, 4}


def test_prompts_are_near_the_boundaries() -> None:
    config = decode(b"").config
    config = replace(
        config, groups=(SlidingWindowSpec(block_size=16, window=40),), max_model_len=70, num_blocks=99, max_num_batched_tokens=25
    )
    assert boundary_lengths(config) == (1, 2, 3, 15, 16, 17, 24, 25, 26, 31, 32, 33, 39, 40, 41, 47, 48, 49, 63, 64, 65, 68, 69)


def test_a_space_limits_what_is_drawn() -> None:
    space = ConfigSpace(kinds=("full",), groups_max=1, block_sizes=(16,), max_in_flight_steps=2, discipline=OPTIMISTIC)
    rng = Random(1)
    for _ in range(50):
        config = decode(rng.randbytes(40), space).config
        assert [(spec.kind, spec.block_size) for spec in config.groups] == [("full", 16)]
        assert config.max_in_flight_steps <= 2
        assert config.discipline is OPTIMISTIC


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"kinds": ("nonsense",)}, f"'nonsense' is not one of {', '.join(KINDS)}"),
        ({"groups_max": 0}, "groups_max must be 1 to 255, not 0"),
        ({"max_model_len": 7}, "max_model_len must be 8 to 255, not 7"),
        ({"max_in_flight_steps": 256}, "max_in_flight_steps must be 1 to 255, not 256"),
        ({"block_sizes": ()}, "at least one size"),
        ({"block_sizes": (0,)}, "at least 1 token"),
    ],
)
def test_a_space_that_cannot_be_is_refused(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ConfigSpace(**arguments)  # type: ignore[arg-type]


def test_decoding_costs_less_than_the_engine() -> None:
    rng = Random(5)
    data = [rng.randbytes(300) for _ in range(60)]
    began = time.process_time()
    decoded = [decode(each) for each in data]
    between = time.process_time()
    for case in decoded:
        player = Player(case.config)
        for decision in case.decisions:
            player.take(decision)
    assert between - began < time.process_time() - between


def test_the_reference_needs_no_testing_library() -> None:
    code = "import sys, settled.reference.decoder; assert not {'hypothesis', 'networkx', 'z3'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
