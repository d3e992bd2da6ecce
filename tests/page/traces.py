"""Traces for pages: recorded ones, and long ones of the reference."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from settled.model import events as ev
from settled.model.disciplines import OPTIMISTIC, Discipline
from settled.model.trace_io import read_trace
from settled.reference.workload import random_workload, run_workload

RECORDED = Path(__file__).parents[1] / "data" / "traces"
SEED, KINDS = 7, ("sliding_window", "full")  # three groups, four steps in flight
BLOCKS = 400

Trace = list[tuple[int, ev.Event]]


def recorded(name: str) -> Trace:
    """A trace that a release of vLLM left."""
    with (RECORDED / f"{name}.ndjson").open("rb") as lines:
        return list(read_trace(lines, name))


def long_trace(events_max: int, discipline: Discipline = OPTIMISTIC) -> Trace:
    """A run of the reference under a discipline that breaks properties, cut to so many events."""
    events: list[ev.Event] = []
    workload = random_workload(SEED, kinds=KINDS)
    config = replace(workload.config, num_blocks=BLOCKS)
    run_workload(replace(workload, config=config), discipline=discipline, steps=events_max // 5, sink=events.append)
    assert len(events) >= events_max, f"{len(events)} events: expected {events_max}"
    return list(enumerate(events[:events_max], start=1))


def short_trace(discipline: Discipline, seed: int, steps: int = 15) -> Trace:
    """A run of the reference on kinds of all sorts."""
    events: list[ev.Event] = []
    run_workload(random_workload(seed), discipline=discipline, steps=steps, sink=events.append)
    return list(enumerate(events, start=1))
