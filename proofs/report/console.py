"""Where reports go: a terminal as wide as it is, a pipe wide enough that nothing is cut."""

from __future__ import annotations

import sys

from rich.console import Console

PIPE_COLUMNS = 160


def make_console() -> Console:
    """A console on standard output; colours only on a terminal, and not with NO_COLOR."""
    return Console(highlight=False, soft_wrap=True, width=None if sys.stdout.isatty() else PIPE_COLUMNS)
