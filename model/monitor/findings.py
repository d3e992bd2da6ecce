"""What the checks found so far: counts for all violations, the first few in full, and what could not be decided."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from settled.model.monitor.violation import Violation
from settled.model.properties import Contract, Property

KEPT_MAX = 20


class Findings:
    """Collects violations of the chosen properties under one contract. At most `KEPT_MAX` a property are kept in full."""

    def __init__(self, contract: Contract, properties: Iterable[Property]) -> None:
        self.contract = contract
        self.properties = tuple(properties)
        self.counts: Counter[tuple[Property, str]] = Counter()
        self.kept: dict[Property, list[Violation]] = {name: [] for name in self.properties}
        self.undecided: dict[Property, Counter[str]] = {name: Counter() for name in self.properties}
        self.remarks: dict[Property, list[str]] = {name: [] for name in self.properties}
        self.saw_steps = False  # requests in steps: without any, there was nothing to judge but the books
        self.saw_blocks = False  # tables or holders that took or gave up a block
        self._fresh: list[Violation] = []

    def add(self, violation: Violation) -> None:
        """Counts a violation, if its property was asked for."""
        kept = self.kept.get(violation.property)
        if kept is None:
            return
        self.counts[violation.property, violation.cause] += 1
        if len(kept) < KEPT_MAX:
            kept.append(violation)
        self._fresh.append(violation)

    def cannot_decide(self, name: Property, reason: str) -> None:
        """Counts something that might be a violation, and that the trace cannot decide."""
        if name in self.undecided:
            self.undecided[name][reason] += 1

    def remark(self, name: Property, text: str) -> None:
        """Says something that is worth knowing and no violation."""
        if name in self.remarks:
            self.remarks[name].append(text)

    def take_fresh(self) -> list[Violation]:
        """The violations added since the last call."""
        fresh = self._fresh
        if fresh:
            self._fresh = []
            return fresh
        return []
