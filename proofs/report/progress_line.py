"""A line that says how far a long run is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from settled.proofs.report.console import is_watched


@contextmanager
def progress_line(console: Console, label: str, *, is_quiet: bool) -> Iterator[Callable[[str], None]]:
    """Gives what changes the line: on a terminal, at the bottom; nothing in a pipe."""
    if is_quiet or not is_watched(console):
        yield lambda text: None
        return
    columns = (SpinnerColumn(), TextColumn(label), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("", total=None)
        yield lambda text: bar.update(task, description=text)
