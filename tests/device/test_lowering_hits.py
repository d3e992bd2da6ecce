"""Hits are judged by what their hashes stood for, failed loads by what the trace tells, and events that cannot be placed are errors."""

from __future__ import annotations

import pytest
from test_lowering import (
    START,
    allocate,
    config,
    event_after,
    index_of,
    keys,
    launches,
    load,
    process,
    release,
    schedule,
    shares,
    waits,
)

from settled.model.events import (
    Add,
    After,
    Cache,
    CacheEntry,
    Computed,
    Copy,
    Drop,
    Event,
    Evict,
    Hold,
    Load,
    Loaded,
    Move,
    Preempt,
    Schedule,
    Store,
    Stored,
    Touch,
    Zero,
)
from settled.model.specs import FullAttentionSpec, MambaSpec
from settled.reference.device.compiling import compile_log
from settled.reference.device.foresight import Entry, LoweringError
from settled.reference.device.lowering import lower
from settled.reference.device.ops import COMPUTE, FIRST_TRANSFER, JANITOR, Free, LaunchKind, StatesPart, TransferWork
from settled.reference.device.replay import replay
from settled.reference.device.state_use import state_use
from settled.reference.device.tags import FAILED, LOADED, unpack
from settled.reference.device.worker import TOLD_OF_NULLS, UNORDERED_STORES

CACHED = Cache(entries=(CacheEntry(block=1), CacheEntry(block=2)))


def versions(events: tuple[Event, ...], *, depth: int = 2) -> list[int]:
    """Of what the last share should find."""
    return [unpack(tag).version for tag in keys(lower((config(depth=depth), *events)))[-1].expected]


def hit_of(*blocks: int, computed: int, first: int = 0) -> tuple[Event, ...]:
    """Request b takes over blocks from table index `first` on, and computes two tokens behind them."""
    row = (*[0] * first, *blocks, 9, 10)
    return (
        Add(request="b", prompt_tokens=computed + 2),
        Touch(request="b", group=0, first_index=first, blocks=blocks),
        allocate("b", first + len(blocks), 9, 10),
        Computed(request="b", computed=computed, cause="hit", stale=False),
        schedule(9, ("b", computed, 2, 0, row)),
    )


LONG: tuple[Event, ...] = (Add(request="a", prompt_tokens=8), allocate("a", 0, 1, 2), schedule(1, ("a", 0, 8, 0, (1, 2))))


def test_a_hit_at_another_index_than_its_own_brings_nothing() -> None:
    assert versions((*LONG, CACHED, *hit_of(1, 2, computed=8))) == [0] * 10
    assert versions((*LONG, CACHED, *hit_of(2, computed=4))) == [LOADED] * 4 + [0] * 2


def test_a_block_that_is_not_hashed_brings_nothing() -> None:
    assert versions((*LONG, *hit_of(1, computed=4))) == [LOADED] * 4 + [0] * 2
    assert versions((*LONG, CACHED, Evict(entries=(CacheEntry(block=1),)), *hit_of(1, computed=4))) == [LOADED] * 4 + [0] * 2
    again = (release("a", 2, 1, indices=(1, 0), cause="finish"), Add(request="c", prompt_tokens=1), allocate("c", 0, 1))
    assert versions((*LONG, CACHED, *again, *hit_of(1, computed=4))) == [LOADED] * 4 + [0] * 2


def test_a_hit_brings_no_more_than_its_hash_covers() -> None:
    partial = Cache(entries=(CacheEntry(block=1), CacheEntry(block=2, group=0, request="a", start=4, end=6)))
    assert versions((*LONG, partial, *hit_of(1, 2, computed=8))) == [0] * 6 + [LOADED] * 2 + [0] * 2


def test_a_hash_over_drafts_stands_for_the_drafts_though_they_are_rejected() -> None:
    drafting = (
        Add(request="a", prompt_tokens=5),
        allocate("a", 0, 1, 2),
        schedule(1, ("a", 0, 5, 0, (1, 2))),
        Cache(entries=(CacheEntry(block=2),)),
        schedule(2, ("a", 5, 4, 3, ())),
        process(1, ("a", 0)),
        process(2, ("a", 3)),
        allocate("a", 2, 3),
        schedule(3, ("a", 6, 4, 3, (3,))),
    )
    found = keys(lower((config(depth=3), *drafting, CACHED, *hit_of(1, 2, computed=8))))[-1]
    stale = keys(lower((config(depth=3), *drafting[:1], *drafting[1:], Cache(entries=(CacheEntry(block=1),)), *hit_of(1, 2, computed=8))))[
        -1
    ]
    assert [unpack(tag).version for tag in stale.expected[4:8]] == [0, 0, 0, 0]  # as hashed, before they were written again
    assert [unpack(tag).version for tag in found.expected[4:8]] == [0, 0, 1, 1]  # hashed anew, as they stand


def test_a_load_behind_a_hit_leaves_the_hit_to_be_looked_up_when_the_step_comes() -> None:
    loading = (
        Add(request="a", prompt_tokens=6),
        Add(request="b", prompt_tokens=10),
        allocate("a", 0, 1, 2),
        Cache(entries=(CacheEntry(block=1),)),
        Touch(request="b", group=0, first_index=0, blocks=(1,)),
        allocate("b", 1, 3, 4),
        Computed(request="b", computed=8, cause="external", stale=False, local=4, external=4),
        Load(job=0, request="b", blocks=((3,),), step=1),
        schedule(1, ("a", 0, 6, 0, (1, 2)), ("b", 8, 2, 0, (1, 3, 4))),
    )
    part = keys(lower((config(), *loading)))[-1]
    assert [(unpack(tag).request, unpack(tag).version) for tag in part.expected] == [(0, 0)] * 4 + [(1, LOADED)] * 4 + [(1, 0)] * 2


SILENT = ("counters",)
"""Families of a trace that does not tell what is hashed, as TokenSpeed's do not."""


def test_where_hashes_are_not_recorded_a_hit_stands_for_what_its_block_holds() -> None:
    log = lower((config(records=SILENT), *LONG, *hit_of(1, 2, computed=8)))
    assert [unpack(tag).request for tag in keys(log)[-1].expected] == [0] * 8 + [1] * 2
    assert len(log.assumptions) == 2
    assert len(lower((config(records=SILENT), *LONG)).assumptions) == 1, "nothing is hit"
    assert versions((*LONG, *hit_of(1, 2, computed=8))) == [LOADED] * 8 + [0] * 2, "recorded, and none is hashed"


def test_what_a_preempted_request_wrote_stays_in_its_blocks() -> None:
    left = (
        *LONG,
        Preempt(request="a", output="drop"),
        release("a", 2, 1, indices=(1, 0), cause="preempt"),
        allocate("a", 0, 3),
        schedule(2, ("a", 0, 4, 0, (3,)), resumed=True),
    )
    found = keys(lower((config(records=SILENT, depth=3), *left, *hit_of(1, 2, computed=8))))[-1]
    assert [unpack(tag).generation for tag in found.expected[:8]] == [0] * 8
    copied = (Add(request="b", prompt_tokens=8), allocate("b", 0, 4, 5), Copy(step=9, group=0, source=1, target=4))
    counted = Computed(request="b", computed=4, cause="hit", stale=False)
    behind = schedule(9, ("b", 4, 2, 0, (4, 5)))
    found = keys(lower((config(depth=3), *left, *copied, counted, behind)))[-1]
    assert [(unpack(tag).request, unpack(tag).generation) for tag in found.expected[:4]] == [(0, 0)] * 4


def test_a_request_whose_count_was_lowered_goes_on_in_its_blocks() -> None:
    lowered = (
        *LONG,
        process(1, ("a", 0)),
        Computed(request="a", computed=4, cause="session", stale=False),
        schedule(2, ("a", 4, 4, 0, ())),
    )
    found = keys(lower((config(records=SILENT, depth=3), *lowered, *hit_of(1, 2, computed=8))))[-1]
    assert [unpack(tag).generation for tag in found.expected[:8]] == [0] * 4 + [1] * 4


def test_blocks_that_may_be_hit_are_not_poisoned() -> None:
    freed = (*LONG, process(1, ("a", 0)), release("a", 2, 1, indices=(1, 0), cause="finish"))
    silent = config(records=SILENT)
    assert not launches(lower((silent, *freed, *hit_of(1, 2, computed=8)), poisons=True), LaunchKind.POISON)
    assert len(launches(lower((silent, *freed), poisons=True), LaunchKind.POISON)) == 1, "nothing is hit"


# ---- generations, failed loads ---------------------------------------------------------------------------------------


def test_a_rejection_moves_only_steps_of_its_own_generation() -> None:
    crossing = (
        *START,
        schedule(2, ("a", 6, 4, 3, ())),
        Preempt(request="a", output="drop"),
        allocate("a", 0, 5, 6),
        schedule(3, ("a", 0, 6, 0, (5, 6)), resumed=True),
        process(1, ("a", 0)),
        process(2, ("a", 3)),
        process(3, ("a", 0)),
    )
    assert [part.start for part in keys(lower((config(depth=3), *crossing)))] == [0, 6, 0]


def test_a_stale_rejection_leaves_the_count_of_the_next_generation() -> None:
    counted = (
        *START,
        schedule(2, ("a", 6, 4, 3, ())),
        Preempt(request="a", output="drop"),
        process(1, ("a", 0)),
        process(2, ("a", 3)),
        allocate("a", 0, 5, 6),
        schedule(3, ("a", 0, 6, 0, (5, 6)), resumed=True),
        Computed(request="a", computed=6, cause="session", stale=False),  # as it stands: no generation ends
        schedule(4, ("a", 6, 1, 0, ())),
    )
    assert unpack(keys(lower((config(depth=3), *counted)))[-1].tags[0]).generation == 1
    late = (
        *counted[:5],
        allocate("a", 0, 5, 6),
        schedule(3, ("a", 0, 6, 0, (5, 6)), resumed=True),
        process(1, ("a", 0)),
        process(2, ("a", 3)),  # the new generation counts 6, as before
        Computed(request="a", computed=5, cause="session", stale=False),  # a token less: a generation ends
        schedule(4, ("a", 5, 1, 0, ())),
    )
    assert unpack(keys(lower((config(depth=3), *late)))[-1].tags[0]).generation == 2


def failing(*after: Event, handles: int = 1) -> tuple[Event, ...]:
    *before, told = load(step=1)
    assert isinstance(told, Load)
    told = Load(job=0, request="a", blocks=told.blocks, step=1, handles=handles)
    return (*before, told, schedule(1, ("a", 8, 1, 0, (1, 2, 3))), *after, process(1, ("a", 0)))


FAILED_COUNT = Computed(request="a", computed=0, cause="load_failed", stale=True)


@pytest.mark.parametrize(
    ("told", "handles", "blocks"),
    [
        ((Loaded(job=0, ok=False),), 1, {1, 2}),
        ((Loaded(job=0, ok=False, cancelled=True),), 1, {1, 2}),
        ((Loaded(job=0, ok=False, cancelled=True, failed=((1,),)),), 1, {1, 2}),
        ((Loaded(job=0, ok=False, failed=((2,),)),), 1, {2}),
        ((Loaded(job=0, ok=False, handle=0), Loaded(job=0, ok=False, handle=1, failed=((1,),))), 2, {1, 2}),
        ((Loaded(job=0, ok=False, handle=0, failed=((1,),)), Loaded(job=0, ok=False, handle=1, failed=((2,),))), 2, {1, 2}),
    ],
)
def test_what_a_load_did_not_bring_is_garbage(told: tuple[Event, ...], handles: int, blocks: set[int]) -> None:
    log = lower((config(), *failing(*told, FAILED_COUNT, handles=handles)))
    (launch,) = launches(log, LaunchKind.LOAD)
    assert isinstance(launch.work, TransferWork)
    assert {slots.block for slots in launch.work.slots if unpack(slots.tags[0]).version == FAILED} == blocks


def test_only_a_failed_load_excuses_what_a_step_finds() -> None:
    told = Loaded(job=0, ok=False, failed=((2,),))
    excused = keys(lower((config(), *failing(told, FAILED_COUNT))))[0]
    assert [unpack(tag).version for tag in excused.expected] == [LOADED] * 4 + [FAILED] * 4 + [0]
    other = Computed(request="a", computed=0, cause="session", stale=True)
    assert [unpack(tag).version for tag in keys(lower((config(), *failing(other, told))))[0].expected][4:8] == [
        FAILED
    ] * 4  # nobody gets it
    assert keys(lower((config(), *failing(told))))[0].is_delivered


def test_a_load_that_fails_later_excuses_only_what_it_did_not_bring_itself() -> None:
    told = failing(Loaded(job=0, ok=False, failed=((1,),)), FAILED_COUNT)
    again = (
        Computed(request="a", computed=8, cause="external", stale=False),
        Load(job=1, request="a", blocks=((1, 2),), step=2),
        schedule(2, ("a", 8, 1, 0, ())),
        Loaded(job=1, ok=False, failed=((2,),)),
        FAILED_COUNT,
        process(2, ("a", 0)),
    )
    parts = keys(lower((config(), *told, *again)))
    assert [unpack(tag).version for tag in parts[-1].expected] == [LOADED] * 4 + [FAILED] * 4 + [0]


def state_loads(*failed: bool) -> tuple[Event, ...]:
    """A state of four tokens is loaded for a step of two, as often as that, each time by another step behind it."""
    events: list[Event] = [Add(request="a", prompt_tokens=8), allocate("a", 0, 1, 2, 3)]
    for step, fails in enumerate(failed):
        events += [
            Computed(request="a", computed=4, cause="external", stale=False),
            Load(job=step, request="a", blocks=((1,),), step=step),
            schedule(step, ("a", 4, 2, 0, () if step else (1, 2, 3))),
            Loaded(job=step, ok=not fails, failed=((1,),) if fails else None),
            *([FAILED_COUNT] if fails else []),
            process(step, ("a", 0)),
        ]
    return tuple(events)


def test_a_step_on_a_state_that_was_not_loaded_finds_as_many_wrong_tokens() -> None:
    log = lower((config(ALIGN, depth=3), *state_loads(True, False)))
    parts = [part for step in shares(log) for part in step if isinstance(part, StatesPart)]
    assert [[unpack(tag).version for tag in part.before] for part in parts] == [[FAILED] * 4, [LOADED] * 4]
    result = replay(compile_log(log))
    assert result.counts.rows == 4
    assert result.counts.rows_garbled == 0, "the host knows of the first, and the second is right"


def test_a_step_on_a_state_that_was_not_loaded_is_excused_only_where_the_host_dropped_it() -> None:
    silent = [event for event in state_loads(True) if event is not FAILED_COUNT]
    (part,) = [part for step in shares(lower((config(ALIGN), *silent))) for part in step]
    assert isinstance(part, StatesPart)
    assert [unpack(tag).version for tag in part.before] == [LOADED] * 4
    assert part.is_delivered


def test_what_is_computed_again_later_is_new() -> None:
    """Only position 7 came out as it was, and that only in its generation."""
    again = (
        Add(request="a", prompt_tokens=8),
        allocate("a", 0, 1, 2),
        Computed(request="a", computed=8, cause="external", stale=False),
        Computed(request="a", computed=7, cause="last_token", stale=False),
        schedule(1, ("a", 7, 1, 0, (1, 2))),
        process(1, ("a", 0)),
        Computed(request="a", computed=6, cause="session", stale=False),
        schedule(2, ("a", 6, 2, 0, ())),
    )
    first, second = keys(lower((config(), *again)))
    assert [unpack(tag).version for tag in first.tags] == [LOADED]
    assert [(unpack(tag).generation, unpack(tag).version) for tag in second.tags] == [(2, 0), (2, 0)]


def test_states_of_another_generation_tell_nothing_of_where_one_is_read() -> None:
    """After the preemption the request goes on from a state of four tokens, which stands at index 0; the step before stood at index 1."""
    resumed = (
        Add(request="a", prompt_tokens=6),
        allocate("a", 0, 0, 1, 2, 3),
        schedule(1, ("a", 0, 6, 0, (0, 1, 2, 3))),
        Preempt(request="a", output="drop"),
        allocate("a", 0, 4, 5),
        Computed(request="a", computed=4, cause="external", stale=False),
        schedule(2, ("a", 4, 1, 0, (4, 5)), resumed=True),
    )
    log = lower((config(ALIGN), *resumed))
    parts = [part for step in shares(log) for part in step if isinstance(part, StatesPart)]
    assert [part.read for part in parts] == [None, 0]
    assert [4 in launch.reads for launch in launches(log, LaunchKind.STEP)] == [False, True], "the block of the state is read"


def test_states_are_stored_whole_or_not_at_all() -> None:
    stored = (
        Add(request="a", prompt_tokens=6),
        allocate("a", 0, 1, 2),
        schedule(1, ("a", 0, 6, 0, (1, 2))),
        process(1, ("a", 0)),
        Store(job=0, request="a", blocks=((1, 2),), after=(After(step=1),)),
    )
    (launch,) = launches(lower((config(ALIGN), *stored)), LaunchKind.STORE)
    assert isinstance(launch.work, TransferWork)
    assert [(slots.block, len(slots.tags)) for slots in launch.work.slots] == [(1, 4)]


# ---- frees, tables, waits --------------------------------------------------------------------------------------------


def test_references_of_others_and_late_releases_free_too() -> None:
    freeing = (
        *START,
        Hold(holder="x", kind="pin", blocks=(1,)),
        release("a", 2, indices=(1,), cause="deferred"),
        Drop(holder="x", blocks=(1,), freed=(1,)),
    )
    assert [op.blocks for op in lower((config(), *freeing)).ops if isinstance(op, Free)] == [(2,), (1,)]


def test_a_preemption_takes_the_whole_table_before_anything_is_released() -> None:
    resumed = (
        *START,
        Preempt(request="a", output="drop"),
        allocate("a", 0, 5),
        schedule(2, ("a", 0, 2, 0, (5,)), resumed=True),
    )
    assert keys(lower((config(), *resumed), worker=TOLD_OF_NULLS))[-1].blocks == (5,)


def test_a_moved_block_stands_where_it_moved() -> None:
    spec = MambaSpec(block_size=4, mode="align", num_speculative_blocks=1)
    moving = (
        Add(request="a", prompt_tokens=4),
        allocate("a", 0, 1, 2),
        schedule(1, ("a", 0, 4, 0, (1, 2))),
        Move(request="a", group=0, from_index=1, to_index=2, block=2),
        allocate("a", 1, 3),
        schedule(2, ("a", 4, 1, 0, (3, 2))),
    )
    parts = [part for step in shares(lower((config(spec), *moving), worker=TOLD_OF_NULLS)) for part in step]
    assert parts[-1].blocks == (1, 3, 2)


def test_what_stands_at_an_index_stays_when_what_stood_there_before_is_released() -> None:
    replaced = (*START, allocate("a", 0, 5), release("a", 1, indices=(0,)), schedule(2, ("a", 6, 1, 0, ())))
    assert keys(lower((config(), *replaced), worker=TOLD_OF_NULLS))[-1].blocks == (5, 2)


def test_a_hit_of_a_preempted_request_is_not_one_of_its_next_table() -> None:
    preempted = (
        *LONG,
        CACHED,
        Add(request="b", prompt_tokens=6),
        Touch(request="b", group=0, first_index=0, blocks=(1,)),
        Preempt(request="b", output="drop"),
        allocate("b", 0, 5, 6),
        Computed(request="b", computed=4, cause="external", stale=False),
        schedule(2, ("b", 4, 2, 0, (5, 6)), resumed=True),
    )
    assert versions(preempted, depth=3) == [LOADED] * 4 + [0] * 2


def test_a_copy_brings_what_its_source_is_hashed_for() -> None:
    partial = Cache(entries=(CacheEntry(block=1, group=0, request="a", start=0, end=2),))
    copied = (
        Add(request="b", prompt_tokens=6),
        allocate("b", 0, 5, 6),
        Copy(step=2, group=0, source=1, target=5),
        Computed(request="b", computed=4, cause="hit", stale=False),
        schedule(2, ("b", 4, 2, 0, (5, 6))),
    )
    assert versions((*LONG, partial, *copied)) == [0, 0, LOADED, LOADED, 0, 0]


def test_of_several_hashes_of_a_block_the_longest_says_what_it_stands_for() -> None:
    ends = [Cache(entries=(CacheEntry(block=2, group=0, request="a", start=4, end=end),)) for end in (8, 6)]
    assert versions((*LONG, Cache(entries=(CacheEntry(block=1),)), *ends, *hit_of(1, 2, computed=8))) == [0] * 10


def test_a_load_waits_for_its_edges_even_where_stores_do_not() -> None:
    loading = (*START, allocate("a", 2, 3), Load(job=0, request="a", blocks=((3,),), after=(After(step=1),)))
    log = lower((config(), *loading), worker=UNORDERED_STORES)
    assert [event for _, event in waits(log, FIRST_TRANSFER)] == [event_after(log, index_of(log, LaunchKind.STEP))]


def test_a_block_keeps_all_the_events_that_its_next_writer_waits_for() -> None:
    freed = (
        *START,
        Store(job=0, request="a", blocks=((2,),), after=(After(step=1),)),
        release("a", 1, indices=(0,)),
        allocate("a", 2, 1, after=(After(job=0),)),
        Load(job=1, request="a", blocks=((1,),), after=()),
        Store(job=2, request="a", blocks=((1,),), after=()),
    )
    log = lower((config(), *freed), poisons=True)
    stored, poisoned = (event_after(log, index_of(log, kind)) for kind in (LaunchKind.STORE, LaunchKind.POISON))
    assert {event for _, event in waits(log, FIRST_TRANSFER + 1)} == {stored, poisoned}
    assert not waits(log, FIRST_TRANSFER + 2), "it is written: whoever reads it has to wait for the writer"


def test_steps_copies_and_zeroings_wait_for_what_their_after_names() -> None:
    stored = (*START, Store(job=0, request="a", blocks=((1,),), after=(After(step=1),)))
    after = (After(job=0),)
    followed: tuple[Event, ...]
    for followed in (
        (Schedule(step=2, requests=schedule(2, ("a", 6, 1, 0, ())).requests, after=after),),
        (Zero(step=2, blocks=(5,), after=after), schedule(2, ("a", 6, 1, 0, ()))),
        (Copy(step=2, group=0, source=1, target=2, after=after), schedule(2, ("a", 6, 1, 0, ()))),
    ):
        log = lower((config(), *stored, *followed))
        assert event_after(log, index_of(log, LaunchKind.STORE)) in [event for _, event in waits(log, COMPUTE)]


def test_a_transfer_within_a_step_runs_behind_the_step_before() -> None:
    log = lower((config(), Add(request="b", prompt_tokens=1), allocate("b", 0, 11), schedule(7, ("b", 0, 1, 0, (11,))), *load(step=8)))
    assert [event for _, event in waits(log, FIRST_TRANSFER)] == [event_after(log, index_of(log, LaunchKind.STEP))]


def test_poison_is_waited_for_by_readers_and_then_by_the_writer() -> None:
    log = lower(
        (
            config(),
            *START,
            release("a", 2, 1, indices=(1, 0), cause="finish"),
            Store(job=0, request="a", blocks=((1,),)),
            Add(request="b", prompt_tokens=3),
            allocate("b", 0, 1),
            schedule(2, ("b", 0, 3, 0, (1,))),
        ),
        poisons=True,
    )
    poisoned = event_after(log, index_of(log, LaunchKind.POISON))
    assert poisoned in [event for _, event in waits(log, FIRST_TRANSFER)]
    assert poisoned in [event for _, event in waits(log, COMPUTE)]
    assert all(launch.stream == JANITOR for launch in launches(log, LaunchKind.POISON))


# ---- states ----------------------------------------------------------------------------------------------------------

ALIGN = MambaSpec(block_size=4, mode="align", num_speculative_blocks=2)
NONE = MambaSpec(block_size=64, mode="none", num_speculative_blocks=2)


def entry(start: int, tokens: int, drafts: int = 0, *, end: int | None = None, rejected: int = 0, previous: Entry | None = None) -> Entry:
    return Entry(start, tokens, drafts, start + tokens if end is None else end, 0, previous, rejected)


@pytest.mark.parametrize(
    ("spec", "step", "read", "writes"),
    [
        (NONE, entry(0, 6), None, ((0, 6),)),
        (NONE, entry(6, 1, previous=entry(0, 6)), 0, ((0, 1),)),
        (NONE, entry(8, 3, 2, previous=entry(6, 3, 2, rejected=1)), 1, ((0, 1), (1, 2), (2, 3))),
        (NONE, entry(5, 3, 2), 0, ((0, 1), (1, 2), (2, 3))),  # after a hit
        (NONE, entry(6, 6, 5), 0, ((0, 1), (1, 2), (2, 3))),  # more drafts than slots for their states
        (ALIGN, entry(8, 1, previous=entry(5, 3, 2)), 1, ((2, 1),)),  # all drafts accepted: their state fills block 1
        (ALIGN, entry(6, 1, previous=entry(1, 5, 4)), 3, ((1, 1),)),  # the last slot holds the last state that has one
        (ALIGN, entry(0, 5), None, ((1, 5),)),
        (ALIGN, entry(0, 8), None, ((1, 8), (1, 8))),  # the block is full: its state is kept
        (ALIGN, entry(8, 1), 1, ((2, 1),)),  # after a hit of 8 tokens
        (ALIGN, entry(8, 3, 2, previous=entry(6, 3, 2, rejected=1)), 3, ((2, 1), (3, 2), (4, 3))),  # behind the running index 2
        (ALIGN, entry(7, 3, 2, previous=entry(5, 3, 2, rejected=1)), 2, ((2, 1), (3, 2), (4, 3), (1, 1))),
        # Scheduled at 9 as if all drafts before were accepted, and really at 7: the indices follow 9, the filled block follows 7.
        (ALIGN, entry(7, 3, 2, end=12, previous=entry(6, 3, 2, rejected=2)), 2, ((2, 1), (3, 2), (4, 3), (1, 1))),
    ],
)
def test_which_states_a_step_reads_and_writes(spec: MambaSpec, step: Entry, read: int | None, writes: tuple[tuple[int, int], ...]) -> None:
    assert state_use(spec, step) == (read, writes)


@pytest.mark.parametrize(("reads", "read"), [((3,), 3), ((2, 3), 1)])
def test_an_index_that_the_trace_says_is_read_is_read(reads: tuple[int, ...], read: int) -> None:
    """Of several the kind says which."""
    events = [
        Add(request="a", prompt_tokens=5),
        allocate("a", 1, 1, 2, 3),
        schedule(1, ("a", 0, 5, 0, (0, 1, 2, 3))),
        process(1, ("a", 0)),
    ]
    later = schedule(2, ("a", 5, 1, 0, ())).requests[0]
    told = type(later)(request="a", start=5, tokens=1, drafts=0, new_blocks=((),), resumed=False, reads=(reads,), writes=((1,),))
    parts = [part for step in shares(lower((config(ALIGN), *events, Schedule(step=2, requests=(told,))))) for part in step]
    assert isinstance(parts[-1], StatesPart)
    assert parts[-1].read == read


# ---- what cannot be placed -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("events", "message"),
    [
        ((*START, schedule(2, ("a", 6, 1, 0, ())), Zero(step=1, blocks=(5,))), "event 6: step 1 went to the device before this"),
        ((*START, release("a", 1, indices=(0,)), Zero(step=1, blocks=(5,))), "event 6: step 1 went to the device before this"),
        ((*START, Add(request="a", prompt_tokens=1)), "event 5: request 'a' is added twice"),
        ((START[0], START[1], schedule(1, ("a", 0, 1, 0, (1,)), ("a", 1, 1, 0, ()))), "event 4: step 1 names a request twice"),
        ((*START, Store(job=0, request="a", blocks=((1,),), after=(After(step=5),))), "event 5: step 5 has not been scheduled"),
        (
            (*START, Store(job=0, request="a", blocks=((1,),), handles=2), *[Stored(job=0, ok=True, handle=0)] * 2),
            "event 7: handle 0 of job 0 is over already",
        ),
    ],
)
def test_what_cannot_be_placed_is_named(events: tuple[Event, ...], message: str) -> None:
    with pytest.raises(LoweringError) as raised:
        lower((config(), *events))
    assert str(raised.value).startswith(message)


def test_states_of_every_token_are_refused() -> None:
    with pytest.raises(LoweringError, match="no kernel keeps the states of mamba mode 'all'"):
        lower((config(FullAttentionSpec(block_size=4), MambaSpec(block_size=4, mode="all")),))
