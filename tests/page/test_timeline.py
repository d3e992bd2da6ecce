"""What a picture of a trace is made of: who holds what, what steps read, where they truly start, what is violated."""

from __future__ import annotations

import pytest
from traces import long_trace, recorded, short_trace

from settled.model import events as ev
from settled.model.disciplines import DISCIPLINES, RIGHT
from settled.model.properties import Contract, Property
from settled.model.specs import FullAttentionSpec, KVCacheSpec, SlidingWindowSpec
from settled.model.trace_io import TraceError
from settled.proofs.showing.data import group_text, page_data
from settled.proofs.showing.lanes import lanes_of
from settled.proofs.showing.story import tell
from settled.proofs.showing.timeline import VIOLATIONS_MAX, Timeline, timeline_of
from settled.proofs.showing.words import NAMED_MAX, blocks_text, words_of

WINDOW = SlidingWindowSpec(block_size=4, window=4)


def config(*groups: KVCacheSpec, records: tuple[str, ...] = ()) -> ev.Config:
    return ev.Config(
        schema=1,
        engine="hand-made",
        num_blocks=64,
        max_in_flight_steps=3,
        max_batched_tokens=64,
        num_draft_tokens=4,
        prefix_caching=True,
        kv_consumer=True,
        groups=groups or (WINDOW,),
        records=records,
    )


def schedule(step: int, start: int, tokens: int, *new_blocks: int, drafts: int = 0, resumed: bool = False) -> ev.Schedule:
    part = ev.ScheduledRequest(request="A", start=start, tokens=tokens, drafts=drafts, new_blocks=(new_blocks,), resumed=resumed)
    return ev.Schedule(step=step, requests=(part,))


def process(step: int, rejected: int = 0) -> ev.Process:
    return ev.Process(step=step, requests=(ev.ProcessedRequest(request="A", sampled=1, rejected=rejected),))


def allocate(*blocks: int, first: int = 0, request: str = "A") -> ev.Allocate:
    return ev.Allocate(request=request, group=0, first_index=first, blocks=blocks)


def release(index: int, block: int, cause: str = "window", *, is_freed: bool = True) -> ev.Release:
    freed = (block,) if is_freed else ()
    return ev.Release(request="A", group=0, indices=(index,), blocks=(block,), cause=cause, freed=freed)  # type: ignore[arg-type]


def made(*events: ev.Event, spec: KVCacheSpec = WINDOW, contract: Contract | None = None) -> Timeline:
    """Of one request, A, on one group; its first event, the add, is at position 1."""
    return timeline_of(list(enumerate([config(spec), ev.Add(request="A", prompt_tokens=9), *events], start=1)), "made", contract)


def held(timeline: Timeline, block: int) -> list[tuple[str, int, int, int | None]]:
    """Who, at which index, from where to where."""
    names = timeline.names.names
    return [(names[each.owner], each.index, each.begin, each.end) for each in timeline.owners.holdings if each.block == block]


# ---- who holds what --------------------------------------------------------------------------------------------------


def test_a_prune_leaves_a_null_entry_until_the_table_goes() -> None:
    timeline = made(allocate(1, 2), release(0, 1), ev.Finish(request="A", reason="stop"), release(1, 2, "finish"))
    assert held(timeline, 1) == [("A", 0, 2, 3)]
    assert held(timeline, 2) == [("A", 1, 2, 5)]
    assert held(timeline, 0) == [("A", 0, 3, 4)]


def test_what_a_fence_keeps_is_told_from_what_the_next_generation_holds() -> None:
    timeline = made(
        allocate(1),
        schedule(1, 0, 4, 1),
        ev.Preempt(request="A"),
        allocate(2),
        release(0, 1, "deferred"),
    )
    (fenced,) = [each for each in timeline.owners.holdings if each.block == 1]
    assert (fenced.begin, fenced.ended, fenced.end) == (2, 4, 6)
    (fresh,) = [each for each in timeline.owners.holdings if each.block == 2]
    assert (fresh.begin, fresh.ended, fresh.end) == (5, None, None)


@pytest.mark.parametrize(("cause", "closed"), [("deferred", 0), ("window", 1)])
def test_the_same_block_at_the_same_index_is_held_by_two_generations(cause: str, closed: int) -> None:
    """What a fence kept is hit again by the request that it was kept for."""
    hit = ev.Touch(request="A", group=0, first_index=0, blocks=(1,))
    held_on = ev.Hold(holder="x", kind="pin", blocks=(1,))
    timeline = made(allocate(1), schedule(1, 0, 4, 1), held_on, ev.Preempt(request="A"), hit, release(0, 1, cause, is_freed=False))
    both = [each for each in timeline.owners.holdings if each.block == 1 and each.index == 0]
    assert [(each.begin, each.ended) for each in both] == [(2, 5), (6, None)]
    assert [each.end for each in both] == [7 if number == closed else None for number in range(2)]


def test_several_hold_a_block_at_once() -> None:
    timeline = made(
        allocate(1),
        ev.Add(request="B", prompt_tokens=9),
        ev.Touch(request="B", group=0, first_index=0, blocks=(1,)),
        ev.Hold(holder="job 1", kind="pin", blocks=(1,)),
        release(0, 1, "finish", is_freed=False),
        ev.Drop(holder="job 1", blocks=(1,), freed=()),
    )
    assert held(timeline, 1) == [("A", 0, 2, 6), ("B", 0, 4, None), ("job 1", -1, 5, 7)]
    assert timeline.names.is_request == [True, True, False]


def test_a_move_leaves_a_null_entry() -> None:
    timeline = made(allocate(1), ev.Move(request="A", group=0, from_index=0, to_index=2, block=1))
    assert held(timeline, 1) == [("A", 0, 2, 3), ("A", 2, 3, None)]
    assert held(timeline, 0) == [("A", 0, 3, None)]


def test_a_block_is_in_the_cache_until_its_last_hash_goes() -> None:
    entry, other = ev.CacheEntry(block=1, hash="x"), ev.CacheEntry(block=1, hash="y")
    timeline = made(allocate(1), ev.Cache(entries=(entry, other)), ev.Evict(entries=(entry,)), ev.Evict(entries=(other,)))
    assert timeline.owners.cached == [(1, 3, 5)]
    assert made(allocate(1), ev.Cache(entries=(entry,))).owners.cached == [(1, 3, None)]


# ---- what steps read -------------------------------------------------------------------------------------------------


def test_a_step_reads_through_its_window_and_writes_its_own_tokens() -> None:
    timeline = made(allocate(1, 2, 3), schedule(1, 0, 9, 1, 2, 3), process(1), schedule(2, 9, 1), process(2))
    first, second = timeline.parts
    assert (first.begin, first.end, second.begin, second.end) == (3, 4, 5, 6)
    assert (first.uses[0].reads, first.uses[0].writes) == ([(0, 2, 0, 8)], [(0, 2, 0, 8)])
    assert (second.uses[0].reads, second.uses[0].writes) == ([(1, 2, 6, 9)], [(2, 2, 9, 9)])
    assert timeline.rows.rows[second.uses[0].row] == [1, 2, 3]


def test_full_attention_reads_all_that_is_there() -> None:
    timeline = made(allocate(1, 2, 3), schedule(1, 0, 9, 1, 2, 3), schedule(2, 9, 1), spec=FullAttentionSpec(block_size=4))
    assert timeline.parts[1].uses[0].reads == [(0, 2, 0, 9)]


def test_the_true_start_is_that_after_the_rejections_before_it() -> None:
    timeline = made(
        allocate(1, 2, 3, 4), schedule(1, 0, 9, 1, 2, 3, 4), schedule(2, 9, 5, drafts=4), schedule(3, 14, 1), process(1), process(2, 3)
    )
    last = timeline.parts[-1]
    assert (last.scheduled, last.start) == (14, 11)
    assert last.uses[0].reads == [(2, 2, 8, 11)]


def test_counters_are_those_after_each_event() -> None:
    timeline = made(
        allocate(1, 2, 3, 4), schedule(1, 0, 9, 1, 2, 3, 4), schedule(2, 9, 5, drafts=4), process(1), ev.Preempt(request="A"), process(2, 4)
    )
    told = [(each.position, each.computed, each.in_flight, each.stale, each.settled) for each in timeline.counters[0]]
    assert told == [(1, 0, 0, 0, 0), (3, 9, 9, 0, 0), (4, 14, 14, 0, 0), (5, 14, 5, 0, 9), (6, 0, 5, 5, 0), (7, 0, 0, 0, 0)]


# ---- what is violated ------------------------------------------------------------------------------------------------


def test_a_violation_is_told_from_its_cause_to_its_end() -> None:
    timeline = made(allocate(1, 2), schedule(1, 0, 5, 1, 2), release(0, 1), process(1), contract=Contract.SETTLED)
    ((position, violation),) = [each for each in timeline.violations if each[1].property is Property.READ_RESIDENT]
    told = tell(timeline, position, violation)
    assert (told.begin, told.end, told.scheduled) == (4, 5, 3)
    assert [(chapter.position, chapter.is_it) for chapter in told.chapters] == [(3, False), (4, True), (5, False)]
    assert told.why == "When it was freed, 5 tokens counted as computed, 5 were in flight, 0 were settled."


def test_rejections_after_the_schedule_are_part_of_the_story() -> None:
    timeline = timeline_of(recorded("v0.25.1-min-spec-reject"), "recorded")
    told = tell(timeline, *timeline.violations[0])
    assert [(timeline.events[chapter.position][0], chapter.text) for chapter in told.chapters] == [
        (9, "A lets go of block 2 (window)"),
        (10, "step 3 of A is scheduled: tokens [65, 70)"),
        (11, "step 2 rejects 4 of A's drafts: step 3 truly starts at token 61"),
        (13, "only here the host knows that step 3 is over"),
    ]
    assert [timeline.events[chapter.position][0] for chapter in told.chapters if chapter.is_it] == [10]
    assert timeline.num_violations == 10


def test_a_chapter_says_what_broke_the_property() -> None:
    timeline = timeline_of(short_trace(DISCIPLINES["drafts-unpruned"], 5), "bounds")
    position, violation = next(each for each in timeline.violations if each[1].cause == "below_need")
    assert [chapter.text for chapter in tell(timeline, position, violation).chapters] == [f"r0 still holds block {violation.block}"]
    timeline = made(allocate(1), ev.End(idle=True))
    position, violation = timeline.violations[0]
    assert tell(timeline, position, violation).chapters[-1].text == "end of the trace, nothing in flight"


def test_the_verdict_is_that_of_the_monitor_under_the_contract_that_was_asked_for() -> None:
    trace = recorded("v0.25.1-connector-overwrite")
    assert timeline_of(trace, "recorded").report.result(Property.READ_RESIDENT).count == 34
    asked = timeline_of(trace, "recorded", Contract.STREAM_ORDER)
    assert (asked.contract, asked.is_default_contract) == (Contract.STREAM_ORDER, False)
    assert asked.report.result(Property.READ_RESIDENT).count < 34


def test_many_violations_are_counted_and_the_first_are_kept() -> None:
    timeline = timeline_of(long_trace(600), "long")
    assert timeline.num_violations > VIOLATIONS_MAX == len(timeline.violations)
    assert [found.line for _, found in timeline.violations] == sorted(found.line for _, found in timeline.violations)


def test_an_impossible_event_is_an_error_as_in_a_check() -> None:
    with pytest.raises(TraceError, match=r"made:3: process: step 1 is not unprocessed"):
        made(process(1))


def test_after_a_gap_the_state_is_what_is_known() -> None:
    state = ev.State(
        requests=(ev.RequestState(request="A", prompt_tokens=9, computed=9, in_flight=1, stale=0),),
        unprocessed=(
            ev.UnprocessedStep(
                step=7,
                requests=(ev.UnprocessedRequest(request="A", start=8, tokens=1, drafts=0, rows=((5, 6, 7),), live=True),),
            ),
        ),
        tables={"A": ((5, 6, 7),)},
    )
    timeline = made(allocate(1), schedule(1, 0, 4, 1), ev.Gap(events=3), config(), state, process(7))
    assert held(timeline, 1) == [("A", 0, 2, 4)]
    assert held(timeline, 6) == [("A", 1, 6, None)]
    assert [(part.step, part.begin, part.end) for part in timeline.parts] == [(1, 3, 4), (7, 6, 7)]
    assert page_data(timeline)["lanes"]["note"].startswith("from the events alone")


# ---- lanes -----------------------------------------------------------------------------------------------------------


def test_lanes_are_the_streams_of_the_op_log() -> None:
    lanes = lanes_of(timeline_of(recorded("v0.25.1-connector-overwrite"), "recorded"))
    assert [lane.name for lane in lanes.lanes] == ["compute", "transfer 0", "transfer 1"]
    assert lanes.note.startswith("from the op log")
    for lane in lanes.lanes:
        for one, other in zip(lane.bars, lane.bars[1:], strict=False):
            assert one.slot != other.slot or one.end is None or one.end <= other.begin


def test_a_load_that_waits_for_a_step_is_joined_to_it() -> None:
    waiting = ev.Load(job=1, request="A", blocks=((3,),), after=(ev.After(step=1),))
    events = [config(records=("order",)), ev.Add(request="A", prompt_tokens=9), allocate(1, 2, 3), schedule(1, 0, 4, 1, 2, 3), waiting]
    lanes = lanes_of(timeline_of(list(enumerate([*events, process(1), ev.Loaded(job=1, ok=True)], start=1)), "made"))
    assert [(edge.lane, edge.of, edge.to_lane, edge.to) for edge in lanes.waits] == [(0, 0, 1, 0)]
    assert [(bar.kind, bar.begin, bar.end) for lane in lanes.lanes for bar in lane.bars] == [("step", 3, 5), ("load", 4, 6)]


def test_without_an_op_log_lanes_come_from_the_events() -> None:
    """The lowering does not know the request; the monitor, which knows the state, does."""
    whole = recorded("v0.25.1-min-spec-reject")
    renumbered = [(line + 1, event) for line, event in whole[1:]]
    state = (2, ev.State(requests=(), unprocessed=(), tables={}))
    lanes = lanes_of(timeline_of([whole[0], state, *renumbered], "mid-run"))
    assert [lane.name for lane in lanes.lanes] == ["compute"]
    assert len(lanes.lanes[0].bars) == len([event for _, event in whole if isinstance(event, ev.Schedule) and event.requests])


# ---- words -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("blocks", "text"),
    [((), "no block"), ((3,), "block 3"), ((1, 2, 3, 7), "blocks 1 to 3, 7"), ((9, 8, 1, 3, 5, 7), "blocks 9, 8, 1, 3 and 2 more")],
)
def test_blocks_are_named_by_ranges(blocks: tuple[int, ...], text: str) -> None:
    assert blocks_text(blocks) == text
    assert text.count(",") < NAMED_MAX


def test_every_event_has_words_of_its_own() -> None:
    events = [event for name in ("v0.33.0-conn-apc-spec", "v0.25.1-mamba-align-spec") for _, event in recorded(name)]
    events += [event for _, event in long_trace(3000, RIGHT)]
    told = {type(event): words_of(event) for event in events}
    assert len(told) >= 15
    assert not {words for kind, words in told.items() if words == kind.name}


def test_a_group_is_told_by_its_parameters() -> None:
    assert group_text(SlidingWindowSpec(block_size=16, window=32)) == "sliding_window, blocks of 16, window 32"
