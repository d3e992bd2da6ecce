"""Numbers that vLLM and vLLM-Ascend published about freeing out-of-window blocks, run on the reference.

vLLM pull request #47728 ("Free out-of-window blocks on the processed-token basis under async scheduling"): its tests use a prompt
of 100 tokens, blocks and window of 16 tokens. vllm-ascend issue #13501: window 128, blocks of 32, 158 tokens settled.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from settled.model.disciplines import OPTIMISTIC, RAW_FINISH, RIGHT, VLLM, Discipline
from settled.model.events import Event, Release
from settled.model.specs import ChunkedLocalAttentionSpec, FullAttentionSpec, MambaSpec, SlidingWindowSpec
from settled.reference.admission import max_admission_blocks_per_request
from settled.reference.config import EngineConfig
from settled.reference.connector import LastTableConnector
from settled.reference.engine import Engine, Outcome

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


# ---- chunked local ---------------------------------------------------------------------------------------------------


def test_47728_chunked_local_frees_a_chunk_once_it_is_settled() -> None:
    """A chunk of 32 tokens, blocks of 16: 6 blocks lie before the chunk of token 100, which is settled with the first output."""
    engine = engine_with_prompt(replace(CONFIG, groups=(ChunkedLocalAttentionSpec(block_size=16, chunk=32),)))
    seen = []
    engine.schedule()
    engine.schedule()
    seen.append(nulls(engine))
    for _ in range(2):
        engine.process()
        engine.schedule()
        seen.append(nulls(engine))
    assert seen == [0, 6, 6]


@pytest.mark.parametrize(("batches", "cap"), [(1, 128), (2, 192)])
def test_47728_chunked_local_admission_cap(batches: int, cap: int) -> None:
    spec = ChunkedLocalAttentionSpec(block_size=16, chunk=1024)
    assert max_admission_blocks_per_request(spec, max_in_flight_tokens=batches * 1024, max_model_len=16384) == cap


# ---- Mamba's prefix cache --------------------------------------------------------------------------------------------
#
# vLLM, tests/v1/e2e/general/test_mamba_prefix_cache.py: which of a request's state blocks are held (1) or null (0) right after
# allocate_slots of each step, with and without asynchronous scheduling. Blocks of 560 tokens, mode `align`, 3 drafts a step of which a
# case accepts always as many, 3,072 tokens a batch. Their engine drafts with MTP, for which the scheduler ends the last cacheable chunk
# one block early; the reference has no such drafter, so the prefill chunks are scripted. A row: case, prompt, tokens sampled a step,
# prefill chunks, and the masks, step by step; where they differ, the synchronous one stands before the asynchronous one.
#
# One mask of 136 differs. vLLM 0.26 looks for states to free from the last settled one down to the first null entry, so with two steps in
# flight the state at index 4 stays behind the nulls of a long chunk until the request ends. 0.33 looks past nulls, and so does the
# reference.

GOLDEN = [
    ("accept_1", 554, 1, [554], "1111 1111 1111/11111 1111/11111 11111 11111 11111 11111 01111/11111"),
    ("accept_2_1", 554, 2, [554], "1111 1111 1111/11111 11111 11111 01111/11111"),
    ("accept_2_2", 555, 2, [555], "1111 1111 11111 11111 01111/11111 01111"),
    ("accept_3_1", 553, 3, [553], "1111 1111 1111/11111 11111 01111/11111 01111"),
    ("accept_3_2", 554, 3, [554], "1111 1111 11111 11111 01111/11111"),
    ("accept_3_3", 555, 3, [555], "1111 1111 11111 01111/11111 01111"),
    ("accept_4_1", 553, 4, [553], "1111 1111 11111 01111/11111 01111"),
    ("accept_4_2", 554, 4, [554], "1111 1111 11111 01111/11111 01111"),
    ("accept_4_3", 555, 4, [555], "1111 1111 11111 01111/11111 01111"),
    ("accept_4_4", 556, 4, [556], "1111 1111 11111 01111/11111"),
    ("prompt_block_size", 560, 4, [560], "1111 11111"),
    ("prompt_2_block_size", 1120, 4, [560, 560], "1111 11111 011111/111111"),
    ("prompt_2_block_size_10", 1130, 4, [560, 570], "1111 101111 001111/101111"),
    ("prompt_3_block_size", 1680, 4, [1120, 560], "01111 011111 0011111/0111111"),
    ("prompt_3_block_size_10", 1690, 4, [1120, 570], "01111 0101111 0001111/0101111"),
    (
        "prompt_10_block_size",
        5600,
        4,
        [2800, 2240, 560],
        "00001111 000010001111 0000000011111/0000100011111 00000000011111/00000000111111",  # published: /00001000111111
    ),
    ("prompt_10_block_size_10", 5610, 4, [2800, 2240, 570], "00001111 000010001111 00000000101111/00001000101111"),
]


@pytest.mark.parametrize("discipline", [RIGHT, VLLM], ids=lambda discipline: discipline.name)
@pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize(("prompt", "sampled", "chunks", "masks"), [case[1:] for case in GOLDEN], ids=[case[0] for case in GOLDEN])
def test_47728_mamba_states_held_step_by_step(
    prompt: int, sampled: int, chunks: list[int], masks: str, asynchronous: bool, discipline: Discipline
) -> None:
    config = EngineConfig(
        groups=(MambaSpec(block_size=560, mode="align", num_speculative_blocks=3),),
        num_blocks=30,
        max_in_flight_steps=2 if asynchronous else 1,
        max_num_batched_tokens=3072,
        num_speculative_tokens=3,
        max_model_len=560 * 12,
        enable_prefix_caching=True,
        discipline=discipline,
    )
    engine = Engine(config)
    engine.add_request("r", prompt, max_tokens=25)
    held = []
    for index in range(len(masks.split())):
        if not engine.can_schedule:
            engine.process(lambda entry: Outcome(min(sampled - 1, entry.drafts)))
        engine.schedule({"r": (chunks[index], 0)} if index < len(chunks) else None)
        held.append("".join(str(int(block != 0)) for block in engine.inspect("r").table[0]))
    assert held == [both.split("/")[-1 if asynchronous else 0] for both in masks.split()]
