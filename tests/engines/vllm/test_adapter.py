"""vLLM behind the protocol: set-ups, depth, drafts, stops, aborts, and the faults of #47728 in the releases that have them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from driving import FACTORY, accept_all, at_least, full, random_run, reject_all, serve, setup_of, violated, window

from settled.model.events import Preempt, Process, Schedule, Touch
from settled.model.properties import Property
from settled.model.specs import ChunkedLocalAttentionSpec, CrossAttentionSpec, MambaSpec, RSWASpec, SlidingWindowSpec
from settled.proofs.hunting.faults import HarnessError, fault_of
from settled.reference.engines.protocol import NewRequest, Outcome, StepRequest
from settled.reference.engines.setup import ConnectorSetup, EngineSetup, SetupError
from settled.reference.engines.vllm.recording_blocks import BlockRecorder

PROMPT = tuple(range(10, 110))
CHUNKED = ChunkedLocalAttentionSpec(block_size=16, chunk=32)
ALIGN = MambaSpec(block_size=16, mode="align")
STATE = MambaSpec(block_size=256, mode="none")
HAS_ASYNC_DRAFTS = FACTORY.release.has("checks_async")


def request(name: str = "r", tokens: int = 100, max_tokens: int = 20) -> NewRequest:
    return NewRequest(name, PROMPT[:tokens], max_tokens)


# ---- set-ups -------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "groups",
    [
        (full(),),
        (window(33),),
        (CHUNKED,),
        (full(), window(32)),
        (full(), window(32), window(32)),
        (full(32), window(32, 16)),
        (full(), CHUNKED),
    ],
)
def test_groups_that_start_up_makes_are_served_to_the_end(groups: tuple[SlidingWindowSpec, ...]) -> None:
    engine, _ = random_run(setup_of(groups), 1)
    made = [group.kv_cache_spec.block_size for group in engine.scheduler.kv_cache_config.kv_cache_groups]
    assert made == [spec.block_size for spec in groups]


@pytest.mark.parametrize(
    ("setup", "message"),
    [
        (setup_of((window(32), window(32))), "start-up makes other groups"),
        (setup_of((window(32), full(), window(32))), "start-up makes other groups"),
        (setup_of((CrossAttentionSpec(block_size=16),)), "no group of kind cross"),
        (setup_of((full(), replace(STATE, block_size=16))), "covers max_model_len"),
        (setup_of((full(), STATE), enable_prefix_caching=True), "does not go with prefix caching"),
        (setup_of((full(), STATE), num_speculative_tokens=2), "as many speculative blocks"),
        (setup_of((full(), SlidingWindowSpec(block_size=16, window=32, extra_retained=2))), "extra"),
        (setup_of(max_num_batched_tokens=4), "below max_num_seqs"),
        (setup_of(num_blocks=4), "not accepted"),
        (setup_of(()), "no groups"),
        (setup_of(extra=(("no_such_setting", 1),)), "unknown setting"),
        (setup_of((full(),), connector=ConnectorSetup(name="NoSuchConnector")), "not accepted"),
        (setup_of((CHUNKED,), num_speculative_tokens=2, extra=(("speculative_method", "eagle"),)), "turns hybrid groups off"),
    ],
)
def test_a_setup_that_no_user_can_ask_for_is_refused(setup: EngineSetup, message: str) -> None:
    with pytest.raises(SetupError, match=message):
        FACTORY.create(setup, None)


def test_kinds_that_a_release_lacks_are_refused_and_others_served() -> None:
    for groups, since, changes in [
        ((RSWASpec(block_size=16, window=32),), "0.25.1", {}),
        ((full(), ALIGN), "0.18.1", {"enable_prefix_caching": True}),
    ]:
        setup = setup_of(groups, **changes)
        if at_least(since):
            engine, _ = random_run(setup, 2, operations=40)
            assert engine.is_idle
        else:
            with pytest.raises(SetupError):
                FACTORY.create(setup, None)


@pytest.mark.parametrize("groups", [(full(),), (full(), window(32)), (window(40),)])
def test_the_smallest_pool_is_the_one_that_start_up_accepts(groups: tuple[SlidingWindowSpec, ...]) -> None:
    setup = setup_of(groups)
    smallest = FACTORY.min_num_blocks(setup)
    assert smallest > 2
    assert FACTORY.create(replace(setup, num_blocks=smallest), None).is_idle
    with pytest.raises(SetupError, match="not accepted"):
        FACTORY.create(replace(setup, num_blocks=smallest - 1), None)
    # A refusal must not change what the next setup is asked about (0.13 leaves a shorter length behind).
    assert FACTORY.create(replace(setup, num_blocks=smallest), None).scheduler.max_model_len == setup.max_model_len


# ---- steps ---------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "depth"), [({"async_scheduling": False}, 1), ({}, 2), ({"async_scheduling": False, "pipeline_parallel_size": 2}, 2)]
)
def test_the_pipeline_is_as_deep_as_the_release_says_and_never_deeper(changes: dict[str, bool | int], depth: int) -> None:
    engine = FACTORY.create(setup_of(**changes), None)
    assert engine.max_in_flight_steps == depth
    for number in range(4):
        engine.add_request(request(f"r{number}", 60))
    while engine.num_unprocessed_steps < depth:
        assert engine.schedule()
    with pytest.raises(SetupError, match="pipeline is full"):
        engine.schedule()


@pytest.mark.parametrize("is_async", [True, False])
@pytest.mark.parametrize("accepted", [0, 1, 3])
def test_drafts_are_accepted_as_chosen(is_async: bool, accepted: int) -> None:
    if is_async and not HAS_ASYNC_DRAFTS:
        pytest.skip("0.11.0 does not schedule asynchronously with drafts")
    events: list[object] = []
    engine = FACTORY.create(setup_of(num_speculative_tokens=3, async_scheduling=is_async), events.append)
    engine.add_request(request(max_tokens=40))
    chosen: list[tuple[int, int]] = []

    def choose(row: StepRequest) -> Outcome:
        outcome = Outcome(min(accepted, row.drafts))
        chosen.append((row.drafts, outcome.accepted))
        return outcome

    while engine.unfinished_requests():
        if engine.num_unprocessed_steps < engine.max_in_flight_steps and engine.schedule():
            continue
        engine.process(choose)
    assert (3, accepted) in chosen
    told = [(row.sampled, row.rejected) for event in events if isinstance(event, Process) for row in event.requests]
    full_steps = [(accepted + 1, 3 - accepted)] * 3
    assert [pair for pair in told if pair[0]][2:5] == full_steps  # the first ones of decode


def test_more_drafts_than_scheduled_cannot_be_accepted() -> None:
    engine = FACTORY.create(setup_of(async_scheduling=False), None)
    engine.add_request(request(tokens=10))
    engine.schedule()
    with pytest.raises(SetupError, match="drafts accepted"):
        engine.process(lambda row: Outcome(row.drafts + 1))


def test_a_stop_ends_a_request_and_max_tokens_does() -> None:
    for stop, tokens in [(True, 1), (False, 7)]:
        engine = FACTORY.create(setup_of(async_scheduling=False), None)
        engine.add_request(request(tokens=20, max_tokens=7))
        live = engine.scheduler.requests["r"]
        while engine.unfinished_requests():
            engine.schedule()
            engine.process(lambda row, stop=stop: Outcome(0, stop))
        assert live.num_output_tokens == tokens


def test_an_abort_between_schedule_and_process_leaves_nothing() -> None:
    engine = FACTORY.create(setup_of(), None)
    engine.add_request(request())
    assert engine.schedule()
    engine.abort("r")
    assert engine.unfinished_requests() == []
    assert not engine.is_idle
    asked: list[StepRequest] = []
    engine.process(lambda row: asked.append(row) or reject_all(row))
    assert not engine.schedule()  # without tokens: workers are told that the request is over
    assert engine.is_idle
    with pytest.raises(SetupError, match="no unfinished request"):
        engine.abort("r")


@pytest.mark.parametrize("bad", [request(tokens=0), NewRequest("r", PROMPT * 3, 5), request(max_tokens=0)])
def test_a_request_that_vllm_refuses_is_misuse(bad: NewRequest) -> None:
    engine = FACTORY.create(setup_of(), None)
    with pytest.raises(SetupError):
        engine.add_request(bad)


def test_an_id_is_used_once() -> None:
    engine = FACTORY.create(setup_of(), None)
    engine.add_request(request())
    assert serve(engine)
    with pytest.raises(SetupError, match="twice"):
        engine.add_request(request())


def test_nothing_to_dispatch_is_told_and_costs_no_step() -> None:
    engine = FACTORY.create(setup_of(), None)
    assert not engine.schedule()
    assert engine.num_unprocessed_steps == 0
    with pytest.raises(SetupError, match="no step"):
        engine.process(accept_all)


@pytest.mark.parametrize("method", ["_place", "_released"])
def test_a_recorder_that_misses_what_happens_to_blocks_is_noticed(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The live objects agree with each other: it is not the engine's fault, and no verdict on such a trace is worth anything."""
    monkeypatch.setattr(BlockRecorder, method, lambda *arguments: None)
    with pytest.raises(RuntimeError, match=r"references, \d+ by the events") as raised:
        inspect_each_step()
    with pytest.raises(HarnessError):
        fault_of(raised.value)


def test_an_engine_is_inspected_only_if_it_was_created_for_it() -> None:
    """Others are not slowed down by what listens to their gate."""
    listened, unheard = (FACTORY.create(setup_of(), None, inspects=inspects) for inspects in (True, False))
    assert ["allocate_slots" in vars(engine.scheduler.kv_cache_manager) for engine in (listened, unheard)] == [True, False]
    assert listened.inspect() == []
    with pytest.raises(SetupError, match="without inspections"):
        unheard.inspect()


def test_engines_of_one_set_up_share_nothing_that_requests_change() -> None:
    first, second = (FACTORY.create(setup_of(), None) for _ in range(2))
    first.add_request(request())
    first.schedule()
    assert (first.unfinished_requests(), second.unfinished_requests()) == (["r"], [])
    assert (second.is_idle, second.schedule()) == (True, False)
    free = [engine.scheduler.kv_cache_manager.block_pool.get_num_free_blocks() for engine in (first, second)]
    assert free[0] < free[1]


def inspect_each_step() -> None:
    engine = FACTORY.create(setup_of(), [].append)
    engine.add_request(request(max_tokens=60))
    while engine.unfinished_requests():
        engine.schedule()
        engine.process(accept_all)
        engine.inspect()


def test_what_the_recorder_cannot_explain_is_noticed() -> None:
    engine = FACTORY.create(setup_of(), [].append)
    pool = engine.scheduler.kv_cache_manager.block_pool
    taken = pool.get_new_blocks(1)
    pool.free_blocks(taken)
    with pytest.raises(RuntimeError, match="cannot explain"):
        engine.inspect()


def test_the_same_workload_gives_the_same_trace() -> None:
    setup = setup_of(num_blocks=50, enable_prefix_caching=True, num_speculative_tokens=2, async_scheduling=HAS_ASYNC_DRAFTS)
    assert random_run(setup, 5)[1] == random_run(setup, 5)[1]
    assert random_run(setup, 5)[1] != random_run(setup, 6)[1]


def test_a_tiny_pool_preempts_and_a_prefix_is_hit() -> None:
    setup = setup_of(enable_prefix_caching=True)
    smallest = FACTORY.min_num_blocks(setup)
    seen: set[type] = set()
    for seed in range(4):
        _, events = random_run(replace(setup, num_blocks=smallest + 8), seed)
        seen |= {type(event) for event in events}
    assert {Preempt, Touch} <= seen


# ---- the faults of #47728 ------------------------------------------------------------------------------------------------------------


def _found(setup: EngineSetup, seeds: int) -> set[Property]:
    return set().union(*[violated(random_run(setup, seed)[1]) for seed in range(seeds)])


def test_rollbacks_need_freed_blocks_up_to_0_25() -> None:
    if not HAS_ASYNC_DRAFTS:
        pytest.skip("0.11.0 does not schedule asynchronously with drafts, so no rejection comes after a later step was scheduled")
    found = _found(setup_of(num_speculative_tokens=3, num_blocks=60), 6)
    assert (Property.ROLLBACK_RESIDENT in found) == (not at_least("0.26.0"))
    assert found <= {Property.ROLLBACK_RESIDENT, Property.WRITE_OWNED}


def test_blocks_of_running_steps_go_back_to_a_pool_with_a_consumer_up_to_0_25() -> None:
    if not at_least("0.18.1"):
        pytest.skip("releases before 0.18 cannot load into several groups")
    steps = setup_of(num_blocks=60, connector=ConnectorSetup())
    found = set().union(*[violated(_without_offers(steps, seed)) for seed in range(4)])
    assert (Property.READ_RESIDENT in found) == (not at_least("0.26.0"))


def _without_offers(setup: EngineSetup, seed: int) -> list[object]:
    """A consumer that loads nothing: what is freed is told under the contract `settled` all the same."""
    events: list[object] = []
    engine = FACTORY.create(setup, events.append)
    for number in range(4):
        engine.add_request(request(f"r{number}-{seed}", 40 + 11 * number + seed))
    assert serve(engine)
    engine.end()
    assert any(isinstance(event, Schedule) for event in events)
    return events
