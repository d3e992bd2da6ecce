"""A found case made small: fewer decisions first, then a simpler configuration and simpler values.

Hypothesis shrinks what its own tests find (`strategies.py`); but from a case that it did not draw itself, its shrinker starts with another
seed every time, and each of its tries costs ten times the run. This one tries the same sort of changes in a fixed order, so the same case
always becomes the same small one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import combinations

from settled.reference.decisions import SORTS, Decision
from settled.reference.decoder import CODES, Case, ConfigSpace, NumbersOfBytes, read_config, with_decisions

RUNS_MAX = 800
_PAIRS_OF_MAX = 16  # decisions of which every pair is left out in turn
_SPAN_MAX = 5  # numbers of a configuration that are left out together: those of a group


class _EnoughError(Exception):
    """As many runs as were allowed."""


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
        self._tried: set[bytes] = set()

    def run(self) -> Case:
        """The smallest case that was found: no single change makes it smaller, unless the runs ran out."""
        with suppress(_EnoughError):
            self._drop_stretches()
            before = None
            while before != self.best.numbers:
                before = self.best.numbers
                self._until_none_holds(self._fewer_decisions)
                self._until_none_holds(self._simpler_configs)
                self._until_none_holds(self._simpler_decisions)
        return self.best

    def _try(self, candidate: Case) -> bool:
        """Takes the candidate if it is smaller and still holds."""
        if size_of(candidate) >= size_of(self.best) or candidate.numbers in self._tried:
            return False
        if self.runs >= self.runs_max:
            raise _EnoughError
        self._tried.add(candidate.numbers)
        self.runs += 1
        if not self.holds(candidate):
            return False
        self.best = candidate
        return True

    def _until_none_holds(self, candidates: Callable[[], Iterator[Case]]) -> None:
        """Starts over with the smaller case whenever one holds."""
        while any(self._try(candidate) for candidate in candidates()):
            pass

    def _drop_stretches(self) -> None:
        """Leaves out half of the decisions, a quarter, and so on."""
        length = len(self.best.decisions) // 2
        while length >= 1:
            start = len(self.best.decisions) - length
            while start > -length:
                decisions = self.best.decisions
                self._try(with_decisions(self.best, decisions[: max(0, start)] + decisions[max(0, start + length) :]))
                start -= length
            length //= 2

    # ---- what is tried, the most promising first ---------------------------------------------------------------------

    def _fewer_decisions(self) -> Iterator[Case]:
        decisions = self.best.decisions
        left_out: list[tuple[int, ...]] = [(place,) for place in reversed(range(len(decisions)))]
        if len(decisions) <= _PAIRS_OF_MAX:
            left_out += combinations(range(len(decisions)), 2)
        for places in left_out:
            yield with_decisions(self.best, [decision for place, decision in enumerate(decisions) if place not in places])
        # What took a long way round, such as a preemption for want of blocks, may be had at once.
        for place in range(len(decisions)):
            for name in SORTS:
                for rest in ((), decisions[-1:]):
                    yield with_decisions(self.best, (*decisions[:place], _simplest(name), *rest))

    def _simpler_configs(self) -> Iterator[Case]:
        case = self.best
        numbers = with_decisions(case, ()).numbers
        for span in range(_SPAN_MAX, 0, -1):
            for place in range(len(numbers) - span + 1):
                # One group less, where the number of groups stands first.
                for first in {numbers[0], max(0, numbers[0] - 1)} if place else {numbers[0]}:
                    yield self._with_config(bytes([first, *numbers[1:place], *numbers[place + span :]]) if place else numbers[span:])
        for place, number in enumerate(numbers):
            for lower in sorted({0, 1, number // 2, number - 1}):
                if 0 <= lower < number:
                    yield self._with_config(numbers[:place] + bytes([lower]) + numbers[place + 1 :])

    def _with_config(self, numbers: bytes) -> Case:
        source = NumbersOfBytes(numbers)
        return with_decisions(Case(read_config(source, self.space), (), bytes(source.taken)), self.best.decisions)

    def _simpler_decisions(self) -> Iterator[Case]:
        decisions = self.best.decisions
        for place, decision in enumerate(decisions):
            for simpler in _simpler(decision):
                yield with_decisions(self.best, (*decisions[:place], simpler, *decisions[place + 1 :]))


def _simplest(name: str) -> Decision:
    return Decision(name, tuple([argument.values[0] for argument in SORTS[name].arguments]))


def _simpler(decision: Decision) -> Iterator[Decision]:
    """Decisions of simpler sorts, then simpler values."""
    for name in dict.fromkeys(CODES):
        if name == decision.name:
            break
        yield _simplest(name)
    for place, (value, argument) in enumerate(zip(decision.values, SORTS[decision.name].arguments, strict=True)):
        for other in argument.values[: argument.values.index(value)]:
            yield decision._replace(values=(*decision.values[:place], other, *decision.values[place + 1 :]))


def size_of(case: Case) -> tuple[int, int, bytes]:
    """What a smaller case has less of: decisions, then numbers, then the numbers themselves."""
    return len(case.decisions), len(case.numbers), case.numbers
