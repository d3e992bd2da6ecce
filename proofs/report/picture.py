"""A trace drawn in the terminal: what happened, one row an event, one column a block of the table, one sign a token."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeVar

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from settled.model.algebra import constant_value
from settled.model.events import (
    Allocate,
    Computed,
    Config,
    Event,
    Finish,
    Load,
    Preempt,
    Process,
    ProcessedRequest,
    Release,
    Schedule,
    ScheduledRequest,
    Touch,
)
from settled.model.kinds import Kind, kind_of
from settled.model.monitor import Violation

LEGEND = "w written and read   d draft   r read through the window   · held   × released   ∅ null"
SIGNS_A_ROW_MAX = 96
SIGNS_MAX = 16  # a larger block shows one sign for several tokens: the most telling of theirs
_TELLING = "!∅×rdw· "

Numbered = Sequence[tuple[int, Event]]  # line numbers, counted from 1, and events
Row = tuple[str | Text, ...]


class _Board:
    """The table of one request in one group, as the events change it."""

    def __init__(self, kind: Kind, block_size: int, indices: range, violation: Violation) -> None:
        self.kind, self.size, self.indices, self.violation = kind, block_size, indices, violation
        self.table: dict[int, int | None] = {}  # index → block, None once released

    def hold(self, first: int, blocks: Iterable[int]) -> None:
        self.table.update(enumerate(blocks, start=first))

    def release(self, indices: Iterable[int]) -> None:
        self.table.update(dict.fromkeys(indices))

    def cells(self, *, step: ScheduledRequest | None = None, released: Sequence[int] = (), needed: bool = False) -> list[Text]:
        return [self._cell(index, step, released, needed) for index in self.indices]

    def _cell(self, index: int, step: ScheduledRequest | None, released: Sequence[int], needed: bool) -> Text:
        tokens = range(index * self.size, (index + 1) * self.size)
        if needed:
            low, high = self.violation.needed or (0, -1)
            signs = "".join("!" if index == self.violation.index and low <= token <= high else " " for token in tokens)
            return Text(_squeezed(signs), style="bold red")
        if index in released:
            return Text(_squeezed("×" * self.size), style="red")
        if index not in self.table:
            return Text(_squeezed(" " * self.size))
        if step is not None:
            return Text(_squeezed("".join(self._sign(step, token, index) for token in tokens)), style="cyan")
        return Text(_squeezed(("∅" if self.table[index] is None else "·") * self.size), style="dim")

    def _sign(self, step: ScheduledRequest, token: int, index: int) -> str:
        end = step.start + step.tokens
        if step.start <= token < end:
            return "d" if token >= end - step.drafts else "w"
        if token < step.start and constant_value(self.kind.reads(step.start, token)):
            return "r" if self.table[index] is not None else "∅"
        return "·" if self.table[index] is not None else "∅"


def _squeezed(signs: str) -> str:
    """At most SIGNS_MAX signs."""
    tokens_a_sign = -(-len(signs) // SIGNS_MAX)
    chunks = (signs[start : start + tokens_a_sign] for start in range(0, len(signs), tokens_a_sign))
    return "".join(min(chunk, key=_TELLING.index) for chunk in chunks)


def draw(events: Numbered, violation: Violation, *, rows_max: int | None = None) -> RenderableType | None:
    """The events of the violation's request, of those up to it the last `rows_max`; None where there is nothing to draw.

    That is so for a violation without a request, and for a kind that is not modelled.
    """
    config = events[0][1]
    assert isinstance(config, Config)
    if violation.request is None:
        return None
    group = violation.group or 0
    spec = config.groups[group]
    kind = kind_of(spec)
    if kind is None:
        return None
    board = _Board(kind, spec.block_size, _columns(events, violation, group, SIGNS_A_ROW_MAX // min(SIGNS_MAX, spec.block_size)), violation)
    drawing = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    for title in ("line", "event", "C", "F", "stale"):
        drawing.add_column(title, justify="right" if title in ("line", "C", "F", "stale") else "left", no_wrap=True)
    for index in board.indices:
        style = "bold red" if index == violation.index else ""
        first = index * spec.block_size
        drawing.add_column(f"[{index}]\n{first}..{first + spec.block_size - 1}", style=style, no_wrap=True)
    before = [row for line, event in events if line <= violation.line for row in _rows(board, line, event, violation.request, group)]
    after = [row for line, event in events if line > violation.line for row in _rows(board, line, event, violation.request, group)]
    for row in [*before[-(rows_max or len(before)) :], *_needs(board, violation), *after]:
        drawing.add_row(*row)
    return Group(drawing, Text(LEGEND, style="dim"))


def _needs(board: _Board, violation: Violation) -> list[Row]:
    if violation.needed is None:
        return []
    label = f"step {violation.step} needs" if violation.step is not None else "the next step needs"
    return [(str(violation.line), Text(label, style="bold red"), "", "", "", *board.cells(needed=True))]


def _columns(events: Numbered, violation: Violation, group: int, columns_max: int) -> range:
    """The table indices that are drawn: all of them if they are few, else those around the offending block."""
    top = 1
    for _, event in events:
        if isinstance(event, Allocate | Touch) and event.request == violation.request and event.group == group:
            top = max(top, event.first_index + len(event.blocks))
    if top <= columns_max:
        return range(top)
    start = max(0, min((violation.index or 0) - columns_max // 2, top - columns_max))
    return range(start, start + columns_max)


def _rows(board: _Board, line: int, event: Event, request: str, group: int) -> list[Row]:
    """What an event shows of the request: a row, several for a step that runs it twice, or none."""

    def row(label: str, counters: tuple[int, int, int] | None, cells: Sequence[Text]) -> Row:
        return (str(line), label, *(map(str, counters) if counters else ("", "", "")), *cells)

    match event:
        case Allocate() | Touch() if event.request == request and event.group == group:
            board.hold(event.first_index, event.blocks)
        case Release() if event.request == request and event.group == group:
            shown = row(f"release ({event.cause})", None, board.cells(released=event.indices))
            if event.cause in ("window", "connector_finish"):
                board.release(event.indices)
            return [shown]
        case Schedule():
            return [
                row(f"step {event.step}: schedule [{entry.start}, {entry.start + entry.tokens})", entry.counters, board.cells(step=entry))
                for entry in _mine(event.requests, request)
            ]
        case Process():
            return [
                row(
                    f"step {event.step}: process" + (f", {output.rejected} rejected" if output.rejected else ""),
                    output.counters,
                    board.cells(),
                )
                for output in _mine(event.requests, request)
            ]
        case Computed() if event.request == request:
            return [row(f"computed {event.computed} ({event.cause})", None, board.cells())]
        case Preempt() if event.request == request:
            board.table.clear()
            return [row("preempt", None, board.cells())]
        case Finish() if event.request == request:
            return [row(f"finish ({event.reason})", None, board.cells())]
        case Load():
            return [row(f"load, job {event.job}, for {event.request}", None, board.cells())]
    return []


def _rejected(output: ProcessedRequest) -> str:
    return f", {output.rejected} rejected" if output.rejected else ""


_Entry = TypeVar("_Entry", ScheduledRequest, ProcessedRequest)


def _mine(entries: Iterable[_Entry], request: str) -> list[_Entry]:
    return [entry for entry in entries if entry.request == request]
