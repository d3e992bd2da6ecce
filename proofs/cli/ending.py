"""How a run ends when it does not end by its own verdict: what is wrong, how to mend it, and an exit code that is nobody's verdict.

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
from settled.proofs.cli.refusal import EXIT_BAD_INPUT, EXIT_UNKNOWN, complain

EXIT_INTERRUPTED, EXIT_BROKEN_PIPE = 130, 141
TRACEBACK_VARIABLE = "SETTLED_TRACEBACK"

_HINTS = {
    errno.ENOSPC: "nothing more can be written there: free some space, or write elsewhere",
    errno.EDQUOT: "your quota there is used up: free some space, or write elsewhere",
    errno.EACCES: "name a place that you may read or write, or change its permissions",
    errno.EPERM: "name a place that you may read or write, or change its permissions",
    errno.EROFS: "that file system is read-only: name another place",
    errno.ENOENT: "the path must exist; is it spelt as it should be?",
    errno.ENOTDIR: "a part of the path is a file: name another place",
    errno.EEXIST: "a file of that name is in the way: name another place",
}
_HINT_MEMORY = "give it more memory, fewer --jobs, or less at once: one theorem, one discipline"


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
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        return error.exit_code
    except click.UsageError as error:
        path = error.ctx.command_path if error.ctx is not None else _command(arguments)
        complain(path, _one_line(error.format_message()).removesuffix("."), _hint_for_usage(error) or f"{path} --help")
        return error.exit_code
    except click.ClickException as error:
        error.show()
        return error.exit_code
    return 0


def _hint_for_usage(error: click.UsageError) -> str:
    param = getattr(error, "param", None)
    if param is not None and isinstance(param.type, click.Path):
        if param.type.exists:
            return "name a file that exists and that you may read"
        return "name a file to write, and no folder" if param.type.file_okay else "name a folder; it is made if it is not there"
    return str(getattr(error, "hint", ""))


def _explain(error: BaseException, arguments: Sequence[str]) -> int:
    from settled.proofs.cli.missing import broken_package, remedy

    if os.environ.get(TRACEBACK_VARIABLE):
        traceback.print_exception(error)
    command = _command(arguments)
    if isinstance(error, click.Abort | KeyboardInterrupt):
        complain(command, "interrupted", "no verdict; what was found until then is above, and the same command begins anew")
        return EXIT_INTERRUPTED
    if isinstance(error, OSError) and error.errno == errno.EPIPE:
        _drop_output()
        return EXIT_BROKEN_PIPE
    package = broken_package(error)
    if package is not None:
        what = "is not installed" if _is_missing(error, package) else f"cannot be imported: {_in_words(error)}"
        complain(command, f"{package} {what}", f"{remedy(package, is_broken='cannot' in what)}; settled doctor says what is missing")
        return EXIT_BAD_INPUT
    if isinstance(error, OSError):
        _drop_output()
        where = error.filename or "standard output"
        complain(command, f"{where}: {error.strerror or error}", _HINTS.get(error.errno or 0, ""))
        return EXIT_BAD_INPUT
    if isinstance(error, MemoryError):
        complain(command, str(error) or "out of memory", _HINT_MEMORY)
        return EXIT_UNKNOWN
    if _is_killed_process(error):
        complain(command, "a process that was started was killed: the system does so when memory runs out", _HINT_MEMORY)
        return EXIT_UNKNOWN
    report = f"please report it with the command: {shlex.join(['settled', *arguments])} ({TRACEBACK_VARIABLE}=1 shows where)"
    complain(command, f"unexpected {_in_words(error)}", report)
    return EXIT_UNKNOWN


def _command(arguments: Sequence[str]) -> str:
    """As much of the command line as names a command, or one of a group's. Imports nothing: that may be what failed."""
    from settled.proofs.cli.main import COMMANDS

    name = arguments[0] if arguments and arguments[0] in COMMANDS else ""
    group = getattr(sys.modules.get(f"settled.proofs.cli.{name}"), name, None)
    of_group = arguments[1:2] if isinstance(group, click.Group) and set(arguments[1:2]) <= set(group.commands) else []
    return " ".join(["settled", *filter(None, [name]), *of_group])


def _is_missing(error: BaseException, package: str) -> bool:
    return isinstance(error, ModuleNotFoundError) and (error.name or "").partition(".")[0] == package


def _is_killed_process(error: BaseException) -> bool:
    from concurrent.futures import BrokenExecutor

    return isinstance(error, BrokenExecutor)


def _in_words(error: BaseException) -> str:
    return _one_line(f"{type(error).__name__}: {error}").removesuffix(":")


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _drop_output() -> None:
    """What is still buffered goes nowhere: Python would try to write it once more at exit, fail, and end with a code of its own."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
