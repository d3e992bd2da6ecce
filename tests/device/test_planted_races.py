"""Faults planted in a clean log are named as the missing edge, which repairs them; a detector without one of its rules is caught."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from random_logs import by_brute_force, fill, load, log_of, pairs, random_log, step, upload

from settled.reference.device.clocks import Clocks, OpLogError
from settled.reference.device.detector import RaceDetector, _Stream, races
from settled.reference.device.ops import COMPUTE, FIRST_TRANSFER, HOST, Free, HostSync, Launch, Op, OpLog, Record, Wait
from settled.reference.device.race import Race

ONE = FIRST_TRANSFER
EMPTY = log_of()
TABLE = EMPTY.table
CLEAN: tuple[Op, ...] = (
    fill(EMPTY, 0),
    upload(EMPTY, 0),
    step(0, reads=(TABLE, 1), writes=(1,)),
    Record(0, COMPUTE),
    fill(EMPTY, 1),
    upload(EMPTY, 1),
    step(1, reads=(TABLE, 1)),
    Record(1, COMPUTE),
    HostSync(0),
    fill(EMPTY, 0),
    upload(EMPTY, 0),
    step(2, reads=(TABLE, 2)),
    Record(2, COMPUTE),
    Wait(ONE, 1),
    load(0, 1),
    Record(3, ONE),
    Wait(COMPUTE, 3),
    step(3, reads=(TABLE, 1)),
    Record(4, COMPUTE),
    HostSync(4),
    Free((1,)),
)


def named(ops: list[Op]) -> list[tuple[str, str, str, int | None]]:
    log = log_of(*ops)
    return [(log.resource_name(race.resource), race.first.name, race.second.name, race.event) for race in races(log, "settled")]


def without(dropped: Op) -> list[Op]:
    left = [op for op in CLEAN if op != dropped]
    assert len(left) == len(CLEAN) - 1
    return left


def test_the_clean_log_is_clean() -> None:
    assert named(list(CLEAN)) == []


@pytest.mark.parametrize(
    ("dropped", "missing"),
    [
        (HostSync(0), [("staging buffer 0", "upload of staging buffer 0", "fill of staging buffer 0", 0)]),
        (Wait(ONE, 1), [("block 1", "step 1", "load 0", 1)]),
        (Wait(COMPUTE, 3), [("block 1", "load 0", "step 3", 3), ("block 1", "load 0", "free", 3)]),
        (HostSync(4), [("block 1", "step 3", "free", 4), ("block 1", "load 0", "free", 3)]),
    ],
)
def test_a_dropped_wait_is_the_missing_edge(dropped: Op, missing: list[tuple[str, str, str, int | None]]) -> None:
    assert named(without(dropped)) == missing


@pytest.mark.parametrize("event", range(5))
def test_a_dropped_record_is_an_error_of_the_log(event: int) -> None:
    record = next(op for op in CLEAN if isinstance(op, Record) and op.event == event)
    ops = without(record)
    waiting = [index for index, op in enumerate(ops) if isinstance(op, Wait | HostSync) and op.event == event]
    if not waiting:
        assert named(ops) == []
        return
    with pytest.raises(OpLogError, match=f"op {waiting[0]}: .* event {event}, which is not recorded before"):
        named(ops)


@pytest.mark.parametrize(
    ("record", "launch", "missing"),
    [
        (Record(0, COMPUTE), CLEAN[1], ("staging buffer 0", "upload of staging buffer 0", "fill of staging buffer 0", 1)),
        (Record(1, COMPUTE), CLEAN[6], ("block 1", "step 1", "load 0", 2)),
        (Record(3, ONE), CLEAN[14], ("block 1", "load 0", "step 3", None)),
        (Record(4, COMPUTE), CLEAN[17], ("block 1", "step 3", "free", None)),
    ],
)
def test_a_record_too_early_is_a_missing_edge(record: Record, launch: Op, missing: tuple[str, str, str, int | None]) -> None:
    ops = without(record)
    ops.insert(ops.index(launch), record)
    assert named(ops)[0] == missing


def test_the_missing_edge_repairs_the_race() -> None:
    """A wait for the event behind the first access; where there is none, a record there and a wait for that. No race comes up instead."""
    repaired = recorded = 0
    for seed in range(300):
        log = random_log(seed, num_ops=20, num_streams=4)
        found = races(log, "settled")
        for race in found:
            ops = list(log.ops)
            event = log.num_events if race.event is None else race.event
            second = race.second.stream
            ops.insert(race.second.at, HostSync(event) if second == HOST else Wait(second, event))
            if race.event is None:
                ops.insert(race.first.at + 1, Record(event, race.first.stream))
                recorded += 1
            left = races(OpLog(log.groups, log.num_blocks, 0, log.num_streams, log.num_events + 1, ops), "settled")
            assert (race.resource, id(race.first.op), id(race.second.op)) not in as_ops(left)
            assert as_ops(left) < as_ops(found)
            repaired += 1
    assert repaired - recorded > 200
    assert recorded > 200


def as_ops(found: list[Race]) -> set[tuple[int, int, int]]:
    return {(race.resource, id(race.first.op), id(race.second.op)) for race in found}


# ---- a detector without one of its rules -----------------------------------------------------------------------------


def _no_wait(clocks: Clocks, index: int, stream: int, event: int) -> None:
    pass


def _no_host_sync(clocks: Clocks, index: int, event: int) -> list[int]:
    return []


def _record_that_moves(clocks: Clocks, index: int, event: int, stream: int) -> None:
    clocks._events[event] = clocks.waited[stream]


def _record_of_one_stream(clocks: Clocks, index: int, event: int, stream: int) -> None:
    clocks._events[event] = [latest if number == stream else -1 for number, latest in enumerate(clocks.waited[stream])]


def _streams_know_what_they_waited_for(clocks: Clocks, stream: int, other: int) -> int:
    return clocks.waited[stream][other]


def _streams_know_what_the_host_saw(clocks: Clocks, stream: int, other: int) -> int:
    return clocks.seen[other]


def _without(reads: bool, writes: bool) -> Callable[..., dict[int, int]]:
    original = _Stream.conflicts

    def conflicts(stream: _Stream, more_reads: tuple[int, ...], more_writes: tuple[int, ...], known: int) -> dict[int, int]:
        return original(stream, () if reads else more_reads, () if writes else more_writes, known)

    return conflicts


def _forgets_reads(stream: _Stream, op: Launch, index: int) -> None:
    stream.latest = index
    stream.indices.append(index)
    stream.ops.append(op)
    for resource in op.writes:
        stream.writes[resource] = index
    stream.written.update(op.writes)


def _forgets_writes(stream: _Stream, op: Launch, index: int) -> None:
    stream.latest = index
    stream.indices.append(index)
    stream.ops.append(op)
    for resource in op.reads:
        stream.reads[resource] = index


def _the_host_may_do_anything(detector: RaceDetector, op: Op, index: int, reads: tuple[int, ...], writes: tuple[int, ...]) -> list[Race]:
    return []


def _frees_are_nothing(detector: RaceDetector, op: Op, index: int) -> list[Race]:
    return []


def _one_event_clears_all(detector: RaceDetector, op: HostSync, index: int) -> list[Race]:
    for number in detector._clocks.host_sync(index, op.event):
        detector._streams[number].written.clear()
    return []


RULES = [
    (Clocks, "wait", _no_wait),
    (Clocks, "host_sync", _no_host_sync),
    (Clocks, "record", _record_that_moves),
    (Clocks, "record", _record_of_one_stream),
    (Clocks, "known", _streams_know_what_they_waited_for),
    (Clocks, "known", _streams_know_what_the_host_saw),
    (_Stream, "conflicts", _without(reads=True, writes=False)),
    (_Stream, "conflicts", _without(reads=False, writes=True)),
    (_Stream, "launch", _forgets_reads),
    (_Stream, "launch", _forgets_writes),
    (RaceDetector, "_by_host", _the_host_may_do_anything),
    (RaceDetector, "_free", _frees_are_nothing),
    (RaceDetector, "_host_sync", _one_event_clears_all),
]


LOGS = [random_log(seed, num_ops=30, num_streams=5, orderly=0.55) for seed in range(150)]
EXPECTED = [by_brute_force(log, "settled") for log in LOGS]


def agrees() -> bool:
    return all(pairs(races(log, "settled")) == expected for log, expected in zip(LOGS, EXPECTED, strict=True))


def test_the_whole_detector_agrees() -> None:
    assert agrees()


@pytest.mark.parametrize(
    ("owner", "name", "broken"), RULES, ids=[broken.__name__.strip("_") + str(at) for at, (*_, broken) in enumerate(RULES)]
)
def test_each_rule_matters(owner: type, name: str, broken: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(owner, name, broken)
    assert not agrees()
