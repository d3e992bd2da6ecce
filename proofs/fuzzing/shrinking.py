"""A found case made small: fewer decisions first, then a simpler configuration and smaller numbers.

Stretches of decisions are dropped first, which is cheap; the rest is Hypothesis's. It gets the case as an entry of an example database:
strategies and decoder draw the same numbers in the same order, so a case that bytes found is an example of the strategy, and the shrinker
takes it from there.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from random import Random

from hypothesis import HealthCheck, Phase, find, settings
from hypothesis.database import InMemoryExampleDatabase, choices_to_bytes
from hypothesis.errors import HypothesisException

from settled.proofs.fuzzing.strategies import workloads
from settled.reference.decoder import Case, ConfigSpace, encode, with_decisions

RUNS_MAX = 800
_DATABASE_KEY = b"found"
_ONE_TOO_MANY = 0  # an entry that fits exactly is taken for one that has been shrunk before


class _EnoughError(BaseException):
    """No Exception: Hypothesis takes those for a failure of the condition, and goes on."""


class Shrinker:
    """Looks for the smallest case of which `holds` is true, from `case` on, for which it must be true.

    `best` is the smallest so far at any time, also after an interrupt; `runs` is how often `holds` was asked, `runs_max` times at most.
    """

    def __init__(self, case: Case, space: ConfigSpace, holds: Callable[[Case], bool], *, runs_max: int = RUNS_MAX) -> None:
        self.best = case
        self.space = space
        self.holds = holds
        self.runs_max = runs_max
        self.runs = 0

    def run(self) -> Case:
        """The smallest case that was found."""
        with suppress(_EnoughError):
            self._drop_stretches()
        database = InMemoryExampleDatabase()
        database.save(_DATABASE_KEY, choices_to_bytes((*choices_of(self.best), _ONE_TOO_MANY)))
        chosen = settings(
            database=database,
            deadline=None,
            phases=[Phase.reuse, Phase.shrink],
            suppress_health_check=list(HealthCheck),
        )
        strategy = workloads(self.space, decisions_max=max(1, len(self.best.decisions)))
        with suppress(HypothesisException, _EnoughError):
            find(strategy, self._condition, settings=chosen, database_key=_DATABASE_KEY, random=Random(0))
        return self.best

    def _drop_stretches(self) -> None:
        length = len(self.best.decisions) // 2
        while length >= 1:
            start = len(self.best.decisions) - length
            while start > -length:
                decisions = self.best.decisions
                self._condition(with_decisions(self.best, decisions[: max(0, start)] + decisions[max(0, start + length) :]))
                start -= length
            length //= 2

    def _condition(self, candidate: Case) -> bool:
        if self.runs >= self.runs_max:
            raise _EnoughError
        self.runs += 1
        if not self.holds(candidate):
            return False
        self.best = min(self.best, candidate, key=size_of)
        return True


def size_of(case: Case) -> tuple[int, int, bytes]:
    """What a smaller case has less of: decisions, then numbers, then the numbers themselves."""
    return len(case.decisions), len(case.numbers), case.numbers


def choices_of(case: Case) -> tuple[bool | int, ...]:
    """The choices by which Hypothesis draws the case: its numbers, with a True before each element of the list and a False after it."""
    choices: list[bool | int] = list(with_decisions(case, ()).numbers)
    for decision in case.decisions:
        choices += [True, *encode(decision)]
    return (*choices, False)
