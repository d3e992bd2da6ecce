"""How fast traces are read and judged: medians, one process, one core.

Run it as `python tests/bench/monitor_speed.py`. There are three sources: the recorded traces of vLLM; runs of the reference, with its
counters and cache entries; and wide steps, 64 decoding requests each, in one event a step. Each is decoded and watched ROUNDS times. A
row gives events per second for decoding and for the monitor apart, and operations: one request in one schedule or process event.

The last rows are runs of the reference: alone, with its events made and dropped, and under the monitor; there control events of requests
are operations too, as `RunSummary.operations` counts them, and set-up and verdict are in the time.
"""

from __future__ import annotations

import gc
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from statistics import median

from settled.model import events as ev
from settled.model.monitor import Monitor
from settled.model.properties import Contract
from settled.model.specs import FullAttentionSpec, SlidingWindowSpec
from settled.model.trace_io import encode_event, read_trace
from settled.reference.workload import random_workload, run_workload

TRACES = Path(__file__).parents[1] / "data" / "traces"
ROUNDS = 9
SEEDS, STEPS_A_RUN = 24, 100
LIVE_STEPS = 300  # a run, of the reference under the monitor
WIDTH, WIDE_STEPS, BLOCK_SIZE, WINDOW = 64, 150, 16, 64

Trace = list[tuple[int, ev.Event]]


def recorded() -> list[list[bytes]]:
    """The lines of every recorded trace."""
    return [path.read_bytes().splitlines() for path in sorted(TRACES.glob("*.ndjson"))]


def of_the_reference() -> list[list[bytes]]:
    """The lines of random runs of the reference under the right discipline."""
    traces = []
    for seed in range(SEEDS):
        events: list[ev.Event] = []
        run_workload(random_workload(seed), steps=STEPS_A_RUN, sink=events.append)
        traces.append([encode_event(event).encode() for event in events])
    return traces


def wide() -> list[list[bytes]]:
    """One trace: requests that decode a token a step, two steps in flight, one group with full attention and one with a window."""
    groups = (FullAttentionSpec(block_size=BLOCK_SIZE), SlidingWindowSpec(block_size=BLOCK_SIZE, window=WINDOW))
    keys = {"max_batched_tokens": WIDTH, "num_draft_tokens": 0, "prefix_caching": False, "kv_consumer": True}
    events: list[ev.Event] = [
        ev.Config(schema=1, engine="wide", num_blocks=2 * WIDTH * WIDE_STEPS, max_in_flight_steps=2, groups=groups, **keys)
    ]
    names = [f"request-{number}" for number in range(WIDTH)]
    events += [ev.Add(request=name, prompt_tokens=1) for name in names]
    fresh = iter(range(1, 2 * WIDTH * WIDE_STEPS))
    tables: dict[tuple[str, int], list[int]] = {(name, group): [] for name in names for group in (0, 1)}
    for step in range(WIDE_STEPS):
        parts = []
        for name in names:
            new: list[tuple[int, ...]] = []
            for group in (0, 1):
                table = tables[name, group]
                gone = (step - 1 - WINDOW) // BLOCK_SIZE - 1
                if group and gone >= 0 and table[gone]:
                    block, table[gone] = table[gone], 0
                    events.append(ev.Release(request=name, group=group, indices=(gone,), blocks=(block,), cause="window", freed=(block,)))
                new.append(())
                if step % BLOCK_SIZE == 0:
                    new[group] = (next(fresh),)
                    events.append(ev.Allocate(request=name, group=group, first_index=len(table), blocks=new[group]))
                    table.extend(new[group])
            parts.append(ev.ScheduledRequest(request=name, start=step, tokens=1, drafts=0, new_blocks=tuple(new), resumed=False))
        events.append(ev.Schedule(step=step, requests=tuple(parts)))
        if step:
            done = tuple(ev.ProcessedRequest(request=name, sampled=1, rejected=0) for name in names)
            events.append(ev.Process(step=step - 1, requests=done))
    return [[encode_event(event).encode() for event in events]]


def decode(traces: list[list[bytes]]) -> list[Trace]:
    """Every trace, as events."""
    return [list(read_trace(lines)) for lines in traces]


def read(traces: list[list[bytes]]) -> None:
    """Decodes every line and keeps none, as `settled check` does."""
    for lines in traces:
        deque(read_trace(lines), maxlen=0)


def watch(traces: list[Trace], contract: Contract) -> None:
    """Feeds every trace to a monitor of its own."""
    for trace in traces:
        config = trace[0][1]
        assert isinstance(config, ev.Config)
        monitor = Monitor(config, contract)
        for line, event in trace:
            monitor.feed(line, event)
        monitor.finish()


def run_live(contract: Contract | None, *, recorded: bool = True) -> int:
    """Runs the reference under the right discipline, each run under a monitor of its own if a contract is given; the operations done."""
    done = 0
    for seed in range(SEEDS):
        monitors: list[Monitor] = []
        lines = 0

        def sink(event: ev.Event, monitors: list[Monitor] = monitors) -> None:
            nonlocal lines
            lines += 1
            if isinstance(event, ev.Config):
                monitors.append(Monitor(event, contract))
            monitors[-1].feed(lines, event)

        keep = sink if contract else _drop if recorded else None
        # Contracts of ordered streams ask that loads wait on the device, which they do where there is no fence.
        done += run_workload(random_workload(seed), fence=contract in (None, Contract.SETTLED), steps=LIVE_STEPS, sink=keep).operations
        for monitor in monitors:
            assert not any(result.count for result in monitor.finish().properties)
    return done


def _drop(event: ev.Event) -> None:
    """A sink that keeps nothing."""


def operations(traces: list[Trace]) -> int:
    """Requests in schedule and process events."""
    return sum(len(event.requests) for trace in traces for _, event in trace if isinstance(event, ev.Schedule | ev.Process))


def seconds(run: Callable[[], object]) -> float:
    """The median processor time of ROUNDS runs: other processes on the machine cost little."""
    times = []
    for _ in range(ROUNDS):
        gc.collect()
        began = time.process_time()
        run()
        times.append(time.process_time() - began)
    return median(times)


def main() -> None:
    for name, source in (("recorded", recorded()), ("reference", of_the_reference()), (f"steps of {WIDTH}", wide())):
        traces = decode(source)
        gc.freeze()  # the events were there before: collecting them is not the monitor's work
        events, entries = sum(map(len, traces)), operations(traces)
        print(f"{name}: {len(traces)} traces, {events} events, {entries} operations, medians of {ROUNDS} rounds")
        rows: list[tuple[str, Callable[[], object]]] = [("decode", lambda source=source: read(source))]
        rows += [(f"monitor, {contract}", lambda traces=traces, contract=contract: watch(traces, contract)) for contract in Contract]
        for what, run in rows:
            took = seconds(run)
            print(f"  {what:24} {events / took:10,.0f} events/s {entries / took:10,.0f} operations/s")
    print(f"reference: {SEEDS} runs of {LIVE_STEPS} steps, medians of {ROUNDS} rounds")
    live: list[tuple[str, Callable[[], int]]] = [("alone", lambda: run_live(None, recorded=False)), ("recorded", lambda: run_live(None))]
    live += [(f"monitor, {contract}", lambda contract=contract: run_live(contract)) for contract in Contract]
    for what, run in live:
        done = run()
        print(f"  {what:24} {done / seconds(run):10,.0f} operations/s")


if __name__ == "__main__":
    main()
