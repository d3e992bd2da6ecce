"""What a trace tells of one violation: the rows of its picture, gathered event by event, with no more kept than is drawn."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol, TypeVar

from settled.model.events import (
    Add,
    Allocate,
    Computed,
    Config,
    Event,
    Finish,
    Gap,
    Load,
    Move,
    Preempt,
    Process,
    ProcessedRequest,
    Release,
    Schedule,
    ScheduledRequest,
    State,
    Touch,
)
from settled.proofs.report.board import Board, Cells, StepTokens

BLOCKS_NAMED_MAX = 4


@dataclass(frozen=True)
class Row:
    """An event, or a part of one. `touches`: the row is worth showing only beside one of these table indices."""

    line: int
    label: str
    cells: Cells
    counters: tuple[int, int, int] | None = None
    touches: Collection[int] | None = None


class Subject(Protocol):
    """What is drawn: a violation, or whatever else happened to a request until `line`."""

    @property
    def line(self) -> int: ...
    @property
    def request(self) -> str | None: ...
    @property
    def group(self) -> int | None: ...
    @property
    def step(self) -> int | None: ...
    @property
    def index(self) -> int | None: ...
    @property
    def block(self) -> int | None: ...
    @property
    def needed(self) -> tuple[int, int] | None: ...


class Story:
    """The rows of the violation's request, up to the violation the last `rows_max`. A config or a gap starts afresh: nothing that
    stands before it is known any more."""

    def __init__(self, violation: Subject, *, arrow: str, rows_max: int | None = None) -> None:
        assert violation.request is not None
        self.violation, self.request, self.arrow = violation, violation.request, arrow
        self.config: Config | None = None
        self.prompt_tokens: int | None = None  # of the request, once the trace tells
        self.board = Board()
        self.before: deque[Row] = deque(maxlen=rows_max)
        self.after: list[Row] = []

    @property
    def group(self) -> int | None:
        """The group whose table is shown: the violation's, or the only one."""
        if self.violation.group is None and self.config is not None and len(self.config.groups) == 1:
            return 0
        return self.violation.group

    def read(self, events: Iterable[tuple[int, Event]]) -> Story:
        """Takes in numbered events, up to the next config after the violation."""
        for line, event in events:
            is_after = line > self.violation.line
            if isinstance(event, Config | Gap):
                if is_after:
                    break
                self.config = event if isinstance(event, Config) else self.config
                self.board = Board()
                self.before.clear()
            else:
                (self.after if is_after else self.before).extend(self._rows(line, event))
        return self

    def rows(self) -> list[Row]:
        """All of them, with what the violation needs in its place; the table, where nothing else has been told of the request."""
        before = list(self.before)
        if not before and self.board.shown:
            before.append(Row(self.violation.line, "allocate", self._cells()))
        return [*before, *self._needs(), *self.after]

    def _needs(self) -> Iterator[Row]:
        found = self.violation
        if found.needed is None or found.index is None:
            return
        label = f"step {found.step} needs" if found.step is not None else "the next step needs"
        yield Row(found.line, label, Cells({}, needed=(found.index, range(found.needed[0], found.needed[1] + 1))))

    def _rows(self, line: int, event: Event) -> Iterator[Row]:
        match event:
            case Add() if event.request == self.request:
                self.prompt_tokens = event.prompt_tokens
            case Schedule():
                for entry in _mine(event.requests, self.request):
                    label = f"step {event.step}: schedule {_interval(entry.start, entry.tokens)}"
                    yield Row(line, label, self._cells(StepTokens(entry.start, entry.tokens, entry.drafts)), entry.counters)
            case Process():
                for output in _mine(event.requests, self.request):
                    rejected = f", {output.rejected} rejected" if output.rejected else ""
                    yield Row(line, f"step {event.step}: process{rejected}", self._cells(), output.counters)
            case Computed() if event.request == self.request:
                yield Row(line, f"computed {event.computed} ({event.cause})", self._cells())
            case Finish() if event.request == self.request:
                yield Row(line, f"finish ({event.reason})", self._cells())
            case Preempt() if event.request == self.request:
                yield Row(line, "preempt", self._cells())
                self.board.end_generation()
            case State():
                yield from self._restored(line, event)
            case _:
                yield from self._block_rows(line, event)

    def _block_rows(self, line: int, event: Event) -> Iterator[Row]:
        if isinstance(event, Load):
            yield from self._loads(line, event)
        elif not isinstance(event, Allocate | Touch | Release | Move) or (event.request, event.group) != (self.request, self.group):
            return
        elif isinstance(event, Release):
            is_shown = self.board.released_from(event) is self.board.shown
            label = f"release ({event.cause})" if is_shown else f"release ({event.cause}, old table)"
            yield Row(line, label, Cells(dict(self.board.shown), released=event.indices if is_shown else ()))
            self.board.release(event)
        elif isinstance(event, Move):
            self.board.move(event.from_index, event.to_index)
            yield Row(line, f"move [{event.from_index}] {self.arrow} [{event.to_index}]", self._cells())
        else:
            self.board.hold(event.first_index, event.blocks)

    def _loads(self, line: int, event: Load) -> Iterator[Row]:
        """A load counts if it touches the violated block, or one that stands in a column."""
        touched = {block for blocks in event.blocks for block in blocks}
        at = {index for index, block in self.board.shown.items() if block in touched}
        if self.violation.block in touched and self.violation.index is not None:
            at.add(self.violation.index)
        blocks = sorted(touched & {self.violation.block, *(self.board.shown[index] for index in at if index in self.board.shown)})
        if blocks:
            yield Row(line, f"load, job {event.job}, for {event.request}: {_named(blocks)}", self._cells(), touches=at)

    def _restored(self, line: int, event: State) -> Iterator[Row]:
        """Where the trace begins in mid-run: the table, the counters, and the steps that are unprocessed."""
        if self.group is not None and self.request in event.tables:
            self.board.hold(0, event.tables[self.request][self.group])
        for known in event.requests:
            if known.request == self.request:
                self.prompt_tokens = known.prompt_tokens
                yield Row(line, "state", self._cells(), (known.computed, known.in_flight, known.stale))
        for step in event.unprocessed:
            for part in step.requests:
                if part.request == self.request:
                    cells = self._cells(StepTokens(part.start, part.tokens, part.drafts))
                    yield Row(line, f"step {step.step}: unprocessed {_interval(part.start, part.tokens)}", cells)

    def _cells(self, step: StepTokens | None = None) -> Cells:
        return Cells(dict(self.board.shown), step)


_Entry = TypeVar("_Entry", ScheduledRequest, ProcessedRequest)


def _mine(entries: Iterable[_Entry], request: str) -> list[_Entry]:
    return [entry for entry in entries if entry.request == request]


def _interval(start: int, tokens: int) -> str:
    return f"[{start}, {start + tokens})"


def _named(blocks: list[int]) -> str:
    names = ", ".join(map(str, blocks[:BLOCKS_NAMED_MAX]))
    more = f" and {len(blocks) - BLOCKS_NAMED_MAX} more" if len(blocks) > BLOCKS_NAMED_MAX else ""
    return f"block{'s' if len(blocks) > 1 else ''} {names}{more}"
