"""Orders of launches against brute force on small random logs: all and nothing else, one of each class, policies, directed at a race."""

from __future__ import annotations

import itertools
import math

import pytest
from random_logs import before, fill, load, log_of, poison, random_log, step, store

from settled.reference.device.clocks import OpLogError
from settled.reference.device.detector import races
from settled.reference.device.interleavings import Interleavings, Representatives, count, racing
from settled.reference.device.ops import (
    COMPUTE,
    FIRST_TRANSFER,
    HostSync,
    Launch,
    OpLog,
    Record,
    Wait,
)
from settled.reference.device.orders import LaunchOrder, OrderError

SMALL = [random_log(seed, num_ops=7 + seed % 5, num_streams=3 + seed % 3, num_blocks=3) for seed in range(300)]
MOST = 10_000
EMPTY = log_of()


def is_extension(log: OpLog, order: list[int]) -> bool:
    """Every launch once, after all that come before it."""
    place = {index: number for number, index in enumerate(order)}
    earlier = before(log)
    return sorted(order) == sorted(earlier) and all(place[first] < place[index] for index in earlier for first in earlier[index])


def by_brute_force(log: OpLog) -> set[tuple[int, ...]]:
    earlier = before(log)
    found: list[tuple[int, ...]] = [()]
    for _ in earlier:
        found = [(*done, index) for done in found for index in earlier if index not in done and earlier[index] <= set(done)]
    return set(found)


def conflicts(log: OpLog, first: int, second: int) -> bool:
    one, other = log.ops[first], log.ops[second]
    assert isinstance(one, Launch)
    assert isinstance(other, Launch)
    return bool(set(one.writes) & {*other.reads, *other.writes} or set(one.reads) & set(other.writes))


def as_class(log: OpLog, order: tuple[int, ...]) -> frozenset[tuple[int, int]]:
    """How an order decides each conflict: what memory can tell."""
    return frozenset((first, second) for first, second in itertools.combinations(order, 2) if conflicts(log, first, second))


def test_all_orders_and_nothing_else() -> None:
    total = 0
    for log in SMALL:
        expected = by_brute_force(log)
        every = Interleavings(LaunchOrder(log), most=MOST)
        found = [tuple(order) for order in every]
        assert not every.was_cut
        assert len(found) == len(set(found))
        assert set(found) == expected
        assert count(LaunchOrder(log), most_cuts=MOST) == len(found)
        total += len(found)
    assert total > 10_000


def test_one_order_of_each_class() -> None:
    fewer = 0
    for log in SMALL:
        expected = {as_class(log, order) for order in by_brute_force(log)}
        found = [tuple(order) for order in Representatives(LaunchOrder(log), most=MOST)]
        assert all(is_extension(log, list(order)) for order in found)
        assert len(found) == len(expected)
        assert {as_class(log, order) for order in found} == expected
        fewer += len(found) < len(by_brute_force(log))
    assert fewer > 100


def test_a_race_is_two_conflicting_launches_that_orders_decide_differently() -> None:
    racy = 0
    for log in SMALL:
        orders = list(by_brute_force(log))
        reordered = {
            (first, second)
            for first, second in itertools.combinations(log.launches(), 2)
            if conflicts(log, first, second) and any(order.index(second) < order.index(first) for order in orders)
        }
        found = {(race.first.at, race.second.at) for race in races(log, "stream_order")}
        assert found <= reordered
        assert {second for _, second in found} == {second for _, second in reordered}
        order = LaunchOrder(log)
        bits = racing(order)
        numbered = list(enumerate(order.launches))
        assert {
            (first, second) for first in order.launches for number, second in numbered if bits[first] >> number & 1 and first < second
        } == reordered
        racy += bool(found)
    assert racy > 100


def test_kept_is_the_length_of_the_common_beginning() -> None:
    for kind in (Interleavings, Representatives):
        for log in SMALL[:100]:
            previous: list[int] = []
            every = kind(LaunchOrder(log), most=MOST)
            for order in every:
                assert order[: every.kept] == previous[: every.kept]
                assert not previous or order[every.kept] != previous[every.kept]
                previous = order[:]


@pytest.mark.parametrize("kind", [Interleavings, Representatives])
def test_a_cap_is_told(kind: type[Interleavings] | type[Representatives]) -> None:
    log = log_of(*[load(stream, 1, stream=stream) for stream in (1, 2, 3, 4)])
    for most, was_cut in ((23, True), (24, False), (25, False)):
        every = kind(LaunchOrder(log), most=most)
        assert len(list(map(tuple, every))) == min(most, 24)
        assert every.was_cut == was_cut


def test_counting_gives_up_aloud() -> None:
    log = log_of(*[load(number, 1, stream=1 + number % 4) for number in range(16)])
    assert count(LaunchOrder(log), most_cuts=624) is None
    assert count(LaunchOrder(log), most_cuts=625) == math.factorial(16) // math.factorial(4) ** 4


def test_policies_are_orders_and_the_same_seed_gives_the_same() -> None:
    drawn = set()
    for seed, log in enumerate(SMALL):
        order = LaunchOrder(log)
        assert order.enqueue() == log.launches()
        assert order.random(seed) == order.random(seed)
        drawn |= {tuple(order.random(number)) for number in range(3)}
        for found in (order.enqueue(), order.transfers_first(), order.compute_first(), order.random(seed)):
            assert is_extension(log, found)
    assert len(drawn) > len(SMALL)


# ---- by hand ---------------------------------------------------------------------------------------------------------


def test_each_constraint_holds_and_no_other() -> None:
    #              0              1        2                3             4               5           6        7
    log = log_of(
        step(0), Record(0, COMPUTE), load(0, 1), fill(EMPTY, 0), Wait(FIRST_TRANSFER, 0), load(1, 2), HostSync(0), fill(EMPTY, 1), step(1)
    )
    order = LaunchOrder(log)
    pairs = {(first, second) for first, second in itertools.permutations(order.launches, 2) if order.comes_before(first, second)}
    by_the_host = {(3, 5), (3, 7), (3, 8), (0, 7), (7, 8)}  # what it did before it enqueued; what it had seen over; its own order
    by_a_wait, by_streams = {(0, 5)}, {(2, 5), (0, 8)}
    assert pairs == by_the_host | by_a_wait | by_streams


def test_transfers_first_runs_all_else_before_steps() -> None:
    log = log_of(step(0), fill(EMPTY, 0), step(1), load(0, 1), poison(2), Record(0, COMPUTE), HostSync(0), load(1, 3), step(2))
    assert LaunchOrder(log).transfers_first() == [1, 3, 4, 0, 2, 7, 8]


def test_compute_first_runs_steps_before_all_else() -> None:
    log = log_of(
        poison(2), load(0, 1), fill(EMPTY, 0), step(0), Record(0, FIRST_TRANSFER), Wait(COMPUTE, 0), step(1), fill(EMPTY, 1), step(2)
    )
    assert LaunchOrder(log).compute_first() == [2, 3, 1, 6, 7, 8, 0]


def test_directed_reorders_every_race_and_little_else() -> None:
    turned = 0
    for log in SMALL:
        order = LaunchOrder(log)
        for race in races(log, "event"):
            first, second = race.first.at, race.second.at
            found = order.directed(first, second)
            assert is_extension(log, found)
            assert found.index(first) == found.index(second) + 1
            assert [index for index in found if index < first] == [index for index in order.launches if index < first]
            turned += 1
    assert turned > 300


def test_directed_says_why_it_cannot() -> None:
    log = log_of(step(0, writes=(1,)), Record(0, COMPUTE), step(1, reads=(1,)), load(0, 2))
    order = LaunchOrder(log)
    with pytest.raises(OrderError, match="launch 0 comes before launch 2 in every order"):
        order.directed(0, 2)
    with pytest.raises(OrderError, match="op 1 is no launch"):
        order.directed(1, 3)
    with pytest.raises(OrderError, match="op 3 does not stand before op 2"):
        order.directed(3, 2)


def test_a_log_without_races_has_one_class_found_without_a_search() -> None:
    log = log_of(*[store(number, number % 8, stream=1 + number % 4) for number in range(200)])
    every = Representatives(LaunchOrder(log), most=2)
    assert len(list(every)) == 1
    assert not every.was_cut


def test_a_log_without_launches_has_one_order() -> None:
    order = LaunchOrder(log_of(Record(0, COMPUTE)))
    assert list(Interleavings(order, most=1)) == list(Representatives(order, most=1)) == [[]]
    assert count(order, most_cuts=1) == 1
    assert order.transfers_first() == order.enqueue() == []


def test_a_log_that_is_no_log_has_no_orders() -> None:
    for op, message in ((load(0, 1, stream=9), "op 1: unknown stream 9"), (HostSync(0), "op 1: the host waits for event 0")):
        with pytest.raises(OpLogError, match=message):
            LaunchOrder(log_of(step(0), op))
