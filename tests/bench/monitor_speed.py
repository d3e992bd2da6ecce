"""How fast traces are read and judged: medians over the recorded traces, one process, one core.

Run it as `python tests/bench/monitor_speed.py`. Each trace is decoded and watched ROUNDS times; a row gives events per second for
decoding and for the monitor apart.
"""

from __future__ import annotations

import time
from pathlib import Path
from statistics import median

from settled.model.events import Config, Event
from settled.model.monitor import Monitor
from settled.model.properties import Contract
from settled.model.trace_io import read_trace

TRACES = Path(__file__).parents[1] / "data" / "traces"
ROUNDS = 9


def decode() -> list[list[tuple[int, Event]]]:
    """Every recorded trace, as events."""
    return [list(read_trace(path.read_bytes().splitlines(), path.name)) for path in sorted(TRACES.glob("*.ndjson"))]


def watch(traces: list[list[tuple[int, Event]]], contract: Contract) -> None:
    """Feeds every trace to a monitor of its own."""
    for trace in traces:
        config = trace[0][1]
        assert isinstance(config, Config)
        monitor = Monitor(config, contract)
        for line, event in trace:
            monitor.feed(line, event)
        monitor.finish()


def seconds(times: list[float], began: float) -> float:
    """Notes the time since `began` and returns now."""
    times.append(time.perf_counter() - began)
    return time.perf_counter()


def main() -> None:
    traces = decode()
    events = sum(map(len, traces))
    times: dict[str, list[float]] = {"decode": [], **{f"monitor, {contract}": [] for contract in Contract}}
    for _ in range(ROUNDS):
        now = time.perf_counter()
        decode()
        now = seconds(times["decode"], now)
        for contract in Contract:
            watch(traces, contract)
            now = seconds(times[f"monitor, {contract}"], now)
    print(f"{len(traces)} traces, {events} events, medians of {ROUNDS} rounds")
    for what, measured in times.items():
        print(f"{what:24} {events / median(measured):10,.0f} events/s")


if __name__ == "__main__":
    main()
