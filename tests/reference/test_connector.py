"""Loads and stores on the engine: who waits for what, what a failure leaves, and which blocks come back when."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from settled.model.events import Computed, Config, Drop, Event, Hold, Load, Loaded, PerGroup, Preempt, Release, Store, Zero
from settled.model.monitor import Monitor
from settled.model.properties import Contract, Property
from settled.model.specs import FullAttentionSpec, SlidingWindowSpec
from settled.reference import kv_cache_manager
from settled.reference.config import EngineConfig, StaleOutputMode
from settled.reference.connector import LastTableConnector
from settled.reference.engine import Engine
from settled.reference.plan import PlanError, PlannedStep
from settled.reference.request import Request
from settled.reference.scheduler import SchedulerError
from settled.reference.transfers import Completion, Transfer, TransferError

CONFIG = EngineConfig(
    groups=(FullAttentionSpec(block_size=4),),
    num_blocks=40,
    max_in_flight_steps=2,
    max_num_batched_tokens=16,
    max_model_len=64,
    kv_consumer=True,
    connector=True,
)
WINDOW = replace(CONFIG, groups=(SlidingWindowSpec(block_size=4, window=4),))


class Elsewhere(LastTableConnector):
    """Has what the test says; its workers report when the test does."""

    def __init__(self, *, num_workers: int = 1, store: bool = False, store_finished: bool = False) -> None:
        super().__init__()
        self.num_workers = num_workers
        self.offers: dict[str, tuple[int | None, bool]] = {}
        self.store, self.store_finished = store, store_finished
        self.started: list[Transfer] = []
        self.failing: tuple[Completion, ...] = ()  # of loads within steps

    def get_num_new_matched_tokens(self, request: Request, num_computed_tokens: int) -> tuple[int | None, bool]:
        return self.offers.get(request.request_id, (0, False))

    def update_state_after_alloc(self, request: Request, load: Transfer) -> None:
        self.offers.pop(request.request_id, None)
        self.started.append(load)

    def get_num_tokens_to_store(self, request: Request, num_settled_tokens: int) -> int:
        return num_settled_tokens if self.store else 0

    def request_finished(self, request_id: str, block_ids: PerGroup) -> bool:
        super().request_finished(request_id, block_ids)
        return self.store_finished

    def start_store(self, store: Transfer) -> None:
        self.started.append(store)

    def get_finished(self, step: object) -> Sequence[Completion]:
        reports, self.failing = self.failing, ()
        return reports


class Run:
    """An engine with its events, and the one connector."""

    def __init__(self, config: EngineConfig, connector: Elsewhere | None = None) -> None:
        self.connector = connector or Elsewhere()
        self.events: list[Event] = []
        self.engine = Engine(config, self.events.append, connector=self.connector)

    def add(self, request: str, prompt: int, *, offer: tuple[int | None, bool] = (0, False), max_tokens: int = 4) -> None:
        self.connector.offers[request] = offer
        self.engine.add_request(request, prompt, max_tokens=max_tokens)

    def done(self, *completions: Completion) -> None:
        self.engine.scheduler.update_from_workers(completions)

    def status(self, request: str = "r") -> tuple[str, int]:
        """Its status, and its computed count in tokens."""
        snapshot = self.engine.inspect(request)
        return snapshot.status, snapshot.computed

    def of(self, kind: type[Event]) -> list[Event]:
        return [event for event in self.events if isinstance(event, kind)]

    def causes(self) -> list[tuple[str, int, bool]]:
        return [(event.cause, event.computed, event.stale) for event in self.events if isinstance(event, Computed)]

    def violations(self, contract: Contract = Contract.SETTLED) -> dict[Property, int]:
        config = self.events[0]
        assert isinstance(config, Config)
        monitor = Monitor(config, contract)
        for line, event in enumerate(self.events, start=1):
            monitor.feed(line, event)
        return {result.property: result.count for result in monitor.finish().properties if result.count}

    def finish(self) -> None:
        """Runs to the end; everything comes back, and nothing is violated."""
        for _ in range(20):
            self.done(*[Completion(job) for job in list(self.engine.scheduler.remote.transfers.under_way)])
            if self.engine.scheduler.requests:
                self.engine.run_to_idle()
            while self.engine.unprocessed:
                self.engine.process()
        self.engine.end_recording()
        assert self.engine.is_idle
        assert sum(self.engine.pool_snapshot()) == 0
        assert self.violations() == {}


# ---- loads that a request waits for ------------------------------------------------------------------------------------


def test_a_request_waits_with_its_blocks_until_the_load_is_over() -> None:
    run = Run(CONFIG)
    run.add("r", 10, offer=(6, True))
    assert run.engine.schedule() is None
    assert run.status() == ("waiting_for_remote_kvs", 6)
    assert run.engine.inspect("r").table == ((1, 2),)
    assert run.engine.schedule() is None
    run.done(Completion(0))
    step = run.engine.schedule()
    assert step is not None
    assert [(entry.start, entry.tokens, entry.new_blocks) for entry in step.entries] == [(6, 4, ((1, 2, 3),))]
    names = [event.name for event in run.events[1:]]
    assert names == ["add", "allocate", "computed", "load", "loaded", "allocate", "schedule"]
    assert run.of(Load) == [Load(job=0, request="r", blocks=((1, 2),), after=())]
    assert run.of(Computed) == [Computed(request="r", computed=6, cause="external", stale=False, local=0, external=6)]
    run.finish()


def test_others_run_meanwhile_and_a_loaded_request_starts_before_those_without_blocks() -> None:
    run = Run(replace(CONFIG, max_num_seqs=1))
    run.add("r", 10, offer=(6, True))
    run.add("other", 8, max_tokens=1)
    step = run.engine.schedule()
    assert step is not None
    assert [entry.request.request_id for entry in step.entries] == ["other"]
    run.add("third", 8, max_tokens=1)
    run.done(Completion(0))
    assert run.engine.schedule() is None  # one request runs already
    run.engine.process()
    step = run.engine.schedule()
    assert step is not None
    assert [entry.request.request_id for entry in step.entries] == ["r"]
    run.finish()


def test_a_connector_that_does_not_know_yet_is_asked_again_and_delays_nobody() -> None:
    run = Run(CONFIG)
    run.add("r", 10, offer=(None, False))
    run.add("other", 4)
    step = run.engine.schedule()
    assert step is not None
    assert [entry.request.request_id for entry in step.entries] == ["other"]
    run.connector.offers["r"] = (4, False)
    step = run.engine.schedule()
    assert step is not None
    assert [(entry.request.request_id, entry.start) for entry in step.entries] == [("other", 4), ("r", 4)]
    run.finish()


def test_of_a_whole_prompt_the_last_token_is_computed_again() -> None:
    run = Run(CONFIG)
    run.add("r", 8, offer=(8, True))
    run.engine.schedule()
    run.done(Completion(0))
    assert run.causes() == [("external", 8, False), ("last_token", 7, False)]
    run.finish()


def load_whole_prompt_behind_a_window() -> Run:
    """7 tokens, a window of 4, blocks of 4: after 7 tokens nothing before 4 is read, but the last token, at 6, reads 3."""
    run = Run(WINDOW)
    run.add("r", 7, offer=(7, True))
    run.engine.schedule()
    run.done(Completion(0))
    run.engine.schedule()
    run.engine.process()
    return run


def test_a_window_is_loaded_for_the_last_token_and_not_for_the_one_after(monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM allocates for the query after the whole prompt, then computes the last token again: one key too few."""
    run = load_whole_prompt_behind_a_window()
    assert run.of(Load) == [Load(job=0, request="r", blocks=((1, 2),), after=())]
    run.finish()
    monkeypatch.setattr(kv_cache_manager, "min", max, raising=False)
    broken = load_whole_prompt_behind_a_window()
    assert broken.of(Load) == [Load(job=0, request="r", blocks=((1,),), after=())]
    assert broken.violations()[Property.ROLLBACK_RESIDENT] > 0


def test_a_load_follows_a_hit_and_shares_nothing_before_it_is_over() -> None:
    run = Run(replace(CONFIG, enable_prefix_caching=True))
    prompt = list(range(1, 17))
    run.engine.add_request("first", prompt[:9], max_tokens=1)
    run.engine.run_to_idle()
    run.connector.offers["r"] = (6, True)
    run.engine.add_request("r", prompt, max_tokens=1)
    run.engine.schedule()
    run.engine.add_request("same", prompt, max_tokens=1)
    step = run.engine.schedule()
    assert step is not None
    assert [(entry.request.request_id, entry.start) for entry in step.entries] == [("same", 8)]  # not 12: block 2 is being loaded
    assert run.of(Computed)[0] == Computed(request="r", computed=14, cause="external", stale=False, local=8, external=6)
    assert run.engine.inspect("r").table[0][:2] == run.engine.inspect("same").table[0][:2]
    run.finish()


def test_a_load_is_over_with_its_last_worker() -> None:
    run = Run(CONFIG, Elsewhere(num_workers=2))
    run.add("r", 10, offer=(6, True))
    run.engine.schedule()
    run.done(Completion(0, 1))
    assert run.engine.schedule() is None
    run.done(Completion(0, 0))
    assert run.engine.schedule() is not None
    assert [(event.handle, event.ok) for event in run.events if isinstance(event, Loaded)] == [(1, True), (0, True)]
    run.finish()


def test_a_load_waits_on_the_device_for_steps_in_flight_if_the_engine_says_so() -> None:
    for waits, after in ((True, [0]), (False, [])):
        run = Run(replace(CONFIG, transfers_wait=waits))
        run.add("first", 4)
        run.engine.schedule()
        run.add("r", 10, offer=(6, True))
        run.engine.schedule()
        (load,) = run.of(Load)
        assert isinstance(load, Load)
        assert load.after is not None
        assert [dependency.step for dependency in load.after] == after
        run.finish()


# ---- loads within a step -----------------------------------------------------------------------------------------------


def test_a_load_within_a_step_comes_before_its_reads() -> None:
    run = Run(CONFIG)
    run.add("r", 10, offer=(6, False))
    step = run.engine.schedule()
    assert step is not None
    assert [(entry.start, entry.tokens) for entry in step.entries] == [(6, 4)]
    assert run.of(Load) == [Load(job=0, request="r", blocks=((1, 2),), step=0, after=())]
    assert run.status() == ("running", 10)
    run.engine.process()
    names = [event.name for event in run.events[1:]]
    assert names == ["add", "allocate", "computed", "load", "schedule", "loaded", "process"]
    run.finish()


def test_a_connector_cannot_offer_more_than_there_is() -> None:
    run = Run(CONFIG)
    run.add("r", 10, offer=(10, False))
    with pytest.raises(TransferError, match="'r': 10 tokens offered, expected 0 to 9"):
        run.engine.schedule()


def test_a_plan_takes_a_load_within_its_step_or_leaves_all_as_it_was() -> None:
    run = Run(CONFIG)
    run.add("r", 10)
    with pytest.raises(PlanError, match="a load of 10 tokens after 0; expected 1 to 9"):
        run.engine.schedule({"r": PlannedStep(1, 0, external=10)})
    with pytest.raises(PlanError, match="7 tokens without drafts, but 4 are left"):
        run.engine.schedule({"r": PlannedStep(7, 0, external=6)})
    assert run.status() == ("waiting", 0)
    assert run.of(Load) == []
    run.engine.schedule({"r": PlannedStep(4, 0, external=6)})
    assert run.status() == ("running", 10)
    run.finish()


# ---- failures ----------------------------------------------------------------------------------------------------------


def test_a_failed_load_leaves_what_is_before_the_first_failed_block() -> None:
    run = Run(replace(CONFIG, enable_prefix_caching=True))
    run.add("r", 14, offer=(12, True))
    run.engine.schedule()
    run.done(Completion(0, failed=((2, 3),)))
    assert run.causes() == [("external", 12, False), ("load_failed", 4, False)]
    assert run.status() == ("waiting_for_remote_kvs", 4)
    assert [block.block_id for block in run.engine.scheduler.kv_cache_manager.block_pool.cached_blocks()] == [1]
    step = run.engine.schedule()
    assert step is not None
    assert [(entry.start, entry.tokens, entry.new_blocks) for entry in step.entries] == [(4, 10, ((1, 2, 3, 4),))]
    run.finish()


def zeroes(run: Run) -> list[tuple[int, tuple[int, ...]]]:
    return [(event.step, event.blocks) for event in run.events if isinstance(event, Zero)]


def fails_beside_another() -> Run:
    """A load into blocks 1 to 3 fails from block 2 on, and then a step of another request runs, which has block 4."""
    run = Run(replace(CONFIG, zero_fresh_blocks=True))
    run.add("r", 14, offer=(12, True))
    run.add("other", 2)
    run.engine.schedule()
    run.done(Completion(0, failed=((2, 3),)))
    run.engine.process()
    run.engine.schedule({"other": (1, 0)})
    assert zeroes(run) == [(0, (4,))]
    return run


def test_what_a_failed_load_did_not_bring_is_zeroed_in_a_step_of_the_request() -> None:
    run = fails_beside_another()
    run.engine.schedule()
    assert zeroes(run)[1:] == [(2, (5, 2, 3))]
    run.finish()


def test_what_a_failed_load_did_not_bring_is_not_zeroed_once_the_request_is_gone() -> None:
    """Its blocks come back at once: no step of its own is in flight, and a zeroing in that of another would not be waited for."""
    run = fails_beside_another()
    run.engine.abort("r")
    run.engine.schedule()
    assert [step for step, _ in zeroes(run)] == [0]
    run.finish()


def test_a_failed_load_behind_a_window_starts_over() -> None:
    """96 tokens, a window and blocks of 16: 81 are skipped, blocks 0 to 4 were never there. Block 5 fails: 80 would read 65."""
    config = replace(CONFIG, groups=(SlidingWindowSpec(block_size=16, window=16),), max_num_batched_tokens=128, max_model_len=128)
    run = Run(config)
    run.add("r", 100, offer=(96, True))
    run.engine.schedule()
    assert run.engine.inspect("r").table == ((0, 0, 0, 0, 0, 1),)
    run.done(Completion(0, failed=((1,),)))
    assert run.causes() == [("external", 96, False), ("load_failed", 0, False)]
    assert run.status() == ("waiting", 0)
    assert run.engine.inspect("r").table == ((),)
    step = run.engine.schedule()
    assert step is not None
    assert [(entry.start, entry.tokens, entry.resumed) for entry in step.entries] == [(0, 100, False)]
    run.finish()


def test_going_back_to_the_first_failed_block_regardless_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kv_cache_manager.KVCacheManager, "can_go_back_to", lambda self, request_id, num_computed_tokens: True)
    run = Run(WINDOW)
    run.add("r", 18, offer=(16, True))
    run.engine.schedule()
    run.done(Completion(0, failed=((1,),)))
    run.engine.schedule()
    assert run.violations()[Property.ROLLBACK_RESIDENT] > 0


def test_a_cancelled_load_has_brought_nothing() -> None:
    run = Run(CONFIG)
    run.add("r", 10, offer=(6, True))
    run.engine.schedule()
    run.done(Completion(0, cancelled=True))
    assert run.causes() == [("external", 6, False), ("load_failed", 0, False)]
    assert run.of(Loaded) == [Loaded(job=0, ok=False, cancelled=True)]
    run.finish()


def test_a_load_that_fails_within_a_step_takes_later_steps_with_it() -> None:
    """What those steps sampled is worth nothing, their tokens drain from the counts, and the count stands at the failed block."""
    run = Run(CONFIG)
    run.add("r", 10, offer=(8, False))
    run.engine.schedule()
    run.engine.schedule()
    run.connector.failing = (Completion(0, failed=((2,),)),)
    run.engine.process()
    assert run.causes() == [("external", 8, False), ("load_failed", 4, True)]
    snapshot = run.engine.inspect("r")
    assert (snapshot.computed, snapshot.in_flight, snapshot.stale, snapshot.num_tokens) == (4, 1, 1, 10)
    step = run.engine.schedule()
    assert step is not None
    assert [(entry.start, entry.tokens, entry.resumed) for entry in step.entries] == [(4, 6, False)]
    run.finish()


def test_output_computed_from_a_failed_load_is_not_delivered_after_a_preemption() -> None:
    run = Run(CONFIG)
    run.add("r", 9, offer=(8, False))
    run.engine.schedule()
    run.engine.schedule()
    run.engine.preempt("r", StaleOutputMode.DELIVER)
    (load,) = run.connector.started
    run.connector.failing = (Completion(load.job, failed=((load.where.ids[0][1],),)),)
    run.engine.process()
    assert run.causes()[-1] == ("load_failed", 0, True)
    assert run.engine.inspect("r").num_tokens == 9
    run.engine.process()
    assert run.engine.inspect("r").num_tokens == 9
    run.finish()


def test_a_load_that_fails_within_a_step_behind_a_window_preempts() -> None:
    run = Run(WINDOW)
    run.add("r", 18, offer=(16, False))
    run.engine.schedule()
    run.connector.failing = (Completion(0, failed=((1,),)),)
    run.engine.process()
    assert run.causes() == [("external", 16, False), ("load_failed", 0, True)]
    assert run.status() == ("preempted", 0)
    run.finish()


# ---- requests that go while something moves ----------------------------------------------------------------------------


@pytest.mark.parametrize("end", ["abort", "preempt"])
def test_blocks_under_a_load_come_back_when_it_is_over(end: str) -> None:
    run = Run(CONFIG)
    run.add("r", 10, offer=(6, True))
    run.engine.schedule()
    run.engine.abort("r") if end == "abort" else run.engine.preempt("r")
    assert sum(run.engine.pool_snapshot()) == 2
    assert run.of(Release) == []
    if end == "preempt":
        run.engine.schedule()
        assert run.engine.inspect("r").table == ((3, 4, 5),)  # recomputed in other blocks, while the load still writes the first
    run.done(Completion(0))
    (release,) = [event for event in run.events if isinstance(event, Release)]
    assert (release.cause, release.indices, release.blocks, release.freed) == ("deferred", (1, 0), (2, 1), (2, 1))
    assert run.causes() == [("external", 6, False)]
    run.finish()


def test_a_load_within_a_step_holds_the_blocks_even_without_a_fence() -> None:
    run = Run(replace(CONFIG, discipline=replace(CONFIG.discipline, fence=False)))
    run.add("r", 10, offer=(6, False))
    run.engine.schedule()
    run.engine.abort("r")
    assert sum(run.engine.pool_snapshot()) == 3
    run.engine.process()
    assert sum(run.engine.pool_snapshot()) == 0


def test_a_store_pins_what_a_preemption_gives_up() -> None:
    run = Run(CONFIG, Elsewhere(store=True))
    run.add("r", 10)
    run.engine.schedule()
    run.engine.process()
    run.engine.schedule()
    assert run.of(Store) == [Store(job=0, request="r", blocks=((1, 2),), after=())]  # 10 tokens are settled, two blocks are full
    assert run.of(Hold) == [Hold(holder="store 0", kind="pin", blocks=(1, 2))]
    run.engine.process()
    run.engine.preempt("r")
    (release,) = [event for event in run.events if isinstance(event, Release)]
    assert (release.blocks, release.freed) == ((3, 2, 1), (3,))
    run.done(Completion(0))
    assert run.of(Drop) == [Drop(holder="store 0", blocks=(2, 1), freed=(2, 1))]
    run.connector.store = False
    run.finish()


def test_the_blocks_of_a_finished_request_wait_for_its_store_and_its_steps() -> None:
    run = Run(CONFIG, Elsewhere(store_finished=True))
    run.add("r", 6)
    run.engine.schedule()
    run.engine.schedule()
    run.engine.abort("r")
    (store,) = run.of(Store)
    assert isinstance(store, Store)
    assert store.blocks == ((1, 2),)
    assert store.after is not None
    assert [dependency.step for dependency in store.after] == [1]
    run.done(Completion(0))
    run.engine.process()
    assert run.of(Release) == []  # the store is over, a step that writes there is not
    run.engine.process()
    assert [event.cause for event in run.events if isinstance(event, Release)] == ["deferred"]
    run.connector.store_finished = False
    run.finish()


# ---- what does not fit -------------------------------------------------------------------------------------------------


def test_late_doubled_and_foreign_completions_are_refused() -> None:
    run = Run(CONFIG, Elsewhere(num_workers=2))
    run.add("r", 10, offer=(6, True))
    run.engine.schedule()
    with pytest.raises(TransferError, match="job 1 is not under way: no such job was started"):
        run.done(Completion(1))
    with pytest.raises(TransferError, match="handle 2 of load 0: it has handles 0 to 1"):
        run.done(Completion(0, 2))
    with pytest.raises(TransferError, match=r"load 0 does not touch blocks \[7\]"):
        run.done(Completion(0, 0, failed=((7,),)))
    run.done(Completion(0, 0))
    with pytest.raises(TransferError, match="handle 0 of load 0 is over already"):
        run.done(Completion(0, 0))
    run.done(Completion(0, 1))
    with pytest.raises(TransferError, match="job 0 is not under way: it is over already"):
        run.done(Completion(0, 1))
    run.connector.num_workers = 1
    run.finish()


def test_a_script_cannot_start_what_loads_already() -> None:
    run = Run(CONFIG)
    run.add("r", 10)
    assert run.engine.scheduler.scripted.load("r", 6) == 0
    with pytest.raises(PlanError, match="does not wait for blocks"):
        run.engine.scheduler.scripted.load("r", 6)
    with pytest.raises(PlanError, match="waits for job 0, which loads its prefix"):
        run.engine.schedule({"r": (4, 0)})
    with pytest.raises(SchedulerError, match="no unfinished request 'x'"):
        run.engine.scheduler.scripted.load("x", 6)
    other = Run(replace(CONFIG, kv_consumer=False))
    other.add("r", 10)
    with pytest.raises(PlanError, match="this engine loads nothing"):
        other.engine.scheduler.scripted.load("r", 6)
    run.finish()


# ---- progress ----------------------------------------------------------------------------------------------------------


def test_a_running_request_takes_the_blocks_of_one_that_was_loaded_and_has_not_run() -> None:
    run = Run(replace(CONFIG, num_blocks=5, max_model_len=16, max_num_seqs=1))
    run.add("a", 8, offer=(8, True))
    run.add("b", 8, offer=(8, True))
    run.engine.schedule()
    run.done(Completion(0), Completion(1))
    run.engine.schedule()
    assert sum(run.engine.pool_snapshot()) == 4
    step = run.engine.schedule()
    assert step is not None
    assert [(entry.request.request_id, entry.start, entry.new_blocks) for entry in step.entries] == [("a", 8, ((4,),))]
    assert run.of(Preempt) == [Preempt(request="b", output="deliver")]
    run.finish()


def test_a_running_request_waits_for_a_load_rather_than_start_over() -> None:
    run = Run(replace(CONFIG, num_blocks=5, max_model_len=16, max_num_seqs=1))
    run.add("a", 8, offer=(8, True))
    run.add("b", 8, offer=(8, True))
    run.engine.schedule()
    run.done(Completion(0))
    run.engine.schedule()
    run.engine.process()
    assert run.engine.schedule() is None
    assert (run.status("a"), run.status("b")) == (("running", 8), ("waiting_for_remote_kvs", 8))
    run.done(Completion(1))
    assert run.engine.schedule() is not None
    run.finish()


def test_without_chunked_prefill_a_loaded_request_waits_for_a_step_that_takes_all_of_its_rest() -> None:
    run = Run(replace(CONFIG, max_model_len=16, enable_chunked_prefill=False))
    run.add("a", 15, offer=(4, True))
    run.add("b", 15, offer=(4, True))
    run.engine.schedule()
    run.done(Completion(0), Completion(1))
    steps = [run.engine.schedule(), run.engine.schedule()]
    assert [[(entry.request.request_id, entry.tokens) for entry in step.entries] for step in steps if step] == [[("a", 11)], [("b", 11)]]
    run.finish()
