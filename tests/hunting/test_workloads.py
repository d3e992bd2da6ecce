"""Workloads: the same from the same seed, near the boundaries, of every sort that a mix names, and only setups that the engine accepts."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import islice
from random import Random

import pytest

from settled.model.disciplines import RIGHT
from settled.model.specs import ChunkedLocalAttentionSpec, SlidingWindowSpec
from settled.proofs.fuzzing.coverage import CAUSE
from settled.proofs.hunting.coverage import HuntCoverage
from settled.proofs.hunting.mixes import MIXES
from settled.proofs.hunting.plain import WorkloadError, workload_as_dict, workload_of
from settled.proofs.hunting.running import run_workload
from settled.proofs.hunting.workloads import REDRAWS_MAX, WORKLOADS_A_SETUP, MixError, draw_setup, workloads
from settled.reference.engines.operations import Abort, Add, Process, Report, Schedule, Workload
from settled.reference.engines.protocol import Ending, Sink
from settled.reference.engines.reference_engine import ReferenceEngine, ReferenceFactory
from settled.reference.engines.setup import EngineSetup, SetupError

FACTORY = ReferenceFactory(RIGHT)


def some(mix: str, count: int, seed: int = 0) -> list[Workload]:
    return [drawn.workload for drawn in islice(workloads(mix, seed, FACTORY), count)]


def test_the_same_seed_draws_the_same_and_another_draws_others() -> None:
    assert some("all", 40) == some("all", 40)
    assert some("all", 40) != some("all", 40, seed=1)
    assert len(set(some("all", 40))) == 40


def test_any_number_is_drawn_at_once() -> None:
    first = WORKLOADS_A_SETUP * 3 + 5
    assert next(workloads("all", 4, FACTORY, first=first)).workload == some("all", first + 1, seed=4)[-1]


@pytest.mark.parametrize("mix", MIXES)
def test_a_mix_draws_every_sort_of_groups_and_connector_that_it_names(mix: str) -> None:
    setups = [draw_setup(Random(number), MIXES[mix]) for number in range(400)]
    assert len({tuple((spec.kind, getattr(spec, "mode", "")) for spec in setup.groups) for setup in setups}) == len(MIXES[mix].groups)
    assert {setup.connector is None for setup in setups} == {name == "none" for name in MIXES[mix].connectors}
    assert {setup.num_speculative_tokens for setup in setups} == set(MIXES[mix].drafts)


def test_windows_and_pools_lie_at_the_boundaries() -> None:
    setups = [workload.setup for workload in some("windows", 60 * WORKLOADS_A_SETUP)[::WORKLOADS_A_SETUP]]
    past = Counter(
        (spec.window + 1) % spec.block_size - 1 for setup in setups for spec in setup.groups if isinstance(spec, SlidingWindowSpec)
    )
    assert set(past) == {-1, 0, 1}
    spare = {setup.num_blocks - FACTORY.min_num_blocks(setup) for setup in setups}
    assert {0, 1} <= spare
    chunks = [spec for each in some("chunks", 200) for spec in each.setup.groups if isinstance(spec, ChunkedLocalAttentionSpec)]
    assert {spec.chunk % spec.block_size == 0 for spec in chunks} == {True, False}


def test_operations_of_every_sort_are_drawn() -> None:
    drawn = some("connectors", 300)
    operations = [operation for workload in drawn for operation in workload.operations]
    assert {type(operation) for operation in operations} == {Abort, Add, Process, Report, Schedule}
    rejected = {
        "none" if not number else "all" if number == workload.setup.num_speculative_tokens else "some"
        for workload in drawn
        if workload.setup.num_speculative_tokens > 1
        for operation in workload.operations
        if isinstance(operation, Process)
        for number in operation.rejected
    }
    assert rejected == {"none", "some", "all"}
    reports = [operation for operation in operations if isinstance(operation, Report)]
    assert {report.ending for report in reports} == set(Ending)
    assert {report.again for report in reports} == {True, False}
    offers = [operation.offer for operation in operations if isinstance(operation, Add) and operation.offer is not None]
    assert {offer.is_async for offer in offers} == {True, False}
    assert any(isinstance(each, Add) and each.offer is not None and each.offer.tokens == each.prompt_tokens for each in operations)
    between = [
        workload
        for workload in drawn
        if any(isinstance(a, Schedule) and isinstance(b, Abort) for a, b in zip(workload.operations, workload.operations[1:], strict=False))
    ]
    assert between


def test_windows_are_hunted_without_what_is_a_finding_of_its_own() -> None:
    """Loads are asynchronous, of a part of a prompt, and end well; with them nothing is aborted or stored."""
    drawn = some("windows", 400)
    assert {workload.setup.kv_consumer for workload in drawn} == {True, False}
    for workload in drawn:
        for operation in workload.operations:
            assert not (isinstance(operation, Abort) and workload.setup.kv_consumer)
            if isinstance(operation, Report):
                assert (operation.ending, operation.again) == (Ending.GOOD, False)
            if isinstance(operation, Add) and operation.offer is not None:
                offer = operation.offer
                assert (offer.ending, offer.is_async, operation.is_stored) == (Ending.GOOD, True, False)
                assert 0 < offer.tokens < operation.prompt_tokens
    assert any(isinstance(each, Add) and each.offer is not None for workload in drawn for each in workload.operations)
    assert any(isinstance(each, Abort) for workload in drawn for each in workload.operations)


def test_workloads_reach_hits_preemptions_and_evictions() -> None:
    """Shares of the workloads on the reference: what a mix claims by its weights must come about."""
    drawn = some("full", 160)
    reached = Counter[str]()
    for workload in drawn:
        coverage = HuntCoverage()
        run_workload(FACTORY, workload, coverage=coverage)
        causes = {feature.what for feature in coverage.counts if feature.section == CAUSE}
        reached.update(causes | {cause.split(":")[0] for cause in causes})
    cached = sum(workload.setup.enable_prefix_caching for workload in drawn)
    assert 0 < cached < len(drawn)
    assert reached["computed: hit"] >= 0.3 * cached
    assert reached["preempt"] >= 0.1 * len(drawn)
    assert {"touch", "evict", "finish: stop", "finish: abort"} <= set(reached)


def test_settings_of_every_sort_are_drawn() -> None:
    setups = [draw_setup(Random(number), MIXES["all"]) for number in range(1000)]
    drawn = {setting for setup in setups for setting in setup.extra}
    assert {("speculative_method", "mtp"), ("speculative_method", "eagle"), ("speculative_method", "ngram")} <= drawn
    assert {name for name, _ in drawn} == {
        "speculative_method",
        "watermark",
        "long_prefill_token_threshold",
        "scheduler_reserve_full_isl",
    }
    assert any(setup.hash_block_size is not None for setup in setups)
    assert all(setup.enable_prefix_caching and len(setup.groups) > 1 for setup in setups if setup.hash_block_size is not None)
    retained = [setup for setup in setups if any(isinstance(spec, SlidingWindowSpec) and spec.extra_retained for spec in setup.groups)]
    assert retained
    assert all(("speculative_method", "mtp") in setup.extra for setup in retained)


class PickyFactory(ReferenceFactory):
    """Takes synchronous scheduling only."""

    def create(self, setup: EngineSetup, sink: Sink | None, *, inspects: bool = True) -> ReferenceEngine:
        if setup.async_scheduling:
            raise SetupError("no asynchronous scheduling")
        return super().create(setup, sink, inspects=inspects)


def test_refused_setups_are_drawn_again_and_counted() -> None:
    drawn = list(islice(workloads("all", 0, PickyFactory(RIGHT)), 10 * WORKLOADS_A_SETUP))
    assert not any(each.workload.setup.async_scheduling for each in drawn)
    refused = [each.refused for each in drawn]
    assert sum(map(len, refused)) > 10
    assert {reason for reasons in refused for reason in reasons} == {
        "no asynchronous scheduling",
        "the reference has the mock connector only",
        "the reference has no settings of its own",
    }
    assert all(number % WORKLOADS_A_SETUP == 0 for number, reasons in enumerate(refused) if reasons)


def test_an_engine_that_accepts_nothing_ends_the_hunt() -> None:
    class Refusing(ReferenceFactory):
        def min_num_blocks(self, setup: EngineSetup) -> int:
            raise SetupError("nothing fits")

    with pytest.raises(MixError, match=f"refused {REDRAWS_MAX} setups one after the other, the last because: nothing fits"):
        next(workloads("all", 0, Refusing(RIGHT)))


@pytest.mark.parametrize("mix", sorted(set(MIXES) - {"offloading"}))  # the reference has the mock only
def test_a_workload_reads_back(mix: str) -> None:
    for workload in some(mix, 20):
        assert workload_of(workload_as_dict(workload)) == workload


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"operations": [{"do": "jump"}]}, "'jump' is missing or unknown"),
        ({"operations": [{"do": "abort"}]}, "missing required field `request_id`"),
        ({"operations": [{"do": "process", "rejected": "all"}]}, "Expected `array`"),
        ({"setup": {}}, "'groups' is missing or unknown"),
        ({"setup": {"groups": [{"kind": "full", "block_size": 0}], "num_blocks": 2}}, "block_size must be at least 1"),
        ({"setup": []}, "list indices|'list' object|'groups'|pop"),
    ],
)
def test_a_damaged_workload_is_named(change: dict[str, object], message: str) -> None:
    raw = {**workload_as_dict(some("all", 1)[0]), **change}
    with pytest.raises(WorkloadError, match=message):
        workload_of(raw)


def test_what_is_at_its_default_is_left_out() -> None:
    (workload,) = some("windows", 1)
    told = workload_as_dict(replace(workload, operations=(Schedule(), Process())))
    assert told["operations"] == [{"do": "schedule"}, {"do": "process"}]
