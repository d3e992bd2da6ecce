"""A found case made small: fewer decisions first, then a simpler configuration and simpler values.

Hypothesis shrinks what its own tests find (`strategies.py`); but from a case that it did not draw itself, its shrinker starts with another
seed every time, and each of its tries costs ten times the run. This one tries the same sort of changes in a fixed order, so the same case
always becomes the same small one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from settled.proofs.reducing import Reducer, places_left_out
from settled.reference.decisions import SORTS, Decision
from settled.reference.decoder import CODES, Case, ConfigSpace, NumbersOfBytes, read_config, with_decisions

RUNS_MAX = 800
_SPAN_MAX = 5  # numbers of a configuration that are left out together: those of a group


class Shrinker(Reducer[Case]):
    """Looks for the smallest case of which `holds` is true, from `case` on."""

    def __init__(self, case: Case, space: ConfigSpace, holds: Callable[[Case], bool], *, runs_max: int = RUNS_MAX) -> None:
        super().__init__(case, holds, runs_max=runs_max)
        self.space = space

    def size_of(self, example: Case) -> tuple[int, int, bytes]:
        return size_of(example)

    def identity_of(self, example: Case) -> bytes:
        return example.numbers

    def reduce(self) -> None:
        self.drop_stretches(lambda: len(self.best.decisions), self._without)
        before = None
        while before != self.best.numbers:
            before = self.best.numbers
            self.until_none_holds(self._fewer_decisions)
            self.until_none_holds(self._simpler_configs)
            self.until_none_holds(self._simpler_decisions)

    def _without(self, first: int, last: int) -> Case:
        decisions = self.best.decisions
        return with_decisions(self.best, decisions[:first] + decisions[last:])

    # ---- what is tried, the most promising first ---------------------------------------------------------------------

    def _fewer_decisions(self) -> Iterator[Case]:
        decisions = self.best.decisions
        for places in places_left_out(len(decisions)):
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
