"""A theorem is a value: a sentence, the obligations that prove it, what it assumes, and the disciplines that break it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from settled.model.disciplines import Discipline
from settled.model.search.induction import Obligation

Build = Callable[[Discipline], list[Obligation]]


@dataclass(frozen=True)
class Part:
    """Obligations that belong together, proved for one discipline.

    `build` states them for any discipline, so that a killer states the same with a broken one.
    """

    name: str
    discipline: Discipline
    build: Build


@dataclass(frozen=True)
class Killer:
    """A discipline under which the proof fails, and where: an obligation of a part, and the conclusion that it loses.

    What fails is a step of the induction, from a state that satisfies the invariant. That the discipline breaks a property from the
    start is another claim, which `refutations.py` makes with a trace.
    """

    discipline: Discipline
    part: str
    obligation: str
    conjunct: str


@dataclass(frozen=True)
class Theorem:
    """`key` is the number by which it is called (T3), `name` the property or topic it is about."""

    key: str
    name: str
    sentence: str
    assumptions: Sequence[str]
    parts: Sequence[Part]
    killers: Sequence[Killer]

    def part(self, name: str) -> Part:
        """The part of that name. Raises KeyError."""
        return {part.name: part for part in self.parts}[name]
