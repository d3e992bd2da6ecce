"""What a live recording is asked for, by environment variables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

FILE_BYTES = "SETTLED_TRACE_FILE_BYTES"
FILES = "SETTLED_TRACE_FILES"
BUFFER_RECORDS = "SETTLED_TRACE_BUFFER_RECORDS"

FILE_BYTES_DEFAULT = 256 << 20
FILES_DEFAULT = 8
BUFFER_RECORDS_DEFAULT = 200_000


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveSettings:
    """`path`: what the files are called after. A file is full at `file_bytes`; at most `files_max` files an engine core stay.

    `buffer_records`: how much may wait for the disk; an event counts one, and one more for each request or cache entry in it.
    """

    path: Path
    file_bytes: int = FILE_BYTES_DEFAULT
    files_max: int = FILES_DEFAULT
    buffer_records: int = BUFFER_RECORDS_DEFAULT


def settings_from(trace: str, environment: Mapping[str, str]) -> LiveSettings:
    """Reads the variables. Raises ValueError for one that is no whole number from 1, and for a trace that names no file."""
    if not Path(trace).name:
        raise ValueError(f"{trace!r} names no file: expected something like traces/server.ndjson")
    return LiveSettings(
        path=Path(trace).absolute(),
        file_bytes=_count(environment, FILE_BYTES, FILE_BYTES_DEFAULT),
        files_max=_count(environment, FILES, FILES_DEFAULT),
        buffer_records=_count(environment, BUFFER_RECORDS, BUFFER_RECORDS_DEFAULT),
    )


def _count(environment: Mapping[str, str], name: str, default: int) -> int:
    text = environment.get(name)
    if text is None:
        return default
    if not text.isdecimal() or int(text) < 1:
        raise ValueError(f"{name}={text}: expected a whole number from 1")
    return int(text)
