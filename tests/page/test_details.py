"""What pictures tell of rare events: names that come again, gaps, several handles, tables behind a fence, sinks."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any
from xml.etree import ElementTree

import pytest
from hostile import CONTROL, MARKUP
from traces import recorded, short_trace

from settled.model import events as ev
from settled.model.disciplines import DISCIPLINES
from settled.model.properties import Contract
from settled.model.specs import KVCacheSpec, SinkWindowSpec, SlidingWindowSpec
from settled.model.trace_io import printable
from settled.proofs.showing.data import page_data
from settled.proofs.showing.lanes import lanes_of
from settled.proofs.showing.owners import Names, Owners
from settled.proofs.showing.perfetto import perfetto_of
from settled.proofs.showing.story import tell
from settled.proofs.showing.stretches import stretches_of
from settled.proofs.showing.svg import BLOCKS_MAX, EVENTS_MAX, svg_of
from settled.proofs.showing.timeline import Timeline, timeline_of
from settled.proofs.showing.words import words_of

SVG = "{http://www.w3.org/2000/svg}"


def config(spec: KVCacheSpec | None = None, *, lookahead: int = 0) -> ev.Config:
    return ev.Config(
        schema=1,
        engine="hand-made",
        num_blocks=256,
        max_in_flight_steps=3,
        max_batched_tokens=64,
        num_draft_tokens=4,
        prefix_caching=True,
        kv_consumer=True,
        num_lookahead_tokens=lookahead,
        groups=(spec or SlidingWindowSpec(block_size=4, window=4),),
    )


def schedule(step: int, start: int, tokens: int, *new_blocks: int) -> ev.Schedule:
    part = ev.ScheduledRequest(request="A", start=start, tokens=tokens, drafts=0, new_blocks=(new_blocks,), resumed=False)
    return ev.Schedule(step=step, requests=(part,))


def process(step: int) -> ev.Process:
    return ev.Process(step=step, requests=(ev.ProcessedRequest(request="A", sampled=1, rejected=0),))


def allocate(*blocks: int, first: int = 0) -> ev.Allocate:
    return ev.Allocate(request="A", group=0, first_index=first, blocks=blocks)


def release(index: int, block: int, cause: str = "window") -> ev.Release:
    return ev.Release(request="A", group=0, indices=(index,), blocks=(block,), cause=cause, freed=(block,))  # type: ignore[arg-type]


def made(*events: ev.Event, spec: KVCacheSpec | None = None, contract: Contract | None = None) -> Timeline:
    """Of one request, A, on one group; its first event, the add, is at position 1."""
    return timeline_of(list(enumerate([config(spec), ev.Add(request="A", prompt_tokens=9), *events], start=1)), "made", contract)


def taken(*events: ev.Event) -> Owners:
    owners = Owners(Names())
    for position, event in enumerate(events):
        owners.take(position, event)
    return owners


# ---- who holds what --------------------------------------------------------------------------------------------------


def test_a_prune_of_a_table_behind_a_fence_leaves_no_null_entry_in_the_next_one() -> None:
    owners = taken(allocate(1), ev.Preempt(request="A"), release(0, 1))
    assert [(each.block, each.ended, each.end) for each in owners.holdings] == [(1, 1, 2)]


def test_an_eviction_without_a_hash_takes_all_of_them() -> None:
    entries = ev.CacheEntry(block=1, hash="x"), ev.CacheEntry(block=1, hash="y")
    assert taken(ev.Cache(entries=entries), ev.Evict(entries=(ev.CacheEntry(block=1),))).cached == [(1, 0, 1)]


def test_at_a_gap_the_cache_is_forgotten() -> None:
    assert taken(ev.Cache(entries=(ev.CacheEntry(block=1, hash="x"),)), ev.Gap(events=1)).cached == [(1, 0, 1)]


def test_stretches_begin_and_end_where_holders_change() -> None:
    timeline = made(
        allocate(1),
        ev.Hold(holder="pin", kind="pin", blocks=(1,)),
        ev.Drop(holder="pin", blocks=(1,), freed=()),
        release(0, 1),
    )
    assert stretches_of(timeline) == {1: [(2, 3, ["A [0]"]), (3, 4, ["A [0]", "pin"]), (4, 5, ["A [0]"])]}
    assert timeline.owners.holdings[-1].block == 0  # the null entry, which is no block with a row
    names = {each["args"]["name"] for each in traced(timeline) if each["ph"] == "M" and each["name"] == "thread_name"}
    assert "block 1" in names
    assert "block 0" not in names


def test_a_page_knows_where_a_generation_ended() -> None:
    timeline = made(allocate(1), ev.Preempt(request="A"), release(0, 1, "deferred"))
    assert page_data(timeline)["holdings"] == [[1, 0, 0, 0, 2, 4, 3]]


# ---- steps -----------------------------------------------------------------------------------------------------------


def test_a_sink_is_read_beside_the_window() -> None:
    timeline = made(
        allocate(1, 2, 3, 4), schedule(1, 0, 15, 1, 2, 3, 4), schedule(2, 15, 1), spec=SinkWindowSpec(block_size=4, sink=2, window=4)
    )
    assert [(first, last) for first, last, _, _ in timeline.parts[1].uses[0].reads] == [(0, 0), (3, 3)]


def test_after_a_gap_the_look_ahead_is_that_of_the_new_config() -> None:
    def written(events: list[ev.Event]) -> list[list[int]]:
        timeline = timeline_of(list(enumerate(events, start=1)), "made")
        return [[last for _, last, _, _ in part.uses[0].writes] for part in timeline.parts]

    state = ev.State(requests=(), unprocessed=(), tables={})
    run: list[ev.Event] = [ev.Add(request="A", prompt_tokens=9), allocate(1, 2, 3), schedule(1, 0, 4, 1, 2, 3), process(1)]
    assert written([config(), *run, ev.Gap(events=1), config(lookahead=4), state, *run]) == [[0], [1]]


def test_counters_before_an_event_are_not_those_after_it() -> None:
    timeline = made(allocate(1, 2), schedule(1, 0, 4, 1, 2), schedule(2, 4, 1))
    before = timeline.counters_before(0, 3)
    assert before is not None
    assert (before.position, before.computed) == (1, 0)


def test_a_step_number_that_comes_again_is_another_step() -> None:
    state = ev.State(requests=(), unprocessed=(), tables={})
    run: list[ev.Event] = [ev.Add(request="A", prompt_tokens=9), allocate(1, 2), schedule(1, 0, 5, 1, 2), release(0, 1), process(1)]
    trace = list(enumerate([config(), *run, ev.Gap(events=1), config(), state, *run], start=1))
    timeline = timeline_of(trace, "twice", Contract.SETTLED)
    told = [tell(timeline, *each) for each in timeline.violations if each[1].property == "read_resident"]
    assert [(each.scheduled, each.begin, each.end) for each in told] == [(3, 4, 5), (11, 12, 13)]


def test_only_a_prune_is_explained_by_counters() -> None:
    def why(*cause: ev.Event) -> set[bool]:
        timeline = made(allocate(1), schedule(1, 0, 4, 1), *cause, contract=Contract.SETTLED)
        return {bool(tell(timeline, *each).why) for each in timeline.violations if each[1].release_cause}

    assert why(release(0, 1)) == {True}
    assert why(ev.Preempt(request="A"), release(0, 1, "preempt")) == {False}


def test_a_step_that_miscounts_is_told_in_two_chapters() -> None:
    timeline = timeline_of(short_trace(DISCIPLINES["undrained"], 3), "counters")
    position, violation = next(each for each in timeline.violations if each[1].property == "counters_symmetric")
    told = tell(timeline, position, violation)
    assert [(chapter.text, chapter.is_it) for chapter in told.chapters] == [
        ("step 0 of r0 is scheduled: tokens [0, 1)", False),
        ("step 0 processed: r0 1 sampled", True),
    ]


def test_what_became_certain_later_is_marked_where_it_happened() -> None:
    timeline = timeline_of(recorded("v0.25.1-min-spec-reject"), "recorded")
    first = page_data(timeline)["violations"][0]
    assert (first["position"], first["certain"], first["begin"], first["end"]) == (9, 12, 9, 12)


# ---- lanes -----------------------------------------------------------------------------------------------------------


def test_a_transfer_is_over_with_its_last_handle() -> None:
    load = ev.Load(job=1, request="A", blocks=((1,),), handles=2)
    timeline = made(allocate(1), load, ev.Loaded(job=1, ok=True, handle=0), ev.Loaded(job=1, ok=True, handle=1))
    assert [(bar.kind, bar.begin, bar.end) for lane in lanes_of(timeline).lanes for bar in lane.bars] == [("load", 3, 5)]


@pytest.mark.parametrize("gap", [False, True], ids=["op log", "events alone"])
def test_a_job_whose_name_comes_again_is_another_transfer(gap: bool) -> None:
    again = [ev.Load(job=1, request="A", blocks=((1,),)), ev.Loaded(job=1, ok=True)] * 2
    ending: list[ev.Event] = [ev.Gap(events=1)] if gap else []
    lanes = lanes_of(made(allocate(1), *again, *ending))
    assert lanes.note.startswith("from the events alone" if gap else "from the op log")
    assert [(bar.begin, bar.end) for lane in lanes.lanes for bar in lane.bars] == [(3, 4), (5, 6)]


def test_transfers_of_a_state_are_shown_and_those_before_a_gap_end_there() -> None:
    pending = ev.PendingJob(job="x", request="A", blocks=((5,),), kind="store")
    state = ev.State(requests=(), unprocessed=(), tables={}, jobs=(pending,))
    before = ev.Load(job=1, request="A", blocks=((1,),))
    timeline = made(allocate(1), before, ev.Gap(events=2), config(), state, ev.Stored(job="x", ok=True))
    told = [(bar.label, bar.begin, bar.end) for lane in lanes_of(timeline).lanes for bar in lane.bars]
    assert told == [("load 1 for A: block 1", 3, 4), ("store x for A: block 5", 6, 7)]


def test_what_runs_before_a_step_is_over_with_it() -> None:
    timeline = made(allocate(1), ev.Zero(step=1, blocks=(1,)), schedule(1, 0, 4, 1), process(1))
    (compute,) = lanes_of(timeline).lanes
    assert [(bar.kind, bar.begin, bar.end) for bar in compute.bars][:2] == [("zero", 3, 5), ("step", 4, 5)]


# ---- files -----------------------------------------------------------------------------------------------------------


def traced(timeline: Timeline) -> list[dict[str, Any]]:
    told = json.loads(perfetto_of(timeline))["traceEvents"]
    assert isinstance(told, list)
    return told


def test_no_text_of_a_page_obeys_a_terminal_or_turns_the_writing() -> None:
    """Nor do the chapters of a violation. The event itself is spelt by the page."""
    name = MARKUP + CONTROL
    part = ev.ScheduledRequest(request=name, start=0, tokens=5, drafts=0, new_blocks=((1, 2),), resumed=False)
    events: list[ev.Event] = [
        config(),
        ev.Add(request=name, prompt_tokens=5),
        replace(allocate(1, 2), request=name),
        ev.Schedule(step=1, requests=(part,)),
        replace(release(0, 1), request=name),
    ]
    data = page_data(timeline_of(list(enumerate(events, start=1)), f"source {CONTROL}", Contract.SETTLED))
    assert len(data["violations"]) == 1
    assert [json.loads(text)["request"] for text in data["events"].pop("json")[1:3]] == [name, name]
    assert [text for text in strings(data) if printable(text) != text] == []


def strings(data: Any) -> list[str]:
    if isinstance(data, str):
        return [data]
    values = data.values() if isinstance(data, dict) else data if isinstance(data, list) else []
    return [text for value in values for text in strings(value)]


def image(timeline: Timeline) -> ElementTree.Element:
    return ElementTree.fromstring(svg_of(timeline).encode())


def texts(root: ElementTree.Element) -> list[str]:
    return [each.text or "" for each in root.iter(f"{SVG}text")]


def test_an_image_of_a_violation_long_after_its_cause_shows_the_violation() -> None:
    arrivals = [ev.Add(request=f"r{number}", prompt_tokens=1) for number in range(2 * EVENTS_MAX)]
    timeline = made(allocate(1, 2), schedule(1, 0, 4, 1, 2), process(1), release(0, 1), *arrivals, schedule(2, 4, 1))
    lines = [text for text in texts(image(timeline)) if text.isdigit()]
    assert len(lines) <= EVENTS_MAX
    assert str(timeline.violations[0][1].line) in lines


def test_an_image_shows_the_blocks_next_to_the_violated_one() -> None:
    blocks = tuple(range(1, 61))
    timeline = made(allocate(*blocks), schedule(1, 0, 240, *blocks), release(49, 50), contract=Contract.SETTLED)
    shown = [int(text.removeprefix("block ")) for text in texts(image(timeline)) if re.fullmatch(r"block \d+", text)]
    assert len(shown) == BLOCKS_MAX
    assert {48, 49, 50, 51, 52} <= set(shown)


def test_an_image_tells_transfers_from_steps_and_used_blocks_from_others() -> None:
    timeline = made(allocate(1, 2), schedule(1, 0, 4, 1, 2), ev.Load(job=1, request="A", blocks=((2,),)))
    root = image(timeline)
    kinds = [each.get("class") for each in root.iter(f"{SVG}rect")]
    assert (kinds.count("step"), kinds.count("transfer")) == (1, 1)
    held = {each.get("class"): float(each.get("y", "")) for each in root.iter(f"{SVG}rect")}
    used = [float(each.get("y", "")) for each in root.iter(f"{SVG}rect") if each.get("class") == "used"]
    assert used
    assert all(y < held["held"] for y in used)  # block 2 is held, and used by nobody; it comes last


# ---- words -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("event", "words"),
    [
        (ev.Loaded(job=3, ok=False, cancelled=True), "load 3 cancelled"),
        (ev.Loaded(job=3, ok=False, failed=((4,),)), "load 3 failed: block 4"),
        (ev.Stored(job=3, ok=True), "store 3 is over"),
        (
            ev.Release(request="A", group=0, indices=(0, 1), blocks=(5, 6), cause="window", freed=(6,)),
            "A releases blocks 5 to 6 of group 0 (window): 1 back in the pool",
        ),
        (allocate(5, 6, first=2), "A takes blocks 5 to 6 as [2] to [3] of group 0"),
        (allocate(5), "A takes block 5 as [0] of group 0"),
    ],
)
def test_words_of(event: ev.Event, words: str) -> None:
    assert words_of(event) == words
