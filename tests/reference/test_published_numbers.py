"""Numbers that vLLM and vLLM-Ascend published about freeing out-of-window blocks, run on the reference.

vLLM pull request #47728 ("Free out-of-window blocks on the processed-token basis under async scheduling"): its tests use a prompt
of 100 tokens, blocks and window of 16 tokens. vllm-ascend issue #13501: window 128, blocks of 32, 158 tokens settled.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from settled.model.disciplines import OPTIMISTIC, RAW_FINISH, RIGHT, VLLM, Discipline
from settled.model.events import Event, Release
from settled.model.specs import FullAttentionSpec, SlidingWindowSpec
from settled.reference.admission import max_admission_blocks_per_request
from settled.reference.config import EngineConfig
from settled.reference.connector import LastTableConnector
from settled.reference.engine import Engine

CONFIG = EngineConfig(
    groups=(SlidingWindowSpec(block_size=16, window=16),),
    num_blocks=100,
    max_in_flight_steps=2,
    max_num_batched_tokens=128,
    max_model_len=256,
)


def engine_with_prompt(config: EngineConfig, connector: LastTableConnector | None = None) -> Engine:
    engine = Engine(config, connector=connector)
    engine.add_request("r", 100, max_tokens=20)
    return engine


def nulls(engine: Engine) -> int:
    return engine.inspect("r").table[0].count(0)


@pytest.mark.parametrize("discipline", [RIGHT, VLLM], ids=lambda discipline: discipline.name)
def test_47728_in_flight_tokens_over_two_schedules_and_two_outputs(discipline: Discipline) -> None:
    engine = engine_with_prompt(replace(CONFIG, discipline=discipline))
    in_flight = []
    for move in (engine.schedule, engine.schedule, engine.process, engine.process):
        move()
        in_flight.append(engine.inspect("r").in_flight)
    assert in_flight == [100, 101, 1, 0]


@pytest.mark.parametrize("discipline", [RIGHT, VLLM], ids=lambda discipline: discipline.name)
def test_47728_async_nothing_is_freed_while_the_reader_is_in_flight(discipline: Discipline) -> None:
    engine = engine_with_prompt(replace(CONFIG, discipline=discipline))
    engine.schedule()
    engine.schedule()
    assert nulls(engine) == 0
    engine.process()
    engine.schedule()
    assert nulls(engine) == 5
    engine.process()
    engine.schedule()
    assert nulls(engine) == 5


def test_47728_async_the_optimistic_count_frees_under_the_reader() -> None:
    engine = engine_with_prompt(replace(CONFIG, discipline=OPTIMISTIC))
    engine.schedule()
    engine.schedule()
    assert nulls(engine) == 5


def test_47728_synchronous_scheduling_is_unchanged() -> None:
    for discipline in (RIGHT, VLLM, OPTIMISTIC):
        engine = engine_with_prompt(replace(CONFIG, max_in_flight_steps=1, discipline=discipline))
        engine.schedule()
        assert nulls(engine) == 0
        engine.process()
        engine.schedule()
        assert nulls(engine) == 5


@pytest.mark.parametrize(("batches", "cap"), [(1, 129), (2, 193)])
def test_47728_admission_cap(batches: int, cap: int) -> None:
    spec = SlidingWindowSpec(block_size=16, window=1024)
    assert max_admission_blocks_per_request(spec, max_in_flight_tokens=batches * 1024, max_model_len=16384) == cap


def test_full_attention_cap_and_the_retained_and_lookahead_tokens_of_a_window() -> None:
    full = FullAttentionSpec(block_size=16)
    assert max_admission_blocks_per_request(full, max_in_flight_tokens=1024, max_model_len=1000) == 63
    spec = SlidingWindowSpec(block_size=4, window=8, extra_retained=1)
    assert max_admission_blocks_per_request(spec, max_in_flight_tokens=4, max_model_len=100) == 4
    assert max_admission_blocks_per_request(spec, max_in_flight_tokens=4, max_model_len=100, num_lookahead_tokens=1) == 5
    assert max_admission_blocks_per_request(spec, max_in_flight_tokens=4, max_model_len=7) == 3


@pytest.mark.parametrize(("discipline", "first"), [(RIGHT, 0), (VLLM, 0), (RAW_FINISH, 5)], ids=str)
def test_47728_prune_before_a_connector_sees_a_finished_table(discipline: Discipline, first: int) -> None:
    shown = []
    for outputs in (0, 1):
        connector = LastTableConnector()
        engine = engine_with_prompt(replace(CONFIG, discipline=discipline), connector)
        engine.schedule()
        engine.schedule()
        for _ in range(outputs):
            engine.process()
        engine.abort("r")
        assert connector.request_id == "r"
        shown.append(connector.block_ids[0].count(0))
    assert shown == [first, 5]


@pytest.mark.parametrize(("discipline", "freed"), [(RIGHT, []), (VLLM, []), (OPTIMISTIC, [0])], ids=str)
def test_ascend_13501_block_0_is_read_by_the_step_at_position_158(discipline: Discipline, freed: list[int]) -> None:
    events: list[Event] = []
    config = replace(CONFIG, groups=(SlidingWindowSpec(block_size=32, window=128),), max_num_batched_tokens=256, discipline=discipline)
    engine = Engine(config, events.append)
    engine.add_request("r", 158, max_tokens=20)
    engine.schedule()
    engine.process()  # 158 tokens are settled
    engine.schedule()  # reads 31 to 158
    assert [event for event in events if isinstance(event, Release)] == []
    engine.schedule()
    window = [event for event in events if isinstance(event, Release)]
    assert [index for event in window for index in event.indices] == freed
