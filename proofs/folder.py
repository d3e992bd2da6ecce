"""A folder of findings: each file appears as a whole or not at all, whatever interrupts the writing."""

from __future__ import annotations

import errno
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

_Finding = TypeVar("_Finding")


class CorpusError(ValueError):
    """A file of the corpus is not what this version writes; the message names it and says what is wrong."""

    hint = (
        "what settled hunt keeps runs again by --workload FILE.json, what settled fuzz keeps by --corpus DIR; traces are for settled check"
    )


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Raises the OSErrors of writing a file with its name: that of a full disk has none."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error


class Folder:
    """A folder, made if it is not there. Raises OSError where nothing can be written."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir(parents=True, exist_ok=True)
        probe = path / ".writable"
        try:
            probe.write_text("", encoding="utf-8")
            probe.unlink(missing_ok=True)  # another command may look at the same folder
        except OSError as error:  # the folder is there: where none can be made in it, it is not a path that is missing
            why = errno.EACCES if error.errno == errno.ENOENT else error.errno or errno.EIO
            raise OSError(why, os.strerror(why), str(path)) from error

    def read(self, parse: Callable[[dict[str, Any]], _Finding]) -> list[_Finding]:
        """What the JSON files say, by name; `parse` raises KeyError, TypeError or ValueError. Raises CorpusError."""
        return [read_json(path, parse) for path in sorted(self.path.glob("*.json"))]

    def replace(self, path: Path, text: str) -> None:
        """Writes a whole file beside its place and moves it there. Who may read it is up to the process's umask, as of any file."""
        part = path.with_name(f".{path.name}.{os.getpid()}.part")
        with naming(path):
            try:
                part.write_text(text, encoding="utf-8")
                part.replace(path)
            except BaseException:
                with suppress(OSError):
                    part.unlink()
                raise


def make_room(path: Path) -> None:
    """Sees to it that a file can be written later: before a long run, not after it. Raises OSError."""
    if not _is_written_through(path):
        Folder(path.parent)


def write_file(path: Path, text: str) -> None:
    """A file that a user names, as a whole or not at all; its folder is made if it is not there. Raises OSError.

    A link, a device or a pipe is written to: a file that took its place would be no help, and /dev/stdout would be gone.
    """
    if not _is_written_through(path):
        Folder(path.parent).replace(path, text)
        return
    with naming(path):
        path.write_text(text, encoding="utf-8")


def _is_written_through(path: Path) -> bool:
    return path.is_symlink() or (path.exists() and not path.is_file())


def read_json(path: Path, parse: Callable[[dict[str, Any]], _Finding]) -> _Finding:
    """What a JSON file says. Raises CorpusError."""
    try:
        return parse(json.loads(path.read_text(encoding="utf-8")))
    except KeyError as error:
        raise CorpusError(f"{path}: {error} is missing or unknown") from error
    except (ValueError, TypeError) as error:
        raise CorpusError(f"{path}: not a finding of this version: {error}") from error


def file_name(words: Iterable[str]) -> str:
    """A name for files from words that need not be fit for one."""
    return "-".join(re.sub(r"[^a-z0-9_]+", ".", word.lower()).strip(".") for word in words if word)
