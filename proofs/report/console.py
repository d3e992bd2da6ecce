"""Where reports go: a terminal as wide as it is, a pipe wide enough that nothing is cut."""

from __future__ import annotations

import errno
import re
import sys
from io import StringIO
from typing import IO, Any, cast

from rich.console import Console, RenderableType
from rich.table import Table

PIPE_COLUMNS = 160
COLUMNS_MIN = 40  # below it a table would have a letter or two a line
NARROW_COLUMNS = 100  # a table in less has no room for what is only there to line up
_BLANKS_AT_ENDS = re.compile(r"[ \t]+(?=\n)")


class ReportConsole(Console):
    """A console that lets the caller say what a broken pipe means; rich would end the run with 1, which means violated."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError(errno.EPIPE, "the reader is gone")

    def print(self, *objects: Any, **options: Any) -> None:
        """As rich's, but where a table is too wide its words are broken and not cut off: nothing is lost."""
        for each in objects:
            if isinstance(each, Table):
                _fit(each, is_narrow=self.width < NARROW_COLUMNS)
        super().print(*objects, **options)


def make_console() -> Console:
    """A console on standard output; colours only on a terminal or with FORCE_COLOR, and not with NO_COLOR.

    rich draws boxes in ASCII where the encoding is none of Unicode's; what we draw ourselves asks `signs.py`.
    """
    if sys.stdout.isatty():
        console = ReportConsole(highlight=False, soft_wrap=True)
        console.width = max(console.width, COLUMNS_MIN)
        return console
    return ReportConsole(highlight=False, soft_wrap=True, width=PIPE_COLUMNS, file=cast(IO[str], _Trimmed(sys.stdout)))


def is_watched(console: Console) -> bool:
    """Whether somebody looks on: a terminal, and no pipe that only gets colours."""
    return console.file.isatty()


class _Trimmed:
    """A file without the blanks with which tables fill their lines."""

    def __init__(self, file: IO[str]) -> None:
        self._file = file

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def write(self, text: str) -> int:
        return self._file.write(_BLANKS_AT_ENDS.sub("", text))


def _fit(table: Table, *, is_narrow: bool) -> None:
    for column in table.columns:
        column.overflow = "fold"
        if is_narrow:
            column.no_wrap, column.min_width = False, None


def plain_text(picture: RenderableType, *, columns: int = PIPE_COLUMNS) -> str:
    """A picture for a file or a message: no colours, no blanks at the ends of lines."""
    out = StringIO()
    Console(file=out, width=columns, highlight=False, soft_wrap=True, color_system=None).print(picture)
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines())
