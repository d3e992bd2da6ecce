"""A log on a device against the CPU: what must be told is told, when either side is wrong. The device is a fake one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import deepcopy
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from fake_device import FakeGpu
from op_logs import Told, index

from settled.reference.device.compiling import compile_log
from settled.reference.device.cuda import against_cpu
from settled.reference.device.cuda.against_cpu import NUMBERS, AgainstCpu, differences, rows_garbled, stores_wrong
from settled.reference.device.cuda.runtime import CudaDevice
from settled.reference.device.cuda.streams import GateTimeoutError, StreamsError
from settled.reference.device.cuda.tickets import AHEAD
from settled.reference.device.numbered import NumberedLog
from settled.reference.device.ops import Launch, LaunchKind, OpLog
from settled.reference.device.outcome import Outcome
from settled.reference.device.replay import replay, replay_outcome
from settled.reference.device.trials import trials

pytestmark = pytest.mark.fake_device

torch.set_num_threads(1)


def told_of(row: str, sort: str = "row") -> Told:
    return next(told for told in index(sort) if told.row == row)


# ---- outcomes, without a device ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def outcomes() -> tuple[Outcome, Outcome]:
    """(Of a garbled order, of right memory), of a log with states and keys."""
    told = told_of("optimistic/loads")
    log = told.log()
    compiled = compile_log(log)
    numbered = NumberedLog(compiled, NUMBERS)
    order = next(trial.order for trial, said in zip(trials(log, (), told.seed), told.orders, strict=False) if said["rows_garbled"])
    return replay_outcome(compiled, numbered, order), replay_outcome(compiled, numbered)


def garbled_row(outcome: Outcome) -> int:
    return int((outcome.wrong != 0).nonzero()[0])


def clean_row(outcome: Outcome) -> int:
    return int((outcome.wrong == 0).nonzero()[0])


def test_the_same_outcome_differs_in_nothing(outcomes: tuple[Outcome, Outcome]) -> None:
    garbled, right = outcomes
    assert rows_garbled(garbled) > 0
    assert list(differences(deepcopy(garbled), garbled, right)) == []


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda found: found.digests.__setitem__(0, found.digests[0] + 1), "digests differ from the CPU's"),
        (lambda found: found.first.__setitem__(garbled_row(found), 10_000), "first differ from the CPU's"),
        (lambda found: found.wrong.__setitem__(clean_row(found), 1), "wrong differ from the CPU's"),
        (lambda found: found.outputs[clean_row(found)].mul_(1 + 1e-6), "not contiguous memory's bits"),
        (lambda found: found.outputs[garbled_row(found)].mul_(1 + 1e-4), "1 garbled rows are further than 1e-05"),
        (lambda found: found.outputs[garbled_row(found)].fill_(float("nan")), "1 garbled rows are further than 1e-05"),
    ],
)
def test_whatever_differs_is_told(outcomes: tuple[Outcome, Outcome], change: Callable[[Outcome], object], words: str) -> None:
    wanted, right = outcomes
    found = deepcopy(wanted)
    change(found)
    assert any(words in told for told in differences(found, wanted, right))


def test_garbled_rows_may_be_as_far_apart_as_two_devices_compute(outcomes: tuple[Outcome, Outcome]) -> None:
    wanted, right = outcomes
    found = deepcopy(wanted)
    found.outputs[garbled_row(found)] *= 1 + 1e-6
    assert list(differences(found, wanted, right)) == []


def test_numbers_of_states_are_exact() -> None:
    log = told_of("settled/states/stream_order").log()
    compiled = compile_log(log)
    wanted = replay_outcome(compiled, NumberedLog(compiled, NUMBERS))
    found = deepcopy(wanted)
    assert list(differences(found, wanted, wanted)) == []
    found.state_outputs[1, 3] += 2.0**-21
    assert list(differences(found, wanted, wanted)) == [
        "1 states were right and are not contiguous memory's bits, state row 1 first",
        "1 numbers of states differ from the CPU's, state row 1 first",
    ]
    assert list(differences(found, found, wanted)) == ["1 states were right and are not contiguous memory's bits, state row 1 first"]
    found.state_wrong.fill_(1)
    assert list(differences(found, found, wanted)) == [], "a wrong state is the CPU's alone to judge"


def test_rows_and_stores_are_counted_as_a_replay_counts_them() -> None:
    for row in (
        "optimistic/loads",
        "settled/unordered-stores/stores",
        "settled/one-staging-buffer/loads",
        "settled/unawaited-loads/loads-in-steps",
    ):
        told = told_of(row)
        log = told.log()
        compiled = compile_log(log)
        numbered = NumberedLog(compiled, NUMBERS)
        for trial in trials(log, (), told.seed):
            counts = replay(compiled, trial.order, numbered, limit=0).counts
            outcome = replay_outcome(compiled, numbered, trial.order)
            assert (rows_garbled(outcome), stores_wrong(outcome)) == (counts.rows_garbled, counts.stores_wrong)


def test_a_store_is_wrong_by_its_tags_or_by_its_bytes() -> None:
    outcome: Any = SimpleNamespace(store_wrong=torch.tensor([0, 0, 1, 1]), store_differing=torch.tensor([0, 2, 0, 1]))
    assert stores_wrong(outcome) == 3


# ---- on a device ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def gpu() -> Iterator[FakeGpu]:
    with FakeGpu() as gpu:
        yield gpu


def without(kind: LaunchKind, gpu: FakeGpu, after: int) -> Callable[[Callable[[int], None], OpLog], Callable[[int], None]]:
    """A device that loses launches of a kind behind the first `after` of them."""
    seen: list[int] = []

    def queued(launch: Callable[[int], None], log: OpLog) -> Callable[[int], None]:
        right = gpu.queued(launch, log)

        def run(op: int) -> None:
            launched = log.ops[op]
            if isinstance(launched, Launch) and launched.kind is kind and log.num_blocks > 1:
                seen.append(op)
                if len(seen) > after:
                    return
            right(op)

        return run

    return queued


def test_a_device_that_loses_a_write_is_found_out(gpu: FakeGpu) -> None:
    told = told_of("settled/everything", "short")
    case = AgainstCpu(told.log(), CudaDevice(gpu.platform), queued=without(LaunchKind.WRITE, gpu, 6))
    problems = [problem for run in case.first_runs for problem in run.problems]
    assert any("differ from the CPU's" in problem for problem in problems), problems
    assert any(run.is_garbled for run in case.first_runs)
    assert all(run.first == "" for run in case.first_runs), "told where both agree alone"
    in_order = case.first_runs[1]
    assert 0 < in_order.compared < len(case.launches.rows.keys) + case.launches.rows.num_state_rows, "what is garbled is within a tolerance"


def test_what_does_not_run_is_not_taken_from_the_run_before_and_natural_timing_is_judged_where_nothing_races(
    gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = AgainstCpu(told_of("settled/everything", "short").log(), CudaDevice(gpu.platform), queued=gpu.queued)
    assert [run.problems for run in case.first_runs] == [[], []]
    monkeypatch.setattr(against_cpu, "run_on_streams", lambda *arguments, **keywords: None)
    assert case.directed(next(iter(trials(case.log, case.races, 0)))).problems
    assert not case.races
    judged = case.natural(step_seconds=0.0)
    assert judged.problems
    assert judged.wanted_rows == 0
    case.races = [None]  # type: ignore[list-item]
    told = case.natural(step_seconds=0.0)
    assert (told.problems, told.wanted_rows, told.wanted_stores, told.compared) == ([], None, None, 0)

    def lost(*arguments: object, **keywords: object) -> None:
        case.device.is_lost = True
        raise GateTimeoutError("late")

    monkeypatch.setattr(against_cpu, "run_on_streams", lost)
    run = case.directed(next(iter(trials(case.log, (), 0))))
    assert (run.problems, run.is_repeated, case.device.tickets.ahead) == (["as enqueued: late"], False, AHEAD)


def test_a_device_that_is_right_is_right_and_a_closed_gate_that_holds_up_others_is_met(
    gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = CudaDevice(gpu.platform)
    case = AgainstCpu(told_of("settled/everything", "short").log(), device, queued=gpu.queued)
    trial = next(iter(trials(case.log, case.races, 0)))
    assert [run.problems for run in case.first_runs] == [[], []]
    original, ahead = against_cpu.run_on_streams, []

    def held_up(*arguments: object, **keywords: object) -> None:
        ahead.append(device.tickets.ahead)
        if device.tickets.ahead > 1:
            raise GateTimeoutError("held up")
        original(*arguments, **keywords)  # type: ignore[arg-type]

    monkeypatch.setattr(against_cpu, "run_on_streams", held_up)
    run = case.directed(trial)
    assert run.is_repeated
    assert run.problems == []
    assert run.compared > 0
    assert ahead[0] > 1 == ahead[1]

    def stuck(*arguments: object, **keywords: object) -> None:
        raise StreamsError("stuck")

    monkeypatch.setattr(against_cpu, "run_on_streams", stuck)
    assert case.natural(step_seconds=0.001).problems == ["natural timing, steps of 1 ms: stuck"]
    assert case.directed(trial).problems == ["as enqueued: stuck"]

    def late(*arguments: object, **keywords: object) -> None:
        raise GateTimeoutError("late")

    monkeypatch.setattr(against_cpu, "run_on_streams", late)
    assert device.tickets.ahead == 1
    assert case.directed(trial).problems == ["as enqueued: late"], "a second try would be the same"
    monkeypatch.setattr(CudaDevice, "drain", lambda device, seconds: False)
    assert case._in_order().problems == ["one stream: the device did not end its work in 30 s"]
    case.contiguous.wrong[0] = 1
    case.contiguous.outputs[0] *= 2
    not_clean, far = case._wrong_over_contiguous()
    assert not_clean.startswith("contiguous memory: 1 of ")
    assert "1 rows further than 1e-05 from the CPU's outputs, row 0 first" in far
