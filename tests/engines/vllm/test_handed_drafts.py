"""When the scheduler is handed drafts that a model made: the adapter does what the release's own loop does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import engine_core
import pytest
from driving import FACTORY, setup_of

from settled.reference.engines.protocol import NewRequest, Outcome
from settled.reference.engines.setup import EngineSetup
from settled.reference.engines.vllm.steps import DraftsWithoutTokenError, check_drafts

DRAFTS = 3
Dispatched = list[tuple[int, int]]  # tokens and drafts of the only request, step by step


def listen(scheduler: Any) -> Dispatched:
    """What is dispatched from now on."""
    dispatched: Dispatched = []
    original: Callable[..., Any] = scheduler.schedule

    def schedule(*args: Any, **keywords: Any) -> Any:
        output = original(*args, **keywords)
        for name, tokens in output.num_scheduled_tokens.items():
            dispatched.append((tokens, len(output.scheduled_spec_decode_tokens.get(name, ()))))
        return output

    scheduler.schedule = schedule
    return dispatched


def dispatched_by_loop(setup: EngineSetup, turns: int) -> Dispatched:
    """By EngineCore's own loop, with the executor alone a stand-in."""
    core = engine_core.make_core(setup)
    core.model_executor.is_slow = True
    dispatched = listen(core.scheduler)
    core.add_request(engine_core.request(core, "r", 20))
    for _ in range(turns):
        engine_core.step(core)
    engine_core.shut_down(core)
    return dispatched


def dispatched_by_adapter(setup: EngineSetup) -> Dispatched:
    engine = FACTORY.create(setup, None)
    dispatched = listen(engine.scheduler)
    engine.add_request(NewRequest("r", tuple(range(10, 30)), 20))
    assert engine.schedule()
    with pytest.raises(DraftsWithoutTokenError, match="3 drafts in a step of 3 tokens"):
        engine.schedule()
    return dispatched


def test_with_stages_and_without_asynchronous_scheduling_the_loop_dispatches_drafts_without_their_token() -> None:
    setup = replace(engine_core.setup_of(async_scheduling=False, drafts=DRAFTS, spare_blocks=40), pipeline_parallel_size=2)
    by_loop = dispatched_by_loop(setup, 2)
    assert by_loop == [(20, 0), (DRAFTS, DRAFTS)]
    assert dispatched_by_adapter(setup) == by_loop[:1]  # the second is refused before anyone hears of it, with the same numbers


@pytest.mark.parametrize("is_async", [True, False])
def test_with_one_stage_each_draft_follows_a_token(is_async: bool) -> None:
    engine = FACTORY.create(setup_of(num_speculative_tokens=DRAFTS, async_scheduling=is_async), None)
    dispatched = listen(engine.scheduler)
    engine.add_request(NewRequest("r", tuple(range(10, 30)), 30))
    while engine.unfinished_requests():
        if engine.num_unprocessed_steps == engine.max_in_flight_steps or not engine.schedule():
            engine.process(lambda row: Outcome(row.drafts))
    assert (1 + DRAFTS, DRAFTS) in dispatched
    assert all(drafts < tokens for tokens, drafts in dispatched)


def test_drafts_are_checked_against_the_tokens_of_their_step() -> None:
    output = SimpleNamespace(scheduled_spec_decode_tokens={"r": [7] * DRAFTS}, num_scheduled_tokens={"r": DRAFTS + 1})
    check_drafts(output)
    output.num_scheduled_tokens = {"r": DRAFTS}
    with pytest.raises(DraftsWithoutTokenError, match="token before the first is missing"):
        check_drafts(output)
