"""The shrinker of workloads: small, the same every time, within its bound, and only what the engine accepts."""

from __future__ import annotations

from contextlib import suppress
from typing import NamedTuple

import pytest

from settled.model.disciplines import OPTIMISTIC
from settled.model.properties import Contract
from settled.model.specs import SlidingWindowSpec
from settled.proofs.hunting.budget import Budget
from settled.proofs.hunting.faults import HarnessError
from settled.proofs.hunting.finding import Finding, shown_by
from settled.proofs.hunting.running import run_workload
from settled.proofs.hunting.shrinking import Shrinker, size_of
from settled.proofs.hunting.workloads import workloads
from settled.proofs.watching import Key
from settled.reference.engines.operations import Abort, Add, Operation, Process, Schedule, Workload
from settled.reference.engines.reference_engine import ReferenceFactory
from settled.reference.engines.setup import EngineSetup, SetupError

FACTORY = ReferenceFactory(OPTIMISTIC)
READ = Key("read_resident", "freed[window]", "sliding_window")
ROLLBACK = Key("rollback_resident", "released_before_schedule[window]", "sliding_window")


def show_like(finding: Finding, workload: Workload, steps_max: int | None = None) -> Finding | None:
    """None for what no user of the engine could bring about as well."""
    try:
        return shown_by(FACTORY, finding, workload, steps_max=steps_max)
    except (HarnessError, SetupError):
        return None


@pytest.fixture(scope="module")
def found() -> Finding:
    for number, workload, _ in workloads("windows", 5, FACTORY):
        if READ not in run_workload(FACTORY, workload, contract=Contract.SETTLED).found or len(workload.setup.groups) < 2:
            continue
        about = {"engine": "reference", "mix": "windows", "seed": 5, "number": number}
        finding = Finding(contract=Contract.SETTLED, key=READ, sentence="", workload=workload, **about)  # type: ignore[arg-type]
        shown = show_like(finding, workload)
        assert shown is not None
        return shown
    raise AssertionError


def shrinker(found: Finding, **settings: int) -> Shrinker:
    return Shrinker(
        found.workload, found, lambda workload, steps_max: show_like(found, workload, steps_max), FACTORY.min_num_blocks, **settings
    )


def test_a_hybrid_workload_becomes_two_steps_of_one_window(found: Finding) -> None:
    small = shrinker(found).run()
    (spec,) = small.setup.groups
    assert spec.kind == "sliding_window"
    assert spec.block_size == 1
    assert [type(each) for each in small.operations] == [Add]
    shown = show_like(found, small)
    assert shown is not None
    assert shown.steps == 2
    assert not small.setup.enable_prefix_caching
    assert small.setup.num_speculative_tokens == 0
    assert small.setup.num_blocks == FACTORY.min_num_blocks(small.setup)


@pytest.mark.parametrize("steps_of_prefill", [3, 6])
def test_a_prefill_in_several_steps_becomes_one_step(steps_of_prefill: int) -> None:
    """With larger batches alone the rejection comes too late, and with fewer steps alone too early."""
    tokens = -(-45 // steps_of_prefill)
    setup = EngineSetup(
        groups=(SlidingWindowSpec(block_size=8, window=24),),
        num_blocks=20,
        max_num_batched_tokens=tokens,
        max_num_seqs=1,
        max_model_len=60,
        num_speculative_tokens=1,
    )
    prefill = (Schedule(), Process()) * steps_of_prefill
    workload = Workload(setup, (Add("r0", 45, 3), *prefill, Schedule(), Schedule(), Process((1,))))
    about = {"engine": "reference", "mix": "", "seed": 0, "number": 0}
    finding = Finding(contract=Contract.STREAM_ORDER, key=ROLLBACK, sentence="", workload=workload, **about)  # type: ignore[arg-type]
    first = show_like(finding, workload)
    assert first is not None
    assert first.steps == steps_of_prefill + 2
    shrunk = show_like(finding, shrinker(first).run())
    assert shrunk is not None
    assert shrunk.steps == 3


def test_the_same_workload_becomes_the_same_small_one(found: Finding) -> None:
    assert shrinker(found).run() == shrinker(found).run()


@pytest.mark.parametrize("runs_max", [0, 1, 7])
def test_runs_are_bounded(found: Finding, runs_max: int) -> None:
    bounded = shrinker(found, runs_max=runs_max)
    bounded.run()
    assert bounded.runs == runs_max


def test_a_budget_ends_it_with_the_smallest_so_far(found: Finding) -> None:
    budget = Budget(operations=300)

    def show(workload: Workload, steps_max: int) -> Finding | None:
        with suppress(HarnessError, SetupError):
            return shown_by(FACTORY, found, workload, budget=budget, steps_max=steps_max)
        return None

    bounded = Shrinker(found.workload, found, show, FACTORY.min_num_blocks, is_spent=budget.is_spent)
    small = bounded.run()
    assert 0 < bounded.runs < shrinker(found).runs_max
    assert -300 < budget.operations <= 0
    assert size_of(small) < size_of(found.workload)
    assert show_like(found, small) is not None


@pytest.mark.parametrize("settings", [{"operations": 0}, {"cpu_seconds": 0.0}, {"ends": 0.0}])
def test_each_bound_of_a_budget_is_one(settings: dict[str, float]) -> None:
    assert not Budget().is_spent()
    assert Budget(**settings).is_spent()  # type: ignore[arg-type]


class Some(NamedTuple):
    steps: int
    done: tuple[Operation, ...]


def test_a_property_of_the_operations_alone_shrinks_to_its_least(found: Finding) -> None:
    def show(workload: Workload, steps_max: int = 0) -> Some | None:
        aborts = sum(isinstance(each, Abort) for each in workload.operations)
        return Some(1, workload.operations) if aborts >= 2 else None

    first = next(drawn.workload for drawn in workloads("windows", 0, FACTORY) if show(drawn.workload))
    small = Shrinker(first, Some(1, first.operations), show, FACTORY.min_num_blocks, runs_max=3000).run()
    assert [type(each) for each in small.operations] == [Abort, Abort]
    assert [(spec.kind, spec.block_size) for spec in small.setup.groups] == [("full", 1)]
    assert (small.setup.max_model_len, small.setup.num_speculative_tokens, small.setup.async_scheduling) == (1, 0, False)


def test_fewer_steps_count_more_than_fewer_operations(found: Finding) -> None:
    """A change that saves operations at the cost of a step is not taken."""

    def show(workload: Workload, steps_max: int = 0) -> Some | None:
        return Some(1 if len(workload.operations) >= 5 else 2, workload.operations)

    first = found.workload
    assert len(first.operations) > 5
    small = Shrinker(first, Some(1, first.operations), show, FACTORY.min_num_blocks).run()
    assert len(small.operations) == 5
    assert size_of(small) < size_of(first)
