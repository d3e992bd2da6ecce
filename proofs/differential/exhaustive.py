"""Every order of small logs: does something come out wrong exactly where the detector says that something races?

Small runs of the rows of `settled diff` are lowered, and all linear extensions of each log are replayed, tag by tag. Sound: two orders in
which every race goes the same way come out alike; so a log without races does in all orders. Complete: a kind of race that can garble
does so when just one race of that kind is turned round; a kind that never does is told.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from settled.model.events import Event
from settled.proofs.differential.racing import found_races
from settled.proofs.differential.rows import Row
from settled.reference.device.interleavings import Interleavings
from settled.reference.device.lowering import lower
from settled.reference.device.ops import OpLog
from settled.reference.device.orders import LaunchOrder
from settled.reference.device.race import Race
from settled.reference.device.small_replay import SmallReplay
from settled.reference.workload import run_workload

STEPS = 5  # of a run
ORDERS_MAX = 20_000  # of a log; what has more is told as cut

Kind = tuple[str, str]
"""Of a race: what the two accesses are, the earlier one of the log first."""


@dataclass(slots=True)
class Crossed:
    """What the small logs of a row came to. `logs` by (races or not, garbled "never", "always" or "in some orders")."""

    row: Row
    logs: Counter[tuple[bool, str]] = field(default_factory=Counter)
    interleavings: int = 0
    of_cut: int = 0  # interleavings of logs that have more than were tried
    cut: int = 0  # such logs
    kinds: Counter[Kind] = field(default_factory=Counter)  # logs with such a race
    garbling: Counter[Kind] = field(default_factory=Counter)  # of these, logs that garble when just that race is turned round
    unsound: list[int] = field(default_factory=list)  # seeds of logs that differ between two orders in which every race goes the same way

    def add(self, other: Crossed) -> None:
        """More logs of the same row."""
        self.logs.update(other.logs)
        self.interleavings += other.interleavings
        self.of_cut += other.of_cut
        self.cut += other.cut
        self.kinds.update(other.kinds)
        self.garbling.update(other.garbling)
        self.unsound += other.unsound


def cross(row: Row, seeds: Iterable[int], *, steps: int = STEPS, orders_max: int = ORDERS_MAX) -> Crossed:
    """Replays every order of each seed's log, up to `orders_max`."""
    crossed = Crossed(row)
    for seed in seeds:
        events: list[Event] = []
        run_workload(row.family.draw(seed), discipline=row.discipline, fence=row.family.fence, steps=steps, sink=events.append)
        _cross(crossed, seed, lower(events, worker=row.worker), orders_max)
    return crossed


def _cross(crossed: Crossed, seed: int, log: OpLog, orders_max: int) -> None:
    _, reuses = found_races(log, crossed.row.contract)
    pairs = {(race.first.at, race.second.at): kind_of(race) for race in reuses}
    order = LaunchOrder(log)
    orders = Interleavings(order, most=orders_max)
    is_wrong_as_enqueued = _is_wrong(log, order.enqueue())
    wrong = tried = 0
    replay = SmallReplay(log)
    for launches in orders:
        is_wrong = _is_wrong_next(replay, launches, orders.kept)
        tried += 1
        wrong += is_wrong
        if is_wrong is not is_wrong_as_enqueued and not _turns_one_round(launches, pairs):
            crossed.unsound.append(seed)
    crossed.interleavings += tried
    crossed.of_cut += tried if orders.was_cut else 0
    crossed.cut += orders.was_cut
    word = "never" if not wrong else "always" if wrong == tried else "in some orders"
    crossed.logs[bool(reuses), word] += 1
    crossed.kinds.update(set(pairs.values()))
    if not is_wrong_as_enqueued:
        crossed.garbling.update({kind for (first, second), kind in pairs.items() if _is_wrong(log, order.directed(first, second))})


def _is_wrong_next(replay: SmallReplay, launches: Sequence[int], kept: int) -> bool:
    """Whether anything comes out wrong. The first `kept` launches are those of the order before, and are not done again."""
    while len(replay.path) > kept:
        replay.undo()
    for op in launches[len(replay.path) :]:
        replay.do(op)
    return replay.misreads > 0


def _is_wrong(log: OpLog, launches: Sequence[int]) -> bool:
    return bool(SmallReplay(log).run(launches))


def _turns_one_round(launches: Sequence[int], pairs: Iterable[tuple[int, int]]) -> bool:
    """Whether some race goes the other way than in the log. Earlier accesses of a stream, which are not listed, go with the latest."""
    place = {op: number for number, op in enumerate(launches)}
    return any(place[second] < place[first] for first, second in pairs)


def kind_of(race: Race) -> Kind:
    return str(race.first.kind), str(race.second.kind)
