"""Where environments and releases lie, and the lock that lets one process at a time change them."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from settled.reference.engines.environments.recipes import RequestError

HOME_VARIABLE = "SETTLED_HOME"
_BUILDING = "building-"  # what an interrupted installation leaves behind is named so, and never counts


def home() -> Path:
    """SETTLED_HOME, or else a folder of ours where the platform keeps caches. Raises RequestError for a user without a home."""
    told = os.environ.get(HOME_VARIABLE)
    try:
        if told:
            return Path(told).expanduser().absolute()
        if sys.platform == "darwin":
            return Path.home() / "Library" / "Caches" / "settled"
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "settled"
    except RuntimeError as error:
        raise RequestError(
            f"no home folder is known for {told or 'this user'}", f"name a folder for releases: {HOME_VARIABLE}=FOLDER"
        ) from error


def engines_folder() -> Path:
    """The folder of all engines; it need not exist."""
    return home() / "engines"


@contextmanager
def changing(waiting: Callable[[], None]) -> Iterator[Path]:
    """The engines' folder, for this process alone; `waiting` is called if another one has it. What interrupted ones left is removed.

    Raises OSError where it cannot be written.
    """
    import fcntl

    folder = engines_folder()
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            waiting()
            fcntl.flock(lock, fcntl.LOCK_EX)
        for left in folder.glob(f"{_BUILDING}*"):
            shutil.rmtree(left, ignore_errors=True)
        yield folder


@contextmanager
def aside(folder: Path) -> Iterator[Path]:
    """An empty folder in the engines' folder to build in. What is whole is renamed out of it in one step; the rest is removed."""
    building = Path(tempfile.mkdtemp(prefix=_BUILDING, dir=folder))
    try:
        yield building
    finally:
        shutil.rmtree(building, ignore_errors=True)


def remove(target: Path) -> None:
    """Removes a folder; from the first moment on it does not count any more. Hold the lock."""
    with aside(target.parent) as building:
        target.rename(building / target.name)


def size_bytes(folder: Path) -> int:
    """What the files in a folder add up to."""
    return sum(entry.lstat().st_size for entry in folder.rglob("*") if not entry.is_dir())
