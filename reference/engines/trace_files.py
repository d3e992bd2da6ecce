"""The files of a recording: numbered, closed when they are full, the oldest deleted."""

from __future__ import annotations

import os
from collections import deque
from pathlib import Path

_NUMBERS_MAX = 1_000_000


class TraceFiles:
    """Whole lines go to `stem.N.suffix`, where `path` is `stem.suffix` and N counts from 0; a file that exists is never touched.

    A file is full at `file_bytes`. At most `files_max` of this recording's own files stay. Raises OSError where the system does; what was
    written until then ends with a whole line.
    """

    def __init__(self, path: Path, *, file_bytes: int, files_max: int) -> None:
        self._path, self._file_bytes, self._files_max = path, file_bytes, files_max
        self._written: deque[Path] = deque()
        self._next_number = 0
        self._descriptor = -1
        self._bytes = 0
        self._open()

    @property
    def is_full(self) -> bool:
        return self._bytes >= self._file_bytes

    @property
    def current(self) -> Path:
        return self._written[-1]

    def write(self, lines: bytes) -> None:
        """All of the lines or none of them."""
        rest = memoryview(lines)
        try:
            while rest:
                rest = rest[os.write(self._descriptor, rest) :]
        except OSError:
            os.ftruncate(self._descriptor, self._bytes)
            raise
        self._bytes += len(lines)

    def rotate(self) -> None:
        """Goes on in the next file."""
        self.close()
        self._open()
        while len(self._written) > self._files_max:
            self._written.popleft().unlink(missing_ok=True)

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _open(self) -> None:
        """The first number that is free: files of an earlier start, or of another engine core, stay."""
        for number in range(self._next_number, _NUMBERS_MAX):
            path = self._path.with_name(f"{self._path.stem}.{number}{self._path.suffix}")
            try:
                self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
            except FileExistsError:
                continue
            self._written.append(path)
            self._next_number, self._bytes = number + 1, 0
            return
        raise FileExistsError(f"{self._path}: {_NUMBERS_MAX} files of this name exist")
