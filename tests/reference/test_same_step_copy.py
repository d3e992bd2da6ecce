"""A hit that ends within a block is copied when its step begins; what that very step computes is not there yet."""

from __future__ import annotations

from dataclasses import replace

from settled.model.events import Copy, Event
from settled.model.specs import FullAttentionSpec
from settled.reference.config import EngineConfig
from settled.reference.engine import Engine

CONFIG = EngineConfig(
    groups=(FullAttentionSpec(block_size=4),),
    num_blocks=9,
    max_in_flight_steps=2,
    max_num_batched_tokens=8,
    max_model_len=8,
    enable_prefix_caching=True,
    hash_block_size=1,
)
PROMPT = (7, 8, 9)


def test_requests_of_the_same_step_do_not_copy_from_each_other() -> None:
    events: list[Event] = []
    engine = Engine(CONFIG, events.append)
    for request_id in ("A", "B"):
        engine.add_request(request_id, PROMPT)
    step = engine.schedule()
    assert step is not None
    assert [entry.start for entry in step.entries] == [0, 0]
    assert not [event for event in events if isinstance(event, Copy)]


def test_a_later_step_copies_although_the_earlier_one_is_unprocessed() -> None:
    """Steps are ordered among themselves."""
    events: list[Event] = []
    engine = Engine(CONFIG, events.append)
    engine.add_request("A", PROMPT)
    engine.schedule()
    engine.add_request("B", PROMPT)
    step = engine.schedule()
    assert step is not None
    assert {entry.request.request_id: entry.start for entry in step.entries}["B"] == 2
    assert [(event.source, event.target) for event in events if isinstance(event, Copy)] == [(1, 2)]


def test_a_pool_of_start_up_size_does_not_wait_for_a_block_to_copy_from() -> None:
    """Beside the request's own blocks there is no room for the source: the hit ends with the block before."""
    config = replace(CONFIG, num_blocks=3)
    engine = Engine(config)
    engine.add_request("A", range(1, 8), max_tokens=1)
    engine.run_to_idle()
    engine.add_request("B", range(1, 8), max_tokens=1)
    step = engine.schedule()
    assert step is not None
    assert [entry.start for entry in step.entries] == [4]
    engine.run_to_idle()
    roomy = Engine(replace(config, num_blocks=4))
    roomy.add_request("A", range(1, 8), max_tokens=1)
    roomy.run_to_idle()
    roomy.add_request("B", range(1, 8), max_tokens=1)
    step = roomy.schedule()
    assert step is not None
    assert [entry.start for entry in step.entries] == [6]
