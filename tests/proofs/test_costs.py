"""The meter, on traces small enough to count by hand; and that the same seeds give the same numbers."""

from __future__ import annotations

from settled.model.disciplines import OPTIMISTIC, POOL_FENCE, RIGHT
from settled.model.events import (
    SCHEMA_VERSION,
    Allocate,
    Config,
    Drop,
    Event,
    Finish,
    Hold,
    Preempt,
    Process,
    ProcessedRequest,
    Release,
    Schedule,
    ScheduledRequest,
    Touch,
)
from settled.model.specs import SlidingWindowSpec
from settled.proofs.costs import COMPARED, Cost, Meter, cost_of

CONFIG = Config(
    schema=SCHEMA_VERSION,
    engine="by hand",
    num_blocks=9,
    max_in_flight_steps=3,
    max_batched_tokens=8,
    num_draft_tokens=0,
    prefix_caching=True,
    kv_consumer=True,
    groups=(SlidingWindowSpec(block_size=2, window=2),),
)


def metered(*events: Event) -> Cost:
    meter = Meter()
    for event in (CONFIG, *events):
        meter(event)
    return meter.cost


def allocate(first_index: int, *blocks: int) -> Allocate:
    return Allocate(request="A", group=0, first_index=first_index, blocks=blocks)


def schedule(step: int, counters: tuple[int, int, int]) -> Schedule:
    entry = ScheduledRequest(request="A", start=0, tokens=1, drafts=0, new_blocks=((),), resumed=False, counters=counters)
    return Schedule(step=step, requests=(entry,))


def process(step: int, counters: tuple[int, int, int] | None, sampled: int = 1) -> Process:
    return Process(step=step, requests=(ProcessedRequest(request="A", sampled=sampled, rejected=0, counters=counters),))


def release(cause: str, index: int, block: int, *, freed: bool = True) -> Release:
    return Release(request="A", group=0, indices=(index,), blocks=(block,), cause=cause, freed=(block,) if freed else ())  # type: ignore[arg-type]


PREFILL = (allocate(0, 1, 2), schedule(1, (4, 4, 0)))


def test_a_block_waits_from_the_settled_count_to_its_prune() -> None:
    """Block 0 (tokens 0, 1) is unneeded once 3 tokens are settled; two more steps are scheduled before the prune."""
    cost = metered(*PREFILL, process(1, (4, 0, 0)), schedule(2, (5, 1, 0)), schedule(3, (6, 2, 0)), release("window", 0, 1))
    assert (cost.pruned, cost.early, cost.pruned_wait) == (1, 0, 2)


def test_a_block_that_is_pruned_before_it_is_settled_is_early() -> None:
    cost = metered(*PREFILL, release("window", 0, 1), schedule(2, (5, 5, 0)))
    assert (cost.pruned, cost.early, cost.pruned_wait) == (1, 1, 0)


def test_behind_a_prune_fence_a_block_is_back_when_it_is_dropped() -> None:
    hold = Hold(holder="prune fence", kind="pin", blocks=(1,))
    drop = Drop(holder="prune fence", blocks=(1,), freed=(1,))
    waiting = (*PREFILL, hold, release("window", 0, 1, freed=False), schedule(2, (5, 5, 0)))
    early = metered(*waiting, drop)
    assert (early.pruned, early.early, early.held_sum) == (1, 1, 2 + 2)
    late = metered(*waiting, process(1, (5, 1, 0)), schedule(3, (6, 2, 0)), drop)
    assert (late.pruned, late.early, late.pruned_wait) == (1, 0, 1)


def test_a_whole_table_waits_from_the_end_of_its_generation() -> None:
    preempted = metered(*PREFILL, Preempt(request="A"), schedule(2, (1, 5, 4)), release("deferred", 1, 2), release("deferred", 0, 1))
    assert (preempted.given_up, preempted.given_up_wait) == (2, 2)
    assert (preempted.pruned, preempted.finished) == (0, 0)


def test_what_is_needed_no_more_when_the_table_is_given_up_has_waited_before() -> None:
    cost = metered(*PREFILL, process(1, (4, 0, 0)), schedule(2, (5, 1, 0)), Finish(request="A", reason="stop"), release("finish", 0, 1))
    assert (cost.given_up, cost.given_up_wait, cost.finished) == (1, 1, 1)


def test_a_block_that_others_hold_does_not_come_back() -> None:
    touch = Touch(request="A", group=0, first_index=0, blocks=(1,))
    cost = metered(touch, schedule(1, (4, 2, 0)), process(1, (4, 0, 0)), release("window", 0, 1, freed=False))
    assert (cost.pruned, cost.held_peak) == (0, 1)


def test_blocks_held_and_tokens_are_counted_a_step() -> None:
    cost = metered(*PREFILL, process(1, None, sampled=3), allocate(2, 3), schedule(2, (5, 1, 0)))
    assert (cost.steps, cost.held_sum, cost.held_peak, cost.sampled) == (2, 2 + 3, 3, 3)
    assert cost.held_mean == 2.5
    assert cost.sampled_per_step == 1.5


def test_the_same_seeds_give_the_same_numbers_and_the_sums_add_up() -> None:
    first, second = cost_of(RIGHT, (1,), steps=60), cost_of(RIGHT, (2,), steps=60)
    both = cost_of(RIGHT, (1, 2), steps=60)
    assert both == cost_of(RIGHT, (1, 2), steps=60)
    assert both.steps == first.steps + second.steps == 120
    assert both.held_sum == first.held_sum + second.held_sum
    assert both.held_peak == max(first.held_peak, second.held_peak)
    assert first != second


def test_a_settled_prune_is_never_early_and_an_optimistic_one_is() -> None:
    assert {discipline.name for discipline in COMPARED} >= {"settled", "vllm", "optimistic", "pool-fence", "callback", "no-fence"}
    seeds = range(12)
    settled, optimistic, fenced = (cost_of(discipline, seeds, steps=80) for discipline in (RIGHT, OPTIMISTIC, POOL_FENCE))
    assert settled.early == 0 < fenced.early < optimistic.early
    assert settled.pruned > 50
    assert optimistic.held_mean < settled.held_mean
