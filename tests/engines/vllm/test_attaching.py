"""What a test attaches to: engine cores and schedulers that it drives itself. All that is recorded is judged, and nothing stays behind."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from driving import at_least
from engine_core import ONE_GROUP, make_core, request, serve, setup_of, shut_down, step
from vllm.v1.request import RequestStatus

from settled.model import events as ev
from settled.model.monitor import Monitor, Report
from settled.reference.engines.vllm.attaching import attach, scheduler_and_config


@pytest.fixture
def core() -> Any:
    core = make_core(setup_of(spare_blocks=40))
    yield core
    shut_down(core)


def judged(events: list[ev.Event]) -> Report:
    assert isinstance(events[0], ev.Config)
    monitor = Monitor(events[0])
    for line, event in enumerate(events, start=1):
        monitor.feed(line, event)
    return monitor.finish()


def replaced(scheduler: Any) -> dict[str, list[str]]:
    """Attributes of the live objects that hide those of their classes."""
    manager = scheduler.kv_cache_manager
    objects = {"scheduler": scheduler, "manager": manager, "pool": manager.block_pool, "connector": scheduler.connector}
    objects |= {f"group {group}": single for group, single in enumerate(manager.coordinator.single_type_managers)}
    return {
        name: [attribute for attribute in vars(each) if callable(getattr(type(each), attribute, None))]
        for name, each in objects.items()
        if each
    }


def test_an_engine_core_is_watched_from_its_first_request_to_the_end(core: Any) -> None:
    before = replaced(core.scheduler)
    events: list[ev.Event] = []
    attached = attach(core, events.append)
    assert replaced(core.scheduler) != before
    tokens = serve(core, num_requests=8, abort_each=5)
    attached.end()
    attached.detach()
    assert replaced(core.scheduler) == before
    assert tokens
    assert events[-1] == ev.End(idle=True)
    assert sum(isinstance(event, ev.Add) for event in events) == 8
    report = judged(events)
    assert report.exit_code == (0 if at_least("0.26.0") else report.exit_code)
    assert report.events > 100


def test_it_does_what_it_does_unwatched(core: Any) -> None:
    unwatched = serve(core, num_requests=8, abort_each=5)
    other = make_core(setup_of(spare_blocks=40))
    attach(other, lambda event: None)
    assert serve(other, num_requests=8, abort_each=5) == unwatched
    shut_down(other)


def test_a_front_end_is_seen_through(core: Any) -> None:
    """As LLM holds an LLMEngine, it a client, and that the engine core."""
    client = SimpleNamespace(engine_core=core)
    llm = SimpleNamespace(llm_engine=SimpleNamespace(engine_core=client, vllm_config=None))
    assert scheduler_and_config(llm) == (core.scheduler, core.vllm_config)
    events: list[ev.Event] = []
    attach(llm, events.append).detach()
    assert events[0].max_in_flight_steps == core.batch_queue_size  # type: ignore[attr-defined]


def test_a_scheduler_alone_is_as_deep_as_declared_or_as_told(core: Any) -> None:
    for told, depth in ((None, core.batch_queue_size), (1, 1)):
        events: list[ev.Event] = []
        attach(core.scheduler, events.append, vllm_config=core.vllm_config, max_in_flight_steps=told).detach()
        assert events[0].max_in_flight_steps == depth  # type: ignore[attr-defined]


def test_what_the_sink_raises_reaches_the_driver_at_once(core: Any) -> None:
    def refuse(event: ev.Event) -> None:
        if isinstance(event, ev.Schedule):
            raise pytest.fail.Exception("here")

    attach(core, refuse)
    core.add_request(request(core, "r0", 40))
    with pytest.raises(pytest.fail.Exception, match="here"):
        step(core)


def test_a_test_that_stops_in_mid_run_ends_the_trace_not_idle(core: Any) -> None:
    events: list[ev.Event] = []
    attached = attach(core, events.append)
    core.add_request(request(core, "r0", 40))
    step(core)
    attached.end()
    attached.detach()
    assert events[-1] == ev.End(idle=False)
    assert judged(events).exit_code == 0


def test_it_may_be_attached_again_once_nothing_is_alive() -> None:
    """What the prefix cache kept of before is known to be there."""
    core = make_core(setup_of(groups=ONE_GROUP, spare_blocks=40))
    for name in ("first", "second"):
        events: list[ev.Event] = []
        attached = attach(core, events.append)
        core.add_request(request(core, name, 250))
        while core.scheduler.requests or core.batch_queue:
            step(core)
        attached.end()
        attached.detach()
        assert judged(events).exit_code == 0
        assert isinstance(events[1], ev.State if name == "second" else ev.Add)
        assert any(isinstance(event, ev.Touch) for event in events) == (name == "second")
    shut_down(core)


def test_steps_that_the_last_requests_left_are_processed_first(core: Any) -> None:
    """As LLM.generate leaves an asynchronous engine, which the next test is to watch."""
    core.model_executor.is_slow = True
    core.add_request(request(core, "r0", 40))
    step(core)
    core.abort_requests(["r0"])
    assert core.batch_queue
    events: list[ev.Event] = []
    attached = attach(core, events.append)
    assert not core.batch_queue
    assert serve(core, num_requests=3)
    attached.end()
    attached.detach()
    assert events[-1] == ev.End(idle=True)
    assert sum(isinstance(event, ev.Add) for event in events) == 3
    report = judged(events)
    assert report.exit_code == (0 if at_least("0.26.0") else report.exit_code)


def test_frees_that_wait_for_somebody_else_are_refused(core: Any) -> None:
    core.scheduler.deferred_frees = [object()]
    with pytest.raises(ValueError, match="still in flight"):
        attach(core.scheduler, lambda event: None, vllm_config=core.vllm_config)
    core.scheduler.deferred_frees = []


@pytest.mark.parametrize("depth", [0, -1])
def test_a_test_keeps_one_step_at_least(core: Any, depth: int) -> None:
    with pytest.raises(ValueError, match=f"max_in_flight_steps={depth}: expected at least 1"):
        attach(core.scheduler, lambda event: None, vllm_config=core.vllm_config, max_in_flight_steps=depth)


def test_a_recording_that_does_not_start_leaves_nothing_behind(core: Any) -> None:
    serve(core, num_requests=2)  # what the prefix cache keeps is told as a state, when all is wrapped
    before = replaced(core.scheduler)

    def refuse(event: ev.Event) -> None:
        if isinstance(event, ev.State):
            raise pytest.fail.Exception("here")

    with pytest.raises(pytest.fail.Exception, match="here"):
        attach(core, refuse)
    assert replaced(core.scheduler) == before


def test_requests_that_are_there_already_are_refused(core: Any) -> None:
    core.add_request(request(core, "r0", 40))
    before = replaced(core.scheduler)
    with pytest.raises(ValueError, match="has 1 requests already"):
        attach(core, lambda event: None)
    assert replaced(core.scheduler) == before
    core.scheduler.finish_requests("r0", RequestStatus.FINISHED_ABORTED)


def test_what_the_recorder_cannot_explain_is_told(core: Any) -> None:
    events: list[ev.Event] = []
    attached = attach(core, events.append)
    assert not attached.unexplained
    pool = core.scheduler.kv_cache_manager.block_pool
    pool.free_blocks(pool.get_new_blocks(1))
    assert "were taken for nobody" in attached.unexplained
    attached.detach()
