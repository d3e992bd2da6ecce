"""What the checks found so far: counts for all violations, the first few in full, and what could not be decided."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import overload

from settled.model.monitor.violation import Violation
from settled.model.properties import Contract, Property

KEPT_MAX = 20
Build = Callable[[], Violation]


class Told(Sequence[Violation]):
    """Violations, each written out when it is looked at."""

    __slots__ = ("_builds",)

    def __init__(self, builds: Sequence[Build] = ()) -> None:
        self._builds = builds

    def __len__(self) -> int:
        return len(self._builds)

    def __iter__(self) -> Iterator[Violation]:
        return (build() for build in self._builds)

    @overload
    def __getitem__(self, index: int) -> Violation: ...

    @overload
    def __getitem__(self, index: slice) -> Told: ...

    def __getitem__(self, index: int | slice) -> Violation | Told:
        return Told(self._builds[index]) if isinstance(index, slice) else self._builds[index]()


NOTHING = Told()


@dataclass(slots=True)
class Tally:
    """What was found of one property: how many by cause, and the first few."""

    causes: dict[str, int] = field(default_factory=dict)
    kept: list[Build] = field(default_factory=list)


class Findings:
    """Collects violations of the chosen properties under one contract. At most `KEPT_MAX` a property are kept in full."""

    def __init__(self, contract: Contract, properties: Iterable[Property]) -> None:
        self.contract = contract
        self.properties = tuple(properties)
        self.tallies = {name: Tally() for name in self.properties}
        self.undecided: dict[Property, dict[str, int]] = {name: {} for name in self.properties}
        self.remarks: dict[Property, list[str]] = {name: [] for name in self.properties}
        self.saw_steps = False  # requests in steps: without any, there was nothing to judge but the books
        self.saw_blocks = False  # tables or holders that took or gave up a block
        self.fresh: list[Build] = []  # since the last `take_fresh`

    def add(self, violation: Violation) -> None:
        """Counts a violation, if its property was asked for."""
        self.found(violation.property, violation.cause, lambda: violation)

    def found(self, name: Property, cause: str, build: Build) -> None:
        """Counts a violation, if its property was asked for; it is written out when it is looked at."""
        tally = self.tallies.get(name)
        if tally is None:
            return
        causes = tally.causes
        causes[cause] = causes.get(cause, 0) + 1
        if len(tally.kept) < KEPT_MAX:
            tally.kept.append(build)
        self.fresh.append(build)

    def cannot_decide(self, name: Property, reason: str) -> None:
        """Counts something that might be a violation, and that the trace cannot decide."""
        reasons = self.undecided.get(name)
        if reasons is not None:
            reasons[reason] = reasons.get(reason, 0) + 1

    def remark(self, name: Property, text: str) -> None:
        """Says something that is worth knowing and no violation."""
        if name in self.remarks:
            self.remarks[name].append(text)

    def take_fresh(self) -> Told:
        """The violations added since the last call."""
        fresh, self.fresh = self.fresh, []
        return Told(fresh)
