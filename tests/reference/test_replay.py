"""Scripts on the real engine: the same decisions, the engine's own blocks."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import groupby

import pytest

from settled.model.disciplines import OPTIMISTIC, RIGHT, STALE_APPLIED, Discipline
from settled.model.events import (
    Add,
    Computed,
    Config,
    End,
    Event,
    Finish,
    Load,
    Loaded,
    Preempt,
    Process,
    ProcessedRequest,
    Release,
    Schedule,
    ScheduledRequest,
    State,
    Store,
    Stored,
    Touch,
)
from settled.model.specs import SlidingWindowSpec
from settled.reference.replay import ReplayError, replay
from settled.reference.workload import random_workload, run_workload

CONFIG = Config(
    schema=1,
    engine="script",
    num_blocks=40,
    max_in_flight_steps=3,
    max_batched_tokens=64,
    num_draft_tokens=3,
    prefix_caching=True,
    kv_consumer=True,
    groups=(SlidingWindowSpec(block_size=4, window=4),),
)


def scheduled(step: int, start: int, tokens: int, drafts: int = 0, request: str = "r") -> Schedule:
    entry = ScheduledRequest(request=request, start=start, tokens=tokens, drafts=drafts, new_blocks=((),), resumed=False)
    return Schedule(step=step, requests=(entry,))


def processed(step: int, sampled: int, rejected: int = 0, request: str = "r") -> Process:
    return Process(step=step, requests=(ProcessedRequest(request=request, sampled=sampled, rejected=rejected),))


def decisions(events: list[Event]) -> list[object]:
    """What a script decides, without blocks and counters."""
    told: list[object] = []
    for event in events:
        if isinstance(event, Schedule):
            told.append(("schedule", event.step, [(e.request, e.start, e.tokens, e.drafts) for e in event.requests]))
        elif isinstance(event, Process):
            told.append(("process", event.step, [(e.request, e.sampled, e.rejected) for e in event.requests]))
        elif isinstance(event, Load | Store):
            told.append((event.name, event.job, event.request, event.handles, event.step))
        elif isinstance(event, Loaded | Stored):
            told.append((event.name, event.job, event.ok, event.handle, event.cancelled))
        elif isinstance(event, Add | Preempt | Finish | Computed | End):
            told.append(event)
    return in_order_of_requests(told)


def in_order_of_requests(told: list[object]) -> list[object]:
    """Who finds what, of those that are admitted together, comes in any order: a script tells an asynchronous load before the step."""

    def starts(event: object) -> bool:
        if isinstance(event, Computed):
            return event.cause in ("hit", "external")
        return isinstance(event, tuple) and event[0] == "load"

    ordered: list[object] = []
    for is_start, group in groupby(told, key=starts):
        together = list(group)
        ordered += sorted(together, key=str) if is_start else together
    return ordered


def test_the_optimistic_basis_frees_under_a_step_in_flight_and_settled_does_not() -> None:
    script = [CONFIG, Add(request="r", prompt_tokens=12), scheduled(5, 0, 8), scheduled(6, 8, 4)]

    def pruned(discipline: Discipline) -> list[tuple[int, ...]]:
        return [event.indices for event in replay(script, discipline) if isinstance(event, Release)]

    assert pruned(RIGHT) == []
    assert pruned(OPTIMISTIC) == [(0,)]


def test_the_answer_has_the_decisions_of_the_script() -> None:
    script: list[Event] = [
        CONFIG,
        Add(request="r", prompt_tokens=6),
        scheduled(3, 0, 6),
        scheduled(4, 6, 4, drafts=3),
        processed(3, 1),
        processed(4, 2, rejected=2),
        scheduled(5, 8, 1),
        processed(5, 1),
        Finish(request="r", reason="stop"),
        End(idle=True),
    ]
    answer = replay(script)
    assert decisions(answer) == decisions(script)
    counters = [entry.counters for event in answer if isinstance(event, Process) for entry in event.requests]
    assert counters == [(10, 4, 0), (8, 0, 0), (9, 0, 0)]


def test_a_hit_is_made_real_by_a_warm_up_that_is_not_recorded() -> None:
    script: list[Event] = [
        CONFIG,
        Add(request="r", prompt_tokens=12),
        scheduled(0, 0, 4),
        Preempt(request="r", output="drop"),
        Computed(request="r", computed=8, cause="hit", stale=False),
        scheduled(1, 8, 4),
        processed(0, 0),
        processed(1, 1),
        Finish(request="r", reason="abort"),
        End(idle=True),
    ]
    answer = replay(script)
    assert isinstance(answer[1], State)
    assert len(answer[1].cached) == 2
    (hit,) = [event for event in answer if isinstance(event, Computed)]
    assert hit.computed == 8
    (touch,) = [event for event in answer if isinstance(event, Touch)]
    assert touch.first_index == 1
    assert [event.request for event in answer if isinstance(event, Add)] == ["r"]
    unannounced = [event for event in script if not isinstance(event, Computed)]
    assert replay(unannounced) == answer


def test_an_own_prefix_in_the_cache_is_not_hit_unless_the_script_says_so() -> None:
    script: list[Event] = [
        CONFIG,
        Add(request="r", prompt_tokens=12),
        scheduled(0, 0, 12),
        processed(0, 1),
        Preempt(request="r"),
        scheduled(1, 0, 12),
    ]
    assert not [event for event in replay(script) if isinstance(event, Computed)]


def test_without_an_output_mode_the_script_shows_which_one_it_means() -> None:
    start: list[Event] = [CONFIG, Add(request="r", prompt_tokens=6), scheduled(0, 0, 6), Preempt(request="r")]
    early = replay([*start, scheduled(1, 0, 6), processed(0, 1)])
    late = replay([*start, processed(0, 1), scheduled(1, 0, 6)])
    assert [event.output for event in early if isinstance(event, Preempt)] == ["drop"]
    assert [event.output for event in late if isinstance(event, Preempt)] == ["deliver"]


def test_a_stale_output_that_is_applied_rolls_back_what_the_script_says() -> None:
    script: list[Event] = [
        CONFIG,
        Add(request="r", prompt_tokens=6),
        scheduled(0, 0, 6),
        processed(0, 1),
        scheduled(1, 6, 4, drafts=3),
        Preempt(request="r", output="drop"),
        scheduled(2, 0, 6),
        processed(1, 2, rejected=2),
    ]
    (output,) = [event for event in replay(script, STALE_APPLIED) if isinstance(event, Process)][-1].requests
    assert (output.rejected, output.counters) == (2, (4, 6, 0))
    (output,) = [event for event in replay(script, RIGHT) if isinstance(event, Process)][-1].requests
    assert (output.rejected, output.counters) == (2, (6, 6, 0))


def test_bad_scripts_are_refused() -> None:
    add = Add(request="r", prompt_tokens=6)
    with pytest.raises(ReplayError, match="event 0: a script starts with its config"):
        replay([add])
    with pytest.raises(ReplayError, match=r"event 2 \(schedule\): .*7 tokens without drafts"):
        replay([CONFIG, add, scheduled(0, 0, 7)])
    with pytest.raises(ReplayError, match=r"event 2 \(process\): no step is unprocessed"):
        replay([CONFIG, add, processed(0, 1)])
    with pytest.raises(ReplayError, match="no multiple of 4"):
        replay([CONFIG, add, Computed(request="r", computed=3, cause="hit", stale=False), scheduled(0, 3, 2)])
    with pytest.raises(ReplayError, match="'session' cannot be replayed"):
        replay([CONFIG, add, Computed(request="r", computed=3, cause="session", stale=False)])
    with pytest.raises(ReplayError, match="kv_consumer is off"):
        replay([replace(CONFIG, kv_consumer=False), add, Computed(request="r", computed=4, cause="external", stale=False)])
    with pytest.raises(ReplayError, match=r"event 2 \(computed\): .*a load of 7 tokens after 0; expected 1 to 6"):
        replay([CONFIG, add, Computed(request="r", computed=7, cause="external", stale=False)])
    with pytest.raises(ReplayError, match="has not put the blocks of 'r' into its table"):
        replay([CONFIG, add, Store(job="s", request="r", blocks=((5,),))])
    with pytest.raises(ReplayError, match="prefix caching is off"):
        replay([replace(CONFIG, prefix_caching=False), add, scheduled(0, 4, 2)])
    with pytest.raises(ReplayError, match="no output stopped 'r'"):
        replay([CONFIG, add, Finish(request="r", reason="stop")])
    with pytest.raises(ReplayError, match="the step samples nothing"):
        replay([CONFIG, add, scheduled(0, 0, 2), processed(0, 0), Finish(request="r", reason="stop")])


def test_a_hit_on_own_blocks_needs_no_warm_up() -> None:
    script: list[Event] = [
        CONFIG,
        Add(request="r", prompt_tokens=12),
        scheduled(0, 0, 9),
        Preempt(request="r", output="drop"),
        scheduled(1, 8, 4),
    ]
    answer = replay(script)
    assert not [event for event in answer if isinstance(event, State)]
    (touch,) = [event for event in answer if isinstance(event, Touch)]
    assert touch.blocks == (2,)


@pytest.mark.parametrize("prefix_caching", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_recorded_run_replays_to_the_same_decisions(prefix_caching: bool) -> None:
    """The engine's own traces are scripts too: the same steps, the same outputs, the same hits, the same transfers and failures."""
    hits = 0
    kinds: Counter[str] = Counter()
    for seed in range(60):
        workload = random_workload(seed, kinds=("full", "sliding_window"))
        # The config event does not tell the granularity of hashes, so a replay makes no hit that ends within a block.
        config = replace(workload.config, enable_prefix_caching=prefix_caching, connector=workload.config.kv_consumer, hash_block_size=None)
        events: list[Event] = []
        run_workload(replace(workload, config=config), steps=60, sink=events.append)
        answer = replay(events)
        assert decisions(answer) == decisions(events), f"seed {seed}"
        hits += sum(isinstance(event, Computed) and event.cause == "hit" for event in answer)
        kinds.update(event.cause if isinstance(event, Computed) else event.name for event in answer)
    assert (hits > 0) == prefix_caching
    assert min(kinds[name] for name in ("load", "store", "loaded", "stored", "external", "load_failed", "last_token")) > 0
