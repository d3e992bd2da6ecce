"""In which orders a log is tried, by name: four by policy, and each race turned round. One list for the CPU, for a device, and for both."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from settled.reference.device.detector import races
from settled.reference.device.ops import OpLog
from settled.reference.device.orders import LaunchOrder
from settled.reference.device.race import Race

ENQUEUED, TRANSFERS_FIRST, COMPUTE_FIRST, RANDOM, DIRECTED = "as enqueued", "transfers first", "compute first", "random", "directed"
ALWAYS_TRIED = (ENQUEUED, TRANSFERS_FIRST, COMPUTE_FIRST, RANDOM)
DIRECTED_MAX = 8
"""So many races of a log are turned round at most; the other orders take part in any case."""


class Trial(NamedTuple):
    """`order`: all launches, op indices. `turned`: of DIRECTED, the two launches that race, the later one of the log made the first."""

    name: str
    order: list[int]
    turned: tuple[int, int] | None = None

    def __str__(self) -> str:
        return self.name if self.turned is None else f"{self.name} {self.turned[1]} before {self.turned[0]}"


def trials(log: OpLog, reuses: Iterable[Race], seed: int, directed_max: int = DIRECTED_MAX) -> Iterator[Trial]:
    """`reuses`: the races between launches. `seed`: of the random order."""
    order = LaunchOrder(log)
    yield Trial(ENQUEUED, order.enqueue())
    yield Trial(TRANSFERS_FIRST, order.transfers_first())
    yield Trial(COMPUTE_FIRST, order.compute_first())
    yield Trial(RANDOM, order.random(seed))
    pairs = list(dict.fromkeys([(race.first.at, race.second.at) for race in reuses]))
    for first, second in pairs[:directed_max]:
        yield Trial(DIRECTED, order.directed(first, second), (first, second))


def races_of_launches(log: OpLog) -> list[Race]:
    """Without frees that come too early, which are all that the contract decides."""
    return races(log, "stream_order")
