"""Scheduling: budget, chunks, drafts, rejections under later steps, stops, preemption, abort, the fence, scripted steps."""

from __future__ import annotations

from dataclasses import replace

import pytest

from settled.model.disciplines import DISCARD_FLAG, NO_FENCE, RIGHT, STALE_APPLIED, STALE_UNMARKED, UNDRAINED
from settled.model.events import Event, Finish, Preempt, Process, Release, Schedule
from settled.model.specs import CrossAttentionSpec, FullAttentionSpec, SlidingWindowSpec
from settled.reference.config import ConfigError, EngineConfig, StaleOutputMode
from settled.reference.engine import Engine, Outcome
from settled.reference.outputs import ModelOutputError
from settled.reference.plan import PlanError, PlannedStep
from settled.reference.recorder import Sink
from settled.reference.scheduler import SchedulerError

CONFIG = EngineConfig(
    groups=(FullAttentionSpec(block_size=4),),
    num_blocks=40,
    max_in_flight_steps=2,
    max_num_batched_tokens=16,
    max_num_seqs=4,
    num_speculative_tokens=3,
    max_model_len=64,
)
SYNCHRONOUS = replace(CONFIG, max_in_flight_steps=1, num_speculative_tokens=0)
DROP = replace(CONFIG, stale_output_mode=StaleOutputMode.DROP)


def counters(engine: Engine, request: str = "r") -> tuple[int, int, int]:
    seen = engine.inspect(request)
    return seen.computed, seen.in_flight, seen.stale


def tokens_scheduled(engine: Engine) -> dict[str, tuple[int, int]]:
    step = engine.schedule()
    assert step is not None
    return {entry.request.request_id: (entry.tokens, entry.drafts) for entry in step.entries}


# ---- choosing tokens ---------------------------------------------------------------------------------------------------


def test_a_prompt_goes_in_chunks_and_the_rest_of_the_batch_to_the_next_request() -> None:
    engine = Engine(SYNCHRONOUS)
    engine.add_request("a", 20, max_tokens=2)
    engine.add_request("b", 10, max_tokens=2)
    seen = []
    for _ in range(3):
        seen.append(tokens_scheduled(engine))
        engine.process()
    assert seen == [{"a": (16, 0)}, {"a": (4, 0), "b": (10, 0)}, {"a": (1, 0), "b": (1, 0)}]
    assert engine.is_idle


def test_no_more_requests_run_than_max_num_seqs() -> None:
    engine = Engine(replace(SYNCHRONOUS, max_num_seqs=1))
    engine.add_request("a", 2, max_tokens=1)
    engine.add_request("b", 2, max_tokens=1)
    assert tokens_scheduled(engine) == {"a": (2, 0)}
    engine.process()
    assert tokens_scheduled(engine) == {"b": (2, 0)}


def test_a_decode_step_carries_its_token_and_the_drafts() -> None:
    engine = Engine(CONFIG)
    engine.add_request("r", 6, max_tokens=30)
    assert tokens_scheduled(engine) == {"r": (6, 0)}
    assert tokens_scheduled(engine) == {"r": (4, 3)}
    assert counters(engine) == (10, 10, 0)


def test_a_rejection_rolls_back_under_a_later_step() -> None:
    engine = Engine(CONFIG)
    engine.add_request("r", 6, max_tokens=30)
    engine.schedule()
    engine.process()
    engine.schedule()  # at 6: 1 token, 3 drafts
    engine.schedule()  # at 10 if all are accepted
    assert [(step.start, step.tokens) for step in engine.inspect("r").unprocessed] == [(6, 4), (10, 4)]
    engine.process(lambda entry: Outcome(1))
    assert counters(engine) == (12, 4, 0)  # the step in flight really starts at 8
    assert engine.inspect("r").num_tokens == 9
    engine.process(lambda entry: Outcome(0))
    assert counters(engine) == (9, 0, 0)
    assert engine.inspect("r").num_tokens == 10
    assert tokens_scheduled(engine) == {"r": (4, 3)}


def test_a_request_ends_at_max_tokens_and_tokens_beyond_are_rolled_back() -> None:
    events: list[Event] = []
    engine = Engine(CONFIG, events.append)
    engine.add_request("r", 6, max_tokens=3)
    engine.schedule()
    engine.process()
    engine.schedule()
    engine.process()  # samples 4, 2 of them are wanted
    process = [event for event in events if isinstance(event, Process)][-1]
    (output,) = process.requests
    assert (output.sampled, output.rejected) == (2, 2)
    at = events.index(process)
    assert isinstance(events[at + 1], Finish)
    assert isinstance(events[at + 2], Release)
    assert engine.is_idle


def test_a_stop_with_a_later_step_in_flight() -> None:
    events: list[Event] = []
    engine = Engine(CONFIG, events.append)
    engine.add_request("r", 6)
    engine.schedule()
    engine.schedule()
    engine.process(lambda entry: Outcome(0, stop=True))
    assert [event.reason for event in events if isinstance(event, Finish)] == ["stop"]
    assert not [event for event in events if isinstance(event, Release)]  # the fence holds them
    assert counters(engine)[1] == 4
    engine.process()
    assert [event.cause for event in events if isinstance(event, Release)] == ["deferred"]
    assert engine.is_idle
    with pytest.raises(SchedulerError, match="no request 'r'"):
        engine.inspect("r")


def test_the_maximum_length_ends_a_request() -> None:
    engine = Engine(replace(CONFIG, max_model_len=12))
    engine.add_request("r", 11)
    engine.schedule()
    assert engine.schedule() is None  # position 11 would be past the last that is computed
    engine.process()
    assert engine.is_idle


def test_lookahead_slots_are_allocated_and_not_counted() -> None:
    engine = Engine(replace(SYNCHRONOUS, num_lookahead_tokens=2))
    engine.add_request("r", 7, max_tokens=5)
    engine.schedule()
    assert counters(engine) == (7, 7, 0)
    assert len(engine.inspect("r").table[0]) == 3


# ---- preemption --------------------------------------------------------------------------------------------------------


def test_the_last_request_makes_room_and_resumes() -> None:
    events: list[Event] = []
    engine = Engine(replace(SYNCHRONOUS, num_blocks=6, max_model_len=20), events.append)
    engine.add_request("a", 7, max_tokens=12)
    engine.add_request("b", 7, max_tokens=5)
    engine.run_to_idle()
    assert [event.request for event in events if isinstance(event, Preempt)] == ["b"]
    causes = [event.cause for event in events if isinstance(event, Release)]
    assert causes == ["preempt", "finish", "finish"]
    resumed = [entry for event in events if isinstance(event, Schedule) for entry in event.requests if entry.resumed]
    assert [entry.request for entry in resumed] == ["b"]
    assert resumed[0].new_blocks[0]


def test_a_victim_behind_the_fence_is_not_preempted() -> None:
    events: list[Event] = []
    config = replace(CONFIG, num_blocks=6, max_model_len=20, num_speculative_tokens=0)
    engine = Engine(config, events.append)
    engine.add_request("a", 8, max_tokens=12)
    engine.add_request("b", 8, max_tokens=5)
    engine.schedule()
    engine.schedule()  # a takes the last block, b has to wait: its own blocks are being written
    assert not [event for event in events if isinstance(event, Preempt)]
    engine.run_to_idle()
    assert [event.request for event in events if isinstance(event, Preempt)]
    unfenced: list[Event] = []
    engine = Engine(replace(config, discipline=NO_FENCE), unfenced.append)
    engine.add_request("a", 8, max_tokens=12)
    engine.add_request("b", 8, max_tokens=5)
    engine.schedule()
    engine.schedule()
    assert [event.request for event in unfenced if isinstance(event, Preempt)] == ["b"]


def test_delivered_stale_output_comes_before_the_request_resumes() -> None:
    engine = Engine(CONFIG)
    engine.add_request("r", 6, max_tokens=30)
    engine.schedule()
    engine.schedule()
    engine.preempt("r")
    assert counters(engine) == (0, 10, 10)
    engine.process()
    assert counters(engine) == (0, 4, 4)
    assert engine.schedule() is None
    engine.process(lambda entry: Outcome(1))
    assert counters(engine) == (0, 0, 0)
    assert engine.inspect("r").num_tokens == 6 + 1 + 2
    assert tokens_scheduled(engine) == {"r": (9, 0)}


def test_dropped_stale_output_does_not_hold_the_request() -> None:
    engine = Engine(DROP)
    engine.add_request("r", 6, max_tokens=30)
    engine.schedule()
    engine.preempt("r")
    assert tokens_scheduled(engine) == {"r": (6, 0)}
    assert counters(engine) == (6, 12, 6)
    assert [(step.stale, step.generation) for step in engine.inspect("r").unprocessed] == [(True, 0), (False, 1)]
    engine.process()
    assert counters(engine) == (6, 6, 0)
    assert engine.inspect("r").num_tokens == 6
    engine.process()
    assert engine.inspect("r").num_tokens == 7


def test_a_preempted_request_can_be_finished_by_its_stale_output() -> None:
    engine = Engine(CONFIG)
    engine.add_request("r", 6, max_tokens=1)
    engine.schedule()
    engine.preempt("r")
    engine.process()
    assert engine.is_idle


def test_the_fence_keeps_the_blocks_of_a_preempted_request() -> None:
    events: list[Event] = []
    engine = Engine(DROP, events.append)
    engine.add_request("r", 6, max_tokens=30)
    engine.schedule()
    engine.preempt("r")
    engine.schedule()
    first, second = engine.inspect("r").table[0], engine.pool_snapshot()
    assert sum(second) == 4
    assert first == (3, 4)
    engine.process()
    deferred = [event for event in events if isinstance(event, Release)]
    assert [(event.cause, event.indices, event.blocks, event.freed) for event in deferred] == [("deferred", (1, 0), (2, 1), (2, 1))]


def test_without_the_fence_blocks_go_at_once() -> None:
    engine = Engine(replace(DROP, discipline=NO_FENCE))
    engine.add_request("r", 6, max_tokens=30)
    engine.schedule()
    engine.preempt("r")
    assert sum(engine.pool_snapshot()) == 0
    engine.schedule()
    assert engine.inspect("r").table[0] == (2, 1)


def preempted_in_decode(config: EngineConfig, sink: Sink | None = None) -> Engine:
    """6 prompt tokens, a decode step with 3 drafts in flight, preempted and resumed at once."""
    engine = Engine(config, sink)
    engine.add_request("r", 6, max_tokens=30)
    engine.schedule()
    engine.process()
    engine.schedule()
    engine.preempt("r")
    engine.schedule()
    return engine


def test_broken_disciplines_miscount_and_the_right_one_does_not() -> None:
    def after_stale_output(config: EngineConfig) -> tuple[int, int, int]:
        engine = preempted_in_decode(config)
        engine.process(lambda entry: Outcome(1))
        return counters(engine)

    assert after_stale_output(DROP) == (7, 7, 0)
    assert after_stale_output(replace(DROP, discipline=STALE_APPLIED)) == (5, 7, 0)
    assert after_stale_output(replace(DROP, discipline=UNDRAINED)) == (7, 11, 4)
    assert after_stale_output(replace(DROP, discipline=STALE_UNMARKED)) == (5, 7, 0)
    assert after_stale_output(replace(DROP, discipline=DISCARD_FLAG)) == (7, 7, 0)


def test_a_flag_drops_one_output_and_no_other() -> None:
    """With two steps in flight the second is taken for live; with none, the first of the new generation is dropped."""
    engine = Engine(replace(DROP, discipline=DISCARD_FLAG, max_in_flight_steps=3))
    engine.add_request("r", 6, max_tokens=30)
    engine.schedule()
    engine.process()
    engine.schedule()
    engine.schedule()
    engine.preempt("r")
    engine.schedule()
    assert counters(engine) == (7, 15, 1)
    engine.process(lambda entry: Outcome(0))
    assert counters(engine) == (7, 11, 0)
    engine.process(lambda entry: Outcome(0))
    assert counters(engine) == (4, 7, 0)

    idle = Engine(replace(DROP, discipline=DISCARD_FLAG))
    idle.add_request("r", 6, max_tokens=30)
    idle.schedule()
    idle.process()
    idle.preempt("r")
    known = idle.inspect("r").num_tokens
    idle.schedule()
    idle.process()
    assert idle.inspect("r").num_tokens == known
    assert counters(idle)[2] == 0


def test_what_a_stale_output_rejects_is_told_whatever_becomes_of_it() -> None:
    """Later steps of the ended generation start lower on the device by what it rejects; the counters tell what was rolled back."""
    told = {}
    for discipline in (RIGHT, STALE_APPLIED, STALE_UNMARKED):
        events: list[Event] = []
        engine = preempted_in_decode(replace(DROP, discipline=discipline), events.append)
        engine.process(lambda entry: Outcome(1))
        (output,) = [event for event in events if isinstance(event, Process)][-1].requests
        told[discipline.name] = (output.rejected, output.counters)
    assert told == {"settled": (2, (7, 7, 0)), "stale-applied": (2, (5, 7, 0)), "stale-unmarked": (2, (5, 7, 0))}


# ---- abort -------------------------------------------------------------------------------------------------------------


def test_abort_between_schedule_and_process() -> None:
    events: list[Event] = []
    engine = Engine(CONFIG, events.append)
    engine.add_request("r", 6, max_tokens=30)
    engine.schedule()
    engine.abort("r")
    assert not engine.is_idle
    assert sum(engine.pool_snapshot()) == 2
    engine.process()
    assert engine.is_idle
    assert sum(engine.pool_snapshot()) == 0
    (output,) = next(event for event in events if isinstance(event, Process)).requests
    assert (output.rejected, output.counters) == (0, None)


def test_abort_while_waiting_and_while_preempted() -> None:
    events: list[Event] = []
    engine = Engine(CONFIG, events.append)
    engine.add_request("waiting", 6)
    engine.abort("waiting")
    engine.add_request("preempted", 6)
    engine.schedule()
    engine.preempt("preempted")
    engine.abort("preempted")
    engine.process()
    assert engine.is_idle
    assert [event.reason for event in events if isinstance(event, Finish)] == ["abort", "abort"]


def test_an_abort_with_nothing_in_flight_frees_at_once() -> None:
    events: list[Event] = []
    engine = Engine(CONFIG, events.append)
    engine.add_request("r", 6, max_tokens=30)
    engine.schedule()
    engine.process()
    engine.abort("r")
    assert [(event.cause, event.indices) for event in events if isinstance(event, Release)] == [("abort", (1, 0))]


# ---- chunked prefill ---------------------------------------------------------------------------------------------------


def first_chunks(config: EngineConfig) -> list[list[tuple[str, int]]]:
    """Two prompts, of 12 and 9 tokens, and a batch of 16: who computes how many tokens in the first steps."""
    engine = Engine(config)
    engine.add_request("a", 12, max_tokens=1)
    engine.add_request("b", 9, max_tokens=1)
    steps = [engine.schedule() for _ in range(2)]
    return [[(entry.request.request_id, entry.tokens) for entry in step.entries] for step in steps if step is not None]


def test_chunked_prefill_fills_the_batch_and_can_be_limited_or_switched_off() -> None:
    config = replace(CONFIG, max_num_batched_tokens=16, max_model_len=16, num_speculative_tokens=0)
    assert first_chunks(config) == [[("a", 12), ("b", 4)], [("b", 5)]]
    assert first_chunks(replace(config, long_prefill_token_threshold=7)) == [[("a", 7), ("b", 7)], [("a", 5), ("b", 2)]]
    assert first_chunks(replace(config, enable_chunked_prefill=False)) == [[("a", 12)], [("b", 9)]]


def test_without_chunks_every_prompt_must_fit_into_a_batch() -> None:
    with pytest.raises(ConfigError, match="a prefill of up to 64 tokens must fit into a step"):
        replace(CONFIG, enable_chunked_prefill=False)


# ---- errors ------------------------------------------------------------------------------------------------------------


def test_the_pipeline_and_the_order_of_outputs_are_enforced() -> None:
    engine = Engine(CONFIG)
    with pytest.raises(SchedulerError, match="no step is unprocessed"):
        engine.process()
    engine.add_request("r", 6, max_tokens=30)
    engine.schedule()
    second = engine.schedule()
    assert second is not None
    with pytest.raises(SchedulerError, match="2 steps are unprocessed"):
        engine.schedule()
    with pytest.raises(SchedulerError, match="not the oldest"):
        engine.scheduler.update_from_output(second, {"r": [1]})
    with pytest.raises(ModelOutputError, match="2 tokens sampled, expected 1 to 1"):
        engine.scheduler.update_from_output(engine.unprocessed[0], {"r": [1, 2]})
    with pytest.raises(ModelOutputError, match="0 tokens sampled"):
        engine.scheduler.update_from_output(engine.unprocessed[0], {})
    assert counters(engine) == (10, 10, 0)


def test_bad_requests_and_bad_sizes_are_refused() -> None:
    engine = Engine(CONFIG)
    engine.add_request("r", 6)
    with pytest.raises(SchedulerError, match="'r' is in use"):
        engine.add_request("r", 6)
    with pytest.raises(SchedulerError, match="expected 1 to 63"):
        engine.add_request("long", 64)
    with pytest.raises(SchedulerError, match="max_tokens"):
        engine.add_request("none", 6, max_tokens=0)
    with pytest.raises(SchedulerError, match="only one that has blocks"):
        engine.preempt("r")
    with pytest.raises(SchedulerError, match="no unfinished request 'x'"):
        engine.abort("x")
    with pytest.raises(ConfigError, match="can hold 16 blocks, the pool has 15"):
        Engine(replace(CONFIG, num_blocks=16))
    with pytest.raises(ConfigError, match="max_num_seqs must be at least 1"):
        replace(CONFIG, max_num_seqs=0)
    with pytest.raises(ConfigError, match="no manager"):
        replace(CONFIG, groups=(CrossAttentionSpec(block_size=4),))


# ---- scripted steps ----------------------------------------------------------------------------------------------------


def test_a_plan_replaces_the_natural_choice() -> None:
    engine = Engine(CONFIG)
    engine.add_request("a", 6, max_tokens=30)
    engine.add_request("b", 6, max_tokens=30)
    engine.schedule({"b": (6, 0), "a": (2, 0)})
    step = engine.schedule({"b": (2, 1)})
    assert step is not None
    assert [(entry.request.request_id, entry.tokens, entry.drafts) for entry in step.entries] == [("b", 2, 1)]
    assert counters(engine, "a") == (2, 2, 0)
    assert counters(engine, "b") == (8, 8, 0)


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        ({"x": (1, 0)}, "no unfinished request 'x'"),
        ({"r": (7, 0)}, "6 are left"),
        ({"r": (6, 1)}, "1 drafts in a prefill chunk"),
        ({"r": (0, 0)}, "at least 1 token"),
        ({"r": (17, 0)}, "17 tokens in one step"),
        ({"r": PlannedStep(2, 0, hit=4)}, "a hit of 4 tokens, the cache has 0"),
        ({"done": (4, 0)}, "1 are left"),
        ({"done": (5, 4)}, "at most 3"),
        ({"done": (4, 2)}, "2 are drafts"),
        ({"done": PlannedStep(1, 0, hit=4)}, "before its first step"),
    ],
)
def test_an_illegal_plan_is_refused(plan: dict[str, tuple[int, int]], message: str) -> None:
    engine = Engine(CONFIG)
    engine.add_request("done", 4)
    engine.schedule()
    engine.add_request("r", 6, max_tokens=30)
    with pytest.raises(PlanError, match=message):
        engine.schedule(plan)


def test_a_plan_waits_for_stale_output_too() -> None:
    engine = Engine(CONFIG)
    engine.add_request("r", 6, max_tokens=30)
    engine.schedule()
    engine.preempt("r")
    with pytest.raises(PlanError, match="waits for its stale output"):
        engine.schedule({"r": (6, 0)})


# ---- groups ------------------------------------------------------------------------------------------------------------


def test_groups_with_different_block_sizes_share_the_pool() -> None:
    groups = (FullAttentionSpec(block_size=4), SlidingWindowSpec(block_size=2, window=3))
    engine = Engine(replace(SYNCHRONOUS, groups=groups, num_blocks=60))
    engine.add_request("r", 8, max_tokens=4)
    engine.schedule()
    assert engine.inspect("r").table == ((1, 2), (3, 4, 5, 6))
    engine.process()
    engine.schedule()  # position 8 reads 6 to 8: blocks 0 to 2 of the window are pruned, and the last of them is reused
    assert engine.inspect("r").table == ((1, 2, 5), (0, 0, 0, 6, 4))
    engine.run_to_idle()
    assert engine.is_idle
