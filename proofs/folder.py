"""A folder of findings: each file appears as a whole or not at all, whatever interrupts the writing."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path


class CorpusError(ValueError):
    """A file of the corpus is not what this version writes; the message names it and says what is wrong."""


class Folder:
    """A folder, made if it is not there. Raises OSError where nothing can be written."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir(parents=True, exist_ok=True)
        self.replace(path / ".writable", "")
        (path / ".writable").unlink()

    def replace(self, path: Path, text: str) -> None:
        """Writes a whole file beside its place and moves it there."""
        try:
            with tempfile.NamedTemporaryFile("w", encoding="utf-8", dir=self.path, suffix=".part", delete=False) as part:
                try:
                    part.write(text)
                    part.flush()
                    Path(part.name).replace(path)
                except BaseException:
                    with suppress(OSError):
                        Path(part.name).unlink()
                    raise
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(path)) from error


def file_name(words: Iterable[str]) -> str:
    """A name for files from words that need not be fit for one."""
    return "-".join(re.sub(r"[^a-z0-9_]+", ".", word.lower()).strip(".") for word in words if word)
