"""A trace that a command is given: a file, or standard input."""

from __future__ import annotations

import errno
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO


@contextmanager
def opened(trace: str) -> Iterator[tuple[IO[bytes], str]]:
    """Its lines, and what it is called; `-` is standard input. Raises OSError."""
    if trace == "-":
        if sys.stdin is None:
            raise OSError(errno.EBADF, "standard input is closed")
        yield sys.stdin.buffer, "<stdin>"
        return
    with Path(trace).open("rb") as lines:
        yield lines, trace
