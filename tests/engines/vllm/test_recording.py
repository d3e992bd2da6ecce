"""The recorder on a live scheduler of the installed vLLM: what it tells is what happened, and nothing of what it records changes."""

from __future__ import annotations

import copy
from random import Random
from typing import Any

import pytest
from driving import at_least
from recorded_runs import SHAPES, Run, create, operations, play_all

from settled.model.events import Config, Copy, Drop, End, Event, Finish, Move, Process, Release, Schedule, State
from settled.model.monitor.monitor import Monitor
from settled.model.properties import Contract, Property
from settled.reference.engines.operations import Abort, Add, play
from settled.reference.engines.operations import Process as ProcessOperation
from settled.reference.engines.operations import Schedule as ScheduleOperation
from settled.reference.engines.vllm.adapter import VllmFactory
from settled.reference.engines.vllm.recording_holders import CONNECTOR, COPIES

SEEDS = range(4)
AT_ONCE = {"finish", "abort", "preempt"}  # whole requests: vLLM frees them at once where no connector loads


def _accepted(name: str) -> Run:
    factory = VllmFactory()
    if name.startswith("copies") and not at_least("0.26.0"):
        pytest.xfail(f"{factory.name} has no hits within a block")
    if name == "connector" and factory.release.version < "0.16":
        pytest.xfail(f"{factory.name} finishes a request again whose blocks are being stored, with the output of a later step")
    run = create(SHAPES[name])
    if run is None:
        pytest.xfail(f"{factory.name} does not accept {name}")
    if name == "copies-connector" and not at_least("0.29.0"):
        pytest.xfail("0.26 gives a step fewer tokens than drafts: a request that is padded and then split (upstream #54392)")
    return run


@pytest.mark.parametrize("name", SHAPES)
def test_the_books_are_the_pools_at_every_step(name: str) -> None:
    for seed in SEEDS:
        run = _accepted(name)

        def compare(run: Run = run) -> None:
            assert run.mismatches() == []
            assert run.engine.recorder.unattributed == ()

        play_all(run, SHAPES[name], seed, compare)
        assert any(isinstance(event, Schedule) and event.requests for event in run.events)
        assert isinstance(run.events[-1], End)


@pytest.mark.parametrize("name", SHAPES)
def test_the_monitors_counters_are_the_schedulers(name: str) -> None:
    counts_stale = VllmFactory().release.version >= "0.29"
    for seed in SEEDS:
        run = _accepted(name)
        wrong: list[str] = []
        play_all(run, SHAPES[name], seed, lambda run=run, wrong=wrong: wrong.extend(run.wrong_counters()))  # type: ignore[misc]
        # Before stale output was counted, what it rejected was taken off a request that had started over.
        assert not wrong or (not counts_stale and SHAPES[name].drafts)


@pytest.mark.parametrize("name", [name for name in SHAPES if not SHAPES[name].connector])
def test_verdicts_are_those_of_the_release(name: str) -> None:
    release = VllmFactory().release.version
    if release < "0.26":
        pytest.xfail(f"{release} frees blocks under steps in flight")
    for seed in SEEDS:
        run = _accepted(name)
        play_all(run, SHAPES[name], seed, lambda: None)
        found = [one for one in run.violations[Contract.STREAM_ORDER] if one.property is not Property.HELD_BOUNDED]
        if name == "copies" and not at_least("0.33.0"):  # finding prompt-state-cached-again
            assert {(one.property, one.taken_by) for one in found} <= {(Property.WRITE_OWNED, f"holder {COPIES}")}
            continue
        assert found == []
        causes = {one.cause.partition("[")[2].rstrip("]") for one in run.violations[Contract.SETTLED] if one.property in BY_ROW}
        assert causes <= AT_ONCE


BY_ROW = (Property.READ_RESIDENT, Property.ROLLBACK_RESIDENT, Property.WRITE_OWNED)


@pytest.mark.parametrize("name", ["window-drafts", "hybrid-drafts", "mamba-align", "connector"])
def test_a_trace_may_begin_anywhere(name: str) -> None:
    """A second trace, from the state on, is possible, and finds nothing that the first does not."""
    for seed in SEEDS:
        run = _accepted(name)
        rng = Random(seed)
        later: list[tuple[Monitor, list[Any]]] = []

        def rotate(run: Run = run, rng: Random = rng, later: list[tuple[Monitor, list[Any]]] = later) -> None:
            if rng.random() < 0.1:
                monitor = Monitor(run.engine.recorder.config, Contract.STREAM_ORDER)
                monitor.feed(2, run.engine.recorder.state())
                later.append((monitor, []))

        taken = run.take

        def take(event: Event, taken: Any = taken, later: list[tuple[Monitor, list[Any]]] = later) -> None:
            taken(event)
            for monitor, found in later:
                found += monitor.feed(3, event)

        run.engine.recorder._recording.emit = run.engine.recorder._recording.sink = take
        play_all(run, SHAPES[name], seed, rotate)
        whole = {(one.property, one.cause) for one in run.violations[Contract.STREAM_ORDER]}
        for _, found in later:
            assert {(one.property, one.cause) for one in found if one.property is Property.SINGLE_OWNER} <= whole
        assert later


def _outputs(scheduler: Any) -> list[Any]:
    """What the scheduler hands to its callers from here on."""
    outputs: list[Any] = []
    schedule = scheduler.schedule

    def listening(*args: Any, **kwargs: Any) -> Any:
        output = schedule(*args, **kwargs)
        new = [(one.req_id, copy.deepcopy(one.block_ids), one.num_computed_tokens) for one in output.scheduled_new_reqs]
        cached = output.scheduled_cached_reqs
        outputs.append((new, copy.deepcopy(cached.req_ids), copy.deepcopy(cached.new_block_ids), dict(output.num_scheduled_tokens)))
        return output

    scheduler.schedule = listening
    return outputs


@pytest.mark.parametrize("name", SHAPES)
def test_results_are_the_same_without_it(name: str) -> None:
    _accepted(name).engine.end()
    seen: list[list[Any]] = []
    for sink in (None, list[Event]().append):
        told: list[Any] = []
        for seed in SEEDS:
            engine = VllmFactory().create(SHAPES[name].setup, sink)
            outputs = _outputs(engine.scheduler)
            for operation in operations(Random(f"{name}/{seed}"), with_offers=SHAPES[name].connector):
                play(engine, operation)
            told += outputs
            engine.end()
        seen.append(told)
    assert seen[0] == seen[1]
    assert len(seen[0]) > 20


def test_detached_it_leaves_nothing() -> None:
    engine = VllmFactory().create(SHAPES["hybrid"].setup, None)
    scheduler = engine.scheduler
    manager = scheduler.kv_cache_manager
    watched = [scheduler, manager, manager.block_pool, *manager.coordinator.single_type_managers]
    before = [dict(vars(one)) for one in watched]
    from settled.reference.engines.vllm.recording import SchedulerRecorder

    events: list[Event] = []
    recorder = SchedulerRecorder(scheduler, engine.vllm_config, events.append, engine="vllm", max_in_flight_steps=2)
    assert [dict(vars(one)) for one in watched] != before
    recorder.detach()
    assert [vars(one).keys() for one in watched] == [one.keys() for one in before]
    assert all("get_new_blocks" not in vars(one) for one in watched)
    assert [type(event) for event in events] == [Config]


def test_it_refuses_a_scheduler_that_serves_already() -> None:
    engine = VllmFactory().create(SHAPES["full"].setup, None)
    play(engine, Add("a", 8, 2))
    from settled.reference.engines.vllm.recording import SchedulerRecorder

    with pytest.raises(ValueError, match="1 requests already"):
        SchedulerRecorder(engine.scheduler, engine.vllm_config, print, engine="vllm", max_in_flight_steps=2)


def test_an_operation_that_nobody_explains_is_told() -> None:
    run = _accepted("full")
    pool = run.engine.scheduler.kv_cache_manager.block_pool
    blocks = pool.get_new_blocks(2)
    pool.free_blocks(blocks)
    taken, freed = run.engine.recorder.unattributed
    assert "taken for nobody" in taken
    assert "nobody held" in freed


# ---- single events -------------------------------------------------------------------------------------------------


def _events_of(name: str, *steps: Any) -> list[Event]:
    run = _accepted(name)
    for step in steps:
        assert play(run.engine, step), step
    return run.events


def test_an_output_comes_before_what_follows_from_it() -> None:
    events = _events_of("full", Add("a", 6, 1), ScheduleOperation(), ProcessOperation())
    kinds = [type(event) for event in events]
    assert kinds.index(Process) < kinds.index(Finish) < kinds.index(Release)


def test_what_a_step_rejects_is_what_the_model_did_not_accept() -> None:
    events = _events_of("window-drafts", Add("a", 6, 12), *[ScheduleOperation(), ProcessOperation((1,))] * 4)
    processed = [event.requests[0] for event in events if isinstance(event, Process)]
    assert [(one.sampled, one.rejected) for one in processed[-2:]] == [(2, 1), (2, 1)]


def test_speculative_states_move() -> None:
    # A prompt in two chunks: the second passes over the blocks that the first kept for drafts.
    events = _events_of("mamba-align-drafts", Add("a", 44, 8), *[ScheduleOperation(), ProcessOperation()] * 2)
    moves = [event for event in events if isinstance(event, Move)]
    assert moves
    assert all(move.to_index > move.from_index for move in moves)


def _copying(num_requests: int) -> Any:
    """A request whose prompt others share; they hit in the middle of its last block, which each of them has copied."""
    run = _accepted("copies")
    for number in range(num_requests):
        assert play(run.engine, Add(f"r{number}", 3, 4, shared_tokens=3))
        if not number:
            for _ in range(2):
                play(run.engine, ScheduleOperation())
                play(run.engine, ProcessOperation())
    return run


def test_copies_of_one_block_end_together_and_free_it_once() -> None:
    run = _copying(3)
    play(run.engine, Abort("r0"))
    play(run.engine, ScheduleOperation())
    copies = [event for event in run.events if isinstance(event, Copy)]
    drops = [event for event in run.events if isinstance(event, Drop)]
    source = copies[-1].source
    assert [copy.source for copy in copies].count(source) == 2
    assert [(drop.blocks.count(source), drop.freed.count(source)) for drop in drops if source in drop.blocks][-1] == (2, 1)
    assert all(events == [] for events in run.violations.values())


def test_what_a_connector_gives_up_is_not_taken_for_a_copys() -> None:
    """A connector pins the very block that is being copied, and gives it up before the copy is over."""
    run = _accepted("copies-connector")
    pool, recorder = run.engine.scheduler.kv_cache_manager.block_pool, run.engine.recorder
    for step in (Add("r0", 3, 4, shared_tokens=3), *[ScheduleOperation(), ProcessOperation()] * 2, Add("r1", 3, 4, shared_tokens=3)):
        play(run.engine, step)
    play(run.engine, ScheduleOperation())
    source = next(event.source for event in reversed(run.events) if isinstance(event, Copy))
    block = pool.blocks[source]
    pool.touch([block])
    pool.free_blocks([block])
    dropped = run.events[-1]
    assert isinstance(dropped, Drop)
    assert (dropped.holder, dropped.blocks) == (CONNECTOR, (source,))
    play(run.engine, ProcessOperation())
    assert recorder.unattributed == ()
    assert [event.holder for event in run.events if isinstance(event, Drop)][-1] == COPIES


def test_the_state_has_what_is_in_flight() -> None:
    run = _accepted("hybrid")
    for step in (Add("a", 10, 5), ScheduleOperation(), ScheduleOperation()):
        play(run.engine, step)
    state = run.engine.recorder.state()
    assert isinstance(state, State)
    assert [(one.request, one.prompt_tokens, one.in_flight, one.stale) for one in state.requests] == [("a", 10, 11, 0)]
    assert [step.step for step in state.unprocessed] == [0, 1]
    assert state.unprocessed[0].requests[0].rows == state.tables["a"]
