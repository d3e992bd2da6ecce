"""The state machine: clean under right disciplines, and each planted fault is found, by the monitor or by the recount."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from settled.model.disciplines import (
    CEIL,
    NO_FENCE,
    OPTIMISTIC,
    RAW_FINISH,
    RIGHT,
    STALE_UNMARKED,
    UNDRAINED,
    VLLM,
    Discipline,
)
from settled.model.events import Config, Event
from settled.model.monitor import Monitor
from settled.model.properties import Contract
from settled.proofs.fuzzing.machine import BooksError, EngineMachine, ViolationError, engine_machine, recount
from settled.reference.decisions import DRAIN, SORTS, Decision, Player
from settled.reference.decoder import decode
from settled.reference.engine import Engine

GENERATE = settings(
    max_examples=300,
    stateful_step_count=40,
    derandomize=True,
    database=None,
    deadline=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
    print_blob=False,
)


@pytest.mark.parametrize("discipline", [RIGHT, VLLM], ids=lambda discipline: discipline.name)
def test_a_right_discipline_is_clean(discipline: Discipline) -> None:
    run_state_machine_as_test(engine_machine(discipline=discipline), settings=settings(GENERATE, max_examples=40))


def test_without_a_fence_and_without_loads_stream_order_is_clean_and_settled_is_not() -> None:
    machine = engine_machine(discipline=NO_FENCE, contract=Contract.STREAM_ORDER, kinds=["rswa", "sink_window"])  # nothing is loaded there
    run_state_machine_as_test(machine, settings=settings(GENERATE, max_examples=40))
    with pytest.raises(ViolationError, match="read_resident"):
        run_state_machine_as_test(engine_machine(discipline=NO_FENCE), settings=GENERATE)


@pytest.mark.parametrize(
    ("discipline", "error", "message"),
    [
        (OPTIMISTIC, ViolationError, "read_resident"),
        (CEIL, ViolationError, "read_resident"),
        (UNDRAINED, ViolationError, "counters_symmetric"),
        (STALE_UNMARKED, BooksError, "in flight and stale"),
        pytest.param(RAW_FINISH, ViolationError, "connector_finish", marks=pytest.mark.slow),
    ],
    ids=lambda value: getattr(value, "name", None),
)
def test_a_planted_fault_is_found(discipline: Discipline, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        run_state_machine_as_test(engine_machine(discipline=discipline, kinds=["sliding_window"]), settings=GENERATE)


def test_there_is_a_rule_for_every_sort() -> None:
    assert {name for name in SORTS if hasattr(EngineMachine, name)} == set(SORTS) - {DRAIN.name}


class TestMine(EngineMachine.TestCase):  # type: ignore[misc, name-defined]
    """As a user writes it."""

    settings = settings(GENERATE, max_examples=10)


# ---- the recount -----------------------------------------------------------------------------------------------------


def busy_engine() -> tuple[Engine, Monitor]:
    """An engine with a step in flight, and its monitor."""
    monitors: list[Monitor] = []

    def sink(event: Event) -> None:
        if isinstance(event, Config):
            monitors.append(Monitor(event))
        monitors[-1].feed(1, event)

    player = Player(decode(b"").config, sink)
    player.take(Decision("add", (3, 0, 0)))
    player.take(Decision("schedule", (0,)))
    assert player.engine.unprocessed
    return player.engine, monitors[-1]


def test_the_books_of_a_good_engine_agree() -> None:
    recount(*busy_engine())


def test_a_wrong_counter_is_found() -> None:
    engine, monitor = busy_engine()
    engine.scheduler.requests["r0"].num_in_flight_tokens += 1
    with pytest.raises(BooksError, match=r"request r0: the engine counts \(2, 0\) in flight and stale, there are \(1, 0\)"):
        recount(engine, monitor)


def test_a_count_that_the_monitor_does_not_share_is_found() -> None:
    engine, monitor = busy_engine()
    engine.scheduler.requests["r0"].num_computed_tokens += 1
    recount(engine)  # nothing to compare with
    with pytest.raises(BooksError, match="the monitor"):
        recount(engine, monitor)


def test_a_wrong_reference_count_is_found() -> None:
    engine, monitor = busy_engine()
    engine.scheduler.kv_cache_manager.block_pool.blocks[1].ref_cnt += 1
    with pytest.raises(BooksError, match="the pool counts the references"):
        recount(engine, monitor)
