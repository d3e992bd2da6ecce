"""The race detector: exactly the races of brute force on random logs; each rule by hand; a log that is no log."""

from __future__ import annotations

import pytest
from random_logs import Pair, before, by_brute_force, fill, load, log_of, pairs, poison, random_log, step, store, upload

from settled.model.properties import Contract
from settled.reference.device import detector as detector_module
from settled.reference.device.clocks import OpLogError
from settled.reference.device.detector import CONTRACTS, KEPT, RaceDetector, races
from settled.reference.device.ops import (
    COMPUTE,
    FIRST_TRANSFER,
    HOST,
    JANITOR,
    CopyWork,
    FillWork,
    Free,
    HostSync,
    Launch,
    LaunchKind,
    Op,
    Record,
    StepWork,
    Wait,
)
from settled.reference.device.race import Place, Race

ONE, TWO = FIRST_TRANSFER, FIRST_TRANSFER + 1


@pytest.mark.parametrize("contract", CONTRACTS)
@pytest.mark.parametrize("orderly", [0.2, 0.45, 0.7])
def test_exactly_the_races_that_brute_force_finds(contract: str, orderly: float) -> None:
    racy = clean = 0
    for seed in range(1000):
        log = random_log(seed, num_ops=8 + seed % 25, num_streams=3 + seed % 4, num_blocks=2 + seed % 5, orderly=orderly)
        found, expected = races(log, contract), by_brute_force(log, contract)
        assert len(found) == len(expected), seed
        assert pairs(found) == expected, seed
        assert [race.second.at for race in found] == sorted(race.second.at for race in found)
        racy, clean = racy + bool(found), clean + (not found)
    assert racy > 100
    assert clean > 5


@pytest.mark.parametrize("kept", [0, KEPT])
@pytest.mark.parametrize("contract", CONTRACTS)
def test_what_a_race_says_the_second_knew(contract: str, kept: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """`known` is the latest launch of the first's stream that comes before the second, `event` the first record behind the first."""
    monkeypatch.setattr(detector_module, "KEPT", kept)
    known_some = with_event = 0
    for seed in range(300):
        log = random_log(seed, num_ops=24, num_streams=4, orderly=0.5)
        earlier = before(log, frees=True)
        for race in races(log, contract):
            of_stream = [index for index in earlier[race.second.at] if getattr(log.ops[index], "stream", HOST) == race.first.stream]
            assert (race.known.at if race.known else None) == max(of_stream, default=None)
            behind = [
                op.event for op in log.ops[race.first.at : race.second.at] if isinstance(op, Record) and op.stream == race.first.stream
            ]
            assert race.event == (behind[0] if behind else None)
            for place in (race.first, race.second, *([race.known] if race.known else [])):
                assert place.op is log.ops[place.at]
            known_some, with_event = known_some + (race.known is not None), with_event + (race.event is not None)
    assert known_some > 25
    assert with_event > 25


# ---- contracts -------------------------------------------------------------------------------------------------------

FREED_UNDER_A_STEP = (step(0, reads=(1,)), Record(0, COMPUTE), Free((1,)), step(1, writes=(1,)))


def test_a_free_must_be_known_over_on_the_host_under_settled_alone() -> None:
    assert pairs(races(log_of(*FREED_UNDER_A_STEP), "settled")) == {(1, 0, 2)}
    assert races(log_of(*FREED_UNDER_A_STEP), "stream_order") == []
    assert races(log_of(*FREED_UNDER_A_STEP), "event") == []


def test_a_free_after_the_host_has_seen_the_step_is_right() -> None:
    assert races(log_of(*FREED_UNDER_A_STEP[:2], HostSync(0), *FREED_UNDER_A_STEP[2:]), "settled") == []


def test_a_wait_of_another_stream_tells_the_host_nothing() -> None:
    assert pairs(races(log_of(*FREED_UNDER_A_STEP[:2], Wait(ONE, 0), *FREED_UNDER_A_STEP[2:]), "settled")) == {(1, 0, 2 + 1)}


@pytest.mark.parametrize("contract", CONTRACTS)
def test_reuse_is_judged_as_any_access(contract: str) -> None:
    assert (1, 0, 1) in pairs(races(log_of(step(0, reads=(1,)), load(0, 1)), contract))
    assert races(log_of(step(0, reads=(1,)), Record(0, COMPUTE), Wait(ONE, 0), load(0, 1)), contract) == []


def test_the_contracts_are_the_models() -> None:
    assert set(CONTRACTS) == set(Contract)
    with pytest.raises(ValueError, match="unknown contract 'fence', known: settled, stream_order, event"):
        races(log_of(), "fence")


# ---- what orders, and what does not ----------------------------------------------------------------------------------


def racy(*ops: Op) -> set[Pair]:
    return pairs(races(log_of(*ops), "stream_order"))


def test_two_reads_do_not_race() -> None:
    assert racy(step(0, reads=(1,)), store(0, 1)) == set()


@pytest.mark.parametrize(
    ("first", "second"), [(step(0, reads=(1,)), load(0, 1)), (load(0, 1), step(0, reads=(1,))), (load(0, 1), step(0, writes=(1,)))]
)
def test_a_read_and_a_write_and_two_writes_do(first: Launch, second: Launch) -> None:
    assert racy(first, second) == {(1, 0, 1)}


def test_a_stream_runs_in_order() -> None:
    assert racy(step(0, writes=(1,)), step(1, reads=(1,), writes=(1,))) == set()


def test_a_wait_covers_what_stood_before_the_record_and_no_more() -> None:
    assert racy(step(0, writes=(1,)), Record(0, COMPUTE), step(1, writes=(2,)), Wait(ONE, 0), store(0, 1, 2)) == {(2, 2, 4)}


def test_a_wait_covers_what_is_launched_after_it_only() -> None:
    assert racy(step(0, writes=(1,)), Record(0, COMPUTE), store(0, 1), Wait(ONE, 0), store(1, 1)) == {(1, 0, 2)}


def test_waits_reach_through_a_third_stream() -> None:
    first, second = (step(0, writes=(1,)), Record(0, COMPUTE), Wait(ONE, 0)), (Wait(TWO, 1), store(1, 1, stream=TWO))
    assert racy(*first, store(0, 2), Record(1, ONE), *second) == set()
    assert racy(*first, Record(1, ONE), *second) == set()
    assert racy(*first[:2], Record(1, ONE), Wait(ONE, 0), *second) == {(1, 0, 5)}


def test_the_host_passes_on_what_it_has_seen_to_all_that_it_enqueues_later() -> None:
    assert racy(step(0, writes=(1,)), Record(0, COMPUTE), HostSync(0), store(0, 1), store(1, 1, stream=TWO)) == set()
    assert racy(step(0, writes=(1,)), Record(0, COMPUTE), store(0, 1), HostSync(0), store(1, 1, stream=TWO)) == {(1, 0, 2)}


def test_the_host_s_own_access_comes_before_what_it_enqueues_and_not_after_what_it_enqueued() -> None:
    log = log_of()
    buffer, first, second = log.staging(0), (fill(log), upload(log)), fill(log)
    assert racy(*first) == set()
    assert racy(*first, Record(0, COMPUTE), second) == {(buffer, 1, 3)}
    assert racy(*first, Record(0, COMPUTE), Wait(ONE, 0), second) == {(buffer, 1, 4)}
    assert racy(*first, Record(0, COMPUTE), HostSync(0), second) == set()


def test_the_block_table_is_a_resource() -> None:
    log = log_of()
    other = Launch(ONE, LaunchKind.UPLOAD, (log.staging(0),), (log.table,), FillWork(0, ()))
    assert racy(step(0, reads=(log.table,)), other) == {(log.table, 0, 1)}


def test_poison_must_wait_like_any_writer() -> None:
    assert racy(step(0, reads=(1,)), poison(1)) == {(1, 0, 1)}
    assert racy(step(0, reads=(1,)), Record(0, COMPUTE), Wait(JANITOR, 0), poison(1), store(0, 1)) == {(1, 3, 4)}


def test_each_stream_that_the_second_misses_is_a_race_of_its_own() -> None:
    assert racy(step(0, reads=(1,)), store(0, 1), load(1, 1, stream=TWO)) == {(1, 0, 2), (1, 1, 2)}


def test_the_latest_access_of_a_stream_stands_for_those_before() -> None:
    assert racy(step(0, writes=(1,)), step(1, reads=(1,)), load(0, 1)) == {(1, 1, 2)}
    assert racy(step(0, writes=(1,)), step(1, reads=(1,)), store(0, 1)) == {(1, 0, 2)}


# ---- in words --------------------------------------------------------------------------------------------------------


def said(*ops: Op, contract: str = "stream_order") -> list[str]:
    log = log_of(*ops)
    return [race.sentence(log) for race in races(log, contract)]


def test_the_missing_edge_of_a_load() -> None:
    ops = (
        step(2, reads=(3,)),
        Record(0, COMPUTE),
        step(3, reads=(3, 4), writes=(4,), request="b", line=9),
        Record(1, COMPUTE),
        HostSync(0),
    )
    assert said(*ops, load(0, 3, line=13)) == [
        "block 3: step 3 of b reads it on compute (op 2, line 9), load 0 writes it on transfer 0 (op 5, line 13): transfer 0 never"
        " waited for step 3 on compute, and the host had not seen it over when it enqueued load 0; the latest known to be over on compute"
        " was step 2 (op 0); event 1 was recorded behind it"
    ]


def test_the_missing_edge_of_a_free() -> None:
    assert said(step(0, reads=(1,), writes=(1,), line=2), Free((1,), 3), contract="settled") == [
        "block 1: step 0 of a writes and reads it on compute (op 0, line 2), the host's free gives it back (op 1, line 3): the host had not"
        " seen step 0 on compute over when it gave the block back; the latest known to be over on compute was nothing; no event was"
        " recorded behind it"
    ]


def test_the_missing_edge_of_a_staging_buffer() -> None:
    log = log_of()
    assert said(upload(log, 1), fill(log, 1)) == [
        "staging buffer 1: upload of staging buffer 1 reads it on compute (op 0), the host's fill of staging buffer 1 writes it (op 1): the"
        " host had not seen upload of staging buffer 1 on compute over when it did its fill of staging buffer 1; the latest known to be"
        " over on compute was nothing; no event was recorded behind it"
    ]


def test_names_of_what_else_there_is() -> None:
    copy = Launch(COMPUTE, LaunchKind.COPY, (1,), (2,), CopyWork(1, 2))
    assert Place(0, copy).name == "copy of block 1 into block 2"
    assert Place(0, poison(4)).name == "poison of block 4"
    assert Place(0, poison(4, 5)).name == "poison of blocks 4, 5"
    assert Place(0, store(7, 1)).name == "store 7"
    assert Place(0, store(7, 1)).requests(1) == Place(0, Free((1,))).requests(1) == ()


def test_of_a_step_only_the_requests_that_hold_the_block() -> None:
    one, other = step(0, reads=(1, 2), request="a"), step(0, reads=(2, 3), request="b")
    assert isinstance(one.work, StepWork)
    assert isinstance(other.work, StepWork)
    both = Place(0, Launch(COMPUTE, LaunchKind.STEP, (1, 2, 3), (), StepWork(0, (*one.work.parts, *other.work.parts))))
    assert [both.requests(block) for block in (1, 2, 3, 4)] == [("a",), ("a", "b"), ("b",), ()]


# ---- a log that no device could run ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("op", "message"),
    [
        (Wait(ONE, 1), f"op 2: stream {ONE} waits for event 1, which is not recorded before"),
        (HostSync(1), "op 2: the host waits for event 1, which is not recorded before"),
        (Record(0, COMPUTE), "op 2: event 0 is recorded a second time"),
        (load(0, 1, stream=9), "op 2: unknown stream 9: those of the device are 1 to 4"),
        (load(0, 1, stream=-1), "op 2: unknown stream -1: those of the device are 1 to 4"),
        (Record(1, HOST), "op 2: unknown stream 0: those of the device are 1 to 4"),
        (Wait(HOST, 0), "op 2: unknown stream 0: those of the device are 1 to 4"),
        (Wait(5, 0), "op 2: unknown stream 5: those of the device are 1 to 4"),
        (load(0, 11), "op 2: resource 11: the log has 0 to 10"),
        (load(0, -1), "op 2: resource -1: the log has 0 to 10"),
        (store(0, 11), "op 2: resource 11: the log has 0 to 10"),
        (Launch(HOST, LaunchKind.FILL, (), (11,), FillWork(0, ())), "op 2: resource 11: the log has 0 to 10"),
        (Launch(HOST, LaunchKind.FILL, (-1,), (), FillWork(0, ())), "op 2: resource -1: the log has 0 to 10"),
        (Free((11,)), "op 2: resource 11: the log has 0 to 10"),
        (Free((-1,)), "op 2: resource -1: the log has 0 to 10"),
        (None, "op 2: None is no op"),
    ],
)
def test_errors_say_where(op: Op, message: str) -> None:
    with pytest.raises(OpLogError) as raised:
        races(log_of(step(0, reads=(1,)), Record(0, COMPUTE), op), "settled")
    assert str(raised.value) == message
    assert raised.value.index == 2


# ---- op by op --------------------------------------------------------------------------------------------------------


def test_op_by_op_is_the_same_and_streams_may_come_later() -> None:
    grown = 0
    for seed in range(300):
        log = random_log(seed, num_ops=30, num_streams=6)
        header = log_of(num_blocks=log.num_blocks, num_staging=0, num_streams=2)
        detector = RaceDetector(header, "settled")
        found: list[Race] = []
        for op in log.ops:
            header.num_streams = max(header.num_streams, getattr(op, "stream", 0) + 1)
            found += detector.feed(op)
        assert found == races(log, "settled")
        grown += header.num_streams > 2
    assert grown > 250


def test_what_the_host_has_seen_over_is_forgotten() -> None:
    """A watcher of a live engine must not grow with the log."""
    detector = RaceDetector(log_of(), "settled")
    for number in range(1000):
        for op in (step(number, reads=(1, 2), writes=(1,)), Record(number, COMPUTE), HostSync(number), Free((1, 2))):
            assert detector.feed(op) == []
    assert [len(stream.ops) <= KEPT for stream in detector._streams] == [True] * 5
    assert all(
        len(stream.ops) == len(stream.indices) and len(stream.events) == len(stream.recorded) <= KEPT for stream in detector._streams
    )
