"""Caps against what requests hold: where the published ones are too small, the reference's are reached and not passed."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from settled.model.disciplines import CAP_WITHOUT_IN_FLIGHT
from settled.model.events import Allocate, Config, Event, Release, Touch
from settled.model.specs import (
    ChunkedLocalAttentionSpec,
    CrossAttentionSpec,
    CustomSpec,
    FullAttentionSpec,
    KVCacheSpec,
    MambaSpec,
    RSWASpec,
    SinkWindowSpec,
    SlidingWindowSpec,
)
from settled.model.trace_io import read_trace
from settled.reference.admission import blocks_for_one_request, max_admission_blocks_per_request, with_caps
from settled.reference.config import EngineConfig
from settled.reference.engine import Engine
from settled.reference.workload import ALL_KINDS, random_workload, run_workload

TRACES = Path(__file__).parents[1] / "data" / "traces"


def cap(spec: KVCacheSpec, **numbers: int) -> int:
    return max_admission_blocks_per_request(spec, **{"max_in_flight_tokens": 8, "max_model_len": 1000, **numbers})


def most_held(spec: KVCacheSpec, steps: list[int], **changes: int) -> int:
    """The most blocks in the table of a request that computes `steps`, each chunk right behind the one before in a pipeline of depth 1."""
    config = EngineConfig(groups=(spec,), num_blocks=100, max_num_batched_tokens=max(steps), max_model_len=1000)
    engine = Engine(replace(config, **changes))  # type: ignore[arg-type]
    engine.add_request("r", sum(steps) + 1, max_tokens=2)
    most = 0
    for tokens in steps:
        if not engine.can_schedule:
            engine.process()
        engine.schedule({"r": (tokens, 0)})
        most = max(most, sum(block != 0 for block in engine.inspect("r").table[0]))
    return most


def test_chunks_that_blocks_do_not_divide_hold_more_than_the_published_cap() -> None:
    """design.md, theorem 8: blocks of 16, chunks of 24, 41 tokens settled, 8 in flight: published ceil((24 + 8) / 16) = 2, held 3."""
    spec = ChunkedLocalAttentionSpec(block_size=16, chunk=24)
    assert most_held(spec, [8, 8, 8, 8, 8, 1, 8]) == 3
    assert cap(spec) == 3
    assert cap(spec, max_model_len=30) == 2
    assert cap(ChunkedLocalAttentionSpec(block_size=2, chunk=3)) == 6  # blocks of 2: the published cap is sound


def test_lookahead_slots_count_as_in_flight() -> None:
    assert cap(SlidingWindowSpec(block_size=1, window=1), max_in_flight_tokens=1) == 2
    assert cap(SlidingWindowSpec(block_size=1, window=1), max_in_flight_tokens=1, num_lookahead_tokens=2) == 4
    assert cap(ChunkedLocalAttentionSpec(block_size=1, chunk=1), max_in_flight_tokens=1) == 2
    assert cap(ChunkedLocalAttentionSpec(block_size=1, chunk=1), max_in_flight_tokens=1, num_lookahead_tokens=2) == 4


def test_caps_of_the_other_kinds() -> None:
    assert cap(SinkWindowSpec(block_size=4, sink=5, window=6)) == 2 + 4
    assert cap(SinkWindowSpec(block_size=4, sink=5, window=6), max_model_len=13) == 4
    assert most_held(SinkWindowSpec(block_size=4, sink=5, window=6), [8, 8, 8, 6, 8]) <= 6
    assert cap(RSWASpec(block_size=4, window=6)) == 250
    assert cap(CustomSpec(block_size=4, name="any")) == 250
    assert cap(MambaSpec(block_size=1000, mode="none", num_speculative_blocks=2)) == 3
    with pytest.raises(TypeError, match="cross"):
        cap(CrossAttentionSpec(block_size=4))


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_an_aligned_state_stays_for_each_step_in_flight(depth: int) -> None:
    """vLLM publishes 2 + the draft slots, whatever the depth (MambaSpec.max_memory_usage_bytes)."""
    spec = MambaSpec(block_size=8, mode="align", num_speculative_blocks=2)
    assert most_held(spec, [8] * 6, max_in_flight_steps=depth) == 1 + depth + 2
    assert cap(spec, max_in_flight_steps=depth) == 1 + depth + 2


@pytest.mark.parametrize(
    ("name", "published", "most"),
    [
        ("v0.25.1-mamba-align-spec", 5, 5),  # frees on the computed count, less drafts
        ("v0.26.0-mamba-align-spec", 5, 6),
        ("v0.33.0-mamba-align-spec", 5, 6),
        ("v0.33.0-mixed-align", 3, 4),
    ],
)
def test_recorded_vllm_holds_one_state_more_than_it_publishes_since_it_frees_on_the_settled_count(
    name: str, published: int, most: int
) -> None:
    """Two steps in flight: 0.26 and later hold 3 + the draft slots, of which start-up sizing counts 2 + the draft slots."""
    with (TRACES / f"{name}.ndjson").open(encoding="utf-8") as lines:
        config, *events = [event for _, event in read_trace(lines)]
    assert isinstance(config, Config)
    (group,) = [index for index, spec in enumerate(config.groups) if isinstance(spec, MambaSpec)]
    spec = config.groups[group]
    assert isinstance(spec, MambaSpec)
    assert 2 + spec.num_speculative_blocks == published
    held = held_by_request(events, group)
    assert max(held) == most <= cap(spec, max_in_flight_steps=config.max_in_flight_steps)


def held_by_request(events: list[Event], group: int) -> list[int]:
    """After each event, what its request holds of a group."""
    held: Counter[str] = Counter()
    seen = []
    for event in events:
        if isinstance(event, Allocate | Touch | Release) and event.group == group:
            held[event.request] += -len(event.blocks) if isinstance(event, Release) else len(event.blocks)
            seen.append(held[event.request])
    return seen


@pytest.mark.parametrize("kind", ALL_KINDS)
def test_caps_are_reached(kind: str) -> None:
    """No table ever owns more than its cap; some come within a block of it, so that no cap is idle."""
    closest = []

    def compare(engine: Engine) -> None:
        for manager in engine.scheduler.kv_cache_manager.managers:
            assert manager.cap is not None
            for table in manager.req_to_blocks.values():
                closest.append(manager.cap - sum(block.block_id != 0 for block in table))

    for seed in range(25):
        run_workload(random_workload(seed, kinds=(kind,)), steps=80, check=compare)
    assert 0 <= min(closest) <= 1


def test_start_up_sizing_and_the_gate_count_with_the_same_caps() -> None:
    config = EngineConfig(
        groups=(FullAttentionSpec(block_size=8), SlidingWindowSpec(block_size=8, window=9), MambaSpec(block_size=8, mode="align")),
        num_blocks=100,
        max_num_batched_tokens=16,
        max_in_flight_steps=2,
        max_model_len=160,
    )
    caps = [spec.cap for spec in with_caps(config).groups]
    assert caps == [20, 6, 3]
    assert blocks_for_one_request(config) == 29
    engine = Engine(replace(config, num_blocks=30))
    engine.add_request("r", 159, max_tokens=1)
    assert engine.schedule() is not None
    assert engine.run_to_idle() > 5
    assert [spec.cap for spec in with_caps(replace(config, discipline=CAP_WITHOUT_IN_FLIGHT)).groups] == [20, 2, 2]
