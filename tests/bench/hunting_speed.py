"""How many random workloads a hunt takes a second, and which part of it takes how much of that time.

Each round plays the same workloads twice: once only timed, once with a clock around each part. All time is the processor's, of this
process; shrinking is left out. Run it with a release's interpreter, PYTHONHASHSEED=0: `python tests/bench/hunting_speed.py`.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from typing import Any

os.environ.setdefault("VLLM_LOGGING_LEVEL", "CRITICAL")

from settled.proofs.hunting.campaign import INSPECTED_EVERY
from settled.proofs.hunting.coverage import HuntCoverage
from settled.proofs.hunting.faults import HarnessError
from settled.proofs.hunting.garbage import collect_seldom
from settled.proofs.hunting.running import run_workload
from settled.proofs.hunting.workloads import Drawn, workloads
from settled.proofs.watching import Watched
from settled.reference.engines.protocol import EngineFactory
from settled.reference.engines.vllm import adapter
from settled.reference.engines.vllm.adapter import VllmEngine, VllmFactory

SEED = 1
_CALIBRATION = 400_000  # additions: what this machine is worth at the moment


class Clock:
    """Seconds of the processor by part. What runs within another part is taken off that one."""

    def __init__(self) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self._parts: list[str] = []
        self._since = 0.0

    def around(self, part: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **keywords: Any) -> Any:
            self._enter(part)
            try:
                return original(*args, **keywords)
            finally:
                self._leave()

        return timed

    def _enter(self, part: str) -> None:
        self._charge()
        self._parts.append(part)

    def _leave(self) -> None:
        self._charge()
        self._parts.pop()

    def _charge(self) -> None:
        now = time.process_time()
        if self._parts:
            self.seconds[self._parts[-1]] += now - self._since
        self._since = now


class Parts:
    """Puts clocks around the parts of a hunt while it is entered. The recorder is what schedule and update take beyond vLLM's own."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self._replaced: list[tuple[Any, str, Any]] = []

    def __enter__(self) -> Parts:
        start = adapter.start

        def start_with_clock(*args: Any) -> Any:
            started = self.clock.around("start-up", start)(*args)
            for name in ("schedule", "update_from_output", "add_request"):  # before the recorder wraps them
                setattr(started.scheduler, name, self.clock.around("engine", getattr(started.scheduler, name)))
            return started

        self._replace(adapter, "start", start_with_clock)
        self._replace(Watched, "__call__", self._method("monitor", Watched))
        for name, part in (("inspect", "inspection"), ("schedule", "driver and recorder"), ("process", "driver and recorder")):
            self._replace(VllmEngine, name, self.clock.around(part, getattr(VllmEngine, name)))
        return self

    def _method(self, part: str, owner: type) -> Callable[..., Any]:
        return self.clock.around(part, owner.__call__)

    def _replace(self, owner: Any, name: str, value: Any) -> None:
        self._replaced.append((owner, name, getattr(owner, name)))
        setattr(owner, name, value)

    def __exit__(self, *_: object) -> None:
        while self._replaced:
            owner, name, former = self._replaced.pop()
            setattr(owner, name, former)


def play(factory: EngineFactory, drawn: Drawn) -> None:
    """As a hunt does it. A workload that the harness fails with counts like the others."""
    with suppress(HarnessError):
        run_workload(factory, drawn.workload, inspects=drawn.number % INSPECTED_EVERY == 0, coverage=HuntCoverage())


def seconds_of(mix: str, first: int, number: int, clock: Clock | None) -> float:
    """For so many workloads from number `first` on, drawing included."""
    factory = VllmFactory()
    drawing = workloads(mix, SEED, factory, first=first)
    begin = time.process_time()
    for _ in range(number):
        draw: Callable[[], Drawn] = drawing.__next__
        play(factory, draw() if clock is None else clock.around("drawing", draw)())
    return time.process_time() - begin


def machine() -> float:
    """Seconds of a fixed piece of Python."""
    begin, total = time.process_time(), 0
    for number in range(_CALIBRATION):
        total += number
    return time.process_time() - begin


def measure(mix: str, rounds: int, number: int) -> None:
    speeds, relative = [], []
    clock, whole = Clock(), 0.0
    for turn in range(rounds):
        first = turn * number
        before = machine()
        seconds = seconds_of(mix, first, number, None)
        speeds.append(number / seconds)
        relative.append(seconds / number / ((before + machine()) / 2))
        with Parts(clock):
            whole += seconds_of(mix, first, number, clock)
    clock.seconds["the rest"] = whole - sum(clock.seconds.values())
    shares = ", ".join([f"{part} {100 * of / whole:.0f} %" for part, of in sorted(clock.seconds.items(), key=lambda item: -item[1])])
    of_machine = f"a workload is worth {statistics.median(relative) * _CALIBRATION:,.0f} additions"
    print(f"  {mix}: median {statistics.median(speeds):.0f} a second ({min(speeds):.0f} to {max(speeds):.0f}); {of_machine}\n    {shares}")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--mixes", nargs="+", default=["windows", "all"])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--workloads", type=int, default=160)
    arguments = parser.parse_args()
    print(f"{VllmFactory().name}: {arguments.rounds} rounds of {arguments.workloads} workloads, seed {SEED}, seconds of the processor")
    seconds_of("windows", 10_000, 8, None)  # imports
    collect_seldom()  # as a hunt's worker does after its first workload
    for mix in arguments.mixes:
        measure(mix, arguments.rounds, arguments.workloads)


if __name__ == "__main__":
    main()
