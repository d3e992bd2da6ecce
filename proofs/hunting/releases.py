"""Several releases of one engine under the same workloads, each in a process of its own, as many at a time as there are cores."""

from __future__ import annotations

import os
import queue
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from settled.proofs.hunting.campaign import Plan, Progress, Told, WorkloadFailedError
from settled.proofs.hunting.client import RemoteHunt
from settled.proofs.hunting.engines import EngineError
from settled.proofs.hunting.faults import HarnessError
from settled.proofs.hunting.launching import remote_hunt

_SECONDS_BETWEEN_LOOKS = 0.2
_Call = Callable[[], None]


@dataclass(slots=True)
class ReleaseHunt:
    """What a release came to. `error` is "" unless its process failed; what was told before counts all the same.

    `failed` has the workload, where the harness failed with one.
    """

    plan: Plan
    progress: Progress
    error: str = ""
    failed: WorkloadFailedError | None = None


class ReleasesHunt:
    """`tell` and `tick` are called in the thread that runs it. An interrupt stops every release, and passes through once all is told."""

    def __init__(self, plans: Sequence[Plan], tell: Callable[[Told], None], tick: Callable[[Progress], None]) -> None:
        self.plans, self.tell, self.tick = plans, tell, tick
        self.results = [ReleaseHunt(plan, Progress(plan.engine)) for plan in plans]
        self._calls: queue.Queue[_Call] = queue.Queue()
        self._running: list[RemoteHunt] = []
        self._is_stopped = False

    def run(self) -> Sequence[ReleaseHunt]:
        """Hunts in every release, whatever becomes of the others."""
        with ThreadPoolExecutor(min(len(self.plans), os.cpu_count() or 1)) as pool:
            futures = [pool.submit(self._hunt, plan, result) for plan, result in zip(self.plans, self.results, strict=True)]
            try:
                self._until_done(futures)
            except KeyboardInterrupt:
                self._stop()
                self._until_done(futures)
                raise
        return self.results

    def _until_done(self, futures: Sequence[Future[None]]) -> None:
        while not all(future.done() for future in futures):
            with suppress(queue.Empty):
                self._calls.get(timeout=_SECONDS_BETWEEN_LOOKS)()
        while not self._calls.empty():
            self._calls.get()()
        for future in futures:
            future.result()

    def _stop(self) -> None:
        self._is_stopped = True
        for hunt in self._running:
            hunt.stop()

    def _hunt(self, plan: Plan, result: ReleaseHunt) -> None:
        """In a thread of the pool."""
        if self._is_stopped:
            return
        try:
            with remote_hunt(plan, self._later(self.tell), self._later(self.tick)) as hunt:
                result.progress = hunt.progress
                self._running.append(hunt)
                if not self._is_stopped:
                    hunt.run()
        except Exception as error:
            if not self._is_stopped:
                result.error = _in_words(error)
                result.failed = error if isinstance(error, WorkloadFailedError) else None

    def _later(self, call: Callable[[Any], None]) -> Callable[[Any], None]:
        return lambda told: self._calls.put(partial(call, told))


def _in_words(error: Exception) -> str:
    """What is wrong, and how to mend it if that is known."""
    if not isinstance(error, HarnessError | EngineError):
        return f"{type(error).__name__}: {error}"
    return f"{error}{f' ({error.hint})' if error.hint else ''}"


def plans_for(plan: Plan, releases: Sequence[str]) -> list[Plan]:
    """The same plan for each release of its engine, in the order given."""
    return [replace(plan, engine=f"{plan.engine}=={release}") for release in dict.fromkeys(releases)]
