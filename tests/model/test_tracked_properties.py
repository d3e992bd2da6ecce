"""The properties of the tracked constants, on states that are good and on states that each lack one thing."""

from __future__ import annotations

from typing import Any

import pytest

from settled.model import tracked_properties as properties
from settled.model.algebra import as_int, constant_value
from settled.model.counters import Counters
from settled.model.disciplines import RIGHT
from settled.model.kinds import SlidingWindow
from settled.model.lifetime import Block, Entry, Step, reads, writes
from settled.model.properties import Contract
from settled.model.tracked import System, Tracked

SYSTEM = System(SlidingWindow(4), RIGHT, token=as_int(6), first=as_int(4), last=as_int(7), lookahead=as_int(0))

# Step 8..9 of a window of 4 is in flight and reads token 6, in a block that its request and nobody else holds.
GOOD = Tracked(
    Counters(10, 2, 0),
    step=Step(True, False, 8, 2, 0, 0),
    entry=Entry(True, False),
    entry_is_b=True,
    row_held=True,
    row_is_b=True,
    fenced=False,
    stale_ahead=0,
    ended_settled=0,
    block=Block(1, False),
    others=0,
    unordered=False,
    unwaited=False,
)
STALE = GOOD._replace(
    counters=Counters(0, 2, 2),
    step=GOOD.step._replace(stale=True),
    entry=Entry(False, False),
    entry_is_b=False,
    fenced=True,
    ended_settled=8,
)
WRITING = GOOD._replace(step=Step(True, False, 5, 3, 0, 0))


def truth(term: Any) -> bool:
    value = constant_value(term)
    assert isinstance(value, bool)
    return value


@pytest.mark.parametrize("contract", Contract)
@pytest.mark.parametrize("state", [GOOD, STALE, WRITING], ids=["live", "stale", "writing"])
def test_a_good_state_has_every_property(state: Tracked, contract: Contract) -> None:
    assert truth(properties.read_resident(state, SYSTEM, contract))
    assert truth(properties.write_owned(state, SYSTEM, contract))
    assert truth(properties.rollback_resident(state, SYSTEM))
    assert truth(properties.single_owner(state))


@pytest.mark.parametrize(
    ("change", "broken"),
    [
        ({"row_held": False}, set(Contract)),
        ({"entry_is_b": False}, {Contract.SETTLED}),
        ({"block": Block(1, True)}, {Contract.SETTLED}),
        ({"block": Block(0, False)}, {Contract.SETTLED}),
        ({"unordered": True}, {Contract.STREAM_ORDER}),
        ({"unwaited": True}, {Contract.EVENT}),
        ({"entry_is_b": False, "row_is_b": False}, set()),  # b is another block: nothing is said of this one
    ],
)
def test_what_a_live_step_may_not_lose(change: dict[str, Any], broken: set[Contract]) -> None:
    for contract in Contract:
        assert truth(properties.read_resident(GOOD._replace(**change), SYSTEM, contract)) == (contract not in broken)
        assert truth(properties.write_owned(WRITING._replace(**change), SYSTEM, contract)) == (contract not in broken)
        assert truth(properties.write_owned(GOOD._replace(**change), SYSTEM, contract)), "it reads the token, and does not write it"


def test_a_stale_step_lives_by_the_fence() -> None:
    assert not truth(properties.read_resident(STALE._replace(fenced=False), SYSTEM, Contract.SETTLED))
    assert truth(properties.read_resident(STALE._replace(fenced=False), SYSTEM, Contract.STREAM_ORDER))
    assert truth(
        properties.read_resident(STALE._replace(fenced=False, step=STALE.step._replace(unprocessed=False)), SYSTEM, Contract.SETTLED)
    )


@pytest.mark.parametrize("change", [{"entry": Entry(False, True)}, {"block": Block(1, True)}, {"block": Block(0, False)}])
def test_what_the_next_step_reads(change: dict[str, Any]) -> None:
    """At a computed count of 9 the window of 4 reaches back to token 6, at 10 it does not."""
    needy = GOOD._replace(counters=Counters(9, 2, 0))
    assert truth(properties.rollback_resident(needy, SYSTEM))
    assert not truth(properties.rollback_resident(needy._replace(**change), SYSTEM))
    assert truth(properties.rollback_resident(GOOD._replace(**change), SYSTEM))


@pytest.mark.parametrize(
    "change",
    [{"block": Block(2, False)}, {"block": Block(1, True)}, {"others": 1}, {"entry_is_b": False}, {"others": -1, "block": Block(0, True)}],
)
def test_references_equal_holders(change: dict[str, Any]) -> None:
    assert not truth(properties.single_owner(GOOD._replace(**change)))


def test_lookahead_slots_are_written() -> None:
    step = Step(True, False, 8, 2, 0, 0)
    assert [token for token in range(16) if truth(writes(step, SlidingWindow(4), token, 3))] == [8, 9, 10, 11, 12]
    assert [token for token in range(16) if truth(writes(step, SlidingWindow(4), token, 0))] == [8, 9]


def test_a_step_reads_the_window_of_its_first_query_and_its_own_tokens() -> None:
    step = Step(True, False, 8, 2, 0, 0)
    assert [token for token in range(16) if truth(reads(step, SlidingWindow(4), token))] == [5, 6, 7, 8, 9]
    assert not any(truth(reads(step._replace(unprocessed=False), SlidingWindow(4), token)) for token in range(16))
