"""Worker processes: what all who start some have in common."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context, parent_process
from typing import TypeVar

_Given = TypeVar("_Given")
_Result = TypeVar("_Result")


def begin_worker() -> None:
    """Ctrl-C goes to every process of the terminal; the one that started the others decides. They end when it does, however that was:
    a CI system's SIGTERM leaves it no time to tell them.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


@contextmanager
def in_order(do: Callable[[_Given], _Result], jobs: Sequence[_Given]) -> Iterator[Iterable[_Result]]:
    """The results of `do` for each job, in order, from as many processes as there are cores; what is left is cancelled on the way out."""
    processes = min(len(jobs), os.cpu_count() or 1)
    if processes < 2:
        yield map(do, jobs)
        return
    with ProcessPoolExecutor(processes, get_context("spawn"), initializer=begin_worker) as pool:
        try:
            yield pool.map(do, jobs)
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
