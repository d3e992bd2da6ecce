"""Every order of small logs: does something come out wrong exactly where the detector says that something races?

Small runs of the rows of `settled diff` are lowered, and all linear extensions of each log are replayed, tag by tag. Two things must hold.
Sound: what is wrong in some order and not in all has a race. Complete: a kind of race that can garble does so in some order; a kind that
never does is told.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
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
    cut: int = 0  # logs with more orders than were tried
    kinds: Counter[Kind] = field(default_factory=Counter)  # logs with such a race
    garbling: Counter[Kind] = field(default_factory=Counter)  # of these, logs that are garbled in some orders only
    unsound: list[int] = field(default_factory=list)  # seeds of logs that are garbled in some orders only, without a race

    def add(self, other: Crossed) -> None:
        """More logs of the same row."""
        self.logs.update(other.logs)
        self.interleavings += other.interleavings
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
    orders = Interleavings(LaunchOrder(log), most=orders_max)
    wrong, tried = _replayed(SmallReplay(log), orders)
    crossed.interleavings += tried
    crossed.cut += orders.was_cut
    word = "never" if not wrong else "always" if wrong == tried else "in some orders"
    crossed.logs[bool(reuses), word] += 1
    kinds = {kind_of(race) for race in reuses}
    crossed.kinds.update(kinds)
    if word == "in some orders":
        crossed.garbling.update(kinds)
        if not reuses:
            crossed.unsound.append(seed)


def _replayed(replay: SmallReplay, orders: Interleavings) -> tuple[int, int]:
    """(orders in which something was wrong, orders). Orders that begin alike share that work."""
    wrong = tried = 0
    for order in orders:
        while len(replay.path) > orders.kept:
            replay.undo()
        for op in order[len(replay.path) :]:
            replay.do(op)
        tried += 1
        wrong += replay.misreads > 0
    return wrong, tried


def kind_of(race: Race) -> Kind:
    return str(race.first.kind), str(race.second.kind)
