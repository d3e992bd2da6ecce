"""What each kind keeps, frees and finds in the cache, in the smallest runs that show it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest

from settled.model.events import Allocate, Computed, Event, Move, Release, Schedule, Touch
from settled.model.specs import (
    ChunkedLocalAttentionSpec,
    CrossAttentionSpec,
    CustomSpec,
    FullAttentionSpec,
    KVCacheSpec,
    MambaSpec,
    RSWASpec,
    SinkWindowSpec,
)
from settled.reference.config import ConfigError, EngineConfig
from settled.reference.engine import Engine, Outcome
from settled.reference.masks import MaskError, Reads, mask_named, register_mask, unregister_mask
from settled.reference.request import RequestStep, StepOutput


def config_of(*groups: KVCacheSpec, **changes: object) -> EngineConfig:
    config = EngineConfig(groups=groups, num_blocks=100, max_in_flight_steps=2, max_num_batched_tokens=64, max_model_len=64)
    return replace(config, **changes)  # type: ignore[arg-type]


def held(engine: Engine, group: int = 0) -> str:
    """The table of request r: 1 for a block, 0 for null."""
    return "".join(str(int(block != 0)) for block in engine.inspect("r").table[group])


def run_steps(engine: Engine, steps: int) -> None:
    """That many synchronous steps."""
    for _ in range(steps):
        engine.schedule()
        engine.process()


# ---- kinds with a gap ------------------------------------------------------------------------------------------------


def test_sink_and_window_leave_a_gap() -> None:
    engine = Engine(config_of(SinkWindowSpec(block_size=4, sink=5, window=4)))
    engine.add_request("r", 21, max_tokens=30)
    run_steps(engine, 1)
    engine.schedule()  # at 21 tokens: sink in blocks 0 and 1, window from 18 on in blocks 4 and 5
    assert held(engine) == "110011"


def test_rswa_keeps_the_prompt_and_frees_the_gap_behind_the_window() -> None:
    events: list[Event] = []
    engine = Engine(config_of(RSWASpec(block_size=4, window=4)), events.append)
    engine.add_request("r", 6, max_tokens=30)
    run_steps(engine, 12)
    engine.schedule()  # at 17 tokens: the prompt in blocks 0 and 1; like vLLM one key more than the window, from 13 on
    assert held(engine) == "11011"
    assert [event.indices for event in events if isinstance(event, Release)] == [(2,)]


def test_a_users_mask_is_asked_block_by_block() -> None:
    """Every fourth token is read for ever, the last three as well: only blocks of 2 without a fourth token go."""
    with registered("test.fourth", lambda query, token: token % 4 == 0 or query - token < 3):
        engine = Engine(config_of(CustomSpec(block_size=2, name="test.fourth")))
    engine.add_request("r", 11, max_tokens=30)
    run_steps(engine, 1)
    engine.schedule()
    assert held(engine) == "101011"


@contextmanager
def registered(name: str, reads: Reads) -> Iterator[None]:
    """A mask, known within the block; engines built there keep it."""
    register_mask(name, reads)
    try:
        yield
    finally:
        unregister_mask(name)


def test_a_mask_has_one_name() -> None:
    with registered("test.one", lambda query, token: True), pytest.raises(MaskError, match="registered already"):
        register_mask("test.one", lambda query, token: False)
    with pytest.raises(MaskError, match=r"no mask named 'test\.one'"):
        mask_named("test.one")


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (CrossAttentionSpec(block_size=4), "no encoder"),
        (CustomSpec(block_size=4, name="test.unknown"), "no mask named 'test.unknown'"),
        (MambaSpec(block_size=4, mode="all"), "no manager for mamba mode 'all'"),
        (MambaSpec(block_size=4, mode="align"), "0 draft slots for up to 3 drafts"),
        (MambaSpec(block_size=3, mode="align", num_speculative_blocks=3), "must fit into a block"),
        (MambaSpec(block_size=60, mode="none", num_speculative_blocks=3), "block_size 60, max_model_len 64"),
        (MambaSpec(block_size=64, mode="none", num_speculative_blocks=3), "cannot be cached"),
    ],
)
def test_what_the_engine_cannot_serve_is_said_early(spec: KVCacheSpec, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        config_of(FullAttentionSpec(block_size=4), spec, num_speculative_tokens=3, enable_prefix_caching=True)


# ---- states ----------------------------------------------------------------------------------------------------------

ALIGN = MambaSpec(block_size=8, mode="align", num_speculative_blocks=2)


def indices_of(step: StepOutput | None) -> tuple[tuple[int, ...], tuple[int, ...], bool]:
    """What the one request of a step may read and may write in group 0, and whether that is certain."""
    assert step is not None
    (entry,) = step.entries
    assert entry.indices is not None
    return entry.indices.reads[0], entry.indices.writes[0], entry.indices.known


def recorded(events: list[Event]) -> list[tuple[str, object, object]]:
    """Per scheduled request, what the trace says of reads and writes."""
    return [(entry.request, entry.reads, entry.writes) for event in events if isinstance(event, Schedule) for entry in event.requests]


def test_a_state_in_place_has_its_blocks_from_the_start_and_keeps_them() -> None:
    events: list[Event] = []
    spec = MambaSpec(block_size=64, mode="none", num_speculative_blocks=2)
    engine = Engine(config_of(spec, num_speculative_tokens=2), events.append)
    engine.add_request("r", 20, max_tokens=10)
    seen = [indices_of(engine.schedule()), indices_of(engine.schedule())]
    engine.process()
    seen.append(indices_of(engine.schedule()))
    assert held(engine) == "111"
    assert seen == [((), (0,), True), ((0,), (0, 1, 2), True), ((0, 1, 2), (0, 1, 2), False)]
    assert recorded(events) == [("r", ((),), ((0,),)), ("r", ((0,),), ((0, 1, 2),)), ("r", None, None)]
    engine.run_to_idle()
    assert sum(isinstance(event, Allocate) for event in events) == 1


def test_draft_slots_move_along_and_what_is_passed_stays_null() -> None:
    events: list[Event] = []
    engine = Engine(config_of(ALIGN, num_speculative_tokens=2), events.append)
    engine.add_request("r", 40, max_tokens=10)
    engine.schedule({"r": (8, 0)})
    assert indices_of(engine.schedule({"r": (32, 0)})) == ((0,), (4,), True)  # from block 0 to block 4
    assert held(engine) == "1000111"
    moves = [(event.from_index, event.to_index) for event in events if isinstance(event, Move)]
    assert moves == [(1, 4), (2, 5)]
    fresh = [(event.first_index, len(event.blocks)) for event in events if isinstance(event, Allocate)]
    assert fresh == [(0, 3), (6, 1)]
    assert recorded(events) == [("r", ((),), ((0,),)), ("r", ((0,),), ((4,),))]
    (step,) = engine.unprocessed[-1].entries
    assert step.new_blocks[0] == engine.inspect("r").table[0][3:]  # the worker's row gets null for index 3, and the moved blocks again


def test_a_step_behind_drafts_names_every_slot_that_the_last_accepted_state_may_be_in() -> None:
    engine = Engine(config_of(ALIGN, num_speculative_tokens=2, max_in_flight_steps=3))
    engine.add_request("r", 6, max_tokens=20)
    assert [indices_of(engine.schedule()) for _ in range(3)] == [
        ((), (0,), True),  # 0 to 5
        ((0,), (0, 1, 2, 3), False),  # 6 to 8: the running slot is 1; if block 0 ends with an accepted token, its state is copied there
        ((1, 2, 3), (0, 1, 2, 3), False),  # 9 to 11, or lower
    ]
    engine.process()
    engine.process(lambda entry: Outcome(0))  # settled: 7 tokens
    assert indices_of(engine.schedule()) == ((1, 2, 3), (1, 2, 3), False)


@pytest.mark.parametrize("drafts", [0, 2])
def test_a_state_that_a_step_names_is_never_null(drafts: int) -> None:
    """At the schedule of every step, with every number of accepted drafts and up to three steps in flight."""
    for accepted in range(drafts + 1):
        for depth in (1, 2, 3):
            named = 0
            engine = Engine(
                config_of(
                    FullAttentionSpec(block_size=4),
                    replace(ALIGN, num_speculative_blocks=drafts),
                    num_speculative_tokens=drafts,
                    max_in_flight_steps=depth,
                    enable_prefix_caching=True,
                )
            )
            engine.add_request("r", 21, max_tokens=30)
            while engine.scheduler.requests:
                if engine.can_schedule and (step := engine.schedule()) is not None:
                    (entry,) = step.entries
                    assert entry.indices is not None
                    table = engine.inspect("r").table[1]
                    used = [*entry.indices.reads[1], *entry.indices.writes[1]]
                    assert all(table[index] for index in used), (accepted, depth, entry.start)
                    named += len(used)
                else:
                    engine.process(accept_up_to(accepted))
            assert named > 30


def accept_up_to(accepted: int) -> Callable[[RequestStep], Outcome]:
    return lambda entry: Outcome(min(accepted, entry.drafts))


def test_chunks_end_where_a_state_can_be_cached() -> None:
    config = config_of(replace(ALIGN, num_speculative_blocks=0), enable_prefix_caching=True, max_num_batched_tokens=20)
    engine = Engine(replace(config, max_in_flight_steps=9))
    engine.add_request("r", 29, max_tokens=5)
    steps = [engine.schedule() for _ in range(4)]
    assert [step.entries[0].tokens for step in steps if step is not None] == [16, 8, 5, 1]
    engine = Engine(replace(config, enable_prefix_caching=False))
    engine.add_request("r", 29, max_tokens=5)
    steps = [engine.schedule() for _ in range(2)]
    assert [step.entries[0].tokens for step in steps if step is not None] == [20, 9]


def test_a_block_wider_than_the_batch_is_crossed_in_parts() -> None:
    config = config_of(replace(ALIGN, num_speculative_blocks=0), enable_prefix_caching=True, max_num_batched_tokens=5)
    engine = Engine(replace(config, max_in_flight_steps=9))
    engine.add_request("r", 18, max_tokens=5)
    steps = [engine.schedule() for _ in range(5)]
    assert [step.entries[0].tokens for step in steps if step is not None] == [5, 3, 5, 3, 2]


def test_only_the_state_at_the_end_of_a_block_is_cached() -> None:
    """A scripted chunk runs over the end of block 0: what stays there is a state in its middle."""
    engine = Engine(config_of(replace(ALIGN, num_speculative_blocks=0), enable_prefix_caching=True))
    engine.add_request("r", 24, max_tokens=5)
    engine.schedule({"r": (4, 0)})
    engine.schedule({"r": (20, 0)})
    cached = engine.scheduler.kv_cache_manager.block_pool.cached_blocks()
    assert held(engine) == "101"
    assert [block.block_id for block in cached] == [engine.inspect("r").table[0][2]]


def test_a_state_computed_in_a_step_serves_no_hit_in_that_step() -> None:
    events: list[Event] = []
    engine = Engine(config_of(replace(ALIGN, num_speculative_blocks=0), enable_prefix_caching=True), events.append)
    prompt = tuple(range(1, 13))
    for name in ("r", "s"):
        engine.add_request(name, prompt, max_tokens=3)
    engine.schedule()
    assert [entry[0] for entry in recorded(events)] == ["r"]
    engine.schedule()
    assert [(event.request, event.computed) for event in events if isinstance(event, Computed)] == [("s", 8)]
    assert recorded(events)[-1] == ("s", ((0,),), ((1,),))  # s starts from the state of the hit


# ---- hits ------------------------------------------------------------------------------------------------------------


def second_run(*groups: KVCacheSpec, shared: int, evicted: tuple[int, ...] = ()) -> tuple[list[int], list[tuple[int, int]]]:
    """A request of 40 tokens runs to its end; its blocks at the table indices `evicted` of group 0 leave the cache; a second one shares its
    first tokens. Returns the hits in tokens, and where blocks of group 0 were touched, first and last."""
    events: list[Event] = []
    engine = Engine(config_of(*groups, enable_prefix_caching=True), events.append)
    prompt = tuple(range(1, 41))
    engine.add_request("first", prompt, max_tokens=1)
    engine.schedule()
    table = engine.inspect("first").table[0]
    engine.run_to_idle()
    pool = engine.scheduler.kv_cache_manager.block_pool
    pool._evict([pool.blocks[table[index]] for index in evicted])
    events.clear()
    engine.add_request("second", (*prompt[:shared], *range(500, 541 - shared)), max_tokens=1)
    engine.run_to_idle()
    touched = [(e.first_index, e.first_index + len(e.blocks) - 1) for e in events if isinstance(e, Touch) and e.group == 0]
    return [event.computed for event in events if isinstance(event, Computed)], touched


ALL = FullAttentionSpec(block_size=4)  # beside the others: it finds the shared prefix, block by block


def test_a_hit_of_chunked_local_needs_the_chunk_in_which_it_ends() -> None:
    spec = ChunkedLocalAttentionSpec(block_size=4, chunk=16)
    assert second_run(spec, ALL, shared=30) == ([28], [(4, 6)])
    assert second_run(spec, ALL, shared=33) == ([32], [])  # ends with a chunk: nothing before is read
    assert second_run(spec, ALL, shared=30, evicted=(5,)) == ([20], [(4, 4)])
    assert second_run(spec, ALL, shared=30, evicted=(4,)) == ([16], [])
    assert second_run(spec, shared=0) == ([32], [])  # alone, whole chunks need not even be computed


def test_where_blocks_do_not_divide_the_chunk_a_shorter_hit_needs_the_chunk_before() -> None:
    """Chunks of 6, blocks of 4: position 20 reads from 18 on, in block 4. Without it, 16 reads from 12 on, in block 3."""
    spec = ChunkedLocalAttentionSpec(block_size=4, chunk=6)
    assert second_run(spec, ALL, shared=22) == ([20], [(4, 4)])
    assert second_run(spec, ALL, shared=22, evicted=(4,)) == ([16], [(3, 3)])
    assert second_run(spec, ALL, shared=22, evicted=(4, 3)) == ([12], [])


def test_a_hit_of_sink_and_window_needs_both() -> None:
    spec = SinkWindowSpec(block_size=4, sink=6, window=5)
    assert second_run(spec, shared=30) == ([28], [(0, 1), (6, 6)])
    assert second_run(spec, shared=30, evicted=(6,)) == ([24], [(0, 1), (5, 5)])
    assert second_run(spec, shared=30, evicted=(1,)) == ([4], [(0, 0)])
    assert second_run(spec, shared=30, evicted=(0,)) == ([], [])


def test_a_hit_of_rswa_takes_every_block_of_the_prompt() -> None:
    assert second_run(RSWASpec(block_size=4, window=5), shared=30) == ([28], [(0, 6)])


def test_a_hit_of_states_needs_one() -> None:
    """The prompt of 40 is computed up to 32 and then on: states stand at the ends of blocks 3 and 4."""
    spec = MambaSpec(block_size=8, mode="align")
    assert second_run(spec, ALL, shared=40) == ([40], [(4, 4)])
    assert second_run(spec, ALL, shared=39) == ([32], [(3, 3)])
    assert second_run(spec, ALL, shared=31) == ([], [])
    assert second_run(spec, ALL, shared=39, evicted=(3,)) == ([], [])


def test_chunks_that_are_shorter_than_a_block_of_states_run_on_to_its_end() -> None:
    """A threshold below the block size must not keep a prefill from starting for ever."""
    spec = MambaSpec(block_size=8, mode="align")
    engine = Engine(config_of(spec, enable_prefix_caching=True, long_prefill_token_threshold=3))
    engine.add_request("r", 20, max_tokens=1)
    chunks = []
    while engine.scheduler.requests:
        step = engine.schedule()
        assert step is not None
        chunks += [(entry.start, entry.tokens) for entry in step.entries]
        engine.process()
    assert chunks == [(0, 3), (3, 3), (6, 2), (8, 3), (11, 3), (14, 2), (16, 3), (19, 1)]
