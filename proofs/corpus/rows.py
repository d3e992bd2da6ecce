"""What the corpus is made of: a row for each public report, and scenarios that show what it reports."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from settled.model.disciplines import RIGHT, Discipline
from settled.model.events import Event
from settled.model.properties import Contract, Property


class Mark(StrEnum):
    """Whether a checker of traces can catch what a row reports, by the sign in the index."""

    CATCHABLE = "catchable"  # Y, with or without a remark: bound, liveness, ...
    PARTLY = "partly catchable"  # P
    NOT_CATCHABLE = "not catchable"  # N or -


@dataclass(frozen=True, slots=True)
class Row:
    """A public report. `catchable` is the sign as it stands in the index, `cause` a short paraphrase ("-": not known)."""

    id: str
    family: str
    catchable: str
    cause: str

    @property
    def mark(self) -> Mark:
        match self.catchable[:1]:
            case "Y":
                return Mark.CATCHABLE
            case "P":
                return Mark.PARTLY
            case _:
                return Mark.NOT_CATCHABLE


class Rows(StrEnum):
    """How a worker keeps its table rows; TOLD is right."""

    TOLD = "told"  # as the scheduler tells; the row of a request that ended is cleared
    KEPT = "kept"  # the row of a request that ended keeps its ids, and a dummy run writes through it
    APPENDED = "appended"  # a resumed request's ids are appended to its old row
    STASHED = "stashed"  # the ids by which a preempted request grew last are handed out once more after it resumed


class StateColumn(StrEnum):
    """From which entry of its row a worker takes the state that a step starts from; LAST is right."""

    LAST = "last"  # that of the last token before the start
    NEXT = "next"  # that of the token at the start: another one where the start is a block boundary


@dataclass(frozen=True, slots=True, kw_only=True)
class DummyRun:
    """A forward pass of a worker without requests, for the sake of other ranks: it runs over the row that request `row_of` had.

    It comes once step `after_step` is processed, and stands for `tokens` tokens from `start` on.
    """

    row_of: str
    start: int
    tokens: int
    after_step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """What a scenario and its repaired twin differ in, in exactly one field: the engine's discipline, how the worker keeps its rows, where
    it looks for a state, or how many tokens the engine retains below the window (for kernels that read more than the mask)."""

    discipline: Discipline = RIGHT
    rows: Rows = Rows.TOLD
    state_column: StateColumn = StateColumn.LAST
    retained: int = 0

    @property
    def is_right(self) -> bool:
        """Whether the discipline and the worker are right; how much is retained is right or wrong for a kernel."""
        return self.discipline.is_right and self.rows is Rows.TOLD and self.state_column is StateColumn.LAST

    def differences(self, other: Choice) -> tuple[str, ...]:
        """The fields in which two choices differ, each with what stands here."""
        mine, others = self._texts(), other._texts()
        return tuple(text for name, text in mine.items() if text != others[name])

    def _texts(self) -> dict[str, str]:
        return {
            "discipline": self.discipline.name,
            "rows": f"rows {self.rows}",
            "state_column": f"state of the {self.state_column} token",
            "retained": f"{self.retained} tokens retained",
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """Decisions that the reference engine takes under a choice. `over_read`: tokens below the window that the kernel reads all the same."""

    events: tuple[Event, ...]
    choice: Choice
    dummy_runs: tuple[DummyRun, ...] = ()
    over_read: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """A whole trace, for what the reference cannot do wrong. `choice` says in words what the engine did."""

    events: tuple[Event, ...]
    choice: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """How a row's bug comes about, what must catch it, and the repaired twin, in which nothing may be found.

    `mapping` says what in the trace stands for what in the report; `source` is where the scenario is written down.
    """

    name: str
    mapping: str
    contract: Contract
    property: Property
    broken: Script | Recording
    repaired: Script | Recording
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A row with its scenarios; without any, `reason` says why. `title` and `numbers` paraphrase the report."""

    row: Row
    title: str = ""
    numbers: str = ""
    scenarios: tuple[Scenario, ...] = ()
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Corpus:
    """All rows of the index, in its order. `families`: those taken up, whose catchable rows all have scenarios or a reason."""

    families: tuple[str, ...]
    cases: tuple[Case, ...]
