"""What a run came to, for CI systems and issue trackers: one definition for every command that judges something."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from settled.proofs.folder import make_room, write_file


class Outcome(StrEnum):
    """Of a case. What was not checked, or not to its end, is skipped: it has not passed."""

    PASSED = "passed"
    FAILED = "failed"
    SKIPPED = "skipped"
    ERROR = "error"


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A property under a contract. `told`: what violates it, or why nothing is known. `cause` tells violations of one property apart.

    `picture` and `trace` (its lines) show a violation, `commands` show it again; each may be missing.
    """

    contract: str
    property_name: str
    outcome: Outcome
    told: str = ""
    cause: str = ""
    picture: str = ""
    trace: Sequence[str] = ()
    commands: Sequence[str] = ()

    @property
    def name(self) -> str:
        """One name for each case of a suite."""
        return f"{self.property_name} ({self.cause})" if self.cause else self.property_name


@dataclass(frozen=True, slots=True, kw_only=True)
class Suite:
    """All cases of one engine, discipline or trace, and what was done to judge them. `seconds` that took; 0 if nobody counted."""

    subject: str
    done: str
    cases: Sequence[Case]
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class SummaryFiles:
    """Where summaries go; None: not wanted."""

    junit: Path | None = None
    markdown: Path | None = None

    def make_room(self) -> None:
        """Before a run that may take hours. Raises OSError where one of them could not be written after it."""
        for path in filter(None, (self.junit, self.markdown)):
            make_room(path)

    def write(self, suites: Callable[[], Sequence[Suite]]) -> None:
        """Writes those that are wanted, each as a whole or not at all; asks for the suites only if one is. Raises OSError."""
        from settled.proofs.report.junit import junit_text
        from settled.proofs.report.markdown import markdown_text

        if self.junit is not None:
            write_file(self.junit, junit_text(suites()))
        if self.markdown is not None:
            write_file(self.markdown, markdown_text(suites()))


NO_SUMMARIES = SummaryFiles()
