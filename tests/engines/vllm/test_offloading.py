"""vLLM's own offloading connectors, driven on their scheduler side: what they store they load again, and nothing is left."""

from __future__ import annotations

import pytest
from driving import FACTORY, at_least, full, serve, setup_of, violated

from settled.model.events import Event, Load, Store
from settled.reference.engines.protocol import NewRequest
from settled.reference.engines.setup import ConnectorSetup, SetupError

NAMES = ["OffloadingConnector", "SimpleCPUOffloadConnector"]
PROMPT = tuple(range(10, 110))


def connector(name: str) -> ConnectorSetup:
    return ConnectorSetup(name=name, extra=(("cpu_bytes_to_use", 1 << 18),))


@pytest.mark.parametrize("name", NAMES)
def test_what_is_stored_is_loaded_again_when_the_pool_has_lost_it(name: str) -> None:
    if not at_least("0.33.0"):
        pytest.skip("the connectors' settings differ before 0.33")
    events: list[Event] = []
    setup = setup_of((full(),), num_blocks=18, enable_prefix_caching=True, connector=connector(name))
    engine = FACTORY.create(setup, events.append)
    for number, first in enumerate([10, 300, 500, 10]):  # the last prompt is the first again
        engine.add_request(NewRequest(f"r{number}", tuple(range(first, first + 100)), 5))
        assert serve(engine)
    engine.end()
    assert any(isinstance(event, Store) for event in events)
    assert any(isinstance(event, Load) for event in events)
    assert violated(events) == set()


def test_connectors_without_a_driven_worker_side_are_refused() -> None:
    with pytest.raises(SetupError):
        FACTORY.create(setup_of((full(),), connector=ConnectorSetup(name="DecodeBenchConnector")), None)
