"""Worker processes: what all who start some have in common."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context
from typing import TypeVar

_Given = TypeVar("_Given")
_Result = TypeVar("_Result")


def ignore_interrupts() -> None:
    """Ctrl-C goes to every process of the terminal; the one that started the others decides."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


@contextmanager
def in_order(do: Callable[[_Given], _Result], jobs: Sequence[_Given]) -> Iterator[Iterable[_Result]]:
    """The results of `do` for each job, in order, from as many processes as there are cores; what is left is cancelled on the way out."""
    processes = min(len(jobs), os.cpu_count() or 1)
    if processes < 2:
        yield map(do, jobs)
        return
    with ProcessPoolExecutor(processes, get_context("spawn"), initializer=ignore_interrupts) as pool:
        try:
            yield pool.map(do, jobs)
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
