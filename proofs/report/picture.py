"""A trace drawn in the terminal: what happened, one row an event, one column a block of the table, one sign a token."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from settled.model.events import Event
from settled.model.kinds import Kind, kind_of
from settled.model.specs import RSWASpec
from settled.proofs.report.signs import UNICODE, Signs
from settled.proofs.report.story import Row, Story, Subject

COUNTERS = ("C", "F", "stale")
LABEL_WIDTH_MIN = 20  # where the label is folded to make room


def draw(
    events: Iterable[tuple[int, Event]], violation: Subject, *, width: int, signs: Signs = UNICODE, rows_max: int | None = None
) -> RenderableType:
    """The events (numbered by line) of the violation's request, of those up to it the last `rows_max`, at most `width` columns wide.

    Where there is nothing to draw, or no room for it, one line that says so.
    """
    if violation.request is None:
        return Text("no picture: the violation is not about one request", style="dim")
    story = Story(violation, arrow=signs.arrow, rows_max=rows_max).read(events)
    rows = story.rows()
    if story.config is None or not rows:
        return Text(f"no picture: nothing is known of request {violation.request} before line {violation.line}", style="dim")
    if story.group is None:
        layout = Layout.of(rows, violation, 0, width)
        return _table(rows, layout, violation, None, signs) if layout else _no_room(width)
    spec = story.config.groups[story.group]
    if isinstance(spec, RSWASpec) and story.prompt_tokens is None:
        return Text(f"no picture: the prompt of request {violation.request}, on which {spec.kind} depends, is not known", style="dim")
    kind = kind_of(spec, story.prompt_tokens)
    if kind is None:
        return Text(f"no picture: kind {spec.kind} is not modelled", style="dim")
    layout = Layout.of(rows, violation, spec.block_size, width)
    if layout is None:
        return _no_room(width)
    return Group(_table(rows, layout, violation, kind, signs), Text(signs.legend, style="dim"))


def _no_room(width: int) -> Text:
    return Text(f"no picture: it does not fit into {width} columns", style="dim")


@dataclass(frozen=True)
class Layout:
    """What fits: the width of the labels, and the table indices that get a column. `block_size` 0: no block is shown."""

    block_size: int
    label_width: int
    indices: range

    @staticmethod
    def of(rows: Sequence[Row], violation: Subject, block_size: int, width: int) -> Layout | None:
        """Labels are folded only if no column would fit otherwise; None if one does not fit even so."""
        top = max([row.cells.top for row in rows] + [(violation.index or 0) + 1]) if block_size else 0
        column = max(_heads_width(top, block_size), len(UNICODE.squeezed(" " * block_size))) + 1 if block_size else 0
        beside = _width("line", (str(row.line) for row in rows)) + sum(_width(*texts) for texts in _counter_texts(rows))
        natural = _width("event", (row.label for row in rows))
        folded = max(LABEL_WIDTH_MIN + 1, _width("event", (word for row in rows for word in row.label.split())))
        for label in (natural, min(natural, folded)):
            room = width - beside - label
            if room >= column:
                columns = min(top, room // column) if column else 0
                start = max(0, min((violation.index or 0) - columns // 2, top - columns))
                return Layout(block_size, label - 1, range(start, start + columns))
        return None

    def head(self, index: int) -> str:
        return _head(index, self.block_size)


def _head(index: int, block_size: int) -> str:
    return f"[{index}]\n{index * block_size}..{(index + 1) * block_size - 1}"


def _heads_width(top: int, block_size: int) -> int:
    return max(len(line) for line in _head(top - 1, block_size).split("\n"))


def _counter_texts(rows: Sequence[Row]) -> list[tuple[str, list[str]]]:
    return [(title, [str(row.counters[place]) for row in rows if row.counters]) for place, title in enumerate(COUNTERS)]


def _width(title: str, texts: Iterable[str]) -> int:
    """Of a column, with the space after it."""
    return max([len(title), *map(len, texts)]) + 1


def _table(rows: Sequence[Row], layout: Layout, violation: Subject, kind: Kind | None, signs: Signs) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("line", justify="right", no_wrap=True)
    table.add_column("event", width=layout.label_width)
    for title in COUNTERS:
        table.add_column(title, justify="right", no_wrap=True)
    for index in layout.indices:
        table.add_column(Text(layout.head(index)), style="bold red" if index == violation.index else "", no_wrap=True)
    for row in rows:
        if row.touches is None or not layout.block_size or set(row.touches) & set(layout.indices):
            cells = [_cell(row, index, layout.block_size, kind, signs) for index in layout.indices] if kind is not None else []
            counters = map(str, row.counters) if row.counters else ("",) * len(COUNTERS)
            table.add_row(str(row.line), Text(row.label, style="bold red" if row.cells.needed else ""), *counters, *cells)
    return table


def _cell(row: Row, index: int, block_size: int, kind: Kind, signs: Signs) -> Text:
    if row.cells.needed is not None:
        style = "bold red"
    elif index in row.cells.released:
        style = "red"
    else:
        style = "cyan" if row.cells.step is not None else "dim"
    return Text(signs.squeezed(row.cells.signs(index, block_size, kind, signs)), style=style)
