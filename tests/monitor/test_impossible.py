"""What cannot have happened is no verdict but a TraceError that names the line: it says that the recorder is wrong, not the engine."""

from __future__ import annotations

from typing import Any

import pytest

from settled.model import events as ev
from settled.model.monitor import Monitor
from settled.model.trace_io import TraceError


def _store(job: Any = 3, **keys: Any) -> ev.Store:
    return ev.Store(job=job, request="A", blocks=((1,),), **keys)


def _move(from_index: int, to_index: int) -> ev.Move:
    return ev.Move(request="A", group=0, from_index=from_index, to_index=to_index, block=1)


def _running(trace: Any, kit: Any) -> Any:
    """A is in step 1, so it is alive whatever happens."""
    return trace.allocate(1).schedule(1, kit.entry(0, 4, [1]))


def _with_state(trace: Any, **changes: Any) -> Any:
    """The trace begins in mid-run instead: step 7 of A is in flight, live or stale."""
    part = ev.UnprocessedRequest(request="A", start=0, tokens=4, drafts=0, rows=((1,),), live=changes.pop("live", True))
    counters = changes.pop("counters", (4, 4, 0))
    known = ev.RequestState(request="A", prompt_tokens=8, **dict(zip(("computed", "in_flight", "stale"), counters, strict=True)))
    keys = {"unprocessed": (ev.UnprocessedStep(step=7, requests=(part,) * changes.pop("times", 1)),), **changes}
    trace.events[1:] = [ev.State(requests=(known,), tables={"A": ((1,),)}, **keys)]
    return trace


JOB = ev.PendingJob(job=1, request="A", blocks=((1,),))
IMPOSSIBLE = {
    "a finish after a finish": (lambda t, k: _running(t, k).finish().finish(), "'A' is finished: expected nothing but releases"),
    "a preemption after a finish": (lambda t, k: _running(t, k).finish().put(ev.Preempt(request="A")), "'A' is finished"),
    "a count after a finish": (
        lambda t, k: _running(t, k).finish().put(ev.Computed(request="A", computed=0, cause="session", stale=False)),
        "'A' is finished",
    ),
    "fresh blocks after a finish": (lambda t, k: _running(t, k).finish().allocate(2, first=1), "'A' is finished"),
    "a hit after a finish": (lambda t, k: _running(t, k).finish().touch(2, first=1), "'A' is finished"),
    "a move after a finish": (lambda t, k: _running(t, k).finish().put(_move(0, 1)), "'A' is finished"),
    "a finish of nobody": (lambda t, k: t.finish("Z"), "unknown request 'Z'"),
    "a move onto itself": (lambda t, k: t.allocate(1).put(_move(0, 0)), "moves from index 0 to 0: expected another index"),
    "a move below the table": (lambda t, k: t.allocate(1).put(_move(0, -1)), "moves from index 0 to -1"),
    "a request twice in a step": (
        lambda t, k: t.allocate(1).schedule(1, k.entry(0, 2, [1]), k.entry(2, 2)),
        "step 1 names 1 requests in 2 entries: expected each once",
    ),
    "a request twice in an output": (
        lambda t, k: _running(t, k).process(1, k.output(), k.output()),
        "step 1 has 2 outputs of 1 requests: expected each once",
    ),
    "a request without an output": (lambda t, k: _running(t, k).process(1), "'A' has no output of step 1"),
    "more drafts than the engine makes": (
        lambda t, k: t.allocate(1, 2).schedule(1, k.entry(0, 8, [1, 2], drafts=5)),
        "has 5 drafts: expected at most 4 (num_draft_tokens)",
    ),
    "more steps in flight than the engine has": (
        lambda t, k: _running(t, k).schedule(2, k.entry(4, 1)).schedule(3, k.entry(5, 1)),
        "2 steps are unprocessed already: expected no more (max_in_flight_steps)",
    ),
    "reads of too many groups": (
        lambda t, k: t.schedule(1, k.entry(0, 4, [], reads=((0,), (0,)))),
        "reads has 2 lists: expected one a group",
    ),
    "writes of no group": (lambda t, k: t.schedule(1, k.entry(0, 4, [], writes=())), "writes has 0 lists: expected one a group, 1"),
    "a cached group past the config": (
        lambda t, k: t.put(ev.Cache(entries=(ev.CacheEntry(block=1, group=1),))),
        "group 1 is out of range: expected 0 to 0",
    ),
    "an evicted group past the config": (
        lambda t, k: t.put(ev.Evict(entries=(ev.CacheEntry(block=1, group=-1),))),
        "group -1 is out of range",
    ),
    "a load for nobody": (lambda t, k: t.load(1, 1, request="Z"), "unknown request 'Z'"),
    "a store for nobody": (lambda t, k: t.put(ev.Store(job=1, request="Z", blocks=((1,),))), "unknown request 'Z'"),
    "a store that ends as a load": (lambda t, k: t.put(_store()).put(ev.Loaded(job=3, ok=True)), "job 3 is a store: expected a load"),
    "a load that ends as a store": (
        lambda t, k: t.load("j", 1, request="A").put(ev.Stored(job="j", ok=True)),
        "job 'j' is a load: expected a store",
    ),
    "a handle that ends twice": (
        lambda t, k: t.put(_store(handles=3)).put(ev.Stored(job=3, ok=True, handle="h")).put(ev.Stored(job=3, ok=True, handle="h")),
        "handle 'h' of job 3 is over already",
    ),
    "a handle too many": (lambda t, k: t.put(_store()).put(ev.Stored(job=3, ok=True)).put(ev.Stored(job=3, ok=True)), "unknown job 3"),
    "a load and a store of one name": (lambda t, k: t.load(3, 1, request="A").put(_store()), "job 3 is under way already"),
    **{
        f"{name} after nothing": (spoil, "names None as step, None as job: expected one of the two")
        for name, spoil in {
            "a fresh block": lambda t, k: t.allocate(1, after=(ev.After(),)),
            "a step": lambda t, k: t.put(ev.Schedule(step=1, requests=(), after=(ev.After(),))),
            "a load": lambda t, k: t.load(1, 1, request="A", after=(ev.After(),)),
            "a store": lambda t, k: t.put(_store(after=(ev.After(),))),
            "a copy": lambda t, k: t.put(ev.Copy(step=1, group=0, source=1, target=2, after=(ev.After(),))),
            "zeroing": lambda t, k: t.put(ev.Zero(step=1, blocks=(1,), after=(ev.After(),))),
        }.items()
    },
    "a load after both": (lambda t, k: t.load(1, 1, request="A", after=(ev.After(step=1, job=2),)), "names 1 as step, 2 as job"),
    "a negative counter at the start": (lambda t, k: _with_state(t, counters=(-1, 4, 0)), "computed must be at least 0, not -1"),
    "in flight without a step": (
        lambda t, k: _with_state(t, counters=(5, 5, 0)),
        "counts 5 tokens in flight, 0 of them stale: expected 4 and 0, by its unprocessed steps",
    ),
    "stale without a stale step": (lambda t, k: _with_state(t, counters=(4, 4, 4)), "expected 4 and 0"),
    "a stale step that is not counted": (lambda t, k: _with_state(t, live=False), "expected 4 and 4"),
    "a request twice in a step at the start": (lambda t, k: _with_state(t, times=2), "step 7 names a request twice"),
    "a job twice at the start": (lambda t, k: _with_state(t, jobs=(JOB, JOB)), "job 1 stands twice in the state"),
    "a job past the pool": (
        lambda t, k: _with_state(t, jobs=(ev.PendingJob(job=1, request="A", blocks=((99,),)),)),
        "block 99 is out of range",
    ),
    "a job of too many groups": (
        lambda t, k: _with_state(t, jobs=(ev.PendingJob(job=1, request="A", blocks=((), ())),)),
        "blocks of job 1 has 2 lists: expected one a group",
    ),
    "a job without handles at the start": (
        lambda t, k: _with_state(t, jobs=(ev.PendingJob(job=1, request="A", blocks=((),), handles=0),)),
        "job 1 has 0 handles: expected at least 1",
    ),
    "a cached group past the config at the start": (
        lambda t, k: _with_state(t, cached=(ev.CacheEntry(block=1, group=3),)),
        "group 3 is out of range",
    ),
    "a step below 0 at the start": (
        lambda t, k: _with_state(
            t,
            unprocessed=(
                ev.UnprocessedStep(
                    step=1,
                    requests=(ev.UnprocessedRequest(request="A", start=0, tokens=0, drafts=0, rows=((),), live=True),),
                ),
            ),
        ),
        "expected start >= 0, tokens >= 1 and 0 <= drafts <= tokens in its step",
    ),
}


@pytest.mark.parametrize("name", IMPOSSIBLE)
def test_the_impossible_is_named(kit: Any, name: str) -> None:
    spoil, message = IMPOSSIBLE[name]
    *events, last = spoil(kit.Builder().add(), kit).events
    monitor = Monitor(events[0], source="t")
    for line, event in enumerate(events, start=1):
        monitor.feed(line, event)
    with pytest.raises(TraceError) as error:
        monitor.feed(len(events) + 1, last)
    if "counter at the start" not in name:  # there the reader of lines has the first word
        assert message in str(error.value)
    assert str(error.value).startswith(f"t:{len(events) + 1}: {last.name}: ")


def test_what_is_just_possible_is_not_rejected(kit: Any) -> None:
    """The pipeline is full but for steps without requests; a handle may have no name; a job's name comes back once it is over."""
    trace = _running(kit.Builder().add(), kit).schedule(2, kit.entry(4, 1)).schedule(3).schedule(4)
    trace.process(1, kit.output()).process(2, kit.output()).process(3).process(4)
    trace.put(_store(handles=2)).put(ev.Stored(job=3, ok=True)).put(ev.Stored(job=3, ok=True)).put(_store())
    trace.put(ev.Stored(job=3, ok=True)).finish().put(_store(4)).put(ev.Stored(job=4, ok=True))
    assert "single_owner" not in trace.release({0: 1}, "finish").found()
    assert _with_state(kit.Builder(), counters=(0, 4, 4), live=False, jobs=(JOB,)).found() == {}
