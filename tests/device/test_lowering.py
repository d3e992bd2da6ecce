"""Events to an op log: where steps truly start, what they should find, what waits for what."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from settled.model.events import (
    Add,
    After,
    Allocate,
    Cache,
    CacheEntry,
    Computed,
    Config,
    Copy,
    Event,
    Finish,
    Gap,
    Hold,
    Load,
    Loaded,
    Preempt,
    Process,
    ProcessedRequest,
    Release,
    Schedule,
    ScheduledRequest,
    Store,
    Stored,
    Touch,
    Zero,
)
from settled.model.specs import CrossAttentionSpec, FullAttentionSpec, KVCacheSpec, MambaSpec, SlidingWindowSpec
from settled.reference.device.detector import races
from settled.reference.device.foresight import LoweringError
from settled.reference.device.lowering import lower
from settled.reference.device.ops import (
    COMPUTE,
    FIRST_TRANSFER,
    HOST,
    JANITOR,
    Free,
    HostSync,
    KeysPart,
    Launch,
    LaunchKind,
    OpLog,
    Record,
    StatesPart,
    StepWork,
    TransferWork,
    Wait,
)
from settled.reference.device.orders import LaunchOrder
from settled.reference.device.small_replay import SmallReplay
from settled.reference.device.tags import FAILED, LOADED, LOOKAHEAD, Tag, unpack
from settled.reference.device.worker import ONE_STAGING_BUFFER, TOLD_OF_NULLS, UNAWAITED_LOADS, UNORDERED_STORES, Worker

FULL = FullAttentionSpec(block_size=4)
RECORDS = ("counters", "content", "holds", "copies", "zero", "order")


def config(*groups: KVCacheSpec, depth: int = 2, records: tuple[str, ...] = RECORDS, lookahead: int = 0) -> Config:
    return Config(
        schema=1,
        engine="test",
        num_blocks=32,
        max_in_flight_steps=depth,
        max_batched_tokens=64,
        num_draft_tokens=3,
        prefix_caching=True,
        kv_consumer=True,
        groups=groups or (FULL,),
        num_lookahead_tokens=lookahead,
        records=records,
    )


def schedule(step: int, *shares: tuple[str, int, int, int, tuple[int, ...]], resumed: bool = False) -> Schedule:
    """Shares: request, start, tokens, drafts, new blocks of the one group."""
    entries = [
        ScheduledRequest(request=name, start=start, tokens=tokens, drafts=drafts, new_blocks=(new,), resumed=resumed)
        for name, start, tokens, drafts, new in shares
    ]
    return Schedule(step=step, requests=tuple(entries))


def process(step: int, *outputs: tuple[str, int]) -> Process:
    """Outputs: request, rejected."""
    return Process(step=step, requests=tuple([ProcessedRequest(request=name, sampled=1, rejected=n) for name, n in outputs]))


def allocate(request: str, first: int, *blocks: int, group: int = 0, after: tuple[After, ...] | None = None) -> Allocate:
    return Allocate(request=request, group=group, first_index=first, blocks=blocks, after=after)


def release(request: str, *blocks: int, indices: tuple[int, ...], cause: str = "window") -> Release:
    return Release(request=request, group=0, indices=indices, blocks=blocks, cause=cause, freed=blocks)  # type: ignore[arg-type]


def launches(log: OpLog, kind: LaunchKind) -> list[Launch]:
    return [op for op in log.ops if isinstance(op, Launch) and op.kind is kind]


def shares(log: OpLog) -> list[list[KeysPart | StatesPart]]:
    """Those of each step."""
    return [list(op.work.parts) for op in launches(log, LaunchKind.STEP) if isinstance(op.work, StepWork)]


def keys(log: OpLog) -> list[KeysPart]:
    return [part for parts in shares(log) for part in parts if isinstance(part, KeysPart)]


def index_of(log: OpLog, kind: LaunchKind, which: int = 0) -> int:
    return [index for index, op in enumerate(log.ops) if isinstance(op, Launch) and op.kind is kind][which]


def waits(log: OpLog, stream: int) -> list[tuple[int, int]]:
    """(index, event) of the waits of a stream."""
    return [(index, op.event) for index, op in enumerate(log.ops) if isinstance(op, Wait) and op.stream == stream]


def event_after(log: OpLog, launch: int) -> int:
    """The event that is recorded behind a launch."""
    recorded = log.ops[launch + 1]
    assert isinstance(recorded, Record)
    return recorded.event


def is_prefix(part: KeysPart, request: int, *, generation: int = 0) -> bool:
    """Whether what it should find is what that request's first steps write."""
    tags = [unpack(tag) for tag in part.expected]
    return tags == [Tag(request, generation, 0, 0, position) for position in range(part.first, part.first + len(tags))]


START: tuple[Event, ...] = (Add(request="a", prompt_tokens=6), allocate("a", 0, 1, 2), schedule(1, ("a", 0, 6, 0, (1, 2))))


# ---- steps -----------------------------------------------------------------------------------------------------------


def test_a_step_uploads_its_rows_then_writes_and_reads_through_them() -> None:
    log = lower((config(), *START))
    kinds = [(op.stream, op.kind) for op in log.ops if isinstance(op, Launch)]
    assert kinds == [(HOST, LaunchKind.FILL), *((COMPUTE, kind) for kind in (LaunchKind.UPLOAD, LaunchKind.WRITE, LaunchKind.STEP))]
    fill, upload, write, step = [op for op in log.ops if isinstance(op, Launch)]
    assert fill.writes == upload.reads == (log.staging(0),)
    assert upload.writes == (log.table,)
    assert (write.reads, write.writes) == ((log.table,), (1, 2))
    assert (step.reads, step.writes) == ((log.table, 1, 2), ())
    assert write.work is step.work
    (part,) = keys(log)
    assert (part.start, part.tokens, part.blocks, part.first) == (0, 6, (1, 2), 0)
    assert is_prefix(part, 0)
    assert part.tags == part.expected


def test_states_alone_have_no_write() -> None:
    log = lower((config(MambaSpec(block_size=64, mode="none")), *START))
    assert not launches(log, LaunchKind.WRITE)
    assert [(op.reads, op.writes) for op in launches(log, LaunchKind.STEP)] == [((log.table,), (1,))]
    entry = ScheduledRequest(request="a", start=0, tokens=6, drafts=0, new_blocks=((1, 2), (3,)), resumed=False)
    beside_keys = (*START[:2], allocate("a", 0, 3, group=1), Schedule(step=1, requests=(entry,)))
    both = lower((config(FULL, MambaSpec(block_size=64, mode="none")), *beside_keys))
    assert [op.writes for op in launches(both, LaunchKind.WRITE)] == [(1, 2)]
    assert [(op.reads, op.writes) for op in launches(both, LaunchKind.STEP)] == [((both.table, 1, 2), (3,))]


def test_a_load_into_a_block_freed_under_a_step_races_with_its_write_and_its_reads() -> None:
    """`optimistic/read_resident` at its shortest: a step writes and reads its tokens, and a block of them is given away meanwhile."""
    freed = (
        Add(request="a", prompt_tokens=6),
        allocate("a", 0, 1, 2, 3),
        schedule(1, ("a", 0, 6, 0, (1, 2, 3))),
        release("a", 3, 1, indices=(2, 0)),
        Add(request="b", prompt_tokens=9),
        allocate("b", 0, 1, 3),
        Computed(request="b", computed=8, cause="external", stale=False),
        Load(job=0, request="b", blocks=((1, 3),), after=()),
    )
    log = lower((config(SlidingWindowSpec(block_size=4, window=4), lookahead=3), *freed))
    found = races(log, "stream_order")
    assert [(race.resource, race.first.name, race.second.name) for race in found] == [
        (1, "step 1", "load 0"),
        (3, "write of step 1", "load 0"),  # lookahead slots, which nobody reads
    ]
    assert "block 3: write of step 1 of a writes it on compute" in found[1].sentence(log)
    order = LaunchOrder(log)
    assert SmallReplay(log).run(order.enqueue()) == []
    garbled = SmallReplay(log).run(order.directed(found[0].first.at, found[0].second.at))
    assert [(row.query, row.position) for row in garbled] == [(0, 0), (1, 0), (2, 0), (3, 0), (4, 1), (5, 2)]
    assert {unpack(row.found).request for row in garbled} == {1}


def test_a_later_step_starts_lower_by_what_its_predecessors_reject() -> None:
    rejecting = (
        *START,
        schedule(2, ("a", 6, 4, 3, ())),
        allocate("a", 2, 3),
        schedule(3, ("a", 10, 4, 3, (3,))),
        process(1, ("a", 0)),
        process(2, ("a", 2)),
        schedule(4, ("a", 12, 4, 3, ())),
        process(3, ("a", 3)),
        process(4, ("a", 0)),
    )
    parts = keys(lower((config(depth=3), *rejecting)))
    assert [part.start for part in parts] == [0, 6, 8, 9]
    written = [[(tag.position, tag.version) for tag in map(unpack, part.tags)] for part in parts]
    assert written[2] == [(8, 1), (9, 1), (10, 0), (11, 0)]  # over two drafts of step 2 that were rejected
    assert written[3] == [(9, 2), (10, 1), (11, 1), (12, 0)]
    assert [unpack(tag).version for tag in parts[3].expected] == [0] * 8 + [1, 2, 1, 1, 0]


def test_a_stale_step_starts_lower_too_and_the_next_generation_does_not() -> None:
    preempted = (
        *START,
        schedule(2, ("a", 6, 2, 1, ())),
        allocate("a", 2, 3),
        schedule(3, ("a", 8, 2, 1, (3,))),
        Preempt(request="a", output="drop"),
        process(1, ("a", 0)),
        process(2, ("a", 1)),
        allocate("a", 0, 5, 6),
        schedule(4, ("a", 0, 7, 0, (5, 6)), resumed=True),
        process(3, ("a", 0)),
        process(4, ("a", 0)),
    )
    parts = keys(lower((config(depth=3), *preempted)))
    assert [part.start for part in parts] == [0, 6, 7, 0]
    assert [part.is_delivered for part in parts] == [False, False, False, True]
    assert is_prefix(parts[3], 0, generation=1)
    assert parts[3].blocks == (5, 6)


def test_stale_output_that_is_to_be_delivered_counts_unless_the_request_has_ended() -> None:
    delivering = (*START, Preempt(request="a", output="deliver"))
    assert [part.is_delivered for part in keys(lower((config(), *delivering)))] == [True]
    ended = Finish(request="a", reason="abort")
    assert [part.is_delivered for part in keys(lower((config(), *START, ended)))] == [False]
    assert [part.is_delivered for part in keys(lower((config(), *delivering, ended)))] == [False]
    later = Computed(request="a", computed=0, cause="session", stale=True)
    assert [part.is_delivered for part in keys(lower((config(), *delivering, later)))] == [True], "stale already, and still delivered"


def test_a_step_of_nobody_is_no_forward_pass() -> None:
    assert not lower((config(), schedule(1), process(1))).ops


def test_rows_only_grow_unless_the_worker_is_told_of_nulls() -> None:
    window = config(SlidingWindowSpec(block_size=4, window=4))
    pruned = (*START, release("a", 1, indices=(0,)), allocate("a", 2, 3), schedule(2, ("a", 6, 6, 0, (3,))))
    assert keys(lower((window, *pruned)))[1].blocks == (1, 2, 3)
    assert keys(lower((window, *pruned), worker=TOLD_OF_NULLS))[1].blocks == (0, 2, 3)


def test_a_late_release_of_a_fence_is_not_one_of_the_next_table() -> None:
    resumed = (
        *START,
        Preempt(request="a", output="drop"),
        Touch(request="a", group=0, first_index=0, blocks=(1,)),
        allocate("a", 1, 3),
        release("a", 2, 1, indices=(1, 0), cause="deferred"),
        schedule(2, ("a", 4, 2, 0, (1, 3)), resumed=True),
    )
    assert keys(lower((config(), *resumed), worker=TOLD_OF_NULLS))[1].blocks == (1, 3)


def test_lookahead_slots_are_written_as_far_as_there_are_blocks() -> None:
    (part,) = keys(lower((config(lookahead=3), *START)))
    tags = [unpack(tag) for tag in part.tags]
    assert [(tag.position, tag.version) for tag in tags[6:]] == [(6, LOOKAHEAD), (7, LOOKAHEAD)]
    assert len(part.expected) == 6


def test_staging_buffers_go_round_with_the_pipeline() -> None:
    steps = (*START, schedule(2, ("a", 6, 1, 0, ())), process(1, ("a", 0)), schedule(3, ("a", 7, 1, 0, ())))
    ring = lower((config(), *steps))
    assert [op.writes for op in launches(ring, LaunchKind.FILL)] == [(ring.staging(index),) for index in (0, 1, 0)]
    one = lower((config(), *steps), worker=ONE_STAGING_BUFFER)
    assert [op.writes for op in launches(one, LaunchKind.FILL)] == [(one.staging(0),)] * 3


def test_the_host_knows_a_step_over_when_it_is_processed() -> None:
    log = lower((config(), *START, process(1, ("a", 0))))
    assert log.ops[-1] == HostSync(event_after(log, index_of(log, LaunchKind.STEP)))


# ---- hits and copies -------------------------------------------------------------------------------------------------


def hit(cached: CacheEntry) -> tuple[Event, ...]:
    """b takes over a block that a writes in the very same step."""
    return (
        Add(request="a", prompt_tokens=6),
        Add(request="b", prompt_tokens=6),
        allocate("a", 0, 1, 2),
        Cache(entries=(cached,)),
        Touch(request="b", group=0, first_index=0, blocks=(1,)),
        allocate("b", 1, 3),
        Computed(request="b", computed=4, cause="hit", stale=False),
        schedule(1, ("b", 4, 2, 0, (1, 3)), ("a", 0, 6, 0, (1, 2))),
    )


@pytest.mark.parametrize("entry", [CacheEntry(block=1), CacheEntry(block=1, group=0, request="a", start=0, end=4)])
def test_a_hit_holds_what_its_hash_stands_for_even_if_it_is_written_in_the_same_step(entry: CacheEntry) -> None:
    parts = keys(lower((config(), *hit(entry))))
    assert [unpack(tag).request for tag in parts[0].expected] == [0, 0, 0, 0, 1, 1]


def test_a_hash_that_stands_for_other_tokens_is_taken_at_its_word() -> None:
    wrong = CacheEntry(block=1, group=0, request="b", start=0, end=4)
    (part, _) = keys(lower((config(), *hit(wrong))))
    assert [unpack(tag)[:1] + unpack(tag)[3:] for tag in part.expected[:4]] == [(1, LOADED, position) for position in range(4)]


def test_a_copied_block_is_taken_over_as_far_as_it_was_hit() -> None:
    copied = (
        *START,
        Cache(entries=(CacheEntry(block=1), CacheEntry(block=2, group=0, request="a", start=4, end=6))),
        Add(request="b", prompt_tokens=8),
        Touch(request="b", group=0, first_index=0, blocks=(1,)),
        allocate("b", 1, 3),
        Computed(request="b", computed=6, cause="hit", stale=False),
        schedule(2, ("b", 6, 2, 0, (1, 3))),
        Copy(step=2, group=0, source=2, target=3),
    )
    log = lower((config(), *copied))
    assert [unpack(tag).request for tag in keys(log)[1].expected] == [0] * 6 + [1] * 2
    copy, step = index_of(log, LaunchKind.COPY), index_of(log, LaunchKind.STEP, 1)
    assert copy < step  # although the trace tells of it behind the schedule
    launch = log.ops[copy]
    assert isinstance(launch, Launch)
    assert (launch.stream, launch.reads, launch.writes) == (COMPUTE, (2,), (3,))


def test_what_a_block_holds_outlives_the_generation_that_wrote_it() -> None:
    resumed = (
        *START,
        Cache(entries=(CacheEntry(block=1, group=0, request="a", start=0, end=4),)),
        process(1, ("a", 0)),
        Preempt(request="a"),
        release("a", 2, 1, indices=(1, 0), cause="preempt"),
        Touch(request="a", group=0, first_index=0, blocks=(1,)),
        allocate("a", 1, 4),
        Computed(request="a", computed=4, cause="hit", stale=False),
        schedule(2, ("a", 4, 3, 0, (1, 4)), resumed=True),
    )
    part = keys(lower((config(), *resumed)))[1]
    assert [unpack(tag).generation for tag in part.expected] == [0] * 4 + [1] * 3


# ---- transfers -------------------------------------------------------------------------------------------------------


def load(step: int | None = None, *, after: tuple[After, ...] = ()) -> tuple[Event, ...]:
    return (
        Add(request="a", prompt_tokens=9),
        allocate("a", 0, 1, 2, 3),
        Computed(request="a", computed=8, cause="external", stale=False),
        Load(job=0, request="a", blocks=((1, 2),), step=step, after=after),
    )


def test_a_load_brings_what_the_request_counts_and_no_step_comes_before_the_host_knows() -> None:
    log = lower((config(), *load(), Loaded(job=0, ok=True), schedule(1, ("a", 8, 1, 0, (1, 2, 3)))))
    (launch,) = launches(log, LaunchKind.LOAD)
    assert (launch.stream, launch.reads, launch.writes) == (FIRST_TRANSFER, (), (1, 2))
    assert isinstance(launch.work, TransferWork)
    assert [[unpack(tag) for tag in slots.tags] for slots in launch.work.slots] == [
        [Tag(0, 0, 0, LOADED, position) for position in positions] for positions in (range(4), range(4, 8))
    ]
    done = HostSync(event_after(log, index_of(log, LaunchKind.LOAD)))
    assert log.ops.index(done) < index_of(log, LaunchKind.STEP)
    assert [unpack(tag).version for tag in keys(log)[0].expected] == [LOADED] * 8 + [0]


@pytest.mark.parametrize(("worker", "waited"), [(None, True), (UNAWAITED_LOADS, False)])
def test_a_step_waits_for_the_load_within_it_wherever_the_trace_tells_of_it(worker: Worker | None, waited: bool) -> None:
    step = schedule(1, ("a", 8, 1, 0, (1, 2, 3)))
    *before, told = load(step=1)
    for events in ((*before, told, step), (*before, step, told)):
        log = lower((config(), *events), **({} if worker is None else {"worker": worker}))
        done = event_after(log, index_of(log, LaunchKind.LOAD))
        assert (done in [event for _, event in waits(log, COMPUTE)]) is waited
        if waited:
            ((index, _),) = waits(log, COMPUTE)
            assert index < index_of(log, LaunchKind.STEP)


def test_a_transfer_waits_for_what_its_after_names() -> None:
    log = lower((config(), Add(request="b", prompt_tokens=6), *_of_b(START), *load(after=(After(step=1),))))
    ((index, event),) = waits(log, FIRST_TRANSFER)
    assert event == event_after(log, index_of(log, LaunchKind.STEP))
    assert index < index_of(log, LaunchKind.LOAD)


def _of_b(events: Sequence[Event]) -> list[Event]:
    """START of b, with other blocks."""
    return [allocate("b", 0, 11, 12), schedule(1, ("b", 0, 6, 0, (11, 12)))]


@pytest.mark.parametrize(("worker", "waited"), [(None, True), (UNORDERED_STORES, False)])
def test_a_store_reads_what_is_settled_behind_the_step_that_writes_it(worker: Worker | None, waited: bool) -> None:
    stored = (
        *START,
        process(1, ("a", 0)),
        schedule(2, ("a", 6, 1, 0, ())),
        Store(job=7, request="a", blocks=((1, 2),), after=(After(step=2),)),
    )
    log = lower((config(), *stored), **({} if worker is None else {"worker": worker}))
    (launch,) = launches(log, LaunchKind.STORE)
    assert (launch.reads, launch.writes) == ((1, 2), ())
    assert isinstance(launch.work, TransferWork)
    assert [len(slots.tags) for slots in launch.work.slots] == [4, 2]  # step 2 may still write position 6
    assert bool(waits(log, FIRST_TRANSFER)) is waited


def stored_lengths(*events: Event) -> list[int]:
    (launch,) = launches(lower((config(depth=3), *events)), LaunchKind.STORE)
    assert isinstance(launch.work, TransferWork)
    return [len(slots.tags) for slots in launch.work.slots]


def test_a_store_of_a_resumed_request_waits_for_no_stale_step_to_call_tokens_settled() -> None:
    """Step 2 is stale and began at 6; what the new generation has in flight begins at 0."""
    again = (
        *START,
        process(1, ("a", 0)),
        schedule(2, ("a", 6, 1, 0, ())),
        Preempt(request="a", output="drop"),
        allocate("a", 0, 5, 6),
        schedule(3, ("a", 0, 4, 0, (5, 6)), resumed=True),
    )
    ahead = schedule(4, ("a", 4, 2, 0, ()))
    store = Store(job=7, request="a", blocks=((5, 6),), after=(After(step=3),))
    assert stored_lengths(*again, ahead, store) == []
    assert stored_lengths(*again, ahead, process(2, ("a", 0)), process(3, ("a", 0)), store) == [4]


def test_a_store_at_the_end_brings_nothing_that_was_in_flight() -> None:
    ended = (*START, process(1, ("a", 0)), schedule(2, ("a", 6, 2, 1, ())), Finish(request="a", reason="abort"))
    assert stored_lengths(*ended, Store(job=7, request="a", blocks=((1, 2),), after=(After(step=1),))) == [4, 2]


def test_a_request_that_ends_before_its_first_step_stores_what_it_hit() -> None:
    ended = (
        *START,
        Cache(entries=(CacheEntry(block=1, group=0, request="a", start=0, end=4),)),
        Add(request="b", prompt_tokens=6),
        Touch(request="b", group=0, first_index=0, blocks=(1,)),
        Computed(request="b", computed=4, cause="hit", stale=False),
        Finish(request="b", reason="abort"),
        Store(job=7, request="b", blocks=((1,),), after=(After(step=1),)),
    )
    (launch,) = launches(lower((config(), *ended)), LaunchKind.STORE)
    assert isinstance(launch.work, TransferWork)
    assert [unpack(tag).request for tag in launch.work.slots[0].tags] == [0] * 4


def test_a_trace_without_order_is_given_a_right_one_for_stores_and_says_so() -> None:
    stored = (*START, Store(job=7, request="a", blocks=((1, 2),)))
    log = lower((config(records=()), *stored))
    assert [event for _, event in waits(log, FIRST_TRANSFER)] == [event_after(log, index_of(log, LaunchKind.STEP))]
    assert len(log.assumptions) == 1
    assert not lower((config(), *stored)).assumptions


def test_transfers_share_a_stream_only_once_the_host_knows_the_former_over() -> None:
    two = [Store(job=job, request="a", blocks=((1,),), handles=2) for job in (0, 1)]
    over = [Stored(job=0, ok=True, handle=handle) for handle in (0, 1)]
    third = Store(job=2, request="a", blocks=((1,),))
    at_once = lower((config(), *START, *two, over[0], third))
    assert [op.stream for op in launches(at_once, LaunchKind.STORE)] == [FIRST_TRANSFER + index for index in (0, 1, 2)]
    known = lower((config(), *START, *two, *over, third))
    assert [op.stream for op in launches(known, LaunchKind.STORE)] == [FIRST_TRANSFER + index for index in (0, 1, 0)]


def test_what_holds_blocks_does_not_part_a_step_from_its_transfers() -> None:
    """What the host does between tells that the step has gone to the device; a hold tells nothing."""
    begun = (config(), *START)
    stored = Store(job=0, request="a", blocks=((1,),), step=1)
    assert launches(lower((*begun, Hold(holder="c", kind="pin", blocks=(1,)), stored)), LaunchKind.STORE)
    with pytest.raises(LoweringError, match="step 1 went to the device before this"):
        lower((*begun, Finish(request="a", reason="abort"), stored))


def failed_within_step() -> tuple[Event, ...]:
    return (
        *load(step=1),
        schedule(1, ("a", 8, 1, 0, (1, 2, 3))),
        schedule(2, ("a", 9, 1, 0, ())),
        Loaded(job=0, ok=False, failed=((2,),)),
        Computed(request="a", computed=4, cause="load_failed", stale=True),
        process(1, ("a", 0)),
        process(2, ("a", 0)),
        schedule(3, ("a", 4, 5, 0, ())),
        process(3, ("a", 0)),
    )


def test_steps_on_a_failed_load_find_garbage_that_the_host_knows_of() -> None:
    parts = keys(lower((config(), *failed_within_step())))
    assert [[unpack(tag).version for tag in part.expected] for part in parts] == [
        [LOADED] * 4 + [FAILED] * 4 + [0],
        [LOADED] * 4 + [FAILED] * 4 + [0] * 2,
        [LOADED] * 4 + [0] * 5,
    ]
    assert [part.is_delivered for part in parts] == [False, False, True]


def test_steps_on_a_failed_load_whose_output_is_delivered_are_not_excused() -> None:
    told = [event for event in failed_within_step() if not isinstance(event, Computed) or event.cause != "load_failed"]
    (part, *_) = keys(lower((config(), *told)))
    assert [unpack(tag).version for tag in part.expected] == [LOADED] * 8 + [0]
    assert part.is_delivered


@pytest.mark.parametrize("cause", ["last_token", "replay"])
def test_tokens_that_are_computed_again_come_out_as_they_were(cause: Any) -> None:
    whole = (
        Add(request="a", prompt_tokens=8),
        allocate("a", 0, 1, 2),
        Computed(request="a", computed=8, cause="external", stale=False),
        Load(job=0, request="a", blocks=((1, 2),)),
        Loaded(job=0, ok=True),
        Computed(request="a", computed=7, cause=cause, stale=False),
        schedule(1, ("a", 7, 1, 0, (1, 2))),
    )
    (part,) = keys(lower((config(), *whole)))
    assert [unpack(tag).version for tag in part.tags] == [LOADED]
    other = tuple(replace(event, cause="session") if isinstance(event, Computed) and event.computed == 7 else event for event in whole)
    (part,) = keys(lower((config(), *other)))
    assert [unpack(tag).generation for tag in part.tags] == [1]


# ---- frees -----------------------------------------------------------------------------------------------------------


def test_a_free_is_told_and_a_poisoned_block_is_waited_for_by_its_next_writer() -> None:
    reused = (
        *START,
        Cache(entries=(CacheEntry(block=1),)),
        release("a", 2, 1, indices=(1, 0), cause="finish"),
        Add(request="b", prompt_tokens=3),
        allocate("b", 0, 2),
        schedule(2, ("b", 0, 3, 0, (2,))),
    )
    plain = lower((config(), *reused))
    assert [op.blocks for op in plain.ops if isinstance(op, Free)] == [(2, 1)]
    assert not launches(plain, LaunchKind.POISON)
    log = lower((config(), *reused), poisons=True)
    (poison,) = launches(log, LaunchKind.POISON)
    assert (poison.stream, poison.writes) == (JANITOR, (2,))  # block 1 may be hit
    ((index, event),) = waits(log, COMPUTE)
    assert event == event_after(log, index_of(log, LaunchKind.POISON))
    assert index < index_of(log, LaunchKind.STEP, 1)


def test_a_block_given_out_before_its_event_is_waited_for() -> None:
    again = (
        *START,
        Store(job=0, request="a", blocks=((1,),), after=(After(step=1),)),
        release("a", 2, 1, indices=(1, 0), cause="finish"),
        Add(request="b", prompt_tokens=3),
        allocate("b", 0, 1, after=(After(job=0),)),
        schedule(2, ("b", 0, 3, 0, (1,))),
    )
    log = lower((config(), *again))
    assert [event for _, event in waits(log, COMPUTE)] == [event_after(log, index_of(log, LaunchKind.STORE))]


def test_zeroing_comes_before_the_step_that_it_belongs_to() -> None:
    log = lower((config(), *START, Zero(step=1, blocks=(1, 2))))
    assert index_of(log, LaunchKind.ZERO) < index_of(log, LaunchKind.STEP)


# ---- states ----------------------------------------------------------------------------------------------------------


def states(spec: MambaSpec, *events: Event) -> list[StatesPart]:
    return [part for parts in shares(lower((config(spec), *events))) for part in parts if isinstance(part, StatesPart)]


def test_a_state_in_place_is_read_where_the_last_accepted_token_left_it() -> None:
    spec = MambaSpec(block_size=64, mode="none", num_speculative_blocks=3)
    events = (
        Add(request="a", prompt_tokens=6),
        allocate("a", 0, 1, 2, 3, 4),
        schedule(1, ("a", 0, 6, 0, (1, 2, 3, 4))),
        schedule(2, ("a", 6, 4, 3, ())),
        process(1, ("a", 0)),
        process(2, ("a", 2)),
        schedule(3, ("a", 8, 4, 3, ())),
    )
    parts = states(spec, *events)
    assert [part.read for part in parts] == [None, 0, 1]
    assert [part.writes for part in parts] == [((0, 6),), ((0, 1), (1, 2), (2, 3), (3, 4)), ((0, 1), (1, 2), (2, 3), (3, 4))]
    assert [len(part.before) for part in parts] == [0, 6, 8]


def test_an_aligned_state_stands_at_the_index_of_its_last_token_and_is_kept_where_a_block_is_full() -> None:
    spec = MambaSpec(block_size=4, mode="align", num_speculative_blocks=2)
    events = (
        Add(request="a", prompt_tokens=5),
        allocate("a", 1, 1, 2, 3),
        schedule(1, ("a", 0, 5, 0, (0, 1, 2, 3))),
        process(1, ("a", 0)),
        schedule(2, ("a", 5, 3, 2, ())),
        process(2, ("a", 1)),
        schedule(3, ("a", 7, 3, 2, ())),
        process(3, ("a", 0)),
    )
    parts = states(spec, *events)
    assert [part.read for part in parts] == [None, 1, 2]
    assert parts[0].writes == ((1, 5),)
    assert parts[1].writes == ((1, 1), (2, 2), (3, 3))  # 7 tokens are accepted: no block ends there
    assert parts[2].writes == ((2, 1), (3, 2), (4, 3), (1, 1))  # the first of its tokens fills block 1


# ---- what cannot be lowered ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("events", "message"),
    [
        ((), "event 1: a trace begins with its config"),
        ((config(), Gap(events=3)), "event 2: a gap event"),
        ((config(), schedule(1, ("a", 0, 6, 0, (1, 2)))), "event 2: request 'a' was never added"),
        ((config(), process(1, ("a", 0))), "event 2: step 1 is not unprocessed"),
        ((config(), *START, process(1, ("b", 0))), "event 5: request 'b' is not in step 1"),
        ((config(), *START, Loaded(job=3, ok=True)), "event 5: no job 3 is under way"),
        ((config(), *START, Load(job=3, request="a", blocks=((9,),))), "event 5: block 9 is in no table of group 0"),
        ((config(CrossAttentionSpec(block_size=4)),), "event 1: no kernel reads keys of kind 'cross'"),
    ],
)
def test_what_cannot_be_lowered_is_named(events: tuple[Event, ...], message: str) -> None:
    with pytest.raises(LoweringError) as raised:
        lower(events)
    assert str(raised.value).startswith(message)
