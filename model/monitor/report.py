"""The verdict on a trace: per property holds, violated, not checked or undecided, and why."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from settled.model.events import event
from settled.model.monitor.violation import Violation
from settled.model.properties import Contract, Property

EXIT_HOLDS, EXIT_VIOLATED, EXIT_UNKNOWN = 0, 1, 3


class Verdict(StrEnum):
    """What a trace says about a property."""

    HOLDS = "holds"  # and the trace is complete
    VIOLATED = "violated"
    NOT_CHECKED = "not checked"  # the trace does not record what would be needed, or nothing of the sort happened
    UNDECIDED = "undecided"  # nothing is violated so far, but a part of the trace is missing, such as its end


@event
class PropertyResult:
    """One property under the contract of the report.

    `count` is the number of violations, `causes` splits it, `violations` are the first few in full. `groups` are the indices of the
    groups that were checked; `remarks` say what was not, and why.
    """

    property: Property
    verdict: Verdict
    count: int
    causes: dict[str, int]
    groups: tuple[int, ...]
    remarks: tuple[str, ...]
    violations: Sequence[Violation]


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What the monitor says at the end. `unknown` are the reasons why the trace as a whole could not be decided."""

    contract: Contract
    events: int
    complete: bool
    properties: tuple[PropertyResult, ...]
    unknown: tuple[str, ...]
    remarks: tuple[str, ...]

    @property
    def exit_code(self) -> int:
        """1 if a property is violated; else 3 if something is unknown: events were lost, there is no `end`, a kind is not modelled, or
        no property was checked at all; else 0. A property that the trace does not record costs nothing beside one that holds."""
        if any(result.verdict is Verdict.VIOLATED for result in self.properties):
            return EXIT_VIOLATED
        if self.unknown or not self.complete or any(result.verdict is Verdict.UNDECIDED for result in self.properties):
            return EXIT_UNKNOWN
        return EXIT_HOLDS if any(result.verdict is Verdict.HOLDS for result in self.properties) else EXIT_UNKNOWN

    def result(self, name: Property) -> PropertyResult:
        """The result of one property. Raises KeyError if it was not asked for."""
        for result in self.properties:
            if result.property is name:
                return result
        raise KeyError(name)

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "contract": self.contract,
            "events": self.events,
            "complete": self.complete,
            "exit_code": self.exit_code,
            "unknown": list(self.unknown),
            "remarks": list(self.remarks),
            "properties": {
                result.property: {
                    "verdict": result.verdict,
                    "count": result.count,
                    "causes": result.causes,
                    "groups": list(result.groups),
                    "remarks": list(result.remarks),
                    "violations": [violation.as_dict() for violation in result.violations],
                }
                for result in self.properties
            },
        }
