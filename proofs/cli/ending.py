"""How a run ends when it does not end by its own verdict: one line on standard error, and an exit code that is nobody's verdict.

0 and 1 are verdicts, so nothing that goes wrong may end with them: not a full disk, not an interruption, not a fault of ours.
"""

from __future__ import annotations

import errno
import os
import shlex
import sys
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress

import click

from settled.proofs.cli.interrupt import interruptible

EXIT_BAD_INPUT, EXIT_UNKNOWN, EXIT_INTERRUPTED, EXIT_BROKEN_PIPE = 2, 3, 130, 141
TRACEBACK_VARIABLE = "SETTLED_TRACEBACK"


def run_to_the_end(command: Callable[[Sequence[str]], object], arguments: Sequence[str]) -> int:
    """Runs the command line and flushes what it printed; returns the exit code, whatever happens."""
    _prepare_streams()
    try:
        with interruptible():
            code = _code_of(command, arguments)
        sys.stdout.flush()  # here and not at exit, where Python would report a full disk in its own way
        return code
    except (Exception, KeyboardInterrupt) as error:
        return _explain(error, arguments)


def _prepare_streams() -> None:
    """A closed output swallows what is printed, and a sign that its encoding does not have becomes a question mark."""
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115, PTH123 - stays open to the end
    reconfigure = getattr(sys.stdout, "reconfigure", None)
    if reconfigure is not None:
        reconfigure(errors="replace")


def _code_of(command: Callable[[Sequence[str]], object], arguments: Sequence[str]) -> int:
    try:
        command(arguments)
    except SystemExit as error:
        return int(error.code or 0)  # commands end with a number
    except click.exceptions.Exit as error:
        return error.exit_code
    except click.ClickException as error:
        error.show()
        return error.exit_code
    return 0


def _explain(error: BaseException, arguments: Sequence[str]) -> int:
    if os.environ.get(TRACEBACK_VARIABLE):
        traceback.print_exception(error)
    match error:
        case click.Abort() | KeyboardInterrupt():
            _say("interrupted")
            return EXIT_INTERRUPTED
        case OSError() if error.errno == errno.EPIPE:
            _drop_output()
            return EXIT_BROKEN_PIPE
        case OSError():
            _drop_output()
            what = f"{error.filename}: {error.strerror}" if error.filename else error.strerror or str(error)
            _say(what)
            return EXIT_BAD_INPUT
        case ModuleNotFoundError() if error.name and not error.name.startswith("settled"):
            _say(f"{error.name.partition('.')[0]} is not installed: pip install settled; settled doctor says what is missing")
            return EXIT_BAD_INPUT
    what = " ".join(f"{type(error).__name__}: {error}".split()).removesuffix(":")
    _say(
        f"unexpected {what}. Please report it with the command: {shlex.join(['settled', *arguments])} ({TRACEBACK_VARIABLE}=1 shows where)"
    )
    return EXIT_UNKNOWN


def _say(text: str) -> None:
    with suppress(OSError):  # where nobody listens any more, the exit code says it
        print(f"settled: {text}", file=sys.stderr, flush=True)


def _drop_output() -> None:
    """What is still buffered goes nowhere: Python would try to write it once more at exit, fail, and end with a code of its own."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
