"""The mock connector in a live scheduler: what it loads, stores and tells, when it may tell it, and what it never does."""

from __future__ import annotations

import pytest
from driving import FACTORY, accept_all, at_least, full, serve, setup_of, violated, window

from settled.model.events import Load, Loaded, Store, Stored
from settled.reference.engines.protocol import Ending, NewRequest, Offer, TransferPart
from settled.reference.engines.setup import ConnectorSetup, EngineSetup, KVRole, SetupError
from settled.reference.engines.vllm.adapter import VllmEngine

PROMPT = tuple(range(10, 110))
HAS_POLICY = FACTORY.release.has("failure_policy")  # without one failed loads are computed again
RECOMPUTE = ConnectorSetup(extra=(("kv_load_failure_policy", "recompute"),) if HAS_POLICY else ())
FAIL = ConnectorSetup(extra=(("kv_load_failure_policy", "fail"),))


def engine_of(setup: EngineSetup) -> tuple[VllmEngine, list[object]]:
    events: list[object] = []
    return FACTORY.create(setup, events.append), events


def one_group(connector: ConnectorSetup = RECOMPUTE) -> EngineSetup:
    return setup_of((full(),), connector=connector)


def offered(offer: Offer | None, *, stored: bool = False, name: str = "r") -> NewRequest:
    return NewRequest(name, PROMPT, 5, offer, stored)


def of(kind: type, events: list[object]) -> list[object]:
    return [event for event in events if isinstance(event, kind)]


def loaded_tokens(engine: VllmEngine) -> int:
    return int(engine.scheduler.requests["r"].num_computed_tokens)


# ---- loads ---------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("tokens", "expected", "blocks"), [(40, 32, 2), (64, 64, 4), (99, 96, 6), (100, 100, 7), (500, 100, 7)])
def test_a_load_beside_the_steps_covers_whole_blocks_or_the_whole_prompt(tokens: int, expected: int, blocks: int) -> None:
    engine, events = engine_of(one_group())
    engine.add_request(offered(Offer(tokens)))
    assert not engine.schedule()
    if at_least("0.18.1"):  # earlier ones count when the load is over
        assert loaded_tokens(engine) == expected
    (load,) = of(Load, events)
    assert len(load.blocks[0]) == blocks  # type: ignore[attr-defined]
    assert load.step is None  # type: ignore[attr-defined]
    assert [(part.is_load, part.is_reported) for part in engine.transfers()] == [(True, False)]
    assert not engine.is_idle
    assert serve(engine)
    assert [(event.ok, event.handle) for event in of(Loaded, events)] == [(True, 0)]  # type: ignore[attr-defined]


def test_a_load_within_a_step_leaves_a_token_and_ends_with_its_output() -> None:
    engine, events = engine_of(one_group())
    engine.add_request(offered(Offer(100, is_async=False)))
    assert engine.schedule()
    (load,) = of(Load, events)
    assert load.step == 0 or load.step == 1  # type: ignore[attr-defined]
    assert engine.transfers() == []
    assert of(Loaded, events) == []
    assert engine.scheduler.requests["r"].num_computed_tokens == 100  # 99 loaded, one computed
    engine.process(accept_all)
    assert [event.ok for event in of(Loaded, events)] == [True]  # type: ignore[attr-defined]
    assert serve(engine)


def test_a_load_touches_no_null_block_of_a_window() -> None:
    if not at_least("0.18.1"):
        pytest.skip("releases before 0.18 cannot load into several groups")
    engine, events = engine_of(setup_of((full(), window(32)), connector=ConnectorSetup()))
    engine.add_request(offered(Offer(96)))
    engine.schedule()
    (load,) = of(Load, events)
    assert [len(blocks) for blocks in load.blocks] == [6, 2]  # type: ignore[attr-defined]
    assert 0 not in {block for blocks in load.blocks for block in blocks}  # type: ignore[attr-defined]
    assert serve(engine)


def test_an_offer_is_taken_once_and_not_by_a_producer() -> None:
    engine, events = engine_of(one_group(ConnectorSetup(role=KVRole.PRODUCER)))
    engine.add_request(offered(Offer(64)))
    assert serve(engine)
    assert of(Load, events) == []


# ---- reports -------------------------------------------------------------------------------------------------------------------------


def test_a_load_is_over_when_the_last_worker_says_so_and_a_repeated_report_changes_nothing() -> None:
    engine, events = engine_of(one_group())
    engine.add_request(offered(Offer(64, workers=2)))
    engine.schedule()
    first, second = engine.transfers()
    engine.report(second, Ending.GOOD)
    assert [part.worker for part in engine.transfers()] == [0]
    assert not engine.schedule()
    assert engine.scheduler.finished_recving_kv_req_ids == set()
    engine.report(first, Ending.GOOD)
    assert not engine.schedule()  # an output without tokens brings the report
    assert engine.scheduler.finished_recving_kv_req_ids == {"r"}
    again = [part for part in engine.transfers() if part.is_reported]
    assert [part.worker for part in again] == [0, 1]
    engine.report(again[0], Ending.GOOD)
    assert engine.transfers() == []  # once more from all of them would be another transfer's to the aggregation
    assert serve(engine)
    assert [event.handle for event in of(Loaded, events)] == [1, 0]  # type: ignore[attr-defined]


def test_no_output_tells_of_a_load_that_was_scheduled_after_its_step() -> None:
    engine, events = engine_of(one_group())
    engine.add_request(NewRequest("busy", PROMPT[:40], 30))
    assert engine.schedule()
    engine.add_request(offered(Offer(64)))
    assert engine.schedule()  # the load starts with this step
    (part,) = engine.transfers()
    engine.report(part, Ending.GOOD)
    engine.process(accept_all)
    assert of(Loaded, events) == []
    engine.process(accept_all)
    assert len(of(Loaded, events)) == 1
    assert serve(engine)


def test_a_part_that_is_not_there_cannot_be_reported() -> None:
    engine, _ = engine_of(one_group())
    with pytest.raises(SetupError, match="cannot be reported"):
        engine.report(TransferPart(1, "r", True, 0, False), Ending.GOOD)
    without = FACTORY.create(setup_of(), None)
    with pytest.raises(SetupError, match="no transfer"):
        without.report(TransferPart(1, "r", True, 0, False), Ending.GOOD)


def test_a_missing_report_keeps_the_engine_from_being_idle_and_a_late_one_frees_the_blocks_of_an_aborted_request() -> None:
    if not at_least("0.18.1"):
        pytest.skip("releases before 0.18 free the blocks of a load at its request's abort")
    engine, events = engine_of(one_group())
    engine.add_request(offered(Offer(64)))
    engine.schedule()
    pool = engine.scheduler.kv_cache_manager.block_pool
    engine.abort("r")
    assert engine.unfinished_requests() == []
    for _ in range(3):
        engine.schedule()
    assert not engine.is_idle
    assert pool.get_num_free_blocks() == 95 - 4
    engine.report(engine.transfers()[0], Ending.GOOD)
    assert serve(engine)
    assert pool.get_num_free_blocks() == 95
    assert violated([*events]) == set()  # type: ignore[arg-type]


# ---- failures ------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_async", [True, False])
@pytest.mark.parametrize("ending", [Ending.FIRST_FAILED, Ending.ALL_FAILED])
def test_a_failed_load_is_computed_instead(is_async: bool, ending: Ending) -> None:
    if not FACTORY.release.has("failed_blocks"):
        pytest.skip("0.11.0 cannot be told of blocks that failed")
    engine, events = engine_of(one_group())
    live = _add(engine, Offer(64, is_async=is_async, ending=ending))
    engine.schedule()
    for part in engine.transfers():
        engine.report(part, ending)
    assert serve(engine)
    (told,) = of(Loaded, events)
    assert not told.ok  # type: ignore[attr-defined]
    assert len(told.failed[0]) == (1 if ending is Ending.FIRST_FAILED else 4)  # type: ignore[attr-defined]
    assert live.num_output_tokens == 5  # type: ignore[attr-defined]


def test_a_failed_load_ends_the_request_where_the_policy_says_so() -> None:
    if not HAS_POLICY:
        pytest.skip("releases before 0.13 have no policy for failed loads")
    engine, _ = engine_of(one_group(FAIL))
    live = _add(engine, Offer(64))
    engine.schedule()
    engine.report(engine.transfers()[0], Ending.ALL_FAILED)
    assert serve(engine)
    assert live.num_output_tokens == 0  # type: ignore[attr-defined]


def test_with_several_groups_a_failure_is_told_of_the_request_or_not_at_all() -> None:
    if not at_least("0.18.1"):
        pytest.skip("releases before 0.18 cannot load into several groups")
    engine, events = engine_of(setup_of((full(), window(32)), connector=RECOMPUTE))
    live = _add(engine, Offer(64))
    engine.schedule()
    engine.report(engine.transfers()[0], Ending.FIRST_FAILED)
    assert serve(engine)
    assert [event.ok for event in of(Loaded, events)] == [not at_least("0.33.0")]  # type: ignore[attr-defined]
    assert live.num_output_tokens == 5  # type: ignore[attr-defined]


def _add(engine: VllmEngine, offer: Offer) -> object:
    engine.add_request(offered(offer))
    return engine.scheduler.requests["r"]


# ---- stores --------------------------------------------------------------------------------------------------------------------------


def test_a_store_keeps_the_blocks_until_it_is_reported() -> None:
    engine, events = engine_of(setup_of((full(),), connector=ConnectorSetup(), async_scheduling=False))
    engine.add_request(offered(None, stored=True))
    pool = engine.scheduler.kv_cache_manager.block_pool
    while engine.unfinished_requests():
        engine.schedule()
        engine.process(accept_all)
    (store,) = of(Store, events)
    assert len(store.blocks[0]) == 7  # type: ignore[attr-defined]  # 104 tokens were computed
    assert pool.get_num_free_blocks() == 95 - 7
    engine.schedule()
    assert not engine.is_idle
    (part,) = engine.transfers()
    assert not part.is_load
    engine.report(part, Ending.ALL_FAILED)  # a store does not fail
    assert serve(engine)
    assert pool.get_num_free_blocks() == 95
    assert [event.ok for event in of(Stored, events)] == [True]  # type: ignore[attr-defined]


@pytest.mark.parametrize("role", [KVRole.CONSUMER, KVRole.BOTH])
def test_a_consumer_and_an_aborted_request_store_nothing(role: KVRole) -> None:
    engine, events = engine_of(one_group(ConnectorSetup(role=role)))
    engine.add_request(offered(None, stored=True))
    engine.schedule()
    if role is KVRole.BOTH:
        engine.abort("r")
    assert serve(engine)
    assert of(Store, events) == []
