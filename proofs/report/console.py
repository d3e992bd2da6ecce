"""Where reports go: a terminal as wide as it is, a pipe wide enough that nothing is cut."""

from __future__ import annotations

import errno
import sys
from io import StringIO

from rich.console import Console, RenderableType

PIPE_COLUMNS = 160


class ReportConsole(Console):
    """A console that lets the caller say what a broken pipe means; rich would end the run with 1, which means violated."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError(errno.EPIPE, "the reader is gone")


def make_console() -> Console:
    """A console on standard output; colours only on a terminal, and not with NO_COLOR.

    rich draws boxes in ASCII where the encoding is none of Unicode's; what we draw ourselves asks `signs.py`.
    """
    return ReportConsole(highlight=False, soft_wrap=True, width=None if sys.stdout.isatty() else PIPE_COLUMNS)


def plain_text(picture: RenderableType, *, columns: int = PIPE_COLUMNS) -> str:
    """A picture for a file or a message: no colours, no blanks at the ends of lines."""
    out = StringIO()
    Console(file=out, width=columns, highlight=False, soft_wrap=True, color_system=None).print(picture)
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines())
