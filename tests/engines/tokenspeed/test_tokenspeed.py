"""TokenSpeed's scheduler behind the protocol: what its plans say, and what its frees are under each contract."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice

import pytest

from settled.model.events import Copy, Event, Release, Schedule
from settled.model.properties import Contract
from settled.model.specs import ChunkedLocalAttentionSpec, FullAttentionSpec, MambaSpec, SlidingWindowSpec
from settled.proofs.hunting.faults import fault_of
from settled.proofs.hunting.running import Run, run_workload
from settled.proofs.hunting.workloads import workloads
from settled.reference.engines.operations import Abort, Add, Process, Workload
from settled.reference.engines.operations import Schedule as DoSchedule
from settled.reference.engines.protocol import EngineFailedError, Outcome
from settled.reference.engines.setup import ConnectorSetup, EngineSetup, SetupError
from settled.reference.engines.tokenspeed import TokenSpeedFactory

FACTORY = TokenSpeedFactory()
FULL, WINDOW = FullAttentionSpec(block_size=16), SlidingWindowSpec(block_size=16, window=32)
SETUP = EngineSetup(groups=(FULL, WINDOW), num_blocks=40, max_num_batched_tokens=64, max_num_seqs=4, max_model_len=160)


def run(workload: Workload, contract: Contract = Contract.STREAM_ORDER) -> Run:
    return run_workload(FACTORY, workload, contract=contract, keep_events=True)


def causes(found: Run) -> set[tuple[str, str]]:
    return {(str(key.property), key.cause) for key in found.found}


def released(events: list[Event], cause: str) -> list[Release]:
    return [event for event in events if isinstance(event, Release) and event.cause == cause]


CHUNKS = Workload(SETUP, (Add("r0", prompt_tokens=150, max_tokens=2), DoSchedule(), DoSchedule(), Process()))


def test_prefill_frees_what_the_step_before_still_reads() -> None:
    """The second chunk is planned while the first is unprocessed, and gives up what lies before its own window: safe by stream order."""
    assert causes(run(CHUNKS)) == set()
    assert causes(run(CHUNKS, Contract.SETTLED)) == {("read_resident", "freed[window]")}


def test_without_overlap_nothing_is_freed_under_a_step() -> None:
    synchronous = replace(CHUNKS, setup=replace(SETUP, async_scheduling=False))
    assert causes(run(synchronous, Contract.SETTLED)) == set()
    assert released(run(synchronous).events, "window")


def test_decode_frees_on_what_is_settled() -> None:
    """Rejected drafts never bring a step back below what was freed, and nothing is freed under a decode step."""
    drafting = replace(SETUP, num_speculative_tokens=3)
    rounds = [DoSchedule(), DoSchedule(), Process((3, 0, 1))] * 40
    decoding = run(Workload(drafting, (Add("r0", prompt_tokens=20, max_tokens=90), *rounds)), Contract.SETTLED)
    assert causes(decoding) == set()
    assert released(decoding.events, "window")


def test_an_abort_frees_at_once_and_a_finish_waits() -> None:
    """An aborted request's blocks go back under its step; those of one that ended by itself, once its last step is processed."""
    abort = Workload(SETUP, (Add("r0", prompt_tokens=64, max_tokens=4), DoSchedule(), Abort("r0"), Process()))
    assert causes(run(abort)) == set()
    assert ("read_resident", "freed[abort]") in causes(run(abort, Contract.SETTLED))
    finish = Workload(SETUP, (Add("r0", prompt_tokens=20, max_tokens=2), *[DoSchedule(), DoSchedule(), Process()] * 3))
    done = run(finish, Contract.SETTLED)
    assert causes(done) == set()
    assert released(done.events, "finish")


def test_a_partial_last_block_is_copied_when_it_is_published() -> None:
    cached = replace(SETUP, enable_prefix_caching=True)
    copied = run(Workload(cached, (Add("r0", prompt_tokens=20, max_tokens=4),)))
    assert causes(copied) == set()
    assert [event for event in copied.events if isinstance(event, Copy)]


@pytest.mark.parametrize("mix", ["windows", "full"])
def test_random_workloads_under_stream_order(mix: str) -> None:
    """No alarm, and the scheduler's own count of blocks in use is that of the tables after every operation."""
    steps = 0
    for drawn in islice(workloads(mix, 7, FACTORY), 100):
        done = run(drawn.workload)
        assert causes(done) == set()
        assert not done.is_undecided
        steps += done.steps
    assert steps > 500


def test_the_check_of_blocks_in_use_sees_a_block_that_nobody_told_of() -> None:
    engine = FACTORY.create(SETUP, None)
    engine.add_request(request_of("r0"))
    assert engine.schedule()
    assert not engine.inspect()
    engine._tables.release_all("r0", "finish")
    assert [anomaly.cause for anomaly in engine.inspect()] == ["blocks_in_use"]


@pytest.mark.parametrize("function", ["next_execution_plan", "advance"])
@pytest.mark.parametrize("error", [RuntimeError("out of pages"), IndexError("page 9")], ids=str)
def test_what_the_scheduler_raises_is_a_finding(function: str, error: Exception) -> None:
    """Not the harness's fault, though no frame of the scheduler is in the traceback."""
    with pytest.raises(EngineFailedError) as raised:
        one_step(function, error)
    assert fault_of(raised.value).key.cause == f"{type(error).__name__} in Scheduler.{function}"


def test_a_call_that_is_written_wrongly_is_the_harness_fault() -> None:
    with pytest.raises(TypeError):
        one_step("advance", TypeError("no such call"))


def one_step(function: str, error: Exception) -> None:
    engine = FACTORY.create(SETUP, None)
    engine.scheduler = Failing(engine.scheduler, function, error)
    engine.add_request(request_of("r0"))
    engine.schedule()
    engine.process(lambda row: Outcome(row.drafts))


class Failing:
    """A scheduler that fails in one of its functions."""

    def __init__(self, scheduler, function: str, error: Exception) -> None:
        self._scheduler, self._function, self._error = scheduler, function, error

    def __getattr__(self, name: str):
        return self._fail if name == self._function else getattr(self._scheduler, name)

    def _fail(self, *arguments: object) -> None:
        raise self._error


def request_of(name: str):
    from settled.reference.engines.protocol import NewRequest

    return NewRequest(name, tuple(range(10, 50)), 4)


@pytest.mark.parametrize(
    "change",
    [
        {"groups": (ChunkedLocalAttentionSpec(block_size=16, chunk=32),)},
        {"groups": (FULL, MambaSpec(block_size=16, mode="align"))},
        {"groups": (FULL, SlidingWindowSpec(block_size=32, window=32))},
        {"groups": (SlidingWindowSpec(block_size=16, window=32, extra_retained=1),)},
        {"pipeline_parallel_size": 2},
        {"connector": ConnectorSetup()},
        {"hash_block_size": 8},
        {"extra": (("watermark", 1),)},
        {"num_blocks": 5},
    ],
    ids=str,
)
def test_what_it_has_no_notion_of_is_refused(change: dict) -> None:
    with pytest.raises(SetupError, match="TokenSpeed"):
        FACTORY.create(replace(SETUP, **change), None)


def test_the_smallest_pool_is_accepted_and_one_block_less_is_not() -> None:
    least = FACTORY.min_num_blocks(SETUP)
    FACTORY.create(replace(SETUP, num_blocks=least), None)
    with pytest.raises(SetupError, match="at most in this pool"):
        FACTORY.create(replace(SETUP, num_blocks=least - 1), None)


def test_a_plan_replaces_the_rows_of_the_worker() -> None:
    """Every plan has whole tables: what was nulled is told to the worker with the next one."""
    schedules = [event for event in run(CHUNKS).events if isinstance(event, Schedule)]
    assert [each.resumed for event in schedules for each in event.requests][:3] == [False, True, True]
    assert schedules[1].requests[0].new_blocks[1][:2] == (0, 0)
