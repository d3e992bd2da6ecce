"""One run: whose fault an exception is, who is stuck, what an inspection finds, and that nobody hangs for ever."""

from __future__ import annotations

import signal
from dataclasses import replace
from itertools import count
from typing import Any

import pytest
from fake_engines import (
    ChangedFactory,
    fails_to_process,
    finishes_nothing,
    looks_wrong,
    never_schedules,
    schedules_without_end,
)

from settled.model.disciplines import NO_FENCE, OPTIMISTIC, RIGHT
from settled.model.events import End, Schedule
from settled.model.properties import Contract
from settled.model.specs import FullAttentionSpec, SlidingWindowSpec
from settled.proofs.hunting.faults import HangError, HarnessError, fault_of, watchdog
from settled.proofs.hunting.running import run_workload
from settled.proofs.watching import Key
from settled.reference.engines import operations as op
from settled.reference.engines.operations import Add, Workload
from settled.reference.engines.protocol import EngineFailedError, Offer
from settled.reference.engines.reference_engine import ReferenceFactory
from settled.reference.engines.setup import ConnectorSetup, EngineSetup, SetupError
from settled.reference.pool import BlockPool

SETUP = EngineSetup(
    groups=(SlidingWindowSpec(block_size=4, window=5),), num_blocks=12, max_num_batched_tokens=8, max_num_seqs=2, max_model_len=32
)
ONE = Workload(SETUP, (Add("r0", 20, 4),))
READ = Key("read_resident", "freed[window]", "sliding_window")


def test_a_right_engine_is_served_until_it_is_idle() -> None:
    run = run_workload(ReferenceFactory(RIGHT), ONE, keep_events=True)
    assert not run.found
    assert not run.is_undecided
    last = run.events[-1]
    assert isinstance(last, End)
    assert last.idle
    assert run.steps == sum(isinstance(event, Schedule) for event in run.events)
    assert run.num_events == len(run.events)


def test_what_was_done_does_the_same_alone() -> None:
    run = run_workload(ReferenceFactory(RIGHT), ONE, keep_events=True)
    again = run_workload(ReferenceFactory(RIGHT), Workload(SETUP, tuple(run.done)), keep_events=True)
    assert again.done == run.done
    assert again.events == run.events


def test_the_contract_follows_the_configuration_and_can_be_forced() -> None:
    factory = ReferenceFactory(OPTIMISTIC)
    assert not run_workload(factory, ONE).found  # no consumer: stream_order
    assert READ in run_workload(factory, ONE, contract=Contract.SETTLED).found
    consumer = Workload(replace(SETUP, connector=ConnectorSetup()), ONE.operations)
    assert READ in run_workload(factory, consumer).found
    assert not run_workload(factory, consumer, contract=Contract.STREAM_ORDER).found


def test_a_run_stops_at_what_it_looks_for() -> None:
    run = run_workload(ReferenceFactory(OPTIMISTIC), ONE, contract=Contract.SETTLED, until=READ, keep_events=True)
    assert READ in run.found
    assert not any(isinstance(event, End) for event in run.events[: run.found[READ].line])
    assert len(run.done) < len(run_workload(ReferenceFactory(OPTIMISTIC), ONE, contract=Contract.SETTLED).done)


# ---- whose fault it is -----------------------------------------------------------------------------------------------


def test_a_refused_setup_is_no_finding() -> None:
    small = Workload(replace(SETUP, num_blocks=2), ONE.operations)
    with pytest.raises(SetupError, match="num_blocks"):
        run_workload(ReferenceFactory(RIGHT), small)


def test_an_operation_that_no_user_could_ask_for_is_the_harness_fault() -> None:
    with pytest.raises(HarnessError, match="fewer than 32"):
        run_workload(ReferenceFactory(RIGHT), Workload(SETUP, (Add("r0", 40, 1),)))


def test_a_refusal_in_mid_run_is_the_harness_fault() -> None:
    with pytest.raises(HarnessError, match="what the engine's users cannot: planted"):
        run_workload(ChangedFactory(fails_to_process(SetupError("planted"))), ONE)


def test_an_assertion_of_the_engine_is_a_finding_named_by_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: BlockPool, num_blocks: int) -> None:
        assert num_blocks < 0, f"no {num_blocks} blocks"

    monkeypatch.setattr(BlockPool, "get_new_blocks", fail)
    (key,) = run_workload(ReferenceFactory(RIGHT), ONE).found
    assert key == Key("engine_fault", "AssertionError in test_running.py:fail", "")


def test_a_message_with_other_numbers_is_the_same_finding() -> None:
    keys = set()
    for number in (1, 2):
        (key,) = run_workload(ChangedFactory(fails_to_process(ValueError(f"{number} blocks"))), ONE).found
        keys.add(key)
    assert keys == {Key("engine_fault", "ValueError in fake_engines.py:process", "")}


def test_an_exception_in_an_adapter_is_the_harness_fault() -> None:
    """The innermost frame is an adapter's, as with a mock connector that the engine calls."""
    space: dict[str, Any] = {"__name__": "settled.reference.engines.fake"}
    exec(compile("def adapter(choose):\n    return 1 // 0\n", "adapter.py", "exec"), space)

    def change(engine: Any) -> None:
        engine.process = space["adapter"]

    with pytest.raises(HarnessError, match="ZeroDivisionError in the harness"):
        run_workload(ChangedFactory(change), ONE)


def test_an_engine_without_frames_says_where_it_failed() -> None:
    fault = fault_of(EngineFailedError("Scheduler::Advance", "out of pages"))
    assert fault.key == Key("engine_fault", "EngineFailedError in Scheduler::Advance", "")
    assert "out of pages" in fault.sentence


# ---- progress --------------------------------------------------------------------------------------------------------


def test_an_engine_that_never_schedules_is_stuck() -> None:
    (found,) = run_workload(ChangedFactory(never_schedules), ONE).found.values()
    assert found.key == Key("admission_progress", "nothing moves, requests are left", "")
    assert "r0" in found.sentence


def test_an_engine_that_moves_for_ever_is_stuck() -> None:
    (found,) = run_workload(ChangedFactory(finishes_nothing), ONE).found.values()
    assert found.key == Key("admission_progress", "no end, requests are left", "")


def test_an_engine_that_is_never_idle_is_stuck() -> None:
    class NeverIdle(ChangedFactory):
        def create(self, setup, sink, **keywords):  # type: ignore[no-untyped-def]
            engine = super().create(setup, sink, **keywords)
            engine.__class__ = type("NeverIdle", (type(engine),), {"is_idle": False})
            return engine

    (found,) = run_workload(NeverIdle(lambda engine: None), ONE).found.values()
    assert found.key == Key("admission_progress", "nothing moves, no request is left", "")


def test_an_engine_that_does_not_come_back_is_a_finding() -> None:
    (found,) = run_workload(ChangedFactory(schedules_without_end), ONE, cpu_seconds_max=0.2).found.values()
    assert found.key == Key("admission_progress", "hangs in fake_engines.py:spin", "")


def test_the_watchdog_is_gone_after_a_run() -> None:
    def spin() -> None:
        with watchdog(0.05):
            while True:
                pass

    before = signal.getsignal(signal.SIGPROF)
    with watchdog(50.0):
        assert signal.getitimer(signal.ITIMER_PROF)[0] > 0
    assert signal.getitimer(signal.ITIMER_PROF)[0] == 0
    assert signal.getsignal(signal.SIGPROF) == before
    with pytest.raises(HangError):
        spin()


# ---- inspection ------------------------------------------------------------------------------------------------------


def test_an_anomaly_is_a_finding_where_it_is_looked_for() -> None:
    (found,) = run_workload(ChangedFactory(looks_wrong), ONE).found.values()
    assert found.key == Key("single_owner", "inspected: planted", "")
    assert not run_workload(ChangedFactory(looks_wrong), ONE, inspects=False).found


# ---- the reference behind the protocol -------------------------------------------------------------------------------


def test_connectors_load_store_and_fail() -> None:
    setup = EngineSetup(
        groups=(FullAttentionSpec(block_size=4),),
        num_blocks=40,
        max_num_batched_tokens=8,
        max_num_seqs=4,
        max_model_len=32,
        connector=ConnectorSetup(),
    )
    adds = (
        Add("a", 16, 2, offer=Offer(8, workers=2)),
        Add("b", 16, 2, offer=Offer(16)),
        Add("c", 16, 2, offer=Offer(8, is_async=False, ending=op.Ending.ALL_FAILED)),
        Add("d", 16, 2, is_stored=True),
    )
    run = run_workload(
        ReferenceFactory(RIGHT), Workload(setup, (*adds, op.Schedule(), op.Report(0, op.Ending.FIRST_FAILED))), keep_events=True
    )
    assert not run.found
    names = [event.name for event in run.events]
    assert names.count("load") == 3
    assert names.count("store") == 1
    causes = [event.cause for event in run.events if event.name == "computed"]  # type: ignore[attr-defined]
    assert "load_failed" in causes
    assert isinstance(run.events[-1], End)


def test_a_run_ends_once_it_takes_too_many_steps() -> None:
    factory = ReferenceFactory(RIGHT)
    assert run_workload(factory, ONE).steps > 2
    assert run_workload(factory, ONE, steps_max=1).steps == 2


def test_a_token_may_take_a_round_for_each_step_in_flight() -> None:
    """With several stages a request is not scheduled again before its last token is back."""
    setup = replace(SETUP, max_model_len=128)
    depth = ReferenceFactory(RIGHT).create(setup, None).max_in_flight_steps

    def seldom(engine: Any) -> None:
        schedule, calls = engine.schedule, count()
        engine.schedule = lambda: next(calls) % (depth * (depth + 1)) > 0 or schedule()

    assert not run_workload(ChangedFactory(seldom), Workload(setup, (Add("r0", 1, 100),))).found


def test_requests_that_get_nowhere_are_told_soon() -> None:
    """Not only after as many rounds as their tokens may take."""
    sizes = {"groups": (FullAttentionSpec(block_size=16),), "max_model_len": 4096, "max_num_batched_tokens": 64, "num_blocks": 300}
    long = Workload(replace(SETUP, **sizes), (Add("r0", prompt_tokens=3000, max_tokens=500),))  # type: ignore[arg-type]
    run = run_workload(ChangedFactory(finishes_nothing), long)
    assert [key.cause for key in run.found] == ["no end, requests are left"]
    assert 64 <= run.steps < 64 + 3500  # a step a round at least


def test_a_missing_fence_shows_under_a_consumer() -> None:
    setup = replace(SETUP, connector=ConnectorSetup())
    workload = Workload(setup, (*ONE.operations, op.Schedule(), op.Abort("r0")))
    assert Key("read_resident", "freed[abort]", "sliding_window") in run_workload(ReferenceFactory(NO_FENCE), workload).found
