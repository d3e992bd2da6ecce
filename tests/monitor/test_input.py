"""Bad input raises one TraceError that names the line; extensions are ignored; rotation and gaps are understood."""

from __future__ import annotations

from typing import Any

import pytest

from settled.model import events as ev
from settled.model.monitor import Monitor, Verdict
from settled.model.properties import Contract, Property
from settled.model.trace_io import TraceError, read_trace


def _feed(text: str) -> Monitor:
    events = read_trace(text.splitlines(), "t")
    line, config = next(events)
    assert isinstance(config, ev.Config)
    monitor = Monitor(config, source="t")
    monitor.feed(line, config)
    for line, event in events:
        monitor.feed(line, event)
    return monitor


BAD = {
    "an unknown request": (lambda t, k: t.schedule(1, k.entry(0, 4, request="Z")), "unknown request 'Z'"),
    "a request added twice": (lambda t, k: t.add("A"), "was added before"),
    "a block past the pool": (lambda t, k: t.allocate(32), "block 32 is out of range: expected 0 to 31"),
    "a negative block": (lambda t, k: t.release({0: -1}), "block -1 is out of range"),
    "a group past the config": (lambda t, k: t.allocate(1, group=1), "group 1 is out of range: expected 0 to 0"),
    "a negative index": (lambda t, k: t.allocate(1, first=-1), "first_index must be at least 0, not -1"),
    "too many row lists": (lambda t, k: t.schedule(1, k.entry(0, 4, [1], [2])), "new_blocks has 2 lists: expected one a group, 1"),
    "a block past the pool in a row": (lambda t, k: t.schedule(1, k.entry(0, 4, [99])), "block 99 is out of range"),
    "no tokens": (lambda t, k: t.schedule(1, k.entry(0, 0)), "expected start >= 0, tokens >= 1"),
    "more drafts than tokens": (lambda t, k: t.schedule(1, k.entry(0, 1, drafts=2)), "0 <= drafts <= tokens"),
    "a step twice": (lambda t, k: t.schedule(1).schedule(1), "step 1 is unprocessed already"),
    "a step that was not scheduled": (lambda t, k: t.process(5), "step 5 is not unprocessed"),
    "steps out of order": (lambda t, k: t.schedule(1).schedule(2).process(2), "processed before step 1: expected schedule order"),
    "an output of another request": (lambda t, k: t.schedule(1).process(1, k.output()), "'A' has an output of step 1"),
    "more rejected than drafted": (
        lambda t, k: t.allocate(1).schedule(1, k.entry(0, 4, [1])).process(1, k.output(rejected=1)),
        "rejects 1: expected 0 to the step's 0 drafts",
    ),
    "a step of a finished request": (
        lambda t, k: t.allocate(1).finish().schedule(1, k.entry(0, 4, [1])),
        "is finished: expected no further step",
    ),
    "indices without blocks": (
        lambda t, k: t.put(ev.Release(request="A", group=0, indices=(0, 1), blocks=(1,), cause="window", freed=())),
        "2 indices and 1 blocks",
    ),
    "a negative count": (
        lambda t, k: t.put(ev.Computed(request="A", computed=-1, cause="hit", stale=False)),
        "computed must be at least 0, not -1",
    ),
    "an unknown job": (lambda t, k: t.put(ev.Loaded(job=3, ok=True)), "unknown job 3"),
    "a job twice": (lambda t, k: t.load(3, 1, request="A").load(3, 1, request="A"), "job 3 is under way already"),
    "a job without handles": (lambda t, k: t.load(3, 1, request="A", handles=0), "expected at least 1"),
    "a second config": (lambda t, k: t.put(t.config), "expected on the first line, or after a gap"),
    "a state in the middle": (
        lambda t, k: t.put(ev.State(requests=(), unprocessed=(), tables={})),
        "expected directly after a config only",
    ),
    "anything after the end": (lambda t, k: t.end().add("B"), "the trace has ended"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_events_name_their_line(kit: Any, name: str) -> None:
    spoil, message = BAD[name]
    trace = spoil(kit.Builder().add(), kit)
    with pytest.raises(TraceError) as error:
        _feed(trace.text())
    assert message in str(error.value)
    assert str(error.value).startswith(f"t:{len(trace.events)}: {trace.events[-1].name}: ")


def test_every_event_of_the_schema_is_accepted(kit: Any) -> None:
    trace = kit.Builder().add().allocate(1, 2).put(ev.Cache(entries=(ev.CacheEntry(block=1, hash="h"),)))
    trace.put(ev.Zero(step=1, blocks=(1,))).put(ev.Copy(step=1, group=0, source=1, target=2))
    trace.put(ev.Hold(holder="h", kind="pin", blocks=(1,))).put(ev.Drop(holder="h", blocks=(1,), freed=()))
    trace.put(ev.Evict(entries=(ev.CacheEntry(block=1),))).load(1, 1, request="A", handles=2)
    trace.put(ev.Loaded(job=1, ok=True, handle=0)).put(ev.Loaded(job=1, ok=False, failed=((1,),)))
    trace.put(ev.Store(job="s", request="A", blocks=((1,),))).put(ev.Stored(job="s", ok=True, cancelled=True))
    trace.put(ev.Computed(request="A", computed=4, cause="hit", stale=False)).schedule(1, kit.entry(4, 1, [1, 2]))
    trace.process(1, kit.output()).touch(3, first=2).put(ev.Move(request="A", group=0, from_index=2, to_index=3, block=3))
    trace.finish(reason="length").release({0: 1, 1: 2, 3: 3}, "finish").end(idle=True)
    assert _feed(trace.text()).finish().exit_code == 0


def test_extension_events_and_unknown_keys_are_ignored(kit: Any) -> None:
    trace = kit.Builder().add().allocate(1).schedule(1, kit.entry(0, 4, [1])).process(1, kit.output()).finish()
    lines = trace.release({0: 1}, "finish").end(idle=True).text().splitlines()
    lines.insert(1, '{"event":"x_mine","request":7}')
    lines[2] = lines[2].replace("{", '{"colour":"blue",', 1)
    report = _feed("\n".join(lines)).finish()
    assert (report.exit_code, report.events) == (0, 8)


# ---- rotation and gaps -----------------------------------------------------------------------------------------------

STATE = ev.State(
    requests=(ev.RequestState(request="A", prompt_tokens=8, computed=9, in_flight=1, stale=0),),
    unprocessed=(
        ev.UnprocessedStep(
            step=2,
            requests=(ev.UnprocessedRequest(request="A", start=8, tokens=1, drafts=0, rows=((1, 2, 3),), live=True),),
        ),
    ),
    tables={"A": ((0, 2, 3),), "gone": ((4,),)},
    holders=(ev.Hold(holder="pin", kind="pin", blocks=(5,)),),
    cached=(ev.CacheEntry(block=2),),
    jobs=(ev.PendingJob(job=1, request="A", blocks=((),)),),
)


def test_a_trace_that_starts_in_mid_run(kit: Any) -> None:
    trace = kit.Builder().put(STATE).put(ev.Loaded(job=1, ok=True)).release({0: 4}, "deferred", request="gone")
    trace.process(2, kit.output()).schedule(3, kit.entry(9, 1)).process(3, kit.output())
    trace.put(ev.Drop(holder="pin", blocks=(5,), freed=(5,))).finish().release({1: 2, 2: 3}, "finish").end(idle=True)
    assert trace.judge(Contract.SETTLED).exit_code == 0
    assert trace.found(Contract.SETTLED) == {}


def test_a_step_in_flight_at_the_start_is_watched(kit: Any) -> None:
    assert kit.Builder().put(STATE).release({1: 2}).found(Contract.SETTLED) == {"read_resident": {"freed[window]": 1}}
    lost = ev.State(requests=STATE.requests, unprocessed=STATE.unprocessed, tables={"A": ((0, 0, 3),)})
    trace = kit.Builder().put(lost).add("B").allocate(2, request="B")
    assert trace.found(Contract.SETTLED) == {"read_resident": {"reallocated[never released]": 1}}


def test_after_a_gap_nothing_is_known_until_config_and_state(kit: Any) -> None:
    trace = kit.Builder().add().allocate(1).put(ev.Gap(events=5)).allocate(1, request="nobody").release({7: 9})
    report = trace.judge()
    assert report.exit_code == 3
    assert report.result(Property.SINGLE_OWNER).verdict is Verdict.UNDECIDED
    assert report.unknown == ("the recorder lost events (1 gap)",)
    trace.put(trace.config).put(STATE).release({1: 2}).end()
    report = trace.judge(Contract.SETTLED)
    assert report.exit_code == 1
    assert report.result(Property.READ_RESIDENT).causes == {"freed[window]": 1}


def test_what_was_open_at_a_gap_is_unknown(kit: Any) -> None:
    trace = kit.Builder().add().allocate(1, 2, 3).schedule(1, kit.entry(0, 7, [1, 2, 3])).process(1, kit.output())
    trace.schedule(2, kit.entry(7, 4, drafts=3)).release({0: 1, 1: 2}).process(2, kit.output(rejected=3))
    report = trace.put(ev.Gap(events=1)).judge(Contract.STREAM_ORDER)
    assert report.unknown[-1] == "the trace stops before 1 possible violation(s) could be decided"


def test_without_an_end_the_report_says_so(kit: Any) -> None:
    trace = kit.Builder().add().allocate(1).schedule(1, kit.entry(0, 4, [1]))
    report = trace.judge()
    assert (report.exit_code, report.complete) == (3, False)
    assert {result.verdict for result in report.properties} == {Verdict.UNDECIDED, Verdict.NOT_CHECKED}
    assert report.remarks == ("the trace has no `end` event: its tail was not judged",)
    report = trace.end().judge()
    assert (report.exit_code, report.complete, report.remarks) == (0, True, ())
    assert {result.verdict for result in report.properties} == {Verdict.HOLDS, Verdict.NOT_CHECKED}


# ---- nothing to judge ------------------------------------------------------------------------------------------------


def test_a_trace_without_any_matter_is_not_checked(kit: Any) -> None:
    report = kit.Builder().end(idle=True).judge()
    assert {result.verdict for result in report.properties} == {Verdict.NOT_CHECKED}
    assert report.exit_code == 3
    assert report.result(Property.READ_RESIDENT).remarks == ("not checked: the trace has no requests in steps",)
    assert report.result(Property.SINGLE_OWNER).remarks == ("not checked: the trace has no blocks taken or given up",)


def test_books_without_steps_and_steps_without_books(kit: Any) -> None:
    report = kit.Builder().add().allocate(1).schedule(1).end().judge()
    assert report.result(Property.SINGLE_OWNER).verdict is Verdict.HOLDS
    assert report.result(Property.READ_RESIDENT).verdict is Verdict.NOT_CHECKED
    assert report.exit_code == 0
    empty = ev.State(requests=(), unprocessed=(), tables={})
    assert kit.Builder().put(empty).end().judge().exit_code == 3
    report = kit.Builder().put(STATE).end().judge()
    assert report.result(Property.SINGLE_OWNER).verdict is report.result(Property.READ_RESIDENT).verdict is Verdict.HOLDS


def test_a_single_property_that_is_not_checked_does_not_hold(kit: Any) -> None:
    trace = kit.Builder().add().allocate(1).end()
    assert trace.judge(properties=[Property.SINGLE_OWNER]).exit_code == 0
    assert trace.judge(properties=[Property.HELD_BOUNDED]).exit_code == 3
