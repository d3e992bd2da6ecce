"""Kernels in Triton's interpreter against the CPU replay of the same order: the same reads, right ones and garbled ones."""

from __future__ import annotations

import pytest
import torch
from workloads import FAULT_1, FAULT_2, NUMBERS, WORKLOADS, Made, Workload, made

from settled.reference.device.compiling import compile_log
from settled.reference.device.cuda.contiguous import contiguous_log
from settled.reference.device.cuda.interpreted import interpreted_launches, replay_interpreted
from settled.reference.device.cuda.variants import TILE
from settled.reference.device.mismatches import garbled_of
from settled.reference.device.numbered import NumberedLog
from settled.reference.device.ops import LaunchKind
from settled.reference.device.outcome import Outcome
from settled.reference.device.replay import replay, replay_outcome
from settled.reference.device.results import Garbled

torch.set_num_threads(1)
TOLERANCE = 1e-5  # of outputs in float32 by different kernels, relative
SEEN: dict[str, Outcome] = {}


def interpreted(workload: Workload, ready: Made) -> Outcome:
    """Each workload runs once."""
    if workload.name not in SEEN:
        SEEN[workload.name] = replay_interpreted(interpreted_launches(ready.compiled, ready.numbered), ready.order)
    return SEEN[workload.name]


def plain(garbled: Garbled) -> tuple[object, ...]:
    """Without `differs`: which outputs differ bit for bit is a kernel's own."""
    return (garbled.op, garbled.part, garbled.query, garbled.position, garbled.expected, garbled.found, garbled.is_null, garbled.is_state)


def assert_outputs_near(outcome: Outcome, expected: Outcome) -> None:
    """Rows that hold numbers hold nearly the same; those that hold none hold none."""
    is_number = expected.outputs.isfinite().all(1)
    assert torch.equal(outcome.outputs.isfinite().all(1), is_number)
    wanted = expected.outputs[is_number]
    assert bool(((outcome.outputs[is_number] - wanted).norm(dim=1) <= TOLERANCE * wanted.norm(dim=1)).all())


PARAMETERS = [pytest.param(workload, id=workload.name, marks=[] if workload.is_fast else [pytest.mark.slow]) for workload in WORKLOADS]


@pytest.mark.parametrize("workload", PARAMETERS)
def test_reads_equal_those_of_the_cpu_replay_garbled_ones_included(workload: Workload) -> None:
    ready = made(workload)
    outcome = interpreted(workload, ready)
    expected = replay_outcome(ready.compiled, ready.numbered, ready.order)
    assert outcome.differences(expected) == []
    assert torch.equal(outcome.state_outputs.nan_to_num(), expected.state_outputs.nan_to_num()), "states are exact on every back-end"
    assert_outputs_near(outcome, expected)
    assert outcome.is_clean == workload.is_clean, outcome.counts()
    result = replay(ready.compiled, ready.order, ready.numbered, limit=1000)
    found = {plain(row) for row in garbled_of(outcome, ready.compiled)}
    assert found == {plain(row) for row in result.garbled if row.position >= 0}


@pytest.mark.parametrize("workload", [each for each in PARAMETERS if each.values[0].is_clean])
def test_clean_outputs_are_those_of_contiguous_memory_bit_for_bit(workload: Workload) -> None:
    ready = made(workload)
    compiled = compile_log(contiguous_log(ready.compiled))
    contiguous = replay_interpreted(interpreted_launches(compiled, NumberedLog(compiled, NUMBERS)))
    outcome = interpreted(workload, ready)
    assert contiguous.is_clean
    assert [where[1:] for where in contiguous.rows.keys] == [where[1:] for where in outcome.rows.keys]
    assert outcome.rows_differing(contiguous) == []
    assert outcome.state_rows_differing(contiguous) == []
    assert garbled_of(outcome, ready.compiled, contiguous) == []
    assert torch.equal(outcome.digests, contiguous.digests), "a digest does not know where a key stands"


def test_fault_1_is_a_load_over_keys_that_a_running_step_still_reads() -> None:
    ready = made(FAULT_1)
    outcome = interpreted(FAULT_1, ready)
    rows = garbled_of(outcome, ready.compiled)
    assert rows
    assert not any(row.is_null for row in rows)
    assert all("loaded" in ready.compiled.describe(row.found) for row in rows)
    as_enqueued = replay_interpreted(interpreted_launches(ready.compiled, ready.numbered))
    assert as_enqueued.is_clean
    assert outcome.rows_differing(as_enqueued) == (outcome.wrong > 0).nonzero().flatten().tolist()


def test_fault_2_is_a_read_through_a_null_entry() -> None:
    ready = made(FAULT_2)
    rows = garbled_of(interpreted(FAULT_2, ready), ready.compiled)
    assert rows
    assert all(row.is_null for row in rows)


def test_every_kind_of_launch_is_in_the_fast_workloads() -> None:
    ready = [made(workload) for workload in WORKLOADS if workload.is_fast]
    assert {kind for each in ready for kind in each.compiled.kinds if kind} == set(LaunchKind)


@pytest.mark.slow
def test_every_kind_of_group_and_several_tiles_are_in_the_workloads() -> None:
    ready = [made(workload) for workload in WORKLOADS]
    assert sum(workload.is_clean for workload in WORKLOADS) >= 10
    assert {group.kind for each in ready for group in each.compiled.log.groups} == {
        "full",
        "sliding_window",
        "chunked_local",
        "sink_window",
        "rswa",
        "custom",
        "mamba",
    }
    assert max(span.count for each in ready for step in each.compiled.steps for span in step.spans) > TILE
