"""An example made small: what every shrinker does, whatever it shrinks. Changes are tried in a fixed order, so the same example always
becomes the same small one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterator
from contextlib import suppress
from itertools import combinations
from typing import Any, Generic, TypeVar

_Example = TypeVar("_Example")

_PAIRS_OF_MAX = 16  # parts of which every pair is left out in turn


class _EnoughError(Exception):
    """As many runs as were allowed."""


class Reducer(ABC, Generic[_Example]):
    """Looks for the smallest example of which `holds` is true, from `first` on, for which it must be true.

    `best` is the smallest so far at any time, also after an interrupt; `runs` is how often `holds` was asked, `runs_max` times at most.
    """

    def __init__(self, first: _Example, holds: Callable[[_Example], bool], *, runs_max: int) -> None:
        self.best = first
        self.holds = holds
        self.runs_max = runs_max
        self.runs = 0
        self._tried: set[Hashable] = set()

    def run(self) -> _Example:
        """The smallest example that was found: no single change makes it smaller, unless the runs ran out."""
        with suppress(_EnoughError):
            self.reduce()
        return self.best

    @abstractmethod
    def reduce(self) -> None:
        """Attempts one change after the other."""

    @abstractmethod
    def size_of(self, example: _Example) -> Any:
        """What a smaller example has less of; sizes can be compared."""

    @abstractmethod
    def identity_of(self, example: _Example) -> Hashable:
        """Equal for equal examples."""

    def may_be_smaller(self, candidate: _Example) -> bool:
        """Whether it is worth a run. Where a run alone can tell what is smaller, `holds` has the last word."""
        return bool(self.size_of(candidate) < self.size_of(self.best))

    def is_enough(self) -> bool:
        """Whether nothing more shall be tried."""
        return self.runs >= self.runs_max

    def attempt(self, candidate: _Example) -> bool:
        """Takes the candidate if it is smaller and still holds."""
        if not self.may_be_smaller(candidate):
            return False
        identity = self.identity_of(candidate)
        if identity in self._tried:
            return False
        if self.is_enough():
            raise _EnoughError
        self._tried.add(identity)
        self.runs += 1
        if not self.holds(candidate):
            return False
        self.best = candidate
        return True

    def until_none_holds(self, candidates: Callable[[], Iterator[_Example]]) -> None:
        """Starts over with the smaller example whenever one holds."""
        while any(self.attempt(candidate) for candidate in candidates()):
            pass

    def drop_stretches(self, count: Callable[[], int], without: Callable[[int, int], _Example]) -> None:
        """Leaves out half of the parts, a quarter, and so on. `without`: the best one without the parts from a first to before a last."""
        length = count() // 2
        while length >= 1:
            start = count() - length
            while start > -length:
                self.attempt(without(max(0, start), max(0, start + length)))
                start -= length
            length //= 2


def places_left_out(count: int) -> Iterator[tuple[int, ...]]:
    """Which of `count` parts to leave out: each, the last first; of few, every pair."""
    for place in reversed(range(count)):
        yield (place,)
    yield from pairs_left_out(count)


def pairs_left_out(count: int) -> Iterator[tuple[int, int]]:
    """Every pair of `count` parts, none of many."""
    if count <= _PAIRS_OF_MAX:
        yield from combinations(range(count), 2)
