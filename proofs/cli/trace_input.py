"""A trace that a command is given: a file, or standard input."""

from __future__ import annotations

import errno
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from settled.proofs.cli.refusal import Refusal

_HINTS = {
    errno.ENOENT: "is it spelt as it should be? a recorder numbers its files: trace.ndjson becomes trace.core0.0.ndjson",
    errno.EACCES: "change the file's permissions, or pipe it in and call it -",
    errno.EISDIR: "name a file in it: one trace at a time",
}


@contextmanager
def opened(trace: str) -> Iterator[tuple[IO[bytes], str]]:
    """Its lines, and what it is called; `-` is standard input. Raises OSError."""
    if trace == "-":
        if sys.stdin is None:
            raise OSError(errno.EBADF, "standard input is closed")
        yield sys.stdin.buffer, "<stdin>"
        return
    if not trace:  # pathlib would take it for the current folder
        raise OSError(errno.ENOENT, "no name is given")
    with Path(trace).open("rb") as lines:
        yield lines, trace


def check_outputs(source: str | Path | None, outputs: Iterable[Path | None], *, called: str = "the trace") -> None:
    """Raises Refusal where a file to be written is what is read, `called` so, or another file to be written, or `-`.

    `source` None: nothing is read. Devices may be named twice.
    """
    taken = {} if source in (None, "-") else {Path(str(source)).resolve(): called}
    for path in outputs:
        if path == Path("-"):
            raise Refusal("-: a file is written, and not to standard output", "name a file")
        if path is None or (path.exists() and not path.is_file()):
            continue
        if path.resolve() in taken:
            raise Refusal(f"{path}: would be written over {taken[path.resolve()]}", "name another file")
        taken[path.resolve()] = "another of the files"


def refusal_of(trace: str, error: Exception) -> Refusal:
    """What to tell of a trace that is not valid (TraceError) or cannot be read (OSError)."""
    if not isinstance(error, OSError):
        return Refusal(error)
    hint = _HINTS.get(error.errno or 0, "the file must hold a trace, one JSON object a line")
    return Refusal(f"{trace or repr(trace)}: {error.strerror}: expected a readable file, or - for standard input", hint)
